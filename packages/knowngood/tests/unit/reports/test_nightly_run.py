"""`knowngood nightly` on a small project: locks that cannot be read."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from packaging.version import Version

from knowngood.base import base_image
from knowngood.cli import main
from knowngood.core.cell import parse_cell
from knowngood.core.errors import MissingError
from knowngood.engine import container_engine
from knowngood.evidence.run_evidence import Evidence, RunPlace, store_evidence
from knowngood.index.artefact import PublishedFile
from knowngood.registry import vulnerability_audit
from knowngood.registry.vulnerability_audit import AuditReport
from knowngood.reports import nightly_checks
from samples import FA0, FA4


@pytest.fixture
def project(home, lock_of, monkeypatch):
    """A project with two locked cells, a base, and an index that has every file of them."""
    locks = [lock_of(FA4), lock_of(FA0)]
    monkeypatch.setattr(base_image, "read_base_digest", lambda *_: "sha256:" + "b" * 64)

    class Index:
        def files(self, name):
            return tuple(
                PublishedFile(name=item.file, url="", sha256=item.sha256, version=Version("1"), yanked=False)
                for lock in locks
                for item in lock.distributions
                if item.name == name
            )

    monkeypatch.setattr(nightly_checks, "SimpleIndex", Index)
    return home


def nightly(capsys, *words):
    """Run the command on the two locked cells, unless words select others; the third has a wheel to be compiled."""
    selected = [] if any(word.startswith("sm90-") for word in words) else [FA4, FA0]
    code = main.main(["nightly", "--json", *words, *selected])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


def damage_a_hash(project):
    """Change the hash of a wheel in a layer of the cell with flash-attn 4."""
    (path,) = (project.root / "docker/layers").glob("flash-attn-*/requirements.txt")
    text = path.read_text()
    path.write_text(re.sub(r"sha256:\w", lambda match: f"sha256:{'0' if match[0][-1] != '0' else '1'}", text, count=1))
    return path


def kinds(report, check):
    (result,) = [item for item in report["results"] if item["check"] == check]
    return [(item["kind"], item["severity"]) for item in result["findings"]]


def test_undamaged_locks_are_good(project, capsys):
    assert project.tree.load(parse_cell(FA4))
    code, report, _ = nightly(capsys, "--only", "files")
    assert (code, report["results"][0]["outcome"]) == (0, "all there")


def test_a_lock_that_cannot_be_read_is_an_error_although_the_others_are_good(project, capsys):
    path = damage_a_hash(project)
    code, report, _ = nightly(capsys, "--only", "files")
    assert code == 1
    assert kinds(report, "files") == [("lock-unreadable", "error")]
    (found,) = report["results"][0]["findings"]
    assert (found["cells"], report["results"][0]["outcome"]) == ([FA4], "1 lock-unreadable")
    assert f"{path}: the content was changed by hand; run `knowngood lock` again" in found["text"]


def test_no_file_at_all_is_an_error(project, capsys):
    damage_a_hash(project)
    code, report, _ = nightly(capsys, "--only", "files", FA4)
    assert code == 1
    assert kinds(report, "files") == [("lock-unreadable", "error"), ("nothing-examined", "error")]


def test_a_cell_that_was_never_locked_is_an_error(project, capsys):
    (project.tree.cell_folder(parse_cell(FA0)) / "cell.json").unlink()
    code, report, _ = nightly(capsys, "--only", "files")
    assert code == 1
    assert f"knowngood lock '{FA0}'" in report["results"][0]["findings"][0]["text"]


def test_a_lock_without_distributions_is_an_error(project, capsys):
    lock = project.tree.load(parse_cell(FA0))
    project.tree.save(replace(lock, layers=()))
    code, report, _ = nightly(capsys, "--only", "files", FA0)
    assert (code, kinds(report, "files")) == (1, [("nothing-examined", "error")])


def test_the_files_are_checked_again_when_a_lock_is_damaged_or_repaired_on_the_same_day(project, capsys):
    assert nightly(capsys, "--only", "files")[0] == 0
    path = project.tree.folder / "layers"
    layer = next(path.glob("flash-attn-*")) / "requirements.txt"
    whole = layer.read_text()
    damage_a_hash(project)
    assert nightly(capsys, "--only", "files")[0] == 1
    layer.write_text(whole)
    assert nightly(capsys, "--only", "files")[0] == 0


def test_the_audit_names_the_cells_that_it_could_not_look_at(project, monkeypatch, capsys):
    cells = []

    def audit(_project, audited, *_):
        cells.extend(map(str, audited))
        return AuditReport(open=(), accepted=(), unanswered=(), unused=()), 5

    monkeypatch.setattr(vulnerability_audit, "audit_cells", audit)
    damage_a_hash(project)
    code, report, _ = nightly(capsys, "--only", "audit")
    assert (code, cells, kinds(report, "audit")) == (1, [FA0], [("lock-unreadable", "error")])
    assert report["results"][0]["outcome"] == "0 open, 0 new, not all known"


def no_engine(*_args, **_more):
    raise MissingError("there is no engine")


def test_a_narrower_run_does_not_cover_a_red_report(project, capsys, monkeypatch):
    monkeypatch.setattr(container_engine, "ensure_engine", no_engine)
    damage_a_hash(project)
    assert nightly(capsys, "--only", "files")[0] == 1
    code, report, _ = nightly(capsys, "--only", "rebuild", FA0)
    assert code == 1
    assert kinds(report, "files") == [("lock-unreadable", "error")]


def damaged_reports(folder):
    folder.mkdir(exist_ok=True)
    (folder / "2026-01-01.json").write_text('{"schema": "knowngood/nightly/1"')
    (folder / "2026-01-02.json").write_text('{"schema": "knowngood/nightly/7"}')
    (folder / "2026-01-03.json").write_text('{"schema": "knowngood/nightly/1", "date": "2026-01-03"}')


def test_a_damaged_report_is_a_failure(project, capsys):
    assert nightly(capsys, "--only", "files")[0] == 0
    damaged_reports(project.root / "evidence/nights")
    code, report, _ = nightly(capsys, "--only", "files")
    assert code == 1
    assert kinds(report, "history") == [("unusable-history", "error")] * 3
    texts = [item["text"] for result in report["results"] for item in result["findings"]]
    assert any(text.startswith("2026-01-01.json:1:33: not well-formed JSON") for text in texts)
    assert any("schema 'knowngood/nightly/7', but this program reads knowngood/nightly/1" in text for text in texts)
    assert any(text.startswith("2026-01-03.json: not readable as a report") for text in texts)
    for path in (project.root / "evidence/nights").glob("2026-01-*.json"):
        path.unlink()
    code, report, _ = nightly(capsys, "--only", "files")
    assert (code, [item["check"] for item in report["results"]]) == (0, ["files"]), "it is mended"


def test_forged_evidence_is_a_failure(project, capsys):
    report = {"verdict": {"ok": True}, "suite_hash": "5" * 12, "checks": []}
    fields = {"image": "sha256:1", "when": "2026-01-01T00:00:00+00:00", "command": ("python",)}
    run = Evidence(cell=FA0, where=RunPlace.CONTAINER_CPU, node={}, report=report, **fields)
    path = store_evidence(run, project.evidence)
    assert nightly(capsys, "--only", "files", FA0)[0] == 0
    path.write_text(path.read_text().replace("sha256:1", "sha256:2"))
    code, report, _ = nightly(capsys, "--only", "files", FA0)
    assert code == 1
    (text,) = [item["text"] for result in report["results"] for item in result["findings"]]
    assert path.name in text
    assert "restore it from version control" in text
