"""flash-attn's sdists and flash-attn-4's wheels: what they can build, signatures, imports, checks, accepted GPUs."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from knowngood.index import wheel_metadata
from knowngood.index.artefact import Artefact, UnreadableError, read_text_member
from knowngood.index.releases import IndexedRelease, choose_wheel_by
from knowngood_facts.facts import python_source
from knowngood_facts.facts.build_reader import read_passed_standard
from knowngood_facts.facts.fact_reader import (
    AdditionalWheel,
    FactReader,
    Functions,
    ReleaseReading,
    Requirements,
    choose_sdist,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MODULES = (
    "flash_attn/flash_attn_interface.py",
    "flash_attn/bert_padding.py",
    "flash_attn/layers/rotary.py",
    "flash_attn/ops/layer_norm.py",
    "flash_attn/ops/rms_norm.py",
    "flash_attn/ops/triton/layer_norm.py",
    "flash_attn/ops/triton/rotary.py",
    "flash_attn/losses/cross_entropy.py",
    "hopper/flash_attn_interface.py",
)
_TARGET = re.compile(r"arch=compute_(\w+),code=(sm|compute)_(\w+)")

_API_SOURCE = "csrc/flash_attn/flash_api.cpp"
_COMMENT = re.compile(r"//[^\n]*")
_GPU_CHECK = re.compile(r"TORCH_CHECK\((is_\w+(?: \|\| is_\w+)*),\s*\"FlashAttention only supports (?:Ampere|Turing)")
_HEAD_DIM = re.compile(r"TORCH_CHECK\(head_size(?:_og)? <= (\d+)")
_BACKWARD = re.compile(r"\"FlashAttention backward for (.+?) requires A100")
_DTYPE = re.compile(r"q_dtype == torch::k(Float16|BFloat16)")
_DTYPES = {"Float16": "float16", "BFloat16": "bfloat16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashAttnFacts:
    """flash-attn's sdist (the index has no wheel of it)."""

    requires_python: str | None
    """PEP 440 specifier; `setup.py`."""
    requires: tuple[str, ...] | None
    """`install_requires`; `setup.py`. torch is named without bounds."""
    cuda_minimum: str | None
    """Release of nvcc below which the setup refuses to build; `setup.py`."""
    sass: Mapping[str, str] | None
    """Architecture that it can build machine code for -> lowest nvcc that can; `setup.py`."""
    ptx: Mapping[str, str] | None
    """The same for PTX."""
    newer_than_sm90: bool | None
    """Whether its check at run time accepts GPUs newer than sm_90. Where it does not, it refuses them with
    "only supports Ampere GPUs or newer", whatever it was compiled for; `flash_api.cpp`."""
    head_dim_maximum: int | None
    """Highest head dimension; `flash_api.cpp`."""
    backward_needs_sm80_or_sm90: str | None
    """Head dimensions whose backward pass needs exactly sm_80 or sm_90, as its message says; empty: none."""
    dtypes: tuple[str, ...] | None
    """Data types of query, key and value; `flash_api.cpp`."""
    extensions: tuple[str, ...] | None
    """Folders of `csrc` with a setup of their own, which installing flash-attn does not build; the list of files."""
    functions: Functions | None
    """Module-level functions of its interface, padding, rotary and norm modules."""
    needs: Mapping[str, tuple[str, ...]] | None
    """Module -> modules of other packages that importing it needs, without torch, guarded imports and what importing
    `flash_attn` itself needs. `rotary_emb`, `dropout_layer_norm`, ... are compiled extensions. A module of flash_attn
    that is named here is imported but missing from the sdist (`flash_attn.ops.triton.rotary` in 2.1.2.post3)."""
    cxx_standard: int | None
    """The C++ standard that its build passes to the compiler, 17 for C++17; `setup.py`."""


