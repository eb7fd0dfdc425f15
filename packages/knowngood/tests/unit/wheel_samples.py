"""A compiled wheel of a few bytes and its record, for tests of where such wheels come from."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import zipfile
from pathlib import Path

from knowngood.lock import wheelhouse
from knowngood.lock.cell_lock import Distribution

CUBINS = Path(__file__).with_name("cubins")
"""Libraries with the code that nvcc 13.0.88 makes of `kernel.cu`, each for one `-gencode`, which its name states."""


def pack_libraries(libraries):
    """Return the bytes of a wheel with libraries: name -> the files of `cubins/` that it consists of."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, parts in libraries.items():
            content = b"".join((CUBINS / f"{part}.so").read_bytes() for part in parts)
            archive.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


CONTENT = pack_libraries({"flash_attn_2_cuda.so": ["sm_90"]})
VERSION = "2.8.3.post2+cu13torch2.11cxx11abitrue.sm90"
FILE = f"flash_attn-{VERSION}-cp311-cp311-linux_x86_64.whl"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
LOCKED = Distribution(name="flash-attn", version=VERSION, file=FILE, sha256=SHA256, size=len(CONTENT))

INPUTS = {"sdist": {"file": "flash_attn-2.8.3.post2.tar.gz", "sha256": "1" * 64}, "architectures": ["90"]}


def record(content=CONTENT, **inputs):
    """The record of the wheel, as `knowngood compile` writes it beside a wheel with this content."""
    inputs = INPUTS | inputs
    made = {"code": ["90"], "versions": {"nvcc": "13.0.88"}, "attempts": [{"seconds": 7585.0}], "jobs": 2}
    return wheelhouse.WheelRecord(
        wheel=FILE,
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        key=wheelhouse.wheel_key(inputs),
        inputs=inputs,
        made=made,
    )


def fill_folder(folder, content=CONTENT):
    """Put a file under the wheel's name into a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(content)
    return folder


def without_attempts(item):
    """The record as it is committed: without what differs from one compile to the next."""
    return dataclasses.replace(item, made={name: item.made[name] for name in ("code", "versions")})
