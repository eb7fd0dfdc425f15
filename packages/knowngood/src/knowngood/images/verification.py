"""`knowngood verify`: builds a cell again from nothing, and compares the image with its committed record by layer.

Compares two layers or two image configurations: which files or keys differ, and how.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from zstandard import ZstdDecompressor

from knowngood.core import local_files
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError
from knowngood.core.image_record import ImageRecord
from knowngood.core.notify import Notify
from knowngood.engine import container_engine, image_store
from knowngood.engine.container_engine import Engine
from knowngood.images import build_inputs, image_build
from knowngood.images.cell_ownership import hold_cell
from knowngood.images.pipeline import Pipeline, cell_log_path

_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
}


@dataclass(frozen=True, kw_only=True)
class LayerMember:
    """The entry of one path in a layer."""

    kind: str
    mode: str
    owner: str
    time: int
    link: str
    content: str
    """SHA-256 of a file's bytes; empty for anything else."""


def read_layer_members(layer: Path) -> dict[str, LayerMember]:
    """Return every path of a layer file, which is a tar archive, compressed with zstd or not at all."""
    with layer.open("rb") as raw:
        magic = raw.read(4)
        raw.seek(0)
        if magic != b"\x28\xb5\x2f\xfd":
            return _read_members(raw)
        with ZstdDecompressor().stream_reader(raw) as stream:
            return _read_members(stream)


def _read_members(stream: Any) -> dict[str, LayerMember]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        return {
            "/" + member.name.strip("/"): LayerMember(
                kind=_KINDS.get(member.type, "special file"),
                mode=f"{member.mode:04o}",
                owner=f"{member.uid}:{member.gid}",
                time=int(member.mtime),
                link=member.linkname,
                content=_digest(archive.extractfile(member)) if member.isreg() else "",
            )
            for member in archive
        }


def _digest(file: IO[bytes] | None) -> str:
    digest = hashlib.sha256()
    while file and (block := file.read(1 << 20)):
        digest.update(block)
    return digest.hexdigest()


def compare_members(before: Mapping[str, LayerMember], after: Mapping[str, LayerMember]) -> list[str]:
    """Return a line for each path that differs, such as `path: content, time`. Pure."""
    lines = []
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            lines.append(f"{path}: gone")
        elif path not in before:
            lines.append(f"{path}: new")
        elif attributes := _different_attributes(before[path], after[path]):
            lines.append(f"{path}: {', '.join(attributes)}")
    return lines or ["the same files, but in another order or compressed in another way"]


def _different_attributes(before: LayerMember, after: LayerMember) -> list[str]:
    old, new = asdict(before), asdict(after)
    return [
        name if name == "content" else f"{name} {old[name]} -> {new[name]}" for name in old if old[name] != new[name]
    ]


def compare_configs(before: bytes, after: bytes) -> list[str]:
    """Return a line for each key that differs in two image configurations (JSON), with both values. Pure."""
    old, new = _flatten(json.loads(before)), _flatten(json.loads(after))
    return [
        f"{key}: {_shorten(old.get(key))} -> {_shorten(new.get(key))}"
        for key in [*old, *(key for key in new if key not in old)]
        if old.get(key) != new.get(key)
    ]


