"""The program of one side: what it needs, how it is started, and the interface of the places where it runs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from knowngood.core.errors import UnknownError
from knowngood.core.notify import Notify
from knowngood.reproductions.observation import Observation
from knowngood.reproductions.reproduction import ReproductionCase, ReproductionSide

PROGRAM_SECONDS = 600
"""A program that runs longer is stopped."""

ReleaseUnpacker = Callable[[str, Sequence[str], str], Mapping[str, bytes]]
"""From a pin, globs and a Python release to the matching files of that published release: path -> content."""


class CannotTryError(UnknownError):
    """A side cannot be run here (exit 3); the text says what is missing."""


@dataclass(frozen=True, kw_only=True)
class SideJob:
    """One side of a reproduction, ready to run."""

    case: ReproductionCase
    name: str
    """The side's name."""
    files: Mapping[str, bytes]
    """The files beside the program: its own, stand-ins, and unpacked releases under `sources/`. Path -> content."""

    @property
    def side(self) -> ReproductionSide:
        """The side, with what all sides share."""
        return self.case.definition.side(self.name)

    @property
    def command(self) -> tuple[str, ...]:
        """The arguments of the interpreter, which starts in the folder of the files."""
        return ("observe.py", "report.json", "program.py", *self.side.arguments)


class ReproductionPlace(Protocol):
    """A kind of environment in which programs run."""

    @property
    def where(self) -> str:
        """The name of the place, as evidence has it: `venv`, `image` or `here`."""
        ...

    def node(self) -> Mapping[str, Any]:
        """Return the fingerprint of the machine."""
        ...

    def gpus(self) -> int:
        """Return how many GPUs a program would see there."""
        ...

    def observe(self, job: SideJob, notify: Notify) -> Observation:
        """Create the environment and run the program; raises `CannotTryError` when that is not possible here."""
        ...


def program_variables(job: SideJob, folder: str) -> dict[str, str]:
    """Return the environment variables of a program whose files are in `folder`."""
    return {
        "HOME": folder,
        "TMPDIR": f"{folder}/tmp",  # noqa: S108 - a folder that was created for this run
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": f"{folder}:{folder}/sources",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        **job.side.environment,
    }


def file_mode(content: bytes) -> int:
    """Return the permissions of a file beside the program: an ELF file may be executed."""
    return 0o755 if content.startswith(b"\x7fELF") else 0o644
