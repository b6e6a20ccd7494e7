"""The times of a start."""

import json
import time

import pytest

from rollpacker.runtime.run.startup import STARTUP_FILE, StartupTimes, process_began_at


def test_phases_follow_each_other_without_a_gap_and_their_shares_add_up(tmp_path):
    times = iter([12.0, 15.0, 20.0])
    startup = StartupTimes(tmp_path, began_at=10.0, now=lambda: next(times))
    startup.begin("starting Ray on node1")
    startup.begin("waiting for node2")
    startup.finish()
    record = json.loads((tmp_path / STARTUP_FILE).read_text())
    assert (record["process_began_at"], record["first_step_at"], record["total_s"]) == (10, 20, 10)
    phases = {phase["phase"]: (phase["duration_s"], phase["share"]) for phase in record["phases"]}
    assert phases == {
        "starting Python and validating the run": (2, 0.2),
        "starting Ray on node1": (3, 0.3),
        "waiting for node2": (5, 0.5),
    }


def test_this_process_began_before_now_and_after_the_machine():
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    assert booted_at < process_began_at() < time.time()
    assert process_began_at() == pytest.approx(process_began_at(), abs=0.1)
