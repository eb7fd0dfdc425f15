"""Retries with growing waits, by the library stamina, without log lines of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import stamina


def retry_attempts(
    on: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool | float], **schedule: Any
) -> Iterator[stamina.Attempt]:
    """Yield attempts: a block `with attempt:` that fails with an exception of `on` is run again.

    `schedule` is that of `stamina.retry_context`. The last failure is raised, and the caller turns it into a message.
    stamina is imported here, because commands that make no request import this module too.
    """
    import stamina

    logging.getLogger("stamina").addHandler(logging.NullHandler())
    yield from stamina.retry_context(on=on, **schedule)
