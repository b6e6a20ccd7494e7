"""Trajectories of several turns: which wait for their environment, and what follows when an environment fails.

A trajectory is one request: a policy writes a turn, its environment answers, and the policy goes on from the tokens so
far. Batching and evaluation know it as a request that runs until it has finished, so races, long rounds, dynamic
sampling and asynchronous steps treat it as any other. The router holds it while an engine generates a turn, and no
engine has anything of it while its environment acts: its slot is another's. Its next turn prefers the engine of its
last one, whose prefix cache may still hold the conversation (`core.load_order`).

    queued ──fewer than `max_open` are open──> opening ──EnvironmentBegan──> acting
    acting ──EnvironmentStepped──> generating ──TurnFinished──> acting
       │
       ├──done, or a limit is reached──> finished
       └──EnvironmentFailed, or its time is over──> queued: it begins again `max_restarts` times, without what it had,
                                                    and is then given up

The time of a reset begins with it: until then a trajectory waits for a process and for a core to start it on, which
those that run environments bound. Only where nothing is heard of any start for `opening_timeout_s` are they stuck, and
what is opening fails. An answer without an `EnvironmentBegan` is one to a reset that began at once.

Held-out trajectories have as many places of their own, for in an asynchronous run those that are suspended keep theirs
while others are evaluated. With `starts_per_minute` places are given out evenly over time, by the timer that watches
over the deadlines; to held-out trajectories first, since training waits for their evaluation.

An environment that crashes or hangs is no engine that fails: nothing but its own trajectory is concerned. One that is
lost with its node, or with an attempt of the run, is not counted; a turn that waits for an engine then is not
generated. A trajectory that is given up never finishes. A prompt with fewer others than its group needs is dropped, and
counted; a held-out trajectory counts as finished, with what it has. So no prompt is tried for ever, and a long round,
which has no race, ends.

Each call to the environments of a request has a number, over all restarts. An answer with an older number, or to a
trajectory that was stopped, is late: it changes nothing. One that never comes is made up for by the time limits.

Invariant: a trajectory that batching or evaluation waits for is in one of four states, `generating` if and only if it
is the router's, and one that opens or acts has a deadline that a timer will not miss.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import Any, Final, Self

from rollpacker.core.batching_machine import GivenUp
from rollpacker.core.commands import CloseEnvironment, Command, OpenEnvironment, SetTimer, StepEnvironment
from rollpacker.core.environment_events import (
    EnvironmentBegan,
    EnvironmentEvent,
    EnvironmentFailed,
    EnvironmentStepped,
    TurnFinished,
)
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import ResponseAborted, ResponseFinished, TimerFired
from rollpacker.core.ids import EngineId, RequestId, VersionSpan, is_held_out
from rollpacker.core.routing import Router
from rollpacker.core.settings import EnvironmentSettings

TIMER: Final = "environments"

FINISHED: Final = "finished"
STOPPED: Final = "stopped"
TIMEOUT: Final = "environment_timeout"
LOST: Final = "environment_lost"
"""With its node, or with the attempt of the run that had it: not the trajectory's fault, and not counted."""
NO_TURN: Final = "environment_over"
"""Its reset left the policy nothing to say."""

Conclude = Callable[[ResponseFinished | GivenUp], tuple[Command, ...]]
"""Tells batching or evaluation that a trajectory has finished, or was given up, and gives what follows."""
Note = Callable[[ResponseAborted], object]
"""Tells batching what a trajectory had that was stopped."""


class Stage(StrEnum):
    """What a trajectory waits for."""

    QUEUED = "queued"
    """For a place among the open environments."""
    OPENING = "opening"
    """For its environment to begin its reset."""
    ACTING = "acting"
    """For its environment."""
    GENERATING = "generating"
    """For an engine."""


_CALLED = (Stage.OPENING, Stage.ACTING)


