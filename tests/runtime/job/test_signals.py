"""Signals that are handled for the time of a block."""

import signal
from contextlib import suppress

import pytest

from rollpacker.runtime.job.signals import signals_handled


@pytest.fixture
def before():
    """The handlers that a block finds, and what they heard: one of a program, and none for a signal that is ignored."""
    heard = []
    numbers = (signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield heard
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_signals_are_handled_inside_and_as_before_afterwards_whatever_the_block_raises(before):
    came = []
    with suppress(OSError), signals_handled([signal.SIGTERM], lambda number, _: came.append(number)):
        signal.raise_signal(signal.SIGTERM)
        raise OSError
    assert (came, before) == ([signal.SIGTERM], [])
    signal.raise_signal(signal.SIGTERM)
    assert (came, before) == ([signal.SIGTERM], [signal.SIGTERM])


@pytest.mark.usefixtures("before")
def test_a_signal_that_is_ignored_stays_so():
    came = []
    with signals_handled([signal.SIGTERM, signal.SIGHUP], lambda number, _: came.append(number)):
        signal.raise_signal(signal.SIGHUP)
    assert came == []
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
