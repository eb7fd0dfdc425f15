"""transformers' wheels: the attention implementations each release knows, and what it demands of torch and kernels."""

from __future__ import annotations

import ast
import re

from knowngood.harvest import metadata, source
from knowngood.harvest.artefact import Artefact, one_member, text
from knowngood.harvest.index import Unreadable
from knowngood.harvest.reading import Published, Reader, Reading, wheel_or_sdist

_IMPLEMENTATION = re.compile(r"eager|sdpa|flex_attention|flash_attention_\d")
_QWEN2 = "transformers/models/qwen2/modeling_qwen2.py"
_MINIMUM = re.compile(r"([A-Z0-9_]+)_MIN_VERSION")


def read(artefact: Artefact, _: Published, reading: Reading) -> None:
    """Fill in the facts of one release (see `knowngood.models.Transformers`)."""
    core = metadata.parse_metadata(text(artefact, one_member(artefact, ".dist-info/METADATA")))
    python = metadata.oldest_python(core.requires_python)
    reading.take("requires_python", lambda: core.requires_python)
    base = core.on(python)
    reading.take("requires", lambda: metadata.requirement_map(base))
    for fact in ("tokenizers", "huggingface-hub"):
        reading.take(fact.replace("-", "_"), lambda fact=fact: metadata.bounds(base.get(fact)) or None)  # type: ignore[misc]
    extra = core.on(python, extra="torch")
    for fact in ("torch", "accelerate"):
        reading.take(fact, lambda fact=fact: metadata.bounds(extra[fact]) if fact in extra else None)  # type: ignore[misc]
    imports = _tree(artefact, "transformers/utils/import_utils.py")
    reading.facts |= demands(imports)
    reading.take("minimums", lambda: minimums(imports))
    modeling = _tree(artefact, "transformers/modeling_utils.py")
    known = reading.take("attention", lambda: implementations(modeling))
    reading.take("qwen2", lambda: _QWEN2 in artefact.members)
    if reading.facts.get("qwen2"):
        reading.take("qwen2_attention", lambda: qwen2_attention(_tree(artefact, _QWEN2), known or []))
    flash = "transformers/modeling_flash_attention_utils.py"
    if flash in artefact.members:
        reading.take("flash_attention_min_major", lambda: min_majors(_tree(artefact, flash)), optional=True)


def _tree(artefact: Artefact, member: str) -> ast.Module:
    return source.parse(text(artefact, member), member)


def demands(imports: ast.Module) -> dict[str, str]:
    """Least versions from the `is_..._available` functions; a demand that is not made has no entry."""
    found: dict[str, str] = {}
    enforced = source.function(imports, "is_torch_available")
    floors = source.version_floors(enforced) if enforced else []
    found["torch_enforced"] = floors[-1] if floors else _module_floor(imports)
    for fact, name, which in (
        ("flash_attn_minimum", "is_flash_attn_2_available", 0),  # first CUDA's, then ROCm's
        ("sdpa_torch", "is_torch_sdpa_available", -1),  # last the one of ordinary devices
        ("flex_torch", "is_torch_flex_attn_available", -1),
    ):
        node = source.function(imports, name)
        floors = source.version_floors(node) if node else []
        if floors:
            found[fact] = floors[which]
    for family in "234":
        node = source.function(imports, f"is_flash_attn_{family}_available")
        module = (
            next((name for name in source.strings(node) if re.fullmatch(r"flash_attn\w*", name)), None)
            if node
            else None
        )
        if module:
            found[f"flash_attention_{family}_module"] = module
    return {fact: value for fact, value in found.items() if value}


def _module_floor(imports: ast.Module) -> str:
    """The floor of `_torch_available = version.parse(_torch_version) >= version.parse("2.1.0")`."""
    for node in ast.walk(imports):
        if (
            isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == "_torch_available" for target in node.targets)
            and (floors := source.version_floors(node.value))
        ):
            return floors[0]
    return ""


def minimums(imports: ast.Module) -> dict[str, str]:
    """The module's constants `ACCELERATE_MIN_VERSION = "1.1.0"`, by lower-case package name."""
    found: dict[str, str] = {}
    for node in imports.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                match = _MINIMUM.fullmatch(target.id) if isinstance(target, ast.Name) else None
                if match:
                    found[match[1].lower().replace("_", "-")] = str(node.value.value)
    return dict(sorted(found.items()))


def implementations(modeling: ast.Module) -> list[str]:
    """The names of `attn_implementation` that `modeling_utils.py` uses as values (not inside longer texts)."""
    found = {name for name in source.strings(modeling) if _IMPLEMENTATION.fullmatch(name)}
    if "eager" not in found:
        raise Unreadable("modeling_utils.py names no attention implementation")
    return sorted(found)


def qwen2_attention(model: ast.Module, known: list[str]) -> list[str]:
    """Those of the known implementations that Qwen2 has: by its table of classes, else by its `_supports_` flags."""
    table = source.assigned(model, "QWEN2_ATTENTION_CLASSES")
    if isinstance(table, ast.Dict):
        return sorted(set(source.strings(table)))
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


def min_majors(flash: ast.Module) -> dict[str, int] | None:
    """Family -> least major compute capability that transformers itself demands on CUDA."""
    table = source.assigned(flash, "FLASH_ATTENTION_COMPATIBILITY_MATRIX")
    if not isinstance(table, ast.Dict):
        return None
    found: dict[str, int] = {}
    for family, row in zip(table.keys, table.values, strict=True):
        if isinstance(family, ast.Constant) and isinstance(row, ast.Dict):
            for key, value in zip(row.keys, row.values, strict=True):
                wanted = isinstance(key, ast.Constant) and key.value == "cuda_min_major_version"
                if wanted and isinstance(value, ast.Constant) and isinstance(value.value, int):
                    found[str(family.value)] = value.value
    return found


READER = Reader(package="transformers", revision=2, choose=wheel_or_sdist, read=read)
