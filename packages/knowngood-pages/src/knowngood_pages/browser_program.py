"""`knowngood diagnose` for the browser: Python for WebAssembly, and an archive of this program with what it reads.

The page runs the command itself, so its answers are the command's. Python is that of the npm package pyodide, whose
version and digest stand in `templates/site/pyodide.json`.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import io
import json
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from knowngood.core import local_files
from knowngood.core.child_processes import end_with_parent
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.local_files import FACTS_FOLDER, RULES_FOLDER
from knowngood_diagnose.failures.known_failures import pack_known_failures

_RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
_PACKAGES = ("knowngood", "knowngood_facts", "knowngood_diagnose", "packaging", "yaml")
_DATA = ("matrix.yaml", FACTS_FOLDER, RULES_FOLDER)
KNOWN = "known_failures"
"""The file of the archive with incidents and rules as the program keeps them: a browser takes long to read them."""


def browser_files(templates: Path) -> dict[str, bytes]:
    """Return the files under `program/` of a site. `templates` is the folder with `pyodide.json`.

    Raises:
        MissingError: there is no npm, or it cannot fetch the package.
        KnowngoodError: what npm fetched is another file than the recorded one.
    """
    pinned = json.loads((templates / "pyodide.json").read_text(encoding="utf-8"))
    files = dict(_read_runtime(_fetch_package(pinned)))
    return {f"program/{name}": content for name, content in {**files, "knowngood.zip": _pack_program()}.items()}


def _fetch_package(pinned: Mapping[str, str]) -> bytes:
    """Return the npm package, from the cache folder where it is there."""
    place = local_files.cache_folder() / "pyodide" / f"pyodide-{pinned['version']}.tgz"
    if not place.is_file():
        if shutil.which("npm") is None:
            raise MissingError(
                "there is no npm, which fetches Python for the page that diagnoses logs; install Node.js"
            )
        with local_files.scratch_folder() as scratch:
            words = ["npm", "pack", "--silent", f"pyodide@{pinned['version']}", "--pack-destination", str(scratch)]
            made = subprocess.run(words, capture_output=True, text=True, check=False, preexec_fn=end_with_parent())
            if made.returncode:
                raise MissingError(f"npm cannot fetch pyodide {pinned['version']}: {made.stderr.strip()[-300:]}")
            place.parent.mkdir(parents=True, exist_ok=True)
            local_files.write_atomically(place, (scratch / place.name).read_bytes())
    content = place.read_bytes()
    digest = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if digest != pinned["integrity"]:
        place.unlink()
        raise KnowngoodError(f"{place.name} is {digest}, and templates/site/pyodide.json wants {pinned['integrity']}")
    return content


def _read_runtime(package: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        for name in _RUNTIME:
            file = archive.extractfile(f"package/{name}")
            if file is None:
                raise KnowngoodError(f"pyodide has no {name}")
            yield name, file.read()


def _pack_program() -> bytes:
    """Return a zip file of the program's modules and data, as they lie where it is installed: the same for the same."""
    target = io.BytesIO()
    files = {name: path.read_bytes() for name, path in sorted(_list_program())}
    files[KNOWN] = pack_known_failures(local_files.data_folder())
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return target.getvalue()


def _list_program() -> Iterator[tuple[str, Path]]:
    for package in _PACKAGES:
        folder = Path(str(importlib.import_module(package).__file__)).parent
        for path in folder.rglob("*.*"):
            if path.suffix in {".py", ".json"} and "_data" not in path.relative_to(folder).parts:
                yield f"{package}/{path.relative_to(folder).as_posix()}", path
    root = local_files.data_folder()
    for name in _DATA:
        paths = (root / name).rglob("*") if (root / name).is_dir() else [root / name]
        for path in paths:
            if path.is_file():
                yield f"knowngood/_data/{path.relative_to(root).as_posix()}", path
