"""When the tail of a round goes on with engines of the largest tensor-parallel degree, and whether it does.

Theory of operation
===================

A round in which every response is waited for ends with a few long ones. On engines of a small degree each of them
decodes slowly, on a GPU or two, and the other GPUs are idle. Engines of a larger degree decode each faster. So once per
round all engines may be changed for those of the largest degree, which hold the weights already and lack only a KV
cache: what is under way is evicted with its tokens and computed again there. The next round begins with the engines
that the planner says.

    state      event                                                          next state
    resting    BeginRound of a round without a race, on a smaller degree      watching
    watching   a finish, with as few responses in flight as are due:          measuring, with MeasureProgress
               `first_share` of the launched ones, then each `step_share` of
               those at the last test
    measuring  ProgressMeasured, and a change pays                            emptying, with EscalateTail
               ProgressMeasured, and it does not                              watching
    emptying   the last answer of the engines: they are empty                 changing, with SwitchEngines
    changing   EnginesSwitched                                                resting, on the largest degree
    any        EndRound, before anything is ordered                           resting

A change **pays** if larger engines decode the batches of this moment faster, and if what is left then takes less time
on them by more than the change costs:

    pace * (decode here - decode there) - prefill there  >  change there + change back

* What is left is played (`core.round_time_model`). A response that has g tokens ends as one of those did that were
  longer than g, among the last `num_recent_lengths` of rounds of the kind; the n responses in flight are spread evenly
  over the ranks of these, so that the longest is as long as the longest of n is on average. Where none was longer than
  g, it is taken to end at `max_response_tokens`.
* `pace` is what a token took, between two measurements of a round, over what the costs say: draft tokens are in it.
* A change costs what the last one took, from its order until the last engine had joined; `first_cost_s` before there
  was one. The way back is what the planner is told of changes between rounds.

With engines lent to the trainer, only those larger engines count whose GPUs are all the rollout's; while engines are
being lent, the test waits. An engine that is missing from the measurement may have anything left: then nothing is
changed.

Larger engines that are lost as they take over are replaced as any (`core.restarts`); where all are and none may start
again, the run ends, although those of before could have gone on.

Invariant: at most one change in a round, and only to a larger degree.

Source: the degrees and their costs are RollPacker's, section 4.2; a change in the midst of a round is this project's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Self

from rollpacker.core.commands import BeginRound, EscalateTail, MeasureProgress, RoundKind, SwitchEngines, UseParallelism
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import EnginesSwitched, ProgressMeasured, RunningRequest
from rollpacker.core.ids import EngineId, RequestId
from rollpacker.core.round_time_model import Rest, rest_s
from rollpacker.core.settings import ParallelismSettings


class Stage(StrEnum):
    """How far a round is with its change."""

    RESTING = "resting"
    WATCHING = "watching"
    MEASURING = "measuring"
    EMPTYING = "emptying"
    CHANGING = "changing"


class TailEscalation:
    """Watches how few responses are left, and changes the engines for the rest of a round."""

    def __init__(self, settings: ParallelismSettings) -> None:
        assert settings.escalation is not None
        self._settings = settings.escalation
        self._costs = {each.degree: each for each in settings.costs}
        self._target = settings.degrees[-1]
        self._degree = settings.initial
        """That the engines have, or are to have from the next round on."""
        self._gpus: dict[EngineId, tuple[int, ...]] = {}
        """Of every engine of the fleet."""
        self._lengths: dict[RoundKind, deque[int]] = {}
        """Of the last finished responses of rounds of a kind, oldest first."""
        self._stage = Stage.RESTING
        self._round = -1
        """The open round, or the last one."""
        self._kind = RoundKind.PLAIN
        self._num_in_flight = 0
        self._due_at = 0
        """So many in flight, or fewer, are measured."""
        self._has_measured = False
        """In this round."""
        self._before: tuple[float, dict[RequestId, int]] | None = None
        """When the round was measured last, and the tokens that its responses had."""
        self._pace = 1.0
        self._ordered_at_s = 0.0
        self._cost_s = self._settings.first_cost_s
        self._back_s = 0.0

    # The fleet

    def join(self, engine: EngineId, gpus: tuple[int, ...]) -> None:
        """Note an engine's GPUs."""
        self._gpus[engine] = gpus

    def leave(self, engine: EngineId) -> None:
        """Forget an engine."""
        self._gpus.pop(engine, None)

    def open(self, degree: int) -> None:
        """Begin an attempt of the run, on engines of a degree: what the one before had ordered was not done."""
        self._stage, self._degree = Stage.RESTING, degree

    def follow(self, degree: int) -> tuple[UseParallelism, ...]:
        """Have the next round begin with a degree; nothing is ordered if the engines have it."""
        if degree == self._degree:
            return ()
        self._degree = degree
        return (UseParallelism(tensor_parallel=degree),)

    def note_switch(self, switch_time_s: float) -> None:
        """Note what the last change between rounds took; 0 without one."""
        self._back_s = switch_time_s or self._back_s

    # The round

    def begin_round(self, command: BeginRound) -> None:
        """Watch a new round, if its end is that of all its responses and there are larger engines."""
        self._round, self._kind = command.round, command.kind
        self._num_in_flight = command.num_prompts_launched * command.num_responses_launched
        self._due_at = math.floor(self._settings.first_share * self._num_in_flight)
        self._has_measured, self._before = False, None
        self._lengths.setdefault(command.kind, deque(maxlen=self._settings.num_recent_lengths))
        can_change = not command.races and self._degree < self._target
        self._stage = Stage.WATCHING if can_change else Stage.RESTING

    def end_round(self) -> None:
        """Rest until the next round, unless a change is under way."""
        if not self.is_under_way:
            self._stage = Stage.RESTING

    def count_finish(self, num_tokens: int) -> tuple[MeasureProgress, ...]:
        """Count a response of the round that finished, and ask for a measurement when one is due."""
        self._lengths[self._kind].append(num_tokens)
        self._num_in_flight -= 1
        return self.ask()

    def ask(self) -> tuple[MeasureProgress, ...]:
        """Ask for a measurement if one is due."""
        if self._stage is not Stage.WATCHING or not 0 < self._num_in_flight <= self._due_at:
            return ()
        self._due_at = math.floor(self._settings.step_share * self._num_in_flight)
        self._stage, self._has_measured = Stage.MEASURING, True
        return (MeasureProgress(round=self._round),)

    # The decision

    def has_ordered(self, event: ProgressMeasured) -> bool:
        """Tell whether a measurement may answer an order of this machine."""
        return event.round < self._round or (event.round == self._round and self._has_measured)

    def postpone(self, event: ProgressMeasured) -> None:
        """Have a measurement made again, once engines that are being lent are empty."""
        if event.round == self._round and self._stage is Stage.MEASURING:
            self._stage, self._due_at = Stage.WATCHING, self._num_in_flight

    def choose(
        self,
        event: ProgressMeasured,
        engines: Sequence[EngineId],
        holders: Mapping[RequestId, EngineId | None],
        now: float,
    ) -> tuple[EscalateTail, ...]:
        """Change the engines now, if that pays; a late measurement changes nothing.

        Args:
            event: The measurement.
            engines: That are open, all of them of this allocation.
            holders: Which engine holds each request in flight, by what was told so far.
            now: Seconds since the run began.
        """
        if event.round != self._round or self._stage is not Stage.MEASURING:
            return ()
        self._stage = Stage.WATCHING
        progress_of = {progress.engine: progress for progress in event.engines}
        if not engines or not all(engine in progress_of for engine in engines):
            return ()
        running = [
            request
            for engine in engines
            for request in progress_of[engine].running
            if holders.get(request.request) == engine
        ]
        self._learn_pace(running, len(engines), now)
        num_larger = self._num_larger(engines)
        if not running or not num_larger or not self._pays(running, len(engines), num_larger):
            return ()
        self._stage, self._ordered_at_s = Stage.EMPTYING, now
        return (EscalateTail(round=self._round, tensor_parallel=self._target),)

    def _num_larger(self, engines: Sequence[EngineId]) -> int:
        """Count the engines of the largest degree whose GPUs are those of open engines."""
        if not self._settings.gpus:
            return self._costs[self._target].num_engines
        free = {gpu for engine in engines for gpu in self._gpus[engine]}
        return sum(free.issuperset(gpus) for gpus in self._settings.gpus)

    def _learn_pace(self, running: Sequence[RunningRequest], num_engines: int, now: float) -> None:
        num_tokens = {request.request: request.num_generated_tokens for request in running}
        before, self._before = self._before, (now, num_tokens)
        if before is None:
            return
        began_at_s, had = before
        gained = [num_tokens[request] - had[request] for request in num_tokens if request in had]
        num_gained = sum(gained) / len(gained) if gained else 0.0
        if num_gained <= 0 or now <= began_at_s:
            return
        cached = sum(request.num_prompt_tokens + request.num_generated_tokens for request in running) / num_engines
        costs = self._costs[self._degree]
        pass_s = costs.decode_s(math.ceil(len(running) / num_engines)) + costs.kv_read_s * cached
        if pass_s > 0:
            self._pace = (now - began_at_s) / num_gained / pass_s

    def _pays(self, running: Sequence[RunningRequest], num_engines: int, num_larger: int) -> bool:
        here, there = self._costs[self._degree], self._costs[self._target]
        num_here, num_there = math.ceil(len(running) / num_engines), math.ceil(len(running) / num_larger)
        if there.decode_s(num_there) >= here.decode_s(num_here):
            return False
        rests = self._expected_rests(running)
        decode_here_s, _ = rest_s(here, rests, num_engines)
        decode_there_s, prefill_s = rest_s(there, rests, num_larger)
        return self._pace * (decode_here_s - decode_there_s) - prefill_s > self._cost_s + self._back_s

    def _expected_rests(self, running: Sequence[RunningRequest]) -> list[Rest]:
        """Say what is left of each response; the further it is, the higher is its rank among those that were longer."""
        lengths = sorted(self._lengths[self._kind])
        rests = []
        for rank, request in enumerate(sorted(running, key=lambda each: (each.num_generated_tokens, each.request)), 1):
            had = request.num_generated_tokens
            num_shorter = bisect_right(lengths, had)
            num_longer = len(lengths) - num_shorter
            index = num_shorter + rank * num_longer // (len(running) + 1)
            end = lengths[index] if num_longer else max(self._settings.max_response_tokens, had + 1)
            rests.append(Rest(request.num_prompt_tokens + had, end - had))
        return rests

    # The change

    @property
    def is_emptying(self) -> bool:
        """True while engines give back what they had."""
        return self._stage is Stage.EMPTYING

    @property
    def is_under_way(self) -> bool:
        """True from the order to change engines until that is done."""
        return self._stage in {Stage.EMPTYING, Stage.CHANGING}

    def switch(self) -> SwitchEngines:
        """Let larger engines take the place of those that are empty."""
        self._stage, self._degree = Stage.CHANGING, self._target
        return SwitchEngines(round=self._round, tensor_parallel=self._target)

    def end(self, event: EnginesSwitched, now: float) -> None:
        """Note that the larger engines are there.

        Raises:
            ImpossibleEvent: It was not ordered; nothing was changed.
        """
        if self._stage is not Stage.CHANGING or event.round != self._round:
            raise ImpossibleEvent(f"Engines were changed in round {event.round}, which was not ordered.")
        self._stage, self._cost_s = Stage.RESTING, now - self._ordered_at_s

    # Self-check and snapshot

    def check(self, fleet: Sequence[EngineId]) -> None:
        """Re-derive the machine's invariants.

        Raises:
            InvariantViolated: It knows another fleet, or changes to what the engines have.
        """
        if self._gpus.keys() != set(fleet):
            raise InvariantViolated(f"The fleet is {list(fleet)}; GPUs are known of {list(self._gpus)}.")
        has_target = self._degree == self._target
        if self._degree not in self._costs or (has_target and self._stage not in {Stage.RESTING, Stage.CHANGING}):
            raise InvariantViolated(f"Round {self._round} is {self._stage} on engines of degree {self._degree}.")
        if self._num_in_flight < 0 and self._stage is not Stage.RESTING:
            raise InvariantViolated(f"More responses of round {self._round} finished than were launched.")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        before = self._before
        return {
            "gpus": {engine: list(gpus) for engine, gpus in self._gpus.items()},
            "lengths": {kind.value: list(lengths) for kind, lengths in self._lengths.items()},
            "stage": self._stage.value,
            "kind": self._kind.value,
            "before": before and [before[0], [[*request.as_list(), had] for request, had in before[1].items()]],
            **{name: getattr(self, f"_{name}") for name in _PLAIN},
        }

    @classmethod
    def restore(cls, settings: ParallelismSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot; a degree that is no longer allowed is forgotten."""
        machine = cls(settings)
        assert settings.escalation is not None
        machine._gpus = {EngineId(engine): tuple(gpus) for engine, gpus in snapshot["gpus"].items()}
        machine._lengths = {
            RoundKind(kind): deque(lengths, maxlen=settings.escalation.num_recent_lengths)
            for kind, lengths in snapshot["lengths"].items()
        }
        machine._stage, machine._kind = Stage(snapshot["stage"]), RoundKind(snapshot["kind"])
        if snapshot["before"]:
            measured_at_s, rows = snapshot["before"]
            machine._before = (measured_at_s, {RequestId.from_list(row): had for *row, had in rows})
        for name in _PLAIN:
            setattr(machine, f"_{name}", snapshot[name])
        if machine._degree not in settings.degrees:
            machine._degree = settings.initial
        return machine


_PLAIN = (
    "degree",
    "round",
    "num_in_flight",
    "due_at",
    "has_measured",
    "pace",
    "ordered_at_s",
    "cost_s",
    "back_s",
)
"""Parts of the state that JSON has as they are."""
