"""Sees everything: the environment's files, the machine, its GPUs. The edge that fills `seen.Seen`."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from knowngood.doctor import dlopen, elf, environment, machine, nvml
from knowngood.doctor.library import Library
from knowngood.doctor.linking import Linked, Linker
from knowngood.doctor.seen import Binary, Python, Seen, Shadow, Torch
from knowngood.doctor.shelf import Files
from knowngood.torchfiles import build_constants, compiler_bounds, cxx11abi

_LIBRARY = re.compile(r"\.so(\.\d+)*$")
_TAG = re.compile(r"\.(cpython-[^.]+)\.so$")
_TORCH = re.compile(r"lib(torch|c10)(_\w+)?\.so")
_OF_TORCH = re.compile(rb"_ZNK?(3c10|2at|5torch)")


def look(named: str | None, environ: Mapping[str, str], say: Callable[[str], None]) -> Seen:
    """See the environment of an interpreter on this machine."""
    python = environment.find(named, environ)
    shelf = Files()
    say("reading the environment's metadata")
    found = environment.installed(python.folders)
    torch = _torch(python.folders)
    compiled = extensions(python, torch, environ)
    paths = [*libraries(python.folders), *compiled]
    shelves = Shelves(python=python, shelf=shelf, environ=environ, installed=found, compiled=compiled)
    say(f"reading {len(paths)} libraries")
    return Seen(
        python=python,
        distributions=found.distributions,
        broken=found.broken,
        overlaps=found.overlaps,
        torch=torch,
        binaries=tuple(shelves.binaries(paths)),
        shadows=tuple(shelves.shadows()),
        nvidia=nvml.look(),
        machine=machine.look(python, shelf, environ),
    )


def libraries(folders: Iterable[str]) -> Iterator[str]:
    """Every shared library in folders of distributions; other folders on PYTHONPATH are not searched."""
    for folder in folders:
        if not re.search(r"(site|dist)-packages$", folder) and not any(Path(folder).glob("*.dist-info")):
            continue
        for place, below, names in os.walk(folder):
            below[:] = [name for name in below if name not in ("__pycache__", "include")]
            yield from (f"{place}/{name}" for name in sorted(names) if _LIBRARY.search(name))


def extensions(python: Python, torch: Torch | None, environ: Mapping[str, str]) -> dict[str, str]:
    """What torch compiled for this Python and CUDA, deepspeed's operations say: path -> the folder that is made anew.

    torch keeps them by Python and CUDA, not by its own release: they outlive an upgrade of it.
    """
    if torch is None or not python.version:
        return {}
    root = environ.get("TORCH_EXTENSIONS_DIR")
    place = Path(root) if root else machine.cache_home(environ) / "torch_extensions"
    tag = f"py{''.join(python.version.split('.')[:2])}_{'cu' + torch.cuda.replace('.', '') if torch.cuda else 'cpu'}"
    return {
        str(path): str(path.parent)
        for folder in ({place} if root else set()) | {place / tag}
        for path in sorted(folder.glob("*/*.so"))
    }


def _torch(folders: Iterable[str]) -> Torch | None:
    for folder in folders:
        place = Path(folder) / "torch"
        try:
            build = build_constants((place / "version.py").read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        abi, bounds = None, {}
        try:
            abi = cxx11abi((place / "lib" / "libc10.so").read_bytes())
            bounds = compiler_bounds((place / "utils" / "cpp_extension.py").read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            pass
        cuda = build.get("cuda")
        return Torch(
            version=str(build.get("__version__", "")), cuda=str(cuda) if cuda else None, cxx11abi=abi, gcc=bounds
        )
    return None


@dataclass(kw_only=True)
class Shelves:
    """The environment's libraries, linked as a process that imports torch first would link them."""

    python: Python
    shelf: Files
    environ: Mapping[str, str]
    installed: environment.Installed
    compiled: Mapping[str, str]
    """Path of an extension that torch compiled -> its folder."""
    _libraries: dict[str, Library] = field(default_factory=dict)
    _linkers: tuple[Linker, Linker] | None = None
    _packages: dict[str, tuple[dlopen.Loads, list[Library]]] = field(default_factory=dict)

    def binaries(self, paths: Iterable[str]) -> Iterator[Binary]:
        """All of them, damaged and missing ones too."""
        listed = list(paths)
        for path in listed:
            if library := self.shelf.library(path):
                self._libraries[path] = library
        self._linkers = self._make_linkers()
        beside = self._beside()
        for path in listed:
            if path in self._libraries:
                yield self._binary(self._libraries[path], beside)
            elif path in self.shelf.damaged:
                yield Binary(path=self._short(path), distribution=self._owner(path), damaged=self._damage(path))
        for path in self.installed.sizes.keys() - set(listed):
            if _LIBRARY.search(path) and not Path(path).exists():
                text = "it stands in RECORD and is not there"
                yield Binary(path=self._short(path), distribution=self._owner(path), damaged=text)

    def shadows(self) -> Iterator[Shadow]:
        """Where LD_LIBRARY_PATH changes what is loaded."""
        if self._linkers is None or not self._linkers[0].library_path:
            return
        for linker in self._linkers:
            bare = Linker(shelf=self.shelf, wheels=linker.wheels, loaded=linker.loaded)
            seen = set()
            for library in self._libraries.values():
                if (linker is self._linkers[0]) != self._is_torchs(library):
                    continue
                for name in library.needed:
                    taken, instead = linker.find(name, [library]), bare.find(name, [library])
                    if taken and instead and not _same(taken, instead) and name not in seen:
                        seen.add(name)
                        yield Shadow(name=name, taken=taken.path, instead=instead.path, by=self._short(library.path))

    def _make_linkers(self) -> tuple[Linker, Linker]:
        """Of torch's own libraries, and of all others, which find torch's loaded."""
        wheels = [
            str(place)
            for folder in self.python.folders
            for place in sorted(Path(folder).glob("nvidia/*/lib"))
            if place.is_dir()
        ]
        named = [item for item in self.environ.get("LD_LIBRARY_PATH", "").split(":") if item]
        interpreter = self.shelf.library(os.path.realpath(self.python.path))
        first = Linker(shelf=self.shelf, wheels=wheels, library_path=named)
        everywhere = first.closure(interpreter).libraries if interpreter else ()
        own = Linker(shelf=self.shelf, wheels=wheels, library_path=named, everywhere=everywhere)
        loaded: dict[str, Library] = {}
        for library in self._libraries.values():
            if self._is_torchs(library) and library.name in ("libtorch_python.so", "libtorch_global_deps.so"):
                loaded |= {item.soname or item.name: item for item in own.closure(library).libraries}
        return own, Linker(shelf=self.shelf, wheels=wheels, library_path=named, everywhere=everywhere, loaded=loaded)

    def _linker(self, library: Library) -> Linker:
        assert self._linkers is not None  # noqa: S101 - binaries() made them
        return self._linkers[0 if self._is_torchs(library) else 1]

    def _is_torchs(self, library: Library) -> bool:
        return any(library.path.startswith(f"{folder}/torch/") for folder in self.python.folders)

    def _beside(self) -> dict[str, list[Library]]:
        """Path -> the libraries that Python loads for certain and that load it."""
        found: dict[str, list[Library]] = defaultdict(list)
        for library in self._libraries.values():
            if library.importable or self._uses_torch(library):
                for item in self._linker(library).closure(library).libraries:
                    found[item.path].append(library)
        return found

    @cached_property
    def _preloaded(self) -> list[Library]:
        """NVIDIA's wheels, which packages that load a library on demand load before it, for all to see."""
        return [library for path, library in self._libraries.items() if "/nvidia/" in path and "/lib/" in path]

    def _uses_torch(self, library: Library) -> bool:
        return not self._is_torchs(library) and any(_TORCH.fullmatch(name) for name in library.needed)

    def _binary(self, library: Library, beside: Mapping[str, list[Library]]) -> Binary:
        tag = _TAG.search(library.path)
        other = tag[1] if tag and self.python.tag and tag[1] != self.python.tag else ""
        loads, own = self._loads(self._package(library.path))
        others = beside.get(library.path, self._preloaded)
        if loads.everywhere and library.importable:
            others = [*others, *own]
        lazily = loads.lazily and not library.importable
        linked = Linked() if other else self._linker(library).link(library, others, lazily=lazily)
        return Binary(
            path=self._short(library.path),
            distribution=self._owner(library.path),
            cache=self.compiled.get(library.path, ""),
            used=library.path in beside,
            torch=self._uses_torch(library),
            module=library.importable,
            other_python=other,
            code=library.code,
            linked=linked,
            demangled={text: elf.demangled(text) for text in linked.undefined if text.startswith("_Z")},
            cxx11abi=passed_strings(library) if self._uses_torch(library) else None,
            numpy_1=library.numpy_1,
            glibc=library.demanded("GLIBC_"),
            glibcxx=library.demanded("GLIBCXX_"),
        )

    def _package(self, path: str) -> str:
        """The folder of the import package that a library lies in; empty for one that lies in none."""
        folder = next((item for item in self.python.folders if path.startswith(f"{item}/")), None)
        name, inside, _ = path.removeprefix(f"{folder}/").partition("/") if folder else ("", "", "")
        return f"{folder}/{name}" if inside and name != "torch" else ""

    def _loads(self, package: str) -> tuple[dlopen.Loads, list[Library]]:
        """How a package loads what it brings, and what that is."""
        if not package:
            return dlopen.Loads(), []
        if package not in self._packages:
            libraries = self._libraries.items()
            own = [item for path, item in libraries if path.startswith(f"{package}/") and not item.importable]
            self._packages[package] = (dlopen.of(Path(package)) if own else dlopen.Loads(), own)
        return self._packages[package]

    def _owner(self, path: str) -> str | None:
        if folder := self.compiled.get(path):
            return f"{Path(folder).name} of torch_extensions"
        return self.installed.owners.get(path)

    def _damage(self, path: str) -> str:
        recorded = self.installed.sizes.get(path)
        more = f"; RECORD has {recorded:,}" if recorded is not None and recorded != Path(path).stat().st_size else ""
        return self.shelf.damaged[path] + more

    def _short(self, path: str) -> str:
        folder = next((item for item in self.python.folders if path.startswith(f"{item}/")), None)
        return path.removeprefix(f"{folder}/") if folder else path


def _same(one: Library, other: Library) -> bool:
    return one.path == other.path or os.path.realpath(one.path) == os.path.realpath(other.path)


def passed_strings(library: Library) -> bool | None:
    """Whether the strings that a library passes to torch are those of C++11's ABI; `None` when it passes none."""
    names = [name for name in library.undefined if _OF_TORCH.match(name)]
    if any(b"NSt7__cxx11" in name for name in names):
        return True
    old = (name for name in names if b"Ss" in name)
    return False if any("std::string" in elf.demangled(name.decode(errors="replace")) for name in old) else None
