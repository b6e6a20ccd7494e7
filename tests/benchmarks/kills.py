"""Kills one process of each of many real runs at a random time: `kills.py [RUNS [SEED [KIND]]]`.

Every run is a small one of tail batching on the embedded engine with real Ray: two engines, a trainer, a reward; where
a judge or a sandbox is to be hit, on the demo's mixed workload. The kinds of processes take turns; which process of a
kind, and when, is drawn from SEED (default 0): any moment between the process's start and the usual end of the run. A
run that ends by that is resumed to its end. Then nothing may be left of it, and `tests/e2e/invariants.py` must hold.
Prints a row of a Markdown table for each of RUNS (default 50) and ends with 1 if one did not hold; that run's folder
stays in `runs/kills`. KIND is a part of the name of the only kinds to kill.

    python tests/benchmarks/kills.py 50
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

from rollpacker.demo import mixed, task
from rollpacker.demo.inputs import Inputs
from rollpacker.demo.warm_start import make_model
from tests.e2e.invariants import assert_all_holds
from tests.e2e.launched import LaunchedRun, num_recorded_steps, small_run
from tests.e2e.processes import named_in_logs

FOLDER = Path("runs/kills")
NUM_PROMPTS = 40
NUM_ITERATIONS = 300
"""Of the warm-up: some answers are right, and what else is learnt does not matter here."""

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
    is_mixed: bool = False
    """Whether it needs programs and climbs."""


def actors(pattern: str) -> Find:
    def find(run: LaunchedRun) -> list[int]:
        alive = run.processes()
        named = sorted(named_in_logs(run.run_dir).items())
        return [actor.own_pid for name, actor in named if re.fullmatch(pattern, name) and actor.own_pid in alive]

    return find


def commands(pattern: str) -> Find:
    return lambda run: [pid for pid, command in run.processes().items() if re.search(pattern, command)]


def below_reward(run: LaunchedRun) -> list[int]:
    """What the reward has started, and what that has."""
    found, parents = [], actors("reward")(run)
    while parents := [child for parent in parents for child in run.children_of(parent)]:
        found += parents
    return found


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
    Kind(name="judge", find=actors(r"judge-\d"), is_mixed=True),
    Kind(name="a process of the sandbox", find=below_reward, is_mixed=True),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one run."""

    after_s: float
    num_steps: int
    """That were in the tables when it was killed."""
    exit_code: int
    reason: str
    """What it said at its end, if it ended by that."""
    num_launches: int
    trouble: str
    """What did not hold; empty if all did."""


def main(num_runs: int = 50, seed: int = 0, part_of_name: str = "") -> int:
    rng = random.Random(seed)
    kinds = [kind for kind in KINDS if part_of_name in kind.name]
    usual_s = _time_of_a_run()
    print(f"Undisturbed, a run takes {usual_s:.0f} s now.\n")
    print("| run | killed | after (s) | steps | exit code | it said | launches | what did not hold |")
    print(f"|{'---|' * 8}", flush=True)
    num_troubles = 0
    for number in range(num_runs):
        kind = kinds[number % len(kinds)]
        outcome = None
        while outcome is None:  # the run was over before it was to be hit
            outcome = _kill_one(FOLDER / f"run-{seed}-{number:03d}", kind, rng, usual_s)
        num_troubles += bool(outcome.trouble)
        print(
            f"| {number} | {kind.name} | {outcome.after_s:.1f} | {outcome.num_steps} | {outcome.exit_code} "
            f"| {outcome.reason} | {outcome.num_launches} | {outcome.trouble} |",
            flush=True,
        )
    print(f"\nAll held in {num_runs - num_troubles} of {num_runs} runs.")
    return 1 if num_troubles else 0


