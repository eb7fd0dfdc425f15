"""Where verl's trainer runs: alone in one process, as torchrun starts it, and on a CPU by a platform that stands in.

verl has platforms and engines for GPUs and NPUs only. Without one, a platform of the checks answers for the device, as
one of another maker's would; verl's trainer, engine, loss and optimizer are its own. What stands in for something is
said in the check's report.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import types
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from smoke_tests import training

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "verl.trainer.sft_trainer"
FOLDER, FAULT = "KNOWNGOOD_VERL_FOLDER", "KNOWNGOOD_VERL_FAULT"
"""By what name verl's own processes find the folder that they write to, and the fault that is put into them."""
WITHOUT_GPU = "verl's platform, which is a GPU's or an NPU's: the CPU and gloo, since there is no GPU"


@contextlib.contextmanager
def alone(report: dict[str, Any]) -> Iterator[None]:
    """Say what torchrun tells the only process of a training, and stand in for a GPU where there is none."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, _launched()))
        if training.device_here().type != "cuda":
            report["stand_in"] = WITHOUT_GPU
            stack.enter_context(_without_gpu())
        try:
            yield
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def environment_of_command() -> dict[str, str]:
    """The environment of verl's command, run beside this process: what torchrun tells it."""
    return os.environ | _launched()


def _launched() -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    own["HYDRA_FULL_ERROR"] = 1  # an error is raised, and does not end the process
    interface = {f"{library}_SOCKET_IFNAME": "lo" for library in ("GLOO", "NCCL")}  # an image has no network
    return {name: str(value) for name, value in own.items()} | interface


@contextlib.contextmanager
def _without_gpu() -> Iterator[None]:
    from torch.distributed.fsdp import _init_utils
    from verl.plugin.platform import platform_manager
    from verl.plugin.platform.platform_cuda import PlatformCUDA

    module = types.SimpleNamespace(
        is_available=lambda: True,
        get_device_name=lambda *_words: "CPU",
        set_device=lambda _device: None,
        current_device=lambda: 0,
        synchronize=lambda *_words: None,
        empty_cache=lambda: None,
        max_memory_allocated=lambda *_words: 0,
        max_memory_reserved=lambda *_words: 0,
        memory_allocated=lambda *_words: 0,
        memory_reserved=lambda *_words: 0,
        mem_get_info=lambda *_words: (0, 1),
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
    )
    answers = {
        "device_name": property(lambda _self: "cpu"),
        "vendor_name": property(lambda _self: "cpu"),
        "device_module": property(lambda _self: module),
        "is_available": lambda _self: True,
        "current_device": lambda _self: torch.device("cpu"),
        "device_count": lambda _self: 1,
        "set_device": lambda _self, _index: None,
        "synchronize": lambda _self, *_words: None,
        "empty_cache": lambda _self: None,
        "communication_backend_name": lambda _self: "gloo",
    }
    platform_manager._current_platform = type("PlatformCPU", (PlatformCUDA,), answers)()
    from verl.workers.engine.fsdp import transformer_impl  # it asks which platform there is

    plain = torch.distributed.init_process_group

    def init_process_group(**known: Any) -> None:
        plain(**{**known, "backend": "gloo"})  # verl asks for that of the CPU and for that of the device

    with (
        mock.patch.dict(os.environ, {"VERL_ENGINE_DEVICE": "cuda"}),
        mock.patch.object(torch.distributed, "init_process_group", init_process_group),
        mock.patch.object(transformer_impl, "load_fsdp_model_to_gpu"),  # before a checkpoint, if it is not there yet
        mock.patch.object(_init_utils, "_check_module_states_for_sync_module_states"),  # that they are on a GPU
    ):
        yield


def call_module(options: dict[str, Any]) -> None:
    """What ``python -m verl.trainer.sft_trainer OPTIONS`` does, in this process."""
    from verl.trainer import sft_trainer

    with mock.patch.object(sys, "argv", [MODULE, *words_of(options)]):
        sft_trainer.main()


def numbers_in(printed: str, name: str) -> list[float]:
    """What verl's logger printed of a value, step by step."""
    return [float(number) for number in re.findall(rf"{name}:(?:np\.float\d+\()?([0-9.e+-]+)", printed)]


def words_of(options: dict[str, Any]) -> list[str]:
    """The words of a command line for hydra, for options by their dotted names."""
    return [f"{name}={_word(value)}" for name, value in options.items()]


def _word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_word(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_word, value)) + "]"
    return f"'{value}'" if isinstance(value, str) and not value.replace("_", "").isalnum() else str(value)
