"""Judges how fast the parts of this machine are, against what was measured on other nodes with the same card. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from knowngood.evidence import speed_runs
from knowngood_diagnose.doctor.doctor_line import BAD, UNKNOWN, WARN, DoctorLine

_GOOD, _POOR = 0.9, 0.75
"""From the first share of known good on a part is fine; below the second it is bad."""
_USUALLY = {
    "product_tflops": "the clocks are low: heat, a lower power limit or locked clocks; or another process computes",
    "memory_gbs": "another process uses the card's memory, or rows of it were remapped after ECC errors",
    "to_card_gbs": "the PCIe link has fewer lanes or an older generation than the card could use",
    "from_card_gbs": "the PCIe link has fewer lanes or an older generation than the card could use",
    "tokens_a_second": "where the parts are fine, the CPU starts kernels too slowly: too few cores, or other work",
}
_LOOK = {
    "product_tflops": "nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE says which",
    "memory_gbs": "nvidia-smi -q -d ECC,ROW_REMAPPER,PIDS says which",
    "to_card_gbs": "nvidia-smi -q has the link under `GPU Link Info`; seat the card in another slot",
    "from_card_gbs": "nvidia-smi -q has the link under `GPU Link Info`; seat the card in another slot",
    "tokens_a_second": "look at the load of the host, and at OMP_NUM_THREADS and CPU limits of the container",
}


def judge_speed(report: Mapping[str, Any], known: Mapping[str, tuple[float, int]]) -> Iterator[DoctorLine]:
    """Judge a report of the speed suite.

    `known` has for each part its median over other nodes with this card, and their number.
    """
    environment = report["environment"]
    gpu = environment.get("gpu") or "the CPU"
    results = [report.get("parts", {}), *report["points"].values()]
    for fault in dict.fromkeys(fault for result in results for fault in result.get("faults", ())):
        fix = "end what else runs on the card, let it cool, then ask again"
        yield DoctorLine("speed:disturbed", "measuring", fault).judged(WARN, "what was measured then is left out", fix)
    for result in results:
        if result["outcome"] != "pass":
            observation = f"{result['reason']} {result.get('message') or ''}".strip()
            yield DoctorLine("speed:not-measured", "measuring", observation).judged(UNKNOWN, "it was not measured")
    measured = speed_runs.read_parts(report)
    shares = []
    for part, value in measured.items():
        line = DoctorLine(f"speed:{part}", speed_runs.PARTS[part], f"{value:,.4g}")
        if part not in known:
            yield line.judged(UNKNOWN, f"no known-good range yet: no other node with {gpu} was measured")
            continue
        good, nodes = known[part]
        shares.append(value / good)
        text = f"{value:,.4g}: {value / good:.0%} of known good for {gpu}, {good:,.4g} (nodes: {nodes})"
        line = DoctorLine(line.id, line.subject, text)
        if value < _GOOD * good:
            line = line.judged(BAD if value < _POOR * good else WARN, f"usually {_USUALLY[part]}", _LOOK[part])
        yield line
    if shares:
        yield DoctorLine("speed", "this node", f"{min(shares):.0%} of known good for {gpu}, by its slowest part")
