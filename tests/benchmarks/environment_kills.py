"""Kills environments of one real run at random, while some hang, in short rounds and in long ones.

    python -m tests.benchmarks.environment_kills FOLDER [KILLS [SYSTEM]]

The run is one of `tests/e2e/test_turns.py`, longer: walks, a step per turn, in environments of which one episode in a
hundred hangs. Every now and then a process of one of them is killed with signal 9, until KILLS (50) are dead. Then each
prompt must have been trained once, nothing may be left of the run, and its log of events must give its commands again.
Ends with 1 otherwise. Without kills (0) it shows how systems compare where environments are slow or hang: steps' times.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import torch

from rollpacker.demo import task
from rollpacker.demo.warm_start import make_model
from rollpacker.runtime.rollout.replay import replay
from tests.e2e.launched import LaunchedRun, rows, small_run
from tests.e2e.test_turns import WALK
from tests.walks_in_turns import WALKS_IN_TURNS

NUM_PROMPTS = 640
NUM_STEPS = 80
"""Of eight prompts each."""

PAUSE_S = 0.7
"""Between two kills, at most."""


def main(folder: Path, num_kills: int, system: str) -> int:
    """Make the inputs, run, kill, and say what came of it."""
    torch.set_num_threads(1)
    if not (folder / "model").exists():
        make_model(folder / "model", num_iterations=300, language=WALKS_IN_TURNS)
    (folder / "prompts.jsonl").write_text(task.prompt_file(NUM_PROMPTS, random.Random(2)))
    run = LaunchedRun(
        folder / f"{system}-{int(time.time())}",
        *small_run(folder, f"system={system}", "engine.num_engines=1", "reward=environment"),
        *(f"run.num_steps={NUM_STEPS}", "rollout.max_response_tokens=96"),
        *("environment=gym", "environment.env=rollpacker.environments.delayed:Delayed", "environment.max_turns=12"),
        *("environment.turn_timeout_s=2", "environment.max_open=16", "environment.max_restarts=4"),
        f"environment.arguments={{env: '{WALK}', median_s: 0.02, p99_s: 0.2, p_hang: 0.01}}",
    )
    run.wait_for_steps(1)  # before that an environment is tried, and one that ends then is no environment
    killed = _kill(run, num_kills, random.Random(4))
    code = run.wait()
    if code:
        print(run.output())
        return 1
    run.assert_nothing_is_left()
    replayed = bool(replay(run.run_dir).commands)
    responses, steps = rows(run.run_dir, "responses"), rows(run.run_dir, "steps")
    groups = Counter((row["epoch"], row["prompt"]) for row in responses if row["accepted"])
    holds = replayed and set(groups.values()) == {4} and len(steps) == NUM_STEPS
    kinds = {row["step"]: row["round_kind"] for row in steps}
    failures = Counter(
        (kinds[row["step"]], row["activity"])
        for row in rows(run.run_dir, "intervals")
        if row["role"] == "environment" and row["activity"].startswith("environment_")
    )
    print(f"{system}: {killed} environments killed; {len(groups)} prompts trained in {len(steps)} steps, each once")
    for (kind, activity), number in sorted(failures.items()):
        print(f"  {kind} rounds: {activity} {number} times")
    sums = {name: sum(row[name] for row in steps) for name in ("num_environment_restarts", "num_episodes_given_up")}
    print(f"  {sums}, {sum(row['num_prompts_dropped'] for row in steps)} prompts dropped; holds: {holds}")
    times = sorted(row["step_time_s"] for row in steps[1:])  # in the first one processes start
    middle, late = statistics.median(times), times[9 * len(times) // 10]
    print(f"  {sum(times):.0f} s after the first step; a step {middle:.2f} s, one in ten {late:.2f} s or more")
    return 0 if holds and killed == num_kills else 1


def _kill(run: LaunchedRun, num_kills: int, numbers: random.Random) -> int:
    """Kill environments one by one as long as the run goes on; gives how many."""
    killed = 0
    while killed < num_kills and run.process.poll() is None:
        alive = [pid for pid, command in run.processes().items() if "rollpacker.environments.process" in command]
        if alive:
            with suppress(ProcessLookupError):
                os.kill(numbers.choice(sorted(alive)), signal.SIGKILL)
                killed += 1
        time.sleep(numbers.uniform(0.1, PAUSE_S))
    return killed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("num_kills", metavar="KILLS", nargs="?", type=int, default=50)
    parser.add_argument("system", metavar="SYSTEM", nargs="?", default="tail")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    sys.exit(main(given.folder, given.num_kills, given.system))