class _Trajectory:
    """A request between its start and its end."""

    __slots__ = ("acted_s", "call", "called_at_s", "due_at_s", "num_restarts", "num_turns", "stage", "turn")

    def __init__(self) -> None:
        self.stage = Stage.QUEUED
        self.call = -1
        """Number of the last call to its environments."""
        self.called_at_s = self.due_at_s = 0.0
        """While it opens or acts."""
        self.acted_s = 0.0
        """What the answers of this attempt took."""
        self.num_turns = 0
        """That a policy has written in this attempt."""
        self.num_restarts = 0
        self.turn: TurnFinished | None = None
        """The last one of this attempt."""

    def begin_again(self, *, counts: bool) -> None:
        self.stage, self.num_turns, self.turn, self.acted_s = Stage.QUEUED, 0, None, 0.0
        self.num_restarts += counts


class Environments:
    """Keeps the trajectories of a run that are under way."""

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._settings = settings
        self._trajectories: dict[RequestId, _Trajectory] = {}
        """In the order in which they were started."""
        self._queues: dict[bool, OrderedDict[RequestId, None]] = {False: OrderedDict(), True: OrderedDict()}
        """Those that are queued, in order: the held-out ones are under True. As in `core.waiting` no plain dicts."""
        self._num_open = {False: 0, True: 0}
        """The others, likewise."""
        self._to_step: list[RequestId] = []
        """Whose turn has ended; empty between events."""
        self._to_close: list[CloseEnvironment] = []
        """Empty between events."""
        self._deadlines: list[tuple[float, RequestId, int]] = []
        """A heap of (time, request, call); an entry with another time or call than the trajectory's last is void."""
        self._heard_at_s = -math.inf
        """When a reset began last, or something failed: starts are under way."""
        self._timer_at_s = math.inf
        """When the timer is due that is set."""
        self._next_start_s = -math.inf
        """No environment may be opened before."""

    # What batching and evaluation decide

    def start(self, requests: Iterable[RequestId]) -> None:
        """Let trajectories begin, as places become free."""
        for request in requests:
            self._trajectories[request] = _Trajectory()
            self._queues[is_held_out(request)][request] = None

    def stop(self, requests: Iterable[RequestId], note: Note) -> list[RequestId]:
        """End trajectories that are not needed any more; gives those that an engine generates.

        Args:
            requests: Of trajectories under way.
            note: Told what each had when its last turn ended: one whose environment acts is on no engine that could.
        """
        stopped = [(request, self._end(request, STOPPED)) for request in requests]
        for request, trajectory in stopped:
            if (turn := trajectory.turn) is not None:
                note(ResponseAborted(request=request, engine=turn.engine, num_tokens=turn.num_tokens))
        return [request for request, trajectory in stopped if trajectory.stage is Stage.GENERATING]

    def has(self, request: RequestId) -> bool:
        """Tell whether a trajectory is under way."""
        return request in self._trajectories

    def is_generating(self, request: RequestId) -> bool:
        """Tell whether a trajectory is the router's."""
        return self._trajectories[request].stage is Stage.GENERATING

    # Facts

    def handle(self, event: EnvironmentEvent, now: float, router: Router, conclude: Conclude) -> tuple[Command, ...]:
        """Take in one fact.

        Args:
            event: What happened, to a request that batching or evaluation knows.
            now: Seconds since the run began.
            router: Has what is generated.
            conclude: Told of a trajectory that ends.

        Raises:
            ImpossibleEvent: It cannot have happened; nothing was changed.
        """
        if isinstance(event, TurnFinished):
            self._end_turn(event, router)
            return ()
        trajectory = self._concerned_by(event, router)
        if trajectory is None:
            return ()
        if isinstance(event, EnvironmentStepped):
            return self._take_answer(event, trajectory, now, router, conclude)
        self._heard_at_s = now
        if isinstance(event, EnvironmentFailed):
            if trajectory.stage is Stage.GENERATING:
                router.abort([event.request])
            return self._fail(event.request, event.reason, conclude)
        if trajectory.stage is Stage.OPENING:
            self._wait_for(event.request, Stage.ACTING, now, self._settings.reset_timeout_s)
        return ()

    def _take_answer(
        self, event: EnvironmentStepped, trajectory: _Trajectory, now: float, router: Router, conclude: Conclude
    ) -> tuple[Command, ...]:
        """Let a trajectory go on, or end it."""
        is_over = event.is_done or event.num_tokens_left <= 0 or trajectory.num_turns >= self._settings.max_turns
        if not is_over:
            trajectory.acted_s += now - trajectory.called_at_s
            trajectory.stage = Stage.GENERATING
            return tuple(router.launch([event.request], trajectory.turn.engine if trajectory.turn else None))
        if trajectory.turn is None:  # the policy has written nothing that could be trained
            return self._fail(event.request, NO_TURN, conclude)
        commands = conclude(_finish_of(event.request, trajectory.turn))
        self._end(event.request, FINISHED)
        return commands

    def _concerned_by(
        self, event: EnvironmentBegan | EnvironmentStepped | EnvironmentFailed, router: Router
    ) -> _Trajectory | None:
        """Look up the trajectory that this concerns; None if it comes late."""
        trajectory = self._trajectories.get(event.request)
        if trajectory is None or event.call < trajectory.call:
            return None
        if event.call > trajectory.call:
            raise ImpossibleEvent(f"{event.request} was answered call {event.call}.", f"The last is {trajectory.call}.")
        is_lost = isinstance(event, EnvironmentFailed) and event.reason == LOST
        is_unanswerable = is_lost and trajectory.stage is Stage.GENERATING and router.holders[event.request] is None
        return trajectory if trajectory.stage in _CALLED or is_unanswerable else None

    def _end_turn(self, event: TurnFinished, router: Router) -> None:
        """Have the environment answer, unless the engine speaks of what it does not hold any more."""
        is_news = not router.has_moved(event.request, event.engine) and router.is_in_flight(event.request)
        router.note_answer(event.request, event.engine)
        if is_news:
            router.finish(event.request)
            trajectory = self._trajectories[event.request]
            trajectory.stage, trajectory.turn = Stage.ACTING, event
            trajectory.num_turns += 1
            self._to_step.append(event.request)

    def fire(self, event: TimerFired, now: float, conclude: Conclude) -> tuple[Command, ...]:
        """Give up the environments whose time is over; nothing for other timers."""
        if event.timer != TIMER:
            return ()
        reached_s = max(now, self._timer_at_s)  # a clock that is rounded may show a little less than the timer's time
        self._timer_at_s = math.inf
        if self._next_start_s <= reached_s:
            self._next_start_s = -math.inf
        commands: list[Command] = []
        while (due := self._next_due()) is not None and due[0] <= reached_s:
            heard_s = self._heard_at_s + self._settings.opening_timeout_s
            if self._trajectories[due[1]].stage is Stage.OPENING and heard_s > reached_s:
                self._set_deadline(due[1], heard_s)
            else:
                commands += self._fail(due[1], TIMEOUT, conclude)
        return tuple(commands)

    def _fail(self, request: RequestId, reason: str, conclude: Conclude) -> tuple[Command, ...]:
        """Let a trajectory begin again, or give it up."""
        trajectory = self._trajectories[request]
        if reason == LOST or trajectory.num_restarts < self._settings.max_restarts:
            self._to_close.append(CloseEnvironment(request=request, reason=reason, begins_again=True))
            trajectory.begin_again(counts=reason != LOST)
            self._num_open[is_held_out(request)] -= 1
            self._queues[is_held_out(request)][request] = None
            return ()
        self._end(request, reason)
        return conclude(_finish_of(request, trajectory.turn) if is_held_out(request) else GivenUp(request=request))

    def _end(self, request: RequestId, reason: str) -> _Trajectory:
        trajectory = self._trajectories.pop(request)
        if trajectory.stage is Stage.QUEUED:
            del self._queues[is_held_out(request)][request]
        else:
            self._num_open[is_held_out(request)] -= 1
            self._to_close.append(CloseEnvironment(request=request, reason=reason))
        return trajectory

    # Orders

    def close(self) -> list[CloseEnvironment]:
        """Give the orders for what is over; they come before all else that an event leads to."""
        closing, self._to_close = self._to_close, []
        return closing

    def act(self, now: float) -> tuple[Command, ...]:
        """Have environments answer the turns that have ended, open what has a place, and see to the timer."""
        orders: list[Command] = []
        for request in self._to_step:
            if request in self._trajectories:
                call = self._call(request, Stage.ACTING, now, self._settings.turn_timeout_s)
                orders.append(StepEnvironment(request=request, call=call))
        self._to_step = []
        may_start = now >= self._next_start_s  # else what waits, perhaps much, is not looked through
        for request in [*self._startable(True), *self._startable(False)] if may_start else ():
            if now < self._next_start_s:
                break
            if self._settings.start_interval_s:
                self._next_start_s = now + self._settings.start_interval_s
            del self._queues[is_held_out(request)][request]
            self._num_open[is_held_out(request)] += 1
            call = self._call(request, Stage.OPENING, now, self._settings.opening_timeout_s)
            orders.append(OpenEnvironment(request=request, call=call))
        due = self._next_due()
        due_s = min(due[0] if due is not None else math.inf, self._next_start_s if self._may_start else math.inf)
        if due_s < self._timer_at_s:
            self._timer_at_s = due_s
            orders.append(SetTimer(timer=TIMER, at_s=due_s))
        return tuple(orders)

    def _startable(self, are_held_out: bool) -> list[RequestId]:
        """Those that are queued and have a place."""
        num_places = max(0, self._settings.max_open - self._num_open[are_held_out])
        return list(itertools.islice(self._queues[are_held_out], num_places))

    @property
    def _may_start(self) -> bool:
        """Whether a trajectory waits for nothing but its turn among the starts of a minute."""
        return any(self._queues[each] and self._num_open[each] < self._settings.max_open for each in self._queues)

    def _call(self, request: RequestId, stage: Stage, now: float, limit_s: float) -> int:
        trajectory = self._trajectories[request]
        trajectory.call += 1
        self._wait_for(request, stage, now, limit_s)
        return trajectory.call

    def _wait_for(self, request: RequestId, stage: Stage, now: float, limit_s: float) -> None:
        """Let a trajectory open or act from now on, so long at most."""
        trajectory = self._trajectories[request]
        trajectory.stage, trajectory.called_at_s = stage, now
        left_s = self._settings.episode_timeout_s - trajectory.acted_s if stage is Stage.ACTING else math.inf
        self._set_deadline(request, now + min(limit_s, left_s))

    def _set_deadline(self, request: RequestId, due_at_s: float) -> None:
        trajectory = self._trajectories[request]
        trajectory.due_at_s = due_at_s
        heapq.heappush(self._deadlines, (due_at_s, request, trajectory.call))

    def _next_due(self) -> tuple[float, RequestId, int] | None:
        while self._deadlines:
            due_at_s, request, call = self._deadlines[0]
            found = self._trajectories.get(request)
            if found and found.stage in _CALLED and (found.due_at_s, found.call) == (due_at_s, call):
                return self._deadlines[0]
            heapq.heappop(self._deadlines)
        return None

    @property
    def open(self) -> list[tuple[RequestId, int]]:
        """What has an environment, with the number of its last call: in another attempt of the run none is there."""
        queued = Stage.QUEUED
        return [(request, each.call) for request, each in self._trajectories.items() if each.stage is not queued]

    @property
    def acting(self) -> list[tuple[RequestId, int]]:
        """What environments owe an answer, with the number of the call."""
        return [(request, each.call) for request, each in self._trajectories.items() if each.stage in _CALLED]

    @property
    def acting_tokens(self) -> list[int]:
        """Tokens that each trajectory has so far whose environment owes an answer."""
        acting = (each for each in self._trajectories.values() if each.stage in _CALLED)
        return [each.turn.num_tokens if each.turn else 0 for each in acting]

    # Self-check and snapshot

    def check(self, running: Collection[RequestId]) -> None:
        """Re-derive the machine's invariants.

        Args:
            running: What batching and evaluation wait for.

        Raises:
            InvariantViolated: The state contradicts itself, or what is waited for.
        """
        if self._trajectories.keys() != set(running):
            differing = sorted(str(each) for each in self._trajectories.keys() ^ set(running))
            raise InvariantViolated(f"Trajectories and what is waited for differ by {', '.join(differing)}")
        for each, queue in self._queues.items():
            of_kind = {request for request in self._trajectories if is_held_out(request) is each}
            queued = {request for request in of_kind if self._trajectories[request].stage is Stage.QUEUED}
            num_open = len(of_kind) - len(queued)
            if queued != queue.keys() or num_open != self._num_open[each] or num_open > self._settings.max_open:
                raise InvariantViolated(f"{num_open} environments are open; queued are {queued}, known {list(queue)}")
            if queued and num_open < self._settings.max_open and self._timer_at_s > self._next_start_s:
                raise InvariantViolated(f"{len(queued)} trajectories wait, and only {num_open} are open.")
        if self._to_step or self._to_close:
            raise InvariantViolated(f"{len(self._to_step)} steps and {len(self._to_close)} ends were not ordered.")
        deadlines = set(self._deadlines)
        for request, call in self.acting:
            due_at_s = self._trajectories[request].due_at_s
            if due_at_s < self._timer_at_s or (due_at_s, request, call) not in deadlines:
                raise InvariantViolated(f"{request} opens or acts, and no timer will end it.")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {
            "trajectories": [
                {
                    "request": request.as_list(),
                    "stage": each.stage.value,
                    "call": each.call,
                    "called_at_s": each.called_at_s,
                    "due_at_s": each.due_at_s,
                    "acted_s": each.acted_s,
                    "num_turns": each.num_turns,
                    "num_restarts": each.num_restarts,
                    "turn": each.turn and [each.turn.engine, each.turn.num_tokens, [list(s) for s in each.turn.spans]],
                }
                for request, each in self._trajectories.items()
            ],
            "queue": [request.as_list() for queue in self._queues.values() for request in queue],
            "timer_at_s": None if self._timer_at_s == math.inf else self._timer_at_s,
            "next_start_s": None if self._next_start_s == -math.inf else self._next_start_s,
            "heard_at_s": None if self._heard_at_s == -math.inf else self._heard_at_s,
        }

    @classmethod
    def restore(cls, settings: EnvironmentSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot."""
        machine = cls(settings)
        for row in snapshot["trajectories"]:
            request, each = RequestId.from_list(row["request"]), _Trajectory()
            each.stage, each.call = Stage(row["stage"]), row["call"]
            each.called_at_s, each.due_at_s, each.acted_s = row["called_at_s"], row["due_at_s"], row["acted_s"]
            each.num_turns, each.num_restarts = row["num_turns"], row["num_restarts"]
            if row["turn"] is not None:
                engine, num_tokens, spans = row["turn"]
                of_turn = tuple(VersionSpan(*span) for span in spans)
                each.turn = TurnFinished(request=request, engine=EngineId(engine), num_tokens=num_tokens, spans=of_turn)
            machine._trajectories[request] = each
            if each.stage in _CALLED:
                heapq.heappush(machine._deadlines, (each.due_at_s, request, each.call))
        for request in map(RequestId.from_list, snapshot["queue"]):
            machine._queues[is_held_out(request)][request] = None
        for request in machine._trajectories.keys() - set().union(*machine._queues.values()):
            machine._num_open[is_held_out(request)] += 1
        next_start_s, heard_at_s = snapshot["next_start_s"], snapshot["heard_at_s"]
        machine._next_start_s = -math.inf if next_start_s is None else next_start_s
        machine._heard_at_s = -math.inf if heard_at_s is None else heard_at_s
        machine._timer_at_s = math.inf if snapshot["timer_at_s"] is None else snapshot["timer_at_s"]
        return machine


def _finish_of(request: RequestId, turn: TurnFinished | None) -> ResponseFinished:
    """The end of a trajectory whose last turn this is; of one without any, that of an empty response."""
    if turn is None:
        return ResponseFinished(request=request, engine=EngineId(""), num_tokens=0, spans=())
    return ResponseFinished(request=request, engine=turn.engine, num_tokens=turn.num_tokens, spans=turn.spans)
