"""What an answer says about a trainer or a model that a query names, by the cells and runs that have it. Pure."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import Version

from knowngood.evidence.model_judgement import LAYOUTS, RunIncident, model_name_of_type, shorten_reason
from knowngood_facts.compat.broken_pairs import find_broken_pairs
from knowngood_facts.compat.findings import Finding, fact_finding
from knowngood_facts.compat.matrix_cells import PublishedCells, packages_of_cell, takes_release
from knowngood_facts.compat.query_resolution import resolve_with_cell
from knowngood_facts.compat.resolution_findings import list_names
from knowngood_facts.compat.rule_relations import condition_holds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from knowngood.core.cell import Cell
    from knowngood.evidence.model_runs import SeenSetting, SeenSettings
    from knowngood_facts.compat.added_package_check import AdditionForecast
    from knowngood_facts.compat.query import PackageSpec
    from knowngood_facts.compat.query_placement import QueryPlacement

TRAINER = "trainer:"
"""The ids of findings about the cells of a trainer begin so."""


def describe_trainers(
    placement: QueryPlacement,
    published: PublishedCells,
    wanted: Mapping[str, PackageSpec],
    offered: Sequence[Cell],
) -> Iterator[Finding]:
    """Yield what there is to say about the trainers of a query that no offered cell has.

    Args:
        placement: the query.
        published: the cells of matrix.yaml.
        wanted: the trainers of the query that some of these cells have.
        offered: the cells of matrix.yaml that are offered.
    """
    for name, package in wanted.items():
        if name in placement.uncovered and not any(_has_package(published, cell, name) for cell in offered):
            yield _describe_missing_trainer(placement, package, published)


def _has_package(published: PublishedCells, cell: Cell, name: str) -> bool:
    return (cell.framework_pin or ("",))[0] == name or name in published.read_lock(cell)


def _describe_missing_trainer(placement: QueryPlacement, package: PackageSpec, published: PublishedCells) -> Finding:
    """Return which cells have a trainer, those for the query's GPU first, and why another release cannot be had."""
    gpus = next((demand.mask for demand in placement.demands if demand.variable == "gpu"), 0)
    index = placement.universe.index.domains["gpu"].index
    having = published.rank(cell for cell in published.cells if (cell.framework_pin or ("",))[0] == package.name)
    having.sort(key=lambda cell: not gpus >> index[cell.gpu] & 1)
    releases = dict.fromkeys(cell.framework_pin[1] for cell in having if cell.framework_pin)
    there = " and ".join(_describe_release(package.name, release, having) for release in releases)
    if any(takes_release(package, release) for release in releases):
        return _finding(package, f"there are cells for {there}; none of them fits the rest of what is asked for")
    because = f"no cell is made for {package.text}; there are cells for {there}"
    cell = having[0]
    resolved = resolve_with_cell(placement, cell.python, packages_of_cell(cell.without_framework()))
    if package.name in placement.declared and resolved is not None:
        beside = f"beside torch {cell.torch} and transformers {cell.transformers} of {cell}"
        broken = [
            finding
            for finding in find_broken_pairs(resolved.resolution.settled, placement.universe.broken_uses)
            if finding.severity == "error"
        ]
        conflict = next((finding.because for finding in (*resolved.findings, *broken)), None)
        because += (
            f"; {beside} it cannot be had: {conflict}"
            if conflict
            else f"; {beside} it can be had by what packages declare, but no run has seen it train"
        )
    return _finding(package, because)


def _describe_release(name: str, release: str, cells: Iterable[Cell]) -> str:
    """Return a trainer's release with the GPUs of its cells."""
    gpus = dict.fromkeys(cell.gpu for cell in cells if cell.framework_pin == (name, release))
    return f"{name} {release} (on {', '.join(gpus)})"


def note_absent_packages(cell: Cell, absent: Sequence[PackageSpec], forecast: AdditionForecast) -> Iterator[Finding]:
    """Yield a note on packages of a query that an offered cell does not have, with the command that adds them.

    Those that publish no wheel can only be compiled, in a container of the cell's dev variant.
    """
    compiled = [package for package in absent if package.name in forecast.without_wheel]
    for packages in (compiled, [package for package in absent if package not in compiled]):
        if not packages:
            continue
        names = list_names(package.name for package in packages)
        words = [str(cell), "--dev"] if packages is compiled else [str(cell)]
        words += [] if packages is compiled else [word for item in packages for word in ("--with", item.text)]
        command = shlex.join(["knowngood", "run", *words, "--", "bash" if packages is compiled else "python"])
        because = (
            f"not in this cell: {names}, without a wheel for it; `{command}` has nvcc to compile with"
            if packages is compiled
            else f"not in this cell: {names}; `{command}` adds what is missing"
        )
        yield _finding(packages[0], because)


def _finding(package: PackageSpec, because: str) -> Finding:
    packages = {package.name: package.version or package.specifier}
    return fact_finding(f"{TRAINER}{package.name}", "info", packages, because, ["matrix.yaml"])


MODEL_RUN = "model-run:"
"""The ids of findings from runs of the model suite begin so."""
_PACKING = {"packing": "true|position-ids"}
_NO_SUPPORT = "transformers has no"
"""How the suite's reason begins where transformers refuses a setting for a model, on whatever machine."""
_TOO_WIDE = ("fa2", "the kernel takes no heads of this width")
"""flash-attn 2 takes no heads wider than 256 on any GPU (csrc/flash_attn/flash_api.cpp of 2.8.3.post2)."""


