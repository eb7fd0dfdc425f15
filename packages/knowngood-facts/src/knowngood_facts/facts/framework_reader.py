"""What transformers, other frameworks and numpy declare, and what their code demands of the packages beneath."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from knowngood.index import wheel_metadata, wheel_tags
from knowngood.index.artefact import Artefact, UnreadableError, read_text_member
from knowngood.index.releases import IndexedRelease, choose_wheel_by
from knowngood_facts.facts import python_source
from knowngood_facts.facts.fact_reader import FactReader, ReleaseReading, Requirements, choose_wheel_or_sdist

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.requirements import Requirement

_DISPATCH = "xtuner/model/modules/dispatch/__init__.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkFacts:
    """A release of xtuner, openrlhf or numpy."""

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    pythons: tuple[str, ...] | None
    """CPython releases with a Linux x86_64 wheel; None for pure Python. Tags."""
    requires: Requirements | None
    """Distribution -> specifier that it requires; METADATA."""
    model_minimums: Mapping[str, str] | None
    """Model (`qwen2-moe`) -> lowest transformers that xtuner accepts for it, by an assertion; its dispatch module."""


def read_framework(artefact: Artefact, release: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `FrameworkFacts`)."""
    core = wheel_metadata.read_metadata(artefact)
    python = wheel_metadata.oldest_python(core.requires_python)
    reading.take("requires_python", lambda: core.requires_python, optional=True)
    reading.take("requires", lambda: wheel_metadata.requirement_map(core.requirements_on(python)))
    pythons = wheel_tags.supported_pythons(release.files, core.requires_python)
    reading.take("pythons", lambda: pythons or None, optional=True)


