"""The fixtures that the tests of all distributions share, and those of this one."""

import pytest

import harvest_registry
from shared_fixtures import *  # noqa: F403


@pytest.fixture
def registry():
    """An index of packages on this machine, without any package."""
    with harvest_registry.serve() as served:
        yield served
