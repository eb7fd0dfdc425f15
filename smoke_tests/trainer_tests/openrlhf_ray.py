"""What OpenRLHF's PPO has beside its process, for checks of a fixed rollout: Ray's actors are called in this one.

The command ``python -m openrlhf.cli.train_ppo_ray`` starts Ray and vLLM, which are not asked here. Its options are
read by its own parser.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from smoke_tests.trainers import openrlhf_place

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "openrlhf.cli.train_ppo_ray"
RAY = "Ray: its actors are called in this process"


class _Read(Exception):  # noqa: N818
    """Ends the command once its options were read."""


def read_options(options: dict[str, Any]) -> Any:
    """The options as its command has read, checked and completed them."""
    import openrlhf.utils
    import ray

    made: list[Any] = []

    def stop(args: Any) -> None:
        made.append(args)
        raise _Read

    with (
        mock.patch.object(openrlhf.utils, "get_strategy", stop),
        mock.patch.object(ray, "is_initialized", return_value=True),
        contextlib.suppress(_Read),
    ):
        openrlhf_place.call_module(MODULE, options)
    if made:
        return made[0]
    raise RuntimeError(f"{MODULE} has ended, and made no strategy")


class Group:
    """One of Ray's actors in this process, with the methods of OpenRLHF's RayActorGroup that its trainer calls."""

    def __init__(self, kind: Any) -> None:
        environment = (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
        self.actor = kind.__ray_metadata__.modified_class(1, 0, *environment)

    def async_run_method_batch(self, method_name: str, **lists: Any) -> list[Any]:
        """The results of a method for each item of the lists; there is one chunk of them."""
        return [self.actor.execute_batch(method_name, lists, 0, len(next(iter(lists.values()))))]

    def async_run_method(self, method_name: str, **options: Any) -> list[Any]:
        """The result of a method."""
        return [getattr(self.actor, method_name)(**options)]


@contextlib.contextmanager
def here() -> Iterator[None]:
    """Inside, what Ray is asked to get is there already, and what it is given stays."""
    import ray

    with (
        mock.patch.object(ray, "get", lambda value, **_options: value),
        mock.patch.object(ray, "put", lambda value, **_options: value),
    ):
        yield


@contextlib.contextmanager
def with_buffer() -> Iterator[None]:
    """Inside, a buffer for experience can be made on a CPU too: it names a GPU, and puts nothing there."""
    if torch.cuda.is_available():
        yield
        return
    with mock.patch.object(torch.cuda, "current_device", return_value=0):
        yield
