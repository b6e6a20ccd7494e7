"""Rows of the table `workers`: what each rollout worker was to a run, from its event logs and tables.

When a worker came, served and went, and why, the event logs know; what its engines generated and pulled, `responses`
and `intervals`. A response is of the engine that finished it, less what was generated of it before (the rows `evicted`,
`lost` and `turn` of `intervals`, since its environment last failed). As in all tables, what an attempt did after the
next one began does not count; what it is paid for, its stays, counts whatever was done again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollpacker.core.ids import WorkerId, element_and_life
from rollpacker.metrics.event_log import attempt_paths, scan_event_log
from rollpacker.timeline.stretches import MIGRATIONS, MOVES, request_names

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from rollpacker.timeline.run_tables import RunTables, StepTables

_TYPES = (
    *("WorkerArrived", "WorkerLeft", "NoticeGiven", "EngineUpdated", "DismissWorker"),  # what lives are made of
    "StepStarted",  # so that the end of an attempt is known to within a step
)


@dataclass(slots=True, kw_only=True)
class WorkerLife:
    """One life of a worker."""

    worker: WorkerId
    num_engines: int
    attempt: int
    joined_at_s: float
    serving_at_s: float | None = None
    left_at_s: float | None = None
    end_reason: str | None = None
    has_notice: bool = False
    updated: set[str] = field(default_factory=set)
    """Engines that have held the newest policy."""
    num_tokens: int = 0
    num_requests: int = 0
    num_moved_in: int = 0
    num_moved_out: int = 0
    tokens_kept: int = 0
    num_pulls: int = 0
    pulled_bytes: int = 0
    pulling_s: float = 0.0
    request_s: float = 0.0
    """Sum over its requests, of the time whose tokens are in `num_tokens`."""
    unreported_s: float = 0.0
    """Of the requests that it was lost with, the time whose tokens were not kept."""

    def row(self, *, job: str | None, node: str | None, is_modelled: bool) -> dict[str, Any]:
        """Its row of the table."""
        rate = self.num_tokens / self.request_s if self.request_s else 0.0
        given = {name: getattr(self, name) for name in _COLUMNS}
        return {
            **given,
            "job": job,
            "node": node,
            "tokens_lost": round(self.unreported_s * rate),
            "modelled": is_modelled,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStay:
    """A worker's presence in one attempt, in seconds of the run's clock."""

    worker: WorkerId
    since_s: float
    """From the attempt's beginning on, where it was there at the end of the one before."""
    until_s: float | None
    """None: it is there."""


_COLUMNS = (
    *("worker", "num_engines", "attempt", "joined_at_s", "serving_at_s", "left_at_s", "end_reason", "num_tokens"),
    *("num_requests", "num_moved_in", "num_moved_out", "tokens_kept", "num_pulls", "pulled_bytes", "pulling_s"),
)
"""Fields that are columns."""


def lives_of(
    tables: RunTables, *, report_interval_s: float, keeps_tokens: bool, is_running: bool
) -> tuple[list[WorkerLife], list[WorkerStay]]:
    """Read the lives and stays of a run's workers, in the order of arrival; none where no worker ever came.

    Args:
        tables: Of the run, all steps.
        report_interval_s: What a lost engine had not reported is younger.
        keeps_tokens: Whether what it had reported was kept.
        is_running: Whether the last attempt goes on.

    Raises:
        DataError: An event log is missing or broken.
    """
    attempts = list(_logged_attempts(tables.run_dir))
    stays = list(_stays(attempts, is_running=is_running))
    lives = _lives(attempts, is_running=is_running)
    if lives:
        use = _Use(lives, report_interval_s if keeps_tokens else None)
        for part in tables.parts():
            use.take(part)
    return lives, stays


@dataclass(slots=True, kw_only=True)
class _LoggedAttempt:
    """What one event log knows, also of what the next attempt did again."""

    began_at_s: float
    ended_at_s: float
    lives: list[WorkerLife]


def _logged_attempts(run_dir: Path) -> Iterator[_LoggedAttempt]:
    for path in attempt_paths(run_dir):
        number = int(path.stem.removeprefix("attempt-"))
        there: dict[str, WorkerLife] = {}
        attempt: _LoggedAttempt | None = None
        for line in scan_event_log(path, _TYPES):
            now = float(line["now"])
            if attempt is None:
                attempt = _LoggedAttempt(began_at_s=now, ended_at_s=now, lives=[])
            attempt.ended_at_s = now
            _follow(line, now, number, there, attempt.lives)
        if attempt is not None:
            yield attempt


def _stays(attempts: Sequence[_LoggedAttempt], *, is_running: bool) -> Iterator[WorkerStay]:
    remained: set[WorkerId] = set()
    for attempt in attempts:
        goes_on = is_running and attempt is attempts[-1]
        for life in attempt.lives:
            since_s = attempt.began_at_s if life.worker in remained else life.joined_at_s
            remained.discard(life.worker)
            until_s = attempt.ended_at_s if life.left_at_s is None and not goes_on else life.left_at_s
            yield WorkerStay(worker=life.worker, since_s=since_s, until_s=until_s)
        remained = {life.worker for life in attempt.lives if life.left_at_s is None}


