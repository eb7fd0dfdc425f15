"""The packages of kernels (triton, bitsandbytes, TransformerEngine): what they declare, bundle and accept."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from knowngood.index import wheel_metadata, wheel_tags
from knowngood.index.artefact import Artefact, UnreadableError, read_text_member
from knowngood.index.gpu_code import FatbinScanner, GpuCode, sort_architectures
from knowngood.index.releases import IndexedRelease, choose_wheel_by
from knowngood_facts.facts import python_source
from knowngood_facts.facts.fact_reader import FactReader, ReleaseReading, Requirements, choose_sdist

if TYPE_CHECKING:
    from collections.abc import Iterable

_RELEASE = re.compile(rb"release \d+\.\d+, V(\d+\.\d+\.\d+)")
_LAUNCHER_SOURCES = re.compile(
    r"triton/(compiler|common/build|compiler/make_launcher|runtime/build|backends/nvidia/driver)\.(py|c)"
)
_LIBCUDA = re.compile(r"[\"'](libcuda\.so(?:\.1)?)[\"']")


@dataclass(frozen=True, kw_only=True, slots=True)
class TritonFacts:
    """triton's wheel for Linux x86_64. It states no lowest compute capability; see `TorchFacts.triton_min_major`."""

    requires_python: str | None
    """PEP 440 specifier, from triton 3.4 on; METADATA."""
    pythons: tuple[str, ...] | None
    """CPython releases with a wheel; tags, those of the stable ABI up to the end of `requires_python`."""
    glibc: str | None
    """Lowest glibc; platform tag."""
    ptxas: str | None
    """Release of the bundled assembler, `12.8.93`; text in the binary. That of CUDA 13 no longer knows sm_70."""
    ptxas_blackwell: str | None
    """The same for the second assembler, which compiles for sm_100 and newer."""
    c_compiler: bool | None
    """Whether it looks for gcc or clang when the first kernel runs; `build.py` or `compiler.py`."""
    python_h: bool | None
    """Whether what it compiles then includes `Python.h`; the same files."""
    libcuda: str | None
    """File it must find to link with: `libcuda.so` (not every host has it), from 3.0 `libcuda.so.1`; the same files."""


def read_triton(artefact: Artefact, release: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `TritonFacts`)."""
    core = wheel_metadata.read_metadata(artefact)
    reading.take("requires_python", lambda: core.requires_python, optional=True)
    reading.take("pythons", lambda: wheel_tags.supported_pythons(release.files, core.requires_python))
    reading.take("glibc", lambda: wheel_tags.glibc_of_tags(artefact.file.name))
    assemblers = {path.rpartition("/")[2]: path for path in artefact.members if re.search(r"/bin/ptxas[\w-]*$", path)}
    for name in ("ptxas", "ptxas-blackwell"):
        if name in assemblers:
            reading.take(name.replace("-", "_"), partial(find_assembler_release, artefact, assemblers[name]))
    sources = [read_text_member(artefact, path) for path in artefact.members if _LAUNCHER_SOURCES.fullmatch(path)]
    if not sources:
        reason = "the files that build triton's launcher are not where they were"
        reading.unknown |= dict.fromkeys(("c_compiler", "python_h", "libcuda"), reason)
        return
    reading.take("c_compiler", lambda: any('which("gcc")' in source for source in sources))
    reading.take("python_h", lambda: any("#include <Python.h>" in source for source in sources))
    reading.take("libcuda", lambda: find_launcher_libcuda(sources))


def find_launcher_libcuda(sources: list[str]) -> str | None:
    """Return the driver's file that must be found to link with: the one without `.1` where that is named too."""
    return min((name for source in sources for name in _LIBCUDA.findall(source)), default=None)


def find_assembler_release(artefact: Artefact, member: str) -> str:
    """Return the CUDA release that an assembler names, by searching its bytes; `UnreadableError` when it names none."""

    def search() -> str:
        rest = b""
        for piece in artefact.stream(member):
            match = _RELEASE.search(rest + piece)
            if match:
                return match[1].decode()
            rest = piece[-100:]
        raise UnreadableError(f"{member} names no CUDA release")

    return str(artefact.derived(f"release of {member}", search))


_BINARY = re.compile(r"bitsandbytes/libbitsandbytes_cuda(\d\d)(\d+)\.so")
_CHOOSER = "get_cuda_bnb_library_path"
_SEARCH = "_find_cuda_libs"
_MINORS = range(10)
_FATBINS = 8  # to read of a binary that has one for each source file
_NO_FLAGS = GpuCode(sass=frozenset(), ptx=frozenset())

Architectures = Mapping[str, tuple[str, ...]]
"""CUDA release of torch -> the architectures of the binary that is loaded with it: `12.6` -> `75`, `80`."""


