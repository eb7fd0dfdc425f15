"""Why ranks do not reach each other: what NCCL says in its own words, and what each waited for at a timeout. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.name_situation import advise
from knowngood_facts.compat.incident import Incident, IncidentKind, OwnComponent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from knowngood_diagnose.failures.logs.last_errors import LastError

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
            "--machine_rank) on two machines, a launcher within a launcher (srun and torchrun, each with tasks for "
            "all GPUs), or two jobs that share one address and port."
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
            "The ranks do not call the same collective operations with the same sizes: one has other parameters, "
            "another batch, or has left out a step; or they were started with other settings of NCCL (NCCL_PROTO, "
            "NCCL_ALGO), or another release of it."
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
            "NVLS wants a running fabric manager of the driver's release, a driver that has it, and all GPUs of the "
            "machine in the container."
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
            f"The other rank told NCCL this address, which is that of {whose}. It counts on one machine only: NCCL "
            "chose the wrong one of the interfaces that the machines have."
        )
    elif "refused" in reason:
        because = (
            "The machine answers, and nothing listens on that port: the rank there has ended already (its own error "
            "comes first), or a firewall refuses the ports, which NCCL chooses at random."
        )
    else:
        because = (
            "No connection came about: a firewall between the machines drops the ports, which NCCL chooses at "
            "random, or the address is that of an interface which the other machine cannot reach."
        )
    return replace(
        incident,
        title=f"NCCL cannot connect to another rank at {address}: {reason}",
        kind=IncidentKind.CONFIG,
        because=because,
        fix=(
            advise(
                "NCCL_SOCKET_IFNAME=NAME on each machine, the interface by which they reach each other (ip addr "
                "shows the one with the right address; ^lo,docker0 leaves those out)"
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
            "NCCL prints the calls through which an error comes back, the innermost first. It arose where a rank "
            "connects to the others, before anything was exchanged: a firewall, an interface that the others cannot "
            "reach, or a rank that never came."
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


_WAIT = lazy_pattern(
    r"\[Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout: WorkNCCL\((?:SeqNum=(?P<number>\d+), )?"
    r"OpType=(?P<operation>\w+)(?:, NumelIn=(?P<size>\d+), NumelOut=\d+)?, Timeout\(ms\)=(?P<timeout>\d+)\)"
)
_WORLD = lazy_pattern(r"\b(?:world[_ ]size|num_processes|nproc_per_node|WORLD_SIZE)\b['\"]?[ =:]+(?P<ranks>\d{1,4})\b")
_TINY = 8
"""Elements: an operation that is only a barrier, or exchanges a number such as the loss or a length."""
_FIRST = 2
"""SeqNum up to which nothing was exchanged before."""
_BUSY = (
    (
        lazy_pattern(
            r"Running tokenizer|Tokenizing|Converting format|Generating \w+ split|\bMap(?: \(num_proc=\d+\))?: +\d"
        ),
        "preparing the data",
        (
            "Prepare the data before the job (tokenized_path, dataset.save_to_disk), so that no rank waits for "
            "another that tokenizes"
        ),
    ),
    (
        lazy_pattern(
            r"Saving model checkpoint|Saving (?:the )?(?:model|checkpoint|optimizer)|save_checkpoint|Writing model"
        ),
        "saving a checkpoint",
        (
            "A faster disk or a smaller checkpoint: save_only_model, less often; every rank must call the "
            "saving, also where only one writes"
        ),
    ),
    (
        lazy_pattern(
            r"\*\*\*\*\* Running (?:Evaluation|Prediction|evaluation)|\bEvaluating\b|validation (?:step|epoch)"
        ),
        "evaluating",
        (
            "The evaluation on every rank alike (the same number of batches); not on one rank alone with the "
            "others at a barrier"
        ),
    ),
    (
        lazy_pattern(r"Loading checkpoint shards|Downloading (?:shards|model|data)|Fetching \d+ files"),
        "loading or downloading the model",
        "Download before the job; a local disk, and less at once for each rank",
    ),
)
_BEFORE = 6_000


@dataclass(frozen=True, kw_only=True)
class RankWait:
    """What one rank waited for."""

    rank: int
    number: int
    """The place of the operation in the order of operations; 0 when the log does not say."""
    operation: str
    size: int
    """How many elements; -1 when the log does not say."""
    timeout: int
    """How long the rank waited before the watchdog ended it, in seconds."""


def read_waits(text: str) -> list[RankWait]:
    """Return what the ranks of a log waited for, the first wait of each rank."""
    waits: dict[int, RankWait] = {}
    for wait in _WAIT.finditer(text):
        rank = int(wait["rank"])
        waits.setdefault(
            rank,
            RankWait(
                rank=rank,
                number=int(wait["number"] or 0),
                operation=wait["operation"],
                size=int(wait["size"] or -1),
                timeout=int(wait["timeout"]) // 1000,
            ),
        )
    return [waits[rank] for rank in sorted(waits)]


def describe_timeout(incident: Incident, error: LastError) -> Incident | None:
    """Why the ranks waited; `None` where the log does not say what for."""
    text = error.log_end.decode("utf-8", "replace")
    waits = read_waits(text)
    if not waits:
        return None
    described = (
        _describe_differing(incident, waits) or _describe_late(incident, text, waits) or _describe_same(incident, waits)
    )
    if described is None:
        return None
    return replace(described, because=f"A collective operation of NCCL timed out. {described.because}")


def _describe_late(incident: Incident, text: str, waits: Sequence[RankWait]) -> Incident | None:
    """A rank that was still at something else, or that did not come at all."""
    first = waits[0]
    busy = _find_busy(text)
    if busy is not None:
        doing, fix = busy
        return replace(
            incident,
            title=f"Ranks waited {first.timeout} seconds for one that was still {doing}",
            because=(
                f"The last thing that the log shows before it is that a rank was {doing}; the others waited in "
                f"{first.operation} until the timeout."
            ),
            fix=(
                advise(fix),
                advise(
                    f"A longer timeout than {first.timeout} s: ddp_timeout=7200 of TrainingArguments, "
                    "init_process_group(timeout=...)"
                ),
                advise("Look for the first traceback, or Killed, of any rank"),
            ),
        )
    missing = _find_missing(text, waits)
    if missing:
        names = ", ".join(map(str, missing[:8]))
        return replace(
            incident,
            title=(
                f"Rank {names} did not take part in {first.operation}, for which the others waited "
                f"{first.timeout} seconds"
            ),
            because=(
                f"Ranks {', '.join(str(wait.rank) for wait in waits[:8])} say what they waited for, and "
                f"{names} does not: it ended, "
                "hangs in something else (a download, the CPU, a lock), or went another way in the code."
            ),
            fix=(
                advise(
                    f"The output of rank {names}: its first traceback (torchrun --log-dir DIR --redirects "
                    "3), or py-spy dump --pid of its process"
                ),
                advise(
                    "Every rank must run the same operations: the same number of batches, no branch for one rank alone"
                ),
                *incident.fix[1:2],
            ),
        )
    return None


def _describe_same(incident: Incident, waits: Sequence[RankWait]) -> Incident | None:
    """The operation that all ranks of the log wait for; `None` for the very first, of which another incident tells."""
    first = waits[0]
    if 0 < first.number <= _FIRST:
        return None
    if 0 <= first.size <= _TINY or first.operation == "BARRIER":
        return replace(
            incident,
            title=f"Ranks waited {first.timeout} seconds at a barrier or for a single number ({first.operation})",
            because=(
                f"The operation {first.number or ''} exchanges {max(first.size, 0)} elements: it is only there to "
                "wait for all, or to agree on a loss or a length. So the network was not busy: one rank was late "
                "(saving, evaluating, tokenizing, a slow reward or a longer row), ended, or did one step less than "
                "the others."
            ),
            fix=(
                advise("Look for the first traceback of any rank, and for what each rank printed last"),
                advise(
                    "The same number of steps on every rank: drop_last, rows divided evenly, no step left "
                    "out on one rank"
                ),
                advise(f"A longer timeout than {first.timeout} s (ddp_timeout=7200), when a rank is only slow"),
            ),
        )
    return replace(
        incident,
        title=f"All ranks seen here wait in the same {first.operation} (number {first.number}) and it does not end",
        because=(
            f"After {max(first.number - 1, 0)} operations that went well, ranks "
            f"{', '.join(str(wait.rank) for wait in waits[:8])} wait in the same one{_show_size(first.size)}. Either "
            "a rank that the log does not show did not come (it ended, or had fewer batches), or the transfer itself "
            "hangs: a link between GPUs or machines, or a GPU that failed."
        ),
        fix=(
            advise("Look for the first traceback of any rank that is not in this log, and dmesg for Xid lines"),
            advise(
                "NCCL_P2P_DISABLE=1 (between GPUs) or NCCL_IB_DISABLE=1 (between machines) for a trial: when "
                "it then runs, that way is broken"
            ),
            advise(
                "The same number of batches on every rank, and the same parameters with gradients (DDP: "
                "find_unused_parameters; experts that get no token)"
            ),
        ),
    )


def _describe_differing(incident: Incident, waits: Sequence[RankWait]) -> Incident | None:
    ways: dict[tuple[str, int, int], list[int]] = {}
    for wait in waits:
        ways.setdefault((wait.operation, wait.size, wait.number), []).append(wait.rank)
    if len({(operation, size) for operation, size, _ in ways}) < 2:
        numbers = {number for _, _, number in ways}
        if len(numbers) < 2:
            return None
    (one, first), (other, second) = list(ways.items())[:2]
    shown = [
        f"rank {', '.join(map(str, ranks[:4]))} in {way[0]}{_show_size(way[1])} (number {way[2]})"
        for way, ranks in ((one, first), (other, second))
    ]
    return replace(
        incident,
        title=f"The ranks are in different operations: {shown[0]}, {shown[1]}",
        because=(
            "Every rank must call the same operations in the same order. Here they do not, so each waits for "
            "partners that never come: one rank had another number of batches, left out a layer that its batch does "
            "not use (a row without an image, experts that get no token), ran an evaluation or a save alone, or "
            "failed and went on."
        ),
        fix=(
            advise(
                "The same way through the model on every rank: dummy inputs where a batch lacks a part, no "
                "`if rank == 0` around an operation of all"
            ),
            advise("The same number of batches: drop_last=True, even_batches, rows divided evenly"),
            advise(
                "Look for the first traceback of any rank; TORCH_NCCL_TRACE_BUFFER_SIZE=2000 (flight "
                "recorder) shows where each was"
            ),
        ),
    )


def _show_size(size: int) -> str:
    return f" of {size} elements" if size >= 0 else ""


def _find_busy(text: str) -> tuple[str, str] | None:
    """What the log shows last before the first timeout, when that is something that takes long."""
    at = text.find("Watchdog caught collective operation timeout")
    before = text[max(0, at - _BEFORE) : at]
    last = max(
        ((match.start(), doing, fix) for pattern, doing, fix in _BUSY for match in pattern.finditer(before)),
        default=None,
    )
    is_training = last is not None and re.search(r"'loss':|\bloss[ =:]", before[last[0] :]) is not None
    return (last[1], last[2]) if last is not None and not is_training else None


def _find_missing(text: str, waits: Sequence[RankWait]) -> list[int]:
    """The ranks that do not say that they waited, where the log shows how many there are."""
    stated = [int(match["ranks"]) for match in _WORLD.finditer(text)]
    count = max(stated, default=0)
    waiting = {wait.rank for wait in waits}
    if not count or max(waiting) >= count or len(waiting) < max(2, count // 2):
        return []
    return [rank for rank in range(count) if rank not in waiting]
