"""What NCCL says of a failure in its own words: whose address it could not reach, which ranks it saw twice. Pure.

The words are those of NCCL's library. They stand in a line with NCCL WARN, or behind "Last error:" of torch's message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from knowngood.compat.incident import Incident, IncidentKind, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise

_CONNECT = lazy_pattern(
    r"[Cc]onnect to (?P<address>\[?[\da-fA-F.:%]+?\]?)<(?P<port>\d+)> (?:failed|returned|to fail)(?: with error)?[ :]*"
    r"(?P<reason>[A-Z][a-z]+(?: [a-z]+){0,6})?"
)
_RETURNED = lazy_pattern(
    r"NCCL INFO (?P<file>[\w/]+\.(?:cc|cu|h)):\d+ -> (?P<code>[1-6])\b(?: \((?P<errno>[A-Z][\w ]+)\))?"
)
_CODES: Mapping[str, str] = {
    "1": "unhandled CUDA error",
    "2": "system error",
    "3": "internal error",
    "4": "invalid argument",
    "5": "invalid usage",
    "6": "remote error",
}
"""The numbers with which calls of NCCL return (ncclResult_t of nccl.h)."""
_PARALLEL = lazy_pattern(r"(?:tensor|pipeline|data)[-_]parallel[-_]size[ =]+(\d{1,3})\b")
_VIRTUAL = (
    ("172.17.", "the bridge of Docker (docker0)"),
    ("192.168.122.", "the bridge of libvirt (virbr0)"),
    ("169.254.", "a link-local address, which an interface without a configuration has"),
    ("127.", "this machine itself (lo)"),
)
"""How addresses begin that belong to one machine only."""


@dataclass(frozen=True, kw_only=True)
class _Words:
    """Words of NCCL, and what they mean."""

    words: re.Pattern[str]
    title: str
    """With fields for the groups of the pattern."""
    because: str
    fixes: tuple[str, ...]
    component: str = OwnComponent.NCCL


_FAMILIES = (
    _Words(
        words=lazy_pattern(r"Bootstrap Root : rank (?P<rank>\d+) of (?P<ranks>\d+) ranks has already checked in"),
        title="Two processes call themselves rank {rank} of {ranks}",
        because=(
            "Every process must have a rank of its own. Two came with the same one: the same --node_rank (or "
            "--machine_rank) on "
            "two machines, a launcher within a launcher (srun and torchrun, each with tasks for all GPUs), "
            "or two jobs that "
            "share one address and port."
        ),
        fixes=(
            "Another --node_rank on each machine, and the same --nnodes and --nproc_per_node on all",
            (
                "Under Slurm: one task a node with torchrun (--ntasks-per-node=1), or one task a GPU without it, "
                "whose RANK is SLURM_PROCID"
            ),
            "A MASTER_PORT of its own for each job; end what is left of an earlier one",
        ),
        component=OwnComponent.YOUR_CODE,
    ),
    _Words(
        words=lazy_pattern(r"Bootstrap Root : mismatch in (?:rank count|info) from procs?,? ?(?P<counts>[^\n]{1,80})"),
        title="The processes do not agree on how many they are: {counts}",
        because=(
            "Processes of different jobs, or started with different numbers of machines or GPUs, met at the "
            "same address and port."
        ),
        fixes=(
            "The same --nnodes, --nproc_per_node and world size on all machines",
            "A MASTER_PORT of its own for each job; end what is left of an earlier one",
        ),
        component=OwnComponent.YOUR_CODE,
    ),
    _Words(
        words=lazy_pattern(
            r"Mismatched NCCL version detected : rank (?P<a>\d+) version (?P<one>\d+) rank (?P<b>\d+) "
            r"version (?P<other>\d+)"
        ),
        title="The ranks run different releases of NCCL: rank {a} {one}, rank {b} {other}",
        because=(
            "All ranks of a job must load the same release of NCCL, which comes with torch's wheels "
            "(nvidia-nccl), or from LD_LIBRARY_PATH."
        ),
        fixes=(
            (
                "The same image or environment on all machines (python -c 'import torch; "
                "print(torch.cuda.nccl.version())')"
            ),
            "unset LD_LIBRARY_PATH and LD_PRELOAD where they bring another libnccl.so.2",
        ),
    ),
    _Words(
        words=lazy_pattern(
            r"[Mm]essage truncated : (?:received|receiving) (?P<got>[\d,]+) bytes instead of (?P<wanted>[\d,]+)"
        ),
        title="Two ranks are in different operations: {got} bytes came where {wanted} were expected",
        because=(
            "The ranks do not call the same collective operations with the same sizes: one has other "
            "parameters, another batch, or "
            "has left out a step; or they were started with other settings of NCCL (NCCL_PROTO, NCCL_ALGO), "
            "or another release of it."
        ),
        fixes=(
            (
                "The same number of steps and of parameters with gradients on every rank (an empty batch, "
                "experts that get no token, a branch taken on one rank only)"
            ),
            "The same environment on all machines: NCCL's variables and its release",
        ),
        component=OwnComponent.YOUR_CODE,
    ),
    _Words(
        words=lazy_pattern(r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory[^\n]{0,120}"),
        title="NCCL cannot make NVLink's multicast memory",
        because=(
            "NVLS wants a running fabric manager of the driver's release, a driver that has it, and all GPUs "
            "of the machine in the "
            "container."
        ),
        fixes=(
            "NCCL_NVLS_ENABLE=0",
            "systemctl status nvidia-fabricmanager on the host: running, and of the driver's release",
        ),
        component=OwnComponent.DRIVER,
    ),
    _Words(
        words=lazy_pattern(
            r"(?:call to|Call to) (?:recv|send|write|read)[^\n]{0,60}(?:failed|returned)[ "
            r":]+(?P<how>Connection (?:reset by peer|refused|timed out)|Broken pipe|No route to host)"
        ),
        title="NCCL lost the connection to another rank: {how}",
        because=(
            "The rank at the other end of this connection ended, or a device between the machines dropped "
            "it. Every rank that is "
            "left says this, so the first error of any other rank is the cause; without one it is the network."
        ),
        fixes=(
            (
                "Look for the first traceback, or Killed, of any rank: torchrun --log-dir DIR --redirects 3 "
                "keeps the output of each"
            ),
            "Without one: the interface (NCCL_SOCKET_IFNAME), its MTU, and firewalls that drop idle connections",
        ),
    ),
)
_OWN_WORDS = lazy_pattern(r"NCCL WARN [^\n]{1,600}|Last error: ?[^\n]{0,300}(?:\n[^\n]{1,600})?")
"""The lines in which NCCL says why it fails; those with INFO tell what it does."""
_PASSING = "NCCL lost the connection"


def describe_nccl(incident: Incident, error: LastError) -> Incident | None:
    """What NCCL's words say of the failure; `None` where they say no more than its kind."""
    text = error.log_end.decode("utf-8", "replace")
    own = "\n".join(match[0] for match in _OWN_WORDS.finditer(text))
    for family in _FAMILIES:
        if stated := family.words.search(own):
            title = family.title.format(**{name: value or "" for name, value in stated.groupdict().items()})
            return replace(
                incident,
                title=title,
                kind=incident.kind if title.startswith(_PASSING) else IncidentKind.CONFIG,
                component=family.component,
                because=f"NCCL says so in its own words. {family.because}",
                fix=tuple(advise(fix) for fix in family.fixes),
            )
    return _describe_returned(incident, text)


