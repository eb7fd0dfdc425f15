"""The form of a known failure in a file: what it looks like in a log, what it affects, why, and what helps.

`incidents/<id>.yaml`:

    title: XTuner calls a method that transformers 4.43 took away
    kind: api-removed
    severity: failure                 # silent: a wrong result without an error; slow: a right one that takes longer;
                                      # harmless: a warning to ignore
    component: xtuner                 # the package at fault, which often is not the one that the log names;
                                      # or what is no package, as `OwnComponent` has it: your-code, gpu-memory, ...
    signatures:                       # one of them must be in the log (knowngood_facts.compat.incident); a silent fault
                                      # that leaves no line in a log has none, but `affected` of two packages, or `when`
      - "AttributeError: '{name}FlashAttention2' object has no attribute '_flash_attention_forward'"
      - {text: "__init__() got an unexpected keyword argument 'x'", beside: thing/part.py}  # this too
    context:                          # when given, one of these must be anywhere in the log too
      - "xtuner/model/modules/dispatch/"
    frames:                           # when the log has a traceback, one of these must be in it: the caller's files
      - "xtuner/model/"
    without:                          # when one of these is in the log, its cause is another one
      - "pickle.load(from_parent)"
    affected:                         # any of these combinations; within one, all ranges must match
      - {xtuner: "<0.2", transformers: ">=4.43"}
    when: {xtuner.use_varlen_attn: "false"}  # conditions of use, in the words of `check --with`
    unless: {attn: "!fa2"}            # a condition that excludes it when stated; unstated, it decides nothing
    run_reasons: ["the soft-cap of the scores is dropped"]  # what a run of the model suite says of the models of
                                      # `when`, or of any; answers about such a run link here
    because: One or two sentences.
    fix:
      - {change: {transformers: "<4.43"}, note: what to know, cost: its price, gpu: ">=80"}  # gpu: only for these
      - What to do, where that is all
    source: ["InternLM/xtuner#925"]
    confidence: reported
    report_erred: [where the report was wrong]
    uses: {caller: trl, target: "transformers:Trainer.__init__", detail: tokenizer}  # of the atlas; `affected` is
                                      # the releases of the callee that break it; or
    rule: torch-runs-on-gpu           # a rule of rules/*.yaml that covers it in `check`; or, when there is neither,
    range_from: artefacts             # of `affected`: artefacts: symbols in wheels; thread: as reported; environment:
                                      # the machine decides it more than versions
    reproduction: xtuner              # reproductions/<name>/
    variants:                         # the first whose words are in the log replaces what it has of title, because, ...
      - {words: [": 79,"], title: It fell off the bus, because: ..., fix: [...], kind: driver, component: driver}
      - {shows: ["cannot read {word}: {text}"], title: "{word} is not readable"}  # by a signature, whose slots the
                                      # texts may have: {name}, {number}, {version}, {word} (no space), {text}; {word2}
      - {name: late, title: "Rank {rank} is late", because: ..., fix: [...]}  # the one that `narrowed_by` chooses
    traits: [open]                    # what `diagnose` must know beside the signature: `IncidentTrait`
    narrowed_by: nccl-timeout         # what reads more of the reason out of the log (diagnose's READERS)

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

from knowngood.core import yaml_document
from knowngood.core.errors import InputError, InputProblem
from knowngood_facts.compat.incident import (
    Fix,
    Incident,
    IncidentKind,
    IncidentSeverity,
    IncidentTrait,
    IncidentUse,
    IncidentVariant,
    RangeOrigin,
    Signature,
    SignatureError,
    compile_signature,
)
from knowngood_facts.compat.rule import CONFIDENCES, INCIDENT_KEYS


@dataclass(frozen=True, kw_only=True)
class IncidentReferences:
    """The names that an incident can refer to."""

    rules: frozenset[str]
    reproductions: frozenset[str]


_DERIVED_RULE = re.compile(r"(?:requires|wheel|bounds|binary):[a-z0-9-]+:[a-z0-9-]+(?::[a-z0-9-]+)?")
"""The ids of the rules that follow from what packages declare."""


def parse_incident(text: str, file: str, references: IncidentReferences | None = None) -> Incident:
    """Parse the incident in the text of a file; raises `InputError` with the line and column of every defect.

    With `references`, a reference to a rule or reproduction that does not exist is a defect too.
    """
    data = yaml_document.parse_yaml_data(text, file)
    reading = _IncidentReading(data, references)
    incident = reading.incident(file.rsplit("/", 1)[-1].removesuffix(".yaml"))
    if ("&" in text or "*" in text) and _may_have_anchor(text):
        # The quick reader accepts anchors, aliases and tags; the exact one refuses them.
        yaml_document.parse_yaml(text, file)
    if reading.defects:
        source = yaml_document.parse_yaml(text, file)
        raise InputError([source.problem(path, text, key=key) for path, text, key in reading.defects])
    if incident is None:  # pragma: no cover - without a defect there is an incident
        raise InputError([InputProblem(file=file, line=1, column=1, text="the file is not an incident")])
    return incident


def _may_have_anchor(text: str) -> bool:
    """Whether a line may hold an anchor, an alias or a tag."""
    return any(
        token in line for line in text.splitlines() for token in (": &", ": *", "- &", "- *", ": !", "- !", "<<:")
    )


class _IncidentReading:
    """Reads the plain data of an incident, and collects all defects before it gives up."""

    def __init__(self, data: Any, references: IncidentReferences | None) -> None:
        self.references = references
        self.data = data if isinstance(data, Mapping) else {}
        self.defects: list[tuple[tuple[str | int, ...], str, bool]] = []
        if not isinstance(data, Mapping):
            self._defect("an incident is a mapping (KEY: VALUE lines)")

    def incident(self, name: str) -> Incident | None:
        """Return the incident; `None` when there are defects."""
        for key in self.data:
            if key not in INCIDENT_KEYS:
                self._defect(
                    f"unknown key {key!r}; the keys of an incident are {', '.join(INCIDENT_KEYS)}", key, key=True
                )
        for key, needed in INCIDENT_KEYS.items():
            if needed and not self.data.get(key) and not self.defects:
                self._defect(f"the key {key!r} is missing or empty")
        variants = self._variants()
        signatures = (*self._signatures("signatures"), *self._shown_signatures(variants))
        if not signatures and not self.defects:
            self._check_without_signature()
        parts: dict[str, Any] = {
            "title": self._text("title"),
            "kind": self._one_of("kind", [str(kind) for kind in IncidentKind], str(IncidentKind.CONFIG)),
            "severity": self._one_of(
                "severity", [str(item) for item in IncidentSeverity], str(IncidentSeverity.FAILURE)
            ),
            "component": self._text("component"),
            "signatures": signatures,
            "context": self._signatures("context"),
            "frames": self._signatures("frames"),
            "without": self._signatures("without"),
            "affected": self._affected(),
            "when": self._conditions("when"),
            "unless": self._conditions("unless"),
            "run_reasons": self._texts("run_reasons"),
            "because": self._text("because"),
            "fix": self._fixes(self.data.get("fix", []), "fix"),
            "source": self._texts("source"),
            "confidence": self._one_of("confidence", CONFIDENCES, "reported"),
            "report_erred": self._texts("report_erred"),
            "uses": self._uses(),
            "rule": self._name("rule", "rule {} in rules/*.yaml"),
            "reproduction": self._name("reproduction", "reproductions/{}/"),
            "range_from": self._range_from(),
            "variants": variants,
            "traits": self._traits(),
            "narrowed_by": self._text("narrowed_by"),
        }
        if self.defects:
            return None
        return Incident(
            id=name, **{**parts, "kind": IncidentKind(parts["kind"]), "severity": IncidentSeverity(parts["severity"])}
        )

    def _check_without_signature(self) -> None:
        """An incident without a signature must be a silent or slow one that `check` can find by the combination."""
        if self.data.get("severity") not in (str(IncidentSeverity.SILENT), str(IncidentSeverity.SLOW)):
            self._defect("the key 'signatures' is missing or empty; only what is silent or slow may show in no log")
        elif not self.data.get("when") and not any(len(item) > 1 for item in self._affected()):
            self._defect("a fault without signatures needs `affected` of two packages, or `when`, for `check`")
        elif not self.data.get("affected"):
            self._defect("a fault without signatures needs `affected`, for `check`")

    def _traits(self) -> tuple[IncidentTrait, ...]:
        texts, allowed = self._texts("traits"), [str(item) for item in IncidentTrait]
        for text in texts:
            if text not in allowed:
                self._defect(f"a trait is one of {', '.join(allowed)}, not {text!r}", "traits")
        return tuple(IncidentTrait(text) for text in texts if text in allowed)

    def _range_from(self) -> RangeOrigin | None:
        if "range_from" not in self.data:
            return None
        if self.data.get("uses") or self.data.get("rule"):
            text = "range_from is for incidents that have neither uses nor a rule; remove it"
            self._defect(text, "range_from", key=True)
        allowed = [str(item) for item in RangeOrigin]
        return RangeOrigin(self._one_of("range_from", allowed, allowed[0]))

    def _name(self, key: str, what: str) -> str:
        """Return the name of a rule or reproduction; a defect when it does not exist."""
        name = self._text(key)
        if not name or self.references is None or (key == "rule" and _DERIVED_RULE.fullmatch(name)):
            return name
        known: frozenset[str] = getattr(self.references, f"{key}s")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            self._defect(f"there is no {what.format(name)}{guess}", key)
        return name

    def _uses(self) -> IncidentUse | None:
        if "uses" not in self.data:
            return None
        value = self.data["uses"]
        parts = dict(value) if isinstance(value, Mapping) else {}
        texts = all(isinstance(item, str) and item for item in parts.values())
        if not texts or not {"caller", "target"} <= parts.keys() <= {"caller", "target", "detail"}:
            self._defect("uses is {caller: PACKAGE, target: 'module:name'}, with detail for a keyword", "uses")
            return None
        return IncidentUse(**parts)

    def _conditions(self, name: str) -> Mapping[str, str]:
        value = self.data.get(name, {})
        if not isinstance(value, Mapping) or not all(isinstance(item, str) and item for item in value.values()):
            self._defect(f"{name} must be a mapping, as in {{context-parallel: '>1', padding: right}}", name)
            return {}
        for key, wanted in value.items():
            if wanted[:1] in ("<", ">", "=", "~"):
                self._specifier(wanted, name, key)
        return dict(value)

    def _defect(self, text: str, *path: str | int, key: bool = False) -> None:
        self.defects.append((path, text, key))

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
        read = (self._signature(item, key, place) for place, item in enumerate(items))
        return tuple(signature for signature in read if signature is not None)

    def _signature(self, item: Any, key: str, place: int) -> Signature | None:
        parts: list[Any] = [item]
        if isinstance(item, Mapping) and item.keys() == {"text", "beside"}:
            parts = [item["text"], *([item["beside"]] if isinstance(item["beside"], str) else item["beside"])]
        if not all(isinstance(part, str) and part for part in parts):
            text = f"{key} must be a list of texts, or of {{text: ..., beside: what must be in the log too}}"
            self._defect(text, key, place)
            return None
        try:
            signature, *beside = [compile_signature(part) for part in parts]
        except SignatureError as error:
            self._defect(str(error), key, place)
            return None
        return replace(signature, beside=tuple(beside))

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

    def _variants(self) -> tuple[IncidentVariant, ...]:
        items = self.data.get("variants", [])
        changed, chosen_by = {"title", "because", "fix", "kind", "component"}, {"words", "shows", "name"}
        variants = []
        for place, item in enumerate(items if isinstance(items, Sequence) else [items]):
            keys = set(item) if isinstance(item, Mapping) else set()
            if len(keys & chosen_by) != 1 or not keys & changed or keys - changed - chosen_by:
                known_keys = "words: [TEXT, ...], shows: [SIGNATURE, ...] or a name"
                text = f"a variant has {known_keys}, and some of {', '.join(sorted(changed))}"
                self._defect(text, "variants", place)
                continue
            lists: dict[str, tuple[str, ...]] = {}
            for key in ("words", "shows"):
                stated = item.get(key, ())
                good = isinstance(stated, list | tuple) and all(isinstance(text, str) for text in stated)
                if not good:
                    self._defect(f"{key} must be a list of texts", "variants", place, key)
                lists[key] = tuple(stated) if good else ()
            kinds = [kind for kind in IncidentKind if kind == item.get("kind")]
            if "kind" in keys and not kinds:
                self._defect(f"{item['kind']!r} is no kind of an incident", "variants", place, "kind")
            texts = {key: " ".join(str(item.get(key, "")).split()) for key in ("name", "title", "because", "component")}
            fix = self._fixes(item.get("fix", []), "variants", place, "fix")
            kind = kinds[0] if kinds else None
            variants.append(IncidentVariant(words=lists["words"], shows=lists["shows"], fix=fix, kind=kind, **texts))
        return tuple(variants)

    def _shown_signatures(self, variants: Sequence[IncidentVariant]) -> tuple[Signature, ...]:
        """The signatures that the variants show themselves by."""
        read = (self._signature(text, "variants", place) for place, item in enumerate(variants) for text in item.shows)
        return tuple(signature for signature in read if signature is not None)

    def _fixes(self, items: Any, *path: str | int) -> tuple[Fix, ...]:
        if not isinstance(items, Sequence) or isinstance(items, str):
            self._defect("fix must be a list", *path)
            return ()
        fixes = []
        for place, stated in enumerate(items):
            item = {"note": stated} if isinstance(stated, str) else stated
            if not isinstance(item, Mapping) or not item.get("note") or set(item) - {"change", "note", "cost", "gpu"}:
                self._defect(
                    "a fix is a text, or {note: ...}, optionally with change: {NAME: VERSIONS}, cost and gpu",
                    *path,
                    place,
                )
                continue
            change = item.get("change", {})
            if not isinstance(change, Mapping):
                self._defect("change must be a mapping, as in {torch: '<2.1'}", *path, place, "change")
                continue
            for name, text in change.items():
                self._specifier(text, *path, place, "change", name)
            gpu = str(item.get("gpu", ""))
            if gpu:
                self._specifier(gpu, *path, place, "gpu")
            note = " ".join(str(item["note"]).split())
            fixes.append(Fix(change=change, note=note, cost=" ".join(str(item.get("cost", "")).split()), gpu=gpu))
        return tuple(fixes)


def parse_incidents(texts: Mapping[str, str], references: IncidentReferences | None = None) -> list[Incident]:
    """Parse the incidents of several files (name -> text); raises `InputError` with the defects of all of them."""
    incidents: list[Incident] = []
    problems: list[InputProblem] = []
    for file, text in texts.items():
        try:
            incidents.append(parse_incident(text, file, references))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return incidents
