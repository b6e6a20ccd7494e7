"""A small random world around one scheduler: it answers every command, in random order, and some things go wrong.

Finishes and rewards arrive in any order that is possible; aborts and evictions lose their race; messages come twice or
a round too late; engines die with or without last words, the last one too, and come back, also while they are lent or
changed for others; the scheduler is replaced by its own snapshot, through JSON; impossible events are tried on it. A
second scheduler hears the same facts and is never replaced: both must always give the same commands.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from rollpacker.core.commands import (
    Abort,
    Command,
    DraftRule,
    DrawPrompts,
    EndRound,
    EndRun,
    Evict,
    FailRun,
    Launch,
    MeasureProgress,
    ScoreResponse,
    SwitchEngines,
    UseDraftLengths,
    UseParallelism,
)
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import (
    CaseRun,
    DraftPasses,
    DraftsMeasured,
    EngineJoined,
    EngineLost,
    EngineProgress,
    EngineRetired,
    EnginesSwitched,
    EngineUpdated,
    Event,
    ProgressMeasured,
    PromptsDrawn,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    RoundMeasured,
    RunningRequest,
    StepStarted,
)
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, VersionSpan
from rollpacker.core.round_time_model import DegreeCosts
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import (
    DynamicSamplingSettings,
    LengthHistorySettings,
    ParallelismSettings,
    RewardBudgetSettings,
    SchedulerSettings,
    SpeculativeDecodingSettings,
    StreamSettings,
)
from rollpacker.core.tail_escalation_settings import TailEscalationSettings
from tests.fuzz.impossible_events import impossible_events
from tests.fuzz.oracle.models import model_of
from tests.fuzz.oracle.reference_model import ReferenceModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that decides what happens in a world."""

    settings: SchedulerSettings
    num_keys: tuple[int, ...]
    """Prompts per epoch, for each domain."""
    num_epochs: int | None
    """None: the data never ends."""
    num_steps: int
    """Where a world stops whose data never ends."""
    num_gpus: int
    width: int
    """GPUs per engine, where no planner chooses it."""
    kv_tokens: int
    """KV capacity of every engine."""
    trouble: float
    """Chance per tick of each thing that can go wrong; 0 is a world without trouble."""
    seed: int
    solve_rate: float = 0.5
    """Share of responses with reward 1."""


@st.composite
def scenarios(
    draw: st.DrawFn, batching: str | None = None, *, is_dynamic: bool = False, has_stream: bool = False
) -> Scenario:
    num_domains = draw(st.integers(1, 3))
    domains = tuple(Domain(name) for name in ("math", "code", "judge")[:num_domains])
    weights = draw(st.tuples(*[st.integers(1, 3)] * num_domains))
    batching = batching or draw(st.sampled_from(["tail", "tail", "plain"]))
    etas = st.sampled_from([Fraction(1), Fraction(9, 8), Fraction(5, 4), Fraction(3, 2), Fraction(2)])
    planner = draw(st.none() | st.sampled_from([planner_of(1, 2), planner_of(2, 1), planner_of(1, 2, patience=1)]))
    width = draw(st.integers(1, 2))
    num_gpus = draw(st.integers(1, 4)) * (2 if planner else width)
    num_prompts = draw(st.integers(sum(weights), 8 + sum(weights)))
    num_responses = draw(st.integers(2 if is_dynamic else 1, 4))
    settings = SchedulerSettings(
        batching="tail" if batching == "tail" else "plain",
        num_prompts=num_prompts,
        num_responses=num_responses,
        eta_prompts=draw(etas),
        eta_responses=draw(etas),
        overlap_rewards=draw(st.sampled_from([True, True, is_dynamic and batching == "tail"])),
        domain_weights=tuple(zip(domains, map(Fraction, weights), strict=True)),
        dynamic_sampling=draw(dynamic_samplings(num_responses)) if is_dynamic else None,
        reward_budget=draw(st.sampled_from([None, RewardBudgetSettings()])),
        parallelism=planner,
        stream=draw(streams(num_gpus) if has_stream else st.none() | streams(num_gpus)),
    )
    scenario = Scenario(
        settings=settings,
        num_keys=draw(st.tuples(*[st.integers(1, 30)] * num_domains)),
        num_epochs=draw(st.sampled_from([None, 1, 2, 3])),
        num_steps=draw(st.integers(1, 8)),
        num_gpus=num_gpus,
        width=width,
        kv_tokens=draw(st.sampled_from([0, 700, 10**6, 10**6])),
        trouble=draw(st.sampled_from([0.0, 0.02, 0.1])),
        seed=draw(st.integers(0, 2**32 - 1)),
        solve_rate=draw(st.sampled_from([0.5, 0.5, 0.8, 0.0])) if is_dynamic else 0.5,
    )
    settings = replace(settings, speculative_decoding=drafts_of(scenario.seed))
    scenario = replace(scenario, settings=settings)
    has_tail = planner is not None and not is_dynamic and scenario.seed % 2 > 0
    return with_escalation(scenario) if has_tail else scenario


