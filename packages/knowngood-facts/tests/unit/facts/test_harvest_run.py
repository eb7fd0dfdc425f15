import json

import pytest
import stamina
from packaging.version import Version

import harvest_registry
from knowngood.core.errors import InputError, UsageError
from knowngood.index.package_index import SimpleIndex
from knowngood_facts.facts.harvest_run import harvest_facts

FLOORS = {"torch": Version("2.0"), "flash-attn": Version("2.0")}
TAG = "cp311-cp311-manylinux_2_28_x86_64.whl"
OLD, NEW = f"torch-2.10.0-{TAG}", f"torch-2.11.0-{TAG}"


@pytest.fixture(autouse=True)
def _no_waiting():
    stamina.set_testing(True, attempts=1)
    yield
    stamina.set_testing(False)


@pytest.fixture
def registry():
    with harvest_registry.serve() as served:
        served.files[f"torch-1.13.0-{TAG}"] = b"below the floor, never opened"
        served.files[OLD] = harvest_registry.torch_wheel("2.10.0", cuda="12.8", archs=(70, 80))
        served.files[NEW] = harvest_registry.torch_wheel("2.11.0")
        yield served


@pytest.fixture
def run(registry, tmp_path):
    def call(*packages, folder="facts", cache="cache", **more):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        index = SimpleIndex(registry.url)
        return harvest_facts(
            packages or ["torch"],
            folder=place,
            floors=FLOORS,
            notify=lambda _: None,
            index=index,
            cache=tmp_path / cache,
            **more,
        )

    return call


@pytest.fixture
def facts(tmp_path):
    return lambda: json.loads((tmp_path / "facts" / "torch.json").read_text())["releases"]


def test_reads_every_release_from_the_floor(run, facts):
    report = run()
    assert report.new == ["torch 2.10.0", "torch 2.11.0"]
    assert report.exit_code == 0
    newest = facts()["2.11.0"]
    assert newest["artefact"] == NEW
    assert newest["unknown"] == {
        "nccl": "the artefact does not state it",
        "cxx_minimum": "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl has no torch/include/ATen/ATen.h",
        "cuda_check": "libc10_cuda.so has 0 functions that check calls of CUDA",
    }
    assert newest["facts"] == {
        "requires_python": ">=3.10",
        "pythons": ["3.11"],
        "free_threaded": [],
        "cuda": "13.0",
        "cudnn": "9.19.0.56",
        "triton": "3.6.0",
        "triton_requires": "==3.6.0",
        "triton_min_major": 7,
        "glibc": "2.28",
        "cxx11abi": True,
        "sass": ["75", "80"],
        "ptx": [],
        "numpy_1_only": False,
        "git": "abc",
        "stable_functions": [],
    }


def test_second_run_reads_only_what_is_new(run, registry, facts):
    run()
    registry.files[f"torch-2.12.0-{TAG}"] = harvest_registry.torch_wheel("2.12.0")
    registry.requests.clear()
    report = run(cache="other")
    assert report.new == ["torch 2.12.0"]
    assert report.unchanged == 2
    assert set(registry.requests) == {"torch", f"torch-2.12.0-{TAG}"}
    assert list(facts()) == ["2.10.0", "2.11.0", "2.12.0"]


def test_an_index_without_any_release_to_read_is_a_failure(run, registry):
    for name in [name for name in registry.files if "1.13.0" not in name]:
        del registry.files[name]
    report = run()
    assert report.failed == {"torch": "the index lists no release of torch from 2.0 on"}
    assert (report.exit_code, report.unanswered) == (1, False)


def test_twice_harvested_is_byte_identical(run, tmp_path):
    run(folder="one", cache="cache-one")
    run(folder="two", cache="cache-two")
    assert (tmp_path / "one" / "torch.json").read_bytes() == (tmp_path / "two" / "torch.json").read_bytes()


