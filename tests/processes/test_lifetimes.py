"""Processes below this one: an adopter of orphans stops in time, and every child is found."""

import os
import signal
import subprocess
import time

from rollpacker.processes.lifetimes import children_of, reaping


def parent_of_an_orphan():
    """Fork a child that forks another and ends; give whom that one has as parent then, and end it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        born, told = os.pipe()
        first = os.getpid()  # asked of the orphan, it may be the next one's already
        if os.fork() == 0:
            os.close(told)
            os.read(born, 1)  # returns when the parent ends, a moment before it has ended
            while os.getppid() == first:
                time.sleep(0.001)
            os.write(writing, b"%d %d" % (os.getpid(), os.getppid()))
            signal.pause()
        os._exit(0)
    os.waitpid(child, 0)
    orphan, parent = map(int, os.read(reading, 100).split())
    os.kill(orphan, signal.SIGKILL)
    if parent == os.getpid():
        os.waitpid(orphan, 0)
    os.close(reading)
    os.close(writing)
    return parent


def test_orphans_are_adopted_only_meanwhile():
    with reaping():
        assert parent_of_an_orphan() == os.getpid()
    assert parent_of_an_orphan() != os.getpid()


def test_children_are_found_beside_a_thread_that_has_just_ended(monkeypatch):
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: ["0", *listed(path)])
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in children_of(os.getpid())
        child.kill()
