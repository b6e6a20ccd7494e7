"""For all tests."""

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.streams import Streams, longest_first

# A property says nothing of time: its first example may wait for an import, or for a busy machine. And it is tried with
# the same examples in every run, so that what a change is told is of that change; `--hypothesis-profile=random` draws
# new ones and keeps what fails in .hypothesis, as one does to search.
settings.register_profile(
    "random", settings.get_profile("default"), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("rollpacker", settings.get_profile("random"), derandomize=True, print_blob=True)
settings.load_profile("rollpacker")


def pytest_configure() -> None:
    """Let the commands that tests start take Ctrl-C, also when the tests themselves run in a shell's background.

    A shell starts background jobs with SIGINT ignored, and children inherit that. And let no test find GPUs that it did
    not ask for: runs would be placed on them. And look for garbage as rarely as a command does: a process that has all
    libraries and all tests has millions of objects to visit.
    """
    gc.set_threshold(50_000)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    """Undo what a test's command did to signals: a child that inherits it may outlive the SIGTERM that is to end it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        return (yield)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pytest_collection_modifyitems(config, items) -> None:
    """In a process of pytest-xdist, begin with what takes longest."""
    if hasattr(config, "workerinput"):
        items[:] = longest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Share the tests among processes in our way, whatever --dist says."""
    return Streams(config, log)
