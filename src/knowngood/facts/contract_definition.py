"""Read a contract's file: how one package uses another, as data, so that every pair of releases can be judged.

`contracts/<name>.yaml`:

    title: XTuner's forward of Qwen2FlashAttention2
    caller: {package: xtuner, file: xtuner/model/modules/dispatch/qwen2.py}
    callee: {package: transformers, file: transformers/models/qwen2/modeling_qwen2.py}
    inside: qwen2_attn_forward                 # the caller's function to look at; the whole file when it is missing
    uses:                                      # in the order in which they are reached; the first that fails decides
      - {expression: self.rotary_emb(...), symbol: Qwen2RotaryEmbedding.forward}
      - {expression: self._flash_attention_forward(...), symbol: Qwen2FlashAttention2._flash_attention_forward}
    gate: {file: xtuner/model/modules/dispatch/__init__.py, minimum: LOWEST_TRANSFORMERS_VERSION.Qwen2ForCausalLM}

A `file` may be a list, because files move between releases: the first one that a release has is read. `expression` is
the source of the caller: a call `NAME(...)`, whose arguments are bound to the signature of `symbol` and whose unpacking
is compared with what `symbol` returns; an attribute `self.NAME` of the class `symbol`; or an import. With `raises`, the
question is whether `symbol` raises. `knowngood harvest --contracts` judges; docs/contracts.md explains all keys. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from knowngood.core import yaml_document
from knowngood.core.errors import InputError, InputProblem
from knowngood.facts.contract import (
    Contract,
    ContractSide,
    ContractUse,
    ExpressionForm,
    ReachCondition,
    VersionGate,
    parse_expression,
)

_KEYS = {"title", "caller", "callee", "inside", "uses", "gate", "reached_by", "version", "given"}
_SIDE = {"package", "file", "from"}
_USE = {"expression", "symbol", "inside", "file", "absent", "raises", "saying", "under", "spared_by"}
_GATE = {"file", "minimum", "maximum"}
_REACHED = {"file", "name", "unless", "otherwise"}
_SPARED = ({"argument", "value"}, {"assigns", "value", "inside"})


def parse_contract(text: str, file: str) -> Contract:
    """Parse the contract in a file's text; `InputError` with the line and column of every defect."""
    source = yaml_document.parse_yaml(text, file)
    reading = _ContractReading(source)
    contract = reading.contract(file.rsplit("/", 1)[-1].removesuffix(".yaml"))
    if reading.problems or contract is None:
        raise InputError(
            reading.problems or [InputProblem(file=file, line=1, column=1, text="the file is not a contract")]
        )
    return contract


