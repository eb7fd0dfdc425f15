"""Builds an image in the engine, by BuildKit through `docker buildx`, and finds an image that was built before.

The record of an image is taken from the engine and kept in the cache, where a later plan learns which layers exist.

What follows when an archive arrives corrupt in a build: its hash on the index decides whether to build once more.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from knowngood.core import image_record, local_files, retries
from knowngood.core.child_processes import end_with_parent
from knowngood.core.data_files import read_data_text
from knowngood.core.errors import (
    CorruptArchiveError,
    GarbageCollectedError,
    KnowngoodError,
    NetworkError,
    UsageError,
    redact_credentials,
)
from knowngood.core.image_record import ImageRecord
from knowngood.core.local_files import cache_folder, write_atomically
from knowngood.core.notify import Notify
from knowngood.engine import container_engine, image_store
from knowngood.engine.container_engine import Engine
from knowngood.images import build_command, build_inputs
from knowngood.images.build_command import INPUTS_LABEL, BuildPlan, CellBuildPlan, Image, parse_build_step
from knowngood.lock.cell_lock import Distribution

Product = TypeVar("Product")

STOP_SECONDS = 20.0
"""How long the client may take to end a build that is stopped."""


def find_image(plan: BuildPlan, engine: Engine) -> Image | None:
    """Return the image with the plan's tag, `None` unless it was made from the very same inputs."""
    image, labels = _find_tagged_image(plan.tag, engine)
    return image if labels.get(INPUTS_LABEL) == f"sha256:{plan.inputs}" else None


def find_recorded_image(tag: str, record: ImageRecord, engine: Engine) -> Image | None:
    """Return the image with a tag, `None` unless it is the recorded one."""
    image, _ = _find_tagged_image(tag, engine)
    if image is None or not record.is_of(image.digest):
        return None
    return replace(image, record=record if image.digest == record.manifest.digest else None)


def _find_tagged_image(tag: str, engine: Engine) -> tuple[Image | None, Mapping[str, str]]:
    """Return the image with a tag, and its labels."""
    from docker.errors import NotFound

    with container_engine.docker_client(engine) as client:
        try:
            image = client.images.get(tag)
        except NotFound:
            return None, {}
    return Image(tag=tag, digest=str(image.id), size=int(image.attrs["Size"]), built=False), image.labels


def build_image(plan: BuildPlan, engine: Engine, *, log: Path, notify: Notify) -> Image:
    """Build the plan's image. The whole output goes to `log`, and each step that starts to `notify`.

    When two runs want the same image, it is built once: the later run waits and takes it. When the engine's garbage
    collector takes a blob during the build, the build is tried again.

    Raises:
        KnowngoodError: the build failed; the message explains the last error of the output.
    """
    with local_files.lock_folder(log.parent):
        if plan.cached and (image := find_image(plan, engine)):
            return image
        if not engine.containerd_store and not engine.builder:  # an image of the engine is no context elsewhere
            contexts = {
                name: image_store.import_base_layout(engine, address) for name, address in plan.contexts.items()
            }
            plan = replace(plan, contexts=contexts)
        return retry_collected(lambda: _build_once(plan, engine, log=log, notify=notify), notify)


def work_with_secrets(
    work: Callable[[Mapping[str, Path]], Product], distributions: Iterable[Distribution], notify: Notify
) -> Product:
    """Return `work`, a build from these distributions, of the files with the host's secrets.

    It is tried again when a server did not answer, and once when an archive arrived corrupt on the way.
    """
    wanted = tuple(distributions)
    for attempt in retries.retry_attempts(on=NetworkError, attempts=3, wait_initial=2, wait_max=30, timeout=None):
        with attempt, build_inputs.host_secrets() as secrets:
            if attempt.num > 1:
                notify(f"the network failed: attempt {attempt.num}")
            return repeat_after_damage(functools.partial(work, secrets), wanted, notify)
    raise AssertionError("the last attempt raises")


def retry_collected(work: Callable[[], Product], notify: Notify) -> Product:
    """Return `work`, tried again when the engine's garbage collector takes a blob during a build."""
    for attempt in retries.retry_attempts(on=GarbageCollectedError, attempts=3, wait_initial=1, wait_max=5):
        with attempt:
            if attempt.num > 1:
                notify(f"the engine's garbage collector took a blob during the build: attempt {attempt.num}")
            return work()
    raise AssertionError("the last attempt raises")


def _build_once(plan: BuildPlan, engine: Engine, *, log: Path, notify: Notify) -> Image:
    with local_files.scratch_folder() as folder:
        argv = build_command.buildx_command(plan, engine, folder / "metadata.json")
        run_buildx(argv, engine.environment(), log=log, notify=notify)
    image = find_image(plan, engine)
    if image is None:
        raise KnowngoodError(f"{plan.tag} was built, but the engine does not list it; see {log}")
    return replace(image, built=True)


