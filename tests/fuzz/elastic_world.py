"""A random world around one scheduler whose workers come and go: what a worker can do wrong goes wrong in it.

    python -m tests.fuzz.elastic_world NUM_WORLDS

Workers arrive, of new and of old lives; start, fail to, or say nothing; get the policy, another one, or none; are
noticed, and killed with and without last words, all at once too; what they said before comes again. Engines differ in
speed, and requests move by choice. Time goes on from timer to timer. The scheduler is replaced by its own snapshot; a
second one is not, and both must always give the same commands. In a world without workers a third one, that has none in
its settings, hears the same, and must decide the same but for timers and wishes. Every round has to end, whatever
becomes of the workers.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from rollpacker.core.commands import (
    Abort,
    Command,
    DismissWorker,
    DrawPrompts,
    EndRound,
    Evict,
    FetchPolicy,
    Launch,
    MeasureProgress,
    ReclaimEngines,
    ScoreResponse,
    SetTimer,
    StartMember,
    WishWorkers,
)
from rollpacker.core.elastic_settings import BalanceSettings, ElasticSettings, SeedingSettings
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    EngineProgress,
    EnginesReturned,
    EngineStarted,
    EngineStartFailed,
    EngineUpdated,
    Event,
    FetchFailed,
    NoticeGiven,
    PolicyPublished,
    ProgressMeasured,
    PromptsDrawn,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    RunningRequest,
    SlotsOpened,
    StepMeasured,
    StepStarted,
    TimerFired,
    WorkerArrived,
    WorkerLeft,
)
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, VersionSpan, WorkerId
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import SchedulerSettings, StreamSettings
from tests.fuzz.oracle.workers import ElasticModel

MOST_TICKS = 3_000
"""Of a step: far more than any takes that ends."""
QUIET_TICKS = 600
"""After so many of a step nothing goes wrong any more, so that it can end."""


def settings_of(rng: random.Random, calm: random.Random) -> tuple[SchedulerSettings, int]:
    """Draw the settings of a world, and the number of its engines on the trainer's GPUs."""
    num_local = rng.randint(1, 3)
    seeding = SeedingSettings(fixed_s=rng.choice([None, 0.0, 2.0]), reclaim_after_s=rng.choice([0.0, 5.0]))
    balance = BalanceSettings(
        num_slots=rng.randint(1, 6),
        max_pending=rng.randint(0, 3),
        max_moves=calm.choice([0, 1, 1, 2]),
        every_s=calm.choice([0.5, 2.0]),
        gain_s=calm.choice([0.0, 0.0, 1.0]),
        max_response_tokens=100,
    )
    lead_s = rng.choice([0.0, 4.0, 10.0])
    elastic = ElasticSettings(
        min_workers=rng.choice([0, 0, 1]),
        max_workers=rng.randint(1, 4),
        start_s=rng.choice([5.0, 20.0]),
        fetch_s=rng.choice([3.0, 10.0]),
        patience_s=2.0,
        grace_s=5.0,
        least_stay_s=rng.choice([0.0, 8.0]),
        drain_lead_s=lead_s,
        drain_margin_s=rng.choice([0.0, lead_s / 4]),
        seeding=rng.choice([None, seeding, seeding]),
        balance=rng.choice([None, balance, balance]),
    )
    stream = StreamSettings(
        replicas=tuple((gpu,) for gpu in range(num_local)), max_response_tokens=100, first_share=Fraction(1, 2)
    )
    settings = SchedulerSettings(
        batching=rng.choice(["plain", "tail"]),
        num_prompts=rng.randint(2, 6),
        num_responses=rng.randint(1, 4),
        eta_prompts=Fraction(5, 4),
        eta_responses=Fraction(3, 2),
        overlap_rewards=True,
        domain_weights=((Domain("math"), Fraction(1)),),
        stream=stream if elastic.seeding else None,
        elastic=elastic,
    )
    return settings, num_local


def calmed(settings: SchedulerSettings, calm: random.Random) -> SchedulerSettings:
    """Give the settings of a world in which much may move."""
    assert settings.elastic is not None
    balance = BalanceSettings(
        num_slots=calm.choice([1, 40]),
        max_pending=1,
        max_moves=1,
        every_s=0.5,
        gain_s=0.0,
        max_response_tokens=100,
    )
    elastic = replace(settings.elastic, balance=balance, min_workers=3, max_workers=3, least_stay_s=0.0)
    return replace(settings, num_prompts=calm.randint(8, 16), num_responses=2, elastic=elastic)


