"""One cell's way through `knowngood build-matrix`: lock, plan, build, compare, prove.

Each step returns a value that the next one takes: a `Cell`, its `CellLock`, a `CellBuildPlan`, an `Image`, `Evidence`.
A step whose inputs have not changed is not repeated. A cell that fails does not stop the others. An image for another
host is read for programs and libraries that are not for its processor.
"""

from __future__ import annotations

import struct
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from knowngood.base import base_image
from knowngood.core import local_files
from knowngood.core.cell import Cell
from knowngood.core.errors import KnowngoodError, failure_from_error
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture
from knowngood.core.image_record import ImageRecord
from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.core.notify import Notify
from knowngood.engine import image_store
from knowngood.engine.container_engine import Engine
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, Tier
from knowngood.images import build_inputs, image_build
from knowngood.images.build_command import CellBuildPlan, Image
from knowngood.images.cell_ownership import hold_cell
from knowngood.images.dockerfile import describe_stale_files, render_dockerfile
from knowngood.lock import cell_locking
from knowngood.lock.lock_tree import CellLock
from knowngood.project import core_facts
from knowngood.project.checkout import Project
from knowngood.smoke import suite_files, suite_run
from knowngood.smoke.predictions import load_predictions, predictions_for_cell
from knowngood.smoke.suite_command import SuiteOptions

