"""Kills one process of each of many real runs at a random time: `python tests/benchmarks/kills.py [RUNS [SEED]]`.

Every run is a small one of tail batching on the embedded engine with real Ray: two engines, a trainer, a reward. The
kinds of processes take turns; which process of a kind, and when, is drawn from SEED (default 0): any moment between the
process's start and the usual end of the run. A run that ends by that is resumed to its end. Then nothing may be left of
it, and `tests/e2e/invariants.py` must hold. Prints a row of a Markdown table for each of RUNS (default 50) and ends
with 1 if one did not hold; that run's folder stays in `runs/kills`.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rollpacker.demo import task
from rollpacker.demo.warm_start import make_model
from tests.e2e.invariants import assert_all_holds
from tests.e2e.launched import LaunchedRun, num_recorded_steps, small_run
from tests.e2e.processes import named_in_logs

FOLDER = Path("runs/kills")
NUM_PROMPTS = 40
NUM_ITERATIONS = 700
PATIENCE_S = 600.0
"""With whatever takes a minute on two cores of its own."""

Find = Callable[[LaunchedRun], list[int]]
"""The processes of a kind that are alive."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Of processes."""

    name: str
    find: Find
    words: tuple[str, ...] = ()
    """What a run needs to have such."""


def actors(pattern: str) -> Find:
    def find(run: LaunchedRun) -> list[int]:
        alive = run.processes()
        named = sorted(named_in_logs(run.run_dir).items())
        return [actor.own_pid for name, actor in named if re.fullmatch(pattern, name) and actor.own_pid in alive]

    return find


def commands(pattern: str) -> Find:
    return lambda run: [pid for pid, command in run.processes().items() if re.search(pattern, command)]


TWO_RANKS = ("trainer=fsdp", "trainer.data_parallel=2")

KINDS = (
    Kind(name="driver", find=lambda run: [run.process.pid]),
    Kind(name="engine", find=actors(r"engine-.*")),
    Kind(name="trainer", find=actors("trainer")),
    Kind(name="one of two trainer ranks", find=actors(r"trainer-\d"), words=TWO_RANKS),
    Kind(name="reward", find=actors("reward")),
    Kind(name="raylet", find=commands(r"^\S*/raylet ")),
    Kind(name="Ray's head (gcs_server)", find=commands(r"^\S*/gcs_server ")),
    Kind(name="Ray's guardian", find=commands(r"guardian\.py ")),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one run."""

    after_s: float
    num_steps: int
    """That were in the tables when it was killed."""
    exit_code: int
    num_launches: int
    trouble: str
    """What did not hold; empty if all did."""


def main(num_runs: int = 50, seed: int = 0) -> int:
    rng = random.Random(seed)
    inputs = _inputs()
    usual_s = _time_of(inputs)
    print(f"Undisturbed, a run takes {usual_s:.0f} s now.\n")
    print(
        "| run | killed | after (s) | steps | exit code | launches | what did not hold |\n|---|---|---|---|---|---|---|"
    )
    num_troubles = 0
    for number in range(num_runs):
        kind = KINDS[number % len(KINDS)]
        outcome = None
        while outcome is None:  # the run was over before it was to be hit
            outcome = _kill_one(inputs, FOLDER / f"run-{seed}-{number:03d}", kind, rng, usual_s)
        num_troubles += bool(outcome.trouble)
        print(
            f"| {number} | {kind.name} | {outcome.after_s:.1f} | {outcome.num_steps} | {outcome.exit_code} "
            f"| {outcome.num_launches} | {outcome.trouble} |",
            flush=True,
        )
    print(f"\nAll held in {num_runs - num_troubles} of {num_runs} runs.")
    return 1 if num_troubles else 0


def _inputs() -> Path:
    folder = FOLDER / "inputs"
    if not folder.exists():
        import torch

        torch.set_num_threads(1)
        unfinished = folder.with_name("unfinished-inputs")
        make_model(unfinished / "model", num_iterations=NUM_ITERATIONS)
        (unfinished / "prompts.jsonl").write_text(task.prompt_file(NUM_PROMPTS, random.Random(2)))
        unfinished.rename(folder)
    return folder


def _launch(inputs: Path, folder: Path, kind: Kind | None) -> LaunchedRun:
    more = ("system=rollpacker", "run.checkpoint_every_steps=1", "run.resume=auto", "engine.restart_pause_s=0")
    return LaunchedRun(folder / "run", *small_run(inputs, *more, *(kind.words if kind else ())))


def _time_of(inputs: Path) -> float:
    """How long a run takes that nobody disturbs."""
    folder = FOLDER / "undisturbed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began_s = time.monotonic()
    run = _launch(inputs, folder, None)
    assert run.wait(PATIENCE_S) == 0, run.output()
    assert_all_holds(run.run_dir, NUM_PROMPTS)
    return time.monotonic() - began_s


def _kill_one(inputs: Path, folder: Path, kind: Kind, rng: random.Random, usual_s: float) -> Outcome | None:
    """Kill one process of a run; None if none was there any more when its time had come."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began_s = time.monotonic()
    run = _launch(inputs, folder, kind)
    run.wait_until(lambda: kind.find(run), PATIENCE_S)
    time.sleep(rng.uniform(0, max(0.0, usual_s - (time.monotonic() - began_s))))
    found = kind.find(run) if run.process.poll() is None else []
    if not found:
        run.wait(PATIENCE_S)
        return None
    num_steps, after_s = num_recorded_steps(run.run_dir), time.monotonic() - began_s
    os.kill(rng.choice(found), signal.SIGKILL)
    exit_code, num_launches, trouble = run.wait(PATIENCE_S), 1, ""
    try:
        run.assert_nothing_is_left(PATIENCE_S)
        if exit_code:
            assert kind.name == "driver" or "Traceback" not in run.output(), f"it said why by a traceback: {run.log}"
            run, num_launches = _launch(inputs, folder, kind), 2
            assert run.wait(PATIENCE_S) == 0, f"it was not resumed: {run.log}"
            run.assert_nothing_is_left(PATIENCE_S)
        assert_all_holds(run.run_dir, NUM_PROMPTS)
        shutil.rmtree(folder)
    except Exception as error:  # noqa: BLE001  (the campaign goes on, and the row says what it was)
        trouble = f"{type(error).__name__}: {error}".replace("\n", " ").replace("|", "\\|")[:300]
    return Outcome(
        after_s=after_s, num_steps=num_steps, exit_code=exit_code, num_launches=num_launches, trouble=trouble
    )


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
