"""Many responses under a reward budget: as in a run, each program gets the limits that are known when it is sent."""

import asyncio
import random
import time
from dataclasses import dataclass, field

from rollpacker.core.events import RewardComputed
from rollpacker.core.reward_budget import RewardBudget
from tests.rewards.sandbox.programs import Pool, request_of, write_prompts

CORRECT = """
import time
number = int(input())
until_s = time.process_time() + {busy_s}
while time.process_time() < until_s: sum(range(500))
print(number * number)
"""
HANGS = ("while True: pass\n", "import time\ntime.sleep(10**6)\n")


@dataclass(kw_only=True)
class Campaign:
    """What came of one."""

    wall_s: float = 0.0
    own_s: float = 0.0
    """Of all test cases, by the programs' own clocks."""
    num_correct: int = 0
    failed: list = field(default_factory=list)
    """Limit, time and reason of each correct program that got no reward."""
    hanging_s: list = field(default_factory=list)
    """Own time of each program that hangs."""
    rewards: list = field(default_factory=list)
    """In the order of the programs."""


async def run(folder, *, num_prompts, num_responses, busy_s, hanging, settings=None, seed=0, **pool):
    """Score responses in the order in which they finish, twice as many at a time as there are slots.

    Args:
        folder: For the prompt file.
        num_prompts: With one test case each.
        num_responses: Of each prompt.
        busy_s: Shortest and longest time on a core of a correct program.
        hanging: Share of programs that never end.
        settings: Of the reward budget; None: the section's fixed limit.
        seed: Of the programs.
        pool: Of the sandbox section.
    """
    rng = random.Random(seed)
    lines = [
        {"id": f"p{index}", "test_cases": [{"input": f"{index}\n", "output": f"{index * index}"}]}
        for index in range(num_prompts)
    ]
    references = write_prompts(folder, lines)
    keys = [key for key in references for _ in range(num_responses)]
    rng.shuffle(keys)
    hangs = set(rng.sample(range(len(keys)), round(hanging * len(keys))))
    programs = [
        HANGS[index % len(HANGS)] if index in hangs else CORRECT.format(busy_s=rng.uniform(*busy_s))
        for index in range(len(keys))
    ]
    budget = RewardBudget(settings) if settings else None
    found, limits = Campaign(), {}
    rewards = [0.0] * len(keys)
    async with Pool(**pool) as opened:
        worker = opened.worker
        await opened.score(request_of(-1, references["p0"], "print(0)"))  # the supervisors have started
        began_s = time.monotonic()
        num_sent = num_scored = 0
        while num_scored < len(keys):
            while num_sent < min(len(keys), num_scored + 2 * len(worker.pids)):
                key = keys[num_sent]
                limits[num_sent] = budget.limits(key) if budget else ()
                await worker.score(
                    [request_of(num_sent, references[key], programs[num_sent], key=key, limits_s=limits[num_sent])]
                )
                num_sent += 1
            for verdict in await worker.collect():
                num_scored += 1
                index = verdict.request.sample
                rewards[index] = verdict.reward
                (case,) = verdict.case_runs
                found.own_s += case.time_s
                if index in hangs:
                    found.hanging_s.append(case.time_s)
                elif verdict.reward:
                    found.num_correct += 1
                else:
                    found.failed.append((limits[index][:1], case.time_s, verdict.reason))
                if budget:
                    event = RewardComputed(request=verdict.request, reward=verdict.reward, case_runs=verdict.case_runs)
                    budget.validate(event)
                    budget.learn(event)
                    budget.check()
        found.wall_s = time.monotonic() - began_s
    found.rewards = rewards
    return found


def run_now(folder, **values):
    """The same, from a command."""
    return asyncio.run(run(folder, **values))
