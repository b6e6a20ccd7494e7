"""What must be true of a scheduler, seen from outside: facts go in, commands come out, and these are the books.

The judge knows the rules of the paper and none of the machines' state. It keeps its own copy of the long queue, of what
runs where and of what was trained, and fails an assertion when a command contradicts them. What the machines beside the
batching have to decide it works out by other means, slowly and from scratch: from all subsets of engines, from all
rounds so far.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from rollpacker.core.commands import (
    Abort,
    AcceptGroup,
    BeginRound,
    Command,
    DrawPrompts,
    DropPrompt,
    EndRound,
    EndRun,
    Evict,
    GiveUp,
    Launch,
    LendEngines,
    MeasureProgress,
    RoundKind,
    ScoreResponse,
    StreamGroups,
    UseParallelism,
)
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    EngineRetired,
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
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId
from rollpacker.core.quotas import apportion, interleave, scale_up, with_speculation
from rollpacker.core.settings import SchedulerSettings, StreamSettings
from rollpacker.fuzz.planning import MeasuredRound, degree_after, pays


class Judge:
    """Notes every fact and every command, and asserts."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.is_tail = settings.batching == "tail"
        self.sampling = settings.dynamic_sampling
        self.quotas = apportion(settings.num_prompts, dict(settings.domain_weights))
        self.launches = with_speculation(self.quotas, settings.eta_prompts) if self.is_tail else self.quotas
        self.domain_of: dict[PromptId, Domain] = {}
        self.trained: list[PromptId] = []
        self.dropped: list[PromptId] = []
        self.long_queue: list[PromptId] = []
        self.kinds: list[RoundKind] = []
        self.has_ended = False
        self.has_given_up = False
        # engines
        self.loads: dict[EngineId, int] = {}
        self.holders: dict[RequestId, EngineId] = {}
        self.waiting: list[RequestId] = []
        """Requests in flight while no engine is free, in the order in which the next one gets them."""
        self.fallen: set[EngineId] = set()
        """Engines that requests were taken from: late facts of theirs may come."""
        self.gpus: dict[EngineId, tuple[int, ...]] = {}
        self.lent: set[EngineId] = set()
        self.retiring: set[EngineId] = set()
        # what the other machines go by
        self.anchors: dict[tuple[str, int], float] = {}
        self.lengths: list[int] = []
        self.measured: list[MeasuredRound] = []
        self.degree = settings.parallelism.initial if settings.parallelism else 0
        self.is_measurable = False
        self.is_measuring = False
        self.last_tested = Fraction(0)
        self.num_lendings = Counter[int]()
        """By round."""
        # the draw
        self.awaited: dict[Domain, int] = {}
        self.drawn: dict[Domain, list[PromptId]] = {}
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
        self.places: dict[Domain, int] = {}
        """Of a round with dynamic sampling, which are open."""
        self.to_score: set[RequestId] = set()

    # What is late

    def is_late(self, event: Event) -> bool:
        """Whether a fact may change nothing."""
        match event:
            case ResponseFinished() | RewardComputed() | ResponseEvicted() | ResponseAborted():
                return self._is_late_about_request(event)
            case EngineLost(engine=engine) | EngineRetired(engine=engine):
                return engine not in self.loads
            case ProgressMeasured(round=number):
                return not self.is_measuring or self.round is None or number < self.round.round
            case RoundMeasured():
                return not self.is_measurable
            case _:
                return False

    def _is_late_about_request(
        self, event: ResponseFinished | RewardComputed | ResponseEvicted | ResponseAborted
    ) -> bool:
        request = event.request
        match event:
            case ResponseFinished(engine=engine):
                is_told = self._is_over(request) or request.prompt in self.placed or request in self.finished
                return is_told or request in self.waiting or self.holders.get(request, engine) != engine
            case RewardComputed():
                return self._is_over(request) or request in self.scored
            case ResponseEvicted(engine=engine):
                return self.holders.get(request) != engine
            case ResponseAborted():
                return True

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
        due: list[RequestId] = []
        if isinstance(event, RewardComputed):
            self._note_runs(event)
        if self.is_late(event):
            assert commands == (), f"a late fact had consequences: {event} -> {commands}"
        elif isinstance(event, EngineJoined | EngineLost | EngineRetired | ResponseEvicted):
            self.waiting += self._note_departure(event)
            if self._free():
                due, self.waiting = self.waiting, []
            relaunched = [command.request for command in commands if isinstance(command, Launch)]
            assert relaunched == due, "not exactly what was in flight was launched again"
        else:
            self._note_news(event, commands)
        for command in commands:
            if isinstance(command, GiveUp):  # it counts what nobody could be told to launch
                self._note_waiting(waiting)
            self._note_command(command, is_relaunch=bool(due))
        if self.sampling:
            self._note_waiting(waiting)
            self._check_sampling(event)
        elif any(isinstance(command, BeginRound) for command in commands):
            self._check_begun()
        self._check_streaming(commands)
        self._check_score_orders(event)
        self._check_evictions(commands)

    def _note_departure(self, event: EngineJoined | EngineLost | EngineRetired | ResponseEvicted) -> list[RequestId]:
        """Gives what has to be launched again: it was on an engine that restarted or was lost, or was evicted."""
        if isinstance(event, ResponseEvicted):
            self._release(event.request)
            return [event.request]
        return self._note_fleet(event)

    def _note_news(self, event: Event, commands: tuple[Command, ...]) -> None:
        match event:
            case StepStarted(step=step, policy_version=version):
                assert not self.retiring, "a step started on engines of two degrees"
                self.step, self.version = step, version
                self.lent.clear()
                self.is_measurable = False
            case PromptsDrawn():
                self._note_draw(event)
            case ResponseFinished():
                self._note_finish(event, commands)
            case RewardComputed(request=request, reward=reward):
                self.scored.add(request)
                self.rewards.setdefault(request.prompt, []).append(reward)
            case ProgressMeasured():
                self._judge_lending(event, commands)
            case RoundMeasured():
                self._judge_plan(event, commands)
            case _:
                pass

    def _note_fleet(self, event: EngineJoined | EngineLost | EngineRetired) -> list[RequestId]:
        if isinstance(event, EngineRetired):
            assert event.engine in self.retiring, "an engine retired that nobody had told to"
        orphans = self._remove(event.engine)
        if isinstance(event, EngineJoined):
            self.loads[event.engine] = 0
            self.gpus[event.engine] = event.gpus
        return orphans

    def _note_finish(self, event: ResponseFinished, commands: tuple[Command, ...]) -> None:
        assert event.policy_version == self.version, "a finish of another policy version was taken"
        self.finished.add(event.request)
        self.lengths.append(event.num_tokens)
        self._release(event.request)
        prompt = event.request.prompt
        num_finished = sum(request.prompt == prompt for request in self.finished)
        if not self.settings.overlap_rewards and num_finished == self.settings.num_responses:
            self._place(prompt)
        if self.settings.stream:
            self._judge_progress(self.settings.stream, commands)

    def _note_draw(self, event: PromptsDrawn) -> None:
        asked = self.awaited.pop(event.domain)
        assert len(event.prompts) <= asked
        self.drawn.setdefault(event.domain, []).extend(event.prompts)
        self.domain_of.update(dict.fromkeys(event.prompts, event.domain))
        if event.is_exhausted:
            self.ended_domains.add(event.domain)
        if self.awaited or self.sampling:
            return
        came = {domain: len(prompts) for domain, prompts in self.drawn.items() if prompts}
        if self.is_tail and came != self.launches:
            self.long_queue += self._take_drawn()

    def _take_drawn(self) -> list[PromptId]:
        columns = [self.drawn.get(domain, []) for domain, _ in self.settings.domain_weights]
        self.drawn = {}
        return interleave(columns)

    def _remove(self, engine: EngineId) -> list[RequestId]:
        if engine not in self.loads:
            return []
        del self.loads[engine]
        self.fallen.add(engine)
        self.retiring.discard(engine)
        orphans = [request for request, holder in self.holders.items() if holder == engine]
        for request in orphans:
            del self.holders[request]
        return orphans

    def _release(self, request: RequestId) -> None:
        self.loads[self.holders.pop(request)] -= 1

    def _free(self) -> list[EngineId]:
        return [engine for engine in self.loads if engine not in self.lent]

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
                self.awaited[domain] = num_prompts
            case BeginRound():
                self._begin(command)
            case AcceptGroup():
                self._accept(command)
            case DropPrompt():
                self._drop(command)
            case EndRound():
                self._end(command)
            case GiveUp():
                self._give_up(command)
            case EndRun():
                self._end_run()
            case MeasureProgress(round=number):
                assert self.round is not None
                assert number == self.round.round
                self.is_measuring = True
            case LendEngines():
                self._lend(command)
            case UseParallelism(tensor_parallel=degree):
                assert self.round is None
                self.degree = degree
                self.retiring = set(self.loads)

    def _note_request_command(self, command: Launch | Abort | Evict | ScoreResponse, *, is_relaunch: bool) -> None:
        request = command.request
        match command:
            case Launch(engine=engine):
                assert engine not in self.lent, "a lent engine was launched on"
                assert engine == min(self._free(), key=self.loads.__getitem__), "not the least loaded engine"
                assert request not in self.holders, "a request is in flight twice"
                assert self.round is not None
                assert request.round == self.round.round, "a request carries another round"
                assert request.prompt not in self.decided | self.placed
                self.loads[engine] += 1
                self.holders[request] = engine
                if not is_relaunch:
                    self._note_launch(request)
            case Abort(engine=engine):
                assert self.holders.get(request) == engine
                assert request.prompt in self.decided | self.placed, "a response that was still needed was aborted"
                self._release(request)
            case Evict(engine=engine):
                assert self.holders.get(request) == engine
                assert engine in self.lent, "a request has to leave an engine that stays"
            case ScoreResponse(case_limits_s=limits):
                assert request in self.finished
                assert request not in self.to_score
                assert limits == self._limits(request.prompt.key), "other limits than the runs so far give"
                self.to_score.add(request)

    def _begin(self, begun: BeginRound) -> None:
        assert self.round is None
        assert begun.round == begun.step == self.step, "a round number came twice"
        num_prompts = self.settings.num_prompts
        is_drained = bool(self.ended_domains) and not self.drawn
        if self.sampling:
            kind = self._shape_sampled_round(begun)
        elif not self.is_tail:
            kind = RoundKind.PLAIN
            self.expected_prompts = self._take_drawn()
            assert len(self.expected_prompts) <= num_prompts
        elif len(self.long_queue) >= num_prompts or is_drained:
            kind = RoundKind.LONG
            self.expected_prompts = self.long_queue[:num_prompts]
            self.long_queue = self.long_queue[num_prompts:]
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
        assert begun.num_responses_launched == (
            scale_up(num_responses, self.settings.eta_responses) if is_short else num_responses
        ), "a round without a race speculated, or a race did not"
        self.kinds.append(kind)
        self.round = begun
        self.launched = {}
        self.decided, self.placed, self.accepted = set(), set(), set()
        self.is_measuring, self.last_tested = False, Fraction(0)
        self.finished, self.scored, self.to_score, self.rewards = set(), set(), set(), {}

    def _check_begun(self) -> None:
        """All of the round's launches came with its begin, or wait if there is no engine for them."""
        assert self.round is not None
        if not self._free():
            assert not self.launched, "there is nobody to launch on"
            self.launched = {prompt: list(range(self.round.num_responses_launched)) for prompt in self.expected_prompts}
            self.waiting = [
                RequestId(self.round.round, prompt, sample)
                for prompt, samples in self.launched.items()
                for sample in samples
            ]
        assert list(self.launched) == self.expected_prompts, "not the prompts whose turn it was"
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
                assert not self._racing(), "a batch is scored while some of its places are open"
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
        self.waiting = [request for request in self.waiting if request.prompt not in self.decided | self.placed]

    def _shut_if_full(self, prompt: PromptId) -> None:
        """Defer the prompts of a domain that get no place any more."""
        domain = self.domain_of[prompt]
        num_placed = sum(self.domain_of[placed] == domain for placed in self.placed)
        if self.sampling:
            self.places[domain] -= 1
            is_full = not self.places[domain]
            assert self.places[domain] >= 0, "a domain took more than its places"
        else:
            is_full = num_placed == self.quotas[domain]
            assert num_placed <= self.quotas[domain], "a domain took more than its quota"
        if is_full:
            losers = [
                prompt
                for prompt in self.launched
                if self.domain_of[prompt] == domain and prompt not in self.placed | self.decided
            ]
            self.long_queue += losers
            self.decided.update(losers)

    def _end(self, command: EndRound) -> None:
        assert self.round is not None
        assert command.round == self.round.round
        assert command.prompts == tuple(prompt for prompt in self.launched if prompt in self.accepted)
        num_missing = self.round.num_prompts_needed - len(command.prompts)
        assert num_missing == 0 or (self.sampling and num_missing > 0 and self._is_used_up()), "a batch came short"
        assert command.prompts, "a round ended without a batch"
        assert self.decided == set(self.launched), "a prompt was lost"
        assert not self.holders, "the round ended, and some of its requests still run"
        assert not self.waiting, "the round ended, and some of its requests still wait"
        assert command.long_queue_length == len(self.long_queue), "the long queue has another length"
        if self.round.kind is RoundKind.SHORT and not (self.sampling and self.ended_domains):
            assert Counter(self.domain_of[prompt] for prompt in command.prompts) == Counter(self.quotas)
        self.trained += command.prompts
        self.round = None
        self.is_measuring = False
        self.is_measurable = self.settings.parallelism is not None
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

    # Dynamic sampling

    def _shape_sampled_round(self, begun: BeginRound) -> RoundKind:
        """Check how a round begins, and count its places; gives its kind."""
        num_prompts = self.settings.num_prompts
        if not self.is_tail:
            kind = RoundKind.PLAIN
        elif len(self.long_queue) >= num_prompts or self.ended_domains:
            kind = RoundKind.LONG
        else:
            kind = RoundKind.SHORT
        has_source = any(self.drawn.values()) or len(self.ended_domains) < len(self.settings.domain_weights)
        num_needed = num_prompts if has_source else min(num_prompts, len(self.long_queue))
        assert begun.num_prompts_needed == num_needed, "a batch has another size"
        num_launched = sum(self.launches.values()) if kind is RoundKind.SHORT else num_needed
        assert begun.num_prompts_launched == num_launched, "a round is to launch another number of prompts"
        self.places = dict(self.quotas)
        self.expected_prompts = []
        return kind

    def _note_launch(self, request: RequestId) -> None:
        if self.sampling and request.prompt not in self.launched:
            self._take_up(request.prompt)
        self.launched.setdefault(request.prompt, []).append(request.sample)

    def _note_waiting(self, waiting: Sequence[RequestId]) -> None:
        """Note what was launched while there was nobody to launch on."""
        known = {*self.waiting, *self.holders}
        for request in waiting:
            if request not in known:
                self._note_launch(request)
                self.waiting.append(request)
        assert list(waiting) == self.waiting, "other requests wait than nobody could be told to launch"

    def _take_up(self, prompt: PromptId) -> None:
        """Take a prompt from where it was: the queue's first one, or the first one of its domain that was drawn."""
        assert self.round is not None
        is_long = self.round.kind is RoundKind.LONG
        have_all_ended = len(self.ended_domains) == len(self.settings.domain_weights)
        eligible = [queued for queued in self.long_queue if queued not in self.launched]
        self._move_places()
        if prompt in eligible:
            assert prompt == eligible[0], "the long queue is first in, first out"
            assert is_long or have_all_ended, "a deferred prompt ran in a short round while there were new ones"
            self.long_queue.remove(prompt)
            if self.round.kind is RoundKind.SHORT and not self._vacant_places()[self.domain_of[prompt]]:
                giver = next(domain for domain, count in self._vacant_places().items() if count > 0)
                self.places[giver] -= 1
                self.places[self.domain_of[prompt]] += 1
            return
        assert not (is_long and eligible), "a new prompt ran in a long round while the queue had some"
        assert prompt == self.drawn[self.domain_of[prompt]].pop(0), "a prompt was launched out of its turn"

    def _racing(self) -> list[PromptId]:
        return [prompt for prompt in self.launched if prompt not in self.decided | self.placed]

    def _vacant_places(self) -> dict[Domain, int]:
        racing = Counter(self.domain_of[prompt] for prompt in self._racing())
        return {domain: count - racing[domain] for domain, count in self.places.items()}

    def _move_places(self) -> None:
        """In a short round, the vacant places of a domain that has ended go to domains that have prompts."""
        assert self.round is not None
        if self.round.kind is not RoundKind.SHORT:
            return
        weights = {domain: w for domain, w in self.settings.domain_weights if domain not in self.ended_domains}
        for domain, num_vacant in self._vacant_places().items():
            num_lacking = num_vacant - len(self.drawn.get(domain, []))
            if domain in weights or num_lacking <= 0:
                continue
            vacant = self._vacant_places()
            spare = {other: len(self.drawn.get(other, [])) - max(0, vacant[other]) for other in self.ended_domains}
            spare = {other: spare[other] for other in self.quotas if other != domain and spare.get(other, 0) > 0}
            takers: dict[Domain, Fraction | int] = {**weights} or {**spare}
            num_moved = num_lacking if weights else min(num_lacking, sum(spare.values()))
            moved = apportion(num_moved, takers) if takers else {}
            for other, count in moved.items():
                self.places[other] += count
                self.places[domain] -= count

    def _is_used_up(self) -> bool:
        """Whether no prompt is left that could fill a place of this round."""
        eligible = [queued for queued in self.long_queue if queued not in self.launched]
        have_all_ended = len(self.ended_domains) == len(self.settings.domain_weights)
        return have_all_ended and not self.awaited and not eligible and not any(self.drawn.values())

    def _drop(self, command: DropPrompt) -> None:
        assert self.round is not None
        assert self.sampling, "a prompt was dropped without dynamic sampling"
        assert command.round == self.round.round
        assert command.prompt in self.launched
        assert command.prompt not in self.decided
        assert len(self.rewards[command.prompt]) == self.settings.num_responses, "dropped before its rewards were known"
        assert len(set(self.rewards[command.prompt])) == 1, "a prompt with variance was dropped"
        self.placed.discard(command.prompt)
        self.decided.add(command.prompt)
        self.dropped.append(command.prompt)
        self.waiting = [request for request in self.waiting if request.prompt != command.prompt]

    def _check_sampling(self, event: Event) -> None:
        """Whoever is complete is decided, no more is in flight than may be, and nobody waits who could run."""
        if self.round is None or self.has_given_up:
            return
        assert self.sampling is not None
        if isinstance(event, RewardComputed) and len(self.rewards.get(event.request.prompt, [])) == (
            self.settings.num_responses
        ):
            assert event.request.prompt in self.decided, "a prompt with all its rewards is undecided"
        num_samples = self.round.num_responses_launched
        assert all(each == list(range(num_samples)) for each in self.launched.values())
        num_in_flight = len(self.holders) + len(self.waiting)
        limit = self.sampling.max_active_requests
        assert limit is None or num_in_flight <= limit, "more requests are in flight than may be"
        most = math.floor(self.sampling.max_launch_factor * self.settings.num_prompts)
        assert len(self.launched) <= most, "a round launched more prompts than it may"
        num_wanted = self.round.num_prompts_launched - len(self.accepted | self.placed)
        num_racing = len(self._racing())
        assert num_racing <= num_wanted, "more prompts race than places and speculation"
        self._move_places()
        has_room = limit is None or limit - num_in_flight >= num_samples
        is_scoring = not self.settings.overlap_rewards and bool(self.to_score - self.scored)
        if has_room and len(self.launched) < most and not (is_scoring or self.awaited or self._is_used_up()):
            assert not self._lacks_some(num_racing), "a place is vacant, and nobody was asked for a prompt"

    def _lacks_some(self, num_racing: int) -> bool:
        assert self.round is not None
        if self.round.kind is not RoundKind.SHORT:
            return num_racing < self.round.num_prompts_needed - len(self.accepted | self.placed)
        vacant = self._vacant_places()
        surplus = {domain: self.launches[domain] - quota for domain, quota in self.quotas.items()}
        return any(
            count > 0 or (self.places[domain] and domain not in self.ended_domains and count + surplus[domain] > 0)
            for domain, count in vacant.items()
        )

    def _give_up(self, command: GiveUp) -> None:
        assert self.round is not None
        assert self.sampling is not None
        most = math.floor(self.sampling.max_launch_factor * self.settings.num_prompts)
        assert command.round == self.round.round
        assert command.num_prompts_launched == len(self.launched) == most, "the run gave up too early"
        assert command.num_prompts_dropped == len(self.decided & set(self.dropped))
        assert command.num_prompts_needed == self.round.num_prompts_needed - len(self.accepted | self.placed)
        assert len(self._racing()) < self.round.num_prompts_launched, "the run gave up while enough prompts raced"
        self.has_given_up = True

    # The reward budget

    def _note_runs(self, event: RewardComputed) -> None:
        for run in event.case_runs:
            if run.is_passed:
                name = (event.request.prompt.key, run.case)
                self.anchors[name] = max(run.time_s, self.anchors.get(name, 0.0))

    def _limits(self, key: str) -> tuple[float, ...]:
        budget = self.settings.reward_budget
        if budget is None:
            return ()
        cases = [case for name, case in self.anchors if name == key]
        limits = []
        for case in range(max(cases, default=-1) + 2):
            anchor = self.anchors.get((key, case))
            scaled = math.inf if anchor is None else float(budget.factor) * anchor
            limits.append(min(max(budget.min_limit_s, scaled), budget.max_limit_s))
        return tuple(limits)

    # The parallelism planner

    def _judge_plan(self, event: RoundMeasured, commands: tuple[Command, ...]) -> None:
        assert self.settings.parallelism is not None
        self.is_measurable = False
        self.measured.append(
            MeasuredRound(
                self.kinds[-1],
                self.degree,
                event.num_preemptions,
                event.num_tokens,
                event.rollout_time_s,
                event.switch_time_s,
                event.lengths_tokens,
                tuple(self.kinds),
            )
        )
        if not self.is_tail:
            next_kind = RoundKind.PLAIN
        elif self.ended_domains or len(self.long_queue) >= self.settings.num_prompts:
            next_kind = RoundKind.LONG
        else:
            next_kind = RoundKind.SHORT
        degree = degree_after(self.measured, next_kind, self.settings.parallelism)
        is_worth_it = pays(self.measured, next_kind, self.degree, degree, self.settings.parallelism)
        expected = () if degree == self.degree or not is_worth_it else (UseParallelism(tensor_parallel=degree),)
        assert commands == expected, f"after {self.measured} another degree"

    # Stream scaling

    def _judge_progress(self, stream: StreamSettings, commands: tuple[Command, ...]) -> None:
        """A measurement is ordered at each point of the grid that the share of finishes reaches."""
        assert self.round is not None
        num_dropped = len(self.decided & set(self.dropped))  # another prompt takes the place of each
        num_launched = (self.round.num_prompts_launched + num_dropped) * self.round.num_responses_launched
        share = Fraction(len(self.finished), num_launched)
        points = [
            stream.first_share + number * stream.every_share for number in range(math.ceil(1 / stream.every_share))
        ]
        is_at_point = share <= stream.last_share and any(self.last_tested < point <= share for point in points)
        is_at_point = is_at_point and not self.is_measuring and not self.num_lendings[self.round.round]
        is_due = is_at_point and self._can_lend(stream)  # a point at which nobody can be lent is passed over
        assert any(isinstance(command, MeasureProgress) for command in commands) == is_due, "measured too early or late"
        if is_at_point:
            self.last_tested = share

    def _can_lend(self, stream: StreamSettings) -> bool:
        """Try every subset of at most half of the engines."""
        with_gpus = [engine for engine in self.loads if self.gpus[engine]]
        subsets = (combinations(with_gpus, size) for size in range(1, len(self.loads) // 2 + 1))
        return any(self._is_whole(subset, stream) for each in subsets for subset in each)

    def _judge_lending(self, event: ProgressMeasured, commands: tuple[Command, ...]) -> None:
        """Engines are lent if any can be and memory suffices, and as few tokens move as can be."""
        assert self.settings.stream is not None
        self.is_measuring = False
        choices = self._choices(event, self.settings.stream)
        lendings = [command for command in commands if isinstance(command, LendEngines)]
        assert len(lendings) == bool(choices), "engines were lent that cannot be, or none that could"
        for lending in lendings:
            assert lending.engines in choices, "more tokens move than have to"

    def _choices(self, event: ProgressMeasured, stream: StreamSettings) -> list[tuple[EngineId, ...]]:
        """Try every subset of at most half of the engines; list the best ones that memory allows."""
        fleet = list(self.loads)
        rows = {row.engine: row for row in event.engines if row.engine in self.loads}
        if len(rows) < len(fleet):
            return []
        running = {
            engine: [request for request in row.running if self.holders.get(request.request) == engine]
            for engine, row in rows.items()
        }
        with_gpus = [engine for engine in fleet if self.gpus[engine]]
        for size in range(min(len(fleet) // 2, len(with_gpus)), 0, -1):
            subsets = [subset for subset in combinations(with_gpus, size) if self._is_whole(subset, stream)]
            if not subsets:
                continue
            costs = [sum(sum(request[1:]) for engine in subset for request in running[engine]) for subset in subsets]
            demand = sum(self._expected_tokens(request, stream) for each in running.values() for request in each)
            return [
                subset
                for subset, cost in zip(subsets, costs, strict=True)
                if cost == min(costs)
                and (
                    not stream.must_fit
                    or demand <= sum(rows[engine].kv_tokens_capacity for engine in fleet if engine not in subset)
                )
            ]
        return []

    def _is_whole(self, engines: Sequence[EngineId], stream: StreamSettings) -> bool:
        """Whether the engines' GPUs are a union of replicas, and no other engine is on them."""
        gpus = {gpu for engine in engines for gpu in self.gpus[engine]}
        inside = {gpu for replica in stream.replicas if gpus.issuperset(replica) for gpu in replica}
        is_shared = any(gpus.intersection(self.gpus[engine]) for engine in self.loads if engine not in engines)
        return gpus == inside and not is_shared

    def _expected_tokens(self, request: RunningRequest, stream: StreamSettings) -> int:
        recent = self.lengths[-stream.num_recent_lengths :]
        longer = [length for length in recent if length > request.num_generated_tokens]
        expected = math.ceil(Fraction(sum(longer), len(longer))) if longer else stream.max_response_tokens
        return request.num_prompt_tokens + expected

    def _lend(self, command: LendEngines) -> None:
        assert self.round is not None
        assert command.round == self.round.round
        assert not self.lent & set(self.loads), "engines were lent twice"
        assert 0 < len(command.engines) <= len(self.loads) // 2
        self.num_lendings[self.round.round] += 1
        assert self.num_lendings[self.round.round] == 1, "a round lent engines twice"
        self.lent.update(command.engines)
        self.fallen.update(command.engines)

    def _check_streaming(self, commands: tuple[Command, ...]) -> None:
        """Groups stream from the beginning of every round to a trainer that shares no GPU, and to no other."""
        is_free = self.settings.stream is not None and not self.settings.stream.replicas
        begun = [command.round for command in commands if isinstance(command, BeginRound) and is_free]
        assert [command.round for command in commands if isinstance(command, StreamGroups)] == begun

    def _check_evictions(self, commands: tuple[Command, ...]) -> None:
        """What runs on an engine is told to leave as it is lent."""
        lent = {engine for command in commands if isinstance(command, LendEngines) for engine in command.engines}
        leaving = [command.request for command in commands if isinstance(command, Evict)]
        assert leaving == [
            request for engine in sorted(lent, key=list(self.loads).index) for request in self._on(engine)
        ]

    def _on(self, engine: EngineId) -> list[RequestId]:
        return [request for request, holder in self.holders.items() if holder == engine]
