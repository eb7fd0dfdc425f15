"""`knowngood build`: a cell's Dockerfile to an image in the engine, by BuildKit through `docker buildx`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from knowngood import host, paths, retrying
from knowngood.building import failure
from knowngood.building.shape import Shape, text_digest
from knowngood.engines import classic, sdk
from knowngood.errors import CollectedError, KnowngoodError, redacted
from knowngood.paths import cache_dir
from knowngood.render import LABEL

if TYPE_CHECKING:
    from knowngood.engines.engine import Engine
    from knowngood.locks.lock import Distribution

Done = TypeVar("Done")
Told = Callable[[str], str | None]
EPOCH = 315532800
"""1980-01-01, the time of every file and of the image: zip knows none older."""

STOP_SECONDS = 20.0
"""For the client to give up a build that was stopped."""

COMPRESSION = "compression=zstd,compression-level=3,force-compression=true,oci-mediatypes=true"
"""How BuildKit compresses layers, wherever it does."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that makes an image, decided before anything runs."""

    tag: str
    dockerfile: Path
    context: Path
    contexts: Mapping[str, str]
    """Named build contexts: name to folder, `oci-layout://` or `docker-image://` address."""
    inputs: str
    """SHA-256 over all that shapes the image; an image that carries it as label need not be built again."""
    secrets: Mapping[str, Path] = field(default_factory=dict)
    cached: bool = True
    """Whether what was built before may be taken: an image, or single steps."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image in the engine."""

    tag: str
    digest: str
    """Of the manifest, `sha256:...`; the image id where the engine's store keeps no manifests."""
    size: int
    """Bytes, as the engine counts them."""
    built: bool
    """False when it was there already."""


def command(plan: Plan, engine: Engine, metadata: Path) -> list[str]:
    """The argv that builds the plan on an engine. Pure."""
    argv = [*engine.docker, "buildx", "build", *arguments(plan, engine.network, metadata)]
    if engine.containerd_store:
        argv += ["--output", f"type=image,name={plan.tag},{COMPRESSION}"]
    else:
        argv += ["--load", "--tag", plan.tag]
    return [*argv, str(plan.context)]


def arguments(plan: Plan, network: str, metadata: Path) -> list[str]:
    """What `buildx build` is told of a plan, wherever it is built; the output and the context come after it. Pure."""
    argv = ["--progress", "plain"]
    argv += [] if plan.cached else ["--no-cache"]
    argv += ["--file", str(plan.dockerfile), "--network", network]
    for name, place in plan.contexts.items():
        argv += ["--build-context", f"{name}={place}"]
    for name, path in plan.secrets.items():
        argv += ["--secret", f"id={name},src={path}"]
    argv += ["--build-arg", f"SOURCE_DATE_EPOCH={EPOCH}", "--label", f"{LABEL}inputs=sha256:{plan.inputs}"]
    return [*argv, "--provenance", "false", "--sbom", "false", "--metadata-file", str(metadata)]


def shape(dockerfile: str, *, lock: str, base: str, recipe: str, suite: str) -> Shape:
    """Everything that shapes the image of a Dockerfile, by digests; those of folders are `folder_digest`s."""
    return Shape(
        dockerfile=text_digest(dockerfile),
        lock=lock,
        base=base,
        recipe=recipe,
        suite=suite,
        uv=uv_version(),
        export=f"{COMPRESSION},epoch={EPOCH}",
    )


def folder_digest(folder: Path) -> str:
    """SHA-256 over the names, modes and bytes of a folder's files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        if path.is_file() and not any(_is_litter(part) for part in place.parts):
            data = path.read_bytes()
            facts = [str(place), path.stat().st_mode & 0o111, len(data)]
            digest.update(json.dumps(facts).encode() + data)
    return digest.hexdigest()


def _is_litter(name: str) -> bool:
    """What tools leave beside sources; `docker/recipe/install-suite` leaves the same out."""
    return name == "__pycache__" or name.startswith(".")


def tools() -> Path:
    """A folder with the uv of this environment, for the build to install wheels with."""
    from uv import find_uv_bin

    return _staged([Path(find_uv_bin())], f"tools-{uv_version()}")


def uv_version() -> str:
    """The release of uv that resolves and installs."""
    from importlib.metadata import version

    return version("uv")


def wheelhouse(house: Path, wheels: Sequence[Distribution]) -> Path:
    """A folder with those wheels alone, since a build context is sent whole."""
    name = "-".join(["wheel", *(item.sha256[:16] for item in wheels)])
    return _staged([house / item.file for item in wheels], name)


def _staged(files: list[Path], name: str) -> Path:
    """A folder under the cache that holds these files and no others; complete or absent."""
    folder = cache_dir() / "contexts" / name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            part = Path(temporary) / "part"
            part.mkdir()
            for file in files:
                try:
                    os.link(file.resolve(), part / file.name)
                except OSError:
                    shutil.copy2(file, part / file.name)
            with contextlib.suppress(OSError):  # another run was first
                part.rename(folder)
    return folder


@contextlib.contextmanager
def host_secrets() -> Iterator[dict[str, Path]]:
    """The host's index, proxy and CA settings as secret files; the one made here is gone afterwards."""
    settings = host.settings()
    secrets = dict(settings.files)
    with paths.scratch() as folder:
        if settings.env:
            path = folder / "env"
            path.touch(mode=0o600)
            path.write_text(settings.shell())
            secrets["env"] = path
        yield secrets


