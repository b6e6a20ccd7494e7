"""Which requests move to another engine by choice, in a run with rollout workers.

    resting ──BeginRound, a worker serves──> waiting ──the timer, and loads differ──> measuring
                                                ^  └──the timer, and they do not──┐     │
                                                └─────────────────────────────────┴─────┴──ProgressMeasured: Evict

Requests that finish, workers that come and engines that are given back leave some engines with many requests and others
with few. What is left on an engine with n requests takes about

    end = E[L - generated] pass_s(n)        the mean over its requests; n / slots times that where slots are too few

and the engine that ends last gives so many to the one that ends first that both have as much for their speed: those
with the fewest tokens, which the other one computes again (`PREFILL_S` each). That is done only if the later of the two
ends comes earlier by more than `gain_s`; then the next pair is looked at. Where an evicted request goes is the router's
decision: to the open engine with the fewest requests for its speed, which is the other one of the pair.

Moves that are forced, because an engine is lost, lent or drained, are none of these and are not counted.

Invariant: in a round no request moves by choice more than `max_moves` times.
Source: RLBoost (arXiv 2510.19225), section 4.3. Predicted ends instead of a learned batch size are this project's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any, Final, NamedTuple, Self

from rollpacker.core.commands import BeginRound, MeasureProgress, SetTimer
from rollpacker.core.elastic_settings import BalanceSettings
from rollpacker.core.errors import InvariantViolated
from rollpacker.core.events import ProgressMeasured, TimerFired
from rollpacker.core.ids import EngineId, RequestId, is_held_out
from rollpacker.core.length_estimate import LengthEstimate
from rollpacker.core.pass_times import PassTimes

PREFILL_S: Final = 5e-5
"""To compute a known token again: three times what 8B takes on two H100. An assumption, on the safe side."""
NUM_RECENT: Final = 1024
"""Lengths that an expectation is made of."""

Held = Mapping[EngineId, Sequence[RequestId]]
"""The open engines in joining order, and what each has that is not about to leave it."""


class _Running(NamedTuple):
    request: RequestId
    num_known: int
    """Tokens, those of the prompt too."""
    num_left: int
    """That are expected."""


class Balance:
    """Chooses what moves."""

    def __init__(self, settings: BalanceSettings) -> None:
        self._settings = settings
        self._times = PassTimes()
        self._recent_lengths: deque[int] = deque(maxlen=NUM_RECENT)
        self._round = -1
        """The open round, or the last one."""
        self._is_open = False
        self._is_waiting = False
        """The timer is set."""
        self._asked: list[int] = []
        """Rounds of the measurements that are to come."""
        self._measured_at_s = 0.0
        self._progress: dict[RequestId, tuple[EngineId, int]] = {}
        """Of the last measurement in the round: where each request was, and its tokens."""
        self._num_moves: dict[RequestId, int] = {}
        """By choice, in the round."""

    # The round

    def begin_round(self, command: BeginRound) -> None:
        """Watch a new round."""
        self.end_round()
        self._round, self._is_open = command.round, True

    def end_round(self) -> None:
        """Rest until the next round."""
        self._is_open = self._is_waiting = False
        self._progress, self._num_moves = {}, {}

    def count_finish(self, num_tokens: int) -> None:
        """Learn how long a response became."""
        self._recent_lengths.append(num_tokens)

    @property
    def speeds(self) -> Mapping[EngineId, float]:
        """Of engines that are slower or faster than most, relative to these."""
        return self._times.speeds

    # Measurements

    def watch(self, now: float, *, is_served: bool) -> tuple[SetTimer, ...]:
        """Look again after a while, if a worker serves."""
        if not (self._is_open and is_served) or self._is_waiting or self._round in self._asked:
            return ()
        self._is_waiting = True
        return (SetTimer(timer=self._timer, at_s=now + self._settings.every_s),)

    def fire(self, event: TimerFired, held: Held, *, is_starved: bool) -> tuple[MeasureProgress, ...]:
        """Ask for a measurement if something could move; nothing for timers of others.

        Args:
            event: The timer.
            held: What could.
            is_starved: Requests wait for room: these go where there is some.
        """
        if event.timer != self._timer or not self._is_waiting:
            return ()
        self._is_waiting = False
        loads = [len(requests) for requests in held.values()]
        if is_starved or not loads or max(loads) - min(loads) <= 1:
            return ()
        self._asked.append(self._round)
        return (MeasureProgress(round=self._round),)

    def awaits(self, event: ProgressMeasured) -> bool:
        """Tell whether a measurement was asked for here."""
        return event.round in self._asked

    def choose(self, event: ProgressMeasured, held: Held, fleet: Collection[EngineId], now: float) -> list[RequestId]:
        """Learn from a measurement that was asked for, and name what moves; nothing if its round is over.

        Args:
            event: The measurement, which has passed `validate_progress`.
            held: What may move, by what was told so far; nothing moves to engines that are not named.
            fleet: All engines that are there; the speeds of others are forgotten.
            now: Seconds since the run began.
        """
        self._asked.remove(event.round)
        if event.round != self._round or not self._is_open:
            return []
        self._learn(event, now)
        self._times.keep(fleet)
        if not self._times.are_known:
            return []
        estimate = LengthEstimate(self._recent_lengths, self._settings.max_response_tokens)
        of_request = {
            running.request: _Running(
                running.request,
                running.num_prompt_tokens + running.num_generated_tokens,
                estimate.of(running.num_generated_tokens) - running.num_generated_tokens,
            )
            for progress in event.engines
            for running in progress.running
        }
        loads = {
            engine: [of_request[each] for each in requests if each in of_request and not is_held_out(each)]
            for engine, requests in held.items()
        }
        return self._level(loads)

    def _learn(self, event: ProgressMeasured, now: float) -> None:
        """Take down what a pass took on each engine since the last measurement."""
        progress: dict[RequestId, tuple[EngineId, int]] = {}
        for engine, _, running in event.engines:
            gains = []
            for request, _, num_tokens in running:
                where, before = self._progress.get(request, (None, 0))
                if where == engine and num_tokens > before:
                    gains.append(num_tokens - before)
                progress[request] = engine, num_tokens
            if gains and now > self._measured_at_s:
                self._times.observe(engine, len(gains), (now - self._measured_at_s) / fmean(gains))
        self._progress, self._measured_at_s = progress, now

    # What moves

    def _level(self, loads: dict[EngineId, list[_Running]]) -> list[RequestId]:
        """Move from the engine that ends last to the one that ends first, as long as that gains something."""
        chosen: dict[RequestId, None] = {}
        ends = {engine: self._end_s(engine, running) for engine, running in loads.items()}
        for _ in range(len(loads) - 1):
            last, first = max(ends, key=ends.__getitem__), min(ends, key=ends.__getitem__)
            moved = self._to_move([each for each in loads[last] if each.request not in chosen], loads, last, first)
            going = {each.request for each in moved}
            kept, joined = [each for each in loads[last] if each.request not in going], loads[first] + moved
            prefill_s = PREFILL_S * sum(each.num_known for each in moved)
            left_s, joined_s = self._end_s(last, kept), self._end_s(first, joined) + prefill_s
            if not moved or ends[last] - max(left_s, joined_s) <= self._settings.gain_s:
                break
            loads[last], loads[first], ends[last], ends[first] = kept, joined, left_s, joined_s
            chosen |= dict.fromkeys(each.request for each in moved)
        for request in chosen:
            self._num_moves[request] = self._num_moves.get(request, 0) + 1
        return list(chosen)

    def _end_s(self, engine: EngineId, running: Sequence[_Running]) -> float:
        """Seconds until an engine has generated what it has."""
        if not running:
            return 0.0
        num_slots = min(len(running), self._settings.num_slots)
        turns = len(running) / num_slots
        return turns * fmean(each.num_left for each in running) * self._times.pass_s(engine, num_slots)

    def _to_move(
        self, movable: Sequence[_Running], loads: Mapping[EngineId, Sequence[_Running]], last: EngineId, first: EngineId
    ) -> list[_Running]:
        """List what makes the loads of two engines equal for their speeds, the fewest tokens first."""
        fast, slow = self.speeds.get(first, 1.0), self.speeds.get(last, 1.0)
        num = int((len(loads[last]) * fast - len(loads[first]) * slow) / (fast + slow))
        free = [each for each in movable if self._num_moves.get(each.request, 0) < self._settings.max_moves]
        return sorted(free, key=lambda each: each.num_known)[: max(num, 0)]

    @property
    def _timer(self) -> str:
        return f"balance of round {self._round}"

    # Self-check and snapshot

    def check(self) -> None:
        """Re-derive the machine's invariants.

        Raises:
            InvariantViolated: The state contradicts itself.
        """
        self._times.check()
        if max(self._num_moves.values(), default=0) > self._settings.max_moves:
            raise InvariantViolated(f"Requests moved more than {self._settings.max_moves} times: {self._num_moves}")
        if (self._is_waiting or self._num_moves) and not self._is_open:
            raise InvariantViolated(f"Round {self._round} is over, and it is watched.")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {
            "times": self._times.snapshot(),
            "recent_lengths": list(self._recent_lengths),
            "round": self._round,
            "is_open": self._is_open,
            "is_waiting": self._is_waiting,
            "asked": list(self._asked),
            "measured_at_s": self._measured_at_s,
            "progress": [[request.as_list(), *where] for request, where in self._progress.items()],
            "num_moves": [[request.as_list(), num] for request, num in self._num_moves.items()],
        }

    @classmethod
    def restore(cls, settings: BalanceSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot; the settings may be others between two attempts."""
        machine = cls(settings)
        machine._times = PassTimes.restore(snapshot["times"])
        machine._recent_lengths.extend(snapshot["recent_lengths"])
        machine._round, machine._is_open = snapshot["round"], snapshot["is_open"]
        machine._is_waiting, machine._asked = snapshot["is_waiting"], list(snapshot["asked"])
        machine._measured_at_s = snapshot["measured_at_s"]
        machine._progress = {
            RequestId.from_list(name): (EngineId(engine), num) for name, engine, num in snapshot["progress"]
        }
        machine._num_moves = {RequestId.from_list(name): num for name, num in snapshot["num_moves"]}
        return machine
