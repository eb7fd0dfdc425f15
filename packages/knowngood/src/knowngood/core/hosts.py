"""The processors of the hosts that images are for: x86-64, and aarch64 (Arm). Pure.

A host has one name here, and others elsewhere: Linux says `x86_64`, Debian and OCI say `amd64`.
"""

from __future__ import annotations

from enum import StrEnum

from knowngood.core.errors import UsageError


class HostArchitecture(StrEnum):
    """The architecture of a host's processor, as matrix.yaml, SELECT and cell ids name it."""

    X86_64 = "x86-64"
    AARCH64 = "aarch64"

    @property
    def machine(self) -> str:
        """The name in `uname -m`, in wheels' tags and in markers of requirements: `x86_64` or `aarch64`."""
        return self.value.replace("-", "_")

    @property
    def debian(self) -> str:
        """The name in Debian's packages and in OCI images: `amd64` or `arm64`."""
        return {HostArchitecture.X86_64: "amd64", HostArchitecture.AARCH64: "arm64"}[self]

    @property
    def oci_platform(self) -> str:
        """The platform of an image for such a host, as `docker --platform` takes it: `linux/amd64`."""
        return f"linux/{self.debian}"

    @property
    def multiarch(self) -> str:
        """The name of Debian's folders of libraries: `x86_64-linux-gnu`."""
        return f"{self.machine}-linux-gnu"


DEFAULT_HOST = HostArchitecture.X86_64
"""The host of a cell whose id names none."""

_OTHER_NAMES = {
    **{name: host for host in HostArchitecture for name in (host.value, host.machine, host.debian)},
    "x64": HostArchitecture.X86_64,
}


def parse_host(text: str) -> HostArchitecture:
    """Return the host that a name means, such as `aarch64`, `arm64`, `x86-64`, `x86_64` or `amd64`.

    Raises `UsageError` for any other name.
    """
    if host := _OTHER_NAMES.get(text.lower()):
        return host
    raise UsageError(f"{text!r} is no host that images are for; they are {' and '.join(HostArchitecture)}")


def detect_host_architecture() -> HostArchitecture | None:
    """Return the architecture of this machine; `None` where it is neither."""
    import platform  # only here, because its import takes a while

    return _OTHER_NAMES.get(platform.machine().lower())
