"""The plan of one image's build, the `docker buildx` command that carries it out, and what its output says. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from knowngood.core.errors import (
    NO_SPACE_PATTERN,
    CorruptArchiveError,
    GarbageCollectedError,
    KnowngoodError,
    MissingError,
    NetworkError,
)
from knowngood.core.hosts import DEFAULT_HOST, HostArchitecture
from knowngood.core.image_record import ImageRecord, ImageShape
from knowngood.images.dockerfile import LABEL_PREFIX
from knowngood.index.index_settings import CORRUPT_PATTERN, parse_corrupt_archive
from knowngood.lock.lock_tree import CellLock

if TYPE_CHECKING:
    from knowngood.engine.container_engine import Engine

EPOCH = 315532800
"""1980-01-01 in seconds: the time of every file and of the image. A zip file can hold no earlier time."""

COMPRESSION = "compression=zstd,compression-level=3,force-compression=true,oci-mediatypes=true"
"""How BuildKit compresses layers."""

INPUTS_LABEL = LABEL_PREFIX + "inputs"
"""The label with which an image carries the digest of its shape."""


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """Everything that `docker buildx build` needs, decided before it runs."""

    tag: str
    dockerfile: Path
    context: Path
    contexts: Mapping[str, str]
    """The named build contexts: name to folder or `oci-layout://` address."""
    inputs: str
    """SHA-256 over everything that shapes the image. An image with this digest in its label is not built again."""
    secrets: Mapping[str, Path] = field(default_factory=dict)
    host: HostArchitecture = DEFAULT_HOST
    """The processor of the hosts that the image is for."""
    cached: bool = True
    """Whether earlier results may be used: a whole image, or single steps."""


@dataclass(frozen=True, kw_only=True)
class CellBuildPlan(BuildPlan):
    """The plan of a cell's image, with the lock and the shape that it follows from."""

    locked_cell: CellLock
    shape: ImageShape


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image in the engine."""

    tag: str
    digest: str
    """The digest of the manifest, `sha256:...`; the image id where the engine's store keeps no manifests."""
    size: int
    """Bytes, as the engine counts them."""
    built: bool
    """False when the image existed before this run."""
    record: ImageRecord | None = None
    """The image's blobs, for a cell's image in a store that keeps manifests."""


def buildx_command(plan: BuildPlan, engine: Engine, metadata: Path) -> list[str]:
    """Return the command that builds the plan on an engine; buildx writes `metadata`, a JSON file."""
    builder = ["--builder", engine.builder] if engine.builder else []
    argv = [*engine.docker, "buildx", "build", *builder, *_buildx_arguments(plan, engine.network, metadata)]
    if engine.containerd_store:
        # A builder that is not the engine sends the image to it.
        argv += ["--output", f"type={'docker' if engine.builder else 'image'},name={plan.tag},{COMPRESSION}"]
    else:
        argv += ["--load", "--tag", plan.tag]
    return [*argv, str(plan.context)]


def _buildx_arguments(plan: BuildPlan, network: str, metadata: Path) -> list[str]:
    """Return the arguments that come before the output and the context."""
    argv = ["--progress", "plain"]
    argv += [] if plan.cached else ["--no-cache"]
    argv += [] if plan.host == DEFAULT_HOST else ["--platform", plan.host.oci_platform]
    argv += ["--file", str(plan.dockerfile), "--network", network]
    for name, address in plan.contexts.items():
        argv += ["--build-context", f"{name}={address}"]
    for name, path in plan.secrets.items():
        argv += ["--secret", f"id={name},src={path}"]
    argv += ["--build-arg", f"SOURCE_DATE_EPOCH={EPOCH}", "--label", f"{INPUTS_LABEL}=sha256:{plan.inputs}"]
    return [*argv, "--provenance", "false", "--sbom", "false", "--metadata-file", str(metadata)]


def parse_build_step(line: str) -> str | None:
    """Return the name of the step that a line of BuildKit's plain progress starts, `None` for any other line."""
    match = re.match(r"#\d+ \[(?:(?P<stage>\S+)\s+)?\d+/\d+\] (?P<what>RUN|COPY|FROM)", line)
    if match:
        return f"{match['what'].lower()} {match['stage'] or ''}".rstrip()
    return "export" if re.match(r"#\d+ (\[\S+\] )?exporting (layers|to image|to docker image format)", line) else None


