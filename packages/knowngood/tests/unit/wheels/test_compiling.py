"""What a compile is told, what it makes of a wheel's files, and how a damaged or foreign one is known."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import stamina
from packaging.utils import parse_wheel_filename
from packaging.version import Version

import wheel_samples
from harvest_registry import serve
from knowngood.base import private_apt
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError, MissingError, UsageError
from knowngood.engine.container_engine import Engine
from knowngood.lock import wheelhouse
from knowngood.lock.cell_lock import Distribution
from knowngood.wheels import (
    compile_container,
    compile_inside,
    compile_request,
    compile_run,
    cuda_toolkit,
    wheel_packing,
)
from knowngood.wheels.compile_request import CompileOptions, needed_wheels
from samples import FA0, FA2, FA4, parsed, with_

CELL = parse_cell(FA2)
LOCAL = "cu13torch2.11cxx11abitrue.sm90"
# As flash-attn 2.8.3 and 2.6.3 have it.
TAKES = """\
def cuda_archs(): return os.getenv("FLASH_ATTN_CUDA_ARCHS", "80;90;100;120").split(";")
if "80" in cuda_archs(): cc_flag.append("arch=compute_80,code=sm_80")
if bare_metal_version >= Version("11.8") and "90" in cuda_archs(): cc_flag.append("arch=compute_90,code=sm_90")
if bare_metal_version >= Version("12.8") and "100" in cuda_archs(): cc_flag.append("arch=compute_100,code=sm_100")
if bare_metal_version >= Version("12.8") and "120" in cuda_archs(): cc_flag.append("arch=compute_120,code=sm_120")
"""
TAKES_NONE = """\
# cc_flag.append("arch=compute_75,code=sm_75")
cc_flag.append("arch=compute_80,code=sm_80")
cc_flag.append("arch=compute_90,code=sm_90")
"""


@pytest.mark.parametrize(
    ("gpu", "code"),
    [("sm_80", "80"), ("sm_86", "80"), ("sm_89", "80"), ("sm_90", "90"), ("sm_103", "100"), ("sm_121", "120")],
)
def test_flash_attn_is_told_the_architecture_whose_code_the_gpu_runs(gpu, code):
    found = compile_request.choose_target("flash-attn", "2.8.3", TAKES, gpu)
    assert (found.codes, found.env) == ((code,), {"FLASH_ATTN_CUDA_ARCHS": code})
    assert ("runs sm_" + code + " code" in found.note) == (gpu != "sm_" + code)


@pytest.mark.parametrize("gpu", ["sm_70", "sm_75", "sm_110"])
def test_a_gpu_that_runs_none_of_the_release_s_code_is_refused_with_what_there_is(gpu):
    with pytest.raises(KnowngoodError, match=rf"{gpu}: its setup compiles for sm_80, sm_90, sm_100, sm_120"):
        compile_request.choose_target("flash-attn", "2.8.3", TAKES, gpu)


def test_a_release_that_takes_no_architecture_is_given_none_and_says_so():
    found = compile_request.choose_target("flash-attn", "2.6.3", TAKES_NONE, "sm_86")
    assert (found.codes, found.env) == (("80", "90"), {})
    assert "has no setting for architectures" in found.note
    with pytest.raises(KnowngoodError, match="no code for sm_75"):
        compile_request.choose_target("flash-attn", "2.6.3", TAKES_NONE, "sm_75")


def test_an_extension_of_torch_is_told_by_torch_s_own_variable():
    assert compile_request.choose_target("mine", "1", "CUDAExtension(...)", "sm_120").env == {
        "TORCH_CUDA_ARCH_LIST": "12.0"
    }


def test_a_package_without_device_code_is_told_the_gpu_s_own():
    assert compile_request.choose_target("transformer-engine-torch", "2.20.2", "", "sm_86").env == {
        "NVTE_CUDA_ARCHS": "86"
    }


def test_the_local_version_is_what_the_wheelhouse_reads():
    assert compile_request.wheel_local_version(CELL, ("90",), cxx11abi=True) == LOCAL
    older = dataclasses.replace(CELL, cuda="12.4", torch="2.6.0")
    assert (
        compile_request.wheel_local_version(older, ("80", "90"), cxx11abi=False)
        == "cu12torch2.6cxx11abifalse.sm80.sm90"
    )


@pytest.mark.parametrize(
    ("cores", "free", "asked", "jobs"), [(2, 24, None, 2), (16, 24, None, 4), (16, 24, 3, 3), (16, 999, 32, 16)]
)
def test_as_many_jobs_as_cores_and_memory_allow(cores, free, asked, jobs):
    assert compile_request.choose_jobs(cores, free << 30, 5 << 30, asked) == jobs


def test_memory_for_less_than_one_job_is_refused():
    with pytest.raises(KnowngoodError, match=r"one compile job needs 5\.4 GB of memory and 4\.3 GB are free"):
        compile_request.choose_jobs(2, 4 << 30, 5 << 30, None)


def found_wheel(folder):
    """The files of a wheel as `inside.py` unpacks it."""
    info = folder / "kgprobe-1.0.dist-info"
    (folder / "kgprobe").mkdir(parents=True)
    info.mkdir()
    (folder / "kgprobe/_C.so").write_bytes(b"\x7fELF")
    (folder / "kgprobe/__init__.py").write_text("")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kgprobe\nVersion: 1.0\n\nVersion: 1.0 is fine\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\n")
    (info / "RECORD").write_text("stale\n")
    return "kgprobe-1.0-cp311-cp311-linux_x86_64.whl"


def test_the_same_files_are_the_same_wheel_and_an_installer_takes_it(tmp_path):
    built = found_wheel(tmp_path / "a")
    found_wheel(tmp_path / "b")
    first = wheel_packing.pack_wheel(tmp_path / "a", built, LOCAL, tmp_path / "one")
    second = wheel_packing.pack_wheel(tmp_path / "b", built, LOCAL, tmp_path / "two")
    assert first.name == second.name == f"kgprobe-1.0+{LOCAL}-cp311-cp311-linux_x86_64.whl"
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        metadata = archive.read(f"kgprobe-1.0+{LOCAL}.dist-info/METADATA").decode()
        lines = archive.read(f"kgprobe-1.0+{LOCAL}.dist-info/RECORD").decode().splitlines()
    assert f"\nVersion: 1.0+{LOCAL}\n" in metadata
    assert metadata.endswith("\n\nVersion: 1.0 is fine\n")
    assert len(lines) == 5
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--offline", "--no-config"]
    pip += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_36"]
    subprocess.run([*pip, "--target", str(target), str(first)], check=True)
    assert (target / "kgprobe/_C.so").read_bytes() == b"\x7fELF"


def test_a_package_that_compares_its_version_keeps_it(tmp_path):
    """As transformer-engine-torch, which asserts that its version is that of its core."""
    wheel = wheel_packing.pack_wheel(tmp_path / "a", found_wheel(tmp_path / "a"), LOCAL, tmp_path, plain=True)
    assert wheel.name == f"kgprobe-1.0-1{LOCAL}-cp311-cp311-linux_x86_64.whl"
    assert parse_wheel_filename(wheel.name)[1:3] == (Version("1.0"), (1, LOCAL))
    with zipfile.ZipFile(wheel) as archive:
        assert "\nVersion: 1.0\n" in archive.read("kgprobe-1.0.dist-info/METADATA").decode()
    made = Distribution(name="kgprobe", version="1.0", file=wheel.name, sha256="0" * 64, size=1)
    assert made.made_here
    assert not dataclasses.replace(made, file="kgprobe-1.0-1-cp311-cp311-linux_x86_64.whl").made_here
    assert compile_request.find_recipe("transformer-engine-torch").plain


def written(tmp_path, data=b"wheel"):
    wheel = tmp_path / f"kgprobe-1.0+{LOCAL}-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(data)
    inputs = {"package": "kgprobe", "architectures": ["90"]}
    made = wheelhouse.WheelRecord(
        wheel=wheel.name,
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        key=wheelhouse.wheel_key(inputs),
        inputs=inputs,
        made={"seconds": 1},
    )
    wheelhouse.write_wheel_record(made, wheel)
    return wheel, made


def test_a_record_is_read_as_it_was_written(tmp_path):
    wheel, made = written(tmp_path)
    assert wheelhouse.read_wheel_record(wheel) == made
    assert wheelhouse.find_wheel_damage(wheel) is None
    assert wheelhouse.read_wheel_record(tmp_path / "other.whl") is None


def test_one_flipped_bit_is_seen(tmp_path):
    wheel, _ = written(tmp_path)
    wheel.write_bytes(wheel_samples.CONTENT[::-1])
    assert "is a corrupt archive: sha256 expected: " in wheelhouse.find_wheel_damage(wheel)


@pytest.mark.parametrize(
    ("old", "new"), [('"key": "', '"key": "0'), ("kgprobe-1.0", "kgprobe-1.1"), ('"schema"', '"scheme"'), ("{", "[")]
)
def test_a_record_that_was_changed_is_no_record_of_the_wheel(tmp_path, old, new):
    wheel, _ = written(tmp_path)
    path = wheelhouse.wheel_record_path(wheel)
    path.write_text(path.read_text().replace(old, new, 1))
    assert "compile again" in wheelhouse.find_wheel_damage(wheel)


def sdist(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            data = text.encode()
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_000_000
            archive.addfile(info, io.BytesIO(data))
    return path


def test_an_sdist_from_a_file_is_pinned_by_its_fragment(tmp_path):
    path = sdist(tmp_path / "kg_probe-1.0.tar.gz", {"kg_probe-1.0/setup.py": "hello"})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    found = compile_request.read_sdist_file(f"{path}#sha256={digest}")
    assert (found.package, found.version, found.setup()) == ("kg-probe", "1.0", "hello")
    with pytest.raises(KnowngoodError, match="not 0000"):
        compile_request.read_sdist_file(f"{path}#sha256={'0' * 64}")
    with pytest.raises(UsageError, match="64 hex digits"):
        compile_request.read_sdist_file(f"{path}#md5=1")
    with pytest.raises(UsageError, match="no such file"):
        compile_request.read_sdist_file(str(tmp_path / "none-1.0.tar.gz"))
    with pytest.raises(UsageError, match=r"end in \.tar\.gz"):
        compile_request.read_sdist_file(str(sdist(tmp_path / "kg_probe-1.0.zip", {})))


def test_unpacking_again_keeps_what_was_compiled_and_the_times_of_the_sources(tmp_path):
    path = sdist(tmp_path / "p-1.0.tar.gz", {"p-1.0/setup.py": "", "p-1.0/csrc/one.cu": "one", "p-1.0/gone.h": ""})
    found = compile_request.read_sdist_file(str(path))
    folder = tmp_path / "src"
    found.unpack(folder)
    (folder / "build").mkdir()
    (folder / "build/one.o").write_text("object")
    (folder / "gone.h").unlink()
    found.unpack(folder)
    assert (folder / "build/one.o").read_text() == "object"
    assert (folder / "gone.h").exists()
    assert (folder / "csrc/one.cu").stat().st_mtime == 1_000_000


def package(version, suite="trixie"):
    remote = private_apt.RemotePackage(
        name="nvidia-cuda-toolkit", version=version, arch="amd64", sha256="0" * 64, uri=""
    )
    return cuda_toolkit.DebianToolkit(suite=suite, remote=remote)


def test_debian_s_nvcc_serves_its_major_release_from_its_own_minor_on():
    offered = [package("12.4.131~12.4.1-2"), package("11.8.89~11.8.0-5~deb12u1", "bookworm")]
    assert [
        cuda_toolkit.newest_fitting_toolkit(offered, cuda) for cuda in ("12.4", "12.8", "11.8", "12.1", "13.0")
    ] == [
        offered[0],
        offered[0],
        offered[1],
        None,
        None,
    ]
    assert offered[0].nvcc == "12.4.131"


def test_a_cuda_without_any_nvcc_is_said(monkeypatch):
    monkeypatch.setattr(cuda_toolkit, "_toolkit_wheels", lambda *_: [])
    monkeypatch.setattr(cuda_toolkit, "wheels_have_nvcc", lambda *_: False)
    monkeypatch.setattr(cuda_toolkit, "find_debian_toolkits", lambda _: [package("11.8.89~11.8.0-5")])
    with pytest.raises(MissingError, match=r"no nvcc for CUDA 13\.0.*the fa0 twin"):
        cuda_toolkit.install_cuda_toolkit(CELL, None, [], print)


def test_an_architecture_that_nvcc_does_not_know_is_said_with_those_it_does(tmp_path):
    found = cuda_toolkit.CudaToolkit(
        folder=tmp_path, home="cuda", release="12.4", codes=frozenset({"70", "80", "90"}), contents=(), flags=""
    )
    cuda_toolkit.check_toolkit_codes(found, ["90"])
    with pytest.raises(KnowngoodError, match=r"nvcc 12\.4 does not know sm_120 .*has sm_70, sm_80, sm_90\)"):
        cuda_toolkit.check_toolkit_codes(found, ["120"])


NVCC = """\
#!/bin/sh
case $1 in
--version) echo "Cuda compilation tools, release 12.4, V12.4.131" ;;
--list-gpu-code) echo sm_90 ;;
--help)
  echo "--objdir-as-tempdir                                 (-objtemp)                  "
  SEED
