"""Where OpenRLHF's trainers run: alone in one process, without its launcher, and on a CPU without a GPU's functions.

What stands in for something is said in the check's report. Nothing of it computes log probabilities, a loss or a
gradient, but for one thing on a CPU: Triton's kernel of the cross entropy, which OpenRLHF itself can do without.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import socket
import sys
import tempfile
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from smoke_tests import training

if TYPE_CHECKING:
    from collections.abc import Iterator

CROSS_ENTROPY = "flash_attn.ops.triton.cross_entropy"
WITHOUT_GPU = (
    f"{CROSS_ENTROPY}, a Triton kernel: OpenRLHF's own way without it, since there is no GPU;"
    " torch.cuda.set_device, current_device and synchronize: nothing, and the CPU;"
    " DeepSpeed's messages in shared memory, which it compiles: none, since there is one process"
)
ADAM = "DeepSpeed's FusedAdam, which is a GPU's: torch's AdamW"


@contextlib.contextmanager
def alone(report: dict[str, Any]) -> Iterator[None]:
    """Say what DeepSpeed's launcher tells the only process of a training, and stand in for a GPU if there is none."""
    _be_launched()
    if training.device_here().type == "cuda":
        yield
        return
    report["stand_in"] = f"{WITHOUT_GPU}; {ADAM}"
    with _without_gpu(), _with_torch_adam():
        yield


def _be_launched() -> None:
    if "MASTER_PORT" in os.environ:
        return
    os.environ["TORCH_EXTENSIONS_DIR"] = tempfile.mkdtemp()  # of a worker that ended early the lock would stay
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")  # an image is checked without a network
    own = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in own.items()})


@contextlib.contextmanager
def _without_gpu() -> Iterator[None]:
    import deepspeed.ops

    sys.modules[CROSS_ENTROPY] = None  # type: ignore[assignment]  # for good: there will be no GPU
    with (
        mock.patch.dict(deepspeed.ops.__compatible_ops__, {"deepspeed_shm_comm": False}),
        mock.patch.object(torch.cuda, "set_device", return_value=None),
        mock.patch.object(torch.cuda, "current_device", return_value="cpu"),
        mock.patch.object(torch.cuda, "synchronize", return_value=None),
    ):
        yield


@contextlib.contextmanager
def _with_torch_adam() -> Iterator[None]:
    from openrlhf.utils.deepspeed import deepspeed as strategies

    plain = strategies.get_train_ds_config

    def config(*words: Any, **options: Any) -> dict[str, Any]:
        made: dict[str, Any] = plain(*words, **options)
        if "optimizer" in made:
            made["optimizer"]["params"]["torch_adam"] = True
        return made

    with mock.patch.object(strategies, "get_train_ds_config", config):
        yield


def words_of(options: dict[str, Any]) -> list[str]:
    """The words of a command line for options by their names; those that are True have no value."""
    words = []
    for name, value in options.items():
        values = value if isinstance(value, (list, tuple)) else [] if value is True else [value]
        words += [f"--{name}", *map(str, values)]
    return words


def call_module(module: str, options: dict[str, Any]) -> None:
    """What ``python -m MODULE OPTIONS`` does, in this process."""
    with mock.patch.object(sys, "argv", [module, *words_of(options)]):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
