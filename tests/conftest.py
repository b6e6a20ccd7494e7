"""For all tests."""

import signal

import pytest
from hypothesis import settings

from tests.streams import Streams, longest_first

settings.register_profile("rollpacker", deadline=None)
"""A test says nothing of the time that it takes: the first example may wait for an import, or for a busy machine."""


def pytest_configure() -> None:
    """Let the commands that tests start take Ctrl-C, also when the tests themselves run in a shell's background.

    A shell starts background jobs with SIGINT ignored, and children inherit that.
    """
    settings.load_profile("rollpacker")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items) -> None:
    """In a process of pytest-xdist, begin with what takes longest."""
    if hasattr(config, "workerinput"):
        items[:] = longest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Share the tests among processes in our way, whatever --dist says."""
    return Streams(config, log)