def _lives(attempts: Sequence[_LoggedAttempt], *, is_running: bool) -> list[WorkerLife]:
    lives: list[WorkerLife] = []
    last_at_s = 0.0
    for attempt in attempts:
        _end_attempt(lives, min(attempt.began_at_s, last_at_s))
        lives = [life for life in lives if life.joined_at_s < attempt.began_at_s] + attempt.lives
        last_at_s = attempt.ended_at_s
    if not is_running:
        _end_attempt(lives, last_at_s)
    return lives


def _end_attempt(lives: list[WorkerLife], at_s: float) -> None:
    for life in lives:
        if life.left_at_s is None or life.left_at_s > at_s:
            life.left_at_s, life.end_reason = at_s, "the run's attempt ended"


def _follow(
    line: Mapping[str, Any], now: float, attempt: int, there: dict[str, WorkerLife], lives: list[WorkerLife]
) -> None:
    event = line["event"]
    worker = event.get("worker") or str(event.get("engine", "")).rpartition(".")[0]
    life = there.get(worker)
    match event["type"]:
        case "WorkerArrived":
            life = there[worker] = WorkerLife(
                worker=WorkerId(worker), num_engines=event["num_engines"], attempt=attempt, joined_at_s=now
            )
            lives.append(life)
        case "NoticeGiven" if life:
            life.has_notice = True
        case "EngineUpdated" if life:
            life.updated.add(event["engine"])
            if life.serving_at_s is None and len(life.updated) == life.num_engines:
                life.serving_at_s = now
        case "WorkerLeft" if life and life.left_at_s is None:
            life.left_at_s = now
            life.end_reason = "it was taken away, as it was told" if life.has_notice else "it was gone without notice"
    for command in line["commands"]:
        dismissed = there.get(command["worker"]) if command["type"] == "DismissWorker" else None
        if dismissed is not None and dismissed.left_at_s is None:
            dismissed.left_at_s, dismissed.end_reason = now, command["reason"]


class _Use:
    """Adds to lives what the tables know of their engines.

    Args:
        lives: In the order of arrival.
        report_interval_s: None where nothing is kept of a lost engine.
    """

    def __init__(self, lives: list[WorkerLife], report_interval_s: float | None) -> None:
        self._report_interval_s = report_interval_s
        self._lives: dict[str, list[WorkerLife]] = {}
        for life in lives:
            self._lives.setdefault(life.worker, []).append(life)
        self._moved_tokens: dict[str, int] = {}
        """Of each request that ever left an engine, for its environment too, the tokens with which it went on."""
        self._migrated: dict[str, bool] = {}
        """Whether it left the last one for another engine."""

    def take(self, part: StepTables) -> None:
        """Add some steps."""
        moves = part.intervals[part.intervals["activity"].isin(MOVES)]
        for move in _rows(moves.sort_values("ended_at_s", kind="stable")):
            num_tokens = int(move.num_tokens)
            has_migrated = self._migrated.get(move.subject, False)
            self._migrated[move.subject] = move.activity in MIGRATIONS
            moved_tokens = self._moved_tokens.get(move.subject, 0) + num_tokens
            self._moved_tokens[move.subject] = 0 if move.activity == "failed" else moved_tokens
            if (life := self._life(move.actor, move.started_at_s)) is not None:
                _count_move(life, move, num_tokens, self._report_interval_s)
                life.num_moved_in += has_migrated
        names = request_names(part.responses)
        is_theirs = part.responses["engine"].str.rpartition(".")[0].isin(self._lives)
        for response, name in zip(_rows(part.responses[is_theirs]), names[is_theirs], strict=True):
            if (life := self._life(response.engine, response.placed_at_s)) is not None:
                life.num_tokens += max(0, response.length_tokens - self._moved_tokens.get(name, 0))
                life.num_requests += 1
                life.num_moved_in += self._migrated.get(name, False)
                life.request_s += response.finished_at_s - response.placed_at_s
        sizes = part.steps.set_index("step")["weight_sync_bytes"]
        pulls = part.intervals[(part.intervals["role"] == "worker") & (part.intervals["activity"] == "catching_up")]
        for pull in _rows(pulls):
            if (life := self._life(pull.actor, pull.started_at_s)) is not None:
                life.num_pulls += 1
                life.pulled_bytes += int(sizes.get(pull.step, 0))
                life.pulling_s += pull.ended_at_s - pull.started_at_s

    def _life(self, engine: str, at_s: float) -> WorkerLife | None:
        """That in which an engine did something; names may come again in a later attempt."""
        lives = self._lives.get(engine.rpartition(".")[0], [])
        return next((life for life in reversed(lives) if life.joined_at_s <= at_s), None)


def _rows(frame: pd.DataFrame) -> Iterator[Any]:
    """Its rows, a column's value by its name."""
    return iter(frame.itertuples())


def _count_move(life: WorkerLife, move: Any, num_tokens: int, report_interval_s: float | None) -> None:
    """A request has left: with its tokens, with its engine, or for a turn of its environment."""
    duration_s = move.ended_at_s - move.started_at_s
    unreported_s = 0.0
    if move.activity == "lost":
        life.tokens_kept += num_tokens
        unreported_s = duration_s if report_interval_s is None else min(report_interval_s, duration_s)
    life.num_tokens += num_tokens
    life.num_moved_out += move.activity in MIGRATIONS
    life.unreported_s += unreported_s
    life.request_s += duration_s - unreported_s


def element_of(worker: WorkerId) -> str:
    """The element of the job array as Slurm's commands take it: 4711_3 of `e4711_3-r1`."""
    return element_and_life(worker)[0].removeprefix("e")
