"""Why a build failed: from what BuildKit, uv and the engine print to the sentence that helps. Pure."""

from __future__ import annotations

import re
from pathlib import Path

from knowngood.errors import CollectedError, KnowngoodError, MissingError, NetworkError

# The first that matches wins.
_FAILURES: tuple[tuple[str, type[KnowngoodError], str], ...] = (
    (
        r"no space left on device|disk quota exceeded",
        MissingError,
        "the disk is full; free some space (`docker system prune`, `knowngood engine down`)",
    ),
    (r"hash mismatch", KnowngoodError, "a wheel on the index is not the one that was locked (hash mismatch)"),
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
    # buildkit#2631 and #3809: an image is removed, and its blobs are collected while a build is being exported.
    (
        r"(content digest|blob|lease|snapshot|ref) \S+?:? (not found|does not exist)\b",
        CollectedError,
        "the engine's garbage collector took a blob that the build needed",
    ),
    (r"404 not found", KnowngoodError, "a locked wheel is gone from the index; `knowngood lock --upgrade` locks anew"),
    (
        (
            r"error sending request|failed to (fetch|download)|dns error|connect(ion)? (refused|reset|timed out)"
            r"|tls handshake|no such host|i/o timeout|network is unreachable|temporary failure in name resolution"
        ),
        NetworkError,
        "the index does not answer; check network, proxy and index settings",
    ),
    (
        r"cannot connect to the docker daemon|error reading from server|code = (unavailable|canceled)|unexpected eof",
        MissingError,
        "the engine stopped answering during the build",
    ),
    (
        r"signal: killed|exit code: 137|cannot allocate memory",
        MissingError,
        "a build step was killed, most likely for want of memory",
    ),
)
_SUMMARY = re.compile(r"(?i)failed to solve|did not complete successfully")


def read(output: str, log: Path) -> KnowngoodError:
    """The exception for a build that failed with this output; `log` has the whole of it."""
    lines = [re.sub(r"^#\d+ ([\d.]+ )?", "", line.strip()) for line in output.splitlines() if line.strip()]
    for pattern, kind, sentence in _FAILURES:
        if hit := next((line for line in lines if re.search(pattern, line, re.IGNORECASE)), None):
            return kind(f"{sentence}: {hit} (log: {log}); run it again, finished steps are kept")
    errors = [line for line in lines if re.search(r"(?i)\berror\b", line)]
    # The last words are BuildKit's, that a step failed; why is what the step said before.
    causes = [line for line in errors if not _SUMMARY.search(line)] or errors or lines or ["it said nothing"]
    return KnowngoodError(f"the build failed: {causes[-1]} (log: {log})")
