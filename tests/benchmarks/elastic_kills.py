"""Kills parts of rollout workers on a Slurm cluster of two nodes: `elastic_kills FOLDER [KILLS [SEED]]`.

One run, whose job is preemptible too, with a worker on each node that has ten to twelve minutes to live. First Slurm
takes the run's node: the job is requeued, and the worker on the other node has to keep its job and join again.
Then KILLS (50) kills by turns, each a random while after a worker has served: of a worker's program, its engine, its
raylet, an agent of its Ray, its Ray's guardian, both workers' programs at once, the node with all that runs on it, and
once of what asks Slurm in the run's job, which nobody starts again; a raylet and an engine stop instead of ending.
Meanwhile workers come to the end of their time and drain. After each kill the run must make three more steps in the
same attempt.

Prints a row for each: seconds until the run says that something is lost, until three more steps are done, and until a
new worker has served. In the end the run is cancelled; then each prompt must have been trained once and on policy, each
attempt's log must give its commands again, nothing may be left, and no element of the array may have run into its
limit. Prints what Slurm's accounting says of them, and how often each job asked Slurm. Ends with 1 if something did not
hold.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from rollpacker.demo import task
from rollpacker.demo.warm_start import make_model
from rollpacker.runtime.rollout.replay import replay
from slurm.mini_cluster import MiniCluster
from tests.e2e.invariants import assert_each_step_once, assert_on_policy
from tests.e2e.launched import num_recorded_steps, rows, trained_prompts
from tests.e2e.processes import all_processes, named_in_logs
from tests.slurm.calls import CountedCalls
from tests.slurm.submitted import SubmittedRun
from tests.slurm.test_elastic import accounted_by_slurm, array_of, elements_in_queue, submit

NODE = "node2"
"""Without the run's job."""
PATIENCE_S = 600.0
LOOK_S = 0.2
LIVES_S = 3.0
"""Between two looks at a run's folder, and at what may be long."""
NUM_STEPS = 3
"""After a kill."""
WHILE_S = 5.0
"""From the moment a worker has served to the kill, at most."""
LOSSES = re.compile(r"What it was doing goes on elsewhere|has left\.|is dismissed")

Find = Callable[["Workers"], list[int]]


class Workers:
    """The run, and the workers' processes."""

    def __init__(self, cluster: MiniCluster, run: SubmittedRun) -> None:
        self.cluster = cluster
        self.run = run
        self.number, _ = array_of(run)
        self._num_lives, self._look_at_s = 0, 0.0

    def on(self, node: str, pattern: str) -> list[int]:
        """Processes of jobs on a node whose command looks like this."""
        return [each.pid for each in self.cluster.processes_on(node) if re.search(pattern, each.command)]

    def engines(self) -> list[int]:
        """Of the worker on the other node, by their logs."""
        named = {each.own_pid for name, each in named_in_logs(self.run.run_dir).items() if "_" in name}
        here = set(self.on(NODE, ""))
        return [pid for pid, process in all_processes().items() if pid in here and process.own_pid in named]

    def num_lives(self) -> int:
        """Engines of workers that have generated what was trained, as of a moment ago: reading the table takes time."""
        if time.monotonic() > self._look_at_s:
            self._num_lives = len({row["engine"] for row in rows(self.run.run_dir, "responses")} - {"engine-0"})
            self._look_at_s = time.monotonic() + LIVES_S
        return self._num_lives

    def num_losses(self) -> int:
        return len(LOSSES.findall(self.run.output()))


PROGRAM = r"^\S*python\S* .*-m rollpacker\.launch\.worker"
BASH = r"slurm_script"


def porter(workers: Workers) -> list[int]:
    """The second shell of the run's script."""
    processes = all_processes()
    shells = [pid for pid in workers.on("node1", BASH) if workers.run.job_id == processes[pid].variable("SLURM_JOB_ID")]
    return [pid for pid in shells if processes[pid].parent in shells]


OF_SLURM = "what asks Slurm"

KINDS: dict[str, tuple[Find, signal.Signals]] = {
    "a worker's program": (lambda w: w.on(NODE, PROGRAM), signal.SIGKILL),
    "its engine": (Workers.engines, signal.SIGKILL),
    "its raylet": (lambda w: w.on(NODE, r"^\S*/raylet "), signal.SIGKILL),
    "an agent of its Ray": (lambda w: w.on(NODE, r"DashboardAgent|RuntimeEnvAgent|agent"), signal.SIGKILL),
    "its Ray's guardian": (lambda w: w.on(NODE, r"guardian\.py "), signal.SIGKILL),
    "its raylet, stopped": (lambda w: w.on(NODE, r"^\S*/raylet "), signal.SIGSTOP),
    "its engine, stopped": (Workers.engines, signal.SIGSTOP),
    "both workers' programs": (lambda w: [*w.on("node1", PROGRAM), *w.on(NODE, PROGRAM)], signal.SIGKILL),
    "the node": (lambda w: w.on(NODE, PROGRAM), signal.SIGKILL),
    OF_SLURM: (porter, signal.SIGKILL),
}
"""What is hit, and how."""