esac
"""


@pytest.mark.parametrize(
    ("seed", "flags"),
    [
        (":", "-objtemp"),
        ('echo "--frandom-seed <seed>                               (-frandom-seed)"', "-objtemp -frandom-seed=1"),
    ],
)
def test_nvcc_is_given_those_flags_for_the_same_bytes_that_it_has(tmp_path, seed, flags):
    nvcc = tmp_path / "cuda/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(NVCC.replace("SEED", seed))
    nvcc.chmod(0o755)
    assert cuda_toolkit._inspect_toolkit(tmp_path, tmp_path / "cuda", "12.4", []).flags == flags


def job(tmp_path):
    return compile_container.CompileContainer(
        name="knowngood-compile-1",
        image="knowngood:cell",
        work=tmp_path,
        toolkit=tmp_path / "cuda",
        tools=tmp_path / "tools",
        env=compile_request.compile_variables("nvidia/cu13", 2, {"FLASH_ATTN_CUDA_ARCHS": "90"}),
        memory=11 << 30,
        user="1000:1000",
    )


def test_the_container_has_no_network_bounded_memory_and_nothing_to_write_but_its_folder(tmp_path):
    argv = job(tmp_path).argv(("docker",))
    assert argv[argv.index("--network") + 1] == "none"
    assert argv[argv.index("--memory") + 1] == str(11 << 30)
    assert [word for word in argv if word.endswith(":rw")] == [f"{tmp_path}:/build:rw"]
    assert "MAX_JOBS=2" in argv
    assert argv[-1] == "/build/inside.py"


def test_an_engine_elsewhere_is_refused(tmp_path):
    engine = Engine(
        host="ssh://there",
        docker=("docker",),
        version="27",
        buildkit="0.15",
        containerd_store=True,
        embedded=False,
        network="default",
    )
    with pytest.raises(MissingError, match="on another machine"):
        compile_container.run_compile_container(job(tmp_path), engine, log=tmp_path / "log", notify=print)


@pytest.mark.whole
def test_a_failed_compile_shows_its_last_errors_and_what_is_known_of_them(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        '[1/3] nvcc -c -c one.cu\none.cu(1): error: identifier "x" is undefined\n'
        "RuntimeError: \nThe detected CUDA version (12.4) mismatches the version that was used to compile\n"
        "PyTorch (13.0). Please make sure to use the same CUDA versions.\n"
    )
    ended = compile_request.CompileOutcome(folder=tmp_path, code=1, out_of_memory=False, result={"ok": False})
    said = str(compile_run.compile_error(ended, 5 << 30))
    assert 'identifier "x" is undefined' in said
    assert str(log) in said
    assert "known: " in said


@pytest.mark.parametrize(
    ("code", "engine", "result", "message"),
    [
        (137, True, {}, "fewer --jobs or more --memory-per-job"),
        (1, False, {"ok": False, "killed_for_memory": True}, "fewer --jobs or more --memory-per-job"),
        (137, False, {}, "stopped from outside; run it again, finished objects are kept"),
    ],
)
def test_a_compile_that_was_killed_says_why_and_what_to_do(tmp_path, code, engine, result, message):
    ended = compile_request.CompileOutcome(folder=tmp_path, code=code, out_of_memory=engine, result=result)
    found = compile_run.compile_error(ended, 5 << 30)
    assert message in str(found)
    assert found.exit_code == 4, "another place may have what this one lacks"


def test_the_key_is_of_every_input_and_of_no_order():
    inputs = {"sdist": {"sha256": "1"}, "env": {"A": "1", "B": "2"}}
    assert wheelhouse.wheel_key(inputs) == wheelhouse.wheel_key({"env": {"B": "2", "A": "1"}, "sdist": {"sha256": "1"}})
    assert wheelhouse.wheel_key(inputs) != wheelhouse.wheel_key({**inputs, "env": {"A": "1", "B": "3"}})


@pytest.fixture
def registry(monkeypatch, tmp_path):
    """A registry with one sdist, that states hashes unless told otherwise."""
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "cache"))
    stamina.set_testing(True)
    content = sdist(tmp_path / "kgprobe-1.0.tar.gz", {"kgprobe-1.0/setup.py": "hello"}).read_bytes()
    with serve() as served:
        served.files["kgprobe-1.0.tar.gz"] = content
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        served.stated = hashlib.sha256(content).hexdigest()
        plain = served.page
        served.page = lambda project: (plain(project) or "").replace('.gz"', f'.gz#sha256={served.stated}"') or None
        yield served
    stamina.set_testing(False)


def test_the_registry_s_sdist_is_checked_when_it_arrives_and_when_it_is_used(registry):
    found = compile_request.fetch_sdist("kgprobe", "1.0")
    assert (found.setup(), found.sha256) == ("hello", registry.stated)
    found.path.write_bytes(b"rotten")
    with pytest.raises(KnowngoodError, match="was damaged and is now removed: run it again"):
        compile_request.fetch_sdist("kgprobe", "1.0")
    assert compile_request.fetch_sdist("kgprobe", "1.0").sha256 == registry.stated


@pytest.mark.parametrize(
    ("version", "stated", "message"),
    [
        ("1.1", None, r"no sdist \(\.tar\.gz\) of kgprobe 1\.1"),
        ("1.0", "", r"states no sha256 for kgprobe-1\.0\.tar\.gz"),
        ("1.0", "0" * 64, r"is a corrupt archive: sha256 expected: 0000"),
    ],
)
def test_an_sdist_that_nothing_vouches_for_is_not_compiled(registry, version, stated, message):
    registry.stated = registry.stated if stated is None else stated
    if stated == "":
        registry.page = lambda _: (
            '<!DOCTYPE html><html><body><a href="/files/kgprobe-1.0.tar.gz">kgprobe-1.0.tar.gz</a>'
        )
    with pytest.raises(KnowngoodError, match=message):
        compile_request.fetch_sdist("kgprobe", version)


def test_a_wheel_is_compiled_in_a_cell_with_the_same_torch_and_nothing_compiled():
    matrix = parsed()
    assert str(compile_run.nearest_plain_cell(parse_cell(FA2), matrix)) == FA0
    assert str(compile_run.nearest_plain_cell(parse_cell(FA4), matrix)) == FA4
    alone = parsed(with_(("flash-attn: [2.8.3.post2, none]", "flash-attn: 2.8.3.post2")))
    assert str(compile_run.nearest_plain_cell(parse_cell(FA2), alone)) == FA4


def test_only_cells_with_flash_attn_2_order_a_wheel():
    (only,) = needed_wheels([parse_cell(FA4), parse_cell(FA2), parse_cell(FA0)], parsed())
    assert (str(only.cell), only.package, only.version) == (FA2, "flash-attn", "2.8.3.post2")


def test_a_cell_orders_what_matrix_yaml_says_its_framework_needs():
    wheel = "  - {when: flash-attn=2.*, wheel: Some_Extension==1.0, because: sources only}\ncells:\n"
    made = needed_wheels([parse_cell(FA0), parse_cell(FA2)], parsed(with_(("cells:\n", wheel))))
    assert [(item.package, item.version) for item in made] == [
        ("flash-attn", "2.8.3.post2"),
        ("some-extension", "1.0"),
    ]


class Planning(Exception):  # noqa: N818  # no error: it says how far the run came
    """The compiler was about to plan."""


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A compiler that has no engine: it says so when it would plan a compile."""

    def planned(*_):
        raise Planning

    monkeypatch.setattr(compile_run, "plan_compile", planned)
    monkeypatch.setattr(compile_run, "load_torch_cxx11abi", lambda _: True)
    return compile_run.Compiler(line=None, options=CompileOptions(wheelhouse=tmp_path), supply=lambda *_: None)


