"""What an attempt's event log knows and no table does: when engines and rollout workers came and went.

The log of a long run has millions of lines, and few of them matter here: a line is parsed only when it holds one of
the words that are looked for. An attempt that was killed may have begun steps that the next one made again: what it
logged after that one's beginning does not count, for the tables do not hold it either.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from rollpacker.metrics.event_log import attempt_paths, scan_event_log

Happening = Literal["joined", "lost", "retired", "lent", "arrived", "left", "fleet_change", "tail_change"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One thing that happened to an engine, to all of them, or to a rollout worker."""

    at_s: float
    what: Happening
    engine: str | None
    """The worker, where it arrived or left; None of a change of all engines, between rounds or in the midst of one."""
    gpus: tuple[int, ...] = ()
    """Of an engine that joined, the run's GPUs that it works on; empty where they are not known."""
    tensor_parallel: int | None = None
    """Of the next fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the run."""

    number: int
    first_step: int | None
    """None when it began no step."""
    began_at_s: float
    """Seconds since the run began, which does not go on between attempts."""
    ended_at_s: float
    """When it was last heard of, by the clock as it was then: the next attempt may begin at an earlier time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedMoments:
    """All attempts of a run."""

    attempts: tuple[Attempt, ...]
    moments: tuple[Moment, ...]
    """In order."""
    steps: frozenset[int]
    """Those that were begun."""

    def lives(self) -> dict[str, list[tuple[float, float]]]:
        """When each of the run's own engines was there; the last ones without an end.

        An attempt begins without the engines of the one before, and in a change all engines give way to others. An
        attempt that began no earlier than a later one does not count.
        """
        lives: dict[str, list[tuple[float, float]]] = {}
        joined_at_s: dict[str, float] = {}
        begins: list[tuple[float, None]] = []
        for attempt in self.attempts:
            begins = [each for each in begins if each[0] < attempt.began_at_s] + [(attempt.began_at_s, None)]
        for at_s, moment in heapq.merge(begins, ((each.at_s, each) for each in self.moments), key=itemgetter(0)):
            if moment is not None and moment.what == "joined" and moment.engine is not None:
                joined_at_s.setdefault(moment.engine, at_s)
            elif moment is None or moment.what != "lent":
                gone = list(joined_at_s) if moment is None or moment.engine is None else [moment.engine]
                for engine in gone:
                    if engine in joined_at_s:
                        lives.setdefault(engine, []).append((joined_at_s.pop(engine), at_s))
        for engine, since_s in joined_at_s.items():
            lives.setdefault(engine, []).append((since_s, math.inf))
        return lives


_EVENTS: Mapping[str, Happening] = {
    "EngineJoined": "joined",
    "EngineLost": "lost",
    "EngineRetired": "retired",
    "WorkerArrived": "arrived",
    "WorkerLeft": "left",
}
_COMMANDS = ("LendEngines", "SwitchEngines", "UseParallelism")


def read_moments(run_dir: Path) -> LoggedMoments:
    """Scan every attempt's log.

    Raises:
        DataError: One is missing, broken, or of another version.
    """
    attempts: list[Attempt] = []
    moments: list[Moment] = []
    steps: set[int] = set()
    for path in attempt_paths(run_dir):
        number = int(path.stem.removeprefix("attempt-"))
        began_at_s: float | None = None
        now = 0.0
        first_step: int | None = None
        found: list[Moment] = []
        for line in scan_event_log(path, ("StepStarted", *_EVENTS, *_COMMANDS)):
            now = float(line["now"])
            began_at_s = now if began_at_s is None else began_at_s
            if line["event"]["type"] == "StepStarted":
                steps.add(step := int(line["event"]["step"]))
                first_step = step if first_step is None else first_step
            found += _moments_of(now, line["event"], line["commands"])
        if began_at_s is None:
            continue
        moments = [moment for moment in moments if moment.at_s < began_at_s] + found
        attempts.append(Attempt(number=number, first_step=first_step, began_at_s=began_at_s, ended_at_s=now))
    return LoggedMoments(attempts=tuple(attempts), moments=tuple(moments), steps=frozenset(steps))


def _moments_of(now: float, event: dict[str, Any], commands: Sequence[dict[str, Any]]) -> Iterator[Moment]:
    if what := _EVENTS.get(event["type"]):
        name = event["engine"] if "engine" in event else event["worker"]
        yield Moment(at_s=now, what=what, engine=name, gpus=tuple(event.get("gpus", ())))
    for command in commands:
        match command["type"]:
            case "LendEngines":
                for engine in command["engines"]:
                    yield Moment(at_s=now, what="lent", engine=engine)
            case "UseParallelism":
                degree = int(command["tensor_parallel"])
                yield Moment(at_s=now, what="fleet_change", engine=None, tensor_parallel=degree)
            case "SwitchEngines":
                degree = int(command["tensor_parallel"])
                yield Moment(at_s=now, what="tail_change", engine=None, tensor_parallel=degree)
