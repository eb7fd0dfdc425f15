"""The host's package-index, proxy and CA settings, for the resolver here and, as secrets, for a build.

uv does not read pip's configuration, and a build sees neither; this carries both over. What names a folder of this
machine (`file:` indexes, find-links) stays behind: a build could not reach it, so a lock must not depend on it.
"""

from __future__ import annotations

import configparser
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_FORWARDED = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_INSECURE_HOST", "UV_HTTP_TIMEOUT")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_CA_FILES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a package client on this host was told: environment variables for uv, and files."""

    env: Mapping[str, str]
    files: Mapping[str, Path]
    """Secret id (`ca`, `netrc`, `uv-config`) to the host's file."""

    def shell(self) -> str:
        """`env` as shell assignments, the text of the secret that a build step sources."""
        return "".join(f"export {key}={shlex.quote(value)}\n" for key, value in sorted(self.env.items()))


def settings(environ: Mapping[str, str] | None = None, pip_files: Iterable[Path] | None = None) -> Settings:
    """Read the settings of this host (`environ` and `pip_files` are for tests)."""
    environ = os.environ if environ is None else environ
    home = Path(environ.get("HOME", "~")).expanduser()
    pip = _pip(environ, _pip_files(environ, home) if pip_files is None else pip_files)
    env = {key: value for key, value in environ.items() if key.startswith(_FORWARDED) and "file:" not in value}
    env |= {key: value for key, value in environ.items() if key.upper() in _PROXIES}
    index = _remote(pip.get("index-url", ""))
    if index and not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & env.keys():
        env["UV_DEFAULT_INDEX"] = index[0]
    extra = _remote(pip.get("extra-index-url", ""))
    if extra and not {"UV_INDEX", "UV_EXTRA_INDEX_URL"} & env.keys():
        env["UV_INDEX"] = " ".join(extra)
    if "trusted-host" in pip:
        env.setdefault("UV_INSECURE_HOST", pip["trusted-host"])
    if "timeout" in pip:
        env.setdefault("UV_HTTP_TIMEOUT", pip["timeout"])
    candidates = {
        "ca": [*(environ.get(key) for key in _CA_FILES), pip.get("cert")],
        "netrc": [environ.get("NETRC"), str(home / ".netrc")],
        "uv-config": [environ.get("UV_CONFIG_FILE"), str(home / ".config/uv/uv.toml"), "/etc/uv/uv.toml"],
    }
    files = {}
    for name, paths in candidates.items():
        found = next((Path(path) for path in paths if path and Path(path).is_file()), None)
        if found:
            files[name] = found
    return Settings(env=env, files=files)


def _remote(value: str) -> list[str]:
    return [url for url in value.split() if url.startswith(("http:", "https:"))]


def _pip_files(environ: Mapping[str, str], home: Path) -> list[Path]:
    if environ.get("PIP_CONFIG_FILE"):
        return [Path(environ["PIP_CONFIG_FILE"])]
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return [Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf", Path(sys.prefix) / "pip.conf"]


def _pip(environ: Mapping[str, str], files: Iterable[Path]) -> dict[str, str]:
    """The options of pip by their long names: files in pip's order, `[install]` over `[global]`, environment last."""
    options: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself says so when it is used; nothing here depends on a broken file
        for section in ("global", "install"):
            if parser.has_section(section):
                options.update(parser.items(section))
    for key, value in environ.items():
        if key.startswith("PIP_") and value:
            options[key.removeprefix("PIP_").lower().replace("_", "-")] = value
    return options
