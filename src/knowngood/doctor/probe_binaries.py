"""Links the libraries of an environment as a process that imports torch first would. An edge: it reads files.

Nothing is loaded. How a package loads its own libraries is read in its source: TransformerEngine, for example, loads
its core with RTLD_GLOBAL before its extension, which finds the core's functions only because of that.
"""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.doctor.elf_reader import DynamicLinker, LinkResult, MachineLibraries, SharedLibrary, demangle_symbol
from knowngood.doctor.system_state import InstalledBinary, PythonInterpreter, ShadowedLibrary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from knowngood.doctor.python_environment import EnvironmentContents

LIBRARY_NAME = re.compile(r"\.so(\.\d+)*$")
_PYTHON_TAG = re.compile(r"\.(cpython-[^.]+)\.so$")
_TORCH_LIBRARY = re.compile(r"lib(torch|c10)(_\w+)?\.so")
_TORCH_SYMBOL = re.compile(rb"_ZNK?(3c10|2at|5torch)")


@dataclass(frozen=True, kw_only=True)
class DlopenFlags:
    """The flags with which a package calls `ctypes.CDLL`."""

    everywhere: bool = False
    """RTLD_GLOBAL: libraries that are loaded later see the symbols."""
    lazily: bool = False
    """RTLD_LAZY: a function that is not defined anywhere is missed when it is called, not before."""


def read_dlopen_flags(package: Path) -> DlopenFlags:
    """Return the flags in the `__init__.py` of a package and of the packages directly below it; nothing is run."""
    flags: set[str] = set()
    for path in (package / "__init__.py", *sorted(package.glob("*/__init__.py"))):
        flags |= set(_list_flags(path))
    return DlopenFlags(everywhere="RTLD_GLOBAL" in flags, lazily="RTLD_LAZY" in flags)


def _list_flags(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text))) if "CDLL" in text else []
    except (OSError, ValueError, SyntaxError):
        return
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "CDLL":
            for keyword in (item for item in node.keywords if item.arg == "mode"):
                yield from (item.attr for item in ast.walk(keyword.value) if isinstance(item, ast.Attribute))


