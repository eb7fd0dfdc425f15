"""The harvest of metadata, from an index on the loopback interface."""

import pytest
import stamina

from harvest_registry import metadata, sdist, wheel
from knowngood.core.errors import InputError
from knowngood.index.artefact import UnansweredError
from knowngood.index.package_index import SimpleIndex
from knowngood_facts.facts.metadata_harvest import harvest_metadata, parse_metadata_field
from knowngood_facts.facts.package_metadata import parse_package_metadata


@pytest.fixture(autouse=True)
def _no_waiting():
    stamina.set_testing(True, attempts=2)
    yield
    stamina.set_testing(False)


@pytest.fixture
def run(registry, tmp_path):
    def call(*packages, **more):
        return harvest_metadata(
            packages, folder=tmp_path, notify=lambda _: None, index=SimpleIndex(registry.url), **more
        )

    return call


@pytest.fixture
def releases(tmp_path):
    def read(name):
        path = tmp_path / f"{name}.txt"
        return parse_package_metadata(path.read_text(), path.name).releases

    return read


def add_wheel(registry, name, version, *requires, tag="py3-none-any"):
    text = metadata(name, version, *requires)
    file = f"{name.replace('-', '_')}-{version}-{tag}.whl"
    registry.files[file] = wheel({f"{name.replace('-', '_')}-{version}.dist-info/METADATA": text})
    return file


def add_sdist(registry, name, version, text):
    registry.files[f"{name}-{version}.tar.gz"] = sdist(f"{name}-{version}", {"PKG-INFO": text, "setup.py": "x" * 9999})


def test_a_release_is_what_its_wheels_and_the_page_state(registry, run, releases):
    add_wheel(registry, "one", "1.0", "torch (>=1.4,<3)", "black; extra == 'dev'", tag="cp311-cp311-linux_x86_64")
    add_wheel(registry, "one", "1.0", "mlx", tag="cp311-cp311-macosx_11_0_arm64")
    registry.files["one-1.0-7-cp39-cp39-linux_x86_64.whl"] = b"a wheel with a build number, not opened"
    add_sdist(registry, "one", "1.0", metadata("one", "1.0"))
    assert run("One").new == ["one 1.0"]
    release = releases("one")["1.0"]
    assert release.requirements == ('black; extra == "dev"', "torch<3,>=1.4")
    assert release.requires_python == ">=3.10"
    assert release.wheels == (
        "cp311-cp311-linux_x86_64",
        "cp311-cp311-macosx_11_0_arm64",
        "cp39-cp39-linux_x86_64",
    )
    assert (release.has_sdist, release.yanked, release.source) == (True, False, "wheel")


def test_the_day_of_upload_is_that_of_the_first_file(registry, run, releases):
    registry.uploaded[add_wheel(registry, "one", "1.0")] = "2024-07-09T10:00:00Z"
    registry.uploaded[add_wheel(registry, "one", "1.0", tag="py2-none-any")] = "2024-07-08T23:59:59.5Z"
    add_wheel(registry, "one", "1.1")
    run("one")
    assert [release.uploaded for release in releases("one").values()] == ["2024-07-08", ""]


STATIC = "Metadata-Version: 2.2\nName: one\nVersion: 1.0\nRequires-Dist: torch\nProvides-Extra: dev\n"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (STATIC, "sdist"),
        (STATIC + "Dynamic: Description\n", "sdist"),
        (STATIC + "Dynamic: requires-dist\n", "dynamic"),
        (STATIC.replace("2.2", "2.1"), "dynamic"),
        (STATIC.replace("2.2", "?"), "dynamic"),
        (STATIC.replace("2.2", "2.1").replace("Requires-Dist: torch\n", ""), "none"),
    ],
)
def test_an_sdist_says_whether_its_metadata_is_static(registry, run, releases, text, source):
    add_sdist(registry, "one", "1.0", text + "\n")
    run("one")
    release = releases("one")["1.0"]
    assert release.source == source
    assert release.requirements == (() if source == "none" else ("torch",))


def test_the_day_is_noted_when_all_packages_of_the_folder_were_asked_for(registry, run, tmp_path):
    add_wheel(registry, "one", "1.0")
    add_wheel(registry, "two", "1.0")
    run("one", "two")
    day = tmp_path / "snapshot"
    assert day.read_text().strip()
    day.write_text("2020-01-01\n")
    run("one")
    assert day.read_text() == "2020-01-01\n"


def test_a_second_harvest_reads_only_what_is_new_and_refreshes_the_page(registry, run, releases):
    old = add_wheel(registry, "one", "1.0", "torch")
    add_sdist(registry, "one", "1.1", metadata("one", "1.1"))
    run("one")
    new = add_wheel(registry, "one", "1.2", "torch>=2")
    late = add_wheel(registry, "one", "1.1", "torch")
    registry.yanked.add(old)
    registry.requests.clear()
    report = run("one")
    assert set(registry.requests) == {"one", new, late}
    assert sorted(report.new) == ["one 1.0", "one 1.1", "one 1.2"]
    assert [release.yanked for release in releases("one").values()] == [True, False, False]
    assert releases("one")["1.1"].source == "wheel"
    registry.requests.clear()
    assert run("one").unchanged == 3
    assert registry.requests == ["one"]


def test_a_second_harvest_gives_the_bytes_of_a_full_one(registry, run, tmp_path):
    add_wheel(registry, "one", "1.0", "b", "a")
    add_wheel(registry, "one", "1.2", "c")
    run("one")
    add_wheel(registry, "one", "1.1", "a")
    run("one")
    text = (tmp_path / "one.txt").read_text()
    (tmp_path / "one.txt").unlink()
    run("one")
    assert (tmp_path / "one.txt").read_text() == text


