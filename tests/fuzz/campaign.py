"""Runs many worlds in parallel processes, and adds up what came of them."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from tests.fuzz.scratch import scratch_folder
from tests.fuzz.session import Outcome, Violation, run_world, without_history
from tests.fuzz.world import World, draw_world

SEEDS_PER_TASK = 10
"""So many worlds make a second or two of work: few enough for a smooth progress, enough to hide the sending."""

TASKS_PER_PROCESS = 50
"""A world leaves half a megabyte behind, mostly cycles that Python seldom looks for: so no process grows for long."""


@dataclass(slots=True)
class Tally:
    """What came of the worlds so far."""

    num_worlds: int = 0
    num_events: int = 0
    num_steps: int = 0
    num_attempts: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    """Faults by kind."""
    failures: list[tuple[World, Violation]] = field(default_factory=list)
    """Ascending by seed."""

    def add(self, outcome: Outcome) -> None:
        self.num_worlds += 1
        self.num_events += outcome.num_events
        self.num_steps += outcome.num_steps
        self.num_attempts += outcome.num_attempts
        self.happened.update(outcome.happened)
        if outcome.violation is not None:
            self.failures.append((outcome.world, outcome.violation))
            self.failures.sort(key=lambda failure: failure[0].seed)

    def first_failures(self) -> list[tuple[World, Violation]]:
        """One for each rule, that of the lowest seed."""
        first: dict[str, tuple[World, Violation]] = {}
        for world, violation in self.failures:
            first.setdefault(violation.rule, (world, violation))
        return list(first.values())


def outcomes(seeds: range, num_jobs: int) -> Iterator[Outcome]:
    """Run the world of each seed; with one job in this process and in order, with more in others."""
    tasks = [seeds[first : first + SEEDS_PER_TASK] for first in range(0, len(seeds), SEEDS_PER_TASK)]
    if num_jobs == 1:
        for task in tasks:
            yield from run_seeds(task)
        return
    pool = multiprocessing.get_context("fork").Pool(
        num_jobs, initializer=_leave_interrupts_to_the_parent, maxtasksperchild=TASKS_PER_PROCESS
    )
    with closing(pool), pool:
        for results in pool.imap_unordered(run_seeds, tasks):
            yield from results


def run_seeds(seeds: Sequence[int]) -> list[Outcome]:
    """Run some worlds, each in a folder of its own."""
    results = []
    for seed in seeds:
        with scratch_folder() as folder:
            results.append(without_history(run_world(draw_world(seed), folder)))
    return results


def _leave_interrupts_to_the_parent() -> None:
    """Ignore Ctrl-C, which the parent sees too, and end when the parent says so, whatever it had set for itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