def read_xtuner(artefact: Artefact, release: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the same facts, and the lowest transformers of each model that xtuner patches."""
    read_framework(artefact, release, reading)
    if _DISPATCH in artefact.members:
        tree = python_source.parse_python(read_text_member(artefact, _DISPATCH), _DISPATCH)
        reading.take("model_minimums", lambda: find_model_minimums(tree), optional=True)


def find_model_minimums(dispatch: ast.Module) -> dict[str, str] | None:
    """Read `LOWEST_TRANSFORMERS_VERSION = dict(Qwen2ForCausalLM=digit_version('4.39'), ...)`; `None` without it.

    The keys are model types as in a config: `qwen2-moe` for `Qwen2MoeForCausalLM`, and for 0.1.19's `qwen2_moe`.
    """
    table = python_source.find_assigned_value(dispatch, "LOWEST_TRANSFORMERS_VERSION")
    if not isinstance(table, ast.Call):
        return None
    return {
        _model_type(keyword.arg): next(python_source.string_constants(keyword.value))
        for keyword in table.keywords
        if keyword.arg
    }


def _model_type(name: str) -> str:
    words = name.removesuffix("ForCausalLM").replace("InternLM", "Internlm").replace("_", "-")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", words).lower()


_IMPLEMENTATION = re.compile(r"eager|sdpa|flex_attention|flash_attention_\d")
_QWEN2 = "transformers/models/qwen2/modeling_qwen2.py"
_MINIMUM = re.compile(r"([A-Z0-9_]+)_MIN_VERSION")


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformersFacts:
    """The wheel of a transformers release."""

    requires_python: str | None
    """PEP 440 specifier; METADATA."""
    tokenizers: str | None
    """PEP 440 specifier; METADATA."""
    huggingface_hub: str | None
    """PEP 440 specifier; METADATA."""
    torch: str | None
    """PEP 440 specifier of the extra `torch`: declared, not enforced; METADATA."""
    accelerate: str | None
    """PEP 440 specifier of the extra `torch`; METADATA."""
    torch_enforced: str | None
    """Lowest torch, below which it acts as if there were none; `is_torch_available`. None before 4.52: any torch."""
    attention: tuple[str, ...] | None
    """Values of `attn_implementation` that it knows; `modeling_utils.py`."""
    qwen2: bool | None
    """Whether it has Qwen2."""
    qwen2_attention: tuple[str, ...] | None
    """Those of `attention` that Qwen2 has; `modeling_qwen2.py`."""
    flash_attn_minimum: str | None
    """Lowest flash-attn that it uses on CUDA; `is_flash_attn_2_available`."""
    sdpa_torch: str | None
    """Lowest torch for SDPA, where that is higher than `torch_enforced`; `is_torch_sdpa_available`."""
    flex_torch: str | None
    """Lowest torch for FlexAttention, likewise; `is_torch_flex_attn_available`."""
    flash_attention_min_major: Mapping[str, int] | None
    """Family -> lowest major compute capability that it accepts; from 5.4, `FLASH_ATTENTION_COMPATIBILITY_MATRIX`."""
    minimums: Mapping[str, str] | None
    """Package -> lowest version, from the constants `..._MIN_VERSION`; `import_utils.py`."""


def read_transformers(artefact: Artefact, _: IndexedRelease, reading: ReleaseReading) -> None:
    """Record the facts of one release (see `TransformersFacts`)."""
    core = wheel_metadata.read_metadata(artefact)
    python = wheel_metadata.oldest_python(core.requires_python)
    reading.take("requires_python", lambda: core.requires_python)
    base = core.requirements_on(python)
    for fact in ("tokenizers", "huggingface-hub"):
        reading.take(fact.replace("-", "_"), partial(_declared, base, fact))
    extra = core.requirements_on(python, extra="torch")
    for fact in ("torch", "accelerate"):
        reading.take(fact, partial(wheel_metadata.specifier_text, extra[fact]) if fact in extra else lambda: None)
    imports = _tree(artefact, "transformers/utils/import_utils.py")
    reading.facts |= find_demands(imports)
    reading.take("minimums", lambda: find_minimums(imports))
    modeling = _tree(artefact, "transformers/modeling_utils.py")
    known = reading.take("attention", lambda: find_implementations(modeling))
    reading.take("qwen2", lambda: _QWEN2 in artefact.members)
    if reading.facts.get("qwen2"):
        reading.take("qwen2_attention", lambda: find_qwen2_attention(_tree(artefact, _QWEN2), known or []))
    flash = "transformers/modeling_flash_attention_utils.py"
    if flash in artefact.members:
        reading.take("flash_attention_min_major", lambda: find_min_majors(_tree(artefact, flash)), optional=True)


def _declared(requirements: Mapping[str, Requirement], name: str) -> str | None:
    return wheel_metadata.specifier_text(requirements.get(name)) or None


def _tree(artefact: Artefact, member: str) -> ast.Module:
    return python_source.parse_python(read_text_member(artefact, member), member)


def find_demands(imports: ast.Module) -> dict[str, str]:
    """Return the lowest versions that the `is_..._available` functions demand; without a demand there is no entry."""
    demands: dict[str, str] = {}
    enforced = python_source.find_function(imports, "is_torch_available")
    floors = python_source.version_floors(enforced) if enforced else []
    demands["torch_enforced"] = floors[-1] if floors else _module_floor(imports)
    for fact, name, which in (
        ("flash_attn_minimum", "is_flash_attn_2_available", 0),  # first CUDA's, then ROCm's
        ("sdpa_torch", "is_torch_sdpa_available", -1),  # the last is that of ordinary devices
        ("flex_torch", "is_torch_flex_attn_available", -1),
    ):
        node = python_source.find_function(imports, name)
        floors = python_source.version_floors(node) if node else []
        if floors:
            demands[fact] = floors[which]
    return {fact: value for fact, value in demands.items() if value}


def _module_floor(imports: ast.Module) -> str:
    """Return the floor of `_torch_available = version.parse(_torch_version) >= version.parse("2.1.0")`."""
    for node in ast.walk(imports):
        if (
            isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == "_torch_available" for target in node.targets)
            and (floors := python_source.version_floors(node.value))
        ):
            return floors[0]
    return ""


def find_minimums(imports: ast.Module) -> dict[str, str]:
    """Return lower-case package name -> version of the module's constants `ACCELERATE_MIN_VERSION = "1.1.0"`."""
    versions: dict[str, str] = {}
    for node in imports.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                match = _MINIMUM.fullmatch(target.id) if isinstance(target, ast.Name) else None
                if match:
                    versions[match[1].lower().replace("_", "-")] = str(node.value.value)
    return dict(sorted(versions.items()))


def find_implementations(modeling: ast.Module) -> list[str]:
    """Return the `attn_implementation` names that `modeling_utils.py` uses as values (not inside longer texts)."""
    names = {name for name in python_source.string_constants(modeling) if _IMPLEMENTATION.fullmatch(name)}
    if "eager" not in names:
        raise UnreadableError("modeling_utils.py names no attention implementation")
    return sorted(names)


def find_qwen2_attention(model: ast.Module, known: list[str]) -> list[str]:
    """Return the known implementations that Qwen2 has, by its table of classes or else by its `_supports_` flags."""
    table = python_source.find_assigned_value(model, "QWEN2_ATTENTION_CLASSES")
    if isinstance(table, ast.Dict):
        return sorted(set(python_source.string_constants(table)))
    flags = {
        target.id
        for node in ast.walk(model)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is True
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    admitted = {"eager"}
    if "_supports_sdpa" in flags:
        admitted.add("sdpa")
    if "_supports_flex_attn" in flags:
        admitted.add("flex_attention")
    if flags & {"_supports_flash_attn", "_supports_flash_attn_2"}:
        admitted |= {name for name in known if name.startswith("flash_attention_")}
    return sorted(admitted & set(known))


def find_min_majors(flash: ast.Module) -> dict[str, int] | None:
    """Return family -> lowest major compute capability that transformers itself demands on CUDA."""
    table = python_source.find_assigned_value(flash, "FLASH_ATTENTION_COMPATIBILITY_MATRIX")
    if not isinstance(table, ast.Dict):
        return None
    majors: dict[str, int] = {}
    for family, row in zip(table.keys, table.values, strict=True):
        if isinstance(family, ast.Constant) and isinstance(row, ast.Dict):
            for key, value in zip(row.keys, row.values, strict=True):
                wanted = isinstance(key, ast.Constant) and key.value == "cuda_min_major_version"
                if wanted and isinstance(value, ast.Constant) and isinstance(value.value, int):
                    majors[str(family.value)] = value.value
    return majors


READERS = (
    FactReader(
        package="numpy",
        revision=1,
        model=FrameworkFacts,
        choose=choose_wheel_by("-cp311-", "-cp310-", "-cp312-", "-cp39-"),
        read=read_framework,
        accepts=lambda version: not version.is_prerelease,
    ),
    FactReader(package="xtuner", revision=3, model=FrameworkFacts, choose=choose_wheel_or_sdist, read=read_xtuner),
    FactReader(
        package="openrlhf",
        revision=2,
        model=FrameworkFacts,
        choose=choose_wheel_by("-any.whl", "-cp311-"),
        read=read_framework,
    ),
    FactReader(
        package="transformers",
        revision=2,
        model=TransformersFacts,
        choose=choose_wheel_or_sdist,
        read=read_transformers,
    ),
)