def house(folder, *, recorded):
    """A wheelhouse with the wheel of `CELL`."""
    wheel = folder / f"flash_attn-2.8.3.post2+{LOCAL}-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(wheel_samples.CONTENT)
    made = wheelhouse.WheelRecord(
        wheel=wheel.name,
        sha256=wheel_samples.SHA256,
        size=len(wheel_samples.CONTENT),
        key=wheelhouse.wheel_key({}),
        inputs={},
        made={},
    )
    if recorded:
        wheelhouse.write_wheel_record(made, wheel)
    return wheel


@pytest.mark.parametrize("recorded", [True, False])
def test_a_wheel_that_is_there_is_not_made_again(compiler, tmp_path, recorded):
    wheel = house(tmp_path, recorded=recorded)
    (order,) = needed_wheels([CELL], parsed())
    result = compiler.run(order, print)
    assert (result.status, result.wheel, result.record is not None) == ("present", wheel, recorded)
    assert ("has no build record" in result.note) is not recorded
    wheel.unlink()
    with pytest.raises(Planning):
        compiler.run(order, print)


def test_a_wheel_whose_bytes_are_recorded_is_fetched_before_one_is_compiled(compiler, home, tmp_path):
    def supply(order, _notify):
        assert (str(order.cell), order.package) == (FA2, "flash-attn")
        return house(tmp_path, recorded=True)

    (order,) = needed_wheels([CELL], parsed())
    fetching = dataclasses.replace(compiler, supply=supply, line=SimpleNamespace(project=home))
    assert fetching.run(order, print).status == "fetched"
    assert fetching.run(order, print).status == "present"
    assert not list((home.tree.folder / "wheels").glob("*")), "its record names no source, so it was not compiled"


