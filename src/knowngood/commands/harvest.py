"""`knowngood harvest [PACKAGE ...]`: facts out of artefacts; `--contracts [NAME ...]`: tables of pairs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import project
from knowngood.cli import Answer
from knowngood.errors import InputError, Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packaging.version import Version


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("packages", nargs="*", metavar="NAME", help="packages, or contracts; all known by default")
    parser.add_argument("--refresh", action="store_true", help="read again what was read already")
    parser.add_argument("--contracts", action="store_true", help="judge contracts on every pair of releases instead")
    parser.add_argument(
        "--check",
        action="store_true",
        help="with --contracts: read nothing from the registry; fail when an incident's range is not its contract's",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Harvest into `facts/`."""
    if arguments.check and not arguments.contracts:
        raise UsageError("--check belongs to --contracts: `knowngood harvest --contracts --check`")
    here = project.find()
    if arguments.contracts:
        texts = _contracts(here.root, arguments.packages)
        return _check(here.root, texts) if arguments.check else _harvest_contracts(here.root, texts, arguments)

    from knowngood import progress
    from knowngood.harvest import harvest

    with progress.reporter("harvest") as say:
        report = harvest(
            arguments.packages,
            folder=here.root / "facts",
            floors=_floors(here.root),
            say=say,
            refresh=arguments.refresh,
        )
    problems = [f"{name}: {why}" for name, why in {**report.failed, **report.unknown}.items()]
    text = "\n".join([f"{len(report.new)} releases read, {report.unchanged} known before", *problems])
    document = {
        "new": report.new,
        "unchanged": report.unchanged,
        "unknown": report.unknown,
        "failed": report.failed,
    }
    return Answer(report.exit_code, document, text)


def _floors(root: Path) -> Mapping[str, Version]:
    from packaging.version import Version

    from knowngood import matrix

    text = (root / project.MATRIX).read_text(encoding="utf-8")
    return {name: Version(floor) for name, floor in matrix.floors(text, project.MATRIX).items()}


def _contracts(root: Path, names: Sequence[str]) -> dict[str, str]:
    """The contracts of these names, or all: file name to text. A path to a file is one too."""
    known = {path.stem: path for path in sorted((root / "contracts").glob("*.yaml"))}
    paths: dict[str, Path] = {}
    for name in names:
        own = Path(name)
        is_file = own.suffix == ".yaml" and own.is_file()
        if name in known:
            paths[f"contracts/{name}.yaml"] = known[name]
        elif is_file and own.stem in known and own.samefile(known[own.stem]):
            paths[f"contracts/{own.stem}.yaml"] = own
        elif is_file:
            paths[str(own.absolute() if own.parent == Path("contracts") else own)] = own
        else:
            raise UsageError(
                f"there is no contract {name}; there are {', '.join(known) or 'none'}, or give a YAML file"
            )
    if not names:
        paths = {f"contracts/{name}.yaml": path for name, path in known.items()}
    if not paths:
        raise UsageError(f"there are no contracts in {root / 'contracts'}; docs/contracts.md shows how to write one")
    texts = {}
    for label, path in paths.items():
        try:
            texts[label] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            said = f"not UTF-8: {error.reason}; save it as UTF-8"
            raise InputError([Problem(file=label, line=1, column=1, text=said)]) from None
    return texts


def _harvest_contracts(root: Path, texts: Mapping[str, str], arguments: argparse.Namespace) -> Answer:
    from knowngood import progress
    from knowngood.contracts import table as contract_table
    from knowngood.contracts.files import rewritten, table
    from knowngood.harvest.contracts import harvest_contracts

    with progress.reporter("harvest") as say:
        report = harvest_contracts(
            texts, folder=lambda file: _place(root, file), floors=_floors(root), say=say, refresh=arguments.refresh
        )
    changed = rewritten(root)
    lines = [f"tables: {len(report.written)} written, {len(report.unchanged)} as they were"]
    lines += [f"{name}: {why}" for name, why in report.failed.items()]
    lines += [f"{name}: {count} pairs could not be judged" for name, count in report.unknown.items()]
    lines += [f"{path}: affected follows its contract now" for path in changed]
    shown = {}
    if arguments.packages:
        paths = {file: _place(root, file) / f"{Path(file).stem}.json" for file in texts}
        shown = {file: table(path) for file, path in paths.items() if path.exists()}
        lines += ["", *map(contract_table.plain, shown.values())]
    document = {
        "written": report.written,
        "unchanged": report.unchanged,
        "unknown": report.unknown,
        "failed": report.failed,
        "incidents": changed,
        "tables": {found.contract: contract_table.document(found) for found in shown.values()},
    }
    return Answer(report.exit_code, document, "\n".join(lines))


def _place(root: Path, file: str) -> Path:
    """Where a contract's table is kept: that of a file of one's own is beside it."""
    own = Path(file)
    return root / "facts" / "contracts" if own.parent == Path("contracts") else own.parent


def _check(root: Path, texts: Mapping[str, str]) -> Answer:
    from knowngood.contracts.files import stale

    problems = stale(root, texts, lambda file: _place(root, file))
    text = "\n\n".join(problems) if problems else f"{len(texts)} contracts: every incident's range is what they say"
    return Answer(1 if problems else 0, {"current": not problems, "problems": problems}, text)