class _ContractReading:
    """Reads a document and collects all of its defects."""

    def __init__(self, source: yaml_document.YamlDocument) -> None:
        self.source = source
        self.problems: list[InputProblem] = []

    def contract(self, name: str) -> Contract | None:
        data = self.source.data
        if not isinstance(data, Mapping):
            self._defect((), "a contract is a mapping (KEY: VALUE lines)")
            return None
        self._known(data, (), _KEYS, needed=("title", "caller", "callee", "uses"))
        if self.problems:
            return None
        caller, callee = self._side("caller"), self._side("callee")
        inside = self._texts(data, "inside")
        uses = data["uses"]
        if not isinstance(uses, Sequence) or isinstance(uses, str) or not uses:
            self._defect(("uses",), "uses must be a list, as in - {expression: name(...), symbol: name}")
            uses = []
        read = tuple(self._use(item, ("uses", place), inside) for place, item in enumerate(uses))
        gate = self._section(data, "gate", _GATE, ())
        reached = self._section(data, "reached_by", _REACHED, ("name", "otherwise"))
        given = data.get("given", {})
        if not isinstance(given, Mapping) or not all(isinstance(value, str) for value in given.values()):
            self._defect(("given",), "given must be a mapping, as in {qkv_format: thd, use_flash_attn_3: false}")
            given = {}
        if self.problems:
            return None
        return Contract(
            id=name,
            title=" ".join(str(data["title"]).split()),
            caller=caller,
            callee=callee,
            uses=read,
            gate=None if gate is None else self._gate(gate, caller.files),
            reached_by=None if reached is None else self._reached(reached, caller.files),
            version=self._texts(data, "version"),
            given=given,
        )

    def _gate(self, section: Mapping[str, Any], files: tuple[str, ...]) -> VersionGate:
        return VersionGate(
            files=self._texts(section, "file", "gate") or files,
            minimum=self._texts(section, "minimum", "gate"),
            maximum=self._texts(section, "maximum", "gate"),
        )

    def _reached(self, section: Mapping[str, Any], files: tuple[str, ...]) -> ReachCondition:
        return ReachCondition(
            files=self._texts(section, "file", "reached_by") or files,
            name=str(section["name"]),
            unless=str(section.get("unless", "")),
            otherwise=str(section["otherwise"]),
        )

    def _side(self, key: str) -> ContractSide:
        side = self._section(self.source.data, key, _SIDE, ("package", "file")) or {}
        floor = None
        if "from" in side:
            try:
                floor = Version(str(side["from"]))
            except InvalidVersion:
                self._defect((key, "from"), f"{side['from']!r} is not a version")
        files = self._texts(side, "file", key)
        package = str(side.get("package", ""))
        if package != canonicalize_name(package):
            self._defect((key, "package"), f"write the package as the registry does: {canonicalize_name(package)}")
        return ContractSide(package=package, files=files, floor=floor)

    def _use(self, item: Any, path: tuple[str | int, ...], inside: tuple[str, ...]) -> ContractUse:
        if not isinstance(item, Mapping):
            self._defect(path, "a use is a mapping, as in {expression: name(...), symbol: name}")
            return ContractUse(expressions=(), symbols=())
        self._known(item, path, _USE, needed=("expression",))
        expressions = []
        for text in self._texts(item, "expression", *path):
            try:
                expressions.append(parse_expression(text))
            except ValueError as error:
                self._defect((*path, "expression"), str(error))
        symbols = self._texts(item, "symbol", *path)
        if expressions and not symbols:
            if any(one.form is not ExpressionForm.IMPORT for one in expressions):
                self._defect(path, "the key 'symbol' is missing: the callee's name of what is used")
            symbols = tuple(one.name for one in expressions)
        if len({one.form for one in expressions}) > 1:
            self._defect((*path, "expression"), "the expressions of one use must be of one form")
        spared = item.get("spared_by", [])
        if not isinstance(spared, Sequence) or not all(
            isinstance(one, Mapping) and set(one) in _SPARED for one in spared
        ):
            text = (
                "spared_by is a list of {argument: use_cache, value: 'False'} or {assigns: NAME, value: .., inside: ..}"
            )
            self._defect((*path, "spared_by"), text)
            spared = []
        if ("saying" in item or "under" in item or spared) and "raises" not in item:
            self._defect(path, "saying, under and spared_by belong to raises: the exception's class")
        return ContractUse(
            expressions=tuple(expressions),
            symbols=symbols,
            inside=self._texts(item, "inside", *path) or inside,
            files=self._texts(item, "file", *path),
            absent=self._texts(item, "absent", *path),
            raises=str(item.get("raises", "")),
            saying=str(item.get("saying", "")),
            under=self._texts(item, "under", *path),
            spared_by=tuple(spared),
        )

    def _section(
        self, data: Mapping[str, Any], key: str, known: set[str], needed: Sequence[str]
    ) -> Mapping[str, Any] | None:
        value = data.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self._defect((key,), f"{key} must be a mapping of {', '.join(sorted(known))}")
            return None
        self._known(value, (key,), known, needed=needed)
        return value

    def _texts(self, data: Mapping[str, Any], key: str, *above: str | int) -> tuple[str, ...]:
        value = data.get(key, [])
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
            self._defect((*above, key), f"{key} must be a text or a list of texts")
            return ()
        return tuple(items)

    def _known(
        self, data: Mapping[str, Any], path: tuple[str | int, ...], known: set[str], *, needed: Sequence[str]
    ) -> None:
        for key in data:
            if key not in known:
                text = f"unknown key {key!r}; there are {', '.join(sorted(known))}"
                self.problems.append(self.source.problem((*path, key), text, key=True))
        for key in needed:
            if not data.get(key):
                self._defect(path, f"the key {key!r} is missing or empty")

    def _defect(self, path: tuple[str | int, ...], text: str) -> None:
        self.problems.append(self.source.problem(path, text))
