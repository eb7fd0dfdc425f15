"""The card: its limit, what it reaches in a matrix product and in copies, and its clocks and watts while steps run.

NVML is asked through ctypes, as the smoke suite does. https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any, Callable

from smoke_tests import nvml

if TYPE_CHECKING:
    import torch

LIMITS = (("H100 NVL", 835), ("H100 PCIe", 756), ("H100", 989), ("H200", 989), ("H20", 148), ("A100", 312))
"""Dense TFLOP/s in bf16 by the words of a card's name, from the wheel of torchtitan 0.3.0 (``tools/utils.py``)."""
PROBLEMS = {8: "hardware slowdown", 32: "thermal slowdown", 64: "thermal slowdown by hardware", 128: "power brake"}
"""Bits of NVML's reasons for lower clocks that are no normal work; that of the power limit (4) is."""
POWER_LIMIT = 4
_INTERVAL = 0.1  # seconds
_PRODUCT = {"cuda": 8192, "cpu": 512}  # rows and columns of the matrices


def find_limit(name: str | None) -> float | None:
    """Return the TFLOP/s in bf16 that the maker states for a card of this name, without sparsity; None if unknown."""
    for words, limit in LIMITS:
        if name and all(word in name.split() for word in words.split()):
            return float(limit)
    return None


def measure_product(device: torch.device, seconds: float = 0.5) -> float:
    """Return the TFLOP/s of products of two square bf16 matrices."""
    import torch

    size = _PRODUCT[device.type]
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    taken = _time_calls(lambda: torch.mm(left, right), device, seconds)
    return round(2 * size**3 / taken / 1e12, 3)


def measure_parts(device: torch.device) -> dict[str, Any]:
    """Return what the parts of a machine reach: products in TFLOP/s, memory and the way to it in GB/s.

    ``card_id`` is a hash of the card's UUID: machines may share a name, and containers have one of their own.
    """
    import torch

    parts = {"product_tflops": measure_product(device, 3.0)}
    size = 2**30 if device.type == "cuda" else 2**24
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    parts["memory_gbs"] = 2 * size / _time_calls(lambda: target.copy_(source), device, 1.0) / 1e9  # read and written
    if device.type == "cuda":
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
        calls: dict[str, Callable[[], Any]] = {
            "to_card_gbs": lambda: target.copy_(host, non_blocking=True),
            "from_card_gbs": lambda: host.copy_(source, non_blocking=True),
        }
        parts.update({name: size / _time_calls(call, device, 1.0) / 1e9 for name, call in calls.items()})
    rounded: dict[str, Any] = {name: round(value, 3) for name, value in parts.items()}
    if device.type == "cuda":
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        if uuid:  # not every torch says it
            rounded["card_id"] = hashlib.sha256(str(uuid).encode()).hexdigest()[:12]  # evidence is public
    return rounded


def _time_calls(call: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Return the seconds of a call: the median over rounds of at least 50 ms that together take these seconds."""
    from smoke_tests.profiling import synchronize

    call()
    synchronize(device)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < 0.1:
        call()
        synchronize(device)
        count += 1
    count = max(1, count // 2)
    rounds = []
    end = time.perf_counter() + seconds
    while not rounds or time.perf_counter() < end:
        started = time.perf_counter()
        for _ in range(count):
            call()
        synchronize(device)
        rounds.append((time.perf_counter() - started) / count)
    return statistics.median(rounds)


class Watch:
    """Reads the card's state ten times a second, in a thread; without NVML there are no samples."""

    def __init__(self) -> None:
        self._samples: list[dict[str, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        """Start the thread that reads; each `Watch` is started once, and ended by `stop`."""
        self._thread.start()

    def stop(self) -> dict[str, Any]:
        """Read no more; return medians and extremes of what was read, empty where NVML answered nothing."""
        self._ended.set()
        self._thread.join()
        values = {key: [one[key] for one in self._samples if key in one] for key in _READERS}
        made: dict[str, Any] = {key: statistics.median(found) for key, found in values.items() if found}
        reasons = 0
        for value in values["reasons"]:
            reasons |= value
        if values["sm_mhz"]:
            made.update(samples=len(self._samples), sm_mhz_least=min(values["sm_mhz"]), reasons=reasons)
            made["processes"] = max(values["processes"], default=0)
        return made

    def _read(self) -> None:
        with nvml._library() as library:
            while library is not None and not self._ended.wait(_INTERVAL):
                self._samples.append(_read_sample(library))


def find_faults(watched: dict[str, Any]) -> list[str]:
    """Return why what was measured in this time says little about the card; nothing where NVML answered nothing."""
    faults = [f"clocks fell: {words}" for bit, words in PROBLEMS.items() if watched.get("reasons", 0) & bit]
    clock, most = watched.get("sm_mhz"), watched.get("sm_mhz_most")
    if clock and most and clock < 0.8 * most and not watched["reasons"] & POWER_LIMIT:
        faults.append(f"clocks are held at {clock:.0f} of {most:.0f} MHz, and not by the power limit")
    if watched.get("processes", 0) > 1:
        faults.append("another process ran on the card")
    return faults


def _number(library: Any, handle: Any, name: str, *arguments: int, kind: Any = ctypes.c_uint) -> int | None:
    value = kind()
    function = getattr(library, name, None)
    if function is None or function(handle, *map(ctypes.c_uint, arguments), ctypes.byref(value)):
        return None
    return int(value.value)


def _count_processes(library: Any, handle: Any) -> int | None:
    count, found = ctypes.c_uint(64), (nvml._Process * 64)()
    function = getattr(library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
    return None if function is None or function(handle, ctypes.byref(count), found) else count.value


_Reader = Callable[[Any, Any], "int | None"]
_READERS: dict[str, _Reader] = {
    "milliwatts": lambda library, handle: _number(library, handle, "nvmlDeviceGetPowerUsage"),
    "milliwatts_limit": lambda library, handle: _number(library, handle, "nvmlDeviceGetEnforcedPowerLimit"),
    "celsius": lambda library, handle: _number(library, handle, "nvmlDeviceGetTemperature", 0),
    "sm_mhz": lambda library, handle: _number(library, handle, "nvmlDeviceGetClockInfo", 1),
    "sm_mhz_most": lambda library, handle: _number(library, handle, "nvmlDeviceGetMaxClockInfo", 1),
    "memory_mhz": lambda library, handle: _number(library, handle, "nvmlDeviceGetClockInfo", 2),
    "pcie_generation": lambda library, handle: _number(library, handle, "nvmlDeviceGetCurrPcieLinkGeneration"),
    "pcie_lanes": lambda library, handle: _number(library, handle, "nvmlDeviceGetCurrPcieLinkWidth"),
    "reasons": lambda library, handle: _number(
        library, handle, "nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong
    ),
    "processes": _count_processes,
}


def _read_sample(library: Any) -> dict[str, int]:
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(nvml._index()), ctypes.byref(handle)):
        return {}
    read = {}
    for name, reader in _READERS.items():
        with contextlib.suppress(OSError, ctypes.ArgumentError):
            value = reader(library, handle)
            if value is not None:
                read[name] = value
    return read
