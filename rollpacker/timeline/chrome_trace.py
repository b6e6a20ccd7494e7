"""Writes a run as a trace for ui.perfetto.dev and chrome://tracing: the JSON Trace Event Format.

    process "run"        steps, rounds, the driver's stages, rollout workers that came and went; counters of the run
    process "trainer"    training, streamed parts of it, checkpoints
    process "rewards"    each response while it was scored; judges and other actors on threads of their own
    process "environments"  each response while it waited for its environment, in a run that has any
    process "held-out"   each held-out request on a lane of its last engine, from launch to end: its table has no more;
                         a counter of those of each engine
    process "engine-3"   what the engine did, and on its lanes each request that it had; counters running and waiting

Invariants: on one thread slices nest, or follow each other; a flow's two ends lie in slices; times are whole
nanoseconds since the run began, and none lies outside the steps that are written, but for the evaluations before, in
and after them. Steps and rounds count from 1. They are read a few at a time: memory does not grow with the run.

Source: "Trace Event Format" (Google, document 1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections import Counter
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rollpacker.core.errors import DataError
from rollpacker.core.ids import EngineId, worker_of
from rollpacker.metrics.outputs import open_output
from rollpacker.timeline.stretches import (
    ENVIRONMENT,
    GOES_ON,
    MIGRATIONS,
    MOVES,
    Lanes,
    concurrency,
    environment_waits,
    natural_order,
    stretches_of,
)
from rollpacker.timeline.tracks import Place, Tracks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from rollpacker.timeline.moments import Moment
    from rollpacker.timeline.run_tables import RunTables, StepTables
    from rollpacker.timeline.stretches import Integers
    from rollpacker.timeline.tracks import Event

HELD_OUT = "held-out"
"""The process of held-out requests."""

POINTS_PER_STEP = 64
"""Of one counter of one engine: finer changes are left out, so that the counters are no more than the slices."""

SHORTEST_WAIT_SHARE = 0.01
"""A request's wait for its first forward pass is a slice of its own from this share of its stretch on."""

_FIRST_ENGINE_RANK = 10
"""Engines stand below the other processes in the viewer."""

_COMPRESSION = 5
"""Of gzip: half the time of 9 and a tenth more bytes."""

_STEP_COUNTERS = (
    ("long queue (prompts)", "long_queue_length"),
    ("policy version", "policy_version"),
    ("reward, mean", "reward_mean"),
    ("KV cache in use, mean share", "kv_cache_used_share"),
    ("bubble ratio", "bubble_ratio"),
    ("tokens wasted", "tokens_wasted"),
)

_END_NAMES = {
    "evicted": "moves on",
    GOES_ON: "goes on with new weights",
    "lost": "lost with its engine",
    "turn": "its environment answers",
    "failed": "its environment failed",
}

