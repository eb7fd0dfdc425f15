"""Logging in to a registry with what `docker login` left: basic, or a token of the service that the registry names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from knowngood.errors import KnowngoodError, MissingError

if TYPE_CHECKING:
    import requests

_CHALLENGE = re.compile(r"(?P<scheme>[A-Za-z]+)\s+(?P<rest>.*)")


@dataclass
class Login:
    """What is sent as `Authorization` to one registry, found when the registry first asks for it."""

    host: str
    header: str | None = None
    _credentials: Mapping[str, str] | None = field(default=None, repr=False)

    def answer(self, session: requests.Session, challenge: str, scope: str) -> None:
        """Make `header` from the registry's `WWW-Authenticate`; raises `MissingError` when nobody is logged in."""
        from requests.auth import _basic_auth_str
        from requests.utils import parse_dict_header

        match = _CHALLENGE.fullmatch(challenge.strip())
        known = self._known()
        user, password = known.get("username", ""), known.get("password", "")
        scheme = match["scheme"].lower() if match else ""
        if scheme == "basic":
            if not user:
                raise self._nobody()
            self.header = _basic_auth_str(user, password)
            return
        if scheme != "bearer" or match is None:
            raise KnowngoodError(f"{self.host} asks for a login of a kind that is not known here: {challenge!r}")
        told: dict[str, str] = parse_dict_header(match["rest"])  # type: ignore[no-untyped-call]
        realm = told.get("realm", "")
        if urlsplit(realm).scheme != "https" and not _same_machine(realm):
            raise KnowngoodError(f"{self.host} wants credentials sent in the clear, to {realm!r}; they were not sent")
        query = {"service": told.get("service", self.host), "scope": told.get("scope") or scope}
        if known.get("identitytoken"):
            form = {**query, "grant_type": "refresh_token", "refresh_token": known["identitytoken"]}
            said = session.post(realm, data={**form, "client_id": "knowngood"}, timeout=60)
        else:
            said = session.get(realm, params=query, auth=(user, password) if user else None, timeout=60)
        if said.status_code in (400, 401, 403):
            raise (
                self._nobody()
                if not known
                else MissingError(
                    f"{urlsplit(realm).hostname} refuses the login for {self.host}; run `docker login {self.host}`"
                )
            )
        said.raise_for_status()
        document = said.json()
        self.header = f"Bearer {document.get('token') or document['access_token']}"

    def _nobody(self) -> MissingError:
        return MissingError(f"{self.host} asks for a login, and there is none for it; run `docker login {self.host}`")

    def _known(self) -> Mapping[str, str]:
        """The credentials of docker's configuration or its credential helper; empty if there are none."""
        from docker.errors import DockerException

        from docker import auth

        if self._credentials is None:
            try:
                found = auth.load_config().resolve_authconfig(self.host) or {}
            except DockerException as error:
                raise MissingError(f"the credentials for {self.host} could not be read: {error}") from None
            # The file's keys come in lower case, a helper's do not.
            self._credentials = {key.lower(): str(value) for key, value in found.items() if value}
        return self._credentials


def _same_machine(url: str) -> bool:
    from knowngood.registries.reference import Repository

    return Repository(host=urlsplit(url).netloc.rpartition("@")[2], path="").loopback
