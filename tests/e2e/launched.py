"""A run started as a user starts it, and what can be seen of it from outside."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pyarrow as pa

from rollpacker.config.words import replaced
from rollpacker.metrics.tables import METRICS_FOLDER, load_manifest, read_table
from tests.e2e.processes import MARK, ProcessesOfRun, named_in_logs

UNHURRIED = ("reward=math", f"reward.function={Path(__file__).with_name('unhurried_walk.py')}:score")
"""For a run that goes on while a test waits for something else."""


def small_run(inputs: Path, *overrides: str) -> list[str]:
    """The words of a run of five steps that takes seconds; `overrides` win."""
    own = [
        f"model.path={inputs / 'model'}",
        f"data.path={inputs / 'prompts.jsonl'}",
        "data.max_prompt_tokens=16",
        "reward=walk",
        "rollout.num_prompts=8",
        "rollout.num_responses=4",
        "rollout.max_response_tokens=48",
        "trainer.learning_rate=1e-3",
        "run.num_epochs=1",
        "backend.deadlines.start_s=600",  # beside other work Ray's workers import for long
    ]
    return replaced(own, overrides)


PATIENCE_S = 600
"""With anything that takes seconds where nothing else runs: a test tells a run that hangs, not one that is slow."""


class LaunchedRun:
    """`rollpacker train` in a process of its own; every process that it starts carries its mark."""

    def __init__(self, run_dir: Path, *overrides: str, logs: Path | None = None) -> None:
        self.run_dir = run_dir
        self.mark = uuid.uuid4().hex
        self._processes = ProcessesOfRun(self.mark)
        self.log = (logs or run_dir.parent) / f"{self.mark[:6]}.log"
        given = [f"run.dir={run_dir}", "run.progress=plain", *overrides]
        words = {word.partition("=")[0]: word for word in given}  # later words win
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rollpacker.cli", "train", *words.values()],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {MARK: self.mark, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the run did not end:\n{self.output()}") from None

    def wait_for_steps(self, num_steps: int, timeout_s: float = PATIENCE_S) -> None:
        """Until this many steps are in the tables."""
        self.wait_until(lambda: num_recorded_steps(self.run_dir) >= num_steps, timeout_s)

    def wait_until(self, condition, timeout_s: float = PATIENCE_S, interval_s: float = 0.02) -> None:
        """Look at it every `interval_s`: less often where a look reads whole tables."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, f"the run ended too early:\n{self.output()}"
            assert time.monotonic() < deadline, f"it did not happen in time:\n{self.output()}"
            time.sleep(interval_s)

    def kill_9(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def processes(self) -> dict[int, str]:
        """Pid and command line of everything that the run started and that is alive."""
        return {pid: process.command for pid, process in self._processes.alive().items()}

    def children_of(self, parent: int) -> dict[int, str]:
        """Likewise of what one of them has started itself."""
        alive = self._processes.alive()
        return {pid: process.command for pid, process in alive.items() if process.parent == parent}

    def pid_of(self, actor: str) -> int:
        """Of an actor's process; it has begun to write its log."""
        actors = named_in_logs(self.run_dir)
        assert actor in actors, f"{actor} is not among {sorted(actors)}:\n{self.output()}"
        return actors[actor].own_pid

    def assert_nothing_is_left(self, timeout_s: float = 60) -> None:
        self._processes.assert_all_end(timeout_s)


def num_recorded_steps(run_dir: Path) -> int:
    """That count: a file of a step may be there before the step's others are."""
    manifest = load_manifest(run_dir / METRICS_FOLDER)
    return sum(part.last - part.first + 1 for part in manifest.parts) if manifest else 0


def rows(run_dir: Path, table: str) -> list[dict]:
    read: pa.Table = read_table(run_dir, table)
    return read.to_pylist()


def trained_prompts(run_dir: Path) -> list[tuple[int, str]]:
    """(epoch, prompt) of every trained group, in the order of the steps."""
    groups = {(r["step"], r["epoch"], r["prompt"]) for r in rows(run_dir, "responses") if r["accepted"]}
    return [(epoch, prompt) for _, epoch, prompt in sorted(groups)]


def batches(run_dir: Path) -> list[tuple]:
    """What was trained, row by row, without anything that time decides."""
    columns = ("step", "epoch", "prompt", "sample", "policy_version", "length_tokens", "finish_reason", "reward")
    return sorted(tuple(r[c] for c in columns) for r in rows(run_dir, "responses") if r["accepted"])
