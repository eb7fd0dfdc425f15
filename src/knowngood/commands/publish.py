"""`knowngood publish [SELECT] --to REPOSITORY`: proven images into a registry; `--verify IMAGE` reads one back."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from knowngood import project
from knowngood.cli import Answer
from knowngood.commands import common
from knowngood.errors import KnowngoodError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from knowngood.building.pipeline import Pipeline
    from knowngood.cell import Cell
    from knowngood.registries.registry import Registry


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    common.add_select(parser)
    parser.add_argument("--all", action="store_true", help="every cell (without SELECT: the alias default)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--to", metavar="REPOSITORY", help="such as registry.example/team/knowngood (default: KNOWNGOOD_REPOSITORY)"
    )
    where.add_argument(
        "--verify", metavar="IMAGE", help="read a published image back, NAME:TAG or NAME@sha256:..., every byte of it"
    )
    parser.add_argument("--insecure", action="store_true", help="plain HTTP, to a registry on this machine only")
    parser.add_argument(
        "--revision", type=_revision, default=1, metavar="N", help="the Nth image of the same lock (tag ends in -rN)"
    )
    parser.add_argument("--no-aliases", action="store_true", help="leave default and the other aliases where they are")
    parser.add_argument("--dry-run", action="store_true", help="say what would be published and do nothing")


def run(arguments: argparse.Namespace) -> Answer:
    """Publish the selected cells, then move the aliases; the first cell that fails decides the exit code."""
    from knowngood.registries.reference import Repository
    from knowngood.registries.registry import Registry

    if arguments.verify:
        return _verify(arguments)
    from knowngood import progress, select
    from knowngood.publishing import release

    where = arguments.to or os.environ.get("KNOWNGOOD_REPOSITORY")
    if not where:
        raise UsageError("where to? name a repository: --to registry.example/team/knowngood")
    here = project.find()
    matrix = here.matrix
    words = arguments.select or ([] if arguments.all else ["default"])
    cells = select.select(matrix.cells, matrix.aliases, words)
    registry = Registry(Repository.parse(where), insecure=arguments.insecure)
    done = release.unchanged(here, registry, cells, revision=arguments.revision)
    rows: list[dict[str, Any]] = []
    failed: list[KnowngoodError] = []
    line = _line(here) if len(done) < len(cells) else None
    for number, cell in enumerate(cells, 1):
        if line is None or str(cell) in done:
            tag = release.tag(here, cell, arguments.revision)
            rows.append({"id": str(cell), "status": "unchanged", "tag": tag, "digest": done[str(cell)], "error": None})
            continue
        with progress.reporter(f"[{number}/{len(cells)}] {cell}") as say:
            row, error = _one(line, cell, registry, arguments, say)
        rows.append(row)
        if error:
            failed.append(error)
            print(f"{cell}: {error}", file=sys.stderr)
    digests = {row["id"]: row["digest"] for row in rows if not row["error"]}
    wanted = {} if arguments.no_aliases else {k: v for k, v in matrix.aliases.items() if v in digests}
    aliases: dict[str, dict[str, Any]] = {}
    for alias, target in wanted.items():
        aliases[alias] = {"cell": target, "digest": digests[target]}
        if not arguments.dry_run:
            error = _move(registry, alias, digests[target], aliases[alias])
            failed += [error] if error else []
    document = {"repository": str(registry.repository), "cells": rows, "aliases": aliases}
    return Answer(failed[0].exit_code if failed else 0, document, _text(rows, aliases, registry))


def _line(here: project.Project) -> Pipeline:
    from knowngood import progress
    from knowngood.building import pipeline
    from knowngood.engines import engine
    from knowngood.locks import wheelhouse

    with progress.reporter("engine") as say:
        found = engine.ensure(say=say)
    return pipeline.Pipeline(here, pipeline.Options(wheelhouse=wheelhouse.folder(), locked=True), found)


def _one(
    line: Pipeline, cell: Cell, registry: Registry, arguments: argparse.Namespace, say: Any
) -> tuple[dict[str, Any], KnowngoodError | None]:
    from knowngood.publishing import publish, release

    row: dict[str, Any] = {"id": str(cell), "status": "failed", "tag": None, "digest": None, "error": None}
    try:
        ready = release.prepare(line, cell, revision=arguments.revision)
        row |= {"tag": ready.tag, "digest": ready.digest}
        if arguments.dry_run:
            there = publish.standing(ready, registry)
            row["status"] = "unchanged" if there else "would be published"
            return row, None
        result = publish.publish(ready, registry, line.engine, say)
        row |= {"status": str(result.status), "pushed": result.pushed, "seconds": round(result.seconds, 1)}
    except KnowngoodError as error:
        row["error"] = str(error)
        return row, error
    return row, None


def _move(registry: Registry, alias: str, digest: str, row: dict[str, Any]) -> KnowngoodError | None:
    from knowngood.publishing import publish

    try:
        row["moved"] = publish.move(registry, alias, digest)
    except KnowngoodError as error:
        print(f"{alias}: {error}", file=sys.stderr)
        row["error"] = str(error)
        return error
    return None


def _text(rows: list[dict[str, Any]], aliases: Mapping[str, Mapping[str, Any]], registry: Registry) -> str:
    from knowngood import table

    lines = [
        [
            row["tag"] or row["id"],
            row["status"],
            (row["digest"] or "-")[:19],
            f"{row['pushed'] / 1e6:,.1f} MB" if "pushed" in row else "-",
            f"{row['seconds']:.1f} s" if "seconds" in row else "-",
        ]
        for row in rows
    ]
    text = table.text([f"tag in {registry.repository}", "status", "image", "pushed", "time"], lines)
    moved = [
        f"{alias} -> {row['cell']}{': FAILED' if 'error' in row else '' if row.get('moved') else ' (as before)'}"
        for alias, row in aliases.items()
    ]
    errors = [f"{row['id']}: FAILED: {row['error']}" for row in rows if row["error"]]
    return "\n".join([text, *moved, *errors])


def _verify(arguments: argparse.Namespace) -> Answer:
    from knowngood import progress
    from knowngood.publishing import readback
    from knowngood.registries.reference import Reference
    from knowngood.registries.registry import Registry

    if arguments.select or arguments.all or arguments.dry_run:
        raise UsageError("--verify reads one image; SELECT, --all and --dry-run do not go with it")
    wanted = Reference.parse(arguments.verify)
    with progress.reporter(str(wanted)) as say:
        seen = readback.read(Registry(wanted.repository, insecure=arguments.insecure), wanted, say)
    return Answer(1 if seen.problems else 0, seen.document(), seen.text())


def _revision(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 99:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 99")
    return int(text)
