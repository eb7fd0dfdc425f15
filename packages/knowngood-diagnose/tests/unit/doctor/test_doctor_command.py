"""`knowngood doctor` as a whole, on environments of a few small files, with a fake NVML."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import elf_samples
from knowngood.cli.main import main
from knowngood.core.errors import MissingError
from knowngood.engine import container_engine, probe_gpus
from knowngood.engine.probe_gpus import NvidiaState
from knowngood_diagnose.doctor import probe_image, system_state
from knowngood_facts import python_environment
from knowngood_facts.compat import knowledge
from samples import FA4

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = sysconfig.get_config_var("SOABI")
EXTENSION = f"flash_attn_2_cuda.{TAG}.so"
VERSION = "__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n"


class Environment:
    """A virtual environment that contains only what a test puts into it."""

    def __init__(self, root: Path, libraries: Path) -> None:
        self.root, self.libraries = root, libraries
        self.site = root / "lib" / f"python{PYTHON}" / "site-packages"
        self.site.mkdir(parents=True)
        (root / "bin").mkdir()
        (root / "bin" / "python").symlink_to(sys.executable)
        (root / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")

    def put(self, name: str, version: str, files: dict[str, str | bytes], info: str | None = None) -> Path:
        """Install a distribution; a file's content is text, bytes, or the name of a library with `@` before it."""
        folder = self.site / (info or f"{name.replace('-', '_')}-{version}.dist-info")
        folder.mkdir()
        record = []
        for path, content in files.items():
            target = self.site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            data = content if isinstance(content, bytes) else content.encode()
            if data.startswith(b"@"):
                data = (self.libraries / data[1:].decode()).read_bytes()
            target.write_bytes(data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            record.append(f"{path},sha256={digest},{len(data)}")
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (folder / "RECORD").write_text("\n".join([*record, f"{folder.name}/RECORD,,"]))
        return folder

    def torch(self, abi: str = "new") -> None:
        """Install a torch of the new or the old C++ ABI."""
        lib = {"libc10.so": f"@libc10-{abi}.so", "libtorch_python.so": "@libtorch_python.so"}
        files = {f"torch/lib/{name}": content for name, content in lib.items()}
        self.put("torch", "2.11.0", {"torch/version.py": VERSION, **files})

    def flash(self, library: str = "flash.so") -> None:
        """Install a flash-attn with one extension."""
        self.put("flash-attn", "2.8.3.post2", {EXTENSION: f"@{library}"})


KNOWN = knowledge.load_knowledge()


@pytest.fixture(autouse=True)
def _read_once(monkeypatch):
    monkeypatch.setattr(knowledge, "load_knowledge", lambda: KNOWN)


@pytest.fixture
def here(tmp_path):
    return Environment(tmp_path / "env", elf_samples.KEPT)


@pytest.fixture
def doctor(here, capsys, monkeypatch):
    """Return a function that runs the command and returns its exit code and its lines by id; no GPU is visible."""
    monkeypatch.setattr(probe_gpus, "read_nvidia_state", lambda: NvidiaState(problem="NVML's library is not found"))
    for name in ("LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str):
        code = main(["doctor", "--json", "--python", str(here.root), *arguments])
        document = json.loads(capsys.readouterr().out)
        return code, {line["id"]: line for line in document["lines"]}

    return run


def test_a_good_environment_without_a_gpu_is_unknown(here, doctor):
    here.torch()
    here.flash()
    code, lines = doctor()
    assert code == 3
    assert lines["gpu"]["verdict"] == "unknown"
    assert lines["torch"]["seen"] == "2.11.0+cu130, CUDA 13.0, C++11 ABI"
    assert lines["binary:flash-attn"]["verdict"] == "ok"
    assert lines["binary:flash-attn"]["seen"] == "sm_90"
    assert lines["binary:flash-attn"]["what"] == "flash-attn 2.8.3.post2"


def test_a_stated_gpu_and_driver_replace_the_machines(here, doctor):
    here.torch()
    here.flash()
    _, lines = doctor("--gpu", "H100", "--driver", "580.65.06")
    assert lines["driver"]["verdict"] == "ok"
    assert lines["binary:flash-attn"]["verdict"] == "ok"
    _, lines = doctor("--gpu", "A100", "--driver", "550.54")
    assert lines["driver"]["incidents"] == ["nvidia-driver-too-old"]
    assert lines["binary:flash-attn"]["incidents"] == ["cuda-no-kernel-image"]


def test_the_other_abi_is_bad_with_the_incident_that_users_report(here, doctor):
    here.torch("old")
    here.flash()
    code, lines = doctor("--gpu", "H100")
    line = lines["binary:flash-attn"]
    assert code == 1
    assert "c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string" in line["because"]
    assert line["incidents"] == ["flash-attn-cxx11-abi"]
    assert "C++11 ABI false" in line["fix"][0]


def test_an_extension_that_torch_compiled_before_an_upgrade_should_be_removed(here, doctor, tmp_path, monkeypatch):
    here.torch("old")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    folder = tmp_path / "extensions" / "fused_adam"
    folder.mkdir(parents=True)
    shutil.copy(here.libraries / "flash.so", folder / "fused_adam.so")
    _, lines = doctor()
    assert lines["binary:fused_adam"]["verdict"] == "bad"
    assert lines["binary:fused_adam"]["fix"] == [f"rm -r {folder}; it is compiled again when it is used"]


def test_a_truncated_library_and_a_missing_one(here, doctor):
    here.torch()
    here.flash()
    path = here.site / EXTENSION
    whole = path.read_bytes()
    path.write_bytes(whole[:2000])
    code, lines = doctor()
    assert code == 1
    assert f"it has 2,000 bytes, and its headers speak of {len(whole):,}" in lines["binary:flash-attn"]["because"]
    path.unlink()
    _, lines = doctor()
    assert "RECORD lists it, and the file is not there" in lines["binary:flash-attn"]["because"]


def test_an_extension_of_another_python(here, doctor):
    here.torch()
    here.put("flash-attn", "2.8.3", {"flash_attn_2_cuda.cpython-36m-x86_64-linux-gnu.so": "@flash.so"})
    _, lines = doctor()
    assert lines["binary:flash-attn"]["incidents"] == ["flash-attn-wheel-other-python"]


def test_numpy_1_beside_numpy_2_is_bad_without_torch_too(here, doctor):
    here.put("numpy", "2.2.6", {})
    here.put("old-thing", "1.0", {"old_thing/_c.so": "@numpy1.so"})
    code, lines = doctor()
    assert code == 1
    assert lines["binary:old-thing"]["incidents"] == ["numpy-1-binary-on-numpy-2"]


def test_a_duplicate_distribution_and_overlapping_files(here, doctor):
    here.torch()
    here.flash()
    here.put("flash-attn", "2.7.4", {"flash_attn/old.py": "old"})
    here.put("one", "1", {"shared/a.py": "1"})
    here.put("two", "1", {"shared/a.py": "2"})
    _, lines = doctor()
    assert lines["twice:flash-attn"]["incidents"] == ["flash-attn-two-installations"]
    assert lines["shared:one:two"]["seen"] == "one 1 and two 1: shared/a.py"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "METADATA").unlink(),
        lambda folder: (folder / "METADATA").write_bytes(b"\xff\0\xfe"),
        lambda folder: (folder / "METADATA").write_text("Name: spoilt\nVersion: not a version\n"),
        lambda folder: folder.rename(folder.with_name("~poilt-1.0.dist-info")),
    ],
)
def test_broken_metadata_is_named_and_the_rest_is_judged(here, doctor, spoil):
    here.torch()
    here.flash()
    spoil(here.put("spoilt", "1.0", {"spoilt.py": ""}))
    _, lines = doctor("--gpu", "H100")
    assert "poilt-1.0.dist-info" in lines["metadata"]["seen"]
    assert lines["metadata"]["verdict"] == "warn"
    assert lines["binary:flash-attn"]["verdict"] == "ok"


