"""Compiling a cell's kernels in its image, in containers of their own, and giving them to a cache volume. An edge.

The first container begins with an empty cache; what it compiled is taken out of it. The second one is given the pack,
so that its seconds show what the pack is worth.
"""

from __future__ import annotations

import io
import json
import platform
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knowngood.core.errors import KnowngoodError
from knowngood.core.local_files import write_atomically
from knowngood.core.notify import Notify
from knowngood.engine import container_engine
from knowngood.launch import kernel_store, warm_inside
from knowngood.launch.container_run import CACHE_FOLDER, ContainerRun
from knowngood.launch.kernel_pack import KERNEL_FOLDERS, NO_GPU, KernelMachine, KernelPack, select_kernel_files
from knowngood.smoke import suite_run
from knowngood.smoke.suite_command import CONTAINER_FOLDER, SuiteOptions

if TYPE_CHECKING:
    from docker.models.containers import Container

    from knowngood.core.cell import Cell
    from knowngood.engine.container_engine import Engine

_LABEL = "io.knowngood.warm"
_IMAGE_USER = (1000, 1000)
"""The user of the images, as whom the containers run."""
_LIMIT_SECONDS = 3600


def make_kernel_pack(  # noqa: PLR0913, PLR0917
    cell: Cell, image: str, digest: str, machine: KernelMachine, engine: Engine, notify: Notify
) -> KernelPack:
    """Compile what the settings of a cell compile at their first step, and return it with the seconds of both runs.

    `image` is the name of the cell's image in the engine, `digest` that of its manifest, by which packs are found.

    Raises:
        MissingError: the engine cannot give a container the GPU.
        KnowngoodError: no setting compiled anything.
    """
    notify(f"first steps with an empty cache, on {machine.gpu}")
    cold, files = _run_first_steps(cell, image, machine, engine, None)
    if not files:
        reasons = "; ".join(f"{name}: {values.get('problem', 'nothing')}" for name, values in cold.items())
        raise KnowngoodError(f"nothing was compiled in {image}: {reasons}")
    made = datetime.now(UTC).isoformat(timespec="seconds")
    pack = KernelPack(cell=str(cell), image=digest, machine=machine, made=made, files=files)
    notify(f"first steps with the {len(files)} files that this compiled")
    warm, _ = _run_first_steps(cell, image, machine, engine, pack)
    return replace(pack, seconds=compare_first_steps(cold, warm))


def compare_first_steps(
    cold: Mapping[str, Mapping[str, Any]], warm: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return by setting the seconds of the first step with an empty cache and with a pack, or why there are none."""
    seconds: dict[str, dict[str, Any]] = {}
    for name, before in cold.items():
        after = warm.get(name, {})
        if problem := before.get("problem") or after.get("problem"):
            seconds[name] = {"problem": problem}
        else:
            seconds[name] = {"cold": before["first_step"], "warm": after["first_step"]}
            seconds[name] |= {"cold_all": before["all"], "warm_all": after["all"]}
    return seconds


def fill_cache_volume(engine: Engine, run: ContainerRun, pack: KernelPack) -> bool:
    """Put the kernels of a pack into the cache volume of a run, and return whether they are new there.

    A container is made for it and never started. That a volume has a pack is noted in this machine's cache folder,
    with the time at which the volume was made.
    """
    volume, note = run.cache_volume, kernel_store.kernel_folder() / "volumes" / f"{run.cache_volume}.json"
    with container_engine.docker_client(engine) as client:
        made = str(client.volumes.create(volume).attrs.get("CreatedAt"))
        known = _read_note(note)
        if known.get("volume") == [engine.host, made] and pack.sha256 in known.get("packs", ()):
            return False
        container = client.containers.create(
            run.image, ["true"], volumes={volume: {"bind": CACHE_FOLDER, "mode": "rw"}}
        )
        try:
            container.put_archive(CACHE_FOLDER, pack.archive(int(run.user.user), int(run.user.group)))
        finally:
            container.remove(force=True)
    packs = known.get("packs", []) if known.get("volume") == [engine.host, made] else []
    write_atomically(note, json.dumps({"volume": [engine.host, made], "packs": [*packs, pack.sha256]}))
    return True


def _read_note(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _run_first_steps(
    cell: Cell, image: str, machine: KernelMachine, engine: Engine, pack: KernelPack | None
) -> tuple[dict[str, dict[str, Any]], dict[str, bytes]]:
    """Run `warm_inside` in a container, and return what it measured and the files that compilers left."""
    options = SuiteOptions(gpus=machine.gpu != NO_GPU, memory="32g")
    label = f"{platform.node()}/{cell}"
    script = f"{CONTAINER_FOLDER}/warm_inside.py"
    with container_engine.docker_client(engine) as client:
        suite_run.remove_old_containers(client, _LABEL, label)
        container = suite_run.create_suite_container(client, image, ["python", script], options, labels={_LABEL: label})
        try:
            container.put_archive("/tmp", _script_archive())  # noqa: S108 - in a container that nobody else uses
            if pack:
                container.put_archive(CACHE_FOLDER, pack.archive(*_IMAGE_USER))
            suite_run.start_suite_container(container, engine)
            code = container.wait(timeout=_LIMIT_SECONDS)["StatusCode"]
            lines = container.logs(stdout=True, stderr=False).decode(errors="replace").splitlines()
            if code or not lines:
                tail = container.logs(tail=5).decode(errors="replace").strip()
                raise KnowngoodError(f"the first steps failed in {image} (exit code {code}): {tail}")
            return json.loads(lines[-1]), _take_kernel_files(container)
        finally:
            container.remove(force=True, v=True)


def _take_kernel_files(container: Container) -> dict[str, bytes]:
    from docker.errors import NotFound

    files: dict[str, bytes] = {}
    for folder in KERNEL_FOLDERS:
        try:
            chunks, _ = container.get_archive(f"{CACHE_FOLDER}/{folder}")
        except NotFound:
            continue
        files |= select_kernel_files(b"".join(chunks))
    return files


def _script_archive() -> bytes:
    path, buffer = Path(warm_inside.__file__), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo(f"{Path(CONTAINER_FOLDER).name}/{path.name}")
        data = path.read_bytes()
        member.size, member.mode = len(data), 0o644
        tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
