"""Kills one process of each of many real runs at a random time: `kills [RUNS [SEED [KIND [FIRST]]]]`.

Every run is a small one of all techniques on the embedded engine with real Ray: two engines, a trainer, a reward; where
a judge or a sandbox is to be hit, on the demo's mixed workload; and of the asynchronous kinds an asynchronous one. The
kinds of processes take turns; which process of a kind, and when, is drawn from SEED (default 0) and the run's number:
while the run starts, or a random while after a step of its, so that all of a run is hit however long its start takes on
a busy machine; `suspended` ones are hit between two steps, when engines have given back what was under way. A run that
ends by that is resumed to its end. Then nothing may be left of it, and `tests/e2e/invariants.py` must hold. Outcomes
are kept in `runs/kills/seed-SEED.jsonl`, and the same command goes on where it was stopped; a run of which something
did not hold stays beside it. Prints a row of a Markdown table for each of RUNS (default 50) and ends with 1 if one did
not hold. KIND is a part of the name of the only kinds to kill, FIRST the number of the run to begin with.

    python -m tests.benchmarks.kills 50
    python -m tests.benchmarks.kills 50 1 asynchronous
    python -m tests.benchmarks.kills 50 1 asynchronous 24
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rollpacker.demo import mixed, task
from rollpacker.demo.inputs import Inputs
from rollpacker.demo.warm_start import make_model
from tests.e2e.invariants import assert_all_holds
from tests.e2e.launched import LaunchedRun, num_recorded_steps, small_run
from tests.e2e.processes import named_in_logs

FOLDER = Path("runs/kills")
NUM_PROMPTS = 96
NUM_STEPS = 12
"""Of eight prompts each."""

NUM_ITERATIONS = 300
"""Of the warm-up: some answers are right, and what else is learnt does not matter here."""

STARTS = 0.2
"""Share of runs that are hit while they start: that is most of such a run's time, and little of a real one's."""

WHILE_S = 1.0
"""After a step. A step takes a fifth of this on a quiet machine, and some of it on a busy one."""

LOOK_S = 0.25
"""Between looks at the machine's processes, each of which costs a tenth of that."""

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
    max_staleness: int = 0
    is_suspended: bool = False
    """Whether it is hit between two steps, ahead of the checkpoint."""


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
BOUND = 2
ASYNCHRONOUS = ("system=flash", f"system.max_staleness={BOUND}", "system.lookahead=1.5")


KEEPING = ("system.interrupt=keep", "run.checkpoint_every_steps=3")
"""Ahead of a checkpoint nothing is kept."""


def asynchronous(name: str, find: Find) -> tuple[Kind, Kind, Kind]:
    """One that is hit at any time, one that is hit between two steps, and one of a run whose engines keep requests."""
    at_any_time = Kind(name=f"asynchronous {name}", find=find, words=ASYNCHRONOUS, max_staleness=BOUND)
    return (
        at_any_time,
        replace(at_any_time, name=f"{at_any_time.name}, suspended", is_suspended=True),
        replace(at_any_time, name=f"{at_any_time.name}, kept", words=(*ASYNCHRONOUS, *KEEPING)),
    )


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
    *asynchronous("driver", lambda run: [run.process.pid]),
    *asynchronous("engine", actors(r"engine-.*")),
    *asynchronous("trainer", actors("trainer")),
)


RAYS = ("raylet", "Ray's head (gcs_server)", "Ray's guardian")
"""A process that is connected to a raylet ends with it, by Ray's own hand and without a word of the run's: the driver
too, unless it sees first that Ray has ended."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one run."""

    killed: str
    after_s: float
    num_steps: int
    """That were in the tables when it was killed."""
    exit_code: int
    reason: str
    """What it said at its end, if it ended by that."""
    num_launches: int
    took_s: float
    """All of it."""
    trouble: str
    """What did not hold; empty if all did."""
    was_suspended: bool = False
    """Whether the last step was in the tables and its checkpoint not yet on the disk, if it was to be hit then."""

    def row(self, number: int) -> str:
        killed = f"{self.killed}{': yes' if self.was_suspended else ''}"
        cells = (number, killed, f"{self.after_s:.1f}", self.num_steps, self.exit_code, self.reason)
        return f"| {' | '.join(map(str, (*cells, self.num_launches, f'{self.took_s:.0f}', self.trouble)))} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("num_runs", metavar="RUNS", nargs="?", type=int, default=50)
    parser.add_argument("seed", metavar="SEED", nargs="?", type=int, default=0)
    parser.add_argument("part_of_name", metavar="KIND", nargs="?", default="")
    parser.add_argument("first", metavar="FIRST", nargs="?", type=int, default=0)
    given = parser.parse_args()
    return kill_runs(given.num_runs, given.seed, given.part_of_name, given.first)


def kill_runs(num_runs: int, seed: int, part_of_name: str, first: int) -> int:
    """Print a row per run; gives the exit code."""
    kinds = [kind for kind in KINDS if part_of_name in kind.name]
    FOLDER.mkdir(parents=True, exist_ok=True)
    words = [f"seed-{seed}", *part_of_name.split(), *([f"from-{first}"] if first else [])]
    record = FOLDER / f"{'-'.join(words)}.jsonl"
    outcomes = [Outcome(**json.loads(line)) for line in record.read_text().splitlines()] if record.exists() else []
    print("| run | killed | after (s) | steps | exit code | it said | launches | took (s) | what did not hold |")
    print(f"|{'---|' * 9}")
    for number in range(first, num_runs):
        if number - first == len(outcomes):
            kind, rng = kinds[number % len(kinds)], random.Random(f"{seed} {number}")
            folder = FOLDER / f"run-{seed}-{number:03d}"
            while not (outcome := _kill_one(folder, kind, rng)):  # the run was over before it was to be hit
                pass
            outcomes.append(outcome)
            with record.open("a") as file:
                file.write(f"{json.dumps(asdict(outcome))}\n")
        print(outcomes[number - first].row(number), flush=True)
    outcomes = outcomes[: num_runs - first]
    num_troubles = sum(bool(outcome.trouble) for outcome in outcomes)
    print(f"\nAll held in {len(outcomes) - num_troubles} of {len(outcomes)} runs.")
    return 1 if num_troubles else 0


