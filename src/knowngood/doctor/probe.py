"""Observes everything that the doctor judges: the environment's files, the machine, its GPUs. An edge."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from knowngood.core.notify import Notify
from knowngood.doctor import probe_gpus, probe_machine, python_environment
from knowngood.doctor.elf_reader import MachineLibraries
from knowngood.doctor.probe_binaries import LIBRARY_NAME, EnvironmentLibraries
from knowngood.doctor.system_state import InstalledTorch, PythonInterpreter, SystemState
from knowngood.facts.torch_files import detect_cxx11abi, parse_build_constants, parse_compiler_bounds


def read_system_state(named: str | None, environ: Mapping[str, str], notify: Notify) -> SystemState:
    """Observe this machine and the environment of an interpreter.

    `named` is the value of --python. Raises `MissingError` when there is no such interpreter.
    """
    python = python_environment.find_interpreter(named, environ)
    source = MachineLibraries()
    notify("reading the environment's metadata")
    contents = python_environment.read_distributions(python.folders)
    torch = _read_torch(python.folders)
    compiled = list_torch_extensions(python, torch, environ)
    paths = [*list_libraries(python.folders), *compiled]
    notify(f"reading {len(paths)} libraries")
    libraries = EnvironmentLibraries(
        paths,
        python=python,
        source=source,
        contents=contents,
        compiled=compiled,
        library_path=[folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder],
    )
    return SystemState(
        python=python,
        distributions=tuple(contents.distributions),
        broken=contents.broken,
        overlaps=contents.overlaps,
        torch=torch,
        binaries=tuple(libraries.binaries()),
        shadows=tuple(libraries.shadows()),
        nvidia=probe_gpus.read_nvidia_state(),
        machine=probe_machine.read_machine_state(python, source, environ),
    )


def list_libraries(folders: Iterable[str]) -> Iterator[str]:
    """Yield every shared library in folders of distributions; other folders on PYTHONPATH are not searched."""
    for folder in folders:
        if not re.search(r"(site|dist)-packages$", folder) and not any(Path(folder).glob("*.dist-info")):
            continue
        for place, below, names in os.walk(folder):
            below[:] = [name for name in below if name not in ("__pycache__", "include")]
            yield from (f"{place}/{name}" for name in sorted(names) if LIBRARY_NAME.search(name))


def list_torch_extensions(
    python: PythonInterpreter, torch: InstalledTorch | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return what torch compiled for this Python and CUDA, such as deepspeed's operations.

    The result maps the path of a library to its folder; torch compiles it again when that folder is removed. torch
    keeps these folders by Python and CUDA, not by its own release, so they outlive an upgrade of torch.
    """
    if torch is None or not python.version:
        return {}
    root = environ.get("TORCH_EXTENSIONS_DIR")
    place = Path(root) if root else probe_machine.user_cache_folder(environ) / "torch_extensions"
    tag = f"py{''.join(python.version.split('.')[:2])}_{'cu' + torch.cuda.replace('.', '') if torch.cuda else 'cpu'}"
    return {
        str(path): str(path.parent)
        for folder in ({place} if root else set()) | {place / tag}
        for path in sorted(folder.glob("*/*.so"))
    }


def _read_torch(folders: Iterable[str]) -> InstalledTorch | None:
    for folder in folders:
        place = Path(folder) / "torch"
        try:
            build = parse_build_constants((place / "version.py").read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        abi, bounds = None, {}
        try:
            abi = detect_cxx11abi((place / "lib" / "libc10.so").read_bytes())
            bounds = parse_compiler_bounds((place / "utils" / "cpp_extension.py").read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            pass
        version, cuda = str(build.get("__version__", "")), build.get("cuda")
        return InstalledTorch(version=version, cuda=str(cuda) if cuda else None, cxx11abi=abi, gcc=bounds)
    return None