def test_refresh_with_the_cache_reads_only_the_page_and_changes_nothing(run, registry, tmp_path):
    run()
    before = (tmp_path / "facts" / "torch.json").read_bytes().replace(b'"read": "', b'"read": "1')
    (tmp_path / "facts" / "torch.json").write_bytes(before)
    registry.requests.clear()
    report = run(refresh=True)
    assert registry.requests == ["torch"]
    assert report.new == []
    assert (tmp_path / "facts" / "torch.json").read_bytes() == before


def test_newer_reader_reads_the_known_releases_anew(run, tmp_path):
    run()
    path = tmp_path / "facts" / "torch.json"
    path.write_text(
        path.read_text().replace('"sass": ["75", "80"]', '"sass": ["99"]').replace('"reader": ', '"reader": 1')
    )
    assert run().new == ["torch 2.11.0"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("404", "the registry answered 404"),
        ("500", "the registry answered 500"),
        ("garbage", "is not a readable wheel"),
        ("truncate", "torch-2.11.0"),
    ],
)
def test_broken_artefact_is_unknown_with_a_reason_and_the_rest_is_read(run, registry, facts, fault, reason):
    registry.faults[NEW] = fault
    report = run()
    assert "cuda" in facts()["2.10.0"]["facts"]
    broken = facts()["2.11.0"]
    assert "cuda" not in broken["facts"]
    assert reason in broken["unknown"]["artefact"]
    assert report.unknown["torch 2.11.0: artefact"] == broken["unknown"]["artefact"]


def test_reasons_carry_no_address(run, registry, tmp_path):
    registry.faults[NEW] = "500"
    run()
    assert "127.0.0.1" not in (tmp_path / "facts" / "torch.json").read_text()


def test_artefact_that_vanished_later_takes_nothing_away(run, registry, facts):
    run()
    known = facts()
    registry.faults[NEW] = "404"
    run(refresh=True, cache="empty")
    assert facts() == known


def test_network_fault_is_tried_again_and_takes_nothing_away(run, registry, facts):
    registry.faults[NEW] = "500"
    run()
    assert facts()["2.11.0"]["retry"] is True
    registry.faults.clear()
    assert run().new == ["torch 2.11.0"]
    known = facts()
    assert "retry" not in known["2.11.0"]
    registry.faults[NEW] = "500"
    run(refresh=True, cache="empty")
    assert facts()["2.11.0"]["facts"] == known["2.11.0"]["facts"]


def test_yanked_release_is_read_and_marked(run, registry, facts):
    run()
    registry.yanked.add(OLD)
    assert run().new == ["torch 2.10.0"]
    assert facts()["2.10.0"]["yanked"] is True
    assert facts()["2.10.0"]["facts"]["cuda"] == "12.8"


def test_release_without_a_wheel_for_linux(run, registry, facts):
    registry.files["torch-2.12.0-cp311-none-macosx_11_0_arm64.whl"] = b""
    run()
    assert facts()["2.12.0"]["artefact"] is None
    assert facts()["2.12.0"]["unknown"] == {"artefact": "the release has no file that this reader reads"}


def test_fatbins_that_contradict_the_flags_are_not_believed(run, registry, facts):
    registry.files[NEW] = harvest_registry.torch_wheel("2.11.0", flagged="-gencode;arch=compute_90,code=sm_90")
    run()
    assert "sass" not in facts()["2.11.0"]["facts"]
    assert "nvcc was told ['90']" in facts()["2.11.0"]["unknown"]["gpu_code"]


def test_sdist_with_another_hash_or_cut_short_is_unknown(run, registry, tmp_path):
    registry.files["flash_attn-2.8.3.tar.gz"] = harvest_registry.sdist("flash_attn-2.8.3", {"setup.py": "setup()"})
    registry.faults["flash_attn-2.8.3.tar.gz"] = "truncate"
    run("flash-attn")
    unknown = json.loads((tmp_path / "facts" / "flash-attn.json").read_text())["releases"]["2.8.3"]["unknown"]
    assert "flash_attn-2.8.3.tar.gz" in unknown["artefact"]


