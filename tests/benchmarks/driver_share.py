"""How much of a step the driver itself computes, measured without Ray: scripted engines and reward, one event loop.

    PYTHONPATH=. python tests/benchmarks/driver_share.py

Prints CPU time per step and per response for plain and tail batching, at the paper's batch and larger. The goal is less
than 1 % of a step at 128 GPUs; the paper's steps there take 100 s and more, so 1 s of CPU time is 1 %. With Ray, the
cost of its calls comes on top: `driver_time_s` in the `steps` table of any run has both.
"""

import asyncio
import time
from fractions import Fraction
from pathlib import Path

import numpy as np

from rollpacker.config.sections.backend import DeadlineSection
from rollpacker.config.sections.engine import EngineSection
from rollpacker.config.sections.reward import RewardSection
from rollpacker.config.sections.rollout import RolloutSection
from rollpacker.core.ids import Domain, RequestId
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import SchedulerSettings
from rollpacker.data.order import PromptOrder
from rollpacker.protocols.backend import Fleet
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Prompt, TokenizedPrompt
from rollpacker.rewards.overlong import NO_PUNISHMENT
from rollpacker.runtime.rollout.driver import Driver
from rollpacker.runtime.rollout.fleet_parts import FleetParts
from rollpacker.runtime.rollout.interval_log import IntervalLog
from rollpacker.runtime.rollout.listeners import Listeners
from rollpacker.runtime.rollout.requests import SamplingRules
from rollpacker.runtime.waiting.clock import RunClock
from rollpacker.runtime.waiting.watchdog import Watchdog
from tests.runtime.scripted import ScriptedEngine, ScriptedReward

NUM_ENGINES = 64
NUM_STEPS = 5
MATH = Domain("math")


def turns(request: RequestId) -> int:
    """A few prompts take longer than the rest."""
    return 8 if hash(request.prompt) % 10 == 0 else 1 + request.sample % 3


async def measure(batching: str, num_prompts: int, num_responses: int) -> tuple[float, int]:
    """CPU seconds of the driver per step, scripted engines included, and responses per step."""
    prompts = {
        str(index): TokenizedPrompt(
            prompt=Prompt(key=str(index), domain=MATH, messages=(), text="", reference=AnswerReference(text="")),
            token_ids=np.zeros(16, dtype=np.int32),
        )
        for index in range(4 * num_prompts)
    }
    engines = [ScriptedEngine(f"engine-{index}", turns) for index in range(NUM_ENGINES)]
    settings = SchedulerSettings(
        batching="tail" if batching == "tail" else "plain",
        num_prompts=num_prompts,
        num_responses=num_responses,
        eta_prompts=Fraction(5, 4),
        eta_responses=Fraction(5, 4),
        overlap_rewards=True,
        domain_weights=((MATH, Fraction(1)),),
    )
    clock = RunClock()
    driver = Driver(
        scheduler=Scheduler(settings),
        order=PromptOrder({MATH: list(prompts)}, seed=0, shuffle=True, num_epochs=None),
        fleet=FleetParts(
            fleets={1: Fleet(engines={engine.engine: engine for engine in engines})},
            replace_engine=None,
            engine=EngineSection(),
            deadlines=DeadlineSection(),
            straggler_s=60,
        ),
        reward=ScriptedReward(),
        sampling=SamplingRules(
            prompts=prompts,
            rollout=RolloutSection(num_prompts=num_prompts, num_responses=num_responses),
            rewards=RewardSection(),
            overlong=NO_PUNISHMENT,
            seed=0,
        ),
        clock=clock,
        interval_log=IntervalLog(clock),
        watchdog=Watchdog(Path("stall.txt"), 600),
        listeners=Listeners(
            on_event=lambda *_: None,
            on_progress=lambda *_: None,
            on_stream=lambda *_: None,
            note=lambda _: None,
            on_reclaim=asyncio.Event().wait,
        ),
    )
    await driver.start()
    began, num_launched = time.process_time(), 0
    for step in range(NUM_STEPS):
        record = await driver.next_batch(step)
        await driver.quiesce()
        assert record is not None
        num_launched += len(record.requests)
    spent = time.process_time() - began
    await driver.stop()
    return spent / NUM_STEPS, num_launched // NUM_STEPS


def main() -> None:
    print(f"{'batching':10} {'prompts x responses':>20} {'launched':>9} {'CPU s per step':>15} {'us per response':>16}")
    for num_prompts, num_responses in ((128, 8), (512, 16)):
        for batching in ("plain", "tail"):
            cpu_s, launched = asyncio.run(measure(batching, num_prompts, num_responses))
            shape = f"{num_prompts} x {num_responses}"
            print(f"{batching:10} {shape:>20} {launched:>9,} {cpu_s:>15.3f} {1e6 * cpu_s / launched:>16.0f}")


if __name__ == "__main__":
    main()