def test_a_release_that_the_network_lost_is_read_the_next_time(registry, run, releases):
    add_wheel(registry, "one", "1.0")
    file = add_wheel(registry, "one", "1.1")
    registry.faults[file] = "500"
    report = run("one")
    assert "500" in report.unknown["one 1.1"]
    assert list(releases("one")) == ["1.0"]
    registry.faults.clear()
    assert run("one").new == ["one 1.1"]


def test_a_broken_wheel_is_a_release_of_which_nothing_is_known(registry, run, releases):
    registry.files["one-1.0-py3-none-any.whl"] = b"this is no wheel" * 99
    report = run("one")
    assert "one-1.0-py3-none-any.whl" in report.unknown["one 1.0"]
    assert (releases("one")["1.0"].source, releases("one")["1.0"].wheels) == ("none", ("py3-none-any",))
    registry.requests.clear()
    run("one")
    assert registry.requests == ["one"]


def test_a_release_that_the_index_lists_no_more_is_kept(registry, run, releases):
    gone = add_wheel(registry, "one", "1.0")
    add_wheel(registry, "one", "1.1")
    run("one")
    del registry.files[gone]
    run("one")
    assert list(releases("one")) == ["1.0", "1.1"]


def test_a_damaged_file_is_not_overwritten(registry, run, tmp_path):
    add_wheel(registry, "one", "1.0")
    (tmp_path / "one.txt").write_text("something else")
    with pytest.raises(InputError):
        run("one")
    assert (tmp_path / "one.txt").read_text() == "something else"


def test_an_unknown_package_fails_and_the_others_are_read(registry, run, releases):
    add_wheel(registry, "two", "1.0")
    report = run("one", "two")
    assert set(report.failed) == {"one"}
    assert report.exit_code == 1
    assert list(releases("two")) == ["1.0"]


RULE = "seeds: [one]\nat_most: 9\n"


def test_following_reads_all_that_is_required_on_linux(registry, run, tmp_path):
    field = parse_metadata_field(RULE, "seeds.yaml")
    add_wheel(registry, "one", "1.0", "two[fast]>=1", "win; sys_platform == 'win32'", "tests; extra == 'dev'")
    add_wheel(registry, "one", "1.1", "arm; platform_machine == 'aarch64'", "old; python_version < '3.9'", "private")
    add_wheel(registry, "two", "1.0", "three; extra == 'fast'", "four; extra == 'slow'", "one")
    for name in ("arm", "old", "three", "four", "win", "tests"):
        add_wheel(registry, name, "1.0")
    report = run("one", field=field)
    assert sorted(path.stem for path in tmp_path.glob("*.txt")) == ["arm", "old", "one", "private", "three", "two"]
    assert report.exit_code == 0
    assert "404" in report.unknown["private"]


def test_every_release_is_read_also_those_of_development(registry, run, releases):
    field = parse_metadata_field(RULE, "seeds.yaml")
    add_wheel(registry, "one", "0.1", "two")
    registry.uploaded[add_wheel(registry, "two", "1.0")] = "2009-12-31T00:00:00Z"
    add_wheel(registry, "two", "1.1.dev1")
    run("one", field=field)
    assert list(releases("two")) == ["1.0", "1.1.dev1"], "what is left out would be a release that does not exist"


def test_a_package_that_the_index_does_not_have_has_a_file_without_releases(registry, run, releases):
    registry.faults["one"] = "404"
    report = run("one")
    assert report.exit_code == 1
    assert list(releases("one")) == []
    again = run("one")
    assert (again.exit_code, list(again.unknown)) == (0, ["one"]), "that it is still not there is no failure"
    registry.faults.clear()
    add_wheel(registry, "one", "1.0")
    assert run("one").exit_code == 0
    registry.faults["one"] = "404"
    run("one")
    assert list(releases("one")) == ["1.0"], "what was known stays"


def test_a_field_that_grows_without_end_stops(registry, run, tmp_path):
    field = parse_metadata_field(RULE.replace("9", "2"), "seeds.yaml")
    add_wheel(registry, "one", "1.0", "two", "three")
    report = run("one", field=field)
    assert "more than 2 packages" in report.failed["field"]
    assert [path.stem for path in tmp_path.glob("*.txt")] == ["one"]


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", 1, "`seeds`"),
        ("seeds: one\nat_most: 9\n", 1, "`seeds`"),
        ("seeds: [one]\nat_most: 0\n", 2, "`at_most`"),
        (RULE + "more: 1\n", 3, "there is no key more"),
    ],
)
def test_a_rule_that_makes_no_sense_is_named_with_its_line(text, line, why):
    with pytest.raises(InputError) as error:
        parse_metadata_field(text, "seeds.yaml")
    assert any(problem.line == line and why in problem.text for problem in error.value.problems)


def test_an_index_that_does_not_answer_is_not_asked_for_every_package(tmp_path):
    asked = []

    class SilentIndex:
        def files(self, project):
            asked.append(project)
            raise UnansweredError(f"the registry does not answer for {project}")

    names = [f"package{number}" for number in range(40)]
    report = harvest_metadata(names, folder=tmp_path, notify=lambda _: None, index=SilentIndex())
    assert len(asked) < 10
    assert report.exit_code == 4
    assert "the packages that were left were not asked for" in report.failed["index"]
