"""Stops a rank that trains on a lent GPU, in the middle of a call of the stream, for a test to kill it or to go on.

Python imports this in every process of a run whose PYTHONPATH begins with this folder. As long as the file that
FREEZE_FILE names is there, a thread looks at what the other threads do; a process that is where it waits for stops the
processes whose pids are in the file, and then itself, as Ctrl-Z would: its state in /proc is T.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

INTERVAL_S = 0.002
"""A call of a tiny model's trainer takes ten times as long."""


def is_streaming() -> bool:
    """Whether a thread accumulates groups while only some of the trainer's GPUs are its own, and this one's is."""
    for frame in sys._current_frames().values():
        inner = frame
        while inner is not None:
            if inner.f_code.co_name == "_accumulate" and inner.f_code.co_filename.endswith("trainers/grpo.py"):
                return bool(inner.f_locals["gpus"]) and not inner.f_locals["self"]._is_asleep
            inner = inner.f_back
    return False


def watch(file: Path) -> None:
    while True:
        time.sleep(INTERVAL_S if file.exists() else 10 * INTERVAL_S)
        if file.exists() and is_streaming():
            for pid in [*map(int, file.read_text().split()), os.getpid()]:
                os.kill(pid, signal.SIGSTOP)


def start() -> None:
    threading.Thread(target=watch, args=(Path(os.environ["FREEZE_FILE"]),), daemon=True).start()


if "FREEZE_FILE" in os.environ:
    start()
    os.register_at_fork(after_in_child=start)  # threads do not survive a fork, and Ray's workers are forked
