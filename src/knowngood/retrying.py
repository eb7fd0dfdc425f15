"""What is tried again: stamina, which says nothing of it in a log of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import stamina


def attempts(
    on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool | float], **schedule: Any
) -> Iterator[stamina.Attempt]:
    """`stamina.retry_context`: what fails in the end is told by whoever asked, as a sentence."""
    import logging

    import stamina

    logging.getLogger("stamina").addHandler(logging.NullHandler())
    yield from stamina.retry_context(on=on, **schedule)
