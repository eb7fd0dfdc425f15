"""The file of a package's metadata: what is written is what is read, and a damaged file is named with its line."""

import pytest

from knowngood.core.errors import InputError
from knowngood_facts.facts.metadata_harvest import render_package_metadata
from knowngood_facts.facts.package_metadata import (
    ReleaseMetadata,
    list_metadata_packages,
    parse_package_metadata,
    read_package_metadata,
)


def release(version, **keys):
    plain = {
        "requires_python": ">=3.9",
        "requirements": ("torch>=1.4",),
        "extras": (),
        "wheels": ("py3-none-any",),
        "has_sdist": True,
        "yanked": False,
        "source": "wheel",
        "uploaded": "2024-07-08",
    }
    return ReleaseMetadata(version=version, **(plain | keys))


RELEASES = (
    release("0.9"),
    release("0.10", requirements=("numpy>=2; python_version > '3.9'", "torch>=2"), extras=("dev",), yanked=True),
    release("0.11", requirements=(), extras=(), source="none", wheels=(), requires_python=""),
    release("0.12", requirements=("torch>=2",), has_sdist=False, uploaded="", wheels=("cp311-abi3-linux_x86_64",)),
)


def test_what_is_written_is_what_is_read():
    text = render_package_metadata("one", reversed(RELEASES))
    package = parse_package_metadata(text, "one.txt")
    assert package.name == "one"
    assert list(package.releases) == ["0.9", "0.10", "0.11", "0.12"]
    assert tuple(package.releases.values()) == RELEASES
    assert "0.13" not in package.releases
    with pytest.raises(KeyError):
        package.releases["0.13"]


def test_which_releases_state_a_requirement_is_what_the_releases_say():
    releases = [*RELEASES, release("0.13", requirements=("torch>=1.4", "torch>=2")), release("0.14", requirements=())]
    package = parse_package_metadata(render_package_metadata("one", releases), "one.txt")
    expected: dict[str, int] = {}
    for place, item in enumerate(package.releases.values()):
        for line in item.requirements:
            expected[line] = expected.get(line, 0) | 1 << place
    assert package.requirements == expected
    assert expected["torch>=1.4"] == 0b010001


def test_what_came_later_is_sorted_with_what_was_there_before():
    releases = [release("1", wheels=("b", "d")), release("2", wheels=("a", "b", "c", "d"))]
    text = render_package_metadata("one", releases)
    assert list(parse_package_metadata(text, "one.txt").releases.values()) == releases


def test_a_release_states_only_what_differs_from_the_one_before():
    text = render_package_metadata("one", RELEASES[:2])
    assert text.split("\n= 0.10 ")[1].splitlines() == [
        "2024-07-08 wheel sdist yanked",
        "r- torch>=1.4",
        "r+ numpy>=2; python_version > '3.9'",
        "r+ torch>=2",
        "x+ dev",
    ]


def test_requirements_that_are_not_known_do_not_end_those_before():
    text = render_package_metadata("one", RELEASES)
    assert "r- torch>=2" not in text
    assert "x- dev" in text.split("\n= 0.12 ")[1]


def test_a_folder_is_read_by_any_spelling_of_a_name(tmp_path):
    (tmp_path / "flash-attn.txt").write_text(render_package_metadata("flash-attn", RELEASES))
    assert list_metadata_packages(tmp_path) == ["flash-attn"]
    package = read_package_metadata("Flash_Attn", tmp_path)
    assert package is not None
    assert read_package_metadata("flash-attn", tmp_path) is package
    assert read_package_metadata("flash", tmp_path) is None
    assert read_package_metadata("../tmp", tmp_path) is None


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", 1, "the first line"),
        ("knowngood/metadata/9 one\n", 1, "the first line"),
        ("knowngood/metadata/1 one\nregenerate\n= 1 -\n", 3, "names no version, day and source"),
        ("knowngood/metadata/1 one\nregenerate\n= 1 - wheel\nr- torch\n", 4, "cannot follow"),
        ("knowngood/metadata/1 one\nregenerate\n= 1 - wheel\n= 2 - wheel\npy >3\nnonsense\n", 6, "cannot follow"),
        ("knowngood/metadata/1 one\nregenerate\n= 1 - wheel\n= 1 - wheel\n", 1, "twice"),
    ],
)
def test_a_damaged_file_is_named_with_the_line(text, line, why):
    with pytest.raises(InputError) as error:
        dict(parse_package_metadata(text, "one.txt").releases)
    problem = error.value.problems[0]
    assert (problem.file, problem.line) == ("one.txt", line)
    assert why in problem.text