def test_project_that_the_registry_lacks_fails_and_the_others_are_read(run, facts):
    report = run("flash-attn", "torch")
    assert report.exit_code == 1
    assert report.failed == {"flash-attn": "the registry has no project flash-attn (404)"}
    assert "2.11.0" in facts()


@pytest.mark.parametrize("fault", ["500", "404", "garbage"])
def test_broken_page_keeps_what_is_known(run, registry, facts, fault):
    run()
    registry.faults["torch"] = fault
    assert run().exit_code == 1
    assert list(facts()) == ["2.10.0", "2.11.0"]


def test_registry_that_does_not_answer_is_exit_4(tmp_path):
    dead = SimpleIndex("http://127.0.0.1:9/simple/")
    report = harvest_facts(["torch"], folder=tmp_path, floors=FLOORS, notify=lambda _: None, index=dead, cache=tmp_path)
    assert report.exit_code == 4
    assert "does not answer" in report.failed["torch"]


def test_damaged_facts_file_is_named_not_overwritten(run, tmp_path):
    run()
    path = tmp_path / "facts" / "torch.json"
    path.write_text("{")
    with pytest.raises(InputError, match=r"torch\.json:1:2: not well-formed JSON.*`knowngood harvest torch`"):
        run()
    assert path.read_text() == "{"


def test_unknown_package_names_the_known_ones(run):
    with pytest.raises(UsageError, match=r"tensorflow: no reader for that; there are .*torch"):
        run("tensorflow")


ARM = "torch-2.11.0-cp311-cp311-manylinux_2_28_aarch64.whl"


@pytest.mark.parametrize(("built", "fact", "sass"), [("13.0", "13.0", ["90", "110"]), (None, "none", [])])
def test_the_wheel_for_arm_adds_its_facts(registry, run, facts, built, fact, sass):  # noqa: PLR0917
    registry.files[ARM] = harvest_registry.torch_aarch64_wheel(built)
    run()
    assert facts()["2.11.0"]["facts"]["aarch64_cuda"] == fact
    assert (facts()["2.11.0"]["facts"]["aarch64_sass"], facts()["2.11.0"]["facts"]["aarch64_ptx"]) == (sass, [])
    assert "aarch64_cuda" not in facts()["2.10.0"]["facts"]


def test_a_known_release_gets_the_facts_of_a_second_wheel_without_being_read_again(registry, run, facts):
    run()
    before = facts()["2.11.0"]
    registry.files[ARM] = harvest_registry.torch_aarch64_wheel("13.0")
    registry.requests.clear()
    assert run(cache="another").new == ["torch 2.11.0"]
    assert set(registry.requests) == {"torch", ARM}
    added = {"aarch64_cuda": "13.0"}
    added |= {"aarch64_sass": ["90", "110"], "aarch64_ptx": []}
    assert facts()["2.11.0"] == before | {"facts": before["facts"] | added}
    registry.requests.clear()
    assert run(cache="a third").new == []
    assert registry.requests == ["torch"]


def test_a_second_wheel_that_the_network_lost_is_read_the_next_time(registry, run, facts):
    registry.files[ARM] = harvest_registry.torch_aarch64_wheel("13.0")
    registry.faults[ARM] = "500"
    run()
    assert "500" in facts()["2.11.0"]["unknown"]["aarch64_cuda"]
    assert facts()["2.11.0"]["facts"]["cuda"] == "13.0"
    registry.faults.clear()
    run()
    assert facts()["2.11.0"]["facts"]["aarch64_cuda"] == "13.0"
    assert "retry" not in facts()["2.11.0"]


def test_a_wheel_for_arm_whose_parts_disagree_is_unknown(registry, run, facts):
    registry.files[ARM] = harvest_registry.wheel({"torch/version.py": "cuda = '13.0'\n"})
    run()
    assert "the list of files says otherwise" in facts()["2.11.0"]["unknown"]["aarch64_cuda"]
