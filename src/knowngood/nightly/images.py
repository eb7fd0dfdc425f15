"""The checks that need an engine: a cell built again from nothing, and its image's suite. Edges."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from knowngood import cell as cells
from knowngood import evidence
from knowngood.building import verify
from knowngood.building.verify import Outcome
from knowngood.engines import engine as engines
from knowngood.engines.engine import Engine, Unsuitable
from knowngood.errors import KnowngoodError, MissingError
from knowngood.evidence import Evidence
from knowngood.nightly.blame import Attempt, Domain
from knowngood.nightly.night import failed

if TYPE_CHECKING:
    from knowngood.building.pipeline import Pipeline

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Images:
    """The engine of this host, and perhaps another one."""

    line: Pipeline | None
    """`None`: there is no engine, and `lacking` says why."""
    lacking: KnowngoodError | None = None
    elsewhere: str | None = None
    """The address of another engine, as DOCKER_HOST has it."""

    def rebuild(self, cell: str, say: Say, *, elsewhere: bool) -> Attempt:
        """Build it from nothing and compare with the committed record."""
        try:
            line, where = self._line(elsewhere=elsewhere)
            verdict = verify.verify(line, cells.parse(cell), say, cold=False)
        except KnowngoodError as error:
            return failed(error, self._where(elsewhere=elsewhere))
        data: dict[str, Any] = {
            "outcome": str(verdict.outcome),
            "recorded": verdict.recorded,
            "rebuilt": verdict.rebuilt,
            "differences": [{"name": item.name, "files": list(item.files[:20])} for item in verdict.differences],
        }
        if verdict.outcome is Outcome.DIFFERENT:
            names = ", ".join(item.name for item in verdict.differences)
            digests = f"{(verdict.rebuilt or '')[:19]} is not {(verdict.recorded or '')[:19]}"
            said = f"not as recorded: {names} differ ({digests})"
            return Attempt(domain=Domain.IMAGE, text=said, where=where, data=data)
        if verdict.outcome is not Outcome.SAME:
            said = verdict.note or "it has no image.json"
            data["warning"] = (
                f"nothing to compare a rebuild with: {said}; `knowngood build --record '{cell}'` records it"
            )
        return Attempt(domain=Domain.NONE, text=(verdict.rebuilt or "")[:19], where=where, data=data)

    def suite(self, cell: str, say: Say, *, elsewhere: bool) -> Attempt:
        """Run the suite in the image, built first where the engine has none; the evidence is kept."""
        try:
            line, where = self._line(elsewhere=elsewhere)
            line = replace(line, options=replace(line.options, prove=True, force_smoke=True))
            result = line.run(cells.parse(cell), say)
        except KnowngoodError as error:
            return failed(error, self._where(elsewhere=elsewhere))
        run = evidence.load(result.evidence) if result.evidence else None
        if not isinstance(run, Evidence):
            return failed(result.error or KnowngoodError(str(run)), where)
        verdict = run.report["verdict"]
        data = {"evidence": str(run.cell + "/" + (result.evidence.name if result.evidence else "")), "image": run.image}
        data["failing"] = next((item["id"] for item in run.report["checks"] if item["outcome"] == "fail"), "")
        return Attempt(domain=_domain(verdict), text=str(verdict["text"]), where=where, data=data)

    def _line(self, *, elsewhere: bool) -> tuple[Pipeline, str]:
        if self.line is None:
            raise self.lacking or MissingError("no engine answers")
        if not elsewhere or self.elsewhere is None:
            return self.line, "here"
        return replace(self.line, engine=engine_at(self.elsewhere)), self.elsewhere

    def _where(self, *, elsewhere: bool) -> str:
        return self.elsewhere if elsewhere and self.elsewhere else "here"


def _domain(verdict: dict[str, Any]) -> Domain:
    if verdict["ok"]:
        return Domain.NONE
    return Domain(verdict["domain"]) if verdict["domain"] in set(Domain) else Domain.IMAGE


def engine_at(host: str) -> Engine:
    """The engine at an address; `MissingError` when none is there that can build."""
    with _docker_host(host):
        found = engines.find_system()
    if isinstance(found, Unsuitable):
        raise MissingError(f"--elsewhere: {found.reason}")
    return found


@contextlib.contextmanager
def _docker_host(host: str) -> Iterator[None]:
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = host
    try:
        yield
    finally:
        del os.environ["DOCKER_HOST"]
        if before is not None:
            os.environ["DOCKER_HOST"] = before
