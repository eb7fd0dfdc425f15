"""The package-index, proxy and CA settings of this host, for the resolver here and, as secrets, for a build.

uv does not read pip's configuration, and a build sees the settings of neither; this module carries both over. Settings
that name a folder of this machine (`file:` indexes, find-links) are left out: a build could not reach the folder, so a
lock must not depend on it.

What uv prints about an archive that it could not open, or whose hash is another one.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from knowngood.core.errors import CorruptArchiveError

_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL")
# uv's settings for reaching a server, and the credentials of a named index, `UV_INDEX_<NAME>_PASSWORD`.
_FORWARDED = re.compile(
    r"UV_INSECURE_HOST|UV_HTTP_TIMEOUT|UV_INDEX_STRATEGY|UV_KEYRING_PROVIDER|UV_INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)"
)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_CA_FILES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """How package clients on this host are configured."""

    env: Mapping[str, str]
    """Environment variables for uv."""
    files: Mapping[str, Path]
    """Secret id (`ca`, `netrc`, `uv-config`) -> the host's file."""

    def shell(self) -> str:
        """Return `env` as shell assignments: the text of the secret that a build step sources."""
        return "".join(f"export {key}={shlex.quote(value)}\n" for key, value in sorted(self.env.items()))

    def credentials(self, url: str) -> tuple[str, str] | None:
        """Return the user and password for an address of HTTP: of an index, from its address or by its name, or netrc.

        An index's are for its own scheme, host and port. Those of netrc, which has only hosts, are for https and for
        an index that is configured without encryption. So a page that names a file at `http://` gets no password.
        """
        from requests.utils import get_netrc_auth

        from knowngood.index.server_answers import UnsafeAddressError, parse_origin

        origin, configured = parse_origin(url), False
        for word in " ".join(self.env.get(key, "") for key in _INDEXES).split():
            name, _, address = word.partition("=") if re.match(r"[A-Za-z0-9._-]+=", word) else ("", "", word)
            try:
                same = parse_origin(address) == origin
            except UnsafeAddressError:
                continue
            parts = urlsplit(address)
            prefix = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
            user = unquote(parts.username or "") or self.env.get(f"{prefix}_USERNAME")
            password = unquote(parts.password or "") or self.env.get(f"{prefix}_PASSWORD", "")
            if same and user:
                return user, password
            configured |= same
        return get_netrc_auth(url) if origin[0] == "https" or configured else None


def read_index_settings(
    environ: Mapping[str, str] | None = None, pip_files: Iterable[Path] | None = None
) -> IndexSettings:
    """Read the settings of this host. `environ` and `pip_files` replace the real ones in tests."""
    environ = os.environ if environ is None else environ
    home = Path(environ.get("HOME", "~")).expanduser()
    pip = _read_pip_options(environ, _pip_files(environ, home) if pip_files is None else pip_files)
    env = {key: " ".join(_remote(environ.get(key, ""))) for key in _INDEXES}
    env |= {key: value for key, value in environ.items() if _FORWARDED.fullmatch(key) or key.upper() in _PROXIES}
    env = {key: value for key, value in env.items() if value}
    index = _remote(pip.get("index-url", ""))
    if index and not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & env.keys():
        env["UV_DEFAULT_INDEX"] = index[0]
    extra = _remote(pip.get("extra-index-url", ""))
    if extra and not {"UV_INDEX", "UV_EXTRA_INDEX_URL"} & env.keys():
        env["UV_INDEX"] = " ".join(extra)
    if trusted := pip.get("trusted-host", "").split():
        env.setdefault("UV_INSECURE_HOST", " ".join(trusted))
    if seconds := re.match(r"\d+", pip.get("timeout", "")):
        env.setdefault("UV_HTTP_TIMEOUT", seconds[0])
    if pip.get("proxy") and not {"HTTPS_PROXY", "ALL_PROXY"} & {key.upper() for key in env}:
        env |= {"HTTP_PROXY": pip["proxy"], "HTTPS_PROXY": pip["proxy"]}
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    candidates = {
        "ca": [*(environ.get(key) for key in _CA_FILES), pip.get("cert")],
        "netrc": [environ.get("NETRC"), str(home / ".netrc")],
        "uv-config": [environ.get("UV_CONFIG_FILE"), str(config / "uv/uv.toml"), "/etc/uv/uv.toml"],
    }
    files = {}
    for secret, paths in candidates.items():
        existing = (path for name in paths if name and (path := Path(name).expanduser()).is_file())
        if first := next(existing, None):
            files[secret] = first
    return IndexSettings(env=env, files=files)


def _remote(value: str) -> list[str]:
    """Return the indexes in `value` that a build can reach. uv allows a name before each: `internal=https://...`."""
    return [url for url in value.split() if re.match(r"([A-Za-z0-9._-]+=)?https?://", url)]


def _pip_files(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return pip's configuration files; a later one overrides an earlier one.

    The file in PIP_CONFIG_FILE replaces the user's own; /dev/null there turns off all of them.
    """
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    machine = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf")]
    site = Path(sys.prefix) / "pip.conf"
    if named and Path(named).exists():
        return [*machine, site, Path(named)]
    return [*machine, home / ".pip/pip.conf", config / "pip/pip.conf", site]


def _read_pip_options(environ: Mapping[str, str], files: Iterable[Path]) -> dict[str, str]:
    """Return pip's options by their long names.

    `[install]` overrides `[global]`, a later file an earlier one, and the environment all files.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8-sig")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself reports it when it is used; nothing here depends on a broken file
        for section, values in sections.items():
            if parser.has_section(section):
                values |= {key.replace("_", "-").removeprefix("--"): value for key, value in parser.items(section)}
    options = sections["global"] | sections["install"]
    for key, value in environ.items():
        if key.startswith("PIP_") and value:
            options[key.removeprefix("PIP_").lower().replace("_", "-")] = value
    return options


CORRUPT_PATTERN = r"(?i)hash mismatch|failed to extract archive"
"""Matches a line of uv's output about a corrupt archive. A download that stopped early is reported otherwise."""

_EXTRACTION = re.compile(r"(?i)failed to extract archive: (?P<file>\S+)(?P<causes>(?:\n[\d. ]*cause: .*)*)")
_MISMATCH = re.compile(r"(?i)hash mismatch for `?(?P<file>[^`\s]+)")
_HASH = r":\s+(?:[\d.]+\s+)?sha256:([0-9a-f]{64})"


def parse_corrupt_archive(output: str, advice: str) -> CorruptArchiveError:
    """Return the error for uv's output about an archive that it could not open, or whose hash is another one.

    The archive is named by its file, or as `NAME==VERSION`. uv tells the two hashes only where it could open it.
    """
    opened, mismatch = _EXTRACTION.search(output), _MISMATCH.search(output)
    match = opened or mismatch
    expected, actual = re.search("Expected" + _HASH, output), re.search("Computed" + _HASH, output)
    causes = [line.partition("cause: ")[2] for line in opened["causes"].splitlines()] if opened else []
    return CorruptArchiveError(
        match["file"] if match else "an archive of the index",
        expected=expected[1] if expected else "",
        actual=actual[1] if actual else "",
        detail=causes[-1] if causes else "" if opened else "hash mismatch",
        advice=advice,
    )
