"""Why ranks wait for each other until the watchdog ends them, by what each says it waited for. Pure.

The watchdog prints for every rank the operation, its number in the order of operations, and how large it is. Ranks that
wait for different operations took different ways; one that is not among them is the one that did not come.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from knowngood.compat.incident import Incident
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.names.name_situation import advise

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
                f"The operation {first.number or ''} exchanges {max(first.size, 0)} elements: it is only "
                "there to wait for all, or to "
                "agree on a loss or a length. So the network was not busy: one rank was late (saving, "
                "evaluating, tokenizing, a "
                "slow reward or a longer row), ended, or did one step less than the others."
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
            f"{', '.join(str(wait.rank) for wait in waits[:8])} wait in "
            f"the same one{_show_size(first.size)}. Either a rank that the log "
            "does not show did not come "
            "(it ended, or had fewer batches), or the transfer itself hangs: a link between GPUs or "
            "machines, or a GPU that failed."
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
            "partners that never come: "
            "one rank had another number of batches, left out a layer that its batch does not use (a row "
            "without an image, experts "
            "that get no token), ran an evaluation or a save alone, or failed and went on."
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
