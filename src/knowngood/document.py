"""A YAML file as plain data that remembers where everything stood.

Scalars stay text as written (`3.10` is not 3.1). Anchors are refused, so a small file cannot unfold into a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from knowngood.errors import InputError, Problem

Path = tuple[str | int, ...]

MAX_BYTES = 1_000_000
MAX_DEPTH = 20


@dataclass(kw_only=True)
class Document:
    """The content of a YAML file (mappings, lists and text), and a mark for each path in it."""

    file: str
    data: Any
    marks: dict[Path, yaml.Mark] = field(repr=False)
    key_marks: dict[Path, yaml.Mark] = field(repr=False)

    def problem(self, path: Sequence[str | int], text: str, *, key: bool = False) -> Problem:
        """A `Problem` at `path`, or at the nearest place above it that the file has."""
        whole = tuple(path)
        marks = {**self.marks, **self.key_marks} if key else self.marks
        for end in range(len(whole), -1, -1):
            mark = marks.get(whole[:end])
            if mark is not None:
                return Problem(file=self.file, line=mark.line + 1, column=mark.column + 1, text=text)
        return Problem(file=self.file, line=1, column=1, text=text)


def parse(text: str, file: str) -> Document:
    """The document in `text`; raises `InputError` for what is not well-formed, with line and column."""
    if len(text.encode()) > MAX_BYTES:
        raise InputError([Problem(file=file, line=1, column=1, text=f"the file is over {MAX_BYTES:,} bytes")])
    document = Document(file=file, data=None, marks={}, key_marks={})
    try:
        node = yaml.compose(_refuse_anchors(text, file), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise InputError([Problem(file=file, line=line, column=column, text=_explain(error))]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        text = f"the character {error.character!r} cannot stand in YAML; remove it"
        raise InputError([Problem(file=file, line=line, column=1, text=text)]) from None
    problems: list[Problem] = []
    document.data = _convert(node, (), document, problems) if node is not None else None
    if problems:
        raise InputError(problems)
    return document


def _refuse_anchors(text: str, file: str) -> str:
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        # An anchor alone is harmless, an alias is what multiplies; both are refused.
        anchor, mark = getattr(event, "anchor", None), event.start_mark
        if anchor and mark:
            text = f"anchors and aliases (here {anchor!r}) are not read; write the value out"
            raise InputError([Problem(file=file, line=mark.line + 1, column=mark.column + 1, text=text)])
    return text


def _explain(error: yaml.MarkedYAMLError) -> str:
    said = error.problem or error.context or "not well-formed"
    if "'\\t'" in said:
        return "a tab stands where YAML wants spaces; indent with spaces"
    return f"not well-formed YAML: {said}" + (f" ({error.context})" if error.context and error.problem else "")


def _convert(node: yaml.Node, path: Path, document: Document, problems: list[Problem]) -> Any:
    document.marks[path] = node.start_mark
    if len(path) > MAX_DEPTH:
        problems.append(document.problem(path, f"nested more than {MAX_DEPTH} deep"))
        return None
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, (*path, index), document, problems) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                document.marks.setdefault(path, key_node.start_mark)
                problems.append(document.problem(path, "a key must be plain text"))
                continue
            key = str(key_node.value)
            if key in mapping:
                first = document.key_marks[(*path, key)].line + 1
                document.key_marks[(*path, key)] = key_node.start_mark
                problems.append(
                    document.problem((*path, key), f"the key {key!r} was given in line {first} already", key=True)
                )
                continue
            document.key_marks[(*path, key)] = key_node.start_mark
            mapping[key] = _convert(value_node, (*path, key), document, problems)
        return mapping
    return str(node.value)
