"""A real profile that is interrupted leaves no trace."""

import os
import signal
import subprocess
import sys
import uuid

import pytest

from tests.e2e.launched import LaunchedRun
from tests.e2e.processes import MARK, ProcessesOfRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


class Launched(LaunchedRun):
    """Any command in a process of its own."""

    def __init__(self, folder, *words):
        self.mark = uuid.uuid4().hex
        self._processes = ProcessesOfRun(self.mark)
        self.log = folder / f"{self.mark[:6]}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rollpacker.cli", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {MARK: self.mark, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )


def words(inputs, *more):
    return [
        f"model.path={inputs / 'model'}",
        f"data.path={inputs / 'prompts.jsonl'}",
        "data.max_prompt_tokens=16",
        "rollout.num_prompts=4",
        "rollout.num_responses=2",
        "rollout.max_response_tokens=32",
        "engine.num_engines=1",
        "engine.max_num_seqs=8",
        "run.num_steps=2",
        *more,
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_profile_leaves_no_file_and_no_process(number, inputs, tmp_path, monkeypatch):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    out = tmp_path / "out" / "profile.json"
    profiling = Launched(tmp_path, "profile", *words(inputs, "reward=walk", f"out={out}"))
    profiling.wait_until(lambda: "of" in profiling.output() and "points" in profiling.output())
    profiling.process.send_signal(number)
    assert profiling.wait() == 128 + number
    assert "Traceback" not in profiling.output()
    profiling.assert_nothing_is_left()
    assert not out.parent.exists()
    assert not list(folder.glob("rollpacker-*"))
