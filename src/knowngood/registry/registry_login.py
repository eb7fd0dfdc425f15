"""Log in to a registry with the credentials of `docker login`: basic, or a token from the service it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.engine.docker_logins import check_docker_config

if TYPE_CHECKING:
    import requests

_CHALLENGE = re.compile(r"(?P<scheme>[A-Za-z]+)\s+(?P<rest>.*)")


@dataclass
class RegistryLogin:
    """The `Authorization` header for one registry, made when the registry first asks for it."""

    host: str
    header: str | None = None
    _credentials: Mapping[str, str] | None = field(default=None, repr=False)

    def answer(self, session: requests.Session, challenge: str, scope: str) -> None:
        """Set `header` from the registry's `WWW-Authenticate`; `MissingError` without a login that is accepted."""
        from requests.auth import _basic_auth_str
        from requests.utils import parse_dict_header

        match = _CHALLENGE.fullmatch(challenge.strip())
        credentials = self._read_credentials()
        user, password = credentials.get("username", ""), credentials.get("password", "")
        scheme = match["scheme"].lower() if match else ""
        if scheme == "basic":
            if not user:
                raise self._no_login()
            self.header = _basic_auth_str(user, password)
            return
        if scheme != "bearer" or match is None:
            raise KnowngoodError(f"{self.host} asks for an unsupported kind of login: {challenge!r}")
        parameters: dict[str, str] = parse_dict_header(match["rest"])  # type: ignore[no-untyped-call]
        realm = parameters.get("realm", "")
        if urlsplit(realm).scheme != "https" and not _is_loopback_url(realm):
            raise KnowngoodError(
                f"{self.host} asks for credentials over an unencrypted connection, at {realm!r}; they were not sent"
            )
        query = {"service": parameters.get("service", self.host), "scope": parameters.get("scope") or scope}
        if credentials.get("identitytoken"):
            form = {**query, "grant_type": "refresh_token", "refresh_token": credentials["identitytoken"]}
            response = session.post(realm, data={**form, "client_id": "knowngood"}, timeout=60)
        else:
            response = session.get(realm, params=query, auth=(user, password) if user else None, timeout=60)
        if response.status_code in (400, 401, 403):
            if not credentials:
                raise self._no_login()
            raise MissingError(
                f"{urlsplit(realm).hostname} refuses the login for {self.host}; run `docker login {self.host}`"
            )
        response.raise_for_status()
        document = response.json()
        self.header = f"Bearer {document.get('token') or document['access_token']}"

    def _no_login(self) -> MissingError:
        return MissingError(f"{self.host} asks for a login and there is none; run `docker login {self.host}`")

    def _read_credentials(self) -> Mapping[str, str]:
        """Return the credentials of docker's configuration or its credential helper; empty when there are none."""
        from docker.errors import DockerException

        from docker import auth

        if self._credentials is None:
            check_docker_config()
            try:
                entry = auth.load_config().resolve_authconfig(self.host) or {}
            except DockerException as error:
                raise MissingError(f"the credentials for {self.host} could not be read: {error}") from None
            # The keys of the file are in lower case, those of a helper are not.
            self._credentials = {key.lower(): str(value) for key, value in entry.items() if value}
        return self._credentials


def _is_loopback_url(url: str) -> bool:
    from knowngood.registry.image_reference import Repository

    return Repository(host=urlsplit(url).netloc.rpartition("@")[2], path="").loopback
