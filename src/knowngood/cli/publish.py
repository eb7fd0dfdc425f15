"""`knowngood publish [SELECT] --to REPOSITORY`: push proven images to a registry; `--verify IMAGE` reads one back."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from knowngood.cli import shared_arguments
from knowngood.cli.cell_judgement import split_broken_cells
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError
from knowngood.core.formatting import format_table
from knowngood.core.notify import Notify
from knowngood.engine import container_engine
from knowngood.images import pipeline
from knowngood.images.pipeline import Pipeline
from knowngood.lock import wheelhouse
from knowngood.project import signing_keys
from knowngood.project.checkout import MATRIX_FILE, Project, find_project
from knowngood.project.signing_keys import SigningKey, VerificationKey
from knowngood.registry import attachments, image_release, publication, publication_check, release_proof, signatures
from knowngood.registry.image_reference import ImageReference, Repository
from knowngood.registry.registry_client import Registry


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_select(parser)
    shared_arguments.add_all(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--to", metavar="REPOSITORY", help="such as registry.example/team/knowngood (default: KNOWNGOOD_REPOSITORY)"
    )
    where.add_argument(
        "--verify",
        metavar="IMAGE",
        help="read all bytes of a published image, NAME:TAG or NAME@sha256:..., and check them",
    )
    shared_arguments.add_insecure(parser)
    parser.add_argument(
        "--revision",
        type=_parse_revision,
        default=1,
        metavar="N",
        help="publish the Nth image of the same lock (its tag ends in -rN)",
    )
    shared_arguments.add_signing_key(parser)
    parser.add_argument("--no-aliases", action="store_true", help="do not move the tags of aliases")
    parser.add_argument("--dry-run", action="store_true", help="print what would be published, and do nothing")


def run(arguments: argparse.Namespace) -> Answer:
    """Publish the selected cells, then move the aliases. The first cell that fails decides the exit code."""
    if arguments.verify:
        return _verify(arguments)

    project = find_project()
    matrix = project.matrix
    where = shared_arguments.repository_name(arguments.to, matrix, "--to")
    cells = matrix.select_cells(shared_arguments.selection_words(arguments))
    named = signing_keys.load_verification_keys(project.root, matrix.publish.keys)
    target = _Target(
        registry=Registry(Repository.parse(where), insecure=arguments.insecure),
        named=named,
        key=None if arguments.dry_run else signing_keys.find_signing_key(arguments.key, named),
    )
    registry = target.registry
    sound, broken = split_broken_cells(project, cells)
    unchanged = image_release.published_digests_unchanged(project, registry, sound, revision=arguments.revision)
    unchanged = {name: digest for name, digest in unchanged.items() if target.is_signed_enough(digest)}
    rows: list[dict[str, Any]] = []
    failed: list[KnowngoodError] = []
    cell_pipeline = _prepare_pipeline(project) if len(unchanged) < len(sound) else None
    for number, cell in enumerate(cells, 1):
        row: dict[str, Any] = {"id": str(cell), "status": "failed", "tag": None, "digest": None, "tier": None}
        row["signed"] = None
        error: KnowngoodError | None = broken.get(str(cell))
        if error is None and (digest := unchanged.get(str(cell))):
            row |= {"tag": image_release.lock_tag(project, cell, arguments.revision), "digest": digest}
            error = _confirm_cell(project, cell, target, arguments, row)
        elif error is None and cell_pipeline is not None:
            with report_progress(f"[{number}/{len(cells)}] {cell}") as notify:
                error = _publish_cell(cell_pipeline, cell, target, arguments, row, notify)
        row["error"] = str(error) if error else None
        rows.append(row)
        if error:
            failed.append(error)
            print(f"{cell}: {error}", file=sys.stderr)
    digests = {row["id"]: row["digest"] for row in rows if not row["error"]}
    moves = {} if arguments.no_aliases else {k: v for k, v in matrix.aliases.items() if v in digests}
    aliases: dict[str, dict[str, Any]] = {}
    for alias, cell_id in moves.items():
        aliases[alias] = {"cell": cell_id, "digest": digests[cell_id]}
        if not arguments.dry_run:
            error = _move_alias(target, alias, digests[cell_id], aliases[alias])
            failed += [error] if error else []
    document = {"repository": str(registry.repository), "cells": rows, "aliases": aliases}
    return Answer(failed[0].exit_code if failed else 0, document, _text(rows, aliases, registry))


@dataclass(frozen=True, kw_only=True)
class _Target:
    """The registry that is published to, and the keys."""

    registry: Registry
    named: tuple[VerificationKey, ...]
    """The public keys that matrix.yaml names."""
    key: SigningKey | None
    """The key that signs; `None` when nothing is signed."""

    def is_signed_enough(self, digest: str) -> bool:
        """Return whether a published image can be signed without the engine: one of the keys has signed it before."""
        keys = [*([self.key.verification_key] if self.key else []), *self.named]
        return not self.key or signatures.has_signature(self.registry, digest, keys)


def _prepare_pipeline(project: Project) -> Pipeline:
    with report_progress("engine") as notify:
        engine = container_engine.ensure_engine(notify=notify)
    return pipeline.Pipeline(
        project, pipeline.PipelineOptions(wheelhouse=wheelhouse.wheelhouse_folder(), locked=True), engine
    )


def _confirm_cell(
    project: Project, cell: Cell, target: _Target, arguments: argparse.Namespace, row: dict[str, Any]
) -> KnowngoodError | None:
    """Look at the evidence of an image that the registry has already, and attach what has been proven since.

    Returns the error when the image is not proven (any more), or less far than matrix.yaml wants.
    """
    try:
        proof = release_proof.read_release_proof(project, cell, row["digest"])
        row["tier"] = str(proof.tier)
        proof.require_tier(project.matrix.publish)
        if not arguments.dry_run:
            row["attached"] = attachments.attach_missing(target.registry, proof.digest, proof.attachments())
            row["signed"] = target.key is not None
        if target.key and not arguments.dry_run:
            signatures.renew_signatures(
                target.registry, proof.digest, row["tag"], proof.attachments(), target.key, target.named
            )
    except KnowngoodError as error:
        return error
    row["status"] = "unchanged"
    return None


def _publish_cell(  # noqa: PLR0913, PLR0917
    cell_pipeline: Pipeline,
    cell: Cell,
    target: _Target,
    arguments: argparse.Namespace,
    row: dict[str, Any],
    notify: Notify,
) -> KnowngoodError | None:
    """Publish a cell, write what was done into its row, and return the error if there was one."""
    try:
        ready = image_release.prepare_release(cell_pipeline, cell, revision=arguments.revision)
        row |= {"tag": ready.tag, "digest": ready.digest, "tier": ready.tier}
        if arguments.dry_run:
            published = publication.tag_is_published(ready, target.registry)
            row["status"] = "unchanged" if published else "would be published"
            return None
        sign = None
        if target.key:
            sign = partial(signatures.sign_release, target.registry, ready.tag, ready.attachments, target.key)
        result = publication.publish_release(ready, target.registry, cell_pipeline.engine, notify, sign)
        row["signed"] = target.key is not None
        row |= {"status": str(result.status), "pushed": result.pushed, "seconds": round(result.seconds, 1)}
    except KnowngoodError as error:
        return error
    return None


def _move_alias(target: _Target, alias: str, digest: str, row: dict[str, Any]) -> KnowngoodError | None:
    try:
        if target.key:
            signatures.sign_name(target.registry, f"{target.registry.repository}:{alias}", digest, target.key)
        row["moved"] = publication.move_alias(target.registry, alias, digest)
    except KnowngoodError as error:
        print(f"{alias}: {error}", file=sys.stderr)
        row["error"] = str(error)
        return error
    return None


def _text(rows: list[dict[str, Any]], aliases: Mapping[str, Mapping[str, Any]], registry: Registry) -> str:
    lines = [
        [
            row["tag"] or row["id"],
            row["status"],
            row["tier"] or "-",
            (row["digest"] or "-")[:19],
            "-" if row["signed"] is None else "signed" if row["signed"] else "unsigned",
            f"{row['pushed'] / 1e6:,.1f} MB" if "pushed" in row else "-",
            f"{row['seconds']:.1f} s" if "seconds" in row else "-",
        ]
        for row in rows
    ]
    text = format_table(
        [f"tag in {registry.repository}", "status", "tier", "image", "signature", "pushed", "time"], lines
    )
    moved = [
        f"{alias} -> {row['cell']}{': FAILED' if 'error' in row else '' if row.get('moved') else ' (as before)'}"
        for alias, row in aliases.items()
    ]
    errors = [f"{row['id']}: FAILED: {row['error']}" for row in rows if row["error"]]
    return "\n".join([text, *moved, *errors])


def _verify(arguments: argparse.Namespace) -> Answer:
    refused = ("select", "all", "dry_run", "no_aliases", "key")
    shared_arguments.refuse_options(arguments, refused, "does nothing with --verify, which reads one image")
    reference = ImageReference.parse(arguments.verify)
    project = find_project()
    known = project if (project.root / MATRIX_FILE).is_file() else None
    keys = signing_keys.load_verification_keys(known.root, known.matrix.publish.keys) if known else ()
    with report_progress(str(reference)) as notify:
        registry = Registry(reference.repository, insecure=arguments.insecure)
        check = publication_check.read_published_image(registry, reference, notify, known, keys)
    return Answer(1 if check.problems else 0, check.document(), check.text())


def _parse_revision(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 99:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 99")
    return int(text)
