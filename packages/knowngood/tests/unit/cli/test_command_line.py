"""The command line's promises: exit codes, one JSON document, sentences."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

import pytest

from knowngood.cli import main
from knowngood.cli.progress import print_notice, report_progress
from knowngood.core.cell import parse_cell
from knowngood.core.errors import (
    InputError,
    InputProblem,
    KnowngoodError,
    MissingError,
    UnknownError,
    UsageError,
    redact_credentials,
)
from knowngood.core.local_files import cache_folder, data_folder
from knowngood.engine import container_engine as engines
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.images import image_build
from knowngood.lock import cell_locking
from knowngood.project.checkout import find_project
from samples import FA0, FA2, FA4, MATRIX, with_


@pytest.fixture
def call(capsys):
    """Runs a command: exit code, stdout, stderr; with `--json` stdout is one document, always."""

    def run(*words: str):
        code = main.main(words)
        out, err = capsys.readouterr()
        return code, json.loads(out) if "--json" in words else out, err

    return run


@pytest.fixture
def failing(monkeypatch):
    """Makes `knowngood cells` raise."""

    def fail(error: BaseException):
        def run(_):
            raise error

        monkeypatch.setattr("knowngood.cli.cells.run", run)

    return fail


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KnowngoodError("it failed"), 1, "knowngood: it failed\n"),
        (UsageError("no such thing"), 2, "knowngood: no such thing\n"),
        (InputError([InputProblem(file="f", line=1, column=2, text="bad")]), 2, "f:1:2: bad\n"),
        (UnknownError("not covered"), 3, "knowngood: not covered\n"),
        (MissingError("no engine"), 4, "knowngood: no engine\n"),
        (KeyboardInterrupt(), 1, "knowngood: stopped; finished work is kept, run it again to continue\n"),
        (OSError(errno.ENOSPC, "No space left"), 4, "knowngood: the disk is full; free some space and run it again\n"),
        (
            OSError(errno.ENOSPC, "No space", "/x"),
            4,
            "knowngood: the disk is full (/x); free some space and run it again\n",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 1, "knowngood: /x: Permission denied\n"),
        (OSError(errno.EMFILE, "Too many open files"), 1, "knowngood: Too many open files\n"),
    ],
)
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_each_kind_of_error_has_its_exit_code_and_message(call, failing, *, error, code, message, words):
    failing(error)
    actual, out, err = call("cells", *words)
    assert (actual, err) == (code, message)
    error = {"schema": main.ERROR_SCHEMA, "error": message.removeprefix("knowngood: ").strip(), "exit": code}
    assert out == (error if words else "")


def test_an_unexpected_exception_is_raised(failing, call):
    failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        call("cells")


@pytest.mark.parametrize("scheme", ["https", "http", "HTTPS", "socks5h"])
def test_no_error_shows_credentials(failing, call, scheme):
    failing(MissingError(f"cannot reach {scheme}://me:p@ss@index.example/simple and `{scheme}://token@b.example`"))
    _, out, err = call("cells", "--json")
    for text in (out["error"], err):
        assert "p@ss" not in text
        assert "token" not in text
        assert f"{scheme}://***@index.example/simple" in text


@pytest.mark.parametrize(
    "text",
    [
        "https://index.example/a@b",
        "me@b.example",
        "ssh://git@b.example",
        "a https://b c@d",
        f"knowngood:cell@sha256:{'1' * 64}",
        f"localhost:5000/a/b:c@sha256:{'1' * 64}",
    ],
)
def test_text_without_credentials_stays(text):
    assert redact_credentials(text) == text


@pytest.mark.parametrize(
    "words",
    [
        ["publish", "--to", "alice:s3cr3t@registry.example/x"],
        ["publish", "--to", "s3cr3t@registry.example/x"],
        ["publish", "--to", "https://alice:s3cr3t@registry.example/x"],
        ["publish", "--verify", "alice:s3cr3t@registry.example/x:a"],
        ["publish", "--verify", "s3cr3t@registry.example/x:a"],
        ["export", FA4, "--format", "devcontainer", "--image", "alice:s3cr3t@registry.example/x:a"],
        ["export", FA4, "--format", "pylock", "--output", "pylock.toml"],
        ["cells", "--catalog", "http://alice:s3cr3t@127.0.0.1:9/catalog.json"],
    ],
)
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_no_login_in_an_address_is_printed_or_written(capsys, home, lock_of, monkeypatch, *, words, as_json):
    lock_of(FA4)
    monkeypatch.setenv("KNOWNGOOD_REPOSITORY", "alice:s3cr3t@registry.example/x")
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://bob:s3cr3t@127.0.0.1:9/simple")
    main.main([*words, *as_json])
    assert "s3cr3t" not in "".join(capsys.readouterr())
    assert not [path for path in home.root.rglob("*") if path.is_file() and b"s3cr3t" in path.read_bytes()]


@pytest.mark.parametrize(
    "text", ["alice:s3cr3t@host/x", "'alice:p@s3cr3t@host:5000/x'", "ssh://u:s3cr3t@host/x", "at alice:s3cr3t@[::1]/x"]
)
def test_a_password_before_a_host_is_found_without_a_scheme(text):
    assert "s3cr3t" not in redact_credentials(text)
    assert "***@" in redact_credentials(text)


@pytest.mark.parametrize(
    "words",
    [
        ["cells", "--nonsense"],
        ["cells", "--js"],
        ["smoke", "run", "--timeout", "0"],
        ["smoke", "run", "--timeout", "soon"],
        ["engine", "sideways"],
    ],
)
def test_wrong_usage_is_exit_2_with_the_usage(call, words):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("knowngood: ")
    assert "usage: knowngood" in err
    code, out, _ = call(*words, "--json")
    assert (code, out["exit"]) == (2, 2)


@pytest.mark.parametrize("words", [["--help"], ["cells", "--help"], ["--version"], ["build-matrix", "--help"]])
def test_help_is_exit_0(call, words):
    with pytest.raises(SystemExit) as caught:
        call(*words)
    assert caught.value.code == 0


def test_without_a_command_the_help_is_shown(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main([])
    assert ended.value.code == 0
    assert "knowngood pick 4090" in capsys.readouterr().out


def test_help_imports_no_heavy_library_and_is_fast():
    imported = "import sys; from knowngood.cli import main as cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\n"
    imported += (
        "heavy = "
        "{'docker', 'requests', 'pydantic', 'yaml', 'jinja2', 'rich', 'uv'} & set(sys.modules)\nassert not heavy, heavy"
    )
    before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    subprocess.run([sys.executable, "-c", imported], check=True, capture_output=True)
    assert sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before < 2  # processor time, whatever else runs


@pytest.mark.usefixtures("home")
def test_cells_lists_ids_tiers_and_aliases(call, lock_of):
    lock_of(FA4)
    code, out, err = call("cells", "--json")
    assert (code, err) == (0, "")
    assert [(cell["id"], cell["tier"], cell["aliases"]) for cell in out["cells"]] == [
        (FA4, "resolved", ["default"]),
        (FA2, "none", []),
        (FA0, "none", []),
    ]
    assert out["cells"][0]["axes"]["flash-attn"] == "4.0.0b36"
    assert FA4 in call("cells", "--long")[1]


@pytest.mark.usefixtures("home")
def test_a_selection_narrows_the_list(call):
    assert [cell["id"] for cell in call("cells", "flash-attn=none", "--json")[1]["cells"]] == [FA0]
    code, out, err = call("cells", "sm75-*", "--json")
    assert (code, out["exit"]) == (2, 2)
    assert "'sm75-*' selects no cell" in err


@pytest.mark.parametrize(
    ("data", "places"),
    [
        (with_(("torch: 2.11.0", "torch: 9.9.9"), ("H200]", "H200], x: 1")).encode(), ["4:48", "23:12"]),
        (MATRIX.replace("Hopper", "Höpper").encode("cp1252"), ["4:20"]),
        (MATRIX.encode("utf-16"), ["1:1"]),
        (b"\xef\xbb\xbf" + MATRIX.replace("schema: 1", "schema: 2").encode(), ["1:9"]),
        (b"", ["1:1"]),
        (b"a: &a [*a]\n", ["1:4", "1:8"]),
    ],
)
def test_a_bad_matrix_is_exit_2_with_places(call, home, data, places):
    (home.root / "matrix.yaml").write_bytes(data)
    for words in (("cells",), ("render", "--check"), ("lock",), ("build-matrix", "--dry-run")):
        code, _, err = call(*words)
        assert code == 2
        assert [line.split(": ")[0].removeprefix("matrix.yaml:") for line in err.splitlines()] == places


def test_a_byte_order_mark_and_windows_line_ends_are_fine(call, home):
    (home.root / "matrix.yaml").write_bytes(b"\xef\xbb\xbf" + MATRIX.replace("\n", "\r\n").encode())
    assert call("cells")[0] == 0


def test_a_matrix_behind_a_link(call, home, tmp_path):
    (home.root / "matrix.yaml").rename(tmp_path / "real.yaml")
    (home.root / "matrix.yaml").symlink_to(tmp_path / "real.yaml")
    assert call("cells")[0] == 0


def test_a_matrix_without_read_permission_is_an_error_message(call, home):
    (home.root / "matrix.yaml").chmod(0)
    if os.access(home.root / "matrix.yaml", os.R_OK):
        pytest.skip("this user may read everything")
    code, _, err = call("cells")
    assert code == 1
    assert "Permission denied" in err


def test_render_check_passes_after_render(call, home, lock_of):
    for identity in (FA4, FA2, FA0):
        lock_of(identity)
    code, out, _ = call("render", "--check", "--json")
    assert (code, out["current"]) == (1, False)
    assert not list(home.root.rglob("Dockerfile"))
    assert call("render")[0] == 0
    code, out, _ = call("render", "--check", "--json")
    assert (code, out["current"], out["records"]) == (0, True, {})
    assert call("render", "--json")[1]["changed"] == []


def test_render_check_shows_the_difference(call, home, lock_of):
    for identity in (FA4, FA2, FA0):
        lock_of(identity)
    call("render")
    path = home.tree.cell_folder(parse_cell(FA4)) / "Dockerfile"
    path.write_text(path.read_text().replace("USER 1000:1000", "USER root"))
    code, out, _ = call("render", "--check")
    assert code == 1
    assert "-USER root\n+USER 1000:1000\n" in out
    assert "stale; run `knowngood render`" in out
    assert "USER root" in path.read_text()


@pytest.mark.parametrize(
    "document",
    [
        {"a": [], "b": {}, "c": [1, [2, {}]], "d": 1.5, "e": None, "f": True, "g": 10**30, "h": 1e22, "i": 'x\n"\\'},
        {"nan": float("inf")},
        {"name": "Jürgen", "half": "\ud800"},
    ],
)
def test_both_json_encoders_print_the_same(document, monkeypatch):
    import pydantic_core

    monkeypatch.setitem(sys.modules, "pydantic_core", pydantic_core)
    quick = main._json(document)
    monkeypatch.delitem(sys.modules, "pydantic_core")
    assert main._json(document) == quick == json.dumps(document, indent=1)


def test_render_check_fails_when_evidence_is_left_out(call, home, lock_of):
    for identity in (FA4, FA2, FA0):
        lock_of(identity)
    (home.evidence / FA4).mkdir(parents=True)
    (home.evidence / FA4 / "20261121T100000Z-cut.json").write_text('{"schema"')
    assert "evidence left out: " in call("render")[1]
    code, out, _ = call("render", "--check", "--json")
    assert code == 1
    assert "20261121T100000Z-cut.json: not readable as evidence" in out["left_out"][0]


@pytest.fixture
def cpu_run(home, lock_of):
    """The file of a good run of a cell on a CPU."""
    lock_of(FA4)
    run = Evidence(
        cell=FA4,
        where=RunPlace.CONTAINER_CPU,
        image="sha256:" + "1" * 64,
        when="2026-11-21T10:00:00+00:00",
        node={},
        command=("test",),
        report={
            "verdict": {"ok": True, "domain": "none", "text": ""},
            "suite_hash": "5" * 64,
            "checks": [],
            "environment": {},
        },
    )
    return run_evidence.store_evidence(run, home.evidence)


def test_a_tier_states_the_suite_that_it_was_seen_with(call, home, cpu_run):
    assert cpu_run.is_file()
    for digit, current in (("5", True), ("6", False)):
        (home.suite / "environment.py").write_text(f"def suite_hash(folder):\n    return {digit!r} * 64\n")
        (cell,) = call("cells", FA4, "--json")[1]["cells"]
        assert (cell["tier"], cell["suite"]) == ("built", {"hash": "5" * 64, "current": current})
        assert ("built, by an older suite" in call("cells", FA4, "--long")[1]) is not current
        assert ("built only*" in call("cells", FA4)[1]) is not current
    (home.suite / "environment.py").unlink()
    (cell,) = call("cells", FA4, "--json")[1]["cells"]
    assert cell["suite"] == {"hash": "5" * 64, "current": None}


def test_cells_fails_when_evidence_is_forged(call, cpu_run):
    path = cpu_run
    assert call("cells", FA4, "--json")[0] == 0
    path.write_text(path.read_text().replace(RunPlace.CONTAINER_CPU, RunPlace.CONTAINER_GPU))
    code, out, _ = call("cells", FA4, "--json")
    assert (code, out["cells"][0]["errors"]) == (1, [])
    assert "forged or damaged" in out["left_out"][0]
    assert call("cells", FA0)[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ["cells"],
        ["build", "--plan"],
        pytest.param(["check", "torch==2.11.0"], marks=pytest.mark.whole),
        pytest.param(["harvest", "torch"], marks=pytest.mark.whole),
    ],
)
def test_without_matrix_yaml_the_message_says_so(call, home, words):
    (home.root / "docker/cells").mkdir()
    (home.root / "matrix.yaml").unlink()
    code, out, _ = call(*words, "--json")
    assert (code, out["exit"]) == (2, 2)
    assert out["error"].startswith(f"{home.root} has no matrix.yaml")


def test_a_checkout_without_matrix_yaml_is_not_answered_for_by_another(tmp_path):
    for part in ("docker/cells", "templates", "docs"):
        (tmp_path / part).mkdir(parents=True)
    assert find_project(tmp_path / "docs").root == tmp_path
    (tmp_path / "templates").rmdir()
    assert find_project(tmp_path / "docs").root == data_folder()


def test_render_check_finds_orphans_and_render_removes_them(call, home, lock_of):
    for identity in (FA4, FA2, FA0):
        lock_of(identity)
    call("render")
    path = home.root / "matrix.yaml"
    path.write_text(path.read_text().replace("[2.8.3.post2, none]", "none"))
    code, out, _ = call("render", "--check")
    assert code == 1
    assert f"{FA2}: no cell of matrix.yaml has it" in out
    assert FA2 in str(call("render", "--json")[1]["removed"])
    assert call("render", "--check")[0] == 0


@pytest.mark.usefixtures("home")
def test_render_check_names_cells_without_a_lock(call, lock_of):
    lock_of(FA4)
    call("render")
    code, out, _ = call("render", "--check")
    assert code == 1
    assert f"{FA2} is not locked; run `knowngood lock '{FA2}'`" in out


def test_a_damaged_lock_is_exit_2(call, home, lock_of):
    lock_of(FA4)
    (home.tree.cell_folder(parse_cell(FA4)) / "cell.json").write_text("{")
    code, _, err = call("render", "--check")
    assert code == 2
    assert "not well-formed JSON" in err


def test_a_cell_that_cannot_be_locked_stops_no_other_and_removes_nothing(call, home, lock_of, monkeypatch):
    lock_of(FA0)
    stray = home.tree.folder / "cells" / "old"
    stray.mkdir()
    original = cell_locking.lock_cell

    def lock_cell(entry, *arguments, **options):
        if str(entry.cell) == FA4:
            raise MissingError("no index")
        return original(entry, *arguments, **options)

    monkeypatch.setattr(cell_locking, "lock_cell", lock_cell)
    monkeypatch.setenv("KNOWNGOOD_WHEELHOUSE", str(home.root))
    code, out, _ = call("lock", "--json")
    assert code == 4
    assert [(item["id"], item["status"]) for item in out] == [(FA4, "failed"), (FA2, "failed"), (FA0, "current")]
    assert stray.exists()
    code, out, _ = call("lock", FA0, "--json")
    assert code == 0
    assert stray.exists()


def test_lock_removes_folders_that_no_cell_has(call, home, lock_of):
    for identity in (FA4, FA2, FA0):
        lock_of(identity)
    (home.tree.folder / "cells" / "old").mkdir()
    code, out, _ = call("lock", "--json")
    assert code == 0
    assert {"removed": "old"} in out


@pytest.mark.usefixtures("home")
def test_no_engine_is_exit_4(call, monkeypatch):
    def ensure(**_):
        raise MissingError("no engine answers; install Docker")

    monkeypatch.setattr(engines, "ensure_engine", ensure)
    code, out, err = call("build-matrix", "--json")
    error = "no engine answers; install Docker"
    assert (code, out) == (4, {"schema": main.ERROR_SCHEMA, "error": error, "exit": 4})
    assert err == "knowngood: no engine answers; install Docker\n"


@pytest.mark.parametrize("streams", [("stdout",), ("stdout", "stderr")], ids="+".join)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["cells"], 128 + signal.SIGPIPE),
        (["cells", "--json"], 128 + signal.SIGPIPE),
        (["--version"], 128 + signal.SIGPIPE),
        (["cells", "none", "--json"], 2),
    ],
)
def test_a_closed_output_pipe_is_no_traceback(home, words, code, streams):
    """It ends like a program by SIGPIPE, as a shell counts it; an error keeps its own code."""
    reader, pipe = os.pipe()
    os.close(reader)
    argv = [sys.executable, "-m", "knowngood", *words]
    env = {**os.environ, "PYTHONUNBUFFERED": ""}
    where = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | dict.fromkeys(streams, pipe)
    done = subprocess.run(argv, cwd=home.root, env=env, text=True, check=False, **where)
    os.close(pipe)
    assert done.returncode == code
    assert re.fullmatch("(knowngood: .* selects no cell .*\n)?", done.stderr or "")


@pytest.mark.parametrize(
    "words", [["cells"], ["cells", "--json"], ["cells", "sm75-\u00e9*"], ["cells", "\u00e9", "--json"]]
)
def test_a_terminal_without_the_characters_is_no_traceback(home, words):
    script = "import sys; from knowngood.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=home.root,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 2)
    assert b"Traceback" not in done.stderr
    if "--json" in words:
        json.loads(done.stdout)


@pytest.mark.parametrize("command", sorted(main.all_commands()))
def test_every_command_takes_json(command):
    needed = {
        "api": ["trl.SFTTrainer"],
        "certify": ["gemma2"],
        "engine": ["up"],
        "keys": ["show"],
        "smoke": ["run"],
    }.get(command, [])
    assert main.build_parser(command).parse_args([command, "--json", *needed]).json


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_ends_a_command_like_ctrl_c(number):
    """And so does the end of its terminal."""
    slow = "cells.run = lambda _: (print('on', flush=True), time.sleep(60))"
    ignores = "signal.signal(signal.SIGINT, signal.SIG_IGN)"  # as a shell's background job does
    imports = "import signal, sys, time; from knowngood.cli import main as cli; from knowngood.cli import cells"
    code = f"{imports}; {slow}; {ignores}; sys.exit(cli.main(['cells']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # under nohup these tests inherit that it is ignored
    )
    assert process.stdout.readline() == "on\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    stopped = "knowngood: stopped; finished work is kept, run it again to continue\n"
    assert (process.returncode, errors) == (1, stopped)


def test_a_command_under_nohup_outlives_its_terminal(home):
    code = (
        "import os, signal, sys; from knowngood.cli import main as cli; from knowngood.cli import cells\n"
        "cells.run = lambda _: (os.kill(os.getpid(), signal.SIGHUP), cli.Answer(0, {}, 'done'))[1]\n"
        "sys.exit(cli.main(['cells']))"
    )
    argv = ["nohup", sys.executable, "-c", code]
    result = subprocess.run(argv, cwd=home.root, env=os.environ, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "done\n")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_a_closed_standard_stream_is_no_traceback(home, closed):
    """Nor does a file that is opened later get its number."""
    script = (
        "import os, sys\n"
        f"for number in {closed}: os.close(number)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'knowngood', 'keys', 'show'])\n"
    )
    argv = [sys.executable, "-c", script]
    result = subprocess.run(argv, cwd=home.root, env=os.environ, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert ("names no key" in result.stdout) is (1 not in closed)


@pytest.mark.parametrize("words", [["cells"], ["cells", "--json"], ["--version"]], ids=" ".join)
def test_a_full_output_is_said(home, words):
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        argv = [sys.executable, "-m", "knowngood", *words]
        env = {**os.environ, "PYTHONUNBUFFERED": ""}
        result = subprocess.run(argv, cwd=home.root, env=env, stdout=full, stderr=-1, text=True, check=False)
    assert result.returncode == 4
    assert "the disk is full" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Exception" not in result.stderr


@pytest.mark.parametrize("text", ["(" * 200_000, "(" * 100_000 + "@", "a:" * 50_000 + "@x", "://" * 70_000 + "@x"])
def test_a_long_text_is_searched_for_credentials_in_no_time(text):
    """A requirement with many parentheses took 17.7 s to be refused, for its message was searched."""
    start = time.monotonic()
    redact_credentials(text)
    assert time.monotonic() - start < 5


EVIL = "\x1b[2J\x1b]0;title\x07\rover\u202egnp"


def test_what_is_repeated_cannot_drive_the_terminal(call, failing, monkeypatch, capsys):
    failing(KnowngoodError(EVIL))
    _, _, err = call("cells")
    monkeypatch.setattr("knowngood.cli.cells.run", lambda _: main.Answer(0, {}, f"a\tb\n{EVIL}"))
    _, out, _ = call("cells")
    print_notice(EVIL)
    with report_progress("x") as notify:
        notify(EVIL)
    for text in (err, out, capsys.readouterr().err):
        assert "\\x1b[2J\\x1b]0;title\\x07\\rover\\u202egnp" in text
        assert not set("\x1b\x07\r\u202e") & set(text)
    assert out.startswith("a\tb\n")


def test_a_damaged_record_of_the_cache_counts_as_absent():
    folder = cache_folder() / "images"
    folder.mkdir(parents=True)
    (folder / "x.json").write_bytes(b"\xff\xfe{}")
    (folder / "y.json").write_text("[" * 100_000)
    (folder / "z.json").write_text("{}")
    assert list(image_build.load_kept_records()) == []


@pytest.mark.parametrize(
    ("word", "hint"),
    [("cels", "did you mean `knowngood cells`?"), ("rnu", "did you mean `knowngood run`?"), ("xyz", "lists them")],
)
def test_a_mistyped_command_gets_its_nearest_and_not_all(call, word, hint):
    code, out, err = call(word)
    assert (code, out) == (2, "")
    assert hint in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_completed(capsys, shell):
    with pytest.raises(SystemExit, match="0"):
        main.main(["--completion", shell])
    out = capsys.readouterr().out
    assert all(re.search(rf"\b{name}\b", out) for name in main.COMMANDS)
    assert "digests" in out or shell == "bash"  # zsh and fish show the help of options


def test_bash_completes_commands_and_options_of_words(capsys, tmp_path):
    with pytest.raises(SystemExit, match="0"):
        main.main(["--completion", "bash"])
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    ask = """
    source completion
    COMP_WORDS=(knowngood expo); COMP_CWORD=1; _shtab_knowngood knowngood expo knowngood; echo "${COMPREPLY[@]}"
    COMP_WORDS=(knowngood smoke run --qu); COMP_CWORD=3; COMPREPLY=(); _shtab_knowngood knowngood --qu run
    echo "${COMPREPLY[@]}"
    """
    ended = subprocess.run(["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["export", "--quick"]


def test_another_shell_is_refused(call):
    code, _, err = call("--completion", "ksh")
    assert code == 2
    assert "bash, zsh, fish" in err


def test_every_document_names_its_form_and_version(call):
    code, out, _ = call("cells", "default", "--json")
    assert code == 0
    assert out["schema"] == "knowngood/cells/1"
    code, out, _ = call("cells", "nonsense", "--json")
    assert out == {"schema": "knowngood/error/1", "error": out["error"], "exit": 2}
    _, out, _ = call("cells", "--jobs", "images", "--json")
    assert list(out) == ["include"]  # GitHub's own form: another key would be an axis


def test_the_list_of_cells_fits_a_terminal_and_is_by_card(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call("cells", "gpu=H100", "gpu=GH200")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "H100, H200, H800, H20 (sm_90)"
    assert "GH200 (sm_90, aarch64)" in lines
    assert max(map(len, lines[:-1])) <= 80
    assert re.search(r"^  default +2\.\S+ +5\.\S+ +4\.\S+ +GPU\*?$", out, re.MULTILINE)
    assert "sm90-" not in out
    _, long, _ = call("cells", "gpu=H100", "--long")
    assert "sm90-cu130-" in long
