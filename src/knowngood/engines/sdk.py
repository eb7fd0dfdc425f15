"""Talking to an engine through the docker SDK: what it or the connection refuses, as a sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from knowngood.errors import KnowngoodError, MissingError

if TYPE_CHECKING:
    from docker import DockerClient
    from knowngood.engines.engine import Engine


@contextlib.contextmanager
def client(engine: Engine) -> Iterator[DockerClient]:
    """A client of the engine, closed afterwards.

    Raises `MissingError` when the engine does not answer (any more), `KnowngoodError` with its words when it refuses.
    """
    from docker.errors import APIError, DockerException
    from requests import RequestException

    try:
        with contextlib.closing(engine.client()) as found:
            yield found
    except APIError as error:
        raise KnowngoodError(f"the engine at {engine.host} refused: {error.explanation or error}") from None
    except (DockerException, RequestException) as error:
        raise MissingError(
            f"the engine at {engine.host} does not answer ({error}); `knowngood engine status` says more, "
            "`knowngood engine up` starts the embedded one"
        ) from None