def with_history(scenario: Scenario) -> Scenario:
    """The world with a length history, and with few prompts and more epochs, so that they are known soon."""
    rng = random.Random(scenario.seed)
    factors = [Fraction(1), Fraction(1), Fraction(5, 4), Fraction(2)]
    history = LengthHistorySettings(
        share=rng.choice([Fraction(1, 5), Fraction(1, 4), Fraction(1, 2)]),
        first_eta_prompts=rng.choice(factors),
        first_eta_responses=rng.choice(factors),
    )
    return replace(
        scenario,
        settings=replace(scenario.settings, length_history=history),
        num_keys=tuple(1 + num_keys % 9 for num_keys in scenario.num_keys),
        num_epochs=None if scenario.num_epochs is None else 2 * scenario.num_epochs,
    )


@st.composite
def dynamic_samplings(draw: st.DrawFn, num_responses: int) -> DynamicSamplingSettings:
    limits = st.none() | st.integers(2 * num_responses, 40)  # no eta is above 2
    factors = st.sampled_from([Fraction(2), Fraction(7, 2), Fraction(12)])
    return DynamicSamplingSettings(max_active_requests=draw(limits), max_launch_factor=draw(factors))


def drafts_of(seed: int) -> SpeculativeDecodingSettings | None:
    """Of a world's seed, so that what was drawn before there were drafts stays as it is."""
    rng = random.Random(f"drafts of {seed}")
    trial_every, rarest = rng.choice([(2, 2), (2, 8), (3, 20)])
    settings = SpeculativeDecodingSettings(
        max_sequences=rng.choice([1, 3, 8]),
        lengths=rng.choice([(0, 1), (0, 2, 3), (0, 1, 2, 3, 4, 6, 8)]),
        trial_every=trial_every,
        rarest_trial_every=rarest,
        num_trial_passes=rng.randint(1, 6),
        min_gain=rng.choice([Fraction(1), Fraction(11, 10)]),
    )
    return settings if rng.random() < 0.5 else None


