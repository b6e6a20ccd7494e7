"""The reference model's evaluations: when one is due, what of it is owed, and where it may run beside a round."""

from __future__ import annotations

from typing import Any

from rollpacker.core.commands import (
    Abort,
    BeginEvaluation,
    BeginRound,
    Command,
    EndEvaluation,
    EndRound,
    Evict,
    Launch,
    ScoreResponse,
    UseDraftLengths,
)
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    EngineRetired,
    EvaluationOffered,
    Event,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    TimerFired,
)
from rollpacker.core.ids import EngineId, RequestId, held_out_prompt, is_held_out
from rollpacker.core.settings import EvaluationSettings
from tests.fuzz.oracle.engines import EngineModel

Answer = ResponseFinished | ResponseAborted | ResponseEvicted | RewardComputed


class EvaluationModel:
    """Notes what is held out, and leaves the rest to the reference model."""

    def __init__(self, settings: EvaluationSettings | None, engines: EngineModel) -> None:
        self._settings = settings
        self._engines = engines
        self._last = -1
        self._is_due = False
        self._is_open = self._fills = False
        self._all: set[RequestId] = set()
        """Of the last evaluation."""
        self._finished: set[RequestId] = set()
        self._scored: set[RequestId] = set()
        self._where: dict[RequestId, EngineId] = {}
        self._told_to_leave: set[RequestId] = set()
        self._kv_tokens: dict[EngineId, int] = {}
        self.version = -1
        """Of the last offer."""

    def resume(self, snapshot: dict[str, Any] | None) -> None:
        """Go on from a checkpoint, which may be of before or after the evaluation of its step."""
        if snapshot is not None:
            owed = [*snapshot["generating"], *snapshot["scoring"]]
            assert not owed, "a checkpoint was taken during an evaluation"
            self._last, self._is_open = snapshot["last"], False
            self._is_due = "fill" in snapshot and snapshot["fill"]["is_due"]
            self._fills = "fill" in snapshot and snapshot["fill"]["is_filling"]
            self._where, self._told_to_leave = {}, set()

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def last(self) -> int:
        """The step of the last evaluation; -1 before the first."""
        return self._last

    def has_filled(self, step: int) -> bool:
        """Whether an evaluation ran beside the round of a step, the last one."""
        return self._fills and step == self._last

    def is_of_held_out(self, event: Event) -> bool:
        """Whether nobody else has to know of an event."""
        return isinstance(event, Answer) and is_held_out(event.request)

    def take(self, event: Event, commands: tuple[Command, ...]) -> tuple[Command, ...]:
        """Note what is held out in an event and what follows it; gives the other commands."""
        own = tuple(command for command in commands if self._is_own(command, event))
        if self._settings is None:
            assert not own, "something was held out in a run without held-out sets"
            return commands
        scores, ends, begins = self._expect(event, commands)
        assert [command for command in own if isinstance(command, BeginEvaluation)] == begins, "begun early or late"
        for command in own:
            self._note(command, event)
        assert [command.request for command in own if isinstance(command, ScoreResponse)] == scores
        assert [command for command in own if isinstance(command, EndEvaluation)] == ends, "ended early or late"
        if any(isinstance(command, EndRound) for command in commands) and self._is_open:
            assert self._fills, "a round ended during an evaluation of its own"
        return tuple(command for command in commands if command not in own)

    @staticmethod
    def _is_own(command: Command, event: Event) -> bool:
        if isinstance(command, UseDraftLengths) and isinstance(event, EvaluationOffered):
            return True
        is_of_request = isinstance(command, Launch | Abort | Evict | ScoreResponse)
        return isinstance(command, BeginEvaluation | EndEvaluation) or (is_of_request and is_held_out(command.request))

    # Facts

    def _expect(
        self, event: Event, commands: tuple[Command, ...]
    ) -> tuple[list[RequestId], list[EndEvaluation], list[BeginEvaluation]]:
        """Note a fact; gives what has to be scored, ended and begun now."""
        begins = (
            [self._open(command.step) for command in commands if isinstance(command, BeginRound)]
            if (self._is_due and not any(map(_races, commands)))
            else []
        )
        match event:
            case EvaluationOffered():
                begins += self._offer(event)
            case EngineJoined() | EngineLost() | EngineRetired():
                gone = [request for request, engine in self._where.items() if engine == event.engine]
                for request in gone:
                    del self._where[request]
                self._told_to_leave -= set(gone)
                if isinstance(event, EngineJoined):
                    self._kv_tokens[event.engine] = event.kv_tokens
            case TimerFired(timer=timer) if timer == f"evaluation {self._last}" and self._is_open and self._fills:
                return [], self._close(), begins
            case RewardComputed(request=request) if request in self._finished - self._scored and self._is_open:
                self._scored.add(request)
                return [], self._close() if self._scored == self._all else [], begins
            case ResponseFinished() | ResponseAborted() | ResponseEvicted() if is_held_out(event.request):
                return self._come_back(event), [], begins
            case _:
                pass
        return [], [], begins

    def _come_back(self, event: ResponseFinished | ResponseAborted | ResponseEvicted) -> list[RequestId]:
        request = event.request
        self._engines.leaving.discard((event.engine, request))
        if self._where.get(request) != event.engine:
            return []
        del self._where[request]
        is_ordered = request in self._told_to_leave
        self._told_to_leave.discard(request)
        if not isinstance(event, ResponseFinished):
            assert is_ordered or not self._fills, "a held-out request left an engine unordered"
            return []
        if not self._is_open:
            return []
        self._finished.add(request)
        return [request]

    def _offer(self, event: EvaluationOffered) -> list[BeginEvaluation]:
        settings = self._settings
        assert settings is not None
        self.version = event.policy_version
        is_turn = event.step > 0 and settings.every_steps > 0 and event.step % settings.every_steps == 0
        is_first, is_last = settings.at_start and event.step == 0, settings.at_end and event.is_last
        if event.step == self._last or not (is_turn or is_first or is_last or self._is_due):
            return []
        if settings.fill and event.step > 0 and not event.is_last:
            self._is_due = True
            return []
        begun = self._open(event.step)
        self._fills = False
        return [begun]

    def _open(self, step: int) -> BeginEvaluation:
        assert self._settings is not None
        self._last, self._is_due, self._is_open, self._fills = step, False, True, True
        self._all = {
            RequestId(step, held_out_prompt(each.name, key), sample)
            for each in self._settings.sets
            for key in each.keys
            for sample in range(each.num_samples)
        }
        self._finished, self._scored, self._where = set(), set(), {}
        self._told_to_leave = set()
        return BeginEvaluation(step=step, num_requests=len(self._all))

    def _close(self) -> list[EndEvaluation]:
        self._is_open = False
        return [EndEvaluation(step=self._last)]

    # Commands

    def _note(self, command: Command, event: Event) -> None:
        match command:
            case Launch(request=request, engine=engine):
                assert self._is_open
                assert request in self._all - self._finished, "what is not owed was launched"
                assert request not in self._where, "a held-out request is in flight twice"
                self._where[request] = engine
            case Evict(request=request, engine=engine) | Abort(request=request, engine=engine):
                assert self._where[request] == engine
                assert isinstance(command, Evict) or isinstance(event, TimerFired), "cut before its time"
                self._told_to_leave.add(request)
                self._engines.leaving.add((engine, request))
            case _:
                pass

    def check_rooms(self) -> None:
        """Training never waits for a slot or memory that a held-out request has; and what is free is used."""
        if not (self._is_open and self._fills and self._settings and self._settings.fill):
            return
        fill = self._settings.fill
        leaving = [engine for engine, _ in self._engines.leaving]
        is_any_free = False
        for engine, load in self._engines.loads.items():
            kv_tokens = self._kv_tokens.get(engine, 0)
            most = min(fill.num_slots, kv_tokens // fill.max_tokens) if kv_tokens else fill.num_slots
            stays = [
                request
                for request, holder in self._where.items()
                if holder == engine and request not in self._told_to_leave
            ]
            if engine in self._engines.lent:
                assert not stays, "a held-out request stays on a lent engine"
                continue
            assert not stays or load + len(stays) <= most, "a held-out request has the room of a training request"
            is_any_free = is_any_free or load + leaving.count(engine) + len(stays) < most
        is_waiting = bool(self._all - self._finished - self._where.keys())
        assert not (is_any_free and is_waiting), "room was left idle"


def _races(command: Command) -> bool:
    return isinstance(command, BeginRound) and (
        command.num_prompts_launched > command.num_prompts_needed
        or command.num_responses_launched > command.num_responses_needed
    )
