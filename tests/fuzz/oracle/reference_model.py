"""A reference model of the scheduler: it sees facts and commands from outside, and asserts what must hold.

It knows the rules of the paper and none of the machines' state. It keeps its own copy of the long queue, of what
runs where and of what was trained, and fails an assertion when a command contradicts them. What the machines beside the
batching have to decide it works out by other means, slowly and from scratch: from all subsets of engines, from all
rounds so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
    FailWithoutEngines,
    Launch,
    LendEngines,
    MeasureProgress,
    RoundKind,
    ScoreResponse,
    StreamGroups,
    SwitchEngines,
    UseDraftLengths,
    UseParallelism,
)
from rollpacker.core.events import (
    DraftsMeasured,
    EngineJoined,
    EngineLost,
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
    SlotsOpened,
    StepStarted,
)
from rollpacker.core.ids import Domain, PromptId, RequestId, is_held_out
from rollpacker.core.settings import SchedulerSettings
from tests.fuzz.oracle import quotas
from tests.fuzz.oracle.budget import BudgetModel
from tests.fuzz.oracle.drafting import DraftModel
from tests.fuzz.oracle.engines import EngineModel
from tests.fuzz.oracle.escalating import EscalationModel
from tests.fuzz.oracle.evaluating import EvaluationModel
from tests.fuzz.oracle.history import HistoryModel
from tests.fuzz.oracle.planning import PlannerModel
from tests.fuzz.oracle.sampling import SamplingModel
from tests.fuzz.oracle.streaming import StreamModel


class ReferenceModel:
    """Notes every fact and every command, and asserts."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.is_tail = settings.batching == "tail"
        self.quotas = quotas.shares(settings.num_prompts, dict(settings.domain_weights))
        self.launches = quotas.launches(self.quotas, settings.eta_prompts) if self.is_tail else self.quotas
        self.domain_of: dict[PromptId, Domain] = {}
        self.trained: list[PromptId] = []
        self.dropped: list[PromptId] = []
        self.long_queue: list[PromptId] = []
        self.kinds: list[RoundKind] = []
        self.has_ended = False
        self.has_given_up = False
        self.engines = EngineModel()
        self.evaluation = EvaluationModel(settings.evaluation, self.engines)
        self.budget = BudgetModel(settings.reward_budget)
        self.planner = PlannerModel(settings.parallelism)
        self.drafts = DraftModel(settings.speculative_decoding)
        self.stream = StreamModel(settings.stream, self.engines)
        self.escalation = EscalationModel(settings.parallelism, self.engines)
        self.sampling = SamplingModel(self, settings.dynamic_sampling) if settings.dynamic_sampling else None
        self.history = HistoryModel(self, settings.length_history) if settings.length_history else None
        self._is_measured = False
        """The last finish made a measurement due."""
        # the draw
        self.awaited: dict[Domain, int] = {}
        self.drawn: dict[Domain, list[PromptId]] = {}
        self.expected_draws: dict[Domain, int] = {}
        """Where that is known: what is asked for after the first prompts of a round."""
        self.ended_domains: set[Domain] = set()
        # the round
        self.step = -1
        self.version = -1
        self.round: BeginRound | None = None
        self.expected_prompts: list[PromptId] = []
        self.launched: dict[PromptId, list[int]] = {}
        self.decided: set[PromptId] = set()
        self.placed: set[PromptId] = set()
        """Prompts that have won, whether or not their rewards are known."""
        self.accepted: set[PromptId] = set()
        self.finished: set[RequestId] = set()
        self.scored: set[RequestId] = set()
        self.rewards: dict[PromptId, list[float]] = {}
        """Of the round, in the order in which they counted."""
        self.to_score: set[RequestId] = set()

    # What is late

    def is_late(self, event: Event) -> bool:
        """Whether a fact may change nothing."""
        match event:
            case ResponseFinished() | RewardComputed() | ResponseEvicted() | ResponseAborted():
                return self._is_late_about_request(event)
            case EngineLost(engine=engine) | EngineRetired(engine=engine) | EngineUpdated(engine=engine):
                return engine not in self.engines.loads
            case ProgressMeasured(round=number):
                is_measuring = self.stream.is_measuring or self.escalation.is_measuring
                return not is_measuring or self.round is None or number < self.round.round
            case DraftsMeasured():
                return self.drafts.is_late(event)
            case RoundMeasured():
                return not (self.planner.is_measurable or self.drafts.is_measurable)
            case _:
                return False

    def _is_late_about_request(
        self, event: ResponseFinished | RewardComputed | ResponseEvicted | ResponseAborted
    ) -> bool:
        request = event.request
        match event:
            case ResponseFinished(engine=engine):
                is_told = self._is_over(request) or request.prompt in self.placed or request in self.finished
                return is_told or request in self.engines.waiting or self.engines.holders.get(request, engine) != engine
            case RewardComputed():
                return self._is_over(request) or request in self.scored
            case ResponseEvicted(engine=engine):
                return self.engines.holders.get(request) != engine
            case ResponseAborted():
                return True

    def is_answer(self, event: Event) -> bool:
        """Whether an engine gives back what it was told to stop or to evict: late perhaps, but it was waited for."""
        is_of_engine = isinstance(event, ResponseFinished | ResponseAborted | ResponseEvicted)
        return is_of_engine and (event.engine, event.request) in self.engines.leaving

    def _is_over(self, request: RequestId) -> bool:
        return self.round is None or request.round < self.round.round or request.prompt in self.decided

    # Facts

    def note(self, event: Event, commands: tuple[Command, ...], waiting: Sequence[RequestId] = ()) -> None:
        """Note a fact and what it led to.

        Args:
            event: The fact.
            commands: What the scheduler made of it.
            waiting: What waits for an engine from now on: of requests that nobody could be told to launch, with
                dynamic sampling there is no other trace.
        """
        commands = self.evaluation.take(event, commands)
        if self.evaluation.is_of_held_out(event):
            assert all(isinstance(command, StreamGroups) for command in commands), "a held-out response moved training"
            self.stream.check_groups(self.round.round if self.round else None, commands)
        else:
            self._note_of_training(event, commands, [each for each in waiting if not is_held_out(each)])
        self.evaluation.check_rooms()

    def _note_of_training(self, event: Event, commands: tuple[Command, ...], waiting: Sequence[RequestId]) -> None:
        due: list[RequestId] = []
        self._learn(event)
        if self.is_late(event):
            is_answer = self.is_answer(event)
            emptied = StreamGroups | SwitchEngines | UseDraftLengths | MeasureProgress
            # an engine that is lost before it has joined may have been the last one to come
            allowed = FailWithoutEngines if isinstance(event, EngineLost) else emptied if is_answer else ()
            beside = tuple(command for command in commands if not isinstance(command, allowed))
            assert beside == (), f"a late fact had consequences: {event} -> {commands}"
        elif isinstance(event, EngineJoined | EngineLost | EngineRetired | EnginesSwitched | ResponseEvicted):
            if isinstance(event, EnginesSwitched):
                self.escalation.end()
            self.stream.give_back(event)
            self.engines.waiting += self.engines.note(event)
            if self.engines.free():
                due, self.engines.waiting = self.engines.waiting, []
            relaunched = [command.request for command in commands if isinstance(command, Launch)]
            assert relaunched == due, "not exactly what was in flight was launched again"
        else:
            self._note_news(event, commands)
        self._note_engine(event)
        for command in commands:
            if self.sampling and isinstance(command, FailRun):  # it counts what nobody could be told to launch
                self.sampling.note_waiting(waiting)
            self._note_command(command, is_relaunch=bool(due))
        if any(isinstance(command, BeginRound) for command in commands):
            self.drafts.check_order(commands, self.planner.degree if self.settings.parallelism else None)
        if self.sampling:
            self.sampling.note_waiting(waiting)
            self.sampling.check(event)
        elif any(isinstance(command, BeginRound) for command in commands):
            self._check_begun()
        self.stream.check_groups(self.round.round if self.round else None, commands)
        self._check_asked(event, commands)
        self.escalation.check_switch(commands)
        self._check_score_orders(event)
        self.stream.check_evictions(commands)

    def _check_asked(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Progress is measured when a test of lending or of larger engines is due, and again after a lending."""
        is_due = any(isinstance(command, StreamGroups) and command.engines for command in commands)
        is_due = is_due and self.escalation.is_due()
        assert self._is_measured or any(isinstance(command, MeasureProgress) for command in commands) == is_due, (
            f"measured too early or late: {event}"
        )
        self._is_measured = False

    def _learn(self, event: Event) -> None:
        """Note what is learned from facts, late or not."""
        if isinstance(event, RewardComputed):
            self.budget.note(event)
        if self.history:
            self.history.note(event)

    def _note_engine(self, event: Event) -> None:
        """Note what an engine gave back, late or not."""
        if isinstance(event, ResponseFinished | ResponseAborted | ResponseEvicted):
            self.engines.leaving.discard((event.engine, event.request))

    def _note_news(self, event: Event, commands: tuple[Command, ...]) -> None:  # noqa: C901 one case per fact
        match event:
            case EngineUpdated(engine=engine, policy_version=version):
                assert not self.engines.loads[engine], "an engine got new weights while it generated"
                self.engines.versions[engine] = version
            case StepStarted(step=step, policy_version=version):
                assert set(self.engines.versions.values()) <= {version}, "a step started with another policy version"
                assert not self.engines.retiring, "a step started on engines of two degrees"
                self.step, self.version = step, version
                self.has_ended = False  # a run that ended is resumed during its last evaluation: the step ends it again
                self.engines.lent.clear()
                self.planner.is_measurable = False
            case PromptsDrawn():
                self._note_draw(event)
            case ResponseFinished():
                self._note_finish(event, commands)
            case RewardComputed(request=request, reward=reward):
                self.scored.add(request)
                self.rewards.setdefault(request.prompt, []).append(reward)
            case ProgressMeasured():
                self._check_progress(event, commands)
            case SlotsOpened():
                self.escalation.open(self.planner.degree)
            case DraftsMeasured():
                self.drafts.note(event)
            case RoundMeasured():
                self.drafts.end_measurement()
                was_filled = self.evaluation.has_filled(event.round)
                if self.planner.is_measurable:
                    self.planner.check(
                        event,
                        commands,
                        self.kinds,
                        self.next_kind(),
                        was_filled=was_filled,
                        in_use=self.escalation.degree,
                    )
                else:
                    assert commands == (), "nobody plans the next round"
            case _:
                pass

    def _check_progress(self, event: ProgressMeasured, commands: tuple[Command, ...]) -> None:
        """Engines are lent first, and changed if none are being lent; while they change nothing is."""
        if self.escalation.is_under_way:
            assert commands == (), "engines are lent or changed that are changing"
            return
        self.stream.check_lending(event, commands)
        is_lent = any(isinstance(command, LendEngines) for command in commands)
        self.escalation.check_decision(event, commands, is_lending=is_lent or self.stream.is_lending)

    def _note_finish(self, event: ResponseFinished, commands: tuple[Command, ...]) -> None:
        assert {span.policy_version for span in event.spans} == {self.version}, (
            "a finish of another policy version was taken"
        )
        self.finished.add(event.request)
        self.stream.lengths.append(event.num_tokens)
        self.engines.release(event.request)
        prompt = event.request.prompt
        num_finished = sum(request.prompt == prompt for request in self.finished)
        if not self.settings.overlap_rewards and num_finished == self.settings.num_responses:
            self._place(prompt)
        assert self.round is not None
        num_dropped = len(self.decided.intersection(self.dropped))  # another prompt takes the place of each
        num_launched = (self.round.num_prompts_launched + num_dropped) * self.round.num_responses_launched
        self._is_measured = self.stream.is_due(len(self.finished), num_launched)
        self._is_measured |= self.escalation.is_due_after(event.num_tokens)
        is_asked = any(isinstance(command, MeasureProgress) for command in commands)
        assert is_asked >= self._is_measured, "not measured in time"

    def _note_draw(self, event: PromptsDrawn) -> None:
        asked = self.awaited.pop(event.domain)
        assert len(event.prompts) <= asked
        self.drawn.setdefault(event.domain, []).extend(event.prompts)
        self.domain_of.update(dict.fromkeys(event.prompts, event.domain))
        if event.is_exhausted:
            self.ended_domains.add(event.domain)
        if self.awaited or self.sampling:
            return
        if self.is_tail and not self._is_filled():
            self.long_queue += self._take_drawn()

    def _is_filled(self) -> bool:
        """Whether a short round has all its prompts, or is to get more."""
        if self.history:
            self.expected_draws = self.history.wants_more()
            return bool(self.expected_draws) or self.history.is_filled()
        return {domain: len(prompts) for domain, prompts in self.drawn.items() if prompts} == self.launches

    def _take_drawn(self) -> list[PromptId]:
        columns = [self.drawn.get(domain, []) for domain, _ in self.settings.domain_weights]
        self.drawn = {}
        return quotas.evenly_mixed(columns)

    # Commands

    def _note_command(self, command: Command, *, is_relaunch: bool) -> None:  # noqa: C901 one case per command
        match command:
            case Launch() | Abort() | Evict() | ScoreResponse():
                self._note_request_command(command, is_relaunch=is_relaunch)
            case DrawPrompts(domain=domain, num_prompts=num_prompts):
                assert self.round is None or self.sampling
                assert num_prompts > 0
                assert domain not in self.awaited
                assert domain not in self.ended_domains, "a domain that had ended was asked"
                wanted = self.expected_draws.pop(domain, num_prompts)
                assert num_prompts == wanted, "another number of prompts was drawn than race and are deferred"
                self.awaited[domain] = num_prompts
            case BeginRound():
                self._begin(command)
            case AcceptGroup():
                self._accept(command)
            case DeferPrompts():
                assert self.history, "a prompt was deferred by its history, and there is none"
                self.history.defer(command)
            case DropPrompt():
                assert self.sampling, "a prompt was dropped without dynamic sampling"
                self.sampling.drop(command)
            case EndRound():
                self._end(command)
            case FailRun():
                assert self.sampling
                self.sampling.give_up(command)
            case EndRun():
                self._end_run()
            case MeasureProgress(round=number):
                assert self.round is not None
                assert number == self.round.round
            case LendEngines():
                assert self.round is not None
                assert command.round == self.round.round
                self.stream.lend(command)
            case UseParallelism(tensor_parallel=degree):
                assert self.round is None
                self.planner.degree = self.escalation.degree = degree
                self.engines.retiring = set(self.engines.loads)

    def _note_request_command(self, command: Launch | Abort | Evict | ScoreResponse, *, is_relaunch: bool) -> None:
        request = command.request
        match command:
            case Launch(engine=engine):
                assert self.round is not None
                assert request.round == self.round.round, "a request carries another round"
                assert request.prompt not in self.decided | self.placed
                self.engines.launch(request, engine)
                if not is_relaunch:
                    self.note_launch(request)
            case Abort(engine=engine):
                assert self.engines.holders.get(request) == engine
                assert request.prompt in self.decided | self.placed, "a response that was still needed was aborted"
                self.engines.release(request)
                self.engines.leaving.add((engine, request))
            case Evict(engine=engine):
                assert self.engines.holders.get(request) == engine
                assert engine in self.engines.lent | self.engines.retiring, "a request leaves an engine that stays"
                self.engines.leaving.add((engine, request))
            case ScoreResponse(case_limits_s=limits):
                assert request in self.finished
                assert request not in self.to_score
                assert limits == self.budget.limits(request.prompt.key), "other limits than the runs so far give"
                self.to_score.add(request)

    def _begin(self, begun: BeginRound) -> None:
        assert self.round is None
        assert begun.round == begun.step == self.step, "a round number came twice"
        num_prompts = self.settings.num_prompts
        is_drained = bool(self.ended_domains) and not self.drawn
        if self.sampling:
            kind = self.sampling.shape_round(begun)
        elif not self.is_tail:
            kind = RoundKind.PLAIN
            self.expected_prompts = self._take_drawn()
            assert len(self.expected_prompts) <= num_prompts
        elif len(self.long_queue) >= num_prompts or is_drained:
            kind = RoundKind.LONG
            self.expected_prompts = self.long_queue[:num_prompts]
            self.long_queue = self.long_queue[num_prompts:]
        elif self.history:
            kind, self.expected_prompts = self.history.shape_round(self._take_drawn())
        else:
            kind = RoundKind.SHORT
            self.expected_prompts = self._take_drawn()
        assert begun.kind is kind, f"a {begun.kind} round began with {len(self.long_queue)} prompts still queued"
        if len(self.expected_prompts) < num_prompts and not self.sampling:
            assert len(self.ended_domains) == len(self.settings.domain_weights), (
                "a batch came short while data was left"
            )
        num_responses = self.settings.num_responses
        is_short = kind is RoundKind.SHORT
        if not self.sampling:
            assert begun.num_prompts_launched == len(self.expected_prompts), "too few or too many prompts"
            assert begun.num_prompts_needed == min(len(self.expected_prompts), num_prompts)
        assert begun.num_responses_needed == num_responses
        num_raced = (
            self.history.num_samples() if self.history else quotas.scaled(num_responses, self.settings.eta_responses)
        )
        assert begun.num_responses_launched == (num_raced if is_short else num_responses), (
            "a round without a race speculated, or a race did not"
        )
        self.kinds.append(kind)
        self.round = begun
        self.launched = {}
        self.decided, self.placed, self.accepted = set(), set(), set()
        self.stream.begin_round()
        self.escalation.begin_round(begun)
        self.finished, self.scored, self.to_score, self.rewards = set(), set(), set(), {}

    def _check_begun(self) -> None:
        """All of the round's launches came with its begin, or wait if there is no engine for them."""
        assert self.round is not None
        if not self.engines.free():
            assert not self.launched, "there is nobody to launch on"
            self.launched = {prompt: list(range(self.round.num_responses_launched)) for prompt in self.expected_prompts}
            self.engines.waiting = [
                RequestId(self.round.round, prompt, sample)
                for prompt, samples in self.launched.items()
                for sample in samples
            ]
        assert list(self.launched) == self.expected_prompts, "not the prompts whose turn it was"
        assert not self.expected_draws, "a round began before all its prompts were there"
        if self.history:
            self.history.check_deferred()
        samples = list(range(self.round.num_responses_launched))
        assert all(each == samples for each in self.launched.values())

    def _check_score_orders(self, event: Event) -> None:
        """Rewards are ordered at once; or without overlap when all places are taken, for those that took them."""
        if self.round is None:
            return
        if self.settings.overlap_rewards:
            if isinstance(event, ResponseFinished) and event.request in self.finished:
                assert event.request in self.to_score
        elif self.sampling:
            won = {request for request in self.finished if request.prompt in self.placed}
            assert self.to_score <= won | {request for request in self.scored if request.prompt in self.decided}
            if self.to_score - self.scored:
                assert not self.racing(), "a batch is scored while some of its places are open"
                assert won <= self.to_score, "not the whole batch is scored"
        else:
            is_open = len(self.placed) < self.round.num_prompts_needed
            winners = {request for request in self.finished if request.prompt in self.placed}
            assert self.to_score == (set() if is_open else winners), "other responses are scored than won"

    def _accept(self, command: AcceptGroup) -> None:
        assert self.round is not None
        assert command.round == self.round.round
        assert command.prompt in self.launched
        assert command.prompt not in self.decided
        assert list(command.samples) == sorted(set(command.samples))
        assert len(command.samples) == self.settings.num_responses, "not exactly a group"
        for sample in command.samples:
            assert RequestId(command.round, command.prompt, sample) in self.scored, (
                "a sample has no reward of this round"
            )
        if self.sampling:
            assert len(set(self.rewards[command.prompt])) > 1, "a prompt without variance is trained"
        if self.settings.overlap_rewards:
            self._place(command.prompt)
        assert command.prompt in self.placed, "a group was accepted that had not won"
        self.accepted.add(command.prompt)
        self.decided.add(command.prompt)

    def _place(self, prompt: PromptId) -> None:
        """Give a prompt its place; nobody waits any more for what is placed or decided."""
        assert self.round is not None
        self.placed.add(prompt)
        if self.round.kind is RoundKind.SHORT:
            self._shut_if_full(prompt)
        self.engines.forget_waiting(self.decided | self.placed)

    def _shut_if_full(self, prompt: PromptId) -> None:
        """Defer the prompts of a domain that get no place any more."""
        domain = self.domain_of[prompt]
        num_placed = sum(self.domain_of[placed] == domain for placed in self.placed)
        if self.sampling:
            self.sampling.places[domain] -= 1
            is_full = not self.sampling.places[domain]
            assert self.sampling.places[domain] >= 0, "a domain took more than its places"
        else:
            is_full = num_placed == self.quotas[domain]
            assert num_placed <= self.quotas[domain], "a domain took more than its quota"
        if is_full:
            losers = [racing for racing in self.racing() if self.domain_of[racing] == domain]
            self.long_queue += losers
            self.decided.update(losers)

    def _end(self, command: EndRound) -> None:
        assert self.round is not None
        assert command.round == self.round.round
        assert command.prompts == tuple(prompt for prompt in self.launched if prompt in self.accepted)
        num_missing = self.round.num_prompts_needed - len(command.prompts)
        is_used_up = self.sampling is not None and num_missing > 0 and self.sampling.is_used_up()
        assert num_missing == 0 or is_used_up, "a batch came short"
        assert command.prompts, "a round ended without a batch"
        assert self.decided == set(self.launched), "a prompt was lost"
        assert not self.engines.holders, "the round ended, and some of its requests still run"
        assert not self.engines.waiting, "the round ended, and some of its requests still wait"
        assert command.long_queue_length == len(self.long_queue), "the long queue has another length"
        if self.round.kind is RoundKind.SHORT and not (self.sampling and self.ended_domains):
            assert Counter(self.domain_of[prompt] for prompt in command.prompts) == Counter(self.quotas)
        self.trained += command.prompts
        self.round = None
        self.stream.is_measuring = False
        self.escalation.end_round()
        self.planner.end_round()
        self.drafts.end_round()
        self.check_nothing_lost()

    def _end_run(self) -> None:
        if self.sampling and self.round is not None:
            assert not self.accepted, "a run ended, and some of its last round was never trained"
            assert self.decided == set(self.launched), "a prompt was lost"
            self.round = None
        assert self.round is None
        assert not self.awaited
        assert not self.long_queue, "the run ended, and some prompts were never trained"
        assert len(self.ended_domains) == len(self.settings.domain_weights)
        self.check_nothing_lost()
        self.has_ended = True

    def check_nothing_lost(self) -> None:
        """Between rounds every prompt that was drawn is trained, dropped or queued, once, or still to be launched."""
        kept = Counter(self.trained) + Counter(self.long_queue) + Counter(self.dropped)
        for drawn in self.drawn.values():
            kept += Counter(drawn)
        assert kept == Counter(self.domain_of.keys())

    # For the models of the other machines

    def next_kind(self) -> RoundKind:
        if not self.is_tail:
            return RoundKind.PLAIN
        if self.ended_domains or len(self.long_queue) >= self.settings.num_prompts:
            return RoundKind.LONG
        return self.history.kind_without_queue() if self.history else RoundKind.SHORT

    def racing(self) -> list[PromptId]:
        return [prompt for prompt in self.launched if prompt not in self.decided | self.placed]

    def note_launch(self, request: RequestId) -> None:
        if self.sampling and request.prompt not in self.launched:
            self.sampling.take_up(request.prompt)
        self.launched.setdefault(request.prompt, []).append(request.sample)
