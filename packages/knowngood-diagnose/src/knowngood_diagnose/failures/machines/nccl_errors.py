"""Why ranks do not reach each other: what NCCL says in its own words, and what each waited for at a timeout. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.name_situation import advise
from knowngood_facts.compat.incident import Incident

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


OWN_WORDS = {
    "same-rank": lazy_pattern(r"Bootstrap Root : rank (?P<rank>\d+) of (?P<ranks>\d+) ranks has already checked in"),
    "other-counts": lazy_pattern(
        r"Bootstrap Root : mismatch in (?:rank count|info) from procs?,? ?(?P<counts>[^\n]{1,80})"
    ),
    "other-releases": lazy_pattern(
        r"Mismatched NCCL version detected : rank (?P<a>\d+) version (?P<one>\d+) rank (?P<b>\d+) "
        r"version (?P<other>\d+)"
    ),
    "other-operations": lazy_pattern(
        r"[Mm]essage truncated : (?:received|receiving) (?P<got>[\d,]+) bytes instead of (?P<wanted>[\d,]+)"
    ),
    "no-multicast": lazy_pattern(r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory[^\n]{0,120}"),
    "lost-connection": lazy_pattern(
        r"(?:call to|Call to) (?:recv|send|write|read)[^\n]{0,60}(?:failed|returned)[ "
        r":]+(?P<how>Connection (?:reset by peer|refused|timed out)|Broken pipe|No route to host)"
    ),
}
"""The name of a variant of the incident -> the words of NCCL that show it, with groups for the fields."""
_OWN_LINES = lazy_pattern(r"NCCL WARN [^\n]{1,600}|Last error: ?[^\n]{0,300}(?:\n[^\n]{1,600})?")
"""The lines in which NCCL says why it fails; those with INFO tell what it does."""


def describe_nccl(incident: Incident, error: LastError) -> Incident | None:
    """What NCCL's words say of the failure; `None` where they say no more than its kind."""
    text = error.log_end.decode("utf-8", "replace")
    own = "\n".join(match[0] for match in _OWN_LINES.finditer(text))
    for name, words in OWN_WORDS.items():
        if stated := words.search(own):
            return incident.tell(name, **{key: value or "" for key, value in stated.groupdict().items()})
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
    return replace(incident.tell("unreached", address=address, reason=reason), because=because)


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
    return incident.tell("returned", file=first["file"], kind=kind, shown=shown)


def describe_duplicate(incident: Incident, error: LastError) -> Incident | None:
    """Which program put two ranks on one GPU, where it is an engine that has no launcher of the user's."""
    text = error.log_end.decode("utf-8", "replace")
    if not re.search(r"\bvllm\b|\bsglang\b", text):
        return None
    sizes = [int(match[1]) for match in _PARALLEL.finditer(text)]
    wanted = math.prod(sizes) if sizes else 0
    return incident.tell(
        "duplicate",
        wanted_gpus=f": the sizes in the command want {wanted} GPUs." if wanted > 1 else ".",
        count=f" ({wanted})" if wanted > 1 else "",
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
        return incident.tell("late", timeout=first.timeout, doing=doing, operation=first.operation, fix=fix)
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
        return incident.tell(
            "barrier",
            timeout=first.timeout,
            operation=first.operation,
            number=first.number or "",
            size=max(first.size, 0),
        )
    return incident.tell(
        "same",
        operation=first.operation,
        number=first.number,
        before=max(first.number - 1, 0),
        waits=", ".join(str(wait.rank) for wait in waits[:8]),
        size=_show_size(first.size),
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
    return incident.tell("differing", one=shown[0], other=shown[1])


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
