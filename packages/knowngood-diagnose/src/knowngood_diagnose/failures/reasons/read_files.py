"""Why a file that is loaded is not what the program takes it for: a checkpoint, a model's folder, data. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.names.name_situation import advise
from knowngood_facts.compat.incident import Fix, Incident, OwnComponent

if TYPE_CHECKING:
    from knowngood_diagnose.failures.logs.last_errors import LastError
    from knowngood_diagnose.failures.logs.logged_errors import CodeFrame

_LOAD_KEY = lazy_pattern(r"invalid load key, '(?P<key>.{1,6}?)'")
_KEYS_OF_LFS = frozenset(("v", "<", "{"))
_LOADS_TOKENIZER = lazy_pattern(
    r"Can't load (?P<what>tokenizer|the configuration of|image processor)\b.{0,8}?'(?P<where>[^']{1,200})'"
)


def describe_load_key(incident: Incident, error: LastError) -> Incident | None:
    """A file in another format than a pickle, by the byte that pickle refuses."""
    stated = _LOAD_KEY.search(error.message)
    if stated is None or stated["key"] in _KEYS_OF_LFS:
        return None
    return replace(
        incident,
        title="torch.load reads a file that is no pickle: another format, most likely safetensors, or one cut off",
        because=(
            f"The first byte that is refused ({stated['key']}) begins no file of torch.save. A file of "
            "safetensors begins "
            "with the length of its header, which is any byte; an encrypted, compressed or broken file begins so too."
        ),
        fix=(
            advise(
                "For a file with the ending .safetensors, or one that was renamed from it: safetensors.torch.load_file "
                "in the place of torch.load; from_pretrained(use_safetensors=True)"
            ),
            advise("head -c 64 FILE | xxd shows what it is; compare its size with the hub's, and download it again"),
        ),
    )


def describe_place(incident: Incident, error: LastError) -> Incident | None:
    """A folder without the files that are looked for, where the name is a path of this machine."""
    stated = _LOADS_TOKENIZER.search(error.message)
    if stated is not None and stated["what"] == "tokenizer" and re.fullmatch(r"[\w.-]+/[\w.-]+", stated["where"]):
        return _describe_unreached_files(incident, stated["where"])
    if stated is None or not re.match(r"[/.~]|[A-Za-z]:[\\/]|[^/]*/[^/]*/", stated["where"]):
        return None
    what = {"tokenizer": "tokenizer"}.get(stated["what"], "configuration")
    files = "tokenizer.json or the vocabulary" if what == "tokenizer" else "config.json"
    return replace(
        incident,
        title=f"The folder {stated['where']} has no files of a {what}, or is not there",
        because=(
            f"{stated['where']} is a path of this machine, where {files} was not found: what wrote the "
            "folder (training, "
            "a merge, a conversion) saved only the weights, or the folder does not exist where the job runs."
        ),
        component=OwnComponent.MODEL,
        fix=(
            advise(f"ls {stated['where']} where the job runs shows which of the two it is"),
            advise(
                "Without the files: copy tokenizer*, special_tokens_map.json, vocab and config.json from "
                "the base model "
                "into it, or AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)"
            ),
        ),
    )


def _describe_unreached_files(incident: Incident, name: str) -> Incident:
    """A tokenizer of the hub of which no file came: transformers says so of each reason alike."""
    because = (
        f"None of the tokenizer's files of {name} was found. While it looks for them, transformers takes a hub that "
        "does not answer for a file that is not there (a wrong name is refused in other words: 'is not a local folder "
        "and is not a valid model identifier'). So the hub could not be reached or was down and the cache has no copy, "
        f"or a local folder {name} stands in its place, or the repository has no tokenizer."
    )
    fixes = (
        advise(
            "Try again later, and look at the hub's status page; curl -I https://huggingface.co from that machine "
            "shows whether it is reached (a proxy, HF_ENDPOINT)"
        ),
        advise(f"ls {name} where it runs: rename a local folder of that name"),
        advise("Without a network: huggingface-cli download on another machine, and the path of that folder"),
        advise("A tokenizer that the repository does not have: the one of the base model, by its own name"),
    )
    return replace(
        incident,
        title=f"No file of the tokenizer {name} came: most likely the hub was not reached, or a folder has its name",
        because=because,
        fix=fixes,
        component=OwnComponent.HUB,
    )


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
