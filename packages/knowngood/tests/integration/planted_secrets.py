"""Tokens for every variable and file that the program reads, and a search for them in everything it leaves behind."""

from __future__ import annotations

import ast
import base64
import contextlib
import gzip
import json
import re
import secrets
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

import zstandard

PREFIXES = ("ALL_", "DOCKER_", "HF_", "HTTP_", "HTTPS_", "KNOWNGOOD_", "NETRC", "PIP_", "SSL_", "UV_")
"""How the names of variables begin that belong to this program, to package clients, to engines and to proxies."""
HARMLESS = frozenset(
    {
        # They name files, folders or sockets, and must do so for the run to work.
        *("DOCKER_CONFIG", "DOCKER_HOST", "HF_HOME", "KNOWNGOOD_CACHE", "KNOWNGOOD_WHEELHOUSE"),
        *("NETRC", "PIP_CERT", "PIP_CONFIG_FILE", "SSL_CERT_FILE", "SSL_CERT_DIR", "UV_CACHE_DIR", "UV_CONFIG_FILE"),
        *("UV_PYTHON_INSTALL_DIR", "KNOWNGOOD_TMP", "KNOWNGOOD_KEY_PASSPHRASE_FILE"),
        "KNOWNGOOD_SIGNING_KEY",  # the test makes the key in it
        # They switch something, or are numbers and names of servers.
        *("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "KNOWNGOOD_RUN", "UV_HTTP_TIMEOUT"),
        *("UV_INSECURE_HOST", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS"),
    }
)
"""Variables that hold no secret. A new variable is one with a secret until it is named here."""


def find_variables(source: Path) -> set[str]:
    """Return the variables with these prefixes that the packages in a folder name, without harmless ones."""
    constants = (
        node.value
        for path in source.glob("*/src/**/*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    names = {text for text in constants if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*", text)}
    return {name for name in names if name.startswith(PREFIXES)} - HARMLESS


PREFIX = "kgtoken"
"""How every token begins. What does not contain this, in one of its forms, is not searched for single tokens."""
USERS = ("", "bob:", "alice:")
"""What is before a token where it is written in base64: nothing, or the user of a login."""


class Tokens:
    """Distinct tokens by the name of the place in which they are planted."""

    def __init__(self) -> None:
        self.by_place: dict[str, str] = {}

    def plant(self, place: str) -> str:
        """Return a new token for a place."""
        self.by_place[place] = f"{PREFIX}{secrets.token_hex(12)}"
        return self.by_place[place]

    def search(self, data: bytes) -> set[str]:
        """Return the places whose tokens are in the data, as they are or in base64."""
        others = [token.encode() for token in self.by_place.values() if not token.startswith(PREFIX)]
        if not any(mark in data for mark in (*_MARKS, *others)):
            return set()
        return {place for place, token in self.by_place.items() if any(form in data for form in _forms_of(token))}


def _forms_of(token: str) -> list[bytes]:
    """Return the token, and what base64 makes of it, without the end that depends on what follows."""
    return [token.encode(), *(base64.b64encode((user + token).encode()).rstrip(b"=")[:-4] for user in USERS)]


_MARKS = [
    PREFIX.encode(),
    *(base64.b64encode(text[: len(text) // 3 * 3]) for text in ((user + PREFIX).encode() for user in USERS)),
]


def search_folder(tokens: Tokens, folder: Path, skipped: tuple[Path, ...] = ()) -> list[str]:
    """Return `PLACE in FILE` for every token in the names and contents of a folder's files.

    Compressed files, as the layers of images are, are searched uncompressed, whatever their size.
    """
    leaks = []
    for path in sorted(folder.rglob("*")):
        if any(path.is_relative_to(item) for item in skipped):
            continue
        leaks += [f"{place} in the name {path}" for place in tokens.search(path.name.encode())]
        if path.is_symlink():
            leaks += [f"{place} in the link {path}" for place in tokens.search(bytes(path.readlink()))]
        elif path.is_file():
            leaks += [f"{place} in {path}" for place in search_file(tokens, path)]
    return leaks


def search_file(tokens: Tokens, path: Path) -> set[str]:
    """Return the places whose tokens are in a file, also where the file is compressed by zstd or gzip."""
    places, before = set(), b""
    for blocks in (_plain_blocks(path), _unpacked_blocks(path)):
        before = b""
        for block in blocks:
            places |= tokens.search(before + block)
            before = block[-100:]
    return places


def _plain_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            yield block


def _unpacked_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        try:
            if magic == b"\x28\xb5\x2f\xfd":
                yield from zstandard.ZstdDecompressor().read_to_iter(file, write_size=1 << 22)
            elif magic[:2] == b"\x1f\x8b":
                with gzip.open(file) as unpacked:
                    while block := unpacked.read(1 << 22):
                        yield block
        except (zstandard.ZstdError, OSError, EOFError, zlib.error):
            return  # not complete, or not what its first bytes say


class CommandLines:
    """Watches the command lines and names of all processes of this machine for tokens, until the block ends."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens, self.leaks, self.samples = tokens, set[str](), 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        known = set[bytes]()
        while not self._end.is_set():
            lines = set[bytes]()
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):  # it has ended
                    lines.add(path.read_bytes())
            for line in lines - known:
                self.leaks |= {f"{place} in the command {line[:80]!r}" for place in self.tokens.search(line)}
            known |= lines
            self.samples += 1
            time.sleep(0.05)


def docker_config(login: Mapping[str, tuple[str, str]], proxy: str) -> str:
    """Return a configuration of docker with logins (host -> user, password) and a proxy."""
    auths = {host: {"auth": base64.b64encode(":".join(pair).encode()).decode()} for host, pair in login.items()}
    return json.dumps({"auths": auths, "proxies": {"default": {"httpProxy": proxy, "httpsProxy": proxy}}})
