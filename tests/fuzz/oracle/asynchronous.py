"""A reference model of asynchronous batching: admission, acceptance and suspension, from facts and commands alone.

It keeps every prompt with its birth and its rewards, and knows nothing of the condition by which the machine accepts:
whether a group may overtake others is found by looking for a place for each of them (`oracle.assignment`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollpacker.core.commands import (
    Abort,
    AcceptGroup,
    BeginRound,
    Command,
    DeferPrompts,
    DrawPrompts,
    DropPrompt,
    EndRound,
    EndRun,
    Evict,
    FailRun,
    Launch,
    LendEngines,
    MeasureProgress,
    RoundKind,
    ScoreResponse,
    UseDraftLengths,
    UseParallelism,
)
from rollpacker.core.events import (
    DraftsMeasured,
    EngineJoined,
    EngineLost,
    EngineUpdated,
    Event,
    PolicyUpdated,
    PromptsDrawn,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    RoundMeasured,
    StepStarted,
)
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, is_held_out
from rollpacker.core.settings import SchedulerSettings
from tests.fuzz.oracle import quotas
from tests.fuzz.oracle.assignment import has_place_for_all
from tests.fuzz.oracle.budget import BudgetModel
from tests.fuzz.oracle.drafting import DraftModel
from tests.fuzz.oracle.engines import EngineModel
from tests.fuzz.oracle.evaluating import EvaluationModel
from tests.fuzz.oracle.streaming import StreamModel


@dataclass(slots=True)
class Admitted:
    """A prompt that is neither accepted nor dropped."""

    prompt: PromptId
    birth: int
    number: int
    """Of its admission."""
    finished: set[int] = field(default_factory=set)
    rewards: dict[int, float] = field(default_factory=dict)
    """Of each sample that has one."""
    oldest: int | None = None
    """Policy version of a token that it has."""


class AsynchronousModel:
    """Notes every fact and every command, and asserts."""

    def __init__(self, settings: SchedulerSettings) -> None:
        assert settings.asynchronous is not None
        self.settings, self.rules = settings, settings.asynchronous
        self.batch = settings.num_prompts
        self.ahead = math.floor(self.rules.lookahead * self.batch)
        self.engines = EngineModel()
        self.evaluation = EvaluationModel(settings.evaluation, self.engines)
        self.budget = BudgetModel(settings.reward_budget)
        self.drafts = DraftModel(settings.speculative_decoding)
        self.stream = StreamModel(settings.stream, self.engines)
        self.trained: list[PromptId] = []
        self.dropped: list[PromptId] = []
        self.to_replace: Counter[Domain] = Counter()
        """Dropped prompts of each domain for which none has been asked."""
        self.has_ended = False
        self.has_given_up = False
        # data
        self.domain_of: dict[PromptId, Domain] = {}
        self.awaited: dict[Domain, int] = {}
        self.drawn: dict[Domain, list[PromptId]] = {}
        self.ended_domains: set[Domain] = set()
        # groups
        self.live: dict[PromptId, Admitted] = {}
        """In the order of admission."""
        self.num_admitted = 0
        """Without those that were dropped."""
        self.next_number = 0
        self.num_wanted = 0
        """So many groups are to be admitted by now."""
        # steps
        self.step = -1
        self.version = -1
        self.step_of_version: dict[int, int] = {}
        """The first step in which engines held it."""
        self.is_preparing = False
        """A step has started, and its round has not begun."""
        self.is_suspended = False
        self.is_kept = False
        """Engines get the next policy with requests in flight."""
        self.newest_version = -1
        """That an engine may hold."""
        self.round: BeginRound | None = None
        self.num_places = 0
        """Of the round's batch, free ones."""
        self.accepted: list[Admitted] = []
        """Into the batch of the round."""
        self.num_dropped = 0
        """Since the step started."""
        self.to_launch: list[RequestId] = []
        """By the event that is noted."""

    # What is late

    def is_late(self, event: Event) -> bool:
        """Whether a fact may change nothing."""
        match event:
            case ResponseFinished() | RewardComputed() | ResponseEvicted() | ResponseAborted():
                return not is_held_out(event.request) and self._is_late_about_request(event)
            case EngineLost(engine=engine) | EngineUpdated(engine=engine):
                return engine not in self.engines.loads
            case DraftsMeasured():
                return self.drafts.is_late(event)
            case RoundMeasured():
                return not self.drafts.is_measurable
            case _:
                return False

    def _is_late_about_request(
        self, event: ResponseFinished | RewardComputed | ResponseEvicted | ResponseAborted
    ) -> bool:
        request, group = event.request, self.live.get(event.request.prompt)
        match event:
            case RewardComputed():
                return group is None or request.sample in group.rewards
            case ResponseFinished(engine=engine):
                return group is None or request.sample in group.finished or self.engines.holders.get(request) != engine
            case ResponseEvicted(engine=engine):
                return self.engines.holders.get(request) != engine
            case ResponseAborted():
                return True

    def is_answer(self, event: Event) -> bool:
        """Whether an engine gives back what it was told to evict: late perhaps, but it was waited for."""
        is_of_engine = isinstance(event, ResponseFinished | ResponseAborted | ResponseEvicted)
        return is_of_engine and (event.engine, event.request) in self.engines.leaving

    # Facts

    def note(self, event: Event, commands: tuple[Command, ...], waiting: Sequence[RequestId] = ()) -> None:
        """Note a fact, what it led to, and what waits for an engine from now on."""
        commands = self.evaluation.take(event, commands)
        if self.evaluation.is_of_held_out(event):
            assert commands == (), "a held-out response moved training"
            return
        if isinstance(event, RewardComputed):
            self.budget.note(event)
        is_late = self.is_late(event)
        if isinstance(event, ResponseFinished | ResponseAborted | ResponseEvicted):
            self.engines.leaving.discard((event.engine, event.request))
        if is_late:
            assert commands == (), f"a late fact had consequences: {event} -> {commands}"
            return
        self.to_launch = []
        may_draw = self._note_news(event, commands)
        for command in commands:
            self._note_command(command)
            if isinstance(command, BeginRound):
                self.drafts.check_order(commands, None)
            may_draw = may_draw or isinstance(command, DropPrompt)
        self._check_orders(event, commands)
        self._check_launches(commands, [each for each in waiting if not is_held_out(each)])
        self.stream.check_groups(self.round.round if self.round else None, commands)
        self._check_draws(commands, may_draw=may_draw)
        self._check_step()

    def _note_news(self, event: Event, commands: tuple[Command, ...]) -> bool:  # noqa: C901 one case per fact
        """Note a fact that is not late; gives whether prompts may be drawn for it."""
        match event:
            case EngineJoined() | EngineLost() | ResponseEvicted():
                self.engines.waiting += self.engines.note(event)
                if not self.is_suspended:
                    self.to_launch, self.engines.waiting = self.engines.waiting, []
            case EngineUpdated(engine=engine, policy_version=version):
                assert self.is_kept or not self.engines.loads[engine], "an engine got new weights while it generated"
                self.engines.versions[engine] = version
            case PolicyUpdated():
                self._suspend(event, commands)
            case StepStarted():
                self._start_step(event)
                return True
            case PromptsDrawn():
                self._note_draw(event)
                return True
            case ResponseFinished():
                self._note_finish(event)
            case RewardComputed(request=request, reward=reward):
                assert request.sample in self.live[request.prompt].finished
                self.live[request.prompt].rewards[request.sample] = reward
            case DraftsMeasured():
                self.drafts.note(event)
            case RoundMeasured():
                self.drafts.end_measurement()
            case _:
                pass
        return False

    def _suspend(self, event: PolicyUpdated, commands: tuple[Command, ...]) -> None:
        assert not self.is_suspended, "engines are suspended twice"
        assert self.round is None, "a policy was updated by a batch that was not full"
        assert not self.is_preparing, "a policy was updated after the next step had started"
        assert event.step == self.step, "a policy was updated by another step"
        self.is_suspended = True
        evaluation = self.settings.evaluation
        is_evaluated = evaluation is not None and (event.step + 1) % evaluation.every_steps == 0
        self.is_kept = self.rules.interrupt == "keep" and not (event.empties_engines or is_evaluated)
        if self.is_kept:
            assert commands == (), "something is taken from engines that keep what they have"
            self.newest_version = event.policy_version
            self.step_of_version.setdefault(event.policy_version, event.step + 1)
            return
        held = [(engine, request) for engine in self.engines.loads for request in self.engines.held_by(engine)]
        assert [(each.engine, each.request) for each in commands if isinstance(each, Evict)] == held, (
            "not exactly what was in flight is suspended"
        )
        self.engines.leaving.update(held)
        self.engines.fallen.update(engine for engine, _ in held)

    def _start_step(self, event: StepStarted) -> None:
        assert event.step == self.step + (not self.has_ended), "a step was left out"
        self.has_ended = False  # a run that ended is resumed during its last evaluation: the step ends it again
        assert self.round is None, "a step started while another one was under way"
        assert set(self.engines.versions.values()) <= {event.policy_version}, "a step started with another policy"
        assert not (self.is_suspended and self.engines.leaving), "a step started before every engine was empty"
        self.step, self.version, self.is_preparing = event.step, event.policy_version, True
        self.newest_version = event.policy_version
        self.step_of_version.setdefault(event.policy_version, event.step)
        self.accepted, self.num_dropped = [], 0
        most = self.rules.num_steps * self.batch
        self.num_wanted = max(self.num_admitted, min((event.step + 1) * self.batch + self.ahead, most))
        if self.is_suspended:
            numbers = {prompt: group.number for prompt, group in self.live.items()}
            self.to_launch = sorted(self.engines.waiting, key=lambda each: (numbers[each.prompt], each.sample))
            self.engines.waiting = []
        self.is_suspended = self.is_kept = False

    def _note_draw(self, event: PromptsDrawn) -> None:
        asked = self.awaited.pop(event.domain)
        assert len(event.prompts) <= asked
        assert not self.domain_of.keys() & event.prompts, "a prompt was drawn twice"
        self.drawn.setdefault(event.domain, []).extend(event.prompts)
        self.domain_of.update(dict.fromkeys(event.prompts, event.domain))
        if event.is_exhausted:
            self.ended_domains.add(event.domain)
        if not (self.awaited or self.is_preparing):
            self._admit()

    def _note_finish(self, event: ResponseFinished) -> None:
        group = self.live[event.request.prompt]
        versions = [span.policy_version for span in event.spans]
        steps = [self.step_of_version[version] for version in versions]
        assert versions == sorted(set(versions)), "spans are not of one version after the other"
        assert min(steps) >= group.birth, "a token is older than its group"
        group.finished.add(event.request.sample)
        group.oldest = min(versions) if group.oldest is None else min(group.oldest, *versions)
        self.stream.lengths.append(event.num_tokens)
        self.engines.release(event.request)

    @property
    def unscored(self) -> set[tuple[PromptId, int]]:
        """Prompt and sample of what has finished and has no reward."""
        return {
            (prompt, sample) for prompt, group in self.live.items() for sample in group.finished - group.rewards.keys()
        }

    # Admission

    @property
    def has_data(self) -> bool:
        """Whether some domain may still give prompts."""
        return len(self.ended_domains) < len(self.settings.domain_weights)

    @property
    def num_lacking(self) -> int:
        return self.num_wanted - self.num_admitted - sum(map(len, self.drawn.values()))

    def _admit(self) -> list[PromptId]:
        """Admit what was drawn; each prompt by the ledger of all that were."""
        columns = [self.drawn.get(domain, []) for domain, _ in self.settings.domain_weights]
        self.drawn = {}
        prompts = quotas.evenly_mixed(columns)
        for prompt in prompts:
            most = min(self.step + 1, self.rules.num_steps) * self.batch + self.ahead
            assert self.num_admitted < min(most, self.rules.num_steps * self.batch), "a prompt was admitted too early"
            assert prompt not in self.live
            self.live[prompt] = Admitted(prompt, self.step, self.next_number)
            self.num_admitted += 1
            self.next_number += 1
            self.to_launch += [RequestId(self.step, prompt, each) for each in range(self.settings.num_responses)]
        return prompts

    def _check_draws(self, commands: tuple[Command, ...], *, may_draw: bool) -> None:
        """What lacks is asked for, by weight of the domains that have not ended, and nothing else."""
        draws = {each.domain: each.num_prompts for each in commands if isinstance(each, DrawPrompts)}
        is_over = self.has_ended or self.has_given_up
        wanted: dict[Domain, int] = {}
        if may_draw and not (self.awaited or is_over) and self.has_data and self.num_lacking > 0:
            weights = {each: weight for each, weight in self.settings.domain_weights if each not in self.ended_domains}
            replaced = {each: self.to_replace[each] for each in weights}
            shares = quotas.shares(self.num_lacking - sum(replaced.values()), weights)
            wanted = {each: count + replaced[each] for each, count in shares.items() if count + replaced[each]}
        if may_draw and not self.awaited:
            self.to_replace.clear()
        assert draws == wanted, "other prompts were asked for than are to be admitted"
        self.awaited |= draws
        if not is_over and not self.awaited:
            assert not (self.num_lacking > 0 and self.has_data), "fewer prompts are admitted than may be"
            assert not self.is_preparing, "a round did not begin whose prompts are there"
            assert not self.drawn, "a prompt was drawn and not launched"

    # Commands

    def _note_command(self, command: Command) -> None:
        match command:
            case BeginRound():
                self._begin(command)
            case AcceptGroup():
                self._accept(command)
            case DropPrompt():
                self._drop(command)
            case EndRound():
                self._end(command)
            case EndRun():
                self._end_run()
            case FailRun():
                self._give_up(command)
            case Abort() | DeferPrompts() | LendEngines() | MeasureProgress() | UseParallelism():
                raise AssertionError(f"an asynchronous run has no {command}")
            case _:
                pass  # by the checks that follow, of all at once

    def _begin(self, begun: BeginRound) -> None:
        assert self.round is None
        assert self.is_preparing, "a round began for no step"
        assert not self.awaited, "a round began before its prompts were there"
        assert self.num_lacking <= 0 or not self.has_data, "a round began with too few prompts"
        admitted = self._admit()
        assert begun.kind is RoundKind.ASYNC
        assert begun.round == begun.step == self.step
        assert begun.num_prompts_launched == len(admitted), "a round launches another number of prompts"
        assert begun.num_prompts_needed == min(self.batch, len(self.live)) > 0, "a batch has another size"
        assert begun.num_responses_launched == begun.num_responses_needed == self.settings.num_responses
        self.round, self.is_preparing = begun, False
        self.num_places = begun.num_prompts_needed
        self.stream.begin_round()

    def _is_complete(self, group: Admitted) -> bool:
        return len(group.rewards) == self.settings.num_responses

    def _can_take(self, group: Admitted) -> bool:
        """Whether a group may have a place of the batch, so that all others still find one in time."""
        if self.rules.order == "fifo":
            return group is next(iter(self.live.values()))
        others = [each.birth for each in self.live.values() if each is not group]
        return self.num_places > 0 and self._find_places(others, self.num_places - 1)

    def _find_places(self, births: Sequence[int], num_free: int) -> bool:
        bound = self.rules.max_staleness
        return has_place_for_all(births, step=self.step, num_free=num_free, batch=self.batch, bound=bound)

    def _accept(self, command: AcceptGroup) -> None:
        assert self.round is not None
        assert self.num_places, "a batch has more groups than places"
        assert command.prompt in self.live, "a group was accepted twice, or was never admitted"
        group = self.live[command.prompt]
        assert command.round == group.birth, "a group is looked for where it was not admitted"
        assert command.samples == tuple(range(self.settings.num_responses)), "not exactly a group"
        assert self._is_complete(group), "a sample has no reward"
        if self.settings.dynamic_sampling:
            assert len(set(group.rewards.values())) > 1, "a prompt without variance is trained"
        assert self._can_take(group), "a group overtook one that is due, or its turn"
        for other in self.live.values():
            is_passed = other.number < group.number and self._is_complete(other)
            assert not (is_passed and self._can_take(other)), "a group overtook one that could be accepted"
        assert self.step - group.birth <= self.rules.max_staleness, "a group is trained too late"
        assert group.oldest is not None
        age = self.step - self.step_of_version[group.oldest]
        assert age <= self.rules.max_staleness, "a trained token is older than the bound"
        del self.live[command.prompt]
        self.num_places -= 1
        self.accepted.append(group)

    def _drop(self, command: DropPrompt) -> None:
        assert self.settings.dynamic_sampling, "a prompt was dropped without dynamic sampling"
        group = self.live.pop(command.prompt)
        assert command.round == group.birth
        assert self._is_complete(group), "dropped before its rewards were known"
        assert len(set(group.rewards.values())) == 1, "a prompt with variance was dropped"
        self.dropped.append(command.prompt)
        self.to_replace[self.domain_of[command.prompt]] += 1
        self.num_admitted -= 1
        self.num_dropped += 1

    def _end(self, command: EndRound) -> None:
        assert self.round is not None
        assert command.round == command.step == self.step
        assert not self.num_places or (not self.live and self._is_used_up()), "a batch came short"
        assert command.long_queue_length == 0
        in_order = sorted(self.accepted, key=lambda group: group.number)
        assert command.prompts == tuple(group.prompt for group in in_order), "another batch than was accepted"
        assert command.prompts, "a round ended without a batch"
        if self.rules.order == "fifo":
            assert all(group.number > in_order[-1].number for group in self.live.values()), "a prompt was overtaken"
        self.trained += command.prompts
        self.round, self.num_places = None, 0
        self.drafts.end_round()
        self.check_nothing_lost()

    def _end_run(self) -> None:
        assert self._is_used_up(), "the run ended while there were prompts"
        assert not self.live, "the run ended, and some prompts were never trained"
        assert self.is_preparing or (self.round and not self.accepted), "the run ended, and a batch was never trained"
        self.round, self.is_preparing = None, False
        self.check_nothing_lost()
        self.has_ended = True

    def _is_used_up(self) -> bool:
        """Whether nothing more will be admitted."""
        return not (self.has_data or self.awaited or any(self.drawn.values()))

    def _give_up(self, command: FailRun) -> None:
        assert self._must_give_up(), "the run gave up too early"
        assert command.round == self.step
        assert command.num_prompts_launched == self.batch + self.num_dropped
        assert command.num_prompts_dropped == self.num_dropped
        assert command.num_prompts_needed == self.num_places
        self.has_given_up = True

    def _must_give_up(self) -> bool:
        sampling = self.settings.dynamic_sampling
        return (
            sampling is not None
            and self.round is not None
            and self.has_data
            and self.batch + self.num_dropped > math.floor(sampling.max_launch_factor * self.batch)
        )

    def check_nothing_lost(self) -> None:
        """Every prompt that was drawn is trained, dropped or live, once, or still to be launched."""
        kept = Counter(self.trained) + Counter(self.dropped) + Counter(self.live.keys())
        for drawn in self.drawn.values():
            kept += Counter(drawn)
        assert kept == Counter(self.domain_of.keys()), "a prompt was lost, or came twice"

    # After each event

    def _check_orders(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Each response is scored at once, and once; engines are told to evict when they are suspended alone."""
        scores = [command for command in commands if isinstance(command, ScoreResponse)]
        if isinstance(event, ResponseFinished):
            limits = self.budget.limits(event.request.prompt.key)
            assert scores == [ScoreResponse(request=event.request, case_limits_s=limits)], "scored late, or otherwise"
        else:
            assert not scores, "a response is scored twice"
        assert isinstance(event, PolicyUpdated) or not any(isinstance(command, Evict) for command in commands)
        is_begin = any(isinstance(command, BeginRound) for command in commands)
        assert is_begin or not any(isinstance(command, UseDraftLengths) for command in commands)

    def _check_launches(self, commands: tuple[Command, ...], waiting: Sequence[RequestId]) -> None:
        """Exactly what is due is launched, in order; nothing while engines are suspended or none is there."""
        launches = [command for command in commands if isinstance(command, Launch)]
        if self.is_suspended:
            assert not launches, "something was launched while engines are suspended"
        if self.is_suspended or not self.engines.loads:
            self.engines.waiting += self.to_launch
            self.to_launch = []
        assert [command.request for command in launches] == self.to_launch, "not exactly what was due was launched"
        for command in launches:
            self._check_holder(command.engine)
            self.engines.launch(command.request, command.engine)
        if self.is_suspended:
            assert sorted(waiting) == sorted(self.engines.waiting), "other requests wait than were suspended"
        else:
            assert list(waiting) == self.engines.waiting, "other requests wait than have no engine"

    def _check_holder(self, engine: EngineId) -> None:
        assert self.engines.versions[engine] == self.version, "a request was launched on an engine of another policy"

    def _check_step(self) -> None:
        """No group is or will be late, none that could be trained waits, and each is where it belongs."""
        if self.has_ended or self.has_given_up:
            return
        assert not self._must_give_up(), "the run did not give up"
        num_free = self.batch if self.is_preparing else self.num_places
        births = [group.birth for group in self.live.values()]
        assert self._find_places(births, num_free), "a group cannot be trained in time"
        if self.settings.dynamic_sampling:
            complete = [group for group in self.live.values() if self._is_complete(group)]
            assert all(len(set(group.rewards.values())) > 1 for group in complete), "a prompt was not dropped"
        if self.round is None:
            return
        is_full = not self.num_places or (not self.live and self._is_used_up())
        assert not is_full, "a round did not end with its batch"
        for group in self.live.values():
            assert not (self._is_complete(group) and self._can_take(group)), "a group waits that could be trained"
