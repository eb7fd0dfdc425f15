"""What `bisect` compares: files of several kinds, cells, cells at a revision; and what it prints."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from knowngood.cli.main import main
from knowngood.core.errors import UsageError
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace
from knowngood.reports import bisect_run, lock_pins
from knowngood.reports.lock_bisect import BisectResult, EndProblem, EnvironmentOutcome
from knowngood.reports.package_changes import PackageChange
from samples import FA4


def git(home, *words):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=home.root, check=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "A_b==1.0 --hash=sha256:00\nc==2.0+cu13  # why\n"),
        (
            "pylock.toml",
            '[[packages]]\nname = "A_b"\nversion = "1.0"\n[[packages]]\nname = "c"\nversion = "2.0+cu13"\n',
        ),
    ],
)
def test_pins_are_read_from_files(home, tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    assert lock_pins.read_pins(str(path), home).versions == {"a-b": "1.0", "c": "2.0+cu13"}


def test_evidence_is_what_was_installed(home, tmp_path):
    environment = {"python": "3.11.2", "distributions": {"Torch": "2.11.0+cu130"}}
    run = Evidence(
        cell=FA4,
        where=RunPlace.CONTAINER_CPU,
        image="sha256:" + "1" * 64,
        when="2026-11-21T10:00:00+00:00",
        node={"name": "n"},
        command=("python",),
        report={"verdict": {"ok": True}, "suite_hash": "5" * 64, "checks": [], "environment": environment},
    )
    path = run_evidence.store_evidence(run, tmp_path)
    found = lock_pins.read_pins(str(path), home)
    assert (found.versions, found.python, found.line("torch")) == (
        {"torch": "2.11.0+cu130"},
        "3.11",
        "torch==2.11.0+cu130",
    )


def test_a_cell_is_its_lock_with_hashes_and_a_revision_is_gits(home, lock_of):
    locked = lock_of(FA4)
    here = lock_pins.read_pins("default", home)
    assert here.versions == {item.name: item.version for item in locked.distributions}
    assert here.python == "3.11"
    assert here.line("torch") == f"torch==2.11.0 --hash=sha256:{here.hashes['torch']}"
    git(home, "init", "--quiet")
    git(home, "add", ".")
    git(home, "commit", "--quiet", "-m", "a")
    for name in ("HEAD:default", f"HEAD:{FA4}"):
        then = lock_pins.read_pins(name, home)
        assert (then.versions, then.hashes, then.source) == (here.versions, here.hashes, name)


@pytest.mark.parametrize(
    ("text", "said"),
    [("a>=1\n", "a>=1 is not"), ("", "it pins no package"), ("a==\n", "a== is not pinned"), (b"\xff\xfe", "not UTF-8")],
)
def test_a_file_that_is_not_a_lock_is_refused(home, tmp_path, text, said):
    path = tmp_path / "a.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=said):
        lock_pins.read_pins(str(path), home)


@pytest.mark.parametrize("named", ["HEAD:default", "--output=x:default", "nosuch", "gpu=sm_90"])
def test_a_name_that_is_none_of_these_is_refused(home, lock_of, named):
    lock_of(FA4)
    with pytest.raises(UsageError):
        lock_pins.read_pins(named, home)


@pytest.mark.parametrize("text", ["{", "{}", '{"schema": "knowngood/evidence/9"}'])
def test_damaged_or_newer_evidence_is_refused(home, tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        lock_pins.read_pins(str(path), home)


def search(**more):
    ends = {
        name: lock_pins.PinnedPackages(source=f"{name}.txt", versions={"a": version}, hashes={})
        for name, version in (("good", "1"), ("bad", "2"))
    }
    return bisect_run.LockBisection(**ends, command=["python", "-c", "import a.b"], **more)


def test_the_description_has_the_command_that_repeats_it():
    found = BisectResult(culprits=(PackageChange(name="a", old="1", new="2"),), proven=True, environments=7, changed=40)
    said = bisect_run.describe_bisection(found, search(python="3.11"), ["No module named a.b"])
    assert said == (
        "a 1 -> 2: this change alone makes it fail (7 environments for 40 changed packages); "
        "last output: No module named a.b; "
        "to repeat: knowngood bisect good.txt bad.txt --only a --python 3.11 -- python -c 'import a.b'"
    )


def test_a_bisection_without_a_culprit_is_described():
    found = BisectResult(culprits=(), proven=False, environments=2, changed=40, note="the good lock fails as well")
    assert bisect_run.describe_bisection(found, search(), []) == (
        "none of 40 changed packages: the good lock fails as well (2 environments)"
    )


@pytest.mark.usefixtures("home")
def test_the_command_of_the_command_line_is_what_follows_two_dashes(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("a==1\n")
    words = [str(tmp_path / "a.txt")] * 2
    assert main(["bisect", *words, "--", "python", "--version", "--json"]) == 1
    assert "the locks are the same" in capsys.readouterr().out
    assert main(["bisect", *words, "--only", "a", "--", "true"]) == 2
    assert main(["bisect", *words]) == 2


def ends(problem, note, **outcomes):
    return BisectResult(
        culprits=(), proven=False, environments=2, changed=1, note=note, problem=EndProblem(problem), **outcomes
    )


def test_swapped_ends_are_described_with_the_command_that_puts_them_right():
    found = ends("swapped", "the ends are swapped", good_end="bad", bad_end="good")
    assert bisect_run.describe_bisection(found, search(python="3.11"), ["No module named a.b"]) == (
        "the ends are swapped (GOOD is good.txt, BAD is bad.txt; 2 environments); last output: No module named a.b; "
        "run it the other way round: knowngood bisect bad.txt good.txt --python 3.11 -- python -c 'import a.b'"
    )


def test_an_end_that_cannot_be_tried_is_described_with_the_reason():
    found = ends("untested", "the bad lock cannot be tried", good_end="good", bad_end="unresolved")
    found = replace(found, untried=("the environment cannot be made: no wheel",))
    assert bisect_run.describe_bisection(found, search(), []) == (
        "the bad lock cannot be tried (GOOD is good.txt, BAD is bad.txt; 2 environments); "
        "not tried: the environment cannot be made: no wheel"
    )


def test_a_culprit_whose_requirements_are_not_known_is_described_with_that():
    move = PackageChange(name="a", old="1", new="2")
    found = BisectResult(culprits=(move,), proven=True, environments=7, changed=40, unread=("a 2",))
    said = bisect_run.describe_bisection(found, search(), [])
    assert "this change alone makes it fail; what a 2 require could not be read" in said


@pytest.fixture
def bisect(home, tmp_path, monkeypatch, capsys):
    """A function that bisects between urllib3 1 and 2 in made-up environments; the command fails with `failing`."""
    for name, version in (("old", "1"), ("new", "2")):
        (tmp_path / f"{name}.txt").write_text(f"idna=={version}\nurllib3=={version}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bisect_run, "read_requirements", lambda *_: {})
    assert home

    def run(good, bad, outcome):
        monkeypatch.setattr(bisect_run.MixedEnvironments, "outcome", lambda _self, versions: outcome(versions))
        code = main(["bisect", "--json", good, bad, "--", "true"])
        return code, json.loads(capsys.readouterr().out)

    return run


def fails_with_new_idna(versions):
    return EnvironmentOutcome.BAD if versions["idna"] == "2" else EnvironmentOutcome.GOOD


def test_ends_as_claimed_are_searched(bisect):
    code, found = bisect("old.txt", "new.txt", fails_with_new_idna)
    assert (code, [move["name"] for move in found["culprits"]]) == (0, ["idna"])
    assert (found["ends"], found["problem"]) == ({"good": "good", "bad": "bad"}, None)


def test_swapped_ends_are_wrong_usage(bisect):
    code, found = bisect("new.txt", "old.txt", fails_with_new_idna)
    assert (code, found["problem"], found["culprits"]) == (2, "swapped", [])
    assert found["ends"] == {"good": "bad", "bad": "good"}


@pytest.mark.parametrize(
    ("outcome", "code", "problem"), [("bad", 1, "good-fails"), ("good", 1, "bad-passes"), ("unresolved", 3, "untested")]
)
def test_an_end_that_is_not_as_claimed_has_its_exit_code(bisect, outcome, code, problem):
    found = bisect("old.txt", "new.txt", lambda _versions: EnvironmentOutcome(outcome))
    assert (found[0], found[1]["problem"]) == (code, problem)
