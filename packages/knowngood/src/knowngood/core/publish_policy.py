"""The section `publish` of matrix.yaml: how far an image must be proven to be published, where, and who signs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from knowngood.core.cell import Cell

LeastTier = Literal["built", "trains-emulated", "trains-on-cpu", "trains-on-gpu"]
"""The tiers that an image with a good run can have, from the least to the most."""


@dataclass(frozen=True, kw_only=True)
class SigningIdentity:
    """Who may sign without a key: somebody for whom a provider of OpenID Connect vouches, such as a CI job."""

    issuer: str
    """Address of the provider, as it stands in the certificate."""
    subject: str
    """The identity itself, character by character: the address of a workflow, or an e-mail address."""
    trust: str | None = None
    """File below the project's folder that names the services and keys of a sigstore; `None` for the public one."""

    @property
    def name(self) -> str:
        """The identity in words, for messages."""
        return f"the identity {self.subject} of {self.issuer}"


@dataclass(frozen=True, kw_only=True)
class PublishPolicy:
    """The least tier of the images that are published, their repository, and the keys or identities that sign them."""

    tier: LeastTier = "built"
    """For every GPU that `gpus` does not name; `built` takes every image with a good run."""
    gpus: Mapping[str, LeastTier] = field(default_factory=dict)
    """GPU architecture -> the least tier of its images."""
    keys: tuple[str, ...] = ()
    """The files of the public keys, below the project's folder; one of them must have signed what is published."""
    identities: tuple[SigningIdentity, ...] = ()
    """The identities that may sign in place of a key."""
    repository: str | None = None
    """Where images are published and pulled from, unless a command or `KNOWNGOOD_REPOSITORY` names another place."""

    def least_tier(self, cell: Cell) -> LeastTier:
        """Return the least tier with which the image of a cell is published."""
        return self.gpus.get(cell.gpu, self.tier)