def run_buildx(argv: Sequence[str], env: Mapping[str, str], *, log: Path, notify: Notify) -> None:
    """Run a command of buildx. Its whole output goes to `log`, and each step that starts to `notify`.

    Raises:
        KnowngoodError: the build failed; the message explains the last error of the output.
    """
    tail: deque[str] = deque(maxlen=60)
    started: set[str] = set()
    with (
        log.open("w", buffering=1) as output,  # by lines: it tells how far a run came that was killed
        subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=end_with_parent(),
        ) as process,
    ):
        try:
            assert process.stdout is not None  # noqa: S101
            for line in map(redact_credentials, process.stdout):
                output.write(line)
                tail.append(line)
                # BuildKit names a step again whenever its output goes on.
                if (step := parse_build_step(line)) and step not in started:
                    started.add(step)
                    notify(step)
        except BaseException:
            _stop(process)
            raise
    if process.returncode:
        raise build_command.explain_build_failure("".join(tail), log)


def _stop(process: subprocess.Popen[str]) -> None:
    """Stop the client and wait for its end: until then the engine may hold what the next build needs."""
    process.terminate()
    try:
        process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def take_image_record(engine: Engine, image: Image, build_plan: CellBuildPlan) -> ImageRecord:
    """Return the record of the plan's image; raises `KnowngoodError` where the engine's store keeps no manifests."""
    manifest = image_store.read_manifest(engine, image.tag, image.digest)
    tools = {"uv": build_plan.shape.uv, "buildkit": engine.buildkit, "engine": engine.version}
    layers = tuple(layer.name for layer in build_plan.locked_cell.layers)
    return image_record.image_record_from_manifest(
        str(build_plan.locked_cell.cell), build_plan.shape, layers, manifest, tools
    )


def keep_image_record(record: ImageRecord) -> None:
    """Keep the record in the cache, where a later plan learns which layers exist and how large they are."""
    write_atomically(_record_path(record.shape.inputs), record.render())


def load_kept_record(inputs: str) -> ImageRecord | None:
    """Return the kept record of the image with this digest of inputs, `None` if there is none."""
    return _load_record(_record_path(inputs))


def load_kept_records() -> Iterator[ImageRecord]:
    """Yield every record in the cache."""
    for path in sorted(_record_folder().glob("*.json")):
        if record := _load_record(path):
            yield record


def _record_folder() -> Path:
    return cache_folder() / "images"


def _record_path(inputs: str) -> Path:
    return _record_folder() / f"{inputs}.json"


def _load_record(path: Path) -> ImageRecord | None:
    with contextlib.suppress(OSError, UsageError):  # only a cache: a record that cannot be read counts as absent
        return image_record.parse_image_record(read_data_text(path), str(path))
    return None


def repeat_after_damage(work: Callable[[], Product], distributions: Iterable[Distribution], notify: Notify) -> Product:
    """Return the product of `work`, a build from these distributions.

    When an archive arrives corrupt, it is read from the index once more, for its hash. The build is repeated, once,
    only where the index serves the right bytes.

    Raises:
        CorruptArchiveError: the index serves other bytes than were locked, or the archive arrived corrupt twice.
    """
    try:
        return work()
    except CorruptArchiveError as error:
        failure, served = examine_damage(error, distributions)
        if not served:
            raise failure from None
        notify(f"{failure.file} arrived corrupt, but the index serves the right bytes: building once more")
    try:
        return work()
    except CorruptArchiveError as error:
        raise examine_damage(error, distributions)[0] from None


def examine_damage(
    error: CorruptArchiveError, distributions: Iterable[Distribution]
) -> tuple[CorruptArchiveError, bool]:
    """Return the error with the file's name and both hashes, and whether the index serves the bytes that were locked.

    The file is read from the index for that. An archive that is not one of the distributions is returned as it is.
    """
    names = {name: item for item in distributions for name in (item.file, f"{item.name}=={item.version}")}
    item = names.get(error.file)
    if item is None:
        return error, False
    try:
        actual = _read_served_hash(item)
    except NetworkError as unread:
        actual, advice = error.actual, f"{unread}, so it could not be read again"
    else:
        advice = "the index or a proxy before it serves other bytes than were locked: have the file put right there"
        if actual == item.sha256:
            advice = "the index serves the right bytes when it is asked alone: look at the proxy and at this machine"
    sound = actual == item.sha256
    failure = CorruptArchiveError(
        item.file,
        expected=item.sha256,
        actual=error.actual if sound else actual,
        detail=error.detail,
        advice=advice,
    )
    return failure, sound


def _read_served_hash(item: Distribution) -> str:
    """Return the SHA-256 of the distribution's file as the index serves it now; `NetworkError` when it does not."""
    from knowngood.index.artefact import UnreadableError
    from knowngood.index.package_index import SimpleIndex
    from knowngood.index.remote_archive import read_remote_hash

    try:
        files = SimpleIndex().files(item.name)
    except UnreadableError as error:
        raise NetworkError(str(error)) from None
    url = next((file.url for file in files if file.name == item.file), None)
    if url is None:
        raise NetworkError(f"the index does not list {item.file}")
    return read_remote_hash(url)
