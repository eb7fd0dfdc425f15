"""What uv prints about an archive that it could not open, or whose hash is another one. Pure."""

from __future__ import annotations

import re

from knowngood.core.errors import CorruptArchiveError

CORRUPT_PATTERN = r"(?i)hash mismatch|failed to extract archive"
"""Matches a line of uv's output about a corrupt archive. A download that stopped early is reported otherwise."""

_EXTRACTION = re.compile(r"(?i)failed to extract archive: (?P<file>\S+)(?P<causes>(?:\n[\d. ]*cause: .*)*)")
_MISMATCH = re.compile(r"(?i)hash mismatch for `?(?P<file>[^`\s]+)")
_HASH = r":\s+(?:[\d.]+\s+)?sha256:([0-9a-f]{64})"


def parse_corrupt_archive(output: str, advice: str) -> CorruptArchiveError:
    """Return the error for uv's output about an archive that it could not open, or whose hash is another one.

    The archive is named by its file, or as `NAME==VERSION`. uv tells the two hashes only where it could open it.
    """
    opened, mismatch = _EXTRACTION.search(output), _MISMATCH.search(output)
    match = opened or mismatch
    expected, actual = re.search("Expected" + _HASH, output), re.search("Computed" + _HASH, output)
    causes = [line.partition("cause: ")[2] for line in opened["causes"].splitlines()] if opened else []
    return CorruptArchiveError(
        match["file"] if match else "an archive of the index",
        expected=expected[1] if expected else "",
        actual=actual[1] if actual else "",
        detail=causes[-1] if causes else "" if opened else "hash mismatch",
        advice=advice,
    )