def describe_unreached(incident: Incident, error: LastError) -> Incident | None:
    """Which address NCCL could not connect to, and whose such an address is."""
    stated = _CONNECT.search(error.log_end.decode("utf-8", "replace"))
    if stated is None:
        return None
    address, reason = stated["address"].strip("[]"), stated["reason"] or "no answer"
    whose = next((name for begin, name in _VIRTUAL if address.startswith(begin)), "")
    if whose:
        because = (
            f"The other rank told NCCL this address, which is that of {whose}. It counts on one machine "
            "only: NCCL chose the "
            "wrong one of the interfaces that the machines have."
        )
    elif "refused" in reason:
        because = (
            "The machine answers, and nothing listens on that port: the rank there has ended already (its "
            "own error comes "
            "first), or a firewall refuses the ports, which NCCL chooses at random."
        )
    else:
        because = (
            "No connection came about: a firewall between the machines drops the ports, which NCCL chooses "
            "at random, or the "
            "address is that of an interface which the other machine cannot reach."
        )
    return replace(
        incident,
        title=f"NCCL cannot connect to another rank at {address}: {reason}",
        kind=IncidentKind.CONFIG,
        because=because,
        fix=(
            advise(
                "NCCL_SOCKET_IFNAME=NAME on each machine, the interface by which they reach each other (ip "
                "addr shows the one with "
                "the right address; ^lo,docker0 leaves those out)"
            ),
            advise(
                "Open all ports between the machines, in the firewall and in the container (--network=host): "
                "MASTER_PORT alone is "
                "not enough. net.ipv4.ip_local_port_range narrows the ports where only some can be opened"
            ),
            advise("Look for an error of the other rank that came before"),
        ),
    )


def _describe_returned(incident: Incident, text: str) -> Incident | None:
    """The chain of calls that NCCL prints as it returns an error: file, number, and the system's own word."""
    calls = list(_RETURNED.finditer(text))
    if not calls:
        return None
    first = calls[0]
    errno = first["errno"] or ""
    kind = _CODES[first["code"]]
    of_socket = "socket" in first["file"] or "bootstrap" in first["file"]
    shown = f" ({errno})" if errno else ""
    if not of_socket and first["code"] != "2":
        return None
    return replace(
        incident,
        title=f"NCCL's {first['file']} returned a {kind}{shown}: the ranks do not reach each other",
        kind=IncidentKind.CONFIG,
        because=(
            "NCCL prints the calls through which an error comes back, the innermost first. It arose where a "
            "rank connects to the "
            "others, before anything was exchanged: a firewall, an interface that the others cannot reach, "
            "or a rank that never came."
        ),
        fix=(
            advise("NCCL_SOCKET_IFNAME=NAME on each machine, the interface by which they reach each other"),
            advise("Open all ports between the machines, in the firewall and in the container (--network=host)"),
            advise("All ranks started at once, with the same world size; the first error of any other rank"),
        ),
    )


def describe_duplicate(incident: Incident, error: LastError) -> Incident | None:
    """Which program put two ranks on one GPU, where it is an engine that has no launcher of the user's."""
    text = error.log_end.decode("utf-8", "replace")
    if not re.search(r"\bvllm\b|\bsglang\b", text):
        return None
    sizes = [int(match[1]) for match in _PARALLEL.finditer(text)]
    wanted = math.prod(sizes) if sizes else 0
    return replace(
        incident,
        because=(
            f"{incident.because} The engine starts its processes itself"
            + (f": the sizes in the command want {wanted} GPUs." if wanted > 1 else ".")
        ),
        fix=(
            advise(
                "CUDA_VISIBLE_DEVICES with as many GPUs as tensor x pipeline x data parallel size"
                + (f" ({wanted})" if wanted > 1 else "")
                + ", or smaller sizes; no CUDA_VISIBLE_DEVICES that is set again for each process"
            ),
            advise(
                "A newer release of the engine, when enough GPUs are visible: older ones put data-parallel ranks "
                "on the same one"
            ),
        ),
    )
