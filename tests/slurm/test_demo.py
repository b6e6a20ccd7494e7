"""`make slurm-demo` as a user runs it, with a model that has hardly learnt anything and few, short steps."""

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from rollpacker.demo.inputs import Inputs, make_inputs
from rollpacker.demo.warm_start import make_model
from slurm.mini_daemons import wait_until
from tests.slurm.remains import processes_that_mention, require_nothing_left
from tests.slurm.requirement import require_slurm

ROOT = Path(__file__).parents[2]
SMALL = ("rollout.num_prompts=4", "rollout.max_response_tokens=32", "hydra.launcher.array_parallelism=2")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


class Demo:
    """The demo, running in a folder and a session of its own."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        make_inputs(Inputs(folder=folder / "runs/demo/input"), partial(make_model, num_iterations=3))
        self._screen = folder / "screen"
        with self._screen.open("w") as screen:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "slurm.demo", *SMALL, *overrides],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
                stdout=screen,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def screen(self) -> str:
        return self._screen.read_text()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.screen or self.process.poll() is not None, what=text, timeout_s=300)
        assert text in self.screen, self.screen

    @property
    def cluster(self) -> Path:
        found = re.search(r"SLURM_CONF=(\S+)/slurm.conf", self.screen)
        assert found, self.screen
        return Path(found[1])


@pytest.fixture(autouse=True)
def _slurm() -> None:
    require_slurm()


def test_both_systems_train_as_two_node_jobs_and_the_table_compares_them(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "run.num_steps=2")
    assert demo.process.wait(timeout=540) == 0, demo.screen
    for system in ("verl", "rollpacker"):
        assert f"(system={system}): finished on node[1-2]" in demo.screen
    assert re.search(r"rollout speedup.*1\.00 x.*\d+\.\d\d x", demo.screen)
    require_nothing_left(demo.cluster)


def test_ctrl_c_in_the_middle_leaves_neither_job_nor_cluster(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "run.num_steps=1000")
    demo.wait_for("running on node[1-2]")
    assert processes_that_mention(demo.cluster)
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does
    assert demo.process.wait(timeout=240) == 130, demo.screen
    require_nothing_left(demo.cluster)


def test_a_killed_demo_leaves_neither_job_nor_cluster_nor_whoever_waits_for_them(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    demo.wait_for("submitted for")
    demo.process.kill()
    demo.process.wait()
    require_nothing_left(demo.cluster)