# A pattern in the output, the exception, and the sentence for it. The first pattern that matches counts.
_FAILURES: tuple[tuple[str, type[KnowngoodError], str], ...] = (
    (
        NO_SPACE_PATTERN,
        MissingError,
        "the disk is full; free some space (`docker system prune`, `knowngood engine down`)",
    ),
    (
        r"error decoding response body|end of file before message length",
        NetworkError,
        "the index stopped in the middle of a download; check network and proxy",
    ),
    # The sentence is that of the exception, with the name of the file.
    (CORRUPT_PATTERN, CorruptArchiveError, ""),
    (r"what is installed is not the lock", KnowngoodError, "what was installed is not what was locked"),
    (
        r"401 unauthorized|403 forbidden|lack of valid authentication",
        MissingError,
        "the index refuses this host; check the credentials in its index settings",
    ),
    (
        r"invalid peer certificate|certificate signed by unknown authority|certificate verify failed",
        MissingError,
        "a server's certificate is not trusted; name your CA file in SSL_CERT_FILE",
    ),
    # buildkit#2631 and #3809: an image is removed, and its blobs are collected while a build exports them.
    (
        r"(content digest|blob|lease|snapshot|ref) \S+?:? (not found|does not exist)\b",
        GarbageCollectedError,
        (
            "the engine's garbage collector took a blob that the build needed, or it was killed while it wrote; "
            "if this stays, `knowngood engine down --force` removes the embedded engine with its data"
        ),
    ),
    (
        r"failed to rename\b.*\bfile exists",
        KnowngoodError,
        (
            "the engine's data is damaged, as when it is killed while it writes; `knowngood engine down --force` "
            "removes the embedded engine with its data"
        ),
    ),
    (
        r"404 not found",
        KnowngoodError,
        "a locked wheel is gone from the index; `knowngood lock --upgrade` makes a new lock",
    ),
    # Before the words about networks: the engine's own socket is reset or at its end, as it happens.
    (
        r"cannot connect to the docker daemon|error reading from server",
        MissingError,
        "the engine stopped answering during the build",
    ),
    (
        (
            r"error sending request|failed to (fetch|download)(?! and build)|dns error"
            r"|connect(ion)? (refused|reset|timed out)|tls handshake|no such host|i/o timeout|network is unreachable"
            r"|temporary failure in name resolution"
        ),
        NetworkError,
        "the index does not answer; check network, proxy and index settings",
    ),
    (
        r"code = (unavailable|canceled)|unexpected eof",
        MissingError,
        "the engine stopped answering during the build",
    ),
    (
        r"signal: killed|exit code: 137|cannot allocate memory",
        MissingError,
        "a build step was killed, most likely because memory ran out",
    ),
)
_SUMMARY = re.compile(r"(?i)failed to solve|did not complete successfully")


def explain_build_failure(output: str, log: Path) -> KnowngoodError:
    """Return the exception for a build that failed with this output; `log` is the file with all of it."""
    # What other steps print says nothing about the failure; in a bake, they may belong to other targets.
    failed = set(re.findall(r"^#(\d+) ERROR: (?!.*context canceled)", output, re.MULTILINE))
    steps = [(re.match(r"#(\d+) ", line), line.strip()) for line in output.splitlines() if line.strip()]
    relevant = [line for step, line in steps if step is None or not failed or step[1] in failed]
    lines = [re.sub(r"^#\d+ ([\d.]+ )?", "", line) for line in relevant]
    for pattern, error_class, sentence in _FAILURES:
        if line := next((line for line in lines if re.search(pattern, line, re.IGNORECASE)), None):
            if error_class is CorruptArchiveError:
                return parse_corrupt_archive("\n".join(lines), f"the build stopped there (log: {log})")
            return error_class(f"{sentence}: {line} (log: {log}); run it again, finished steps are kept")
    errors = [line for line in lines if re.search(r"(?i)\berror\b", line)]
    # BuildKit's own last lines only say that a step failed; the step's lines before them say why.
    causes = [line for line in errors if not _SUMMARY.search(line)] or errors or lines or ["it printed nothing"]
    why = [line.strip() for line in lines if line.lstrip().startswith("cause: ")]  # uv's, the innermost last
    return KnowngoodError(f"the build failed: {': '.join([causes[-1], *why[-1:]])} (log: {log})")