def test_a_compiled_wheel_that_the_matrix_needs_is_recorded_and_another_is_not(compiler, home, tmp_path):
    wheel_samples.fill_folder(tmp_path)
    wheelhouse.write_wheel_record(wheel_samples.record(), tmp_path / wheel_samples.FILE)
    (order,) = needed_wheels([CELL], parsed())
    recording = dataclasses.replace(compiler, line=SimpleNamespace(project=home))
    recording.run(dataclasses.replace(order, cell=parse_cell(FA0)), print)
    assert wheelhouse.list_recorded_wheels(home.tree) == []
    recording.run(order, print)
    assert wheelhouse.list_recorded_wheels(home.tree) == [wheel_samples.without_attempts(wheel_samples.record())]


def test_a_damaged_wheel_is_taken_out_and_made_again(compiler, tmp_path):
    wheel = house(tmp_path, recorded=True)
    wheel.write_bytes(b"wheem")
    said = []
    with pytest.raises(Planning):
        compiler.run(needed_wheels([CELL], parsed())[0], said.append)
    assert not list(tmp_path.iterdir())
    assert "is a corrupt archive" in said[0]


def test_what_ninja_has_noted_is_finished_and_nothing_else(monkeypatch, tmp_path):
    monkeypatch.setattr(compile_inside, "SOURCE", tmp_path)
    build = tmp_path / "build/temp"
    build.mkdir(parents=True)
    (build / ".ninja_log").write_text("# ninja log v7\n3\t7179\t17952\t/build/src/build/temp/one.o\t1c26\n3\t71")
    (build / "build.ninja").write_text("nvcc = /toolkit/bin/nvcc\ncuda_post_cflags = -gencode arch=compute_90\n")
    (build / "one.o").write_text("whole")
    (build / "two.o").write_text("ha")
    assert compile_inside.finished() == {"/build/src/build/temp/one.o": "17952"}
    assert set(compile_inside.objects()) == {"build/temp/one.o", "build/temp/two.o"}
    assert compile_inside.flags() == {"cuda_post_cflags": "-gencode arch=compute_90"}


