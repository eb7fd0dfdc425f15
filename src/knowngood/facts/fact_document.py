"""Loads a file of `facts/`, checked against its schema (`knowngood.facts.fact_schema`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knowngood.core import data_files, json_document

FACTS_SCHEMA = "knowngood/facts/1"
LINES_FOLDER = "lines"
"""The folder in `facts/` of the lines of functions."""

_SCHEMA_MODULE = Path(__file__).with_name("fact_schema.py")


def load_fact_document(path: Path) -> dict[str, Any]:
    """Return the content of a package's file in `facts/` or `facts/lines/` as plain data.

    Raises `FileNotFoundError` when there is none, and `InputError` with every defect when it is damaged.
    """

    def parse(data: bytes) -> dict[str, Any]:
        from knowngood.facts.fact_schema import parse_fact_document  # the schema takes as long to import as the facts

        return parse_fact_document(data, path)

    modules = (_SCHEMA_MODULE, Path(json_document.__file__))
    document: dict[str, Any] = data_files.load_json_checked_once(path, parse, modules)
    return document
