"""What a file of `facts/` may hold: its keys, and the type of every fact that a reader of this program records.

`KnownFacts` repeats the models of the readers, because `check` starts in a fraction of the time that importing them
takes; a test compares the two. The facts of a package with another reader are checked against the model of that reader.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict, get_args, get_origin, get_type_hints

from pydantic import Field

from knowngood.core import json_document
from knowngood.core.errors import InputError
from knowngood_facts.facts.fact_store import LINES_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

VersionKey = Annotated[
    str, Field(pattern=r"^[0-9]{1,12}(\.[0-9]{1,12}){0,9}((a|b|rc)[0-9]{1,9})?(\.(post|dev)[0-9]{1,9})*$")
]
"""A release as a key: a normalized version."""
Count = Annotated[int, Field(ge=0, le=2**53)]

_Texts = list[str] | None
_Requirements = dict[str, str] | None
_TextTable = dict[str, list[str]] | None
_Functions = dict[str, list[str | list[Count]]] | None


class _CommonFacts(TypedDict, total=False):
    """The facts that have one form in all packages."""

    aarch64_cuda: str | None
    aarch64_ptx: _Texts
    aarch64_sass: _Texts
    accelerate: str | None
    attention: _Texts
    backward_majors: list[Count] | None
    backward_needs_sm80_or_sm90: str | None
    binaries: _Texts
    c_compiler: bool | None
    compiled_when_used: bool | None
    cuda: str | None
    cuda_check: str | None
    cuda_minimum: str | None
    cudnn: str | None
    cxx11abi: bool | None
    cxx_minimum: Count | None
    cxx_standard: Count | None
    dtypes: _Texts
    extensions: _Texts
    extras: dict[str, dict[str, str]] | None
    flash_attention_min_major: dict[str, Count] | None
    flash_attn_asserted: bool | None
    flash_attn_imported: bool | None
    flash_attn_maximum: str | None
    flash_attn_maximum_included: bool | None
    flash_attn_minimum: str | None
    flash_attn_minimum_blackwell: str | None
    flex_torch: str | None
    forward_majors: list[Count] | None
    free_threaded: _Texts
    functions: _Functions
    git: str | None
    glibc: str | None
    head_dim_maximum: Count | None
    huggingface_hub: str | None
    libcuda: str | None
    minimum: str | None
    minimums: _Requirements
    model_minimums: _Requirements
    nccl: str | None
    newer_than_sm90: bool | None
    numpy_1_only: bool | None
    ptx_by_cuda: _TextTable
    ptxas: str | None
    ptxas_blackwell: str | None
    python_h: bool | None
    pythons: _Texts
    qwen2: bool | None
    qwen2_attention: _Texts
    requires_python: str | None
    sass_by_cuda: _TextTable
    sdpa_torch: str | None
    source: str | None
    stable_functions: _Texts
    takes_same_major: bool | None
    tokenizers: str | None
    torch: str | None
    torch_enforced: str | None
    torch_functions: _Texts
    triton: str | None
    triton_min_major: Count | None
    triton_requires: str | None


class KnownFacts(_CommonFacts, total=False):
    """Every fact that a reader of this program records; a release has only some of them."""

    needs: _Texts
    ptx: _Texts
    requires: _Requirements
    sass: _Texts


class KnownFlashAttnFacts(_CommonFacts, total=False):
    """The facts of flash-attn, some of which depend on the extension or the architecture."""

    needs: dict[str, list[str]] | None
    ptx: _Requirements
    requires: _Texts
    sass: _Requirements


FunctionLines = dict[str, dict[str, list[list[Count]]]]
"""File -> function -> first and last line of each function of that name."""


class _Release(TypedDict):
    read: str
    yanked: bool
    artefact: str | None
    unknown: dict[str, str]
    retry: NotRequired[bool]


class _KnownRelease(_Release):
    facts: KnownFacts


class _FlashAttnRelease(_Release):
    facts: KnownFlashAttnFacts


class _LineRelease(_Release):
    facts: FunctionLines


class _FactDocument(TypedDict):
    schema: Literal["knowngood/facts/1"]
    package: str
    regenerate: str
    reader: Count


class _KnownDocument(_FactDocument):
    releases: dict[VersionKey, _KnownRelease]


class _FlashAttnDocument(_FactDocument):
    releases: dict[VersionKey, _FlashAttnRelease]


class _LineDocument(_FactDocument):
    releases: dict[VersionKey, _LineRelease]


def parse_fact_document(data: bytes, path: Path) -> dict[str, Any]:
    """Return the content of a package's file in `facts/` or `facts/lines/`; raises `InputError` with every defect."""
    known: Any = _FlashAttnDocument if path.stem == "flash-attn" else _KnownDocument
    try:
        return _parse(data, path, _LineDocument if path.parent.name == LINES_FOLDER else known)
    except InputError:
        other = _document_of_reader(path.stem)
        if other is None:
            raise
    return _parse(data, path, other)


def _parse(data: bytes, path: Path, content: Any) -> dict[str, Any]:
    remedy = f"restore the file, or delete it and run `knowngood harvest {path.stem}`"
    document: dict[str, Any] = json_document.parse_json(data, str(path), content, remedy=remedy)
    return document


@functools.cache
def _document_of_reader(package: str) -> Any | None:
    """Return the type of a document whose facts are those of the package's reader; `None` without such a reader."""
    from knowngood_facts.facts.fact_reader import find_readers

    reader = find_readers().get(package)
    if reader is None or reader.model is None:
        return None
    names = {field.name for field in dataclasses.fields(reader.model)}
    if names <= {*get_type_hints(KnownFacts), *get_type_hints(KnownFlashAttnFacts)}:
        return None
    typed_dict: Any = TypedDict  # mypy knows only those whose keys are written out
    facts = typed_dict("facts", plain_hints(reader.model), total=False)
    release = typed_dict("release", {**get_type_hints(_Release, include_extras=True), "facts": facts})
    hints = get_type_hints(_FactDocument, include_extras=True)
    return typed_dict("document", {**hints, "releases": dict[VersionKey, release]})  # type: ignore[valid-type]


def plain_hints(model: type[Any]) -> dict[str, Any]:
    """Return field -> type of a reader's dataclass, as JSON holds it: lists for tuples, dictionaries for mappings."""
    module = vars(sys.modules[model.__module__])
    hints = get_type_hints(model, globalns={"Mapping": Mapping, **module})
    return {name: _plain_type(hint) for name, hint in hints.items()}


def _plain_type(hint: Any) -> Any:
    origin, parts = get_origin(hint), tuple(_plain_type(part) for part in get_args(hint) if part is not ...)
    if origin is tuple:
        return list[_join_types(parts)]  # type: ignore[misc] # computed
    if origin is Mapping:
        return dict[parts[0], parts[1]]  # type: ignore[valid-type]
    if origin is not None:
        return _join_types(parts)
    return Count if hint is int else hint


def _join_types(parts: Sequence[Any]) -> Any:
    return functools.reduce(operator.or_, parts)
