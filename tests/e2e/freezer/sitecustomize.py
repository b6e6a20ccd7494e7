"""Stops a process of a run at a place that FREEZE_AT names, for a test to kill it or to go on.

    stream      a rank that trains on a lent GPU, in the middle of a call of the stream
    rollout     an engine that generates one response while many wait: the rollout does not end before it goes on

Python imports this in every process of a run whose PYTHONPATH begins with this folder. As long as the file that
FREEZE_FILE names is there, a thread looks at what the other threads do; a process that is where it waits for stops the
processes whose pids are in the file, and then itself, as Ctrl-Z would: its state in /proc is T. If it goes on while the
file is there, it stops again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

NUM_WAITING = 8
"""An engine that was stopped and goes on does not come to its last response before it is stopped again."""

IDLE_INTERVAL_S = 0.1
"""While the file is not there: a run has dozens of processes."""


def is_streaming(frame: FrameType) -> bool:
    """Whether it accumulates groups while only some of the trainer's GPUs are its own, and this one's is."""
    if frame.f_code.co_name != "_accumulate" or not frame.f_code.co_filename.endswith("trainers/grpo.py"):
        return False
    return bool(frame.f_locals["gpus"]) and not frame.f_locals["self"]._is_asleep


def is_rolling_out(frame: FrameType) -> bool:
    """Whether it generates one response while many wait."""
    if frame.f_code.co_name != "step" or not frame.f_code.co_filename.endswith("engines/torch/decoder.py"):
        return False
    return frame.f_locals["self"].num_waiting >= NUM_WAITING


class Place(NamedTuple):
    """Where a process stops."""

    is_there: Callable[[FrameType], bool]
    module: str
    """Without it a process is never there."""
    interval_s: float
    """A tenth of the time that a tiny model takes there."""


PLACES = {
    "stream": Place(is_streaming, "rollpacker.trainers.grpo", 0.002),
    "rollout": Place(is_rolling_out, "rollpacker.engines.torch.decoder", 0.05),
}


def is_anywhere(is_there: Callable[[FrameType], bool]) -> bool:
    """Whether any call of any thread is there."""
    for frame in sys._current_frames().values():
        inner = frame
        while inner is not None:
            if is_there(inner):
                return True
            inner = inner.f_back
    return False


def watch(file: Path, place: Place) -> None:
    while True:
        is_watching = place.module in sys.modules and file.exists()
        time.sleep(place.interval_s if is_watching else IDLE_INTERVAL_S)
        if is_watching and file.exists() and is_anywhere(place.is_there):
            for pid in [*map(int, file.read_text().split()), os.getpid()]:
                os.kill(pid, signal.SIGSTOP)


def start() -> None:
    given = Path(os.environ["FREEZE_FILE"]), PLACES[os.environ["FREEZE_AT"]]
    threading.Thread(target=watch, args=given, daemon=True).start()


if "FREEZE_FILE" in os.environ:
    start()
    os.register_at_fork(after_in_child=start)  # threads do not survive a fork, and Ray's workers are forked
