"""The fixtures that the tests of all distributions share."""

from shared_fixtures import *  # noqa: F403