def read_flash_attn(artefact: Artefact, _: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `FlashAttnFacts`)."""
    setup = python_source.parse_python(read_text_member(artefact, "setup.py"), "setup.py")
    call = find_setup_keywords(setup)
    reading.take("requires_python", lambda: literal_value(call.get("python_requires")))
    reading.take("requires", lambda: literal_value(call.get("install_requires")))
    reading.take("cuda_minimum", lambda: find_cuda_minimum(setup), optional=True)
    minimum = reading.facts.get("cuda_minimum", "")
    for fact, kind in (("sass", "sm"), ("ptx", "compute")):
        reading.take(fact, partial(find_archs, setup, kind, minimum))
    reading.take("extensions", lambda: list_extension_folders(artefact))
    reading.take_all("limits", lambda: parse_runtime_limits(read_text_member(artefact, _API_SOURCE)))
    reading.take("functions", lambda: read_function_signatures(artefact, _MODULES))
    reading.take("needs", lambda: find_needed_modules(artefact, "flash_attn"))


def parse_runtime_limits(source: str) -> dict[str, Any]:
    """Return the facts that the run-time checks in `flash_api.cpp` state; others are left out."""
    code = _COMMENT.sub("", source)
    backward = _BACKWARD.search(code)
    limits: dict[str, Any] = {
        "backward_needs_sm80_or_sm90": backward[1] if backward else "",
        "dtypes": sorted({_DTYPES[name] for name in _DTYPE.findall(code)}),
    }
    if gpus := _GPU_CHECK.search(code):
        limits["newer_than_sm90"] = gpus[1].endswith("_min")
    if head_dims := [int(number) for number in _HEAD_DIM.findall(code)]:
        limits["head_dim_maximum"] = min(head_dims)
    return limits


def find_setup_keywords(setup: ast.Module) -> dict[str, ast.expr]:
    """Return the keywords of the call of `setup(...)`."""
    for node in ast.walk(setup):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setup":
            return {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    return {}


def literal_value(node: ast.expr | None) -> object:
    """Return the value of a literal, or `None` for anything else."""
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def find_archs(setup: ast.Module, kind: str, minimum: str) -> dict[str, str]:
    """Return the architectures of one kind -> the lowest CUDA, which is `minimum` where the setup has no condition."""
    return {arch: floor or minimum for known, arch, floor in list_nvcc_targets(setup) if known == kind}


def list_nvcc_targets(setup: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield what the setup can tell nvcc to build: `sm` or `compute`, the architecture, and the lowest CUDA.

    The lowest CUDA is that of the `if` around it, or empty.
    """

    def visit(node: ast.AST, floor: str) -> Iterator[tuple[str, str, str]]:
        if isinstance(node, ast.If):
            floors = python_source.version_floors(node.test)
            for then in node.body:
                yield from visit(then, floors[0] if floors else floor)
            for otherwise in node.orelse:
                yield from visit(otherwise, floor)
            return
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for match in _TARGET.finditer(node.value):
                yield match[2], match[3], floor
        for child in ast.iter_child_nodes(node):
            yield from visit(child, floor)

    yield from visit(setup, "")


def find_cuda_minimum(setup: ast.Module) -> str | None:
    """Return the nvcc below which the setup raises: the highest `if bare_metal_version < Version("11.7"): raise`."""
    minimums: list[tuple[int, ...]] = []
    for node in ast.walk(setup):
        if not isinstance(node, ast.If) or not any(isinstance(child, ast.Raise) for child in node.body):
            continue
        test = node.test
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Lt):
            minimums += [
                tuple(map(int, name.split(".")))
                for name in python_source.string_constants(test)
                if re.fullmatch(r"\d+\.\d+", name)
            ]
    return ".".join(map(str, max(minimums))) if minimums else None


def list_extension_folders(artefact: Artefact) -> list[str]:
    """Return the folders of `csrc` with a setup of their own; installing flash-attn does not build them."""
    return sorted(member.split("/")[1] for member in artefact.members if re.fullmatch(r"csrc/[^/]+/setup\.py", member))


def read_function_signatures(artefact: Artefact, members: tuple[str, ...]) -> dict[str, list[object]]:
    """Return dotted name of each module-level function -> its parameters and how many values it returns."""
    signatures: dict[str, list[object]] = {}
    for member in members:
        if member not in artefact.members:
            continue
        tree = python_source.parse_python(read_text_member(artefact, member), member)
        module = member.removesuffix(".py").replace("/", ".")
        for name, node in python_source.list_functions(tree):
            if "." not in name:
                signatures.setdefault(
                    f"{module}.{name}",
                    [python_source.render_signature(node), python_source.count_returned_values(node, tree)],
                )
    return signatures


def list_module_files(artefact: Artefact, package: str) -> dict[str, str]:
    """Return dotted module name -> member path, for every module of a package in the artefact."""
    paths: dict[str, str] = {}
    for member in artefact.members:
        if member.startswith(f"{package}/") and member.endswith(".py"):
            name = member.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            if all(part.isidentifier() for part in name.split(".")):
                paths[name] = member
    return paths


