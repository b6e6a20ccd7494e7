"""Blocking calls that are awaited."""

import threading
from functools import partial

from rollpacker.protocols.blocking import in_daemon_thread


def name_of_thread(_: object = None) -> str:
    return threading.current_thread().name


async def test_the_thread_has_a_short_name_whatever_the_call_is_given():
    assert await in_daemon_thread(name_of_thread) == "blocking: name_of_thread"
    assert await in_daemon_thread(partial(name_of_thread, "prompt" * 1000)) == "blocking: partial"
