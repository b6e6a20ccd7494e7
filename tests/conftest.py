"""For all tests."""

import signal

from hypothesis import settings

settings.register_profile("rollpacker", deadline=None)
"""A test says nothing of the time that it takes: the first example may wait for an import, or for a busy machine."""


def pytest_configure() -> None:
    """Let the commands that tests start take Ctrl-C, also when the tests themselves run in a shell's background.

    A shell starts background jobs with SIGINT ignored, and children inherit that.
    """
    settings.load_profile("rollpacker")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
