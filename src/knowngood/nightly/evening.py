"""What a night starts from: the cells as they are, the earlier reports, who does which check. Edge."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood import cell as cells
from knowngood import evidence, render, select, smoke
from knowngood.building import pipeline, survey
from knowngood.engines import engine as engines
from knowngood.errors import KnowngoodError, UsageError
from knowngood.locks import wheelhouse
from knowngood.nightly import pairwise, plan, since, state
from knowngood.nightly.culprit import Culprits
from knowngood.nightly.images import Images
from knowngood.nightly.model import Check, Finding, Report, Result, Severity
from knowngood.nightly.night import Crew, Say
from knowngood.nightly.releases import Upstream
from knowngood.nightly.services import Audit, Files
from knowngood.nightly.tonight import Asked, Prepared
from knowngood.publishing import audit, release

if TYPE_CHECKING:
    from knowngood.cell import Cell
    from knowngood.project import Project


def prepare(here: Project, asked: Asked, say: Say) -> Prepared:
    """Look at cells, evidence, reports and the engine, and plan."""
    chosen = select.select(here.matrix.cells, here.matrix.aliases, asked.words)
    now = datetime.now(UTC)
    reports, notes = state.load(asked.folder)
    earlier = [report for report in reports if report.date < now.date().isoformat()]
    house = wheelhouse.folder(asked.wheelhouse)
    images = _images(here, asked, house, say)
    node = smoke.node(images.line.engine) if images.line else smoke.fingerprint(platform.node(), {})
    wanted = survey.asked(here, chosen, house)
    known, refused = [], list[Result]()
    for item in wanted:
        notes += [f"{item.cell}: {item.note}"] if item.note else []
        if why := item.lacks or item.unlocked or _unrendered(here, item.cell):
            refused.append(_refused(item.cell, why, missing=bool(item.lacks)))
            continue
        runs, unreadable = evidence.load_all(here.evidence, item.cell)
        notes += unreadable
        inputs = item.shape.inputs if item.shape else ""
        known.append(_planned(here, cells.parse(item.cell), inputs, runs, earlier, node, asked))
    locked = [cell for cell in chosen if _sound(here, cell)]
    if not asked.checks & {Check.REBUILD, Check.SUITE}:
        refused = []
    settings = asked.settings()
    if asked.pairwise:
        covering = pairwise.covering({cells.parse(one.id): _settings(one.id, here) for one in known})
        said = (
            f"pairwise: {len(covering.rows)} of {covering.combinations} combinations of cell and setting, in "
            f"{len(covering.cells)} of {len(known)} cells, have all {covering.pairs} pairs of values"
        )
        say(said)
        notes.append(said)
        settings = replace(settings, among=covering.cells)
    tasks, left = plan.plan(known, settings, now, _whole(known, asked))
    last = since.before(reports, now.date().isoformat())
    crew = Crew(
        wide={
            Check.FILES: Files(here=here, cells=locked, wheelhouse=house),
            Check.UPSTREAM: Upstream(here=here, cells=chosen),
            Check.AUDIT: Audit(
                here=here, cells=locked, tracker=asked.tracker or audit.TRACKER, earlier=_vulnerable(last)
            ),
        },
        rebuild=images.rebuild,
        suite=images.suite,
        explain=Culprits(here=here, gpus=asked.suite.gpus, house=house, bisect=asked.bisect),
        elsewhere=asked.elsewhere is not None,
    )
    return Prepared(
        here=here,
        asked=asked,
        now=now,
        cells=chosen,
        tasks=tasks,
        left=[*left, *refused],
        settings=settings,
        crew=crew,
        node=node,
        last=last,
        notes=notes,
    )


def _sound(here: Project, cell: Cell) -> bool:
    """Whether it has a lock that is whole; that it has not is told as what it was refused for."""
    try:
        return here.tree.load(cell) is not None
    except UsageError:
        return False


def _images(here: Project, asked: Asked, house: Path, say: Say) -> Images:
    """The engine, where a check needs one; what is wrong with it is told by those checks."""
    if not asked.checks & {Check.REBUILD, Check.SUITE}:
        return Images(line=None)
    try:
        found = engines.ensure(say=say)
    except KnowngoodError as error:
        return Images(line=None, lacking=error)
    options = pipeline.Options(wheelhouse=house, locked=True, suite=asked.suite)
    return Images(line=pipeline.Pipeline(here, options, found), elsewhere=asked.elsewhere)


def _planned(  # noqa: PLR0913, PLR0917
    here: Project,
    cell: Cell,
    inputs: str,
    runs: Sequence[evidence.Evidence],
    earlier: Sequence[Report],
    node: Mapping[str, Any],
    asked: Asked,
) -> plan.Cell:
    image = release.recorded(here, cell, survey.digests(here))
    return plan.Cell(
        id=str(cell),
        inputs=inputs,
        recorded=here.tree.record_path(cell).exists(),
        proven=plan.proof(runs, image, node, gpus=asked.suite.gpus, quick=asked.suite.quick),
        rebuilt=plan.rebuilt(earlier, str(cell), inputs),
        seconds=plan.took(earlier, str(cell)),
    )


def _unrendered(here: Project, cell: str) -> str:
    """Why its Dockerfile is not what would be built; empty when it is."""
    one = cells.parse(cell)
    text = render.dockerfile(release.committed(here, one), here.templates)
    stale = render.stale({here.tree.cell_folder(one) / "Dockerfile": text}, [])
    return "its Dockerfile is stale; run `knowngood render` and commit it" if stale else ""


def _refused(cell: str, why: str, *, missing: bool) -> Result:
    """A cell that cannot be built as it is committed."""
    severity = Severity.MISSING if missing else Severity.ERROR
    said = why if why.startswith(cell) else f"{cell}: {why}"
    finding = Finding(
        check=Check.REBUILD, kind="not-current", severity=severity, subject=cell, text=said, cells=(cell,)
    )
    return Result(check=Check.REBUILD, subject=cell, outcome="not current", note=why, findings=(finding,))


def _settings(cell: str, here: Project) -> list[str]:
    """The attention settings that runs of a cell have looked at; those of any cell where it has no runs."""
    runs, _ = evidence.load_all(here.evidence, cell)
    found = [name for name, outcome in evidence.attention(runs).items() if outcome != "not-run"]
    return found or ["eager", "sdpa"]


def _whole(known: Sequence[plan.Cell], asked: Asked) -> str:
    """What the checks of no one cell follow from."""
    words = sorted(f"{item.id} {item.inputs}" for item in known)
    return hashlib.sha256("\n".join([*words, asked.tracker or ""]).encode()).hexdigest()


def _vulnerable(last: Report | None) -> dict[str, str]:
    found = last.findings if last else []
    return {item.subject: item.since for item in found if item.kind == "vulnerability"}
