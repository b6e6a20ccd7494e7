"""A driver over scripted engines and a scripted reward."""

import asyncio
import itertools
from contextlib import asynccontextmanager
from dataclasses import replace as replace_settings
from fractions import Fraction

import numpy as np

from rollpacker.config.sections.backend import DeadlineSection
from rollpacker.config.sections.engine import EngineSection
from rollpacker.config.sections.reward import RewardSection
from rollpacker.config.sections.rollout import RolloutSection
from rollpacker.core.ids import Domain
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import RestartSettings, SchedulerSettings, StreamSettings
from rollpacker.data.order import PromptOrder
from rollpacker.protocols.backend import Fleet
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Prompt, TokenizedPrompt
from rollpacker.protocols.weights import Weights
from rollpacker.rewards.overlong import NO_PUNISHMENT
from rollpacker.runtime.rollout.driver import Driver
from rollpacker.runtime.rollout.fleet_parts import FleetParts
from rollpacker.runtime.rollout.interval_log import IntervalLog
from rollpacker.runtime.rollout.listeners import Listeners
from rollpacker.runtime.rollout.requests import SamplingRules
from rollpacker.runtime.waiting.clock import RunClock
from rollpacker.runtime.waiting.watchdog import Watchdog
from rollpacker.transfer.snapshots import SnapshotSync
from tests.runtime.scripted import ScriptedEngine, ScriptedReward

MATH = Domain("math")
PROMPTS = {
    str(index): TokenizedPrompt(
        prompt=Prompt(
            key=str(index), domain=MATH, messages=(), text=f"prompt {index}", reference=AnswerReference(text="")
        ),
        token_ids=np.array([index], dtype=np.int32),
    )
    for index in range(40)
}
WHOLE_BATCH = [(f"{index}@0", [0, 1]) for index in range(4)]
"""The first batch, as `batch_of` gives it."""


def fleet_of(engines, tensor_parallel=1):
    """Engines side by side on as many GPUs as they need."""
    gpus = itertools.count()
    return Fleet(
        engines={engine.engine: engine for engine in engines},
        gpus={engine.engine: tuple(itertools.islice(gpus, tensor_parallel)) for engine in engines},
    )


def settings(batching="plain", eta=Fraction(5, 4), **machines):
    return SchedulerSettings(
        batching=batching,
        num_prompts=4,
        num_responses=2,
        eta_prompts=eta,
        eta_responses=Fraction(3, 2),
        overlap_rewards=True,
        domain_weights=((MATH, Fraction(1)),),
        **machines,
    )


@asynccontextmanager
async def driving(
    tmp_path,
    engines=(),
    *,
    reward=None,
    policy=None,
    stall_s=5.0,
    engine_call_s=5.0,
    stop_s=5.0,
    fleets=None,
    replace=None,
    end_engine=None,
    max_restarts=3,
    straggler_s=5.0,
    start_s=5.0,
    sync=None,
    rewards=None,
    environments=None,
):
    """A driver whose engines hold policy 0 and whose replacements are what `replace` brings."""
    notes, lent, clock, watchdog = [], [], RunClock(), Watchdog(tmp_path / "stall.txt", 60)
    restarts = RestartSettings(max_restarts=max_restarts, first_pause_s=0)
    driver = Driver(
        scheduler=Scheduler(replace_settings(policy or settings(), restarts=restarts)),
        order=PromptOrder({MATH: list(PROMPTS)}, seed=0, shuffle=False, num_epochs=1),
        fleet=FleetParts(
            fleets=fleets or {1: fleet_of(engines)},
            replace_engine=replace,
            end_engine=end_engine,
            trainer_parts=policy.stream.replicas if policy is not None and policy.stream else (),
            stands_by=policy is not None and policy.parallelism is not None and bool(policy.parallelism.escalation),
            engine=EngineSection(max_restarts=max_restarts),
            deadlines=DeadlineSection(
                rollout_stall_s=stall_s, start_s=start_s, engine_call_s=engine_call_s, stop_s=stop_s
            ),
            limit=watchdog.limit,
            straggler_s=straggler_s,
        ),
        reward=reward or ScriptedReward(),
        sampling=SamplingRules(
            prompts=PROMPTS,
            rollout=RolloutSection(num_prompts=4, num_responses=2, max_response_tokens=8),
            rewards=rewards or RewardSection(),
            overlong=NO_PUNISHMENT,
            seed=7,
        ),
        clock=clock,
        interval_log=IntervalLog(clock),
        watchdog=watchdog,
        listeners=Listeners(
            on_event=lambda *_: None,
            on_progress=lambda *_: None,
            on_reclaim=asyncio.Event().wait,
            on_stream=lambda record, gpus, _: lent.append((record.begin.round, gpus)),
            note=notes.append,
        ),
        environments=environments,
    )
    driver.notes, driver.lent = notes, lent
    try:
        await driver.publish(sync or weights(0))
        await driver.start()
        yield driver
    finally:
        await driver.stop()


@asynccontextmanager
async def lending(tmp_path, **parts):
    """A driver whose first round is over: half of its requests finished at once, and one of two engines was lent.

    Gives the driver, the round's record, the engine that was lent and the one that was kept.
    """
    engines = [ScriptedEngine(f"engine-{i}", lambda request: 1 if request.prompt.key < "2" else 60) for i in range(2)]
    policy = settings(stream=StreamSettings(replicas=((0,), (1,)), max_response_tokens=8))
    async with driving(tmp_path, engines, policy=policy, **parts) as driver:
        record = await driver.next_batch(0)
        [lent] = [engine for engine in engines if engine.is_asleep]
        [kept] = [engine for engine in engines if not engine.is_asleep]
        yield driver, record, lent, kept


class OneVersion:
    """Holds one policy version."""

    def __init__(self, version):
        self._version = version

    async def export_weights(self):
        return Weights(policy_version=self._version, checksum=f"{self._version:08x}", num_bytes=0, payload=None)


def weights(version, straggler_s=5.0):
    return SnapshotSync(OneVersion(version), straggler_s)


def batch_of(record):
    return [(str(group.prompt), [response.request.sample for response in group.responses]) for group in record.groups()]


async def turns(num_turns):
    """Let the event loop turn so often."""
    for _ in range(num_turns):
        await asyncio.sleep(0)


async def until(condition):
    """Let the event loop turn until something has happened."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (whatever it is that happens)
            await asyncio.sleep(0)