_MACHINES = {3: "i386", 21: "ppc64", 22: "s390", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv"}
"""The number of a processor in the head of an ELF file -> its name. Code for GPUs and for BPF has other numbers."""
_HEAD = struct.Struct("<16sHH")
_LOADABLE = (2, 3)
"""The types of ELF files that the kernel or the dynamic linker loads: programs and shared libraries."""


def name_processor(head: bytes) -> str | None:
    """Return the processor that a program or library is for, by the first bytes of its file.

    The result is `None` for any other file: no ELF file, one for linking, or code for a GPU.
    """
    if len(head) < _HEAD.size or not head.startswith(b"\x7fELF"):
        return None
    _, kind, machine = _HEAD.unpack_from(head)
    return _MACHINES.get(machine) if kind in _LOADABLE else None


def find_foreign_libraries(layer: Path, host: HostArchitecture) -> Iterator[tuple[str, str]]:
    """Yield path and processor of each program or library of a layer that is not for `host`.

    The layer is a tar file, compressed with zstd or not at all. Raises `OSError` or `tarfile.TarError` when it cannot
    be read.
    """
    with layer.open("rb") as raw:
        packed = raw.read(4) == b"\x28\xb5\x2f\xfd"
        raw.seek(0)
        if not packed:
            yield from _foreign_members(raw, host)
            return
        from zstandard import ZstdDecompressor

        with ZstdDecompressor().stream_reader(raw) as stream:
            yield from _foreign_members(stream, host)


def _foreign_members(stream: IO[bytes] | Any, host: HostArchitecture) -> Iterator[tuple[str, str]]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            processor = name_processor(file.read(_HEAD.size)) if file else None
            if processor not in (None, str(host)):
                yield "/" + member.name.strip("/"), str(processor)


def check_image_processor(engine: Engine, tag: str, record: ImageRecord, host: HostArchitecture) -> None:
    """Read every layer of an image, and raise `KnowngoodError` that names what is not for the image's `host`."""
    problems = []
    with local_files.scratch_folder() as scratch:
        for layer in record.layers:
            path = image_store.find_blob_file(engine, tag, layer.digest, scratch)
            problems += [f"{file} of {layer.name} is for {name}" for file, name in find_foreign_libraries(path, host)]
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise KnowngoodError(f"{tag} is for {host}, and cannot run there: {'; '.join(problems[:5])}{more}")


class CellStatus(StrEnum):
    """The outcome of a cell after a run of the pipeline."""

    PROVEN = "proven"
    UNCHANGED = "unchanged"
    """Nothing that it depends on has changed since it was proven; nothing was done."""
    BUILT = "built"
    DIFFERENT = "different"
    """The image was built, but its digests are not those of the committed record."""
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """A cell's line in the summary."""

    cell: str
    status: CellStatus
    seconds: float
    tier: Tier = Tier.NONE
    image: Image | None = None
    evidence: Path | None = None
    note: str = ""
    error: KnowngoodError | None = None

    def document(self, root: Path) -> dict[str, Any]:
        """Return the result as a document for `--json`; its paths are relative to the project's root."""
        image = self.image
        return {
            "id": self.cell,
            "status": str(self.status),
            "tier": str(self.tier),
            "image": {"tag": image.tag, "digest": image.digest, "bytes": image.size, "built": image.built}
            if image
            else None,
            "seconds": round(self.seconds, 1),
            "evidence": str(self.evidence.relative_to(root)) if self.evidence else None,
            "note": self.note,
            "error": str(self.error) if self.error else None,
            "exit": self.error.exit_code if self.error else 0,
        }


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """The options that all cells of a run share."""

    wheelhouse: Path
    locked: bool = False
    """Fail when a committed file is stale, instead of renewing it."""
    prove: bool = True
    """Run the suite in the image."""
    suite: SuiteOptions = field(default_factory=SuiteOptions)
    force_smoke: bool = False
    """Run the suite even if there is good evidence for this very image. A recorded image is not planned again."""
    record: bool = False
    """Write the image's record beside its Dockerfile."""


@dataclass(frozen=True)
class Pipeline:
    """The steps, for the cells of one project on one engine."""

    project: Project
    options: PipelineOptions
    engine: Engine

    def run(self, cell: Cell, notify: Notify) -> CellResult:
        """Take one cell through all steps; the failure of a step is in the result."""
        start = time.monotonic()
        note, difference, evidence, evidence_path = "", "", None, None
        try:
            locked_cell, note = self.lock(cell, notify)
            cell = locked_cell.cell
            with hold_cell(str(cell), notify=notify):
                image = self.find_recorded_image(locked_cell)
                if image is None:
                    image = self.image(self.plan(locked_cell, notify), notify)
                difference = self.compare(image, cell)
                note = "; ".join(filter(None, [note, difference]))
                tier = Tier.BUILT
                if self.options.prove:
                    earlier = self.load_evidence(cell, image)
                    evidence_path, evidence = self.prove(cell, image, earlier, notify)
                    tier = run_evidence.proven_tier([*earlier, evidence], locked=True)
        except (KnowngoodError, OSError) as error:
            failed = failure_from_error(error)
            seconds = time.monotonic() - start
            return CellResult(cell=str(cell), status=CellStatus.FAILED, seconds=seconds, note=note, error=failed)
        status, failure = _judge_evidence(evidence, is_new=image.built or evidence_path is not None)
        if difference and not self.options.record and failure is None:
            status, failure = CellStatus.DIFFERENT, _difference_error(cell)
        return CellResult(
            cell=str(cell),
            status=status,
            seconds=time.monotonic() - start,
            tier=tier,
            image=image,
            evidence=evidence_path,
            note=note,
            error=failure,
        )

    def lock(self, cell: Cell, notify: Notify) -> tuple[CellLock, str]:
        """Return the cell's lock; that of its `fa0` twin, and a note, where the wheelhouse lacks the flash-attn wheel.

        Raises:
            NoWheelError: the wheelhouse lacks a wheel, and no twin can take the cell's place.
        """
        matrix, wheel_folder, cxx11abi = self.project.matrix, self.options.wheelhouse, core_facts.load_torch_cxx11abi
        buildable, _ = cell_locking.choose_buildable_cell(cell, matrix, wheel_folder, cxx11abi=cxx11abi)
        place = cell_locking.LockingPlace(
            matrix=matrix,
            tree=self.project.tree,
            wheel_folder=wheel_folder,
            cxx11abi=cxx11abi,
            locked_only=self.options.locked,
            notify=notify,
        )
        result = cell_locking.lock_cell(matrix.entry(buildable), place)
        note = f"built in place of {cell}: the wheelhouse has no flash-attn wheel for it"
        return result.lock, "" if buildable == cell else note

    def plan(self, locked_cell: CellLock, notify: Notify) -> CellBuildPlan:
        """Write the Dockerfile, make the base and the wheels available, and return the plan of the image."""
        project, options = self.project, self.options
        cell_locking.check_locked_wheels(locked_cell, options.wheelhouse)
        wheels = build_inputs.stage_wheels(locked_cell, options.wheelhouse)
        path = project.tree.cell_folder(locked_cell.cell) / "Dockerfile"
        text = render_dockerfile(locked_cell, project.templates)
        if options.locked and describe_stale_files({path: text}, []):
            raise KnowngoodError(f"{locked_cell.cell}: its Dockerfile is stale; run `knowngood render` and commit it")
        base = base_image.prepare_base(project, locked_cell.base, locked=options.locked, notify=notify)
        builder = base_image.find_builder_base(project, locked_cell.base)
        builder_base = (
            base_image.prepare_base(project, builder, locked=options.locked, notify=notify) if builder else None
        )
        write_atomically(path, text)
        return build_inputs.plan_cell_build(
            project, locked_cell, text, base_context=base, wheels=wheels, builder_context=builder_base
        )

    def image(self, build_plan: CellBuildPlan, notify: Notify) -> Image:
        """Return the plan's image with its record; it is built unless it exists."""
        image = self.find_image(build_plan) or image_build.work_with_secrets(
            lambda secrets: self.build_image(replace(build_plan, secrets=secrets), notify),
            build_plan.locked_cell.distributions,
            notify,
        )
        if not self.engine.containerd_store and not self.options.record:
            return image  # such an engine has no record of it
        record = image_build.load_kept_record(build_plan.inputs)
        if record is None or record.manifest.digest != image.digest:
            record = self.take_record(image, build_plan)
            if build_plan.host != DEFAULT_HOST:
                notify("reading for which processor its programs are")
                check_image_processor(self.engine, image.tag, record, build_plan.host)
            image_build.keep_image_record(record)
        return replace(image, record=record)

    def find_recorded_image(self, locked_cell: CellLock) -> Image | None:
        """Return the engine's image where it is the recorded one of this lock and only the suite was asked for.

        Nothing is planned for it, so an engine that cannot build, on a machine without a network, can run suites.
        """
        record = self.project.tree.load_record(locked_cell.cell)
        if record is None or not self.options.force_smoke:
            return None
        recipe = build_inputs.read_recipe_digest(self.project)
        if build_inputs.read_image_shape(self.project, locked_cell, record.shape.base, recipe) != record.shape:
            return None
        return image_build.find_recorded_image(f"knowngood:{locked_cell.cell}", record, self.engine)

    def find_image(self, build_plan: CellBuildPlan) -> Image | None:
        """Return the plan's image if it exists, made from the very same inputs."""
        return image_build.find_image(build_plan, self.engine)

    def build_image(self, build_plan: CellBuildPlan, notify: Notify) -> Image:
        """Build the plan's image."""
        log = cell_log_path(build_plan.locked_cell.cell, "build")
        sizes = {f"layer-{layer.group}": layer.size for layer in build_plan.locked_cell.layers}

        def notify_with_size(step: str) -> None:
            size = sizes.get(step.removeprefix("run "))
            notify(f"{step}, {size / 1e6:,.1f} MB" if size else step)

        return image_build.build_image(build_plan, self.engine, log=log, notify=notify_with_size)

    def take_record(self, image: Image, build_plan: CellBuildPlan) -> ImageRecord:
        """Return the record of the plan's image; raises `KnowngoodError` where the engine keeps no manifests."""
        return image_build.take_image_record(self.engine, image, build_plan)

    def compare(self, image: Image, cell: Cell) -> str:
        """Return a note when the image is not what the committed record says; write the new record if asked to."""
        if image.record is None:
            return ""
        committed = self.project.tree.load_record(cell)
        if self.options.record:
            write_atomically(self.project.tree.record_path(cell), image.record.render())
        return image.record.describe_difference(committed, replaced=self.options.record)

    def load_evidence(self, cell: Cell, image: Image) -> list[Evidence]:
        """Return the runs of this very image, oldest first."""
        runs, _ = run_evidence.load_cell_evidence(self.project.evidence, str(cell))
        return [evidence for evidence in runs if evidence.image == image.digest]

    def prove(
        self, cell: Cell, image: Image, earlier: Sequence[Evidence], notify: Notify
    ) -> tuple[Path | None, Evidence]:
        """Return evidence for the image on this machine: a good earlier run, or that of a new run with its path."""
        folder = suite_files.find_cell_suite(self.project, cell)
        if not self.options.force_smoke and (evidence := self._find_good_evidence(cell, earlier, folder)):
            return None, evidence
        place = suite_run.SuiteContainer(
            cell=cell,
            image=image.tag,
            digest=image.digest,
            engine=self.engine,
            options=self.options.suite,
            log=cell_log_path(cell, "smoke"),
            notify=notify,
        )
        expected = predictions_for_cell(load_predictions(self.project.root), cell, gpu=self.options.suite.gpus)
        evidence = suite_run.run_in_container(place, suite=folder, predictions=expected)
        return run_evidence.store_evidence(evidence, self.project.evidence_store), evidence

    def _find_good_evidence(self, cell: Cell, earlier: Sequence[Evidence], folder: Path) -> Evidence | None:
        """Return the newest good run on this machine of the suite in a folder that covers the options, or `None`."""
        options, suite = self.options.suite, suite_files.hash_suite(folder)
        node = suite_run.engine_fingerprint(self.engine)
        whole = not options.quick and not suite_run.is_foreign_cell(cell, self.engine)
        good = [
            evidence
            for evidence in earlier
            if evidence.ok
            and evidence.suite == suite
            and evidence.node == node
            and (not options.gpus or evidence.where is run_evidence.RunPlace.CONTAINER_GPU)
            and not (whole and evidence.quick)
        ]
        return good[-1] if good else None


def _judge_evidence(evidence: Evidence | None, *, is_new: bool) -> tuple[CellStatus, KnowngoodError | None]:
    """Return the status of a cell whose image exists, and the error where the suite failed."""
    if evidence is None:
        return CellStatus.BUILT, None
    if not evidence.ok:
        verdict = evidence.report["verdict"]
        return CellStatus.FAILED, KnowngoodError(f"{verdict['domain']}: {verdict['text']}")
    return (CellStatus.PROVEN if is_new else CellStatus.UNCHANGED), None


def _difference_error(cell: Cell) -> KnowngoodError:
    return KnowngoodError(
        f"{cell}: the image is not the one that its committed record names, so it is not known to be good; if the "
        f"change is meant, `knowngood build --record '{cell}'` writes the new digests"
    )


def cell_log_path(cell: Cell, step: str) -> Path:
    """Return the file for the whole output of a step of a cell."""
    return cache_folder() / "logs" / str(cell) / f"{step}.log"
