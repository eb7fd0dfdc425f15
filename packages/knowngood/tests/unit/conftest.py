"""The fixtures that the tests of all distributions share."""

from shared_fixtures import *  # noqa: F403
from shared_fixtures import _own_cache  # noqa: F401 - a star leaves it out