_MOMENT_NAMES = {
    "joined": "joins",
    "lost": "is lost",
    "retired": "retires",
    "lent": "is lent to the trainer",
    "arrived": "arrives",
    "left": "leaves",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """What a trace holds."""

    num_steps: int
    num_tracks: int
    num_slices: int
    num_migrations: int
    """Flows of requests that left an engine for another, without those of turns of an environment."""
    notes: tuple[str, ...]
    """What is missing, in sentences."""


def save_trace(run: RunTables, path: Path) -> TraceSummary:
    """Write the steps of a run as one JSON object to a file or a stream, compressed when its name ends in .gz."""
    trace = _Trace(run)
    with contextlib.ExitStack() as stack:
        file: IO[bytes] | gzip.GzipFile = stack.enter_context(open_output(path))
        if path.suffix == ".gz":
            file = stack.enter_context(gzip.GzipFile(path.stem, "wb", _COMPRESSION, file, mtime=0))
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        separator = b"\n"
        for event in trace.events():
            file.write(separator + json.dumps(event, separators=(",", ":")).encode())
            separator = b",\n"
        summary = trace.summary()
        about = {"system": run.system, "run": str(run.run_dir), "modelled": run.is_modelled, "notes": summary.notes}
        file.write(b'\n],"otherData":%b}\n' % json.dumps(about).encode())
    return summary


class _Trace:
    def __init__(self, run: RunTables) -> None:
        self._run = run
        self._suffix = " (modelled)" if run.is_modelled else ""
        self._tracks = Tracks(self._suffix)
        self._num: Counter[str] = Counter()
        self._notes = list(run.notes)
        gpus = {moment.engine: moment.gpus for moment in run.logged.moments if moment.what == "joined"}
        self._gpus = {engine: numbers for engine, numbers in gpus.items() if engine and numbers}
        self._engines: set[str] = set()
        began_s = run.steps["finished_at_s"] - run.steps["step_time_s"] - run.steps["checkpoint_time_s"]
        self._first, self._last = _ns(began_s.iloc[0]), _ns(run.steps["finished_at_s"].iloc[-1])
        self._drawn_until = self._first
        self._scoring, self._waiting = Lanes(), Lanes()
        self._left: dict[str, tuple[Place, int, str]] = {}
        """Where and when requests left an engine that have not come to the next one, and why."""
        self._tracks.process("run", f"run, {run.system}", rank=0)
        self._tracks.process("trainer", rank=1)
        self._tracks.process("rewards", rank=2)
        for name in ("steps", "rounds", "driver"):
            self._tracks.thread("run", name)

    def events(self) -> Iterator[Event]:
        """Give the events, some steps at a time; a track's name comes before its first event."""
        for event in self._unnamed():
            yield from self._tracks.news
            self._tracks.news.clear()
            yield event
        for rank, engine in enumerate(sorted(self._engines, key=_place_in_viewer), start=_FIRST_ENGINE_RANK):
            self._tracks.rank(engine, rank)
        yield from self._tracks.news

    def _unnamed(self) -> Iterator[Event]:
        for tables in self._run.parts():
            yield from self._step_events(tables)
            yield from self._stage_events(tables)
            yield from self._reward_events(tables)
            yield from self._environment_events(tables)
            yield from self._engine_events(tables)
            _, self._drawn_until = self._bounds(tables)
        try:
            for held_out in self._run.held_out():
                yield from self._held_out_events(held_out)
        except DataError as error:
            self._notes.append(f"Not all held-out requests are drawn: {error.problem}.")
        yield from self._moment_events()

    def summary(self) -> TraceSummary:
        return TraceSummary(
            num_steps=len(self._run.steps),
            num_tracks=self._tracks.num_threads,
            num_slices=self._num["X"],
            num_migrations=self._num["migrations"],
            notes=tuple(self._notes),
        )

    # One event each -----------------------------------------------------------------------------------------------

    def _event(self, phase: str, place: Place, name: str, at: int, **rest: object) -> Event:
        self._num[phase] += 1
        return {"ph": phase, "pid": place.process, "tid": place.thread, "ts": at / 1000, "name": name, **rest}

    def _slice(self, place: Place, name: str, category: str, began: int, ended: int, **arguments: object) -> Event:
        return self._event("X", place, name, began, dur=(ended - began) / 1000, cat=category, args=arguments)

    def _instant(self, place: Place, name: str, at: int, scope: str) -> Event:
        return self._event("i", place, name, at, s=scope, cat="instant")

    def _counter(self, process: int, name: str, at: int, **values: float) -> Event:
        return self._event("C", Place(process, 0), name, at, args=values)

    def _flow(self, origin: Place, left: int, target: Place, came: int, name: str) -> Iterator[Event]:
        number = self._num["f"] + 1
        category = "migration" if name in MIGRATIONS else name
        self._num["migrations"] += name in MIGRATIONS
        for phase, place, at in (("s", origin, left), ("f", target, came)):
            yield self._event(phase, place, name, at, bp="e", id=number, cat=category)

    # Tables in ----------------------------------------------------------------------------------------------------

    def _step_events(self, tables: StepTables) -> Iterator[Event]:
        steps_thread = self._tracks.thread("run", "steps")
        rounds_thread = self._tracks.thread("run", "rounds")
        for row in tables.steps.to_dict("records"):
            ended = _ns(row["finished_at_s"])
            began = _ns(row["finished_at_s"] - row["step_time_s"])
            generated = min(ended, began + _ns(row["rollout_time_s"]))
            complete = min(ended, generated + _ns(row["exposed_reward_time_s"]))
            name = f"step {row['step'] + 1}{self._suffix}"
            yield self._slice(steps_thread, name, "step", began, ended, **_facts(row))
            kind = f"round {row['round'] + 1}, {row['round_kind']}"
            yield self._slice(rounds_thread, kind, "round", began, complete, kind=row["round_kind"])
            if complete > generated:
                yield self._slice(rounds_thread, "exposed reward", "round", generated, complete)
            for counter, column in _STEP_COUNTERS:
                if row[column] == row[column]:  # not null
                    yield self._counter(self._tracks.process("run"), counter, began, value=row[column])

    def _stage_events(self, tables: StepTables) -> Iterator[Event]:
        """Stages of the driver, and what trainer, judges, engines and others did, as the `intervals` table says."""
        is_of_request = tables.intervals["activity"].isin(MOVES) | (tables.intervals["role"] == ENVIRONMENT)
        rows = tables.intervals[~is_of_request]
        first, last = self._bounds(tables)
        for (actor, role), part in rows.groupby(["actor", "role"], sort=True):
            part = part.sort_values(["started_at_s", "ended_at_s"], kind="stable")  # noqa: PLW2901
            began = np.maximum(_array_ns(part["started_at_s"]), first)
            ended = np.minimum(np.maximum(_array_ns(part["ended_at_s"]), began), last)
            begins, ends = began.tolist(), ended.tolist()
            columns = (Lanes().choose(begins, ends), part["activity"], begins, ends)
            for lane, activity, start, end in zip(*columns, strict=True):
                place = self._actor_thread(str(actor), str(role), lane)
                yield self._slice(place, activity, str(role), start, end)
                if activity in {"weight_sync", "checkpoint"}:
                    done = "new weights are published" if activity == "weight_sync" else "checkpoint written"
                    yield self._instant(place, done, end, "p")

    def _actor_thread(self, actor: str, role: str, lane: int) -> Place:
        suffix = f", lane {lane + 1}" if lane else ""
        match role:
            case "driver":
                return self._tracks.thread("run", f"{actor}{suffix}")
            case "trainer":
                return self._tracks.thread("trainer", f"{actor}{suffix}")
            case "engine" | "worker":
                self._engine(actor)
                return self._tracks.thread(actor, f"state{suffix}")
            case _:
                return self._tracks.thread("rewards", f"{actor}{suffix}")

    def _reward_events(self, tables: StepTables) -> Iterator[Event]:
        rows = pd.concat([tables.responses, tables.later_responses])
        scored = rows[rows["scored_at_s"].notna() & (rows["reward_time_s"] > 0)]
        began_s = (scored["scored_at_s"] - scored["reward_time_s"]).clip(scored["launched_at_s"])
        scored, begins, ends = self._begun_in(tables, scored, began_s, scored["scored_at_s"])
        columns = [scored[name].tolist() for name in ("domain", "prompt", "sample", "reward", "reward_reason")]
        for lane, began, ended, domain, prompt, sample, reward, reason in zip(
            self._scoring.choose(begins, ends), begins, ends, *columns, strict=True
        ):
            place = self._tracks.thread("rewards", f"scoring {lane + 1}")
            name = f"{domain}: {prompt} #{sample}"
            yield self._slice(place, name, "score", began, ended, reward=reward, reason=reason)

    def _environment_events(self, tables: StepTables) -> Iterator[Event]:
        waits = environment_waits(pd.concat([tables.intervals, tables.later_intervals]))
        waits, begins, ends = self._begun_in(tables, waits, waits["started_at_s"], waits["ended_at_s"])
        if len(waits):
            self._tracks.process("environments", rank=3)
        columns = (begins, ends, waits["activity"], waits["label"])
        for lane, began, ended, activity, label in zip(self._waiting.choose(begins, ends), *columns, strict=True):
            place = self._tracks.thread("environments", f"waiting {lane + 1}")
            yield self._slice(place, f"{activity.replace('_', ' ')} {label}", ENVIRONMENT, began, ended)

    def _begun_in(
        self, tables: StepTables, rows: pd.DataFrame, began_s: pd.Series[float], ended_s: pd.Series[float]
    ) -> tuple[pd.DataFrame, list[int], list[int]]:
        """Choose the rows whose spans began in some steps, by beginning; spans are cut where the run's steps end."""
        _, until = self._bounds(tables)
        begins, ends = np.maximum(_array_ns(began_s), self._first), np.minimum(_array_ns(ended_s), self._last)
        order = np.lexsort((ends, begins))
        order = order[((begins >= self._drawn_until) & (begins < until) & (ends >= begins))[order]]
        return rows.iloc[order], begins[order].tolist(), ends[order].tolist()

    def _engine_events(self, tables: StepTables) -> Iterator[Event]:
        stretches = stretches_of(tables)
        first, last = self._bounds(tables)
        begins = np.clip(_array_ns(stretches["began_s"]), first, last)
        ends = np.maximum(np.clip(_array_ns(stretches["ended_s"]), first, last), begins)
        places: list[Place | None] = [None] * len(stretches)
        for engine in sorted(stretches["engine"].unique(), key=natural_order):
            self._engine(engine)
            mine = np.flatnonzero((stretches["engine"] == engine).to_numpy())
            chosen = Lanes().choose(begins[mine].tolist(), ends[mine].tolist())
            for lane, number in zip(chosen, mine.tolist(), strict=True):
                places[number] = self._tracks.thread(engine, f"requests {lane + 1}")
            yield from self._engine_counters(engine, stretches.iloc[mine])
        yield from self._request_slices(tables.responses, stretches, places, begins, ends)
        yield from self._moves(stretches, places, begins, ends)

    def _request_slices(
        self,
        responses: pd.DataFrame,
        stretches: pd.DataFrame,
        places: Sequence[Place | None],
        begins: Integers,
        ends: Integers,
    ) -> Iterator[Event]:
        about = responses[["length_tokens", "num_prompt_tokens", "reward", "accepted", "race_rank"]].to_dict("records")
        first_pass_s = stretches["first_pass_s"].fillna(stretches["began_s"])
        first_pass = np.clip(_array_ns(first_pass_s), begins, ends).tolist()
        columns = zip(*(stretches[name].tolist() for name in ("label", "end", "response")), strict=True)
        for number, (label, end, response) in enumerate(columns):
            place, began, ended = places[number], int(begins[number]), int(ends[number])
            assert place is not None
            facts = {"end": _END_NAMES.get(end, end)}
            if end not in MOVES and response >= 0:
                facts |= {name: value for name, value in about[response].items() if value == value}  # noqa: PLR0124
            yield self._slice(place, label, "request", began, ended, **facts)
            if first_pass[number] - began > SHORTEST_WAIT_SHARE * (ended - began):
                yield self._slice(place, "waits", "wait", began, first_pass[number])

    def _moves(
        self, stretches: pd.DataFrame, places: Sequence[Place | None], begins: Integers, ends: Integers
    ) -> Iterator[Event]:
        moving = {*stretches.loc[stretches["end"].isin(MOVES), "request"], *self._left}
        involved = stretches[stretches["request"].isin(moving)].sort_values(["request", "began_s", "ended_s"])
        for request, number, reason in zip(involved["request"], involved.index, involved["end"], strict=True):
            place, began = places[number], int(begins[number])
            assert place is not None
            if request in self._left:
                origin, left, why = self._left.pop(request)
                yield from self._flow(origin, left, place, began, why)
            if reason in MOVES:
                self._left[request] = place, max(began, int(ends[number]) - 1), reason

    def _engine_counters(self, engine: str, stretches: pd.DataFrame) -> Iterator[Event]:
        num_points = POINTS_PER_STEP * stretches["step"].nunique()
        first_pass_s = stretches["first_pass_s"].fillna(stretches["began_s"]).clip(upper=stretches["ended_s"])
        for name, began_s, ended_s in (
            ("requests running", first_pass_s, stretches["ended_s"]),
            ("requests waiting", stretches["began_s"], first_pass_s),
        ):
            yield from self._open_requests(engine, name, concurrency(began_s, ended_s), num_points)

    def _open_requests(
        self, process: str, name: str, changes: tuple[npt.NDArray[np.float64], Integers], num_points: int
    ) -> Iterator[Event]:
        times, counts = changes
        chosen = _thin(times, num_points)
        for at, count in zip(times[chosen].tolist(), counts[chosen].tolist(), strict=True):
            yield self._counter(self._tracks.process(process), name, _ns(at), requests=count)

    def _held_out_events(self, responses: pd.DataFrame) -> Iterator[Event]:
        """The requests of one evaluation; also while they wait for a slot or their environment, if they have one."""
        self._tracks.process(HELD_OUT, rank=4)
        for engine in sorted(responses["engine"].unique(), key=natural_order):
            mine = responses[responses["engine"] == engine].sort_values(["launched_at_s", "finished_at_s"])
            begins, ends = _array_ns(mine["launched_at_s"]).tolist(), _array_ns(mine["finished_at_s"]).tolist()
            changes = concurrency(mine["launched_at_s"], mine["finished_at_s"])
            yield from self._open_requests(HELD_OUT, f"requests of {engine}", changes, POINTS_PER_STEP)
            labels = mine["set"] + ": " + mine["prompt"] + " #" + mine["sample"].astype(str)
            columns = [mine[each].tolist() for each in ("finish_reason", "length_tokens", "reward")]
            for lane, began, ended, label, end, length_tokens, reward in zip(
                Lanes().choose(begins, ends), begins, ends, labels.tolist(), *columns, strict=True
            ):
                place = self._tracks.thread(HELD_OUT, f"{engine}, lane {lane + 1}")
                facts = {"end": end, "length_tokens": length_tokens, "reward": reward}
                yield self._slice(place, label, "evaluation", began, ended, **facts)

    def _moment_events(self) -> Iterator[Event]:
        steps = self._run.steps
        first = float((steps["finished_at_s"] - steps["step_time_s"]).iloc[0])
        last = float(steps["finished_at_s"].iloc[-1])
        for attempt in self._run.logged.attempts[1:]:
            if first <= attempt.began_at_s <= last:
                place = self._tracks.thread("run", "steps")
                yield self._instant(place, f"attempt {attempt.number} goes on here", _ns(attempt.began_at_s), "g")
        began_at_s = {attempt.began_at_s for attempt in self._run.logged.attempts}
        for moment in self._run.logged.moments:
            is_start = moment.what == "joined" and moment.at_s in began_at_s
            if first <= moment.at_s <= last and not is_start:
                yield self._moment(moment)

    def _moment(self, moment: Moment) -> Event:
        if moment.engine is None:
            place = self._tracks.thread("run", "rounds")
            which = "rest of the" if moment.what == "tail_change" else "next"
            name = f"the {which} round is generated with TP {moment.tensor_parallel}"
            return self._instant(place, name, _ns(moment.at_s), "p")
        if moment.what in {"arrived", "left"}:
            place = self._tracks.thread("run", "rollout workers")
        else:
            self._engine(moment.engine)
            place = self._tracks.thread(moment.engine, "state")
        return self._instant(place, f"{moment.engine} {_MOMENT_NAMES[moment.what]}", _ns(moment.at_s), "p")

    def _engine(self, engine: str) -> None:
        gpus = self._gpus.get(engine, ())
        label = f"{engine}, GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}" if gpus else engine
        self._engines.add(engine)
        self._tracks.process(engine, label)
        self._tracks.thread(engine, "state")

    def _bounds(self, tables: StepTables) -> tuple[int, int]:
        """First and last nanosecond of some steps, with the checkpoint that came before the first."""
        stages = tables.intervals[tables.intervals["role"].isin(("driver", "trainer"))]
        began_s = float((tables.steps["finished_at_s"] - tables.steps["step_time_s"]).iloc[0])
        began_s = min(began_s, float(stages["started_at_s"].min())) if len(stages) else began_s
        return _ns(began_s), _ns(float(tables.steps["finished_at_s"].iloc[-1]))


def _facts(row: dict[Any, Any]) -> dict[str, object]:
    """What a viewer shows of a step."""
    names = (
        *("round_kind", "num_prompts", "num_responses_launched", "num_aborted", "tokens_generated", "tokens_trained"),
        *("bubble_ratio", "num_preemptions", "tensor_parallel", "num_engines_lent", "num_engines_lost"),
        *("reward_mean", "loss"),
    )
    return {name: row[name] for name in names if row[name] == row[name] and row[name] is not None}


def _thin(times: npt.NDArray[np.float64], num_points: int) -> Integers:
    """Choose points of a step function: all when there are few, else evenly over time; the last one always."""
    if len(times) <= num_points:
        return np.arange(len(times))
    grid = np.linspace(times[0], times[-1], num_points)
    chosen: Integers = np.unique(np.searchsorted(times, grid, side="right") - 1)
    return chosen


def _place_in_viewer(engine: str) -> tuple[bool, list[tuple[bool, int, str]]]:
    """By name, a replacement after its predecessor; engines of rollout workers below the run's own."""
    return worker_of(EngineId(engine)) is not None, natural_order(engine)


def _ns(time_s: float) -> int:
    return round(time_s * 1e9)


def _array_ns(times_s: pd.Series[float]) -> Integers:
    times_ns: Integers = np.rint(times_s.to_numpy(dtype=float) * 1e9).astype(np.int64)
    return times_ns