def find_needed_modules(artefact: Artefact, package: str) -> dict[str, list[str]]:
    """Return module -> top-level modules of other packages that importing it needs.

    The entry of the package itself has what every module needs; the others only list what they need beyond that.
    Guarded imports (`try`, `if`) are not needed; the standard library and torch are left out. A module of the package
    that is imported but not in the artefact is named in full, because then the import fails. A module without further
    needs is left out, and so is one that does not parse.
    """
    files = list_module_files(artefact, package)
    direct: dict[str, tuple[list[str], list[str]]] = {}
    for name, member in files.items():
        try:
            tree = python_source.parse_python(read_text_member(artefact, member), member)
        except UnreadableError:
            continue
        direct[name] = python_source.list_imports(tree, name, is_package=member.endswith("/__init__.py"))
    folders = {parent for name in files for parent in _parents(name)}
    needs = {name: _foreign(name, direct, package, folders) for name in direct}
    common = needs.get(package, frozenset())
    rest = {name: sorted(names - common) for name, names in sorted(needs.items()) if name != package}
    return {package: sorted(common)} | {name: names for name, names in rest.items() if names}


def _foreign(
    start: str, direct: Mapping[str, tuple[list[str], list[str]]], package: str, known: set[str]
) -> frozenset[str]:
    visited: set[str] = set()
    foreign: set[str] = set()
    todo = _parents(start)
    while todo:
        name = todo.pop()
        if name in visited:
            continue
        visited.add(name)
        top = name.partition(".")[0]
        if top == package:
            modules, taken = direct.get(name, ([], []))
            foreign |= {wanted for wanted in modules if wanted.partition(".")[0] == package and wanted not in known}
            todo += [parent for wanted in (*modules, *taken) for parent in _parents(wanted)]
        elif top and top not in sys.stdlib_module_names and top != "torch":
            foreign.add(top)
    return frozenset(foreign)


def _parents(name: str) -> list[str]:
    """Return `a`, `a.b` and `a.b.c` for `a.b.c`: importing the last one imports all of them."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


_INTERFACE = "flash_attn/cute/interface.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashAttn4Facts:
    """The wheel of a flash-attn-4 release."""

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    requires: Requirements | None
    """Distribution -> specifier that it requires; METADATA."""
    forward_majors: tuple[int, ...] | None
    """Major compute capabilities that the forward pass accepts; `_flash_attn_fwd` in `interface.py`."""
    backward_majors: tuple[int, ...] | None
    """The same for the backward pass, so for training; `_flash_attn_bwd`."""
    functions: Functions | None
    """Module-level functions of `interface.py`."""
    needs: tuple[str, ...] | None
    """Modules of other packages that importing `flash_attn.cute.interface` needs."""


def read_flash_attn_4(artefact: Artefact, _: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `FlashAttn4Facts`)."""
    core = wheel_metadata.read_metadata(artefact)
    reading.take("requires_python", lambda: core.requires_python)
    python = wheel_metadata.oldest_python(core.requires_python)
    reading.take("requires", lambda: wheel_metadata.requirement_map(core.requirements_on(python)))
    tree = python_source.parse_python(read_text_member(artefact, _INTERFACE), _INTERFACE)
    for fact, name in (("forward_majors", "_flash_attn_fwd"), ("backward_majors", "_flash_attn_bwd")):
        reading.take(fact, partial(find_accepted_majors, tree, name))
    reading.take("functions", lambda: read_function_signatures(artefact, (_INTERFACE,)))
    reading.take("needs", lambda: find_needed_modules(artefact, "flash_attn").get("flash_attn.cute.interface"))


def find_accepted_majors(tree: ast.Module, name: str) -> list[int]:
    """Return the major compute capabilities in a function's first `assert arch // 10 in [9, 10, 11]` (or `arch in`).

    `UnreadableError` when there is no such function or assertion.
    """
    node = python_source.find_function(tree, name)
    if node is None:
        raise UnreadableError(f"interface.py has no {name}")
    asserts = [part for part in ast.walk(node) if isinstance(part, ast.Assert)]
    for test in (part.test for part in sorted(asserts, key=lambda part: part.lineno)):
        if (
            isinstance(test, ast.Compare)
            and isinstance(test.ops[0], ast.In)
            and isinstance(test.comparators[0], ast.List | ast.Tuple)
            and any(word in ast.unparse(test.left) for word in ("arch", "compute_capability"))
        ):
            return [int(item) for item in ast.literal_eval(test.comparators[0])]
    raise UnreadableError(f"{name} asserts no compute capability where it did")


READERS = (
    FactReader(
        package="flash-attn",
        revision=4,
        model=FlashAttnFacts,
        choose=choose_sdist,
        read=read_flash_attn,
        additional=(AdditionalWheel(choose=choose_sdist, facts=("cxx_standard",), read=read_passed_standard),),
    ),
    FactReader(
        package="flash-attn-4",
        revision=2,
        model=FlashAttn4Facts,
        choose=choose_wheel_by("-any.whl"),
        read=read_flash_attn_4,
    ),
)
