"""For all tests."""

import signal


def pytest_configure() -> None:
    """Let the commands that tests start take Ctrl-C, also when the tests themselves run in a shell's background.

    A shell starts background jobs with SIGINT ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