def describe_model_runs(
    conditions: Mapping[str, str],
    transformers: str | None,
    table: SeenSettings,
    read_incidents: Callable[[], Sequence[RunIncident]],
) -> Iterator[Finding]:
    """Yield what was seen of the model and the attention setting that the conditions state, both of which they must.

    What is silently wrong is an error, as is a setting that transformers or flash-attn 2 refuse for the model on every
    machine. What ended with an error in all kinds of data is a warning. Both link to the incidents that they show
    (which are read only then). What was right is a remark, since a miniature on another machine shows nothing of this
    one's kernels; so is what was seen with other releases, where the stated one was not run or none is stated.
    """
    model, setting = conditions["model"], conditions["attn"]
    releases = _find_releases(conditions, table)
    kinds = _wanted_kinds(conditions)
    exact = releases.get(str(transformers))
    if exact is not None:
        settings = {
            name: item
            for (model_type, release, name), item in table.items()
            if release == transformers and model_name_of_type(model_type) == model
        }
        finding = _judge_exact(model, exact, kinds, settings, packing_stated="packing" in conditions)
        yield finding if finding.severity == "info" else _link_incidents(finding, exact, read_incidents())
    elif releases:
        states = [
            f"{release}: {_describe_states(releases[release], kinds)}" for release in sorted(releases, key=Version)
        ]
        where = "no release of transformers is stated" if transformers is None else f"{transformers} was not run"
        because = f"{where} with {model} under {setting}; runs with others saw: {'; '.join(states)}"
        newest = releases[max(releases, key=Version)]
        yield _model_finding(newest, "info", because, transformers)


def was_seen_right(conditions: Mapping[str, str], transformers: str | None, table: SeenSettings) -> bool:
    """Return whether the stated model was right under the stated setting in some kind of data that is meant."""
    item = _find_releases(conditions, table).get(str(transformers))
    states = [] if item is None else [item.judgement.states.get(kind) for kind in _wanted_kinds(conditions)]
    return "right" in states and "silently wrong" not in states


def _find_releases(conditions: Mapping[str, str], table: SeenSettings) -> dict[str, SeenSetting]:
    """Return what was seen of the stated model and setting, by the release of transformers."""
    return {
        release: item
        for (model_type, release, name), item in table.items()
        if name == conditions.get("attn") and model_name_of_type(model_type) == conditions.get("model")
    }


def _wanted_kinds(conditions: Mapping[str, str]) -> list[str]:
    """Return the kinds of data that a query means: packed or others where it states packing, else all."""
    if "packing" not in conditions:
        return list(LAYOUTS)
    packed = condition_holds(_PACKING["packing"], conditions["packing"])
    return [kind for kind in LAYOUTS if (kind == "packed") is packed]


def _judge_exact(
    model: str, item: SeenSetting, kinds: Sequence[str], settings: Mapping[str, SeenSetting], *, packing_stated: bool
) -> Finding:
    states = {kind: state for kind, state in item.judgement.states.items() if kind in kinds}
    wrong = [kind for kind, state in states.items() if state == "silently wrong"]
    because = f"a run saw {model} under {item.judgement.setting}: {_describe_states(item, kinds)}"
    release = item.run.transformers
    fix = _find_right_settings(settings, wrong or list(states))
    if wrong == ["packed"] and not packing_stated:
        return replace(_model_finding(item, "warning", because, release, fix), when=_PACKING, undecided=True)
    severity = "error" if wrong or _is_refused_anywhere(item, states) else "info"
    if severity == "info" and set(states.values()) == {"fails"}:
        severity = "warning"
    return _model_finding(item, severity, because, release, fix if severity != "info" else ())


def _is_refused_anywhere(item: SeenSetting, states: Mapping[str, str]) -> bool:
    judgement = item.judgement
    if set(states.values()) != {"refused"}:
        return False
    return judgement.reasons[0].startswith(_NO_SUPPORT) or (judgement.setting, judgement.reasons[0]) == _TOO_WIDE


def _link_incidents(finding: Finding, item: SeenSetting, incidents: Sequence[RunIncident]) -> Finding:
    return replace(finding, incidents=tuple(item.judgement.find_incidents(item.run.model_type, incidents)))


def _find_right_settings(settings: Mapping[str, SeenSetting], kinds: Sequence[str]) -> tuple[Mapping[str, str], ...]:
    """Return a fix that names the settings which were right for all of these kinds of data with the same release."""
    right = [
        name
        for name, item in settings.items()
        if kinds and all(item.judgement.states.get(kind) == "right" for kind in kinds)
    ]
    return ({"note": f"seen right for this model with the same release: {', '.join(right)}"},) if right else ()


def _describe_states(item: SeenSetting, kinds: Sequence[str]) -> str:
    """Return what was seen of each kind of data, and why it is not right."""
    judgement = item.judgement
    states = {kind: state for kind, state in judgement.states.items() if kind in kinds}
    words = ", ".join(
        f"{kind} data {state.replace('silently wrong', 'SILENTLY WRONG')}" for kind, state in states.items()
    )
    reasons = [shorten_reason(reason) for reason in judgement.reasons] if set(states.values()) != {"right"} else []
    where = f"on {item.run.gpu or 'a CPU'}"
    return f"{words or 'nothing'} ({'; '.join([*dict.fromkeys(reasons), where])})"


def _model_finding(
    item: SeenSetting,
    severity: str,
    because: str,
    transformers: str | None,
    fix: tuple[Mapping[str, str], ...] = (),
) -> Finding:
    packages = {} if transformers is None else {"transformers": transformers}
    model = model_name_of_type(item.run.model_type)
    return Finding(
        id=f"{MODEL_RUN}{model}/{item.judgement.setting}",
        kind="fact",
        severity=severity,
        packages=packages,
        because=because,
        source=(f"evidence/{item.run.file}",),
        confidence="measured",
        fix=fix,
    )
