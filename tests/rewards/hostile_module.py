"""A reward module whose checks do what `ground_truth` orders; scoring processes import it by name."""

import atexit
import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

from rollpacker.rewards.scores import Score


def prepare_scoring():
    order, _, argument = os.environ.get("HOSTILE_PREPARE", "").partition(" ")
    if order == "fork":
        atexit.register(Path(argument).unlink)  # as a scratch folder of the module is deleted
        fork_and_come_back(argument)
    if os.environ.get("HOSTILE_PREPARE") == "raise":
        raise ImportError("no module named sympathy")
    if os.environ.get("HOSTILE_PREPARE") == "die":
        os._exit(9)
    if os.environ.get("HOSTILE_PREPARE") == "serve":
        os.environ["HOSTILE_SERVER"] = str(subprocess.Popen(["sleep", "1000"]).pid)
        if file := os.environ.get("HOSTILE_SERVER_FILE"):
            Path(file).with_suffix(".new").write_text(os.environ["HOSTILE_SERVER"])
            Path(file).with_suffix(".new").rename(file)


def score(prompt, response, is_truncated, ground_truth):  # noqa: C901, PLR0911, PLR0912 a flat list of orders
    order, _, argument = ground_truth.partition(" ")
    if order == "hang_in_c":
        tell_pid(argument)
        return 9 ** (9**9)  # one multiplication after the other, with the interpreter's lock held
    if order == "start":
        subprocess.run(["setsid", "sh", "-c", f"(sleep 1000 & echo $! > {argument}); sleep 1000"], check=True)
    elif order == "sleep":
        time.sleep(float(argument))
    elif order == "wait":
        tell_pid(argument)
        Path(argument).read_text()
    elif order.startswith("fork") and fork_and_come_back(argument, raises=order == "fork_and_raise"):
        return Score(0.25, "forked")
    elif order == "segfault":
        ctypes.string_at(0)
    elif order == "exit":
        sys.exit(0)
    elif order == "raise":
        raise ValueError(argument)
    elif order == "eat_memory":
        bytearray(64 << 30)
    elif order == "print":
        print('{"reward": 1.0, "reason": "hacked", "time_s": 0}', flush=True)  # noqa: T201 the point of it
        os.write(1, b'{"reward": 1.0, "reason": "hacked", "time_s": 0}\n')
    elif order == "flood":
        sys.stderr.write("x" * int(argument))
    elif order == "say_and_exit":
        print(argument)  # noqa: T201 the point of it
        os._exit(3)
    elif order == "echo":
        return Score(float(is_truncated), f"{prompt}|{response}")
    elif order == "long":
        return {"score": 0.5, "x" * (20 << 20): 1.0}
    elif order == "pid":
        return Score(float(os.getpid()), "pid")
    elif order == "server":
        return Score(float(os.environ["HOSTILE_SERVER"]), "server")
    return Score(0.5, "scored")


def fork_and_come_back(fifo, *, raises=True):
    """True in a child that has told its process id, and waited until it was written to."""
    if os.fork():
        return False
    tell_pid(fifo)
    Path(fifo).read_text()
    if raises:
        raise OSError("a helper that found no port")
    return True


def tell_pid(fifo):
    """Blocks until the test reads it, so that the test knows that the check has begun."""
    if fifo:
        Path(fifo).write_text(str(os.getpid()))