def _inputs(*, is_mixed: bool) -> Inputs:
    inputs = Inputs(folder=FOLDER / f"{'mixed' if is_mixed else 'walks'}-{NUM_PROMPTS}", is_mixed=is_mixed)
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


def _launch(folder: Path, kind: Kind) -> LaunchedRun:
    inputs = _inputs(is_mixed=kind.is_mixed)
    more = ["system=rollpacker", "run.checkpoint_every_steps=1", "run.resume=auto", "engine.restart_pause_s=0"]
    if inputs.is_mixed:
        more += ["reward.domains.code=sandbox", "reward.domains.judge=judge", "reward.sandbox.num_workers=1"]
        more += [f"reward.judge.model.path={inputs.judge}", f"reward.judge.template={inputs.template}"]
        more += ["reward.judge.model.dtype=float32", "reward.judge.max_prompt_tokens=320"]
        more += ["reward.judge.yes=[Yes]", "reward.judge.no=[No]"]
    return LaunchedRun(folder / "run", *small_run(inputs.folder, *more, *kind.words))


def _wait_for_moment(run: LaunchedRun, kind: Kind, rng: random.Random, began_s: float) -> list[int]:
    """Wait until the run is to be hit; gives the processes of the kind, or none if it was over before."""
    is_at_start, step, share = rng.random() < STARTS, rng.randrange(NUM_STEPS), rng.random()
    _wait_until(run, lambda: bool(kind.find(run)), LOOK_S)
    if kind.is_suspended:
        found = kind.find(run)  # to look for them takes longer than the checkpoint
        _wait_until(run, lambda: num_recorded_steps(run.run_dir) >= max(1, step), 0.002)
        return found if run.process.poll() is None else []
    if is_at_start:  # what is left of the start is about as long as what has passed
        time.sleep(share * (time.monotonic() - began_s))
    else:
        _wait_until(run, lambda: num_recorded_steps(run.run_dir) >= step, 0.02)
        time.sleep(share * WHILE_S)
    return kind.find(run) if run.process.poll() is None else []


def _wait_until(run: LaunchedRun, condition: Callable[[], bool], look_s: float) -> None:
    """Also until the run has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while run.process.poll() is None and not condition():
        assert time.monotonic() < deadline, f"it did not happen in time: {run.log}"
        time.sleep(look_s)


def _kill_one(folder: Path, kind: Kind, rng: random.Random) -> Outcome | None:
    """Kill one process of a run; None if none was there any more when its time had come."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began_s = time.monotonic()
    after_s, num_steps, exit_code, reason, num_launches, trouble = 0.0, 0, 0, "", 1, ""
    was_suspended = False
    run = _launch(folder, kind)
    try:
        found = _wait_for_moment(run, kind, rng, began_s)
        was_killed = bool(found) and _kill(rng.choice(found))
        after_s, num_steps = time.monotonic() - began_s, num_recorded_steps(run.run_dir)
        saved = run.run_dir / "checkpoints" / f"step-{num_steps:06d}"
        was_suspended = kind.is_suspended and not saved.exists()
        exit_code = run.wait(PATIENCE_S)
        reason = _reason(run) if exit_code > 0 else ""
        run.assert_nothing_is_left(PATIENCE_S)
        if not was_killed:
            assert exit_code == 0, f"it failed though nothing was killed: {run.log}"
            return None
        if exit_code:
            assert reason or exit_code < 0 or kind.name in RAYS, f"it did not say why it ended: {run.log}"
            assert "driver" in kind.name or "Traceback" not in run.output(), f"it said why by a traceback: {run.log}"
            run, num_launches = _launch(folder, kind), 2
            assert run.wait(PATIENCE_S) == 0, f"it was not resumed: {run.log}"
            run.assert_nothing_is_left(PATIENCE_S)
        assert_all_holds(run.run_dir, NUM_PROMPTS, kind.max_staleness)
        shutil.rmtree(folder)
    except Exception as error:  # noqa: BLE001  (the campaign goes on, and the row says what it was)
        trouble = f"{type(error).__name__}: {error}".replace("\n", " ").replace("|", "\\|")[:300]
    return Outcome(
        killed=kind.name,
        after_s=after_s,
        num_steps=num_steps,
        exit_code=exit_code,
        reason=reason,
        num_launches=num_launches,
        took_s=time.monotonic() - began_s,
        trouble=trouble,
        was_suspended=was_suspended,
    )


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has just ended
        return False
    return True


def _reason(run: LaunchedRun) -> str:
    """The first line after the one that says that it failed, or what Ray says: without a raylet it ends its driver."""
    said = re.search(r"^.*failed:\n(.*)$|(Raylet is terminated)", run.output(), re.MULTILINE)
    return (said[1] or f"Ray: {said[2]}").replace("|", "\\|") if said else ""


if __name__ == "__main__":
    sys.exit(main())
