"""What the code sandbox costs, whether it fails correct programs, and what adaptive limits save; prints tables.

python -m tests.benchmarks.sandbox overhead|correct|adaptive
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

from rollpacker.config.sections.sandbox import SandboxSection
from rollpacker.core.settings import RewardBudgetSettings
from tests.rewards.sandbox.campaign import run_now
from tests.rewards.sandbox.programs import Pool, request_of, write_prompts

NUM_PROGRAMS = 200
SCALE = 10
"""Of the adaptive limits' comparison: the paper's 2 s and 30 s, divided by it, so that it ends in minutes."""


CALL = {"entry_point": "f", "test_cases": [{"args": [1], "expected": 1}]}


def main() -> None:
    """Run one of the three."""
    measurements = {"overhead": overhead, "correct": correct, "adaptive": adaptive}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurement", choices=measurements)
    measure = measurements[parser.parse_args().measurement]
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


def overhead(folder):
    """Time programs that do nothing, one at a time and as many as there are cores."""
    num_cores = len(os.sched_getaffinity(0))
    bare = [sys.executable, "-s", "-S", "-P", "-c", "pass"]
    began_s = time.monotonic()
    for _ in range(NUM_PROGRAMS):
        subprocess.run(bare, check=True, stdin=subprocess.DEVNULL)
    print(f"load {os.getloadavg()[0]:.0f} on {num_cores} cores")
    print(f"| python alone, 1 at a time | {per_program_ms(time.monotonic() - began_s)} |", flush=True)
    cases = [{"input": "1\n", "output": "1"}]
    for isolation in ("bubblewrap", "rlimits"):
        for style, fields, program in (
            ("stdin, 1 case", {"test_cases": cases}, "print(1)"),
            ("stdin, 10 cases", {"test_cases": cases * 10}, "print(1)"),
            (
                "function, 1 case",
                {"entry_point": "f", "test_cases": [{"args": [1], "expected": 1}]},
                "def f(x): return x",
            ),
            ("assertions, 1 case", {"test_cases": ["assert f(1) == 1"]}, "def f(x): return x"),
        ):
            for num_workers in (1, num_cores):
                wall_s = asyncio.run(time_pool(folder, isolation, fields, program, num_workers))
                print(f"| {isolation}, {style}, {num_workers} at a time | {per_program_ms(wall_s)} |", flush=True)


async def time_pool(folder, isolation, fields, program, num_workers):
    """Give the wall time of all programs."""
    (reference,) = write_prompts(folder, [{"id": "a", **fields}]).values()
    async with Pool(isolation=isolation, num_workers=num_workers) as pool:
        await pool.score(*(request_of(index, reference, program) for index in range(num_workers)))
        began_s = time.monotonic()
        verdicts = await pool.score(*(request_of(index, reference, program) for index in range(NUM_PROGRAMS)))
        wall_s = time.monotonic() - began_s
        assert {verdict.reason for verdict in verdicts} == {"correct"}
        return wall_s


def per_program_ms(seconds):
    """For a table."""
    return f"{1000 * seconds / NUM_PROGRAMS:.1f} ms"


def correct(folder):
    """Score 1,000 correct programs under the paper's adaptive limits, and under tight ones."""
    print(f"load {os.getloadavg()[0]:.0f} on {len(os.sched_getaffinity(0))} cores")
    for name, settings, busy_s in (
        ("the paper's: 1.5 x, 2 to 30 s", RewardBudgetSettings(), (0.0, 0.06)),
        ("tight: 1.5 x, 0.02 to 30 s", RewardBudgetSettings(factor=Fraction(3, 2), min_limit_s=0.02), (0.0, 0.06)),
    ):
        found = run_now(folder, settings=settings, num_prompts=50, num_responses=20, busy_s=busy_s, hanging=0.0)
        within = sum(time_s <= limits[0] for limits, time_s, _ in found.failed)
        print(f"| {name} | {found.num_correct} | {len(found.failed)} | {within} | {found.wall_s:.0f} s |", flush=True)


def adaptive(folder):
    """Score the same responses, 5 % of which hang, under adaptive limits and under a fixed one."""
    values = {"num_prompts": 10, "num_responses": 20, "busy_s": (0.0, 0.06), "hanging": 0.05}
    most_s = SandboxSection().max_case_s / SCALE
    settings = RewardBudgetSettings(factor=Fraction(3, 2), min_limit_s=2 / SCALE, max_limit_s=most_s)
    print(f"load {os.getloadavg()[0]:.0f} on {len(os.sched_getaffinity(0))} cores")
    rewards = []
    for name, given in (("adaptive", {"settings": settings}), ("fixed", {"max_case_s": most_s})):
        found = run_now(folder, **values, **given)
        rewards.append(found.rewards)
        hanging = sum(found.hanging_s) / len(found.hanging_s)
        print(
            f"| {name} | {found.wall_s:.1f} s | {found.own_s:.1f} s | {hanging:.2f} s | {found.num_correct} | "
            f"{len(found.failed)} |",
            flush=True,
        )
    print("the same rewards" if rewards[0] == rewards[1] else "OTHER REWARDS")


if __name__ == "__main__":
    main()
