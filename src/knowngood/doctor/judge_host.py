"""Judges whether what is examined runs on the processor of a host, this machine's or another. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture
from knowngood.doctor.doctor_line import BAD, UNKNOWN, DoctorLine


@dataclass(frozen=True, kw_only=True)
class ExaminedHost:
    """The host for which the doctor judges."""

    architecture: HostArchitecture | None
    """`None` for a processor that no image is for."""
    origin: str = "this machine"
    """Where it is known from, for people."""
    here: HostArchitecture | None
    """The architecture of this machine."""

    @property
    def shown(self) -> str:
        """The host and where it is known from: `aarch64, as stated with --host`."""
        return f"{self.architecture or 'a processor that no image is for'}, {self.origin}"


def choose_host(
    here: HostArchitecture | None, *, stated: HostArchitecture | None = None, arm_card: str | None = None
) -> ExaminedHost:
    """Return the host to judge for: the stated one, else that of a card with a CPU of Arm, else this machine."""
    if stated:
        return ExaminedHost(architecture=stated, origin="as stated with --host", here=here)
    if arm_card:
        return ExaminedHost(architecture=HostArchitecture.AARCH64, origin=f"the CPU beside {arm_card}", here=here)
    return ExaminedHost(architecture=here, here=here)


def judge_environment_host(host: ExaminedHost) -> DoctorLine:
    """Judge the environment of this machine for a host."""
    line = DoctorLine("host", "host's processor", host.shown)
    if host.architecture is None:
        return line.judged(UNKNOWN, f"images and facts are for {' and '.join(HostArchitecture)}")
    if host.architecture is host.here:
        return line
    images = f"or an image for it: knowngood cells host={host.architecture} lists them"
    because = (
        f"this environment is for {host.here or 'another processor'}, and nothing of it runs on {host.architecture}"
    )
    return line.judged(BAD, because, f"install its packages anew on a host of {host.architecture}", images)


def judge_image_host(host: ExaminedHost, image: str, *, cell: str | None = None, twin: str | None = None) -> DoctorLine:
    """Judge an image for a host.

    Args:
        host: where the image should run.
        image: its architecture, as OCI images name it (`arm64`); empty where it is not known.
        cell: the id of its cell, if it has one.
        twin: the id of the same cell for the host, if matrix.yaml has it.
    """
    line = DoctorLine("host", "host's processor", host.shown)
    if host.architecture is None:
        return line.judged(UNKNOWN, f"images are for {' and '.join(HostArchitecture)}")
    if not image or image == host.architecture.debian:
        return line
    names = {item.debian: item for item in HostArchitecture}
    made_for = names.get(image)
    because = f"the image is for {made_for or image}, and its programs do not run on {host.architecture}"
    other = f"the image of its twin: {twin}" if twin else f"an image for it: knowngood cells host={host.architecture}"
    fixes = [other, f"or a host of {made_for}"] if made_for else [other]
    if made_for is not DEFAULT_HOST and made_for and host.architecture is host.here and cell:
        fixes.append(f"without a GPU its core can be tried under QEMU: knowngood smoke {cell}")
    return line.judged(BAD, because, *fixes)
