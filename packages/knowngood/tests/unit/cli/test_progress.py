from __future__ import annotations

from knowngood.cli.progress import report_progress


def test_progress_shows_no_password(capsys):
    with report_progress("cell") as notify:
        notify("fetching http://bob:TOKEN@index.example/simple and alice:TOKEN@host/x")
    shown = capsys.readouterr().err
    assert "TOKEN" not in shown
    assert "http://***@index.example/simple" in shown
