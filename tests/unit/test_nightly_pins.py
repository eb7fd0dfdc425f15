"""What `bisect` compares: files of several kinds, cells, cells at a revision; and what it prints."""

from __future__ import annotations

import subprocess

import pytest
from samples import FA4
from test_evidence import run

from knowngood import evidence
from knowngood.cli import main
from knowngood.errors import UsageError
from knowngood.nightly import culprit, pins
from knowngood.nightly.bisect import Found
from knowngood.nightly.moves import Move


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
def test_files(home, tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    assert pins.read(str(path), home).versions == {"a-b": "1.0", "c": "2.0+cu13"}


def test_evidence_is_what_was_installed(home, tmp_path):
    made = run()
    made.report["environment"] = {"python": "3.11.2", "distributions": {"Torch": "2.11.0+cu130"}}
    path = evidence.store(made, tmp_path)
    found = pins.read(str(path), home)
    assert (found.versions, found.python, found.line("torch")) == (
        {"torch": "2.11.0+cu130"},
        "3.11",
        "torch==2.11.0+cu130",
    )


def test_a_cell_is_its_lock_with_hashes_and_a_revision_is_gits(home, lock_of):
    locked = lock_of(FA4)
    here = pins.read("default", home)
    assert here.versions == {item.name: item.version for item in locked.distributions}
    assert here.python == "3.11"
    assert here.line("torch") == f"torch==2.11.0 --hash=sha256:{here.hashes['torch']}"
    git(home, "init", "--quiet")
    git(home, "add", ".")
    git(home, "commit", "--quiet", "-m", "a")
    for name in ("HEAD:default", f"HEAD:{FA4}"):
        then = pins.read(name, home)
        assert (then.versions, then.hashes, then.source) == (here.versions, here.hashes, name)


@pytest.mark.parametrize(
    ("text", "said"),
    [("a>=1\n", "a is not pinned"), ("", "it pins nothing"), ("a==\n", "a.txt:1"), (b"\xff\xfe", "not UTF-8")],
)
def test_a_file_that_is_no_lock(home, tmp_path, text, said):
    path = tmp_path / "a.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=said):
        pins.read(str(path), home)


@pytest.mark.parametrize("named", ["HEAD:default", "--output=x:default", "nosuch", "gpu=sm_90"])
def test_what_is_nothing(home, lock_of, named):
    lock_of(FA4)
    with pytest.raises(UsageError):
        pins.read(named, home)


@pytest.mark.parametrize("text", ["{", "{}", '{"schema": "knowngood/evidence/9"}'])
def test_evidence_that_is_damaged_or_newer(home, tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        pins.read(str(path), home)


def search(**more):
    ends = {
        name: pins.Pins(source=f"{name}.txt", versions={"a": version}, hashes={})
        for name, version in (("good", "1"), ("bad", "2"))
    }
    return culprit.Search(**ends, command=["python", "-c", "import a.b"], **more)


def test_the_command_that_shows_it_again():
    found = Found(culprits=(Move(name="a", old="1", new="2"),), proven=True, environments=7, changed=40)
    said = culprit.told(found, search(python="3.11"), ["No module named a.b"])
    assert said == (
        "a 1 -> 2: it alone does it (7 environments for 40 changed packages); it says: No module named a.b; "
        "again: knowngood bisect good.txt bad.txt --only a --python 3.11 -- python -c 'import a.b'"
    )


def test_that_there_is_none_is_told():
    found = Found(culprits=(), proven=False, environments=2, changed=40, note="the good lock fails as well")
    assert culprit.told(found, search(), []) == (
        "none of 40 changed packages: the good lock fails as well (2 environments)"
    )


@pytest.mark.usefixtures("home")
def test_the_command_of_the_command_line_is_what_follows_two_dashes(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("a==1\n")
    words = [str(tmp_path / "a.txt")] * 2
    assert main(["bisect", *words, "--most", "3", "--", "python", "--version", "--json"]) == 1
    assert "the locks are the same" in capsys.readouterr().out
    assert main(["bisect", *words, "--only", "a", "--", "true"]) == 2
    assert main(["bisect", *words]) == 2
