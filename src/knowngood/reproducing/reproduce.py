"""`knowngood reproduce`: each side of a reproduction in an environment of its own, and what follows from what they did.

Where an environment is made and the program run is behind `Place`; the verdict is `reproducing.reproduction`'s.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from knowngood.errors import KnowngoodError, MissingError, UnknownError
from knowngood.incidents.model import Incident
from knowngood.reproducing.observation import Observation, Outcome, Seen, judge, whole
from knowngood.reproducing.reproduction import FAILING
from knowngood.reproducing.reproductions import SCHEMA, Case

OUTPUT_LINES = 25
"""Of the output, the last so many go into the evidence."""

Say = Callable[[str], None]


class CannotTryError(UnknownError):
    """A side cannot be run here (exit 3); the text says what is lacking."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One side, ready to run."""

    case: Case
    side: str
    files: Mapping[str, bytes]
    """What lies beside the program: its own files, stand-ins, and unpacked sources under `sources/`."""

    @property
    def requirements(self) -> tuple[str, ...]:
        """The pins of its environment."""
        return self.case.definition.pins(self.side)

    @property
    def excludes(self) -> tuple[str, ...]:
        """The distributions that must not come into it."""
        return self.case.definition.excluded(self.side)

    @property
    def base_without(self) -> tuple[str, ...]:
        """The Debian packages that its base must not have."""
        return self.case.definition.sides[self.side].base_without

    @property
    def base_with(self) -> tuple[str, ...]:
        """The Debian packages that its base must have beside the others."""
        return self.case.definition.sides[self.side].base_with

    @property
    def command(self) -> tuple[str, ...]:
        """What runs, after the interpreter, in the folder of the files."""
        return ("observe.py", "report.json", "program.py", *self.case.definition.sides[self.side].arguments)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the side sets."""
        return dict(self.case.definition.sides[self.side].environment)


class Place(Protocol):
    """Where environments are made and programs run."""

    @property
    def where(self) -> str:
        """Its name: `venv`, `image` or `here`."""
        ...

    def node(self) -> Mapping[str, Any]:
        """The fingerprint of the machine."""
        ...

    def gpus(self) -> int:
        """How many GPUs a program would see there."""
        ...

    def observe(self, job: Job, say: Say) -> Observation:
        """Make the environment and run the program; `CannotTryError` when that cannot be had here."""
        ...


Unpack = Callable[[str, Sequence[str], str], Mapping[str, bytes]]
"""A pin, globs and a Python to the files of that release for it, path to content."""


def reproduce(  # noqa: PLR0913
    case: Case,
    incidents: Mapping[str, Incident],
    place: Place,
    unpack: Unpack,
    *,
    sides: Sequence[str],
    say: Say,
) -> dict[str, Any]:
    """Run these sides; returns the run's document, as evidence keeps it."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    seen = [_side(case, name, incidents, place, unpack, say) for name in sides]
    return {
        "schema": SCHEMA,
        "reproduction": case.name,
        "digest": case.digest,
        "program": case.sha256("program.py"),
        "where": place.where,
        "node": dict(place.node()),
        "when": when,
        "outcome": str(whole(seen)),
        "stand_ins": [
            {"module": module, "for": told, "sha256": case.sha256(f"{module}.py")}
            for module, told in case.definition.standing_in().items()
        ],
        "sides": [_document(case, item, incidents) for item in seen],
    }


def _side(  # noqa: PLR0913, PLR0917
    case: Case, name: str, incidents: Mapping[str, Incident], place: Place, unpack: Unpack, say: Say
) -> Seen:
    side, expect = case.definition.sides[name], case.definition.expected(name)
    incident = incidents.get(side.incident or case.name)
    if incident is None:
        raise KnowngoodError(f"reproductions/{case.name}: there is no incident {side.incident or case.name!r}")

    def told(step: str) -> None:
        say(f"{name}: {step}")

    try:
        if place.gpus() < side.gpus:
            raise CannotTryError(f"it needs {side.gpus} GPUs, and there are {place.gpus()} here")
        unpacked = {
            f"sources/{path}": content
            for pin, globs in case.definition.unpacked(name).items()
            for path, content in unpack(pin, globs, case.definition.python[0]).items()
        }
        absent = case.definition.standing_in().keys() - case.definition.standing_in(name).keys()
        beside = {file: content for file, content in case.files.items() if file.removesuffix(".py") not in absent}
        observation = place.observe(Job(case=case, side=name, files={**beside, **unpacked}), told)
    except UnknownError as error:
        return Seen(side=name, expect=expect, observation=None, reason=str(error))
    except MissingError as error:
        if place.where == "image":  # without an engine nothing can be tried: that is the answer, not a side's
            raise
        return Seen(side=name, expect=expect, observation=None, reason=str(error))
    return judge(name, expect, observation, incident.signatures)


def _document(case: Case, seen: Seen, incidents: Mapping[str, Incident]) -> dict[str, Any]:
    side, observed = case.definition.sides[seen.side], seen.observation
    made: dict[str, Any] = {
        "side": seen.side,
        "expect": str(seen.expect),
        "outcome": str(seen.outcome),
        "reason": seen.reason,
        "said_cure": side.said,
        "incident": side.incident or case.name,
        "requirements": list(case.definition.pins(seen.side)),
        "excludes": list(case.definition.excluded(seen.side)),
        "sources": list(case.definition.unpacked(seen.side)),
        "stand_ins": list(case.definition.standing_in(seen.side)),
        "base_without": list(side.base_without),
        "base_with": list(side.base_with),
        "arguments": list(side.arguments),
        "environment": dict(side.environment),
    }
    if observed is None:
        return made
    return made | {
        "image": observed.image,
        "python": observed.python,
        "seconds": observed.seconds,
        "exit": observed.exit,
        "exception": observed.exception,
        "signature": seen.signature,
        "diagnosed": diagnosed(observed.output, list(incidents.values())),
        "said": dict(observed.said),
        "output": observed.output.splitlines()[-OUTPUT_LINES:],
        "packages": dict(observed.packages),
    }


def diagnosed(output: str, known: Sequence[Incident]) -> list[str]:
    """What `knowngood diagnose` makes of the output, best first."""
    from knowngood.diagnosing.diagnose import diagnose

    return [match.incident.id for match in diagnose(io.BytesIO(output.encode()), known).matches]


def exit_code(run: Mapping[str, Any]) -> int:
    """0 reproduced, 1 not, 3 it could not be tried; of a part of the sides, whether each did what was expected."""
    outcomes = {side["side"]: side["outcome"] for side in run["sides"]}
    if Outcome.NOT_REPRODUCED in outcomes.values():
        return 1
    if run["outcome"] == Outcome.REPRODUCED:
        return 0
    partial = FAILING not in outcomes or len(outcomes) == 1
    return 0 if partial and set(outcomes.values()) == {Outcome.REPRODUCED} else 3