def existing(plan: Plan, engine: Engine) -> Image | None:
    """The image of the plan's tag, if it was made from the very same inputs."""
    from docker.errors import NotFound

    with sdk.client(engine) as client:
        try:
            image = client.images.get(plan.tag)
        except NotFound:
            return None
    if image.labels.get(LABEL + "inputs") != f"sha256:{plan.inputs}":
        return None
    return Image(tag=plan.tag, digest=str(image.id), size=int(image.attrs["Size"]), built=False)


def build(plan: Plan, engine: Engine, *, log: Path, say: Callable[[str], None]) -> Image:
    """Build the plan's image; the whole output goes to `log`, each step that begins to `say`.

    Two runs that want the same image build it once: the later one waits and takes it. Blobs that the engine collects
    meanwhile are made again.
    Raises `KnowngoodError` with the sentence that explains the output's last error.
    """
    with paths.locked(log.parent):
        if plan.cached and (found := existing(plan, engine)):
            return found
        if not engine.containerd_store:
            contexts = {name: classic.context(engine, place) for name, place in plan.contexts.items()}
            plan = replace(plan, contexts=contexts)
        return _attempted(lambda: _build(plan, engine, log=log, say=say), say)


def execute(argv: Sequence[str], env: Mapping[str, str], *, log: Path, say: Callable[[str], None], told: Told) -> None:
    """Run a `buildx build` as `build` does, on whatever builder its words name; again when a blob was collected.

    `told` makes of a line of BuildKit's output what is said of it, once.
    """
    with paths.locked(log.parent):
        _attempted(lambda: _run(argv, env, log=log, say=say, told=told), say)


def _attempted(work: Callable[[], Done], say: Callable[[str], None]) -> Done:
    for attempt in retrying.attempts(on=CollectedError, attempts=3, wait_initial=1, wait_max=5):
        with attempt:
            if attempt.num > 1:
                say(f"the engine collected a blob in the middle of it: attempt {attempt.num}")
            return work()
    raise AssertionError("stamina yields at least one attempt")


def _build(plan: Plan, engine: Engine, *, log: Path, say: Callable[[str], None]) -> Image:
    with paths.scratch() as folder:
        _run(command(plan, engine, folder / "metadata.json"), engine.environment(), log=log, say=say, told=step)
    found = existing(plan, engine)
    if found is None:
        raise KnowngoodError(f"{plan.tag} was built, but the engine does not show it; see {log}")
    return Image(tag=found.tag, digest=found.digest, size=found.size, built=True)


def _run(argv: Sequence[str], env: Mapping[str, str], *, log: Path, say: Callable[[str], None], told: Told) -> None:
    tail: deque[str] = deque(maxlen=60)
    begun: set[str] = set()
    with (
        log.open("w") as out,
        subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        try:
            assert process.stdout is not None  # noqa: S101
            for line in map(redacted, process.stdout):
                out.write(line)
                tail.append(line)
                # BuildKit names a step again whenever its output goes on.
                if (text := told(line)) and text not in begun:
                    begun.add(text)
                    say(text)
        except BaseException:
            _stop(process)
            raise
    if process.returncode:
        raise failure.read("".join(tail), log)


def _stop(process: subprocess.Popen[str]) -> None:
    """End the client, and see it end: until then the engine has not let go of what the next build may want."""
    process.terminate()
    try:
        process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def step(line: str) -> str | None:
    """What a line of BuildKit's plain progress says has begun."""
    match = re.match(r"#\d+ \[(?:(?P<stage>\S+)\s+)?\d+/\d+\] (?P<what>RUN|COPY|FROM)", line)
    if match:
        return f"{match['what'].lower()} {match['stage'] or ''}".rstrip()
    return "export" if re.match(r"#\d+ exporting (layers|to image)", line) else None
