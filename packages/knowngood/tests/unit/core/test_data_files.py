"""One loader for every data file: what it refuses, and that it names the place and what to do."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from pydantic import Field

from knowngood.core import data_files, json_document
from knowngood.core.errors import InputError

Count = Annotated[int, Field(ge=0, le=100)]


class Part(TypedDict):
    name: str
    size: NotRequired[Count]


class Content(TypedDict):
    schema: Literal["knowngood/made-up/1"]
    parts: NotRequired[dict[str, Part]]
    names: NotRequired[list[str] | None]
    other: NotRequired[Any]


HEAD = '{"schema": "knowngood/made-up/1", '


@pytest.fixture
def load(tmp_path):
    def load_text(content: str | bytes):
        path = tmp_path / "x.json"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return data_files.load_json(path, Content, remedy="write it again", file="x.json")

    return load_text


def test_sound_content_is_plain_data(load):
    text = HEAD + '"parts": {"a": {"name": "A", "size": 3}}, "names": null, "other": [1, {"b": 2.5}]}'
    assert load(text) == {
        "schema": "knowngood/made-up/1",
        "parts": {"a": {"name": "A", "size": 3}},
        "names": None,
        "other": [1, {"b": 2.5}],
    }
    assert load(b"\xef\xbb\xbf" + text.encode()) == load(text)  # a byte order mark


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "x.json:1:1: not well-formed JSON: expecting value; write it again"),
        ('{\n "schema": ', "x.json:2:12: not well-formed JSON: expecting value"),
        (b'{"schema": "\xff"}', "x.json:1:13: the byte 0xff is not UTF-8; save the file as UTF-8"),
        ("\0", "x.json:1:1: not well-formed JSON"),
        ("[]", "x.json:1:1: the file must be an object, not a list"),
        ("{}", "x.json:1:1: the key 'schema' is missing"),
        ('{"schema": "knowngood/made-up/2"}', "x.json:1:12: schema must be 'knowngood/made-up/1', not 'knowngood"),
        (HEAD + '"part": {}}', "x.json:1:35: unknown key 'part'; the nearest known one is 'parts'"),
        (HEAD + '"zzz": {}}', "x.json:1:35: unknown key 'zzz'; the keys here are schema, parts, names, other"),
        (
            HEAD + '"parts": {\n"a": {"name": "A"},\n"b.c": {"name": 5}}}',
            'x.json:3:17: parts["b.c"].name must be text, not 5',
        ),
        (
            HEAD + '"parts": {"a": {"name": "A", "size": -1}}}',
            "parts.a.size must be a whole number from 0 to 100, not -1",
        ),
        (HEAD + '"parts": {"a": {"name": "A", "size": true}}}', "size must be a whole number from 0 to 100, not true"),
        (
            HEAD + '"parts": {"a": {"name": "A", "size": ' + "9" * 80 + "}}}",
            "x.json:1:72: parts.a.size must be a whole",
        ),
        (HEAD + '"other": ' + "9" * 5000 + "}", "x.json:1:44: a number of 5000 digits; correct it"),
        (HEAD + '"other": 1e999}', "x.json:1:44: 1e999 is no number that JSON can hold"),
        (HEAD + '"other": [NaN]}', "x.json:1:45: NaN is no number"),
        (HEAD + '"other": "\\ud800"}', "x.json:1:44: this text has half of a surrogate pair"),
        (HEAD + '"names": ["a", 5]}', "names[1] must be text, not 5"),
        (HEAD + '"names": 5}', "names must be a list or null, not 5"),
        (HEAD + '"names": ["a"], "names": ["b"]}', "x.json:1:51: the key 'names' is given twice; keep one of them"),
        (HEAD + '"other": {"k": 1, "\\u006b": 2}}', "the key 'k' is given twice"),
        (HEAD + '"other": ' + "[" * 50 + "]" * 50 + "}", "nested more than 40 deep"),
        ("[" * 1_000_000, "x.json:1:41: nested more than 40 deep"),
        ('{"a":' * 100_000, "nested more than 40 deep"),
    ],
)
def test_a_defect_has_place_reason_and_remedy(load, content, message):
    with pytest.raises(InputError) as raised:
        load(content)
    assert message in str(raised.value)
    assert all(
        line.startswith("x.json:") and line.endswith("; write it again") for line in str(raised.value).split("\n")
    )
    assert raised.value.exit_code == 2


def test_every_defect_is_named_at_once(load):
    with pytest.raises(InputError) as raised:
        load(HEAD + '"parts": {"a": {}, "b": {"name": 1}}, "names": 5, "extra": 1}')
    assert len(raised.value.problems) == 4


def test_brackets_in_strings_are_no_nesting(load):
    assert load(HEAD + '"other": "' + "[{" * 100 + '"}')["other"] == "[{" * 100


def test_a_missing_file_is_not_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        data_files.read_data_text(tmp_path / "none.json")


def test_what_is_no_file_and_what_is_too_large(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="cannot be read"):
        data_files.read_data_bytes(tmp_path)
    with pytest.raises(InputError, match="not a regular file"):
        data_files.read_data_bytes(__import__("pathlib").Path("/dev/zero"))
    monkeypatch.setattr(data_files, "MAX_BYTES", 10)
    (tmp_path / "large").write_bytes(b"x" * 11)
    with pytest.raises(InputError, match="larger than"):
        data_files.read_data_bytes(tmp_path / "large")


def test_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        data_files.read_data_bytes(tmp_path / "pipe")


def test_text_has_no_byte_order_mark_and_a_place_for_what_is_not_utf8(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: b\n")
    assert data_files.read_data_text(path) == "a: b\n"
    path.write_bytes("a: b\nü".encode() + b"\xff")
    with pytest.raises(InputError, match=r"x:2:2: the byte 0xff is not UTF-8"):
        data_files.read_data_text(path, "x")


def test_accepted_content_is_checked_once_and_changed_content_again(tmp_path, monkeypatch):
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "cache"))
    path, module = tmp_path / "x.json", tmp_path / "schema.py"
    path.write_text('{"a": 1}')
    module.write_text("1")
    checked = []

    def parse(data: bytes) -> Any:
        checked.append(data)
        return json_document.parse_json(data, "x.json", dict[str, int], remedy="correct it")

    for _ in range(2):
        assert data_files.load_json_checked_once(path, parse, [module]) == {"a": 1}
    assert len(checked) == 1
    path.write_text('{"a": "1"}')
    for _ in range(2):  # what was refused is not remembered
        with pytest.raises(InputError, match="a must be a whole number"):
            data_files.load_json_checked_once(path, parse, [module])
    path.write_text('{"a": 2}')
    assert data_files.load_json_checked_once(path, parse, [module]) == {"a": 2}
    data_files._modules_digest.cache_clear()
    module.write_text("2")
    assert data_files.load_json_checked_once(path, parse, [module]) == {"a": 2}
    assert len(checked) == 5


def test_a_number_that_python_would_not_convert_is_refused_wherever_it_stands(load, tmp_path):
    digits = "9" * 5000
    with pytest.raises(InputError, match=r"x.json:1:45: a number of 5000 digits"):
        load(HEAD + f'"other": "{digits}"}}')
    (tmp_path / "x.yaml").write_text(f"a: b\ntorch: 2.{digits}\n")
    with pytest.raises(InputError, match=r"x.yaml:2:10: a number of 5000 digits"):
        data_files.read_data_text(tmp_path / "x.yaml", "x.yaml")
