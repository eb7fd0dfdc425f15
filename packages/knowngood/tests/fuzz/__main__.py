"""Search for damaged inputs that the program answers wrongly: `nox -s fuzz`, or `python tests/fuzz --help`.

It replays the kept examples first, then searches until the time is over. The seed is printed; `--seed N` repeats a
search. Each failing input is written into `tests/fuzz/examples/`, made as small as possible; commit it with the
correction, and every later run and the unit tests replay it.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import hypothesis
import targets
from hypothesis import HealthCheck, Phase

EXAMPLES = Path(__file__).with_name("examples")
_EXAMPLES_OF_A_ROUND = 12


def main() -> int:
    """Fuzz for some time; the result is 1 when something failed."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long to search (default: 60)")
    parser.add_argument("--seed", type=int, help="repeat the search with this seed")
    parser.add_argument("--only", action="append", help="only this target; can be repeated")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}: `nox -s fuzz -- --seed {seed}` repeats this", flush=True)
    every = targets.list_targets()
    chosen = [every[name] for name in arguments.only or every]
    failures = [target for target, data in read_examples() if not _replay(every[target], data)]
    counts: Counter[str] = Counter()
    end = time.monotonic() + arguments.seconds
    rounds = 0
    while time.monotonic() < end and (sound := [target for target in chosen if target.name not in failures]):
        for target in sound:
            if time.monotonic() < end:
                failures += [] if _search(target, seed + rounds, counts, end) else [target.name]
        rounds += 1
    codes = ", ".join(f"{count} with exit {code}" for code, count in sorted(counts.items()))
    print(f"{sum(counts.values())} damaged inputs over {len(chosen)} targets: {codes or 'none'}")
    print(f"failed: {', '.join(failures)}" if failures else "none was answered wrongly")
    return 1 if failures else 0


def read_examples() -> list[tuple[str, bytes]]:
    """Return the kept examples: the target's name and the bytes."""
    return [(path.name.rpartition("--")[0], path.read_bytes()) for path in sorted(EXAMPLES.glob("*--*"))]


def _replay(target: targets.FuzzTarget, data: bytes) -> bool:
    try:
        targets.check_target(target, data)
    except Exception:  # noqa: BLE001 - whatever the program raises is the failure
        print(f"the kept example of {target.name} fails:\n{traceback.format_exc()}", flush=True)
        return False
    return True


def _search(target: targets.FuzzTarget, seed: int, counts: Counter[str], end: float) -> bool:
    """Search one round; the result is false, and the smallest input is kept, when one is answered wrongly."""
    failing: list[bytes] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=_EXAMPLES_OF_A_ROUND,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @hypothesis.given(target.examples())
    def attempt(data: bytes) -> None:
        if not failing and time.monotonic() > end:
            return
        try:
            answer = targets.check_target(target, data)
        except Exception:
            failing.append(data)
            raise
        counts[str(answer.code)] += 1

    try:
        attempt()
    except Exception:  # noqa: BLE001 - whatever the program raises is the failure
        smallest = failing[-1]
        path = EXAMPLES / f"{target.name}--{hashlib.sha256(smallest).hexdigest()[:12]}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(smallest)
        lines = traceback.format_exc().splitlines()
        text = "\n".join(line for line in lines if "hypothesis" not in line)[-3000:]
        print(f"FAILED {target.name} (seed {seed}), kept in {path}:\n{text}", flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
