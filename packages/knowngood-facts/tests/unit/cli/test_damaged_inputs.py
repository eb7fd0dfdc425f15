"""Absurd numbers, nesting and encodings on the command line and in files: exit 2 and a sentence, never a traceback."""

from __future__ import annotations

import io
import json
import shutil
import sys

import pytest

from knowngood.cli.main import main

DIGITS = "9" * 5000


@pytest.mark.parametrize(
    "words",
    [
        ["check", f"torch==2.{DIGITS}"],
        ["check", "torch", "--driver", DIGITS],
        ["check", "torch", "--gpu", f"sm_{DIGITS}"],
        ["pick", "--gpu", DIGITS],
        ["cells", f"sm{DIGITS}-cu130-torch2.11.0-tf4.57.6-fa0-triton3.6.0-py311"],
    ],
)
def test_an_argument_with_an_absurd_number_is_wrong_usage(words, capsys):
    assert main(words) == 2
    assert "a number of 5000 digits; correct it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema: 1", f"schema: {DIGITS}", "matrix.yaml:1:9: a number of 5000 digits"),
        ("schema: 1", "schema: " + "[" * 100_000, "nested more than 20 deep"),
        ("schema: 1", "schema: 1\nx: " + "- " * 50_000, "matrix.yaml:2:"),
        ("schema: 1", "schema: 1\x00", "is not allowed in YAML"),
        ("schema: 1", "schema: 1\nsize: {cell: " + "9" * 90 + " GB}", "is not a size such as 3.0 GB"),
        ("schema: 1", "schema: 1\nx: &a [1]\ny: *a", "anchors and aliases"),
        ("schema: 1", "schema: 1\ngpus: {}", "the key 'gpus' is given"),
    ],
)
@pytest.mark.parametrize("words", [["cells"], ["check", "torch==2.11.0"], ["cells", "--size"]])
def test_an_absurd_matrix_is_refused_with_its_place(home, capsys, *, words, old, new, message):
    matrix = home.root / "matrix.yaml"
    text = matrix.read_text()
    assert old in text
    matrix.write_text(text.replace(old, new, 1))
    code = main(words)
    err = capsys.readouterr().err
    if words[0] == "check" and "size:" in new:  # `check` needs no size
        assert code in (0, 1, 2, 3)
        return
    assert code == 2
    assert err.startswith("matrix.yaml:")
    assert message in err


def test_a_requirements_file_with_an_absurd_number(tmp_path, capsys):
    path = tmp_path / "requirements.txt"
    path.write_text(f"torch\ntransformers=={DIGITS}\n")
    assert main(["check", "-r", str(path)]) == 2
    assert f"{path}:2:15: a number of 5000 digits" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["[" * 100_000, f'{{"packages": {DIGITS}}}', "null", "\x00"])
def test_a_line_of_a_batch_that_is_no_query_is_answered_with_its_error(line, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(line + "\n"))
    assert main(["check", "--batch", "-"]) == 2
    assert json.loads(capsys.readouterr().out)["exit"] == 2


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"{}", b'{"schema": "knowngood/facts/2"}', b""])
@pytest.mark.parametrize("words", [["check", "xtuner==0.2.0"], ["pick", "--gpu", "H100", "xtuner"]])
def test_a_damaged_file_of_facts_ends_a_command_that_needs_it_with_exit_2(
    tmp_path, capsys, monkeypatch, words, content
):
    from knowngood.core import local_files
    from knowngood.project.release_seal import KNOWLEDGE_FOLDERS

    root = tmp_path / "data"
    for name in KNOWLEDGE_FOLDERS:
        (root / name).mkdir(parents=True)
    (root / "packages/knowngood-facts/facts" / "xtuner.json").write_bytes(content)
    shutil.copy(local_files.data_folder() / "matrix.yaml", root)
    monkeypatch.setattr(local_files, "data_folder", lambda: root)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert f"{root}/packages/knowngood-facts/facts/xtuner.json:1:" in err
    assert "run `knowngood harvest xtuner`" in err


def test_a_package_at_an_address_is_not_called_compatible(capsys):
    """`torch @ https://...` was compatible, as if any release would do."""
    for address, verdict in (
        ("torch @ https://example.org/latest", "unknown"),
        ("torch @ git+https://example.org/torch.git@main", "unknown"),
        ("git+https://example.org/torch.git@main", "unknown"),
        ("torch @ https://example.org/torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl", "compatible"),
        ("torch @ https://example.org/torch-2.99.0-cp311-cp311-manylinux_2_28_x86_64.whl", "unknown"),
    ):
        main(["check", address, "--json"])
        assert json.loads(capsys.readouterr().out)["verdict"] == verdict, address


def test_a_file_that_is_no_list_of_packages_is_not_repeated(tmp_path, capsys):
    """`-r /etc/shadow`, called by a script with the rights of root, printed its lines."""
    secret = tmp_path / "shadow"
    secret.write_text("root:$6$SALT$HASH:19000:0:::\nmachine h login me password GEHEIM\n-----BEGIN KEY-----\n")
    for words in (["-r", str(secret)], ["-r", str(secret), "--json"]):
        assert main(["check", *words]) == 2
        out, err = capsys.readouterr()
        assert f"{secret}:1:5: this is not a requirement" in err
        assert not [word for word in ("HASH", "GEHEIM", "SALT") if word in out + err]
