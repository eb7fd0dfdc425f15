"""observe.py REPORT PROGRAM [ARGUMENT ...]: run a program as `python PROGRAM` would, and write down what it did.

Runs under any Python 3.8 or newer with the standard library alone. The report names no folder of the machine: a frame's
file is told as it is found on the module search path.
"""

import json
import os
import runpy
import sys
import time
import traceback
from importlib.metadata import distributions


def place(path, roots):
    """A source file as below the folder that it is imported from."""
    inside = [root for root in roots if path.startswith(root + os.sep)]
    return path[len(max(inside, key=len)) + 1 :] if inside else os.path.basename(path)


def main(report, program, arguments):
    roots = [os.path.abspath(root) for root in sys.path if root]
    sys.argv = [program, *arguments]
    began, seen = time.monotonic(), None
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            seen = error
            raise
    except BaseException as error:
        seen = error
        raise
    finally:
        exception = None
        if seen is not None:
            frames = [frame for frame in traceback.extract_tb(seen.__traceback__) if frame.filename != __file__]
            exception = {
                "type": type(seen).__name__,
                "text": str(seen),
                "where": [f"{place(f.filename, roots)}:{f.lineno} {f.name}" for f in frames[-4:]],
            }
        found = {item.metadata["Name"]: item.version for item in distributions() if item.metadata["Name"]}
        with open(report, "w") as file:
            json.dump(
                {
                    "exception": exception,
                    "seconds": round(time.monotonic() - began, 2),
                    "python": ".".join(map(str, sys.version_info[:3])),
                    "packages": dict(sorted(found.items(), key=lambda item: item[0].lower())),
                },
                file,
            )


main(sys.argv[1], sys.argv[2], sys.argv[3:])
