"""Faults of a worker, made on purpose: what the suite says of them is tested, they test nothing of an image.

Run with ``--faults`` only, and each is predicted to fail.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import torch


def run(check: dict[str, Any], report: dict[str, Any]) -> None:
    """Hang, crash, or use up the memory."""
    report["losses"] = [1.0]  # what was seen before the fault
    {"hang": _hang, "segfault": _segfault, "out-of-memory": _use_up_memory, "kernel": _bad_kernel}[check["detail"]]()


def _hang() -> None:
    if torch.cuda.is_available():
        torch.cuda._sleep(1 << 42)  # a kernel that spins for half an hour
        torch.cuda.synchronize()
    time.sleep(600)


def _segfault() -> None:
    ctypes.string_at(0)


def _use_up_memory() -> None:
    if torch.cuda.is_available():
        held = []
        while True:
            held.append(torch.empty(8 << 30, dtype=torch.uint8, device="cuda"))
    bytearray(1 << 62)


def _bad_kernel() -> None:
    """An index out of bounds in a kernel poisons the process's CUDA context; on the CPU it is an ordinary error."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    table = torch.zeros(4, device=device)
    print(table[torch.tensor([1 << 20], device=device)].sum().item())
