"""A YAML file as plain data that remembers where everything stood.

Scalars stay text as written (`3.10` is not 3.1). Anchors are refused, so a small file cannot unfold into a large one,
and so are tags, which would be ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from knowngood.errors import InputError, Problem

if TYPE_CHECKING:
    import yaml

Path = tuple[str | int, ...]

MAX_LENGTH = 250_000
MAX_DEPTH = 20


@dataclass(kw_only=True)
class Document:
    """The content of a YAML file (mappings, lists and text), and a mark for each path in it.

    `problems` are the defects that leave the rest readable: what they are about is not in `data`.
    """

    file: str
    data: Any
    marks: dict[Path, yaml.Mark] = field(repr=False)
    key_marks: dict[Path, yaml.Mark] = field(repr=False)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, path: Sequence[str | int], text: str, *, key: bool = False) -> Problem:
        """A `Problem` at `path`, or at the nearest place above it that the file has."""
        whole = tuple(path)
        marks = {**self.marks, **self.key_marks} if key else self.marks
        for end in range(len(whole), -1, -1):
            mark = marks.get(whole[:end])
            if mark is not None:
                return self.at(mark, text)
        return _at(self.file, None, text)

    def at(self, mark: yaml.Mark, text: str) -> Problem:
        """A `Problem` where the parser stood."""
        return _at(self.file, mark, text)


def parse(text: str, file: str) -> Document:
    """The document in `text`, without a defect; raises `InputError` with every one, with line and column."""
    document = read(text, file)
    if document.problems:
        raise InputError(document.problems)
    return document


def read(text: str, file: str) -> Document:
    """The document in `text`, perhaps with `problems`; raises `InputError` for what is not well-formed."""
    if len(text) > MAX_LENGTH:
        said = f"the file is longer than {MAX_LENGTH:,} characters; is it the right one?"
        raise InputError([_at(file, None, said)])
    import yaml

    document = Document(file=file, data=None, marks={}, key_marks={})
    try:
        node = _composed(text, file)
    except yaml.MarkedYAMLError as error:
        raise InputError([_at(file, error.problem_mark or error.context_mark, _explain(error))]) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        said = f"the character {chr(error.character)!r} cannot stand in YAML; remove it"
        raise InputError([Problem(file=file, line=line, column=column, text=said)]) from None
    document.data = _convert(node, (), document) if node is not None else None
    return document


def _composed(text: str, file: str) -> Any:
    """The document's node: by libyaml, twenty times as fast; what it refuses is read again for the better sentence."""
    import yaml

    for loader in (getattr(yaml, "CSafeLoader", yaml.SafeLoader), yaml.SafeLoader):
        try:
            if refused := _refused(text, file, loader):
                raise InputError(refused)
            return yaml.compose(text, Loader=loader)
        except yaml.YAMLError:
            if loader is yaml.SafeLoader:
                raise
    raise AssertionError("the last loader returns or raises")


def _at(file: str, mark: Any, text: str) -> Problem:
    """`mark` is a `yaml.Mark` (the stubs know two of them), or `None` for the file as a whole."""
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return Problem(file=file, line=line, column=column, text=text)


def _refused(text: str, file: str, loader: Any) -> list[Problem]:
    """What YAML has and matrix.yaml does not; stops at the first nesting too deep, before it is followed."""
    import yaml

    problems = []
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        said = []
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        # An anchor alone is harmless, an alias is what multiplies; both are refused.
        if anchor := getattr(event, "anchor", None):
            said.append(f"anchors and aliases (here {anchor!r}) are not read; write the value out")
        if (tag := getattr(event, "tag", None)) not in (None, "!"):
            said.append(f"tags (here {tag!r}) are not read; take it out")
        if depth > MAX_DEPTH:
            said.append(f"nested more than {MAX_DEPTH} deep")
        problems += [_at(file, event.start_mark, text) for text in said]
        if depth > MAX_DEPTH:
            break
    return problems


def _explain(error: yaml.MarkedYAMLError) -> str:
    said = error.problem or error.context or "not well-formed"
    if "'\\t'" in said:
        return "a tab stands where YAML wants spaces; indent with spaces"
    return f"not well-formed YAML: {said}" + (f" ({error.context})" if error.context and error.problem else "")


def _convert(node: yaml.Node, path: Path, document: Document) -> Any:
    import yaml

    document.marks[path] = node.start_mark
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, (*path, index), document) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                document.problems.append(document.at(key_node.start_mark, "a key must be plain text"))
                continue
            key = str(key_node.value)
            if key in mapping:
                first = document.key_marks[(*path, key)].line + 1
                text = f"the key {key!r} was given in line {first} already; keep one of them"
                document.problems.append(document.at(key_node.start_mark, text))
                continue
            document.key_marks[(*path, key)] = key_node.start_mark
            mapping[key] = _convert(value_node, (*path, key), document)
        return mapping
    return str(node.value)


def plain(text: str, file: str) -> Any:
    """The data of a file alone, read much faster than with its marks; raises `InputError` as `parse` does."""
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506 - the base loader makes text, lists and mappings only
    except yaml.YAMLError:
        parse(text, file)
        raise