def test_a_record_of_garbage(here, doctor):
    here.torch()
    folder = here.put("spoilt", "1.0", {"spoilt.py": ""})
    (folder / "RECORD").write_bytes(b'\0\xff"unclosed,,\n,,,,\n')
    assert doctor()[1]["torch"]["verdict"] == "ok"


def test_ld_library_path_that_brings_another_library(here, doctor, tmp_path, monkeypatch):
    here.torch()
    here.put("kg", "1", {"kg/_c.so": "@runpath.so", "lib/libkg.so.1": "@libkg-2.so"})
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(here.libraries / "libkg-2.so", other / "libkg.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other))
    _, lines = doctor()
    assert f"libkg.so.1 from {other}/libkg.so.1, for kg/_c.so" in lines["variable:LD_LIBRARY_PATH"]["because"]
    shutil.copy(here.libraries / "libkg-1.so", other / "libkg.so.1")
    here.put("versioned", "1", {"versioned.so": "@versioned.so"})
    _, lines = doctor()
    assert "it needs KG_2" in lines["binary:versioned"]["because"]


def test_nothing_to_examine_is_exit_4(here, doctor):
    here.put("six", "1.17.0", {"six.py": ""})
    code, lines = doctor()
    assert code == 4
    assert lines["torch"]["seen"] == "not installed"


def test_an_interpreter_that_does_not_run_is_bad_and_the_files_are_read(here, doctor):
    here.torch()
    here.flash()
    (here.root / "bin" / "python").unlink()
    (here.root / "bin" / "python").symlink_to("/nowhere/python")
    code, lines = doctor("--gpu", "A100")
    assert code == 1
    assert "does not run" in lines["python"]["because"]
    assert lines["torch"]["verdict"] == "ok"
    assert lines["binary:flash-attn"]["verdict"] == "bad"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--python", "/nowhere/python"], 4, "there is no /nowhere/python"),
        (["--gpu", "H1000"], 2, "there is no GPU"),
        (["--driver", "new"], 2, "is not a version of driver"),
        (["--host", "riscv"], 2, "is no host that images are for"),
        (["--image", "x", "--python", "y"], 2, "examine different things"),
    ],
)
def test_wrong_usage(arguments, code, message, capsys):
    assert main(["doctor", *arguments]) == code
    assert message in capsys.readouterr().err


