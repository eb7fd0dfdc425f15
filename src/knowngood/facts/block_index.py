"""Which blocks of an atlas file have a word: computed once from the file, then kept in the cache folder.

The index is one text, a line for each word with the blocks that have it, sorted. It is searched where it lies, so a
question about one word takes no longer for a large package than for a small one.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterable
from pathlib import Path

from knowngood.core.local_files import cache_folder, write_atomically

_VERSION = 1
"""To be raised when the same file gives another index."""

ListWords = Callable[[], Iterable[Iterable[str]]]
"""Returns the words of each block of a file, the first block first."""


class BlockIndex:
    """The words of one file, each with the blocks that have it."""

    def __init__(self, content: bytes | mmap.mmap) -> None:
        self._content = content

    def find_blocks(self, word: str) -> list[int]:
        """Return the numbers of the blocks that have a word, sorted."""
        content, wanted = self._content, word.encode() + b"\t"
        low, high = 0, len(content)
        while low < high:
            start = content.rfind(b"\n", 0, (low + high) // 2) + 1
            end = content.find(b"\n", start) + 1
            if content[start : start + len(wanted)] == wanted:
                return [int(text) for text in content[start + len(wanted) : end].split()]
            if content[start:end] < wanted:
                low = end
            else:
                high = start
        return []


def open_block_index(path: Path, kind: str, list_words: ListWords) -> BlockIndex:
    """Open the index of a file; it is made first when the cache folder has none of the file as it is now.

    Args:
        path: the file.
        kind: a name for what counts as a word.
        list_words: reads the file, when the index has to be made.
    """
    state = path.stat()
    folder = cache_folder() / "atlas" / path.parent.name
    place = folder / f"{path.stem}.{kind}.{_VERSION}-{state.st_size}-{state.st_mtime_ns}"
    with contextlib.suppress(OSError, ValueError), place.open("rb") as file:
        return BlockIndex(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    content = _render_index(list_words())
    with contextlib.suppress(OSError):
        for old in folder.glob(f"{path.stem}.{kind}.*"):
            old.unlink(missing_ok=True)
        write_atomically(place, content)
    return BlockIndex(content)


def _render_index(words: Iterable[Iterable[str]]) -> bytes:
    blocks: dict[str, list[str]] = {}
    for number, block in enumerate(words):
        for word in block:
            blocks.setdefault(word, []).append(str(number))
    lines = (f"{word}\t{' '.join(numbers)}\n".encode() for word, numbers in blocks.items())
    return b"".join(sorted(lines))