def takes_same_major(source: str) -> bool:
    """Return whether the code that chooses the binary looks for others; `UnreadableError` when it has another form."""
    tree = python_source.parse_python(source, "cextension.py")
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if _CHOOSER not in functions:
        raise UnreadableError(f"cextension.py has no {_CHOOSER}")
    names = {node.id for node in ast.walk(functions[_CHOOSER]) if isinstance(node, ast.Name)}
    if names & functions.keys() - {_SEARCH}:
        raise UnreadableError(f"{_CHOOSER} in cextension.py calls functions that are not understood")
    return _SEARCH in names


@dataclass(frozen=True, kw_only=True, slots=True)
class BitsandbytesFacts:
    """bitsandbytes' wheel for Linux x86_64."""

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    pythons: tuple[str, ...] | None
    """CPython releases with a Linux x86_64 wheel; tags."""
    glibc: str | None
    """Lowest glibc; platform tag."""
    binaries: tuple[str, ...] | None
    """The CUDA releases that have a binary of their own; the wheel's files."""
    takes_same_major: bool | None
    """Whether it loads another binary of the same CUDA major where the exact one is missing; `cextension.py`."""
    sass_by_cuda: Architectures | None
    """Machine code of the binary; its first fatbins."""
    ptx_by_cuda: Architectures | None
    """PTX that the driver compiles for newer GPUs; the same fatbins."""


def read_bitsandbytes(artefact: Artefact, release: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `BitsandbytesFacts`)."""
    core = wheel_metadata.read_metadata(artefact)
    reading.take("requires_python", lambda: core.requires_python, optional=True)
    pythons = wheel_tags.supported_pythons(release.files, core.requires_python)
    reading.take("pythons", lambda: pythons or None, optional=True)
    reading.take("glibc", lambda: wheel_tags.glibc_of_tags(artefact.file.name))
    members = {f"{match[1]}.{match[2]}": match[0] for match in map(_BINARY.fullmatch, artefact.members) if match}
    binaries = sorted(members, key=_release_numbers)
    reading.take("binaries", lambda: binaries or None)
    source = read_text_member(artefact, "bitsandbytes/cextension.py")
    same_major = reading.take("takes_same_major", lambda: takes_same_major(source))
    if binaries and same_major is not None:
        code = {cuda: scan_binary(artefact, members[cuda]) for cuda in binaries}
        loaded = list_loaded_binaries(binaries, same_major=same_major)
        for kind in ("sass", "ptx"):
            reading.take(f"{kind}_by_cuda", partial(_code_by_cuda, code, loaded, kind))


def list_loaded_binaries(binaries: Iterable[str], *, same_major: bool) -> dict[str, str]:
    """Return CUDA release of torch -> the binary that is loaded with it.

    With `same_major` it is the newest binary that is not newer, else the oldest, of that major; without, the exact one.
    """
    exact = {cuda: cuda for cuda in binaries}
    if not same_major:
        return exact
    loaded: dict[str, str] = {}
    for major in sorted({_release_numbers(cuda)[0] for cuda in exact}):
        own = sorted((cuda for cuda in exact if _release_numbers(cuda)[0] == major), key=_release_numbers)
        for minor in _MINORS:
            older = [cuda for cuda in own if _release_numbers(cuda) <= (major, minor)]
            loaded[f"{major}.{minor}"] = older[-1] if older else own[0]
    return loaded


def scan_binary(artefact: Artefact, member: str) -> dict[str, tuple[str, ...]]:
    """Return the machine code that the first fatbins of a binary all have, and the PTX that one of them has.

    `UnreadableError` when it has no fatbin. The fatbins that the linker adds repeat the machine code without the PTX.
    """

    def scan() -> dict[str, Any]:
        scanner = FatbinScanner(enough=_FATBINS, flags=_NO_FLAGS)  # nvcc leaves its flags in torch only
        for piece in artefact.stream(member):
            if scanner.feed(piece):
                break
        if not scanner.fatbins:
            raise UnreadableError(f"{member} has no fatbin")
        code = GpuCode(
            sass=frozenset.intersection(*(item.sass for item in scanner.fatbins)),
            ptx=frozenset.union(*(item.ptx for item in scanner.fatbins)),
        )
        return {"sass": sort_architectures(code.sass), "ptx": sort_architectures(code.ptx)}

    return {kind: tuple(names) for kind, names in artefact.derived(f"gpu-code of {member}", scan).items()}


def _code_by_cuda(
    code: Mapping[str, Mapping[str, tuple[str, ...]]], loaded: Mapping[str, str], kind: str
) -> dict[str, tuple[str, ...]]:
    return {cuda: code[binary][kind] for cuda, binary in loaded.items()}


def _release_numbers(cuda: str) -> tuple[int, int]:
    major, _, minor = cuda.partition(".")
    return int(major), int(minor)


_ATTENTION = re.compile(r"transformer_engine/pytorch/(attention|(\w+/)*(utils|backends|dot_product_attention))\.py")
_EXTRAS = ("core", "core-cu12", "core-cu13", "pytorch")
_BOUNDS = {
    "version_required": "flash_attn_minimum",
    "version_required_blackwell": "flash_attn_minimum_blackwell",
    "max_version": "flash_attn_maximum",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerEngineFacts:
    """One of TransformerEngine's four packages; the Python code is in all but `-torch`."""

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    requires: Requirements | None
    """METADATA; of `-torch` PKG-INFO, written where the sdist was made: its pin names the CUDA of that machine."""
    extras: Mapping[str, Requirements] | None
    """Extra -> what it adds; METADATA."""
    flash_attn_minimum: str | None
    """Lowest flash-attn that it uses; its attention code."""
    flash_attn_minimum_blackwell: str | None
    """The same on sm_100 and newer."""
    flash_attn_maximum: str | None
    """Highest flash-attn that it uses; its attention code."""
    flash_attn_maximum_included: bool | None
    """Whether `flash_attn_maximum` itself is still used."""
    flash_attn_imported: bool | None
    """Whether its attention code cannot be imported without flash-attn: it looks the version up outside any `try`."""
    flash_attn_asserted: bool | None
    """Whether its attention asserts the bounds on any flash-attn that is there; otherwise it leaves that one alone."""