class EnvironmentLibraries:
    """The libraries of an environment and the two linkers that they need."""

    def __init__(  # noqa: PLR0913 - what an environment consists of
        self,
        paths: Sequence[str],
        *,
        python: PythonInterpreter,
        source: MachineLibraries,
        contents: EnvironmentContents,
        compiled: Mapping[str, str],
        library_path: Sequence[str],
    ) -> None:
        """Read the libraries at `paths`.

        `compiled` maps the paths of extensions that torch compiled to their folders; `library_path` has the folders of
        LD_LIBRARY_PATH.
        """
        self._paths, self._python, self._source = paths, python, source
        self._contents, self._compiled = contents, compiled
        self._packages: dict[str, tuple[DlopenFlags, list[SharedLibrary]]] = {}
        self._libraries = {path: library for path in paths if (library := source.library(path))}
        self._torch_linker, self._linker = self._create_linkers(library_path)
        self._loaders = self._find_loaders()

    def binaries(self) -> Iterator[InstalledBinary]:
        """Yield all libraries, with the damaged ones, and with those that RECORD lists and that are missing."""
        for path in self._paths:
            if path in self._libraries:
                yield self._describe(self._libraries[path])
            elif path in self._source.damaged:
                yield self._describe_damaged(path, self._explain_damage(path))
        for path in self._contents.sizes.keys() - set(self._paths):
            if LIBRARY_NAME.search(path) and not Path(path).exists():
                yield self._describe_damaged(path, "RECORD lists it, and the file is not there")

    def shadows(self) -> Iterator[ShadowedLibrary]:
        """Yield the libraries that LD_LIBRARY_PATH replaces, each once for torch and once for all others."""
        for linker in (self._torch_linker, self._linker) if self._linker.library_path else ():
            bare = DynamicLinker(source=self._source, wheel_folders=linker.wheel_folders, loaded=linker.loaded)
            reported = set()
            for library in (item for item in self._libraries.values() if self._linker_for(item) is linker):
                for name in library.needed:
                    taken, instead = linker.find_library(name, [library]), bare.find_library(name, [library])
                    if taken and instead and not _is_same_file(taken, instead) and name not in reported:
                        reported.add(name)
                        by = self._relative_path(library.path)
                        yield ShadowedLibrary(name=name, taken=taken.path, instead=instead.path, by=by)

    def _create_linkers(self, library_path: Sequence[str]) -> tuple[DynamicLinker, DynamicLinker]:
        """Return the linker of torch's own libraries, and that of all others, for which torch's are loaded."""
        wheel_folders = [
            str(path)
            for folder in self._python.folders
            for path in sorted(Path(folder).glob("nvidia/*/lib"))
            if path.is_dir()
        ]

        def create(**scope: Any) -> DynamicLinker:
            return DynamicLinker(source=self._source, wheel_folders=wheel_folders, library_path=library_path, **scope)

        interpreter = self._source.library(os.path.realpath(self._python.path))
        global_scope = create().closure(interpreter).libraries if interpreter else ()
        torch_linker = create(global_scope=global_scope)
        loaded: dict[str, SharedLibrary] = {}
        for library in self._libraries.values():
            if self._is_torchs(library) and library.name in ("libtorch_python.so", "libtorch_global_deps.so"):
                loaded |= {item.linked_name: item for item in torch_linker.closure(library).libraries}
        return torch_linker, create(global_scope=global_scope, loaded=loaded)

    def _linker_for(self, library: SharedLibrary) -> DynamicLinker:
        return self._torch_linker if self._is_torchs(library) else self._linker

    def _is_torchs(self, library: SharedLibrary) -> bool:
        return any(library.path.startswith(f"{folder}/torch/") for folder in self._python.folders)

    def _uses_torch(self, library: SharedLibrary) -> bool:
        return not self._is_torchs(library) and any(_TORCH_LIBRARY.fullmatch(name) for name in library.needed)

    def _find_loaders(self) -> dict[str, list[SharedLibrary]]:
        """Return path -> the libraries that Python certainly loads and that load the one at the path."""
        loaders: dict[str, list[SharedLibrary]] = defaultdict(list)
        for library in self._libraries.values():
            if library.importable or self._uses_torch(library):
                for item in self._linker_for(library).closure(library).libraries:
                    loaders[item.path].append(library)
        return loaders

    @cached_property
    def _nvidia_libraries(self) -> list[SharedLibrary]:
        """Those of NVIDIA's wheels: packages that load a library on demand load them before it, with RTLD_GLOBAL."""
        return [library for path, library in self._libraries.items() if "/nvidia/" in path and "/lib/" in path]

    def _describe(self, library: SharedLibrary) -> InstalledBinary:
        tag = _PYTHON_TAG.search(library.path)
        other_python = tag[1] if tag and self._python.tag and tag[1] != self._python.tag else ""
        uses_torch = self._uses_torch(library)
        linked = LinkResult() if other_python else self._link(library)
        return InstalledBinary(
            path=self._relative_path(library.path),
            distribution=self._owner(library.path),
            cache=self._compiled.get(library.path, ""),
            used=library.path in self._loaders,
            torch=uses_torch,
            module=library.importable,
            other_python=other_python,
            code=library.code,
            linked=linked,
            demangled={text: demangle_symbol(text) for text in linked.undefined if text.startswith("_Z")},
            cxx11abi=passed_string_abi(library) if uses_torch else None,
            numpy_1=library.numpy_1,
            glibc=library.newest_demanded("GLIBC_"),
            glibcxx=library.newest_demanded("GLIBCXX_"),
        )

    def _describe_damaged(self, path: str, damage: str) -> InstalledBinary:
        return InstalledBinary(path=self._relative_path(path), distribution=self._owner(path), damaged=damage)

    def _link(self, library: SharedLibrary) -> LinkResult:
        beside = self._loaders.get(library.path, self._nvidia_libraries)
        flags, own = self._package_libraries(library.path)
        if flags.everywhere and library.importable:
            beside = [*beside, *own]
        return self._linker_for(library).link(library, beside, lazily=flags.lazily and not library.importable)

    def _package_libraries(self, path: str) -> tuple[DlopenFlags, list[SharedLibrary]]:
        """Return how the import package of a library loads its own libraries, and what those are."""
        folder = self._folder(path)
        name, inside, _ = path.removeprefix(f"{folder}/").partition("/") if folder else ("", "", "")
        if not inside or name == "torch":
            return DlopenFlags(), []
        package = f"{folder}/{name}"
        if package not in self._packages:
            libraries = self._libraries.items()
            own = [item for path, item in libraries if path.startswith(f"{package}/") and not item.importable]
            self._packages[package] = (read_dlopen_flags(Path(package)) if own else DlopenFlags(), own)
        return self._packages[package]

    def _owner(self, path: str) -> str | None:
        if folder := self._compiled.get(path):
            return f"{Path(folder).name} of torch_extensions"
        return self._contents.owners.get(path)

    def _explain_damage(self, path: str) -> str:
        recorded = self._contents.sizes.get(path)
        more = f"; RECORD has {recorded:,}" if recorded is not None and recorded != Path(path).stat().st_size else ""
        return self._source.damaged[path] + more

    def _folder(self, path: str) -> str | None:
        return next((item for item in self._python.folders if path.startswith(f"{item}/")), None)

    def _relative_path(self, path: str) -> str:
        return path.removeprefix(f"{self._folder(path)}/")


def _is_same_file(one: SharedLibrary, other: SharedLibrary) -> bool:
    return one.path == other.path or os.path.realpath(one.path) == os.path.realpath(other.path)


def passed_string_abi(library: SharedLibrary) -> bool | None:
    """Return whether the strings that a library passes to torch are of the C++11 ABI; `None` when it passes none."""
    symbols = [symbol for symbol in library.undefined if _TORCH_SYMBOL.match(symbol)]
    if any(b"NSt7__cxx11" in symbol for symbol in symbols):
        return True
    old = (demangle_symbol(symbol.decode(errors="replace")) for symbol in symbols if b"Ss" in symbol)
    return False if any("std::string" in text for text in old) else None
