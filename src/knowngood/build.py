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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood import host
from knowngood.errors import KnowngoodError, MissingError
from knowngood.paths import cache_dir
from knowngood.render import LABEL

if TYPE_CHECKING:
    from knowngood.engine import Engine

EPOCH = 315532800
"""1980-01-01, the time of every file and of the image: zip knows none older."""

_COMPRESSION = "compression=zstd,compression-level=3,force-compression=true,oci-mediatypes=true"


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
    """The argv that builds the plan. Pure."""
    argv = [*engine.docker, "buildx", "build", "--progress", "plain"]
    argv += ["--file", str(plan.dockerfile), "--network", engine.network]
    for name, place in plan.contexts.items():
        argv += ["--build-context", f"{name}={place}"]
    for name, path in plan.secrets.items():
        argv += ["--secret", f"id={name},src={path}"]
    argv += ["--build-arg", f"SOURCE_DATE_EPOCH={EPOCH}", "--label", f"{LABEL}inputs=sha256:{plan.inputs}"]
    argv += ["--provenance", "false", "--sbom", "false", "--metadata-file", str(metadata)]
    if engine.containerd_store:
        argv += ["--output", f"type=image,name={plan.tag},{_COMPRESSION}"]
    else:
        argv += ["--load", "--tag", plan.tag]
    return [*argv, str(plan.context)]


def inputs(dockerfile: str, folders: Mapping[str, Path], words: Mapping[str, str]) -> str:
    """SHA-256 over a Dockerfile, the files of the folders it reads, and what else shapes the image."""
    digest = hashlib.sha256()
    digest.update(json.dumps([dockerfile, _COMPRESSION, EPOCH, dict(sorted(words.items()))]).encode())
    for name, folder in sorted(folders.items()):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"\0{name}/{path.relative_to(folder)}\0{path.stat().st_mode & 0o111}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def tools() -> Path:
    """A folder with the uv of this environment, for the build to install wheels with."""
    from uv import find_uv_bin

    return _staged([Path(find_uv_bin())], f"tools-{uv_version()}")


def uv_version() -> str:
    """The release of uv that resolves and installs."""
    from importlib.metadata import version

    return version("uv")


def wheelhouse(wheel: Path, sha256: str) -> Path:
    """A folder with that wheel alone, since a build context is sent whole."""
    return _staged([wheel], f"wheel-{sha256[:16]}")


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
    with tempfile.TemporaryDirectory(prefix="knowngood-") as folder:
        if settings.env:
            path = Path(folder) / "env"
            path.touch(mode=0o600)
            path.write_text(settings.shell())
            secrets["env"] = path
        yield secrets


def existing(plan: Plan, engine: Engine) -> Image | None:
    """The image of the plan's tag, if it was made from the very same inputs."""
    from docker.errors import NotFound

    client = engine.client()
    try:
        image = client.images.get(plan.tag)
    except NotFound:
        return None
    finally:
        client.close()
    if image.labels.get(LABEL + "inputs") != f"sha256:{plan.inputs}":
        return None
    return Image(tag=plan.tag, digest=str(image.id), size=int(image.attrs["Size"]), built=False)


def build(plan: Plan, engine: Engine, *, log: Path, say: Callable[[str], None]) -> Image:
    """Build the plan's image; the whole output goes to `log`, each step that begins to `say`.

    Raises `KnowngoodError` with the sentence that explains the output's last error.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="knowngood-") as folder:
        metadata = Path(folder) / "metadata.json"
        tail: deque[str] = deque(maxlen=60)
        with (
            log.open("w") as out,
            subprocess.Popen(
                command(plan, engine, metadata),
                env=engine.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process,
        ):
            try:
                assert process.stdout is not None  # noqa: S101
                for line in process.stdout:
                    out.write(line)
                    tail.append(line)
                    if step := _step(line):
                        say(step)
            except BaseException:
                process.terminate()
                raise
        if process.returncode:
            raise failure("".join(tail), log)
    found = existing(plan, engine)
    if found is None:
        raise KnowngoodError(f"{plan.tag} was built, but the engine does not show it; see {log}")
    return Image(tag=found.tag, digest=found.digest, size=found.size, built=True)


def _step(line: str) -> str | None:
    """What a line of BuildKit's plain progress says has begun."""
    match = re.match(r"#\d+ \[(?P<stage>[^\]]+?)\s+\d+/\d+\] (?P<what>RUN|COPY|FROM)", line)
    if match:
        return f"{match['what'].lower()} {match['stage']}"
    return "export" if re.match(r"#\d+ exporting (layers|to image)", line) else None


# What BuildKit, uv and the engine print, to the sentence that helps. The first that matches wins.
_FAILURES: tuple[tuple[str, type[KnowngoodError], str], ...] = (
    (
        r"(?i)no space left on device",
        MissingError,
        "the disk is full; free some space (`docker system prune`, `knowngood engine down`)",
    ),
    (r"(?i)hash mismatch", KnowngoodError, "a wheel on the index is not the one that was locked (hash mismatch)"),
    (r"(?i)what is installed is not the lock", KnowngoodError, "what was installed is not what was locked"),
    (
        r"(?i)(error sending request|failed to fetch|dns error|connect(ion)? (refused|reset|timed out)|tls handshake)",
        MissingError,
        "the index does not answer; check network, proxy and index settings",
    ),
    (
        r"(?i)(cannot connect to the docker daemon|error reading from server|code = (unavailable|canceled)|\beof\b)",
        MissingError,
        "the engine stopped answering during the build",
    ),
)


def failure(output: str, log: Path) -> KnowngoodError:
    """The exception for a build that failed with this output. Pure."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for pattern, kind, sentence in _FAILURES:
        hit = next((line for line in lines if re.search(pattern, line)), None)
        if hit:
            detail = re.sub(r"^#\d+ ([\d.]+ )?", "", hit)
            return kind(f"{sentence}: {detail} (log: {log}); run it again, finished steps are kept")
    last = next((line for line in reversed(lines) if "ERROR" in line or "error" in line), lines[-1] if lines else "")
    return KnowngoodError(f"the build failed: {last} (log: {log})")
