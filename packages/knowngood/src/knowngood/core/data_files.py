"""The one way to read a data file: size, UTF-8, syntax, depth, and for JSON the keys and types of its content.

    class Wheel(TypedDict):
        schema: Literal["knowngood/wheel/1"]
        size: FileSize

    wheel = load_json(path, Wheel, remedy="compile it again")

Every defect becomes an `InputError` (exit 2) that names the file, the line and the column, says what is wrong, and ends
with the `remedy`. A YAML file is read with `read_data_text`, and parsed by `core.yaml_document`. A file that does not
exist raises `FileNotFoundError`, because for many files that is no defect. docs/decisions/0005-one-loader.md says more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from knowngood.core import json_document
from knowngood.core.errors import InputError, InputProblem
from knowngood.core.local_files import cache_folder, write_atomically

T = TypeVar("T")

MAX_BYTES = 16 * 1024 * 1024
"""The largest file that is read."""


def load_json(path: Path, content: type[T], *, remedy: str, file: str | None = None) -> T:
    """Return the content of a JSON file as plain data, checked against a `TypedDict` or another type.

    `file` is its name for messages, by default its path; `remedy` says what to do about a damaged file.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it is damaged, with every defect and its place.
    """
    name = file or str(path)
    return json_document.parse_json(read_data_bytes(path, name), name, content, remedy=remedy)


def load_json_checked_once(
    path: Path, parse: Callable[[bytes], Any], modules: Iterable[Path], *, remedy: str = ""
) -> Any:
    """Return the content of a JSON file that `parse` accepts; what it has accepted before is not checked again.

    A file whose name ends in `.gz` is compressed by gzip; `remedy` says what to do about a damaged one.

    This is for the files that `check` reads at every start. The cache keeps a digest of the content that was accepted,
    together with the `modules` that decide it, so any change of either leads to a new check.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: from `parse`.
    """
    data = read_compressed_text(path, remedy) if path.suffix == ".gz" else read_data_bytes(path)
    digest = hashlib.sha256(_modules_digest(tuple(modules)) + data).hexdigest()
    mark = cache_folder() / "checked" / hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]
    with contextlib.suppress(OSError):
        if mark.read_bytes() == digest.encode():
            return json.loads(data.removeprefix(b"\xef\xbb\xbf"))
    content = parse(data)
    with contextlib.suppress(OSError):
        write_atomically(mark, digest)
    return content


_GZIP = 31
"""What zlib calls the form of gzip. The module gzip takes 10 ms to be imported, zlib one."""


def read_compressed_text(path: Path, remedy: str) -> bytes:
    """Return the text that a file of gzip has, as UTF-8.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it is damaged, or larger than any file that is read.
    """
    decompressor = zlib.decompressobj(_GZIP)
    problem = ""
    text = b""
    try:
        text = decompressor.decompress(read_data_bytes(path), MAX_BYTES)
    except zlib.error as error:
        problem = f"it cannot be unpacked ({error})"
    else:
        if not decompressor.eof:
            problem = "it is more than 16 MiB unpacked" if decompressor.unconsumed_tail else "it is cut off"
    if problem:
        raise InputError([InputProblem(file=str(path), line=1, column=1, text=f"{problem}; {remedy}")])
    return text


def write_compressed_text(path: Path, text: str) -> bool:
    """Write a text as a file of gzip, and return whether that changed the text.

    Other builds of zlib compress the same text to other bytes, so a file with this text is left as it is.
    """
    with contextlib.suppress(OSError, InputError):
        if read_compressed_text(path, "") == text.encode():
            return False
    compressor = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
    return write_atomically(path, compressor.compress(text.encode()) + compressor.flush())


@cache
def _modules_digest(modules: tuple[Path, ...]) -> bytes:
    return hashlib.sha256(b"".join(map(Path.read_bytes, modules))).digest()


def read_data_text(path: Path, file: str | None = None) -> str:
    """Return the text of a data file, without a byte order mark; raises as `load_json` does."""
    name = file or str(path)
    return decode_data_text(read_data_bytes(path, name), name)


def decode_data_text(data: bytes, file: str) -> str:
    """Return the text in `data`, without a byte order mark.

    Raises `InputError` with the place of what is not UTF-8, or of a number of 100 digits and more.
    """
    body = data.removeprefix(b"\xef\xbb\xbf")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        before = body[: error.start]
        problem = InputProblem(
            file=file,
            line=before.count(b"\n") + 1,
            column=len(before[before.rfind(b"\n") + 1 :].decode(errors="replace")) + 1,
            text=f"the byte 0x{body[error.start]:02x} is not UTF-8; save the file as UTF-8",
        )
        raise InputError([problem]) from None
    refuse_long_numbers(text, file)
    return text


def refuse_long_numbers(text: str, file: str) -> None:
    """Raise `InputError` for a number of 100 digits and more.

    Nothing has a use for it, and Python's conversion to a number fails from 4,300 digits on.
    """
    # Of 100 characters in a row every 14th is at least seven: that look is much quicker, and mostly finds none.
    if re.search(r"[0-9]{7}", text[::14]) and (match := re.search(r"[0-9]{100,}", text)):
        words = f"a number of {len(match[0])} digits; correct it"
        raise InputError([json_document.problem_at(file, text, match.start(), words)])


def read_data_bytes(path: Path, file: str | None = None) -> bytes:
    """Return the bytes of a data file; raises as `load_json` does."""
    name = file or str(path)
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise _whole_file_error(name, "not a regular file; put the file itself here")
        with path.open("rb") as handle:
            data = handle.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _whole_file_error(
            name, f"the file cannot be read ({error.strerror}); correct that, and try again"
        ) from None
    if len(data) > MAX_BYTES:
        raise _whole_file_error(name, f"the file is larger than {MAX_BYTES // 2**20} MiB; is it the right one?")
    return data


def _whole_file_error(file: str, text: str) -> InputError:
    return InputError([InputProblem(file=file, line=1, column=1, text=text)])