def read_transformer_engine(artefact: Artefact, _: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `TransformerEngineFacts`)."""
    core = wheel_metadata.read_metadata(artefact)
    reading.take("requires_python", lambda: core.requires_python, optional=True)
    python = wheel_metadata.oldest_python(core.requires_python)
    reading.take("requires", lambda: wheel_metadata.requirement_map(core.requirements_on(python)))
    base = reading.facts.get("requires", {})
    extras = {}
    for extra in _EXTRAS:
        requirements = wheel_metadata.requirement_map(core.requirements_on(python, extra=extra))
        if added := {name: bound for name, bound in requirements.items() if name not in base}:
            extras[extra] = added
    reading.facts["extras"] = extras
    files = [name for name in artefact.members if _ATTENTION.fullmatch(name) and "attention" in name]
    if files:
        trees = [python_source.parse_python(read_text_member(artefact, member), member) for member in sorted(files)]
        reading.facts |= find_flash_attn_window(trees)
        reading.take("flash_attn_imported", lambda: any(map(imports_flash_attn, trees)))
        reading.take("flash_attn_asserted", lambda: any(map(asserts_flash_attn, trees)))


def find_flash_attn_window(trees: list[ast.Module]) -> dict[str, object]:
    """Return the first bounds on flash-attn that the code sets, and whether the upper bound itself is accepted."""
    bounds: dict[str, object] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            name = node.targets[0].id.removeprefix("_flash_attn_")
            fact = _BOUNDS.get(name)
            literals = python_source.string_constants(node.value) if isinstance(node.value, ast.Call) else iter(())
            if fact and fact not in bounds and (literal := next(literals, None)):
                bounds[fact] = literal
    if "flash_attn_maximum" in bounds:
        names = ("max_version", "_flash_attn_max_version")
        is_exclusive = any(_is_exclusive_maximum(tree, name) for tree in trees for name in names)
        bounds["flash_attn_maximum_included"] = not is_exclusive
    return bounds


def _is_exclusive_maximum(tree: ast.Module, name: str) -> bool:
    """Whether something is compared as `... < name`, so that the maximum itself is not accepted."""
    last = name.rsplit(".", 1)[-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for op, right in zip(node.ops, node.comparators, strict=True):
                if (
                    isinstance(op, ast.Lt)
                    and isinstance(right, ast.Name | ast.Attribute)
                    and python_source.dotted_name(right).rpartition(".")[2] == last
                ):
                    return True
    return False


def imports_flash_attn(tree: ast.Module) -> bool:
    """Return whether importing the module fails without flash-attn: it looks its version up outside `try` and `if`."""
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and "flash-attn" in python_source.string_constants(node.value)
        for node in tree.body
    )


def asserts_flash_attn(tree: ast.Module) -> bool:
    """Return whether making a `FlashAttention` asserts the upper bound on flash-attn, whatever release is there.

    An assertion under `if _flash_attn_is_installed` does not count: outside the bounds that is false.
    """
    made = python_source.find_function(tree, "FlashAttention.__init__")
    return any(
        isinstance(node, ast.Assert) and "_flash_attn_max_version" in ast.unparse(node.test)
        for node in (made.body if made else ())
    )


READERS = (
    FactReader(
        package="triton",
        revision=2,
        model=TritonFacts,
        choose=choose_wheel_by("-cp311-cp311-", "-cp310-cp310-"),
        read=read_triton,
    ),
    FactReader(
        package="bitsandbytes",
        revision=1,
        model=BitsandbytesFacts,
        choose=choose_wheel_by("manylinux"),
        read=read_bitsandbytes,
    ),
    *(
        FactReader(
            package=package, revision=3, model=TransformerEngineFacts, choose=choose, read=read_transformer_engine
        )
        for package, choose in (
            ("transformer-engine", choose_wheel_by("-any.whl")),
            ("transformer-engine-torch", choose_sdist),
            ("transformer-engine-cu12", choose_wheel_by("x86_64")),
            ("transformer-engine-cu13", choose_wheel_by("x86_64")),
        )
    ),
)
