"""What is left when `rollpacker analysis` is ended from outside: nothing that goes on modelling."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.e2e.processes import is_alive, workers_of


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_however_it_is_ended_its_workers_end_too(tmp_path, number, status):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "rollpacker.cli",
            "analysis",
            "table1",
            "backend=sim",
            "jobs=1",
            "seeds=1",
            f"out={tmp_path}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509  not as nohup has it
    )
    workers = workers_of(process, 1)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == status, said
    if number is not signal.SIGKILL:  # then Python itself says that a worker which has just begun found its pipe closed
        assert "Traceback" not in said
    deadline = time.monotonic() + 120
    while any(map(is_alive, workers)):
        assert time.monotonic() < deadline, "a worker goes on"
        time.sleep(0.05)
    assert not list(tmp_path.glob("table1.*"))


TRAINS = """
import signal, sys, time
heard = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: heard.append(number))
print("trains", flush=True)
while not heard:
    time.sleep(0.01)
time.sleep(0.5)
open(sys.argv[1], "w").write(str(len(heard)))
"""
SWEEP = """
import sys
from rollpacker.analysis.sweeps import _run_to_its_end
_run_to_its_end([sys.executable, "-c", sys.argv[1], sys.argv[2]], lambda line: print(line, flush=True))
"""


def test_a_ctrl_c_of_the_terminal_is_one_signal_to_the_runs_of_a_sweep(tmp_path):
    heard = tmp_path / "heard"
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEP, TRAINS, str(heard)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"trains\n"
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert heard.read_text() == "1"
