"""flash-attn's sdists: what the setup can build, the signatures of functions, what modules import, run-time checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from knowngood.facts import import_closure, python_source
from knowngood.facts.fact_reader import FactReader, Functions, IndexedRelease, ReleaseReading, choose_sdist
from knowngood.index.artefact import Artefact, read_text_member

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    archs_by_default: tuple[str, ...] | None
    """Default of `FLASH_ATTN_CUDA_ARCHS`; None where the setup ignores that variable. `setup.py`."""
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
    sdist_size: int | None
    """Size of the sdist in bytes; index."""


def read_flash_attn(artefact: Artefact, _: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `FlashAttnFacts`)."""
    reading.take("sdist_size", lambda: artefact.size)
    setup = python_source.parse_python(read_text_member(artefact, "setup.py"), "setup.py")
    call = find_setup_keywords(setup)
    reading.take("requires_python", lambda: literal_value(call.get("python_requires")))
    reading.take("requires", lambda: literal_value(call.get("install_requires")))
    reading.take("cuda_minimum", lambda: find_cuda_minimum(setup), optional=True)
    minimum = reading.facts.get("cuda_minimum", "")
    for fact, kind in (("sass", "sm"), ("ptx", "compute")):
        reading.take(fact, partial(find_archs, setup, kind, minimum))
    reading.take("archs_by_default", lambda: find_default_archs(setup), optional=True)
    reading.take("extensions", lambda: list_extension_folders(artefact))
    reading.take_all("limits", lambda: parse_runtime_limits(read_text_member(artefact, _API_SOURCE)))
    reading.take("functions", lambda: read_function_signatures(artefact, _MODULES))
    reading.take("needs", lambda: import_closure.find_needed_modules(artefact, "flash_attn"))


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


def find_default_archs(setup: ast.Module) -> list[str] | None:
    """Return the default of `FLASH_ATTN_CUDA_ARCHS`, or `None` where the setup ignores that variable."""
    for node in ast.walk(setup):
        if isinstance(node, ast.Call) and len(node.args) == 2:
            name, default = node.args
            if literal_value(name) == "FLASH_ATTN_CUDA_ARCHS" and isinstance(text := literal_value(default), str):
                return text.split(";")
    return None


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


READERS = (
    FactReader(package="flash-attn", revision=4, model=FlashAttnFacts, choose=choose_sdist, read=read_flash_attn),
)