@pytest.mark.parametrize(
    ("said", "killed"),
    [("low 0\noom_kill 0\n", False), ("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", True), ("", False)],
)
def test_the_kernel_s_own_word_on_memory(monkeypatch, said, killed):
    monkeypatch.setattr(compile_inside, "group", lambda *_: said)
    assert compile_inside.killed_for_memory() is killed


def test_what_ninja_begins_is_told():
    log = "[1/3] gcc -MMD -c one.cpp -o one.o\n  [2/3] nvcc -c -c /build/src/two.cu -o two.o\nnote: [3/3] is text\n"
    assert compile_inside.steps(log) == ["[1/3] one.cpp", "[2/3] two.cu"]


def test_a_build_that_passes_too_old_a_standard_is_refused(tmp_path: Path):
    path = tmp_path / "mine-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        content = b'setup(ext_modules=[CUDAExtension("mine", ["mine.cu"], extra_compile_args=["-std=c++17"])])'
        member = tarfile.TarInfo("mine-1.0/setup.py")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    sdist = compile_request.read_sdist_file(str(path))
    compile_request.check_cxx_standard(sdist, "2.13.0", 17)
    compile_request.check_cxx_standard(sdist, "1.13.1", None)
    with pytest.raises(
        KnowngoodError, match=r"^mine 1\.0 cannot be compiled against torch 2\.14\.1: .* demand C\+\+20"
    ):
        compile_request.check_cxx_standard(sdist, "2.14.1", 20)
