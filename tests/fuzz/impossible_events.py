"""Facts that cannot be true at the moment, for a world of a scheduler to try."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollpacker.core.events import (
    CaseRun,
    DraftPasses,
    DraftsMeasured,
    EngineLost,
    EngineProgress,
    EngineRetired,
    EnginesSwitched,
    Event,
    ProgressMeasured,
    PromptsDrawn,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    RoundMeasured,
    StepStarted,
)
from rollpacker.core.ids import EngineId, PromptId, RequestId, VersionSpan

if TYPE_CHECKING:
    from tests.fuzz.scheduler_world import SchedulerWorld


def impossible_events(world: SchedulerWorld) -> Iterator[Event]:
    """What cannot happen at this very moment."""
    some_engine = world.engines[0]
    nobody = EngineId("engine-of-nobody")
    stranger = PromptId(0, "stranger")
    yield EngineLost(engine=nobody)
    yield EngineRetired(engine=nobody)
    if some_engine not in world.reference.engines.retiring or world.reference.engines.loads[some_engine]:
        yield EngineRetired(engine=some_engine)
    yield from _measurements(world, some_engine, nobody)
    yield StepStarted(step=world.step + 1, policy_version=world.version)
    yield StepStarted(step=world.step, policy_version=world.version)  # only asked while a step is under way
    yield from (
        PromptsDrawn(domain=domain, prompts=(stranger,), is_exhausted=False)
        for domain, _ in world.settings.domain_weights
        if domain not in world.reference.awaited
    )
    for domain, asked in world.reference.awaited.items():
        strangers = tuple(PromptId(0, f"stranger-{number}") for number in range(asked))
        yield PromptsDrawn(domain=domain, prompts=(*strangers, stranger), is_exhausted=True)
        yield PromptsDrawn(domain=domain, prompts=strangers[1:], is_exhausted=False)
        if asked > 1:
            yield PromptsDrawn(domain=domain, prompts=(stranger, stranger), is_exhausted=True)
        if world.reference.long_queue:
            yield PromptsDrawn(domain=domain, prompts=tuple(world.reference.long_queue[:1]), is_exhausted=True)
    yield from _about(world, RequestId(world.step + 1, stranger, 0), some_engine)
    if world.reference.round is None:
        return
    yield from _about(world, RequestId(world.step, stranger, 0), some_engine)
    if not world.reference.launched:  # with dynamic sampling a round may begin before its first prompt is there
        return
    launched = next(iter(world.reference.launched))
    yield from _about(world, RequestId(world.step, launched, 99), some_engine)
    yield from _about(world, RequestId(world.step, launched, -1), some_engine)
    for request, holder in list(world.reference.engines.holders.items())[:3]:
        yield RewardComputed(request=request, reward=1.0)
        yield ResponseAborted(request=request, engine=holder, num_tokens=0)
        if (holder, request) not in world.reference.engines.leaving:
            yield ResponseEvicted(request=request, engine=holder, num_tokens=0)
        yield _finished(request, holder, world.version + 1)
        yield _finished(request, holder, world.version - 1)
        yield _finished(request, nobody, world.version)
        yield from (
            _finished(request, engine, world.version)
            for engine in world.reference.engines.loads
            if engine != holder and engine not in world.reference.engines.fallen
        )
    if not world.settings.overlap_rewards and len(world.reference.placed) < world.reference.round.num_prompts_needed:
        ordered = world.reference.to_score if world.settings.dynamic_sampling else set()
        unscored = world.reference.finished - ordered
        yield from (RewardComputed(request=request, reward=1.0) for request in sorted(unscored)[:1])


def _about(world: SchedulerWorld, request: RequestId, engine: EngineId) -> Iterator[Event]:
    yield _finished(request, engine, world.version)
    yield ResponseAborted(request=request, engine=engine, num_tokens=0)
    yield ResponseEvicted(request=request, engine=engine, num_tokens=0)
    yield RewardComputed(request=request, reward=1.0)


def _measurements(world: SchedulerWorld, some_engine: EngineId, nobody: EngineId) -> Iterator[Event]:
    yield ProgressMeasured(round=world.step + 1, engines=())
    stream, escalation = world.reference.stream, world.reference.escalation
    yield EnginesSwitched(round=world.step)
    if stream.is_measuring or escalation.is_measuring:
        row = EngineProgress(some_engine, 1, ())
        yield ProgressMeasured(round=world.step, engines=(row, row))
        yield ProgressMeasured(round=world.step, engines=(row._replace(kv_tokens_capacity=-1),))
        yield ProgressMeasured(round=world.step, engines=(row._replace(engine=nobody),))
    elif world.reference.round and not (stream.last_tested or escalation.has_measured):
        yield ProgressMeasured(round=world.step, engines=())
    if world.settings.parallelism:
        yield RoundMeasured(round=world.step + 1, num_preemptions=0, rollout_time_s=1.0, num_tokens=1)
    if world.settings.parallelism and world.reference.round:
        yield RoundMeasured(round=world.step, num_preemptions=0, rollout_time_s=1.0, num_tokens=1)
    drafted = DraftPasses(1, 2, 1, 1, 2, 1, 1.0)
    yield DraftsMeasured(round=world.step + 1, engine=some_engine, passes=(drafted,))
    yield DraftsMeasured(round=0, engine=some_engine, passes=(drafted._replace(num_accepted=3),))
    yield DraftsMeasured(round=0, engine=nobody, passes=())
    if world.settings.reward_budget:
        request = RequestId(0, PromptId(0, "stranger"), 0)
        for run in (CaseRun(-1, 1.0, True), CaseRun(0, -1.0, True), CaseRun(0, float("nan"), False)):
            yield RewardComputed(request=request, reward=1.0, case_runs=(run,))


def _finished(request: RequestId, engine: EngineId, version: int) -> ResponseFinished:
    return ResponseFinished(request=request, engine=engine, num_tokens=1, spans=(VersionSpan(version, 1),))
