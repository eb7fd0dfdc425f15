"""`knowngood cells --jobs ... --changed-since`: against a real git repository."""

from __future__ import annotations

import json
import subprocess

import pytest

import samples
from knowngood.cli import main
from knowngood.reports import git_history


def git(root, *words):
    settings = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *settings, *words], check=True, capture_output=True)


@pytest.fixture
def repository(home, lock_of):
    """A committed project with three locked cells."""
    for identity in (samples.FA4, samples.FA2, samples.FA0):
        lock_of(identity)
    (home.root / "requirements.lock").write_text(
        "ruff==1.0 \\\n    --hash=sha256:0\nuv==0.9.1 \\\n    --hash=sha256:0\n"
    )
    git(home.root, "init", "--quiet", "--initial-branch", "main")
    git(home.root, "add", "--all")
    git(home.root, "commit", "--quiet", "--message", "one")
    return home


def chosen(capsys, *words):
    code = main.main(["cells", "--jobs", "images", "--changed-since", "main", *words])
    out, err = capsys.readouterr()
    assert code == 0, err
    return {item["cells"] for item in json.loads(out)["include"]}


ALL = {samples.FA4, samples.FA2, samples.FA0}


def layer(home, identity, group):
    cell = next(cell for cell in home.matrix.cells if str(cell) == identity)
    return next(one.name for one in home.tree.load(cell).layers if one.group == group)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"docker/cells/{samples.FA0}/Dockerfile", {samples.FA0}),
        (f"docker/cells/{samples.FA0}/image.json", {samples.FA0}),
        ("docker/bases/debian12/notes", ALL),
        ("docker/bases/debian11/notes", set()),
        ("docker/recipe/normalize", ALL),
        ("smoke_tests/smoke_tests/test_it.py", ALL),
        ("docker/licences.json", set()),
        ("packages/knowngood/src/knowngood/core/cell.py", set()),
        ("smoke_tests.md", set()),
        ("evidence/x/y.json", set()),
    ],
)
def test_a_file_changes_the_cells_that_contain_it(path, expected, repository, capsys):
    where = repository.root / path
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text("changed\n")
    assert chosen(capsys) == expected  # not committed, perhaps not even known to git
    git(repository.root, "switch", "--quiet", "--create", "work")
    git(repository.root, "add", "--all")
    git(repository.root, "commit", "--quiet", "--message", "two")
    assert chosen(capsys) == expected


def test_a_layer_changes_the_cells_that_share_it(repository, capsys):
    shared, own = layer(repository, samples.FA2, "torch"), layer(repository, samples.FA2, "flash-attn")
    assert layer(repository, samples.FA0, "torch") == shared
    for name, expected in ((own, {samples.FA2}), (shared, ALL)):
        path = repository.root / "docker/layers" / name
        path.with_name(f"{name}.new").mkdir()  # a folder that only begins with the name concerns nobody
        (path.with_name(f"{name}.new") / "requirements.txt").write_text("x\n")
        (path / "note").write_text("x\n")
        assert chosen(capsys) == expected


def test_commits_on_main_after_the_branch_point_do_not_count(repository, capsys):
    git(repository.root, "switch", "--quiet", "--create", "work")
    (repository.root / "docker/cells" / samples.FA4 / "Dockerfile").write_text("mine\n")
    git(repository.root, "add", "--all")
    git(repository.root, "commit", "--quiet", "--message", "mine")
    git(repository.root, "switch", "--quiet", "main")
    (repository.root / "docker/recipe/normalize").write_text("theirs\n")
    git(repository.root, "commit", "--quiet", "--all", "--message", "theirs")
    git(repository.root, "switch", "--quiet", "work")
    assert chosen(capsys) == {samples.FA4}
    assert chosen(capsys, samples.FA0) == set()


def test_a_new_release_of_uv_changes_every_image_and_one_of_ruff_none(repository, capsys):
    lock = repository.root / "requirements.lock"
    lock.write_text(lock.read_text().replace("ruff==1.0", "ruff==1.1"))
    assert chosen(capsys) == set()
    lock.write_text(lock.read_text().replace("uv==0.9.1", "uv==0.9.2"))
    assert chosen(capsys) == ALL


def test_an_unlocked_cell_counts_when_the_matrix_changed(repository, capsys):
    import shutil

    shutil.rmtree(repository.root / "docker/cells" / samples.FA0)
    assert chosen(capsys) == set()
    (repository.root / "matrix.yaml").write_text(samples.MATRIX + "# more\n")
    assert chosen(capsys) == {samples.FA0}


@pytest.mark.parametrize("ref", ["nowhere", "--output=x", ""])
def test_a_ref_that_is_not_a_commit_is_refused(ref, repository, capsys):
    assert main.main(["cells", "--jobs", "images", f"--changed-since={ref}"]) == 2
    assert "--changed-since" in capsys.readouterr().err
    assert not (repository.root / "x").exists()


def test_a_missing_repository_or_git_is_reported(home, capsys, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(home.root.parent))
    assert main.main(["cells", "--jobs", "images", "--changed-since", "main"]) == 2
    assert "not a git repository" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Exception, match="there is no git here"):
        git_history.list_changed_files(home.root, "main")


def test_names_that_git_would_quote_are_read_whole(repository):
    strange = 'smoke_tests/ä "b"\n.py'
    (repository.root / strange).write_text("x\n")
    assert git_history.list_changed_files(repository.root, "main") == [strange]