def test_the_table_has_a_fix_below_each_bad_line(here, capsys):
    here.torch("old")
    here.flash()
    assert main(["doctor", "--python", str(here.root), "--gpu", "H100"]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("bad") and "flash-attn" in line)
    below = "\n".join(lines[at + 1 : at + 5])
    assert "because it was compiled for another torch" in below
    assert "fix: " in below
    assert "leads to: flash-attn-cxx11-abi" in below


def test_the_environment_is_the_active_one_or_the_first_on_path(here, tmp_path):
    assert python_environment.find_interpreter(None, {"VIRTUAL_ENV": str(here.root)}).why == "VIRTUAL_ENV"
    first = python_environment.find_interpreter(None, {"PATH": str(here.root / "bin")})
    assert (first.why, first.version.rsplit(".", 1)[0]) == ("the first on PATH", PYTHON)
    assert first.folders == (str(here.site),)
    assert first.tag == TAG
    named = python_environment.find_interpreter(str(here.root / "bin" / "python"), {"PYTHONPATH": str(tmp_path)})
    assert named.folders == (str(tmp_path), str(here.site))
    with pytest.raises(MissingError, match="no python on PATH"):
        python_environment.find_interpreter(None, {"PATH": str(tmp_path)})


def test_a_script_that_starts_the_interpreter_is_not_taken_for_it(here, tmp_path):
    """As pyenv's shims are: the binaries would be judged by the symbols of a shell script, which has none."""
    shim = tmp_path / "shims" / "python"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{here.root}/bin/python" "$@"\n')
    shim.chmod(0o755)
    first = python_environment.find_interpreter(None, {"PATH": str(shim.parent)})
    assert first.path == str(here.root / "bin" / "python")
    assert first.folders == (str(here.site),)


