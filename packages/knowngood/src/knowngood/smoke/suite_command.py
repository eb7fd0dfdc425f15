"""The smoke suite's arguments, the command that runs it in a container, and what the container gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knowngood.core.cell import Cell
from knowngood.engine.container_engine import parse_release
from knowngood.smoke.suite_files import SUITE_FOLDER

CONTAINER_FOLDER = "/tmp/knowngood"  # noqa: S108  # in a container that nobody else uses
"""The folder in the container for the suite, the predictions and the report."""
EMULATED_LIMITS = Path(__file__).with_name("emulated_limits.py")
"""The plugin of pytest that gives the suite more time under emulation."""
EMULATED_CORE = tuple(
    f"{setting}/fp32/{layout}/full"
    for setting in ("eager", "sdpa")
    for layout in ("dense", "right-padded", "left-padded")
)
"""The checks of an emulated run, by the ids of the suite: each takes 2 minutes of processor time there."""
EMULATED_SECONDS = 7200
"""The least time limit of such a run: 12 minutes of processor time, on a machine that may have a tenth to give."""
SHARED_MEMORY = "1g"
_CDI = "nvidia.com/gpu="
_CDI_BY_DEFAULT = (28, 2)
"""From this Docker release on an engine reads CDI by default, and lists its devices (moby/moby#49963, #49980)."""
TIMED_OUT = (124, 137)
"""The exit codes of `timeout` in the container: it has stopped the suite, or had to kill it."""


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """The options for a run of the suite: which part, on which device, within which limits."""

    quick: bool = False
    """Run only the quick part."""
    gpus: bool = False
    """Give the container every GPU of the host, and fail if there is none."""
    seconds: int = 1200
    """The suite's time limit. It is stopped inside the container then, and from outside a little later."""
    memory: str = "12g"
    pids: int = 32768
    """The most processes and threads. Those that Ray starts for verl or OpenRLHF have 600 on two cores, 4,600 on 64."""
    only: str | None = None
    """Of training over several processes, run only the checks whose ids match this glob."""
    emulated: bool = False
    """Run the suite's core alone, with more time for each check: QEMU emulates the image's processor."""


def suite_arguments(options: SuiteOptions, *, cell_gpu: str) -> list[str]:
    """Return the arguments that say what the suite checks, wherever it writes its report."""
    argv = ["-q", "-p", "no:cacheprovider"]
    if options.quick:
        argv.append("--quick")
    if options.emulated:
        argv += ["-p", EMULATED_LIMITS.stem]
    if options.gpus:
        argv += ["--demand-gpu", "--cell-gpu", cell_gpu]
    return argv


def reporting_arguments(options: SuiteOptions, folder: str, *, cell_gpu: str) -> list[str]:
    """Return all arguments of the suite, with its predictions and its report in `folder`."""
    return [*suite_arguments(options, cell_gpu=cell_gpu), *_report_arguments(folder)]


def _report_arguments(folder: str) -> list[str]:
    return ["--report", f"{folder}/report.json", "--predictions", f"{folder}/predictions.json"]


def container_command(cell: Cell, options: SuiteOptions) -> list[str]:
    """Return the command that runs the suite in a container, under its own time limit."""
    arguments = suite_arguments(options, cell_gpu=cell.gpu)
    return timed_command(arguments, options.seconds, checks=EMULATED_CORE if options.emulated else ())


def timed_command(arguments: Sequence[str], seconds: int, *, checks: Sequence[str] = ()) -> list[str]:
    """Return the container's command for these `suite_arguments`; with `checks`, ids of training, for these alone."""
    suite = f"{CONTAINER_FOLDER}/{SUITE_FOLDER}"
    chosen = [f"{suite}/test_training.py::test_trains[{check}]" for check in checks] or [suite]
    command = _timed_pytest(chosen, arguments, seconds)
    return [*command, *_report_arguments(CONTAINER_FOLDER)]


def _timed_pytest(suite: Sequence[str], arguments: Sequence[str], seconds: int) -> list[str]:
    return ["timeout", "--kill-after=10", str(seconds), "python", "-m", "pytest", *suite, *arguments]


def docker_run_words(options: SuiteOptions, image: str, suite: Path, arguments: Sequence[str]) -> list[str]:
    """Return what follows `docker` in the command that people run for the same: the suite's table, and no report.

    `suite` is the folder of the suite on the engine's machine; `arguments` are `suite_arguments`.
    """
    mount = f"{suite}:/{SUITE_FOLDER}:ro"
    words = ["run", "--rm", *_docker_run_options(options), "--volume", mount, image]
    return [*words, *_timed_pytest([f"/{SUITE_FOLDER}"], arguments, options.seconds)]


def _docker_run_options(options: SuiteOptions) -> list[str]:
    """Return the options of `docker run` that give the container of `suite_run.create_suite_container`."""
    argv = ["--network", "none", "--memory", options.memory, "--pids-limit", str(options.pids)]
    argv += ["--shm-size", SHARED_MEMORY, "--init", "--env", "HF_HUB_OFFLINE=1"]
    return [*argv, "--gpus", "all"] if options.gpus else argv


def gpu_request(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the device request for all GPUs; `info` is the engine's `docker info`.

    NVIDIA's runtime is used where the engine lists it. Otherwise CDI is used (a description of devices, which
    `nvidia-ctk cdi generate` writes) where the engine knows NVIDIA's. Docker 28.2 and newer list the devices that they
    discovered; 25 to 28.1 read CDI only where `features.cdi` is set, and list only the folders.
    """
    devices = (str(value) for item in info.get("DiscoveredDevices") or () for value in item.values())
    opted_in = bool(info.get("CDISpecDirs")) and parse_release(str(info.get("ServerVersion"))) < _CDI_BY_DEFAULT
    cdi = opted_in or any(value.startswith(_CDI) for value in devices)
    if cdi and "nvidia" not in (info.get("Runtimes") or {}):
        return {"driver": "cdi", "device_ids": [f"{_CDI}all"]}
    return {"count": -1, "capabilities": [["gpu"]]}