def with_escalation(scenario: Scenario) -> Scenario:
    """The world with larger engines that finish rounds; the times are such that sums of them are exact.

    Draft lengths in the midst of a round have tests of their own.
    """
    rng = random.Random(f"tail of {scenario.seed}")
    num_gpus = rng.choice([4, 4, 6])
    kv_tokens = rng.choice([150, 10**6])
    small = DegreeCosts(
        degree=1,
        num_engines=num_gpus,
        max_num_seqs=4,
        kv_tokens=kv_tokens,
        batch_sizes=(1.0, 5.0),
        pass_s=(1.0, 2.0),
        kv_read_s=2**-10,
        prefill_s=2**-8,
    )
    large = replace(small, degree=2, num_engines=num_gpus // 2, kv_tokens=2 * kv_tokens, pass_s=(0.5, 2.5))
    tail = TailEscalationSettings(
        max_response_tokens=100,
        gpus=tuple(chunks(range(num_gpus), 2)),
        first_share=rng.choice([Fraction(1, 2), Fraction(1)]),
        first_cost_s=rng.choice([0.0, 8.0]),
        num_recent_lengths=rng.choice([3, 1000]),
    )
    planner = replace(planner_of(1, 2), costs=(small, large), escalation=tail)
    settings = replace(scenario.settings, parallelism=planner, speculative_decoding=None)
    return replace(scenario, settings=settings, num_gpus=num_gpus)


def planner_of(initial: int, other: int, patience: int = 2) -> ParallelismSettings:
    low, high = sorted((initial, other))
    return ParallelismSettings(degrees=(low, high), initial=initial, patience=patience, num_rounds_remembered=3)


@st.composite
def streams(draw: st.DrawFn, num_gpus: int) -> StreamSettings:
    width = draw(st.integers(1, min(3, num_gpus)))
    first_share, every_share = draw(st.sampled_from([(1, 1), (4, 1), (4, 3)]))
    return StreamSettings(
        replicas=tuple(chunks(range(num_gpus - num_gpus % width), width)),  # replicas are equal
        max_response_tokens=100,
        first_share=Fraction(first_share, 20),
        every_share=Fraction(every_share, 20),
        must_fit=draw(st.booleans()),
        num_recent_lengths=draw(st.sampled_from([1, 5, 1000])),
    )


def chunks(gpus: Sequence[int], width: int) -> list[tuple[int, ...]]:
    return [tuple(gpus[first : first + width]) for first in range(0, len(gpus), width)]


class SchedulerWorld:
    """Everything that a scheduler cannot see but through events."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.settings = scenario.settings
        self.rng = random.Random(scenario.seed)
        self.scheduler = Scheduler(self.settings)
        self.untouched = Scheduler(self.settings)
        self.reference: Any = model_of(self.settings)
        if isinstance(self.reference, ReferenceModel):
            self.reference.escalation.is_timeless = True
        self.digest = hashlib.sha256()
        self.step = 0
        self.version = 0
        self.is_resting = True
        self.engines: list[EngineId] = []
        self.running: dict[tuple[EngineId, RequestId], int] = {}
        """What engines generate, with the policy version that they do it by."""
        self.inbox: list[Event] = []
        """Facts on their way."""
        self.told: list[Event] = []
        """Facts that may come a second time."""
        self.draft_rules: tuple[DraftRule, ...] = ()
        self.draft_rng = random.Random(scenario.seed)
        self.num_engines_ever = 0
        self.num_drawn: dict[Domain, int] = {domain: 0 for domain, _ in self.settings.domain_weights}
        self.sleeping: dict[int, list[EngineId]] = {}
        """Engines that retired, by degree."""
        self.was_lost: list[EngineId] = []
        self.gpus: dict[EngineId, tuple[int, ...]] = {}
        for gpus in chunks(range(scenario.num_gpus), self.scheduler.beside.tensor_parallel or scenario.width):
            self.start_engine(self.new_name(), gpus)

    # The run

    def run(self) -> Any:
        while not (self.reference.has_ended or self.reference.has_given_up) and (
            self.scenario.num_epochs is not None or self.step < self.scenario.num_steps
        ):
            self.run_step()
        if self.scenario.num_epochs is not None and not self.reference.has_given_up:
            self.require_everything()
        return self.reference

    def require_everything(self) -> None:
        """Each prompt of finite data is decided."""
        assert self.scenario.num_epochs is not None
        everything = {
            PromptId(epoch, f"{domain}-{key}")
            for (domain, _), num_keys in zip(self.settings.domain_weights, self.scenario.num_keys, strict=True)
            for epoch in range(self.scenario.num_epochs)
            for key in range(num_keys)
        }
        decided = sorted([*self.reference.trained, *self.reference.dropped])
        assert decided == sorted(everything), "not every prompt was trained or dropped exactly once"

    def run_step(self) -> None:
        while self.scheduler.beside.retires_engines:  # the driver waits, too
            self.tick()
        if self.step and self.settings.speculative_decoding:
            for report in self.measured_drafts():
                self.tell(report)
        if self.step and self.rng.random() < 0.9:
            self.tell(self.measured_round())
        self.version += self.rng.randint(1, 2)
        self.update_engines()
        self.is_resting = False
        self.tell(StepStarted(step=self.step, policy_version=self.version))
        while not self.is_resting:
            self.tick()
        self.step += 1

    def tick(self) -> None:
        """Let one thing happen."""
        if self.rng.random() < self.scenario.trouble:
            self.rng.choice(
                [
                    self.lose_engine,
                    self.join_engine,
                    self.bring_back_engine,
                    self.repeat_fact,
                    self.replace_scheduler,
                    self.try_the_impossible,
                ]
            )()
        elif self.running and (not self.inbox or self.rng.random() < 0.5):
            self.finish(*self.rng.choice(list(self.running)))
        elif self.inbox:
            self.tell(self.inbox.pop(self.rng.randrange(len(self.inbox))))
        elif self.scheduler.waiting:
            self.join_engine()
        else:
            raise AssertionError("nothing is on its way, and the step has not ended")

    def tell(self, event: Event) -> tuple[Command, ...]:
        """Tell the scheduler a fact, and have the world do what it orders; gives that."""
        is_late = self.reference.is_late(event) and not self.reference.is_answer(event)
        before = what_late_facts_leave_alone(self.scheduler, event) if is_late else None
        commands = self.scheduler.handle(event, 0.0)
        assert commands == self.untouched.handle(event, 0.0), "a restored scheduler decided otherwise"
        self.scheduler.check()
        if is_late:
            assert what_late_facts_leave_alone(self.scheduler, event) == before, (
                f"a late fact changed something: {event}"
            )
        self.digest.update(f"{event}{commands}".encode())
        self.reference.note(event, commands, self.scheduler.waiting)
        once = StepStarted | PromptsDrawn | EngineJoined | EngineUpdated | EngineLost | EngineRetired | EnginesSwitched
        if not isinstance(event, once):
            self.told.append(event)
        for command in commands:
            self.carry_out(command)
        return commands

    # Commands

    def carry_out(self, command: Command) -> None:
        match command:
            case Launch() | Abort() | Evict():
                self.order_engine(command)
            case DrawPrompts():
                self.inbox.append(self.draw(command))
            case ScoreResponse(request=request):
                is_right = self.rng.random() < self.scenario.solve_rate
                self.inbox.append(RewardComputed(request=request, reward=float(is_right), case_runs=self.case_runs()))
            case MeasureProgress():
                self.inbox.append(self.measured_progress(command))
            case UseDraftLengths(rules=rules):
                self.draft_rules = rules
            case UseParallelism(tensor_parallel=degree):
                self.change_engines(degree)
            case SwitchEngines(round=number, tensor_parallel=degree):
                lent = {gpu for engine in self.reference.engines.lent for gpu in self.gpus[engine]}
                self.change_engines(degree, lent)
                self.tell(EnginesSwitched(round=number))
            case EndRound() | EndRun() | FailRun():
                self.is_resting = True
            case _:
                pass

    def order_engine(self, command: Launch | Abort | Evict) -> None:
        name = (command.engine, command.request)
        if isinstance(command, Launch) and command.engine in self.engines:
            self.running[name] = self.version
        elif isinstance(command, Abort) and name in self.running:
            self.abort(*name)
        elif isinstance(command, Evict) and name in self.running:
            self.evict(*name)

    def draw(self, command: DrawPrompts) -> PromptsDrawn:
        order = [domain for domain, _ in self.settings.domain_weights].index(command.domain)
        num_keys = self.scenario.num_keys[order]
        first = self.num_drawn[command.domain]
        last = first + command.num_prompts
        is_exhausted = False
        if self.scenario.num_epochs is not None:
            end = num_keys * self.scenario.num_epochs
            looks_ahead = self.scenario.seed % 2 == 0  # whether the last full draw already says that it was the last
            is_exhausted = last >= end if looks_ahead else last > end
            last = min(last, end)
        self.num_drawn[command.domain] = last
        prompts = tuple(
            PromptId(number // num_keys, f"{command.domain}-{number % num_keys}") for number in range(first, last)
        )
        return PromptsDrawn(domain=command.domain, prompts=prompts, is_exhausted=is_exhausted)

    def finish(self, engine: EngineId, request: RequestId) -> None:
        version = self.running.pop((engine, request))
        num_tokens = self.rng.randint(1, 99)
        spans = (VersionSpan(version, num_tokens),)
        self.inbox.append(ResponseFinished(request=request, engine=engine, num_tokens=num_tokens, spans=spans))

    def abort(self, engine: EngineId, request: RequestId) -> None:
        if self.rng.random() < 0.3:
            self.finish(engine, request)
        else:
            del self.running[engine, request]
            self.inbox.append(ResponseAborted(request=request, engine=engine, num_tokens=7))

    def evict(self, engine: EngineId, request: RequestId) -> None:
        if self.rng.random() < 0.3:
            self.finish(engine, request)
        else:
            del self.running[engine, request]
            self.inbox.append(ResponseEvicted(request=request, engine=engine, num_tokens=7))

    def case_runs(self) -> tuple[CaseRun, ...]:
        return tuple(
            CaseRun(case, self.rng.choice([0.5, 3.0, 8.0, 25.0, 29.0]), self.rng.random() < 0.5)
            for case in range(self.rng.randrange(4))
        )

    # Measurements

    def measured_progress(self, command: MeasureProgress) -> ProgressMeasured:
        rows = [
            EngineProgress(
                engine=engine,
                kv_tokens_capacity=self.scenario.kv_tokens,
                running=tuple(
                    RunningRequest(request, self.rng.randint(1, 20), self.rng.randint(0, 80))
                    for holder, request in self.running
                    if holder == engine
                ),
            )
            for engine in self.engines
        ]
        return ProgressMeasured(round=command.round, engines=tuple(rows))

    def measured_drafts(self) -> list[DraftsMeasured]:
        """What most engines decoded by the rules, and sometimes by others."""
        reports = []
        for engine in self.engines:
            if self.draft_rng.random() < 0.9:
                kinds = {(rule.max_sequences, rule.draft_length) for rule in self.draft_rules}
                kinds |= {(rule.max_sequences, rule.trial_length) for rule in self.draft_rules}
                kinds |= {(4, 8)} if self.draft_rng.random() < self.scenario.trouble else set()
                passes = [self.decoded(*kind) for kind in sorted(kinds) if self.draft_rng.random() < 0.8]
                reports.append(DraftsMeasured(round=self.step - 1, engine=engine, passes=tuple(passes)))
        return reports

    def decoded(self, max_sequences: int, length: int) -> DraftPasses:
        num_passes = self.draft_rng.randrange(5)
        num_sequences = num_passes * self.draft_rng.randint(1, max_sequences)
        num_drafted = num_sequences * length
        num_accepted = self.draft_rng.randint(0, num_drafted)
        time_s = num_passes * self.draft_rng.choice([0.25, 0.5, 1.0])
        return DraftPasses(max_sequences, length, num_passes, num_sequences, num_drafted, num_accepted, time_s)

    def measured_round(self) -> RoundMeasured:
        return RoundMeasured(
            round=self.step - 1,
            num_preemptions=self.rng.choice([0, 0, 0, 20, 21, 22]),
            rollout_time_s=self.rng.choice([1.0, 2.0]),
            num_tokens=self.rng.choice([100, 200, 300]),
        )

    # Engines

    def new_name(self) -> EngineId:
        self.num_engines_ever += 1
        return EngineId(f"engine-{self.num_engines_ever}")

    def start_engine(self, engine: EngineId, gpus: tuple[int, ...]) -> None:
        self.engines.append(engine)
        self.gpus[engine] = gpus
        self.tell(EngineJoined(engine=engine, policy_version=self.version, gpus=gpus))

    def change_engines(self, degree: int, lent: Collection[int] = ()) -> None:
        """Wake or start the engines of a degree, then put the others to sleep; things can go wrong on the way."""
        old = list(self.engines)
        self.was_lost.clear()
        sleeping = self.sleeping.pop(degree, [])
        for gpus in chunks(range(self.scenario.num_gpus), degree):
            if set(gpus).isdisjoint(lent):
                self.start_engine(sleeping.pop() if sleeping else self.new_name(), gpus)
        if self.rng.random() < self.scenario.trouble:
            if old:  # else all were lost, and none is left to retire
                self.expect_impossible(StepStarted(step=self.step, policy_version=self.version + 1))
            self.replace_scheduler()
            self.lose_engine(can_restart=False)
        for engine in old:
            if engine in self.engines:
                self.engines.remove(engine)
                self.sleeping.setdefault(len(self.gpus[engine]), []).append(engine)
                self.tell(EngineRetired(engine=engine))
                self.tell(EngineRetired(engine=engine))

    def update_engines(self) -> None:
        """Give the engines the step's policy; before the last of them has it no step can start."""
        for engine in list(self.engines):
            if self.rng.random() < self.scenario.trouble:
                self.expect_impossible(StepStarted(step=self.step, policy_version=self.version))
            self.tell(EngineUpdated(engine=engine, policy_version=self.version))

    # Trouble

    def join_engine(self) -> None:
        self.start_engine(self.new_name(), ())

    def bring_back_engine(self) -> None:
        """Start an engine again under its old name; it is not to be used if its GPUs are lent."""
        if self.was_lost:
            engine = self.was_lost.pop()
            self.inbox = [event for event in self.inbox if event != EngineLost(engine=engine)]
            self.start_engine(engine, self.gpus[engine])

    def lose_engine(self, *, can_restart: bool = True) -> None:
        """End an engine, or restart it; some of its finishes may be on their way, and some facts beat the news."""
        if not self.engines:
            return
        engine = self.rng.choice(self.engines)
        for held_by, request in list(self.running):
            if held_by == engine:
                self.finish(engine, request)
                if self.rng.random() < 0.7:
                    self.inbox.pop()
        if can_restart and self.rng.random() < 0.3:
            self.tell(EngineJoined(engine=engine, policy_version=self.version, gpus=self.gpus[engine]))
        else:
            self.engines.remove(engine)
            self.was_lost.append(engine)
            self.tell(EngineLost(engine=engine))
            self.inbox.append(EngineLost(engine=engine))

    def repeat_fact(self) -> None:
        if self.told:
            event = self.rng.choice(self.told[-50:])
            if not isinstance(event, ResponseEvicted) or self.reference.is_late(event):  # else it is there again
                self.tell(event)

    def replace_scheduler(self) -> None:
        snapshot = self.scheduler.snapshot()
        text = json.dumps(snapshot, sort_keys=True)
        assert json.loads(text) == snapshot
        self.scheduler = type(self.scheduler).restore(self.settings, json.loads(text))
        assert self.scheduler.snapshot() == snapshot

    def try_the_impossible(self) -> None:
        if not self.engines:
            return
        before = self.scheduler.snapshot()
        for event in self.impossible_events():
            self.expect_impossible(event, before)

    def impossible_events(self) -> Iterable[Event]:
        return impossible_events(self)

    def expect_impossible(self, event: Event, before: dict[str, Any] | None = None) -> None:
        """`before` is the state, where somebody has it already."""
        before = before or self.scheduler.snapshot()
        try:
            self.scheduler.handle(event, 0.0)
        except ImpossibleEvent:
            pass
        else:
            raise AssertionError(f"an impossible event was taken: {event}")
        assert self.scheduler.snapshot() == before, f"an impossible event changed something: {event}"


def what_late_facts_leave_alone(scheduler: Scheduler, event: Event) -> dict[str, Any]:
    """The whole state, but for what is learned from late rewards and late ends of responses."""
    snapshot = scheduler.snapshot()
    if isinstance(event, ResponseFinished | ResponseAborted):
        return snapshot | {"batching": snapshot["batching"] | {"history": None}}
    return snapshot | {"reward_budget": None} if isinstance(event, RewardComputed) else snapshot
