"""Docker's `config.json`, checked before docker's own library reads it, which ends in a traceback when it is damaged.

No message shows a value of it: they are credentials.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from knowngood.core import data_files, json_document
from knowngood.core.errors import InputError

_REMEDY = "correct the file, or remove it and run `docker login` again"


def docker_config_path() -> Path:
    """Return the path of the user's `config.json`, which may not exist."""
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"


def check_docker_config() -> None:
    """Check the user's `config.json`; raises `InputError` with every defect, and nothing when there is none."""
    path = docker_config_path()
    try:
        data = data_files.read_data_bytes(path)
    except FileNotFoundError:
        return
    check_docker_logins(data, str(path))


def check_docker_logins(data: bytes, file: str) -> None:
    """Check the content of a `config.json` with this name; raises `InputError` with every defect."""
    config: Any = json_document.parse_json(data, file, object, remedy=_REMEDY)
    text = data_files.decode_data_text(data, file)
    problems = [
        json_document.problem_at(file, text, json_document.find_json_offset(text, path), f"{words}; {_REMEDY}")
        for path, words in _login_defects(config)
    ]
    if problems:
        raise InputError(problems)


def _login_defects(config: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path and the description of what docker's library could not use."""
    if not isinstance(config, dict):
        yield (), "the file must be an object"
        return
    for section, kind in (("credHelpers", dict), ("credsStore", str), ("auths", dict)):
        if not isinstance(config.get(section, kind()), kind):
            yield (section,), f"{section} must be {'text' if kind is str else 'an object'}"
    for host, helper in _section(config, "credHelpers").items():
        if not isinstance(helper, str):
            yield ("credHelpers", host), f"the helper of {host} must be text"
    for host, login in _section(config, "auths").items():
        if not isinstance(login, dict):
            yield ("auths", host), f"the login of {host} must be an object"
        elif "auth" in login and not _is_login(login["auth"]):
            yield ("auths", host, "auth"), f"the `auth` of {host} must be USER:PASSWORD in base64"


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _is_login(auth: Any) -> bool:
    try:
        return ":" in base64.b64decode(auth, validate=True).decode()
    except (TypeError, ValueError):
        return False