class Error(Exception):
    """An error with a number, as pynvml's."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Pynvml(SimpleNamespace):
    """A fake NVML of a machine with one GPU that does not support ECC."""

    NVMLError = Error
    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIB_RM_VERSION_MISMATCH = 12, 9, 18
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    def __init__(self, **changes: object) -> None:
        def fail(*_: object) -> None:
            raise Error(3)

        calls = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: "580.65.06",
            "nvmlSystemGetCudaDriverVersion": lambda: 13000,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=100, used=40),
            "nvmlDeviceGetCudaComputeCapability": lambda _: (9, 0),
            "nvmlDeviceGetName": lambda _: b"NVIDIA H200",
            "nvmlDeviceGetMigMode": fail,
            "nvmlDeviceGetComputeMode": lambda _: 3,
            "nvmlDeviceGetTotalEccErrors": fail,
            "nvmlDeviceGetComputeRunningProcesses": lambda _: [SimpleNamespace(pid=7, usedGpuMemory=None)],
            "nvmlSystemGetProcessName": lambda _: "/usr/bin/python\0train.py",
        }
        super().__init__(**{**calls, **changes})


def test_nvml_describes_driver_and_gpus():
    state = probe_gpus.read_nvidia_state(Pynvml(), kernel=())
    (gpu,) = state.gpus
    assert (state.driver, state.cuda, state.problem) == ("580.65.06", "13.0", "")
    assert (gpu.name, gpu.sm, gpu.exclusive, gpu.ecc_errors) == ("NVIDIA H200", "sm_90", "exclusive process", None)
    assert [(item.pid, item.name) for item in gpu.processes] == [(7, "python")]


@pytest.mark.parametrize(
    ("number", "kernel", "problem"),
    [
        (12, False, "NVML's library (libnvidia-ml.so.1) is not found"),
        (12, True, "the kernel has driver 580.65.06, but its libraries are not here"),
        (9, False, "no driver loaded"),
        (18, True, "of another version than the driver in the kernel (580.65.06)"),
        (999, False, "NVML: error 999"),
    ],
)
def test_why_nvml_does_not_answer(number, kernel, problem, tmp_path):
    def fail():
        raise Error(number)

    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n")
    state = probe_gpus.read_nvidia_state(Pynvml(nvmlInit=fail), kernel=(version,) if kernel else ())
    assert problem in state.problem
    assert (state.driver, state.loaded) == (("580.65.06", True) if kernel else (None, False))


def test_a_gpu_that_fell_off_the_bus_does_not_hide_the_others():
    def handle(index: int) -> int:
        if index:
            raise Error(15)
        return index

    state = probe_gpus.read_nvidia_state(
        Pynvml(nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=handle), kernel=()
    )
    assert len(state.gpus) == 1
    assert "GPU 1 does not answer" in state.problem


def test_a_cell_is_judged_by_its_id(capsys, monkeypatch):
    monkeypatch.setattr(probe_gpus, "read_nvidia_state", lambda: NvidiaState(problem="none"))
    cell = "sm90-cu130-torch2.11.0-tf4.57.6-fa2.8.3.post2-triton3.6.0-py311"
    assert main(["doctor", "--json", "--image", cell, "--gpu", "A100", "--driver", "550.54"]) == 1
    lines = {line["id"]: line for line in json.loads(capsys.readouterr().out)["lines"]}
    assert lines["driver"]["incidents"] == ["nvidia-driver-too-old"]
    assert lines["image-gpu:sm_80"]["verdict"] == "bad"
    assert main(["doctor", "--json", "--image", cell, "--gpu", "H200", "--driver", "580.65.06"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "verdict"),
    [
        (["gh200", "--gpu", "GH200"], 0, "ok"),
        (["gh200", "--gpu", "H100", "--host", "x86-64"], 1, "bad"),
        (["default", "--gpu", "H100", "--host", "aarch64"], 0, "ok"),
        (["v100", "--gpu", "V100", "--host", "aarch64"], 1, "bad"),
    ],
)
def test_a_cell_is_judged_for_the_host(capsys, monkeypatch, arguments, code, verdict):
    monkeypatch.setattr(probe_gpus, "read_nvidia_state", lambda: NvidiaState(problem="none"))
    monkeypatch.setattr(container_engine, "find_running_engine", lambda: None)
    assert main(["doctor", "--json", "--driver", "580.65.06", "--image", *arguments]) == code
    lines = {line["id"]: line for line in json.loads(capsys.readouterr().out)["lines"]}
    assert lines["host"]["verdict"] == verdict


@pytest.fixture
def describe(home, monkeypatch):
    """A function that describes an image of the small project; the engine has the images that it is given."""

    def call(name, **images):
        def ask(tag, _engine):
            return images.get("image") if tag == f"knowngood:{FA4}" else None

        monkeypatch.setattr(container_engine, "find_running_engine", lambda: object() if images else None)
        monkeypatch.setattr(probe_image, "_ask_engine", ask)
        monkeypatch.setattr(probe_image, "_list_runtimes", lambda _engine: None)
        return probe_image.describe_image(name, print)

    assert home.matrix.aliases == {"default": FA4}
    return call


def test_an_alias_is_judged_like_the_id_that_it_stands_for(describe):
    by_alias = describe("default")
    assert by_alias == describe(FA4)
    assert (by_alias.name, by_alias.labels["io.knowngood.cell"]) == (FA4, FA4)


@pytest.mark.parametrize("name", ["default", FA4])
def test_the_image_of_a_cell_in_the_engine_is_what_is_judged(describe, name):
    image = system_state.ImageDescription(name=f"knowngood:{FA4}", where="the engine at x", digest="sha256:1")
    assert describe(name, image=image) == replace(image, name=FA4)
    assert describe(name, image=None).where == "a cell by its id"


def test_a_damaged_matrix_does_not_matter_to_a_reference(home, describe):
    (home.root / "matrix.yaml").write_text("cells: 3\n")
    with pytest.raises(MissingError, match=r"127\.0\.0\.1:9"):
        describe("127.0.0.1:9/team/default:1", image=None)


def test_an_image_that_does_not_exist(monkeypatch, capsys):
    monkeypatch.setattr(container_engine, "find_running_engine", lambda: None)
    assert main(["doctor", "--image", "nowhere"]) == 4
    assert "no engine here has an image 'nowhere'" in capsys.readouterr().err
