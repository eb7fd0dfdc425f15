from __future__ import annotations

import json

import pytest
from samples import FA0, FA4, MATRIX, parsed, with_
from test_planning import A, B, built

from knowngood import cli, units
from knowngood.building import record, sizes
from knowngood.cell import parse
from knowngood.errors import InputError, UsageError
from knowngood.system.base import PackagesLock


def test_a_record_is_read_as_it_was_written():
    made = built(A)
    assert record.parse(made.text(), "f") == made
    assert json.loads(made.text())["inputs"] == A.shape.inputs
    assert made.size == 2 + 7 * 7


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("knowngood/image/1", "knowngood/image/9", "schema"),
        ('"lock": "aaaa', '"lock": "bbbb', "changed by hand"),
        ('"digest"', '"digset"', "damaged"),
        ("{", "", "damaged"),
    ],
)
def test_a_damaged_record_is_refused(old, new, said):
    with pytest.raises(UsageError, match=rf"^f.*{said}.*--record"):
        record.parse(built(A).text().replace(old, new, 1), "f")


def test_differences_name_the_layers():
    import dataclasses

    made = built(A)
    first, *rest = made.layers
    other = dataclasses.replace(made, layers=(dataclasses.replace(first, digest="sha256:0"), *rest))
    assert made.differences(other) == [first.name]
    other = dataclasses.replace(made, config=dataclasses.replace(made.config, digest="sha256:0"))
    assert made.differences(other) == ["config"]
    assert made.differences(dataclasses.replace(made, manifest=other.config)) == ["manifest"]
    assert made.differences(made) == []


def test_a_blob_that_cells_share_is_stored_once():
    a, b = built(A), built(B)
    measured = sizes.measure([a, b])
    assert measured.apart == a.size + b.size
    shared = {layer.name for layer in measured.layers if len(layer.cells) == 2}
    assert shared == {f"base-{'b' * 12}", "venv", A.layers[0].name, f"suite-{'s' * 12}", "workdir"}
    assert measured.unique == measured.apart - 5 * 7 - 2  # the samples' manifests and configs are the same blobs
    assert {item.cell: item.own for item in measured.cells} == {"a": 2 + 14, "b": 2 + 21}


@pytest.mark.parametrize(("text", "size"), [("3.0 GB", 3_000_000_000), ("800 MB", 800_000_000), ("12kB", 12_000)])
def test_sizes_are_read(text, size):
    assert units.parse(text) == size


@pytest.mark.parametrize(
    ("size", "text"), [(None, "unknown"), (0, "0 B"), (46_100_000, "46.1 MB"), (2_726_289_279, "2.73 GB")]
)
def test_and_written(size, text):
    assert units.text(size) == text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("size: {cell: 3 bananas}", "3 bananas.* is not a size such as 3.0 GB"),
        ("size: {cell: 0 GB}", "is not a size"),
        ("size: {cel: 3 GB}", "did you mean 'cell'"),
        ("size: 3 GB", "size must be a mapping"),
    ],
)
def test_a_budget_that_makes_no_sense_is_said_at_its_line(line, said):
    text = with_(("floors:", f"{line}\nfloors:"))
    number = text.splitlines().index(line) + 1
    with pytest.raises(InputError, match=rf"matrix.yaml:{number}:.*{said}"):
        parsed(text)
    assert parsed(with_(("floors:", "size: {cell: 3 GB}\nfloors:"))).size == 3 * 10**9


def recorded(home, lock_of, size):
    """A committed record for a cell of the project, of that size."""
    import dataclasses

    from knowngood.building import survey

    locked = lock_of(FA4)
    shape = survey.shape(home, locked, "sha256:" + "b" * 64, survey.digests(home))
    made = built(dataclasses.replace(A, cell=FA4, layers=locked.layers, shape=shape))
    made = dataclasses.replace(made, config=dataclasses.replace(made.config, size=size))
    home.tree.record_path(parse(FA4)).write_text(made.text())
    return made


@pytest.mark.parametrize(("size", "code"), [(10**9, 0), (4 * 10**9, 1)])
def test_the_command_fails_when_a_cell_is_past_the_budget(home, lock_of, capsys, size, code):
    (home.root / "matrix.yaml").write_text(with_(("floors:", "size: {cell: 3 GB}\nfloors:"), text=MATRIX))
    made = recorded(home, lock_of, size)
    assert cli.main(["size", "--check", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["cells"] == [{"cell": FA4, "size": made.size, "own": made.size}]
    assert document["too_large"] == ([FA4] if code else [])
    assert FA0 in document["unrecorded"]
    assert cli.main(["size", "--check"]) == code
    said = capsys.readouterr().out
    assert ("allows 3.00 GB" in said) == bool(code)
    assert f"{FA0}: no record" in said


def test_the_plan_needs_no_engine(lock_of, capsys, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    lock_of(FA4)
    assert cli.main(["plan", "--offline"]) == 0
    said = capsys.readouterr().out
    assert "base debian12 has no packages.lock" in said
    assert "it has no lock" in said
    assert "nothing counts as built" in said


def test_a_record_that_is_older_than_its_image_is_told_and_fails_nothing(home, lock_of, capsys):
    lock = PackagesLock(
        suite="bookworm", epoch=1, requested=("gcc",), tools=(), packages=(), digest="sha256:" + "b" * 64
    )
    path = home.tree.folder / "bases/debian12/packages.lock"
    path.parent.mkdir(parents=True)
    path.write_text(str(lock))
    for cell in home.matrix.cells:
        lock_of(str(cell))
    recorded(home, lock_of, 10**9)
    assert cli.main(["render"]) == 0
    assert cli.main(["render", "--check"]) == 0
    assert "recorded" not in capsys.readouterr().out
    (home.suite / "test_it.py").write_text("other")
    assert cli.main(["render", "--check"]) == 0
    assert f"{FA4}: changed since its image was recorded: the smoke suite" in capsys.readouterr().out
