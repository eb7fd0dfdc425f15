"""One rank: joins the others, runs the checks it is given one after the other, and answers on a pipe of its own.

``python -m parallel_tests.rank_worker FD BACKEND CHECKS``, where CHECKS is a JSON list. The lines out are those of
``smoke_tests.worker``. It ends after an error, or a refusal that left a collective: other ranks may be waiting there.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from typing import Any


def main() -> None:
    """Join the group of ranks, run the checks in the third argument, and write an answer to each as a line of JSON."""
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # so that the launcher learns where a rank hangs
    backend, checks = sys.argv[2], json.loads(sys.argv[3])
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as answers:

        def tell(document: dict[str, Any]) -> None:
            answers.write(json.dumps(document) + "\n")
            answers.flush()

        from parallel_tests import rank_checks, world
        from smoke_tests import worker

        worker.TOPICS["parallel"] = "parallel_tests.rank_checks"
        rank_checks.Place.world = world.join(backend)
        tell({"ready": True})
        for check in checks:
            result = worker.perform(check, tell)
            tell(result)
            if result.get("exception") or result.get("left"):
                break


if __name__ == "__main__":
    status = 1
    try:
        main()
        status = 0
    except BaseException:  # noqa: BLE001 - it ends in either case
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # a process group whose other ranks are gone does not always end