class ElasticWorld:
    """Everything that a scheduler cannot see but through events."""

    def __init__(self, seed: int, *, has_workers: bool = True) -> None:
        self.rng = random.Random(f"elastic {seed}")
        self.calm = random.Random(f"calm {seed}")
        """Draws what has to do with moves by choice."""
        self.settings, num_local = settings_of(self.rng, self.calm)
        self.is_calm = has_workers and self.calm.random() < 0.3
        """Its rounds are large, and workers that serve mostly stay: so there is something to move, and time for it."""
        if self.is_calm:
            self.settings = calmed(self.settings, self.calm)
        self.settings = self.adapted(self.settings)
        assert self.settings.elastic is not None
        self.elastic = self.settings.elastic
        self.has_workers = has_workers
        self.needs_few = random.Random(f"need {seed}").random() < 0.3
        """Its rollouts are so short that most workers have nothing to do."""
        self.scheduler, self.untouched = Scheduler(self.settings), Scheduler(self.settings)
        self.rigid = None if has_workers else Scheduler(replace(self.settings, elastic=None))
        self.model = ElasticModel(self.elastic)
        self.now = 0.0
        self.version = 0
        self.step = -1
        self.is_resting = True
        self.num_drawn = 0
        self.trained: list[PromptId] = []
        self.running: dict[tuple[EngineId, RequestId], int] = {}
        """What an engine generates, and the policy version."""
        self.num_tokens: dict[RequestId, int] = {}
        """Of each running request, as far as anyone was told."""
        self.inbox: list[Event] = []
        self.measuring: list[int] = []
        """Rounds of the measurements that are to come."""
        self.told: list[Event] = []
        """Facts of workers that may be told again."""
        self.lives = {f"e7_{number}": -1 for number in range(5)}
        self.local = [EngineId(f"engine-{number}") for number in range(num_local)]
        self.tell(SlotsOpened(slots=tuple(self.local)))
        for gpu, engine in enumerate(self.local):
            self.tell(EngineJoined(engine=engine, policy_version=0, gpus=(gpu,)))

    def adapted(self, settings: SchedulerSettings) -> SchedulerSettings:
        """Give the settings for the mode of training."""
        return settings

    def run(self, num_steps: int = 6) -> None:
        for self.step in range(num_steps):
            self.version += 1
            self.running.clear()
            self.tell(PolicyPublished(policy_version=self.version))
            for engine in self.local:
                self.tell(EngineUpdated(engine=engine, policy_version=self.version))
            self.is_resting = False
            self.tell(StepStarted(step=self.step, policy_version=self.version))
            self.play()
            if self.rng.random() < 0.9:
                self.tell(self.measured())
        assert len(set(self.trained)) == len(self.trained), "a prompt was trained twice"

    def play(self) -> None:
        for tick in range(MOST_TICKS):
            if self.is_resting:
                return
            self.tick(is_quiet=tick > QUIET_TICKS)
        raise AssertionError("the step has not ended")

    def tick(self, *, is_quiet: bool) -> None:
        self.fire_due()  # a timer may be set for a moment that is over
        chance = self.rng.random()
        if self.is_calm and not is_quiet and any(map(self.model.serves, self.model.workers)):
            self.calm.choice([self.look, self.look, self.arrive, lambda: None])()
            chance = max(chance, self.calm.choice([0.0, *[0.26] * 6]))
        if self.has_workers and not is_quiet and chance < 0.25:
            self.rng.choice([*[self.arrive] * 4, self.kill, self.notice, self.repeat, self.replace, self.lose])()
        elif self.has_workers and not is_quiet and chance < 0.26:
            for name in list(self.model.workers):
                self.tell(WorkerLeft(worker=name))
        elif self.measuring and chance < 0.32:
            self.look()
        elif self.inbox and chance < 0.65:
            self.answer(self.inbox.pop(self.rng.randrange(len(self.inbox))))
        elif self.running and chance < 0.8:
            self.finish(*self.rng.choice(list(self.running)))
        elif self.scheduler.timers and (self.has_workers or not self.running):
            self.fire()
        else:
            self.now += self.rng.random()
            self.fire_due()

    # Time

    def fire(self) -> None:
        """Let time go on to the next timer."""
        self.now = max(self.now, min(self.scheduler.timers.values()))
        self.fire_due()

    def fire_due(self) -> None:
        while due := [timer for timer, at_s in self.scheduler.timers.items() if at_s <= self.now]:
            self.tell(TimerFired(timer=min(due, key=self.scheduler.timers.__getitem__)))

    def look(self) -> None:
        """Let time go on a little, and answer a measurement that was asked for."""
        self.now = max(self.now, min([self.now + 0.5, *self.scheduler.timers.values()]))
        self.fire_due()
        if self.measuring:
            self.tell(self.progress(self.measuring.pop(0)))

    # Workers

    def arrive(self) -> None:
        element = self.rng.choice(list(self.lives))
        life = max(0, self.lives[element] + self.rng.choice([1, 1, 1, 2, 0, -1]))
        self.lives[element] = max(life, self.lives[element])
        event = WorkerArrived(
            worker=WorkerId(f"{element}-r{life}"),
            num_engines=self.rng.choice([1, 1, 2]),
            leaves_in_s=self.rng.choice([None, None, *([] if self.is_calm else [2.0, 20.0, 60.0])]),
            mismatch=self.rng.choice([*[""] * 9, "it has another model"]),
        )
        self.tell(event)

    def some_worker(self) -> WorkerId | None:
        return self.rng.choice(list(self.model.workers)) if self.model.workers else None

    def kill(self) -> None:
        if name := self.some_worker():
            self.tell(WorkerLeft(worker=name))

    def lose(self) -> None:
        if (name := self.some_worker()) and self.model.workers[name].num_engines:
            self.tell(EngineLost(engine=EngineId(f"{name}.0")))

    def notice(self) -> None:
        if name := self.some_worker():
            self.tell(NoticeGiven(worker=name, leaves_in_s=self.rng.choice([0.0, 1.0, 6.0, 30.0])))

    def repeat(self) -> None:
        """Tell again what a worker said before; of one that is there only what it could say again."""
        if self.told:
            event = self.rng.choice(self.told[-40:])
            if self.model.is_late(event):
                before = self.scheduler.snapshot()
                self.tell(event)
                assert self.scheduler.snapshot() == before, f"a late fact changed something: {event}"

    def replace(self) -> None:
        snapshot = self.scheduler.snapshot()
        self.scheduler = type(self.scheduler).restore(self.settings, json.loads(json.dumps(snapshot)))
        assert self.scheduler.snapshot() == snapshot

    def progress(self, number: int) -> ProgressMeasured:
        """How far requests are: engines are fast or slow for a while, and a few do not answer."""
        running: dict[EngineId, list[RunningRequest]] = {}
        pace = {engine: self.calm.choice([1, 4, 16]) for engine in self.scheduler.engines}
        for engine, request in self.running:
            self.num_tokens[request] = self.num_tokens.get(request, 0) + self.calm.randint(0, pace.get(engine, 1))
            running.setdefault(engine, []).append(RunningRequest(request, 5, self.num_tokens[request]))
        engines = [engine for engine in self.scheduler.engines if self.calm.random() < 0.95]
        rows = [EngineProgress(engine, 9, tuple(running.get(engine, ()))) for engine in engines]
        return ProgressMeasured(round=number, engines=tuple(rows))

    def measured(self) -> StepMeasured:
        measured = StepMeasured(
            step=self.step,
            train_s=self.rng.choice([0.0, 5.0, 20.0]),
            trainer_idle_s=self.rng.choice([0.0, 9.0]),
            fleet_idle_s=self.rng.choice([0.0, 9.0]),
            local_engine_s=self.rng.choice([1.0, 40.0]),
            member_engine_s=self.rng.choice([0.0, 40.0]),
            local_tokens=100,
            member_tokens=self.rng.choice([0, 50]),
        )
        return replace(measured, train_s=20.0, local_engine_s=1.0, member_engine_s=0.0) if self.needs_few else measured

    # Told and ordered

    def answer(self, event: Event) -> None:
        if isinstance(event, ResponseFinished | ResponseEvicted) and event.engine not in self.local:
            is_gone = event.engine.rpartition(".")[0] not in self.model.workers
            if is_gone and self.rng.random() < 0.5:
                return  # it never came
        self.tell(event)

    def tell(self, event: Event) -> tuple[Command, ...]:
        commands = self.scheduler.handle(event, self.now)
        assert commands == self.untouched.handle(event, self.now), "a restored scheduler decided otherwise"
        self.scheduler.check()
        if self.rigid:
            alike = tuple(command for command in commands if not isinstance(command, SetTimer | WishWorkers))
            is_heard = not isinstance(event, TimerFired | PolicyPublished | StepMeasured)
            rigid = self.rigid.handle(event, self.now) if is_heard else ()
            assert alike == rigid, "without workers it decides otherwise"
        balance = self.scheduler.beside.balance
        self.model.note(event, commands, self.scheduler.waiting, self.now, balance.speeds if balance else {})
        if isinstance(
            event, WorkerArrived | NoticeGiven | EngineStarted | EngineUpdated | FetchFailed | EngineLost
        ) and (not isinstance(event, EngineUpdated | EngineLost) or event.engine not in self.local):
            self.told.append(event)
        if isinstance(event, WorkerLeft | EngineLost):
            name = event.worker if isinstance(event, WorkerLeft) else event.engine.rpartition(".")[0]
            self.forget(WorkerId(name))
        for command in commands:
            self.carry_out(command)
        if isinstance(event, TimerFired):  # the other measurements never come
            self.measuring += [command.round for command in commands if isinstance(command, MeasureProgress)]
        return commands

    def forget(self, name: WorkerId) -> None:
        """What ran on a worker is gone; a few finishes may be on their way."""
        for engine, request in [each for each in self.running if each[0].startswith(f"{name}.")]:
            self.finish(engine, request)
            if self.rng.random() < 0.7:
                self.inbox.pop()

    def carry_out(self, command: Command) -> None:  # noqa: C901 one case per command
        match command:
            case Launch(request=request, engine=engine):
                self.running[engine, request] = self.version
            case Abort(request=request, engine=engine) if (engine, request) in self.running:
                self.give_back(ResponseAborted(request=request, engine=engine, num_tokens=1))
            case Evict(request=request, engine=engine) if (engine, request) in self.running:
                self.give_back(ResponseEvicted(request=request, engine=engine, num_tokens=1))
            case DrawPrompts():
                first, self.num_drawn = self.num_drawn, self.num_drawn + command.num_prompts
                prompts = tuple(PromptId(0, f"q{number}") for number in range(first, self.num_drawn))
                self.inbox.append(PromptsDrawn(domain=command.domain, prompts=prompts, is_exhausted=False))
            case ScoreResponse(request=request):
                self.inbox.append(RewardComputed(request=request, reward=1.0))
            case EndRound(prompts=prompts):
                self.is_resting = True
                self.trained += prompts
            case StartMember(engine=engine):
                failure = EngineStartFailed(engine=engine)
                self.inbox += self.rng.choice([[EngineStarted(engine=engine, kv_tokens=9)]] * 4 + [[failure], []])
            case FetchPolicy(engine=engine, policy_version=version):
                held = [EngineUpdated(engine=engine, policy_version=version)]
                failed: list[Event] = [FetchFailed(engine=engine, policy_version=version)]
                stale: list[Event] = [EngineUpdated(engine=engine, policy_version=version - 1)]
                self.inbox += self.rng.choice([held, held, held, held, [*stale, *held], stale, failed, []])
            case DismissWorker(worker=worker):
                self.forget(worker)
                if self.rng.random() < 0.7:
                    self.inbox.append(WorkerLeft(worker=worker))
            case ReclaimEngines(round=number, engines=engines):
                self.inbox.append(EnginesReturned(round=number, engines=engines))
            case _:
                pass

    def give_back(self, answer: ResponseAborted | ResponseEvicted) -> None:
        del self.running[answer.engine, answer.request]
        if self.rng.random() < 0.2:
            self.inbox.append(finished(answer.request, answer.engine, self.version))
        else:
            self.inbox.append(answer)

    def finish(self, engine: EngineId, request: RequestId) -> None:
        self.inbox.append(finished(request, engine, self.running.pop((engine, request))))


def finished(request: RequestId, engine: EngineId, version: int) -> ResponseFinished:
    return ResponseFinished(request=request, engine=engine, num_tokens=3, spans=(VersionSpan(version, 3),))


def run_worlds(world: Callable[[int, bool], ElasticWorld], arguments: Sequence[str]) -> int:
    """Run so many worlds, every fifth without workers; the first that does not hold raises, with its seed before it."""
    for seed in range(int(arguments[0])):
        try:
            world(seed, seed % 5 != 0).run()
        except Exception:
            print(f"seed {seed}")
            raise
    print(f"{int(arguments[0]):,} worlds with workers, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(run_worlds(lambda seed, has_workers: ElasticWorld(seed, has_workers=has_workers), sys.argv[1:]))