def _flatten(value: Any, at: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {key: item for name in value for key, item in _flatten(value[name], f"{at}.{name}".lstrip(".")).items()}
    if isinstance(value, list):
        return {
            key: item
            for index, element in enumerate(value)
            for key, item in _flatten(element, f"{at}[{index}]").items()
        }
    return {at: value}


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


class VerificationOutcome(StrEnum):
    """The outcome of a comparison."""

    SAME = "same"
    DIFFERENT = "different"
    STALE = "stale"
    """Something that shapes the image has changed since it was recorded."""
    UNRECORDED = "unrecorded"


@dataclass(frozen=True, kw_only=True)
class BlobDifference:
    """A layer (or `config`, or `manifest`) whose bytes differ."""

    name: str
    files: tuple[str, ...]
    """A line for each file that differs; one line that says why, where the recorded bytes are not in the engine."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result for one cell."""

    cell: str
    outcome: VerificationOutcome
    recorded: str | None = None
    """The image's digest in the record."""
    rebuilt: str | None = None
    """The digest of the image that was built again."""
    differences: tuple[BlobDifference, ...] = ()
    note: str = ""
    seconds: float = 0


def verify_cell(pipeline: Pipeline, cell: Cell, notify: Notify) -> Verification:
    """Build the cell again without any cache, and compare it with its record."""
    start = time.monotonic()
    log = cell_log_path(cell, "verify")
    locked_cell, note = pipeline.lock(cell, notify)
    cell = locked_cell.cell
    recorded = pipeline.project.tree.load_record(cell)
    if recorded is None:
        return Verification(cell=str(cell), outcome=VerificationOutcome.UNRECORDED, note=note)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_cell(f"verify-{cell}", notify=notify))
        build_plan = pipeline.plan(locked_cell, notify)
        if changes := build_plan.shape.describe_changes(recorded.shape):
            change = f"changed since it was recorded: {', '.join(changes)}"
            return Verification(
                cell=str(cell),
                outcome=VerificationOutcome.STALE,
                recorded=recorded.manifest.digest,
                note="; ".join(filter(None, [note, change])),
            )
        secrets = stack.enter_context(build_inputs.host_secrets())
        build_plan = replace(build_plan, tag=f"knowngood-verify:{cell}", secrets=secrets, cached=False)
        image = image_build.build_image(build_plan, pipeline.engine, log=log, notify=notify)
        stack.callback(_remove_image, pipeline.engine, image.tag)
        rebuilt = image_build.take_image_record(pipeline.engine, image, build_plan)
        old = _ImageBlobs(engine=pipeline.engine, tag=f"knowngood:{cell}", record=recorded)
        new = _ImageBlobs(engine=pipeline.engine, tag=image.tag, record=rebuilt)
        differences = tuple(_compare_images(old, new, notify))
    return Verification(
        cell=str(cell),
        outcome=VerificationOutcome.DIFFERENT if differences else VerificationOutcome.SAME,
        recorded=recorded.manifest.digest,
        rebuilt=rebuilt.manifest.digest,
        differences=differences,
        note=note,
        seconds=time.monotonic() - start,
    )


@dataclass(frozen=True, kw_only=True)
class _ImageBlobs:
    """An image's record, and the engine that may have the image's bytes under a tag."""

    engine: Engine
    tag: str
    record: ImageRecord

    @property
    def digests(self) -> dict[str, str]:
        return {layer.name: layer.digest for layer in self.record.layers} | {"config": self.record.config.digest}

    def find_file(self, digest: str, scratch: Path) -> Path | None:
        with contextlib.suppress(KnowngoodError):  # the engine has no such image
            return image_store.find_blob_file(self.engine, self.tag, digest, scratch)
        return None


def _compare_images(old: _ImageBlobs, new: _ImageBlobs, notify: Notify) -> Iterator[BlobDifference]:
    """Yield each layer that differs, with its files."""
    for name in old.record.differences(new.record):
        notify(f"comparing {name}")
        if name not in old.digests or name not in new.digests:
            yield BlobDifference(name=name, files=("only one of the two images has it",))
            continue
        with local_files.scratch_folder() as scratch:
            digests = old.digests[name], new.digests[name]
            before, after = old.find_file(digests[0], scratch), new.find_file(digests[1], scratch)
            yield BlobDifference(name=name, files=tuple(_compare_files(name, digests, before, after)))


def _compare_files(name: str, digests: tuple[str, str], before: Path | None, after: Path | None) -> list[str]:
    if before is None or after is None:
        return [f"{' -> '.join(digests)}; the recorded bytes are not in the engine, so no file can be named"]
    if name == "config":
        return compare_configs(before.read_bytes(), after.read_bytes())
    old, new = read_layer_members(before), read_layer_members(after)
    return compare_members(old, new)


def _remove_image(engine: Engine, tag: str) -> None:
    with contextlib.suppress(KnowngoodError), container_engine.docker_client(engine) as client:
        client.images.remove(tag, force=True)
