"""What is left of the demo's commands when the demo is ended from outside: nothing, and each heard the signal once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.processes import is_alive

COMMAND = """
import sys
from rollpacker.demo import three_commands
from rollpacker.terminal import Terminal
sys.exit(three_commands._run(Terminal(), "train", sys.argv[1:]))
"""

RUN = ["backend=sim", "experiment=e2e", "run.num_steps=100000", "run.progress=plain", "system=verl"]


@pytest.mark.parametrize(
    ("number", "send"),
    [(signal.SIGINT, os.kill), (signal.SIGTERM, os.kill), (signal.SIGHUP, os.kill), (signal.SIGINT, os.killpg)],
    ids=["Ctrl-C to it alone", "SIGTERM", "SIGHUP", "Ctrl-C to its group, as a terminal does"],
)
def test_what_the_demo_runs_ends_in_good_order_and_gives_the_exit_code(
    tmp_path: Path, number: int, send: Callable[[int, int], None]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *RUN, f"run.dir={tmp_path}/run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509  not as nohup has it
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.split()[:2] == ["1", "plain"]:
            break
    [child] = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    send(process.pid, number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number, said
    assert "Its checkpoint is complete" in said
    deadline = time.monotonic() + 60
    while is_alive(child):
        assert time.monotonic() < deadline, "the command goes on"
        time.sleep(0.05)
