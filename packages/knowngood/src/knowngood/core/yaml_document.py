"""A YAML file as plain data, together with the line and column of every value and key.

Scalars stay text as written (`3.10` is not 3.1). Anchors are refused, so that a small file cannot unfold into a large
one. Tags are refused, because they would be ignored. docs/decisions/0003-house.md says why this is not `ruamel.yaml`.

`yaml` is imported inside the functions: `knowngood check` often answers without reading a YAML file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import InputError, InputProblem
from knowngood.core.json_document import problem_at
from knowngood.core.lazy_patterns import lazy_pattern

if TYPE_CHECKING:
    import yaml

DocumentPath = tuple[str | int, ...]
"""Keys and indexes from the top of a document down to a value: `("cells", 0, "torch")`."""

MAX_LENGTH = 250_000
"""The most characters of a file that is read."""
MAX_DEPTH = 20
"""The most levels of nesting in a file that is read."""
_SAFE_LEVELS = 2_000
_ANCHOR_OR_TAG = lazy_pattern(r"[&*!][^\s\"'=<>&*,\]}]")

_SURROGATE = lazy_pattern(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
"""Half of a character, which YAML cannot join with the other half, and which nothing can write."""


@dataclass(kw_only=True)
class YamlDocument:
    """The content of a YAML file (mappings, lists and text), with the positions of its values and keys."""

    file: str
    data: Any
    marks: dict[DocumentPath, yaml.Mark] = field(repr=False)
    """Path -> where its value begins."""
    key_marks: dict[DocumentPath, yaml.Mark] = field(repr=False)
    """Path -> where its key begins."""
    problems: list[InputProblem] = field(default_factory=list)
    """Defects that leave the rest readable. What they are about is not in `data`."""

    def problem(self, path: Sequence[str | int], text: str, *, key: bool = False) -> InputProblem:
        """Return a problem at `path` (at its key for `key`), or at the nearest place above it that the file has."""
        whole = tuple(path)
        marks = {**self.marks, **self.key_marks} if key else self.marks
        mark = next((marks[whole[:end]] for end in range(len(whole), -1, -1) if whole[:end] in marks), None)
        return _problem_at(self.file, mark, text)


def parse_yaml(text: str, file: str) -> YamlDocument:
    """Return the document in `text`; `file` is its name for messages. Raises `InputError` with every defect."""
    document = parse_yaml_with_problems(text, file)
    if document.problems:
        raise InputError(document.problems)
    return document


def parse_yaml_with_problems(text: str, file: str) -> YamlDocument:
    """Return the document in `text`, with the `problems` that leave the rest readable.

    Raises `InputError` when the text is not well-formed, is too long or too deep, or has anchors or tags.
    """
    if len(text) > MAX_LENGTH:
        message = f"the file is longer than {MAX_LENGTH:,} characters; is it the right one?"
        raise InputError([_problem_at(file, None, message)])
    if match := _SURROGATE.search(text):
        message = f"{match[0]} is half of a character; write the character itself"
        raise InputError([problem_at(file, text, match.start(), message)])
    import yaml

    document = YamlDocument(file=file, data=None, marks={}, key_marks={})
    try:
        node = _compose(text, file)
    except yaml.MarkedYAMLError as error:
        raise InputError([_problem_at(file, error.problem_mark or error.context_mark, _explain(error))]) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        message = f"the character {chr(error.character)!r} is not allowed in YAML; remove it"
        raise InputError([InputProblem(file=file, line=line, column=column, text=message)]) from None
    document.data = _convert(node, (), document) if node is not None else None
    return document


def parse_yaml_data(text: str, file: str) -> Any:
    """Return the data in `text` without positions, which is several times as fast.

    Raises `InputError` as `parse_yaml` does: a text with anything unusual is parsed by that.
    """
    unusual = len(text) > MAX_LENGTH or _may_be_deep(text) or _may_have_anchor_or_tag(text)
    if unusual or _SURROGATE.search(text):
        return parse_yaml(text, file).data
    import yaml

    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        return _plain_data(node) if node is not None else None
    except (yaml.YAMLError, _UnusualError):
        return parse_yaml(text, file).data


class _UnusualError(Exception):
    """A text that `parse_yaml` has to look at."""


def _may_be_deep(text: str) -> bool:
    """Whether a text could be nested so deep that libyaml, which recurses, ends the process."""
    return (
        text.count("[") + text.count("{") > _SAFE_LEVELS or max(map(len, text.splitlines()), default=0) > _SAFE_LEVELS
    )


def _may_have_anchor_or_tag(text: str) -> bool:
    """Whether an anchor, an alias or a tag may stand where a value or a key begins."""
    for match in _ANCHOR_OR_TAG.finditer(text):
        before = text[: match.start()]
        body = before.rstrip()
        space = before[len(body) :]
        if not body or "\n" in space or body[-1] in "[{," or (space and body[-1] in "-?:"):
            return True
    return False


def _plain_data(node: Any, depth: int = 0) -> Any:
    """Return the data of a node; `_UnusualError` for what `parse_yaml` refuses."""
    kind = node.id
    if kind == "scalar":
        return node.value
    if depth == MAX_DEPTH:
        raise _UnusualError
    if kind == "sequence":
        return [_plain_data(item, depth + 1) for item in node.value]
    mapping = {key.value: _plain_data(value, depth + 1) for key, value in node.value if key.id == "scalar"}
    if len(mapping) != len(node.value):
        raise _UnusualError
    return mapping


def _compose(text: str, file: str) -> yaml.Node | None:
    """Return the node of the document. libyaml is twenty times as fast, PyYAML's own parser words errors better.

    Raises `InputError` for constructs that are refused, and `yaml.YAMLError` for text that is not well-formed.
    """
    import yaml

    for loader in (getattr(yaml, "CSafeLoader", yaml.SafeLoader), yaml.SafeLoader):
        try:
            if problems := _refused_constructs(text, file, loader):
                raise InputError(problems)
            node: yaml.Node | None = yaml.compose(text, Loader=loader)
        except yaml.YAMLError:
            if loader is yaml.SafeLoader:
                raise
        else:
            return node
    raise AssertionError("the last loader returns or raises")


def _refused_constructs(text: str, file: str, loader: Any) -> list[InputProblem]:
    """Return a problem for each anchor, alias and tag, up to the first place that is nested too deep."""
    import yaml

    problems = []
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        messages = []
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        # Only aliases multiply, but an anchor is useless without one.
        if anchor := getattr(event, "anchor", None):
            messages.append(f"anchors and aliases (here {anchor!r}) are not supported; write the value out")
        if (tag := getattr(event, "tag", None)) not in (None, "!"):
            messages.append(f"tags (here {tag!r}) are not supported; remove it")
        if depth > MAX_DEPTH:
            messages.append(f"nested more than {MAX_DEPTH} deep")
        problems += [_problem_at(file, event.start_mark, message) for message in messages]
        if depth > MAX_DEPTH:
            break
    return problems


def _problem_at(file: str, mark: Any, text: str) -> InputProblem:
    """`mark` is a `yaml.Mark` (PyYAML's type stubs have two of them), or `None` for the file as a whole."""
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return InputProblem(file=file, line=line, column=column, text=text)


def _explain(error: yaml.MarkedYAMLError) -> str:
    reason = error.problem or error.context or "not well-formed"
    if "'\\t'" in reason:
        return "YAML does not allow this tab; indent with spaces"
    return f"not well-formed YAML: {reason}" + (f" ({error.context})" if error.context and error.problem else "")


def _convert(node: Any, path: DocumentPath, document: YamlDocument) -> Any:
    document.marks[path] = node.start_mark
    if node.id == "sequence":
        return [_convert(item, (*path, index), document) for index, item in enumerate(node.value)]
    if node.id == "mapping":
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key_node.id != "scalar":
                text = "a key must be plain text"
            elif key in mapping:
                first = document.key_marks[(*path, key)].line + 1
                text = f"the key {key!r} is given in line {first} already; keep one of them"
            else:
                document.key_marks[(*path, key)] = key_node.start_mark
                mapping[key] = _convert(value_node, (*path, key), document)
                continue
            document.problems.append(_problem_at(document.file, key_node.start_mark, text))
        return mapping
    return str(node.value)
