"""`knowngood publish [SELECT] --to REPOSITORY`: push proven images to a registry; `--verify IMAGE` reads one back."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError
from knowngood.core.formatting import format_table
from knowngood.engine import container_engine
from knowngood.images import build_inputs
from knowngood.lock import wheelhouse
from knowngood.project import release_signers
from knowngood.project.cell_answers import split_broken_cells
from knowngood.project.checkout import MATRIX_FILE, Project, find_project
from knowngood.project.release_signers import ReleaseSigner, ReleaseVerifier
from knowngood.registry import image_release, platform_index, publication, publication_check, signatures, wheel_supply
from knowngood.registry.content_inspection import ContentInspector, InspectionDepth
from knowngood.registry.image_reference import ImageReference, Repository
from knowngood.registry.publication import PublishStatus, ReleaseSigning
from knowngood.registry.registry_client import Registry
from knowngood.registry.wheel_supply import WheelPushStatus

if TYPE_CHECKING:
    from knowngood.engine.container_engine import Engine
    from knowngood.registry.publication import ImageRelease


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shared_arguments.add_select(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--to", metavar="REPOSITORY", help="such as registry.example/team/knowngood (default: KNOWNGOOD_REPOSITORY)"
    )
    where.add_argument(
        "--verify",
        metavar="IMAGE",
        help="read all bytes of a published image, NAME:TAG or NAME@sha256:..., and check them",
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="read every byte of what is published, and send what is missing or damaged; put moved tags back",
    )
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
    cells = matrix.select_cells(arguments.select or ["default"])
    named = release_signers.load_release_verifiers(project.root, matrix.publish)
    target = _Target(
        registry=Registry(Repository.parse(where)),
        named=named,
        signer=None if arguments.dry_run else release_signers.find_release_signer(arguments.key, named),
    )
    registry = target.registry
    _, broken = split_broken_cells(project, cells)
    inspector = ContentInspector(
        registry=registry,
        depth=InspectionDepth.BYTES if arguments.repair else InspectionDepth.SIZE,
        notify=lambda _: None,
    )
    publisher = _CellPublisher(
        project=project,
        target=target,
        inspector=inspector,
        open_engine=functools.cache(lambda: container_engine.ensure_engine(notify=inspector.notify)),
        revision=arguments.revision,
        dry_run=arguments.dry_run,
    )
    rows: list[dict[str, Any]] = []
    failed: list[KnowngoodError] = []
    for number, cell in enumerate(cells, 1):
        row: dict[str, Any] = {"id": str(cell), "status": "failed", "tag": None, "digest": None, "tier": None}
        row["signed"] = None
        error: KnowngoodError | None = broken.get(str(cell))
        if error is None:
            with report_progress(f"[{number}/{len(cells)}] {cell}") as inspector.notify:
                try:
                    publisher.publish_cell(cell, row)
                except KnowngoodError as failure:
                    error = failure
        row["error"] = str(error) if error else None
        rows.append(row)
        if error:
            failed.append(error)
            print(f"{cell}: {error}", file=sys.stderr)
    digests = {row["id"]: row["digest"] for row in rows if not row["error"]}
    indexes = {} if arguments.dry_run or arguments.no_aliases else _push_indexes(project, target, digests)
    named_cells = {**matrix.aliases, **{cell_id: cell_id for cell_id in indexes}}
    moves = {} if arguments.no_aliases else {k: v for k, v in named_cells.items() if v in digests or v in indexes}
    aliases: dict[str, dict[str, Any]] = {}
    for alias, cell_id in moves.items():
        digest = indexes.get(cell_id) or digests[cell_id]
        aliases[alias] = {"cell": cell_id, "digest": digest, "index": cell_id in indexes}
        if not arguments.dry_run:
            error = _move_alias(target, alias, digest, aliases[alias])
            failed += [error] if error else []
    document = {"repository": str(registry.repository), "cells": rows, "aliases": aliases}
    return Answer(failed[0].exit_code if failed else 0, document, _text(rows, aliases, registry))


@dataclass(frozen=True, kw_only=True)
class _Target:
    """The registry that is published to, and who signs."""

    registry: Registry
    named: tuple[ReleaseVerifier, ...]
    """The public keys and the identities that matrix.yaml names."""
    signer: ReleaseSigner | None
    """The key or the identity that signs; `None` when nothing is signed."""

    def prepare_signing(self, release: ImageRelease) -> ReleaseSigning | None:
        """Return how a release is signed; `None` without a signer.

        Where nobody named has signed a published image, nobody vouches for its documents, so those of now are attached.
        """
        if self.signer is None:
            return None
        signer = self.signer
        verifiers = [*release_signers.own_verifiers(signer), *self.named]
        return ReleaseSigning(
            sign=lambda documents: signatures.renew_signatures(
                self.registry, release.digest, release.tag, documents, signer, self.named
            ),
            exactly=not signatures.is_image_signed(self.registry, release.digest, verifiers),
        )


@dataclass(frozen=True, kw_only=True)
class _CellPublisher:
    """Publishes cells of one project to one repository."""

    project: Project
    target: _Target
    inspector: ContentInspector
    open_engine: Callable[[], Engine]
    revision: int
    dry_run: bool

    def publish_cell(self, cell: Cell, row: dict[str, Any]) -> None:
        """Publish a cell, or only say what would be done, and write it into the cell's row.

        An image that the registry has is identified by its record, so that no engine is asked; any other is the
        engine's.
        """
        row["tag"] = tag = image_release.lock_tag(self.project, cell, self.revision) or ""
        digest = image_release.recorded_digest(self.project, cell, build_inputs.read_recipe_digest(self.project))
        state = publication.inspect_publication(tag, digest, self.inspector) if digest else None
        engine = None
        if digest is None or state is None or not state.known:
            engine = self.open_engine()
            digest = image_release.find_engine_image(self.project, cell, engine).digest
            state = publication.inspect_publication(tag, digest, self.inspector)
        row["digest"] = digest
        row["tier"] = str(image_release.read_release_proof(self.project, cell, digest).tier)
        release = image_release.prepare_release(self.project, cell, digest, engine=engine, revision=self.revision)
        row["looked_at"] = {
            "depth": str(self.inspector.depth),
            "blobs": state.image.blobs,
            "documents": len(state.documents.documents),
        }
        row["wheels"] = self._push_wheels(cell) if self.dry_run else []
        if self.dry_run:
            publication.require_own_tag(release, state, self.inspector)
            status = publication.predict_status(release, state)
            row["faults"] = [str(fault) for fault in state.find_faults(release)] if state.known else []
            row["status"] = str(status) if status is PublishStatus.UNCHANGED else f"would be {status}"
            return
        result = publication.publish_release(
            release,
            self.inspector,
            state,
            lambda: image_release.require_engine_image(self.project, cell, digest, self.open_engine()),
            self.target.prepare_signing(release),
        )
        row["signed"] = self.target.signer is not None
        row |= {
            "status": str(result.status),
            "pushed": result.pushed,
            "seconds": round(result.seconds, 1),
            "attached": list(result.attached),
            "faults": [str(fault) for fault in result.faults],
        }
        row["wheels"] = self._push_wheels(cell)

    def _push_wheels(self, cell: Cell) -> list[dict[str, str]]:
        """Push the wheels that were compiled for a cell, or only say what would be pushed."""
        pushed = wheel_supply.push_wheels(
            self.target.registry,
            wheel_supply.list_compiled_wheels(self.project, cell),
            wheelhouse.wheelhouse_folder(),
            every_byte=self.inspector.depth is InspectionDepth.BYTES,
            dry_run=self.dry_run,
        )
        return [{"file": item.file, "sha256": item.sha256, "status": str(status)} for item, status in pushed]


def _push_indexes(project: Project, target: _Target, digests: Mapping[str, str]) -> dict[str, str]:
    """Push the index of each published cell that the registry has for several hosts.

    Returns the id of the cell for x86-64 -> the digest of the index, under which the names of that cell move. The cells
    that were not published by this run (`digests` has those that were) must be there as they are locked, and signed
    where matrix.yaml names a key: an index vouches for what it lists.
    """
    registry, indexes = target.registry, {}
    for cell, hosts in platform_index.group_twin_cells(project.matrix.maintained_cells).items():
        if not any(str(twin) in digests for twin in hosts.values()):
            continue
        served = image_release.published_digests(project, registry, hosts.values())
        present = {}
        for host, twin in hosts.items():
            if own := digests.get(str(twin)):
                present[host] = own
            elif other := served[str(twin)]:
                tag = image_release.lock_tag(project, twin)
                judgement = signatures.judge_image_signature(registry, other, tag, target.named)
                if judgement.problems:
                    print(f"{cell}: not in its index: {'; '.join(judgement.problems)}", file=sys.stderr)
                else:
                    present[host] = other
        if len(present) > 1:
            indexes[str(cell)] = platform_index.push_platform_index(registry, present)
    return indexes


def _move_alias(target: _Target, alias: str, digest: str, row: dict[str, Any]) -> KnowngoodError | None:
    try:
        if target.signer:
            signatures.sign_alias(target.registry, alias, digest, target.signer)
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
    wheels = {item["file"]: item["status"] for row in rows for item in row.get("wheels", [])}
    notes = [f"{file}: {status}" for file, status in wheels.items() if status != WheelPushStatus.UNCHANGED]
    faults = [f"{row['id']}: {fault}" for row in rows for fault in row.get("faults", [])]
    errors = [f"{row['id']}: FAILED: {row['error']}" for row in rows if row["error"]]
    return "\n".join([text, *notes, *faults, *_describe_inspection(rows), *moved, *errors])


def _describe_inspection(rows: list[dict[str, Any]]) -> list[str]:
    """Return the line that says what `unchanged` means."""
    looked_at = [row["looked_at"] for row in rows if "looked_at" in row and row["status"] != "published"]
    if not looked_at:
        return []
    blobs, documents = (sum(item[key] for item in looked_at) for key in ("blobs", "documents"))
    depth = looked_at[0]["depth"]
    hint = "" if depth == InspectionDepth.BYTES else "; `--repair` reads every byte"
    return [f"looked at {blobs} blobs and {documents} documents: {depth}{hint}"]


def _verify(arguments: argparse.Namespace) -> Answer:
    refused = ("select", "dry_run", "no_aliases", "key", "repair")
    shared_arguments.refuse_options(arguments, refused, "does nothing with --verify, which reads one image")
    reference = ImageReference.parse(arguments.verify)
    project = find_project()
    known = project if (project.root / MATRIX_FILE).is_file() else None
    verifiers = release_signers.load_release_verifiers(known.root, known.matrix.publish) if known else ()
    with report_progress(str(reference)) as notify:
        registry = Registry(reference.repository)
        check = publication_check.read_published_name(registry, reference, notify, known, verifiers)
    return Answer(1 if check.problems else 0, check.document(), check.text())


def _parse_revision(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 99:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 99")
    return int(text)
