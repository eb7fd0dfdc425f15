"""A rank without torch, for the tests of the launcher: each check's layout says what the rank of `mode` does."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time


def sleep_forever() -> None:
    time.sleep(600)


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    rank = int(os.environ["RANK"])
    with os.fdopen(int(sys.argv[1]), "w") as answers:

        def tell(document: dict) -> None:
            answers.write(json.dumps(document) + "\n")
            answers.flush()

        tell({"ready": True})
        for check in json.loads(sys.argv[3]):
            tell({"known": {"losses": [1.0]}})
            if rank == 1 and check["layout"] == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            if rank == 1 and check["layout"] == "hang":
                sleep_forever()
            tell({"outcome": "pass", "reason": "", "process": os.getpid()})


if __name__ == "__main__":
    main()