def _inputs(*, is_mixed: bool) -> Inputs:
    inputs = Inputs(folder=FOLDER / ("mixed" if is_mixed else "walks"), is_mixed=is_mixed)
    if not inputs.folder.exists():
        import torch

        torch.set_num_threads(1)
        unfinished = Inputs(folder=FOLDER / "unfinished", is_mixed=is_mixed)
        shutil.rmtree(unfinished.folder, ignore_errors=True)
        rng = random.Random(2)
        if is_mixed:
            make_model(unfinished.model, num_iterations=NUM_ITERATIONS, language=mixed.POLICY)
            make_model(unfinished.judge, num_iterations=NUM_ITERATIONS, language=mixed.JUDGE)
            unfinished.template.write_text(mixed.TEMPLATE)
        else:
            make_model(unfinished.model, num_iterations=NUM_ITERATIONS)
        unfinished.prompts.write_text((mixed if is_mixed else task).prompt_file(NUM_PROMPTS, rng))
        unfinished.folder.rename(inputs.folder)
    return inputs


def _launch(folder: Path, kind: Kind | None) -> LaunchedRun:
    inputs = _inputs(is_mixed=kind is not None and kind.is_mixed)
    more = ["system=rollpacker", "run.checkpoint_every_steps=1", "run.resume=auto", "engine.restart_pause_s=0"]
    if inputs.is_mixed:
        more += ["reward.domains.code=sandbox", "reward.domains.judge=judge", "reward.sandbox.num_workers=1"]
        more += [f"reward.judge.model.path={inputs.judge}", f"reward.judge.template={inputs.template}"]
        more += ["reward.judge.model.dtype=float32", "reward.judge.max_prompt_tokens=320"]
        more += ["reward.judge.yes=[Yes]", "reward.judge.no=[No]"]
    return LaunchedRun(folder / "run", *small_run(inputs.folder, *more, *(kind.words if kind else ())))


def _time_of_a_run() -> float:
    """How long a run takes that nobody disturbs."""
    folder = FOLDER / "undisturbed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began_s = time.monotonic()
    run = _launch(folder, None)
    assert run.wait(PATIENCE_S) == 0, run.output()
    assert_all_holds(run.run_dir, NUM_PROMPTS)
    return time.monotonic() - began_s


def _kill_one(folder: Path, kind: Kind, rng: random.Random, usual_s: float) -> Outcome | None:
    """Kill one process of a run; None if none was there any more when its time had come."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began_s = time.monotonic()
    run = _launch(folder, kind)
    run.wait_until(lambda: kind.find(run), PATIENCE_S)
    time.sleep(rng.uniform(0, max(0.0, usual_s - (time.monotonic() - began_s))))
    found = kind.find(run) if run.process.poll() is None else []
    if not found:
        run.wait(PATIENCE_S)
        return None
    num_steps, after_s = num_recorded_steps(run.run_dir), time.monotonic() - began_s
    os.kill(rng.choice(found), signal.SIGKILL)
    exit_code, num_launches, trouble = run.wait(PATIENCE_S), 1, ""
    reason = _reason(run) if exit_code > 0 else ""
    try:
        run.assert_nothing_is_left(PATIENCE_S)
        if exit_code:
            assert kind.name == "driver" or "Traceback" not in run.output(), f"it said why by a traceback: {run.log}"
            run, num_launches = _launch(folder, kind), 2
            assert run.wait(PATIENCE_S) == 0, f"it was not resumed: {run.log}"
            run.assert_nothing_is_left(PATIENCE_S)
        assert_all_holds(run.run_dir, NUM_PROMPTS)
        shutil.rmtree(folder)
    except Exception as error:  # noqa: BLE001  (the campaign goes on, and the row says what it was)
        trouble = f"{type(error).__name__}: {error}".replace("\n", " ").replace("|", "\\|")[:300]
    return Outcome(
        after_s=after_s,
        num_steps=num_steps,
        exit_code=exit_code,
        reason=reason,
        num_launches=num_launches,
        trouble=trouble,
    )


def _reason(run: LaunchedRun) -> str:
    """What follows the line that says that it failed."""
    _, _, said = run.output().partition(" failed:\n")
    return said.partition("\n")[0].replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3]), *sys.argv[3:4]))
