"""Known failures as data: what they look like in a log, which combinations they concern, why, and what helps.

`incidents/<id>.yaml`:

    title: XTuner calls a method that transformers 4.43 took away
    kind: api-removed
    severity: failure                 # silent: wrong and says nothing; harmless: a warning that needs nothing
    component: xtuner                 # at fault, often not the one that the log names
    signatures:                       # one of them stands in the log (knowngood.diagnosing.signature); a silent fault
                                      # that shows in no log has none, but `affected` of two, or with `when`
      - "AttributeError: '{name}FlashAttention2' object has no attribute '_flash_attention_forward'"
      - {text: "__init__() got an unexpected keyword argument 'x'", beside: thing/part.py}  # one of these too
    context:                          # when given, one of these must stand somewhere in the log too
      - "xtuner/model/modules/dispatch/"
    frames:                           # when the log has a traceback, one of these must stand in it: the caller's files
      - "xtuner/model/"
    affected:                         # any of these; within one, all of it
      - {xtuner: "<0.2", transformers: ">=4.43"}
    when: {xtuner.use_varlen_attn: "false"}  # how it is used, in the words of `check --with`
    unless: {attn: "!fa2"}            # what excludes it when it is stated, and is open when it is not
    because: One or two sentences.
    fix:
      - {change: {transformers: "<4.43"}, note: what to know, cost: what it costs}
    source: ["InternLM/xtuner#925"]
    confidence: reported
    report_erred: [where the report was wrong]
    contract: xtuner-qwen2            # contracts/<name>.yaml, from which `affected` is computed; or
    rule: torch-runs-on-gpu           # of rules/*.yaml, by which `check` says it; or, when there is neither,
    range_from: artefacts             # artefacts: symbols in wheels; thread: as told there; environment: no versions
    reproduction: xtuner              # reproductions/<name>/

Subjects of `affected` are packages and `python`, `cuda` (of torch), `nvcc`, `driver`, `glibc`, and `gpu` as a number
(`gpu: "<80"`). Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from knowngood import document
from knowngood.diagnosing.signature import Signature, SignatureError, compile_signature
from knowngood.errors import InputError, Problem
from knowngood.incidents.model import CONFIDENCES, Fix, Incident, Kind, RangeFrom, Severity


@dataclass(frozen=True, kw_only=True)
class Names:
    """What an incident can refer to by name."""

    rules: frozenset[str]
    contracts: frozenset[str]
    reproductions: frozenset[str]


_KEYS = {
    "title": True,
    "kind": True,
    "severity": False,
    "component": True,
    "signatures": False,
    "context": False,
    "frames": False,
    "affected": False,
    "when": False,
    "unless": False,
    "because": True,
    "fix": True,
    "source": True,
    "confidence": True,
    "report_erred": False,
    "contract": False,
    "rule": False,
    "range_from": False,
    "reproduction": False,
}
_DERIVED_RULE = re.compile(r"(?:requires|wheel|bounds|binary):[a-z0-9-]+:[a-z0-9-]+(?::[a-z0-9-]+)?")
"""What `check` calls the rules that follow from what packages declare."""


def parse(text: str, file: str, names: Names | None = None) -> Incident:
    """The incident in a file's text; raises `InputError` with the line and column of every defect.

    With `names`, a name of nothing that there is is a defect too.
    """
    data = document.plain(text, file)
    reading = _Reading(data, names)
    incident = reading.incident(file.rsplit("/", 1)[-1].removesuffix(".yaml"))
    if "&" in text or "*" in text:  # anchors, or a signature's wildcard: only the careful reader tells
        careful = _needs_care(text)
        if careful:
            document.parse(text, file)
    if reading.defects:
        source = document.parse(text, file)
        raise InputError([source.problem(path, said, key=key) for path, said, key in reading.defects])
    if incident is None:  # pragma: no cover - without a defect there is one
        raise InputError([Problem(file=file, line=1, column=1, text="the file is no incident")])
    return incident


def _needs_care(text: str) -> bool:
    """Whether a line may hold an anchor, an alias or a tag."""
    return any(
        token in line for line in text.splitlines() for token in (": &", ": *", "- &", "- *", ": !", "- !", "<<:")
    )


class _Reading:
    """Reads plain data, and notes all of its defects before giving up."""

    def __init__(self, data: Any, names: Names | None) -> None:
        self.names = names
        self.data = data if isinstance(data, Mapping) else {}
        self.defects: list[tuple[tuple[str | int, ...], str, bool]] = []
        if not isinstance(data, Mapping):
            self._defect("an incident is a mapping (KEY: VALUE lines)")

    def incident(self, name: str) -> Incident | None:
        """The incident, or `None` when there are defects."""
        for key in self.data:
            if key not in _KEYS:
                self._defect(f"unknown key {key!r}; the keys of an incident are {', '.join(_KEYS)}", key, key=True)
        for key, needed in _KEYS.items():
            if needed and not self.data.get(key) and not self.defects:
                self._defect(f"the key {key!r} is missing or empty")
        self._told(bool(self.data.get("signatures")))
        parts: dict[str, Any] = {
            "title": self._text("title"),
            "kind": self._one_of("kind", [str(kind) for kind in Kind], str(Kind.CONFIG)),
            "severity": self._one_of("severity", [str(item) for item in Severity], str(Severity.FAILURE)),
            "component": self._text("component"),
            "signatures": self._signatures("signatures"),
            "context": self._signatures("context"),
            "frames": self._signatures("frames"),
            "affected": self._affected(),
            "when": self._use("when"),
            "unless": self._use("unless"),
            "because": self._text("because"),
            "fix": self._fixes(),
            "source": self._texts("source"),
            "confidence": self._one_of("confidence", CONFIDENCES, "reported"),
            "report_erred": self._texts("report_erred"),
            "contract": self._name("contract", "contracts/{}.yaml"),
            "rule": self._name("rule", "rule {} in rules/*.yaml"),
            "reproduction": self._name("reproduction", "reproductions/{}/"),
            "range_from": self._range_from(),
        }
        if self.defects:
            return None
        return Incident(id=name, **{**parts, "kind": Kind(parts["kind"]), "severity": Severity(parts["severity"])})

    def _told(self, in_a_log: bool) -> None:
        """A silent fault may show in no log; then the combination tells it, through `check`."""
        if in_a_log or self.defects:
            return
        if self.data.get("severity") != str(Severity.SILENT):
            self._defect("the key 'signatures' is missing or empty; only a silent fault may show in no log")
        elif not self.data.get("when") and not any(len(item) > 1 for item in self._affected()):
            self._defect("a fault that shows in no log needs `affected` of two, or `when`, by which `check` tells it")
        elif not self.data.get("affected"):
            self._defect("a fault that shows in no log needs `affected`, by which `check` tells it")

    def _range_from(self) -> RangeFrom | None:
        if "range_from" not in self.data:
            return None
        if self.data.get("contract") or self.data.get("rule"):
            said = "range_from is for incidents that have neither a contract nor a rule; take it out"
            self._defect(said, "range_from", key=True)
        allowed = [str(item) for item in RangeFrom]
        return RangeFrom(self._one_of("range_from", allowed, allowed[0]))

    def _name(self, key: str, what: str) -> str:
        """The name of something else; a defect when there is no such thing."""
        name = self._text(key)
        if not name or self.names is None or (key == "rule" and _DERIVED_RULE.fullmatch(name)):
            return name
        known: frozenset[str] = getattr(self.names, f"{key}s")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            self._defect(f"there is no {what.format(name)}{guess}", key)
        return name

    def _use(self, name: str) -> Mapping[str, str]:
        value = self.data.get(name, {})
        if not isinstance(value, Mapping) or not all(isinstance(item, str) and item for item in value.values()):
            self._defect(f"{name} must be a mapping, as in {{context-parallel: '>1', padding: right}}", name)
            return {}
        for key, wanted in value.items():
            if wanted[:1] in ("<", ">", "=", "~"):
                self._specifier(wanted, name, key)
        return dict(value)

    def _defect(self, said: str, *path: str | int, key: bool = False) -> None:
        self.defects.append((path, said, key))

    def _text(self, key: str) -> str:
        value = self.data.get(key, "")
        if not isinstance(value, str):
            self._defect(f"{key} must be text", key)
            return ""
        return " ".join(value.split())

    def _texts(self, key: str) -> tuple[str, ...]:
        value = self.data.get(key, [])
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, Sequence) or not all(isinstance(item, str) and item for item in items):
            self._defect(f"{key} must be a list of texts", key)
            return ()
        return tuple(items)

    def _one_of(self, key: str, allowed: Sequence[str], default: str) -> str:
        value = self.data.get(key, default)
        if value not in allowed:
            self._defect(f"{key} is one of {', '.join(allowed)}, not {value!r}", key)
            return default
        return str(value)

    def _signatures(self, key: str) -> tuple[Signature, ...]:
        value = self.data.get(key, [])
        items = [value] if isinstance(value, str | Mapping) else value
        if not isinstance(items, Sequence):
            self._defect(f"{key} must be a list of texts", key)
            return ()
        return tuple(made for place, item in enumerate(items) if (made := self._signature(item, key, place)))

    def _signature(self, item: Any, key: str, place: int) -> Signature | None:
        parts: list[Any] = [item]
        if isinstance(item, Mapping) and item.keys() == {"text", "beside"}:
            parts = [item["text"], *([item["beside"]] if isinstance(item["beside"], str) else item["beside"])]
        if not all(isinstance(part, str) and part for part in parts):
            said = f"{key} must be a list of texts, or of {{text: ..., beside: what must stand in the log too}}"
            self._defect(said, key, place)
            return None
        try:
            made, *marks = [compile_signature(part) for part in parts]
        except SignatureError as error:
            self._defect(str(error), key, place)
            return None
        return replace(made, beside=tuple(marks))

    def _affected(self) -> tuple[Mapping[str, SpecifierSet], ...]:
        items = self.data.get("affected", [])
        if not isinstance(items, Sequence) or not all(isinstance(item, Mapping) and item for item in items):
            self._defect("affected must be a list of mappings, as in - {torch: '<2.1'}", "affected")
            return ()
        return tuple(
            {subject: self._specifier(text, "affected", place, subject) for subject, text in item.items()}
            for place, item in enumerate(items)
        )

    def _specifier(self, text: Any, *path: str | int) -> SpecifierSet:
        try:
            return SpecifierSet("" if text == "*" else text, prereleases=True)
        except (InvalidSpecifier, AttributeError, TypeError):
            self._defect(f"{text!r} is not a range of versions, as in '>=4.43,<5' or '*'", *path)
            return SpecifierSet()

    def _fixes(self) -> tuple[Fix, ...]:
        items = self.data.get("fix", [])
        if not isinstance(items, Sequence) or isinstance(items, str):
            self._defect("fix must be a list", "fix")
            return ()
        found = []
        for place, item in enumerate(items):
            if not isinstance(item, Mapping) or not item.get("note") or set(item) - {"change", "note", "cost"}:
                self._defect("a fix is {note: ...}, with change: {NAME: VERSIONS} and cost beside it", "fix", place)
                continue
            change = item.get("change", {})
            if not isinstance(change, Mapping):
                self._defect("change must be a mapping, as in {torch: '<2.1'}", "fix", place, "change")
                continue
            for name, text in change.items():
                self._specifier(text, "fix", place, "change", name)
            note = " ".join(str(item["note"]).split())
            found.append(Fix(change=change, note=note, cost=" ".join(str(item.get("cost", "")).split())))
        return tuple(found)


def parse_all(texts: Mapping[str, str], names: Names | None = None) -> list[Incident]:
    """The incidents of all files (name to text); raises `InputError` with the defects of all of them."""
    found: list[Incident] = []
    problems: list[Problem] = []
    for file, text in texts.items():
        try:
            found.append(parse(text, file, names))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return found
