"""What is wrong with a file of data, by the words with which its reader refuses it. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from knowngood.compat.incident import Fix, Incident, OwnComponent
from knowngood.core.lazy_patterns import lazy_pattern
from knowngood.failures.logs.last_errors import LastError
from knowngood.failures.logs.logged_errors import CodeFrame
from knowngood.failures.names.name_situation import advise

_DECODER = lazy_pattern(
    r"JSONDecodeError: (?P<words>[^:]{1,80}): line (?P<line>\d+) column (?P<column>\d+) \(char (?P<char>\d+)"
)
_READS_LINE = lazy_pattern(r"loads\(\s*(?:str\()?(?:line|l|row|x|s|item|i|text|example|raw)\b")
_READS_FILE = lazy_pattern(r"json\.load\(|loads\([\w.]*\.read\(")
_READS_NAME = lazy_pattern(r"loads\((?P<what>\w*(?:path|file|name|config)\w*)\)", re.IGNORECASE)
_CONVERTED = lazy_pattern(
    r"Could not convert '?(?P<value>.{1,60}?)'? with type (?P<kind>\w+): tried to convert to (?P<wanted>\w+)"
)
_CHANGED = lazy_pattern(
    r"JSON parse error: Column\((?P<column>[^)]{0,120})\) (?:was|changed from) (?P<old>\w+) (?:but now|to) (?P<new>\w+)"
)
_RAGGED = lazy_pattern(
    r"(?:Expected (?P<wanted>\d+) (?:columns|fields)(?: in line (?P<line>\d+))?, (?:saw|got) (?P<seen>\d+))"
)


def describe_data_file(incident: Incident, error: LastError) -> Incident | None:
    """Return the failure with what the reader's own words say of the file; `None` where they say nothing more."""
    if (stated := _DECODER.search(error.message)) is not None:
        return _describe_json(incident, error, stated)
    if (stated := _CONVERTED.search(error.message)) is not None:
        return _describe_mixed(
            incident, "a column", f"{stated['value']} is a {stated['kind']} where other rows have a {stated['wanted']}"
        )
    if (stated := _CHANGED.search(error.message)) is not None:
        where = f"the field {stated['column']}" if stated["column"] else "a row"
        return _describe_mixed(incident, where, f"it is {stated['old']} in some rows and {stated['new']} in others")
    if (stated := _RAGGED.search(error.message)) is not None:
        return replace(
            incident,
            title=f"A row of the table has {stated['seen']} fields where the first rows have {stated['wanted']}",
            because="The reader takes the number of columns from the first rows. The separator is another one than "
            "it thinks, a text has that separator in it without quotes, or a line with a title stands above the table.",
            fix=(
                advise("sep='\\t' or ';' as in the file, quotechar for texts with commas, skiprows for lines above it"),
                advise("on_bad_lines='warn' (pandas) shows which lines they are"),
            ),
        )
    return None


def _describe_mixed(incident: Incident, where: str, how: str) -> Incident:
    return replace(
        incident,
        title="A column of the data has values of different types, for which Arrow has no common one",
        because=f"Arrow, with which datasets keeps a table, wants one type for a column in all rows; in {where} {how}.",
        fix=(
            advise(
                "Make the values of that field one type in all rows (str(value), or null where a number is missing; "
                "a list in each row, also for one), and write the file again"
            ),
            advise("Read it with json or pandas and convert it there, then Dataset.from_list(rows)"),
        ),
    )


def _describe_json(incident: Incident, error: LastError, stated: re.Match[str]) -> Incident | None:
    frame = next((frame for frame in reversed(error.frames) if "json" not in frame.parts[-2:-1]), None)
    code = frame.code if frame else ""
    words, line, char = stated["words"], int(stated["line"]), int(stated["char"])
    if (
        words.startswith(("Expecting value", "Expecting property name"))
        and _READS_LINE.search(code)
        and (line > 1 or char > 0)
    ):
        return _named(
            incident,
            frame,
            "The program reads one JSON object from each line, and the file is one JSON document over many lines",
            "A line of it, such as an opening bracket alone, is no JSON by itself",
            advise(
                "Convert it to JSON lines: import json; [print(json.dumps(row)) for row in json.load(open(FILE))]; or "
                "run the step of the project that prepares its data"
            ),
            advise("json.load(file) in the place of the loop over its lines, when the program is yours"),
        )
    if words.startswith("Extra data") and line > 1 and not _READS_LINE.search(code):
        return _named(
            incident,
            frame,
            "The file has one JSON object on each line, and is read as a single JSON document",
            f"The first document ends before line {line}, where another one begins",
            advise("Read it line by line: [json.loads(line) for line in file], or pandas.read_json(FILE, lines=True)"),
            advise("Or write it as one array: json.dump(rows, file)"),
        )
    name = _READS_NAME.search(code)
    if words.startswith("Expecting value") and char == 0 and name:
        return replace(
            _named(
                incident,
                frame,
                f"json.loads is given {name['what']}, most likely the name of a file and not what is in it",
                "json.loads takes the text itself, and the first character is no beginning of JSON",
                advise(f"json.load(open({name['what']})) reads the file"),
            ),
            component=OwnComponent.YOUR_CODE,
        )
    if words.startswith("Expecting value") and char == 0 and _READS_FILE.search(code):
        return _named(
            incident,
            frame,
            "The file that is read as JSON is empty, or no JSON from its first character on",
            "An empty file (a run that broke off while writing it), a page of HTML, a compressed file, or a pointer "
            "of Git LFS in the place of the download",
            advise("head -c 200 FILE shows what it is; write or download it again"),
        )
    return None


def _named(incident: Incident, frame: CodeFrame | None, title: str, why: str, *fixes: Fix) -> Incident:
    where = f" It is read in {frame.short_file}, line {frame.line}." if frame else ""
    return replace(incident, title=title, because=f"{why}.{where}", fix=fixes)
