"""What must be true of a scheduler, seen from outside: facts go in, commands come out, and these are the books.

The judge knows the rules of the paper and none of the machines' state. It keeps its own copy of the long queue, of what
runs where and of what was trained, and fails an assertion when a command contradicts them.
"""

from __future__ import annotations

from collections import Counter

from rollpacker.core.commands import (
    Abort,
    AcceptGroup,
    BeginRound,
    Command,
    DrawPrompts,
    EndRound,
    EndRun,
    Launch,
    RoundKind,
    ScoreResponse,
)
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    Event,
    PromptsDrawn,
    ResponseAborted,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId
from rollpacker.core.quotas import apportion, interleave, scale_up, with_speculation
from rollpacker.core.settings import SchedulerSettings


class Judge:
    """Notes every fact and every command, and asserts."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.is_tail = settings.batching == "tail"
        self.quotas = apportion(settings.num_prompts, dict(settings.domain_weights))
        self.launches = with_speculation(self.quotas, settings.eta_prompts) if self.is_tail else self.quotas
        self.domain_of: dict[PromptId, Domain] = {}
        self.trained: list[PromptId] = []
        self.long_queue: list[PromptId] = []
        self.kinds: list[RoundKind] = []
        self.has_ended = False
        # engines
        self.loads: dict[EngineId, int] = {}
        self.holders: dict[RequestId, EngineId] = {}
        self.fallen: set[EngineId] = set()
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
        self.accepted: set[PromptId] = set()
        self.finished: set[RequestId] = set()
        self.scored: set[RequestId] = set()
        self.to_score: set[RequestId] = set()

    # What is late

    def is_late(self, event: Event) -> bool:
        """Whether a fact may change nothing."""
        match event:
            case ResponseFinished(request=request, engine=engine):
                return self._is_over(request) or request in self.finished or self.holders.get(request, engine) != engine
            case RewardComputed(request=request):
                return self._is_over(request) or request in self.scored
            case ResponseAborted():
                return True
            case EngineLost(engine=engine):
                return engine not in self.loads
            case _:
                return False

    def _is_over(self, request: RequestId) -> bool:
        return self.round is None or request.round < self.round.round or request.prompt in self.decided

    # Facts

    def note(self, event: Event, commands: tuple[Command, ...]) -> None:
        orphans: list[RequestId] = []
        if self.is_late(event):
            assert commands == (), f"a late fact had consequences: {event} -> {commands}"
        else:
            orphans = self._note_news(event)
        if isinstance(event, EngineJoined | EngineLost):
            relaunched = [command.request for command in commands if isinstance(command, Launch)]
            assert relaunched == orphans, "not exactly what was in flight was launched again"
        for command in commands:
            self._note_command(command, is_relaunch=bool(orphans))
        if any(isinstance(command, BeginRound) for command in commands):
            self._check_begun()
        self._check_score_orders(event)

    def _note_news(self, event: Event) -> list[RequestId]:
        """Gives what was in flight on an engine that restarted or was lost."""
        match event:
            case EngineJoined(engine=engine):
                orphans = self._remove(engine)
                self.loads[engine] = 0
                return orphans
            case EngineLost(engine=engine):
                return self._remove(engine)
            case StepStarted(step=step, policy_version=version):
                self.step, self.version = step, version
            case PromptsDrawn():
                self._note_draw(event)
            case ResponseFinished(request=request):
                assert event.policy_version == self.version, "a finish of another policy version was taken"
                self.finished.add(request)
                self._release(request)
            case RewardComputed(request=request):
                self.scored.add(request)
            case _:
                pass
        return []

    def _note_draw(self, event: PromptsDrawn) -> None:
        asked = self.awaited.pop(event.domain)
        assert len(event.prompts) <= asked
        self.drawn.setdefault(event.domain, []).extend(event.prompts)
        self.domain_of.update(dict.fromkeys(event.prompts, event.domain))
        if event.is_exhausted:
            self.ended_domains.add(event.domain)
        if self.awaited:
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
        orphans = [request for request, holder in self.holders.items() if holder == engine]
        for request in orphans:
            del self.holders[request]
        return orphans

    def _release(self, request: RequestId) -> None:
        self.loads[self.holders.pop(request)] -= 1

    # Commands

    def _note_command(self, command: Command, *, is_relaunch: bool) -> None:
        match command:
            case DrawPrompts(domain=domain, num_prompts=num_prompts):
                assert self.round is None
                assert num_prompts > 0
                assert domain not in self.awaited
                assert domain not in self.ended_domains, "a domain that had ended was asked"
                self.awaited[domain] = num_prompts
            case BeginRound():
                self._begin(command)
            case Launch(request=request, engine=engine):
                assert engine == min(self.loads, key=self.loads.__getitem__), "not the least loaded engine"
                assert request not in self.holders
                assert self.round is not None
                assert request.round == self.round.round, "a request carries another round"
                assert request.prompt not in self.decided
                self.loads[engine] += 1
                self.holders[request] = engine
                if not is_relaunch:
                    self.launched.setdefault(request.prompt, []).append(request.sample)
            case Abort(request=request, engine=engine):
                assert self.holders.get(request) == engine
                assert request.prompt in self.decided, "a response that was still needed was aborted"
                self._release(request)
            case ScoreResponse(request=request):
                assert request in self.finished
                assert request not in self.to_score
                self.to_score.add(request)
            case AcceptGroup():
                self._accept(command)
            case EndRound():
                self._end(command)
            case EndRun():
                self._end_run()

    def _begin(self, begun: BeginRound) -> None:
        assert self.round is None
        assert begun.round == begun.step == self.step, "a round number came twice"
        num_prompts = self.settings.num_prompts
        is_drained = bool(self.ended_domains) and not self.drawn
        if not self.is_tail:
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
        if len(self.expected_prompts) < num_prompts:
            assert len(self.ended_domains) == len(self.settings.domain_weights), (
                "a batch came short while data was left"
            )
        num_responses = self.settings.num_responses
        is_short = kind is RoundKind.SHORT
        assert begun.num_prompts_launched == len(self.expected_prompts), "too few or too many prompts"
        assert begun.num_prompts_needed == min(len(self.expected_prompts), num_prompts)
        assert begun.num_responses_needed == num_responses
        assert begun.num_responses_launched == (
            scale_up(num_responses, self.settings.eta_responses) if is_short else num_responses
        ), "a round without a race speculated, or a race did not"
        self.kinds.append(kind)
        self.round = begun
        self.launched = {}
        self.decided, self.accepted = set(), set()
        self.finished, self.scored, self.to_score = set(), set(), set()

    def _check_begun(self) -> None:
        """All of the round's launches came with its begin."""
        assert self.round is not None
        assert list(self.launched) == self.expected_prompts, "not the prompts whose turn it was"
        samples = list(range(self.round.num_responses_launched))
        assert all(each == samples for each in self.launched.values())

    def _check_score_orders(self, event: Event) -> None:
        """Rewards are ordered at once, or without overlap all after the last finish."""
        if self.round is None:
            return
        if self.settings.overlap_rewards:
            if isinstance(event, ResponseFinished) and event.request in self.finished:
                assert event.request in self.to_score
        else:
            assert self.to_score == (set() if self.holders else self.finished)

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
        self.accepted.add(command.prompt)
        self.decided.add(command.prompt)
        if self.round.kind is RoundKind.SHORT:
            self._defer(self.domain_of[command.prompt])

    def _defer(self, domain: Domain) -> None:
        num_accepted = sum(self.domain_of[prompt] == domain for prompt in self.accepted)
        assert num_accepted <= self.quotas[domain], "a domain took more than its quota"
        if num_accepted == self.quotas[domain]:
            losers = [
                prompt for prompt in self.launched if self.domain_of[prompt] == domain and prompt not in self.decided
            ]
            self.long_queue += losers
            self.decided.update(losers)

    def _end(self, command: EndRound) -> None:
        assert self.round is not None
        assert command.round == self.round.round
        assert command.prompts == tuple(prompt for prompt in self.launched if prompt in self.accepted)
        assert len(command.prompts) == self.round.num_prompts_needed
        assert self.decided == set(self.launched), "a prompt was lost"
        assert not self.holders, "the round ended, and some of its requests still run"
        assert command.long_queue_length == len(self.long_queue), "the long queue has another length"
        if self.round.kind is RoundKind.SHORT:
            assert Counter(self.domain_of[prompt] for prompt in command.prompts) == Counter(self.quotas)
        self.trained += command.prompts
        self.round = None
        self.check_nothing_lost()

    def _end_run(self) -> None:
        assert self.round is None
        assert not self.awaited
        assert not self.long_queue, "the run ended, and some prompts were never trained"
        assert len(self.ended_domains) == len(self.settings.domain_weights)
        self.check_nothing_lost()
        self.has_ended = True

    def check_nothing_lost(self) -> None:
        """Between rounds every prompt that was drawn is trained or queued, once."""
        assert Counter(self.trained) + Counter(self.long_queue) == Counter(self.domain_of.keys())