def main(folder: Path, num_kills: int, seed: int) -> int:
    """Run, kill, and say what came of it."""
    inputs = folder / "inputs"
    if not (inputs / "model").exists():
        torch.set_num_threads(1)
        make_model(inputs / "model", num_iterations=300)
        (inputs / "prompts.jsonl").write_text(task.prompt_file(40, random.Random(2)))
    with MiniCluster() as cluster:
        place = folder / f"seed-{seed}-{int(time.time())}"
        place.mkdir()
        calls = CountedCalls(cluster, place / "counted")
        words = ("cluster.partition=low", "elastic.job.num_elements=400", "elastic.silence_s=5")
        limits = ("elastic.job.time_limit_min=12", "elastic.job.least_time_min=10", "cluster.signal_lead_s=20")
        run = submit(cluster, place / "run", inputs, *words, *limits, "elastic.drain_lead_s=40")
        workers = Workers(cluster, run)
        began = time.monotonic()
        _requeue(workers)
        print(
            "| kill | what | of | lost (s) | three steps (s) | a new worker (s) |\n|---|---|---|---|---|---|",
            flush=True,
        )
        rng, kinds = random.Random(seed), deque(KINDS)
        for number in range(num_kills):
            kind = kinds.popleft()
            print(f"| {number + 1} | {_kill(workers, kind, rng)} |", flush=True)
            if kind != OF_SLURM:
                kinds.append(kind)
        return _check(workers, calls, time.monotonic() - began)


def _requeue(workers: Workers) -> None:
    """Let Slurm take the run's node for a second."""
    run = workers.run
    run.wait_for_steps(1)
    _until(workers, lambda: workers.num_lives() >= 2)
    query = ("--noheader", f"--jobs={workers.number}", "--states=RUNNING", f"--nodelist={NODE}", "--format=%i")
    [element] = workers.cluster.run("squeue", *query).stdout.split()
    workers.cluster.submit("-N1", "--exclusive", "-w", "node1", "-p", "main", "-o", "/dev/null", script="sleep 1")
    run.wait_until(lambda: run.num_restarts() == 1, PATIENCE_S)
    again = f"e{element}-r1.0"
    _until(workers, lambda: any(row["engine"] == again for row in rows(run.run_dir, "responses")))
    states = [state for job, state, _ in accounted_by_slurm(workers.cluster, workers.number) if job == element]
    print(f"The run was requeued; {element} has joined its next attempt and served; its job is {states}.\n", flush=True)
    assert states == ["RUNNING"], "its job was not kept"


def _kill(workers: Workers, kind: str, rng: random.Random) -> str:
    find, number = KINDS[kind]
    run = workers.run
    _until(workers, lambda: bool(find(workers)) and bool(workers.engines()))
    time.sleep(rng.uniform(0, WHILE_S))
    found = find(workers)
    if not found:  # it has just come to its end
        return _kill(workers, kind, rng)
    num_losses, num_lives, steps = workers.num_losses(), workers.num_lives(), num_recorded_steps(run.run_dir)
    began = time.monotonic()
    if kind == "the node":
        workers.cluster.kill_node(NODE)
    else:
        for pid in found if kind.startswith("both") else [rng.choice(found)]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    times = ["", "", ""]
    goals: list[Callable[[], bool]] = [
        lambda: workers.num_losses() > num_losses,
        lambda: num_recorded_steps(run.run_dir) >= steps + NUM_STEPS,
        lambda: workers.num_lives() > num_lives,
    ]
    restarts = run.num_restarts()
    loses_nothing = kind in {OF_SLURM, "an agent of its Ray"}
    while not (times[1] and (times[2] or loses_nothing)):
        for place, goal in enumerate(goals):
            if not times[place] and goal():
                times[place] = f"{time.monotonic() - began:.1f}"
                if place == 1 and kind == "the node":
                    workers.cluster.start_node(NODE)
        assert time.monotonic() - began < PATIENCE_S, f"after {kind}: {times}\n{run.output()[-3000:]}"
        assert run.num_restarts() == restarts, f"the run was requeued after {kind}:\n{run.output()[-3000:]}"
        time.sleep(LOOK_S)
    return f"{kind} | {len(found)} | {' | '.join(times)}"


def _until(workers: Workers, condition: Callable[[], bool]) -> None:
    workers.run.wait_until(condition, PATIENCE_S)


def _check(workers: Workers, calls: CountedCalls, lasted_s: float) -> int:
    run, cluster = workers.run, workers.cluster
    restarts, num_steps = run.num_restarts(), num_recorded_steps(run.run_dir)
    cluster.run("scancel", run.job_id)
    began = time.monotonic()
    run.wait_until(lambda: not elements_in_queue(cluster, workers.number), 200)
    run.wait_until(lambda: not any(cluster.processes_on(node) for node in cluster.shape.node_names), 60)
    print(f"\n{num_steps} steps, {workers.num_lives()} lives of workers in {lasted_s:.0f} s, {restarts} requeue.")
    print(f"Nothing is left {time.monotonic() - began:.0f} s after scancel.")
    states = Counter(state for job, state, _ in accounted_by_slurm(cluster, workers.number))
    print(f"Slurm's states of workers' attempts: {dict(states)}")
    asked = calls.by_job()
    of_workers = [number for job, number in asked.items() if job.startswith(f"{workers.number}_")]
    print(
        f"Calls of Slurm's commands: {asked[run.job_id]} by the run, {sum(of_workers)} by {len(of_workers)} elements."
    )
    trained = trained_prompts(run.run_dir)
    assert len(trained) == len(set(trained)), "a prompt was trained twice in an epoch"
    assert_each_step_once(run.run_dir)
    assert_on_policy(run.run_dir)
    replay(run.run_dir)
    print(f"{len(trained)} prompts of {max(epoch for epoch, _ in trained) + 1} epochs trained, each once; all held.")
    return 1 if states["TIMEOUT"] or restarts != 1 else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("num_kills", metavar="KILLS", nargs="?", type=int, default=50)
    parser.add_argument("seed", metavar="SEED", nargs="?", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    sys.exit(main(given.folder.absolute(), given.num_kills, given.seed))
