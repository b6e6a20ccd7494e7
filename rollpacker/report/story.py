"""The numbers of a run's page, read from its tables some steps at a time.

Seconds of a step belong to one stage each, so that they add up to the step; what is left over is the driver's. Tokens
of a step have one use each, so that they add up to all that were generated.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from rollpacker.config.record import CONFIG_FILE, read_record
from rollpacker.core.errors import DataError
from rollpacker.launch.accounts import Accounts, accounts_of
from rollpacker.launch.collect_status import problem_of_status
from rollpacker.paths import real_path
from rollpacker.report.cuts import CUT_COLUMNS, Cuts
from rollpacker.report.environments import EnvironmentWaits
from rollpacker.report.held_out import HeldOut, read_held_out
from rollpacker.report.presence import Presence, Spans
from rollpacker.report.waits import Wait, Waits
from rollpacker.runtime.run.status import STATUS_FILE, RunStatus, read_status
from rollpacker.timeline.run_tables import RunTables, StepTables, open_run
from rollpacker.timeline.stretches import (
    ENVIRONMENT,
    MIGRATIONS,
    MOVES,
    concurrency,
    covered,
    natural_order,
    stretches_of,
)

STAGES = ("rollout", "reward", "hand_over", "train", "suspend", "switch", "weight_sync", "checkpoint", "other")
"""What a second of a step was spent on, in its order; where GPUs are shared, `suspend` comes before `hand_over`."""

TOKEN_USES = ("trained", "aborted", "finished", "discarded")
"""What became of the generated tokens: all but the first are wasted. Discarded ones are those of responses that began
again because their environment failed."""

Move = Literal["with its tokens", "before its first token", "began again"]
"""How a request left an engine that did not finish it; it begins again where all its tokens were lost."""

ENGINE_ROLES = ("engine", "worker")
"""Roles of the intervals of engines: of the run's own, and of rollout workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """What an engine did in a round that is drawn."""

    engine: str
    times_s: npt.NDArray[np.float64]
    num_requests: npt.NDArray[np.int64]
    """From each of the times on."""
    others: tuple[tuple[str, float, float], ...]
    """Asleep, loading weights, starting or catching up: what, from when, until when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPicture:
    """One step, actor by actor."""

    step: int
    round: int
    round_kind: str
    began_s: float
    ended_s: float
    engines: tuple[EngineRow, ...]
    actors: tuple[tuple[str, str, float, float], ...]
    """Stages of driver and trainer, rewards, judges: actor, activity, from when, until when."""
    num_moves: int


@dataclass(slots=True)
class EngineUse:
    """How an engine spent the part of the steps in which it was there and had started."""

    present_s: float = 0.0
    generating_s: float = 0.0
    """Had at least one request."""
    asleep_s: float = 0.0
    fetching_s: float = 0.0
    """Of a rollout worker: fetched the policy."""
    loading_s: float = 0.0
    idle_in_rollout_s: float = 0.0
    """While others generated or rewards were awaited."""

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by what it did; the rest of its time the trainer learned, or the driver worked."""
        known = {
            "requests": self.generating_s,
            "asleep": self.asleep_s,
            "catching_up": self.fetching_s,
            "weight_sync": self.loading_s,
            "idle": self.idle_in_rollout_s,
        }
        return known | {"idle_later": max(0.0, self.present_s - sum(known.values()))}


@dataclass(slots=True, kw_only=True)
class RunStory:
    """A run, as far as it is."""

    name: str
    tables: RunTables
    config: Mapping[str, Any]
    """Empty where it is not known."""
    config_problem: str
    """Why it is not known, in a sentence."""
    status: RunStatus | None
    steps: pd.DataFrame
    stages: pd.DataFrame
    """Seconds per step and stage; the index is the step."""
    domains: pd.DataFrame
    picture: RoundPicture
    waits: tuple[Wait, ...]
    held_out: HeldOut
    environments: EnvironmentWaits
    accounts: Accounts | None
    """Of rollout workers; None where it takes none, or they are not known."""
    accounts_problem: str
    """Why they are not known, in a sentence."""
    engines: dict[str, EngineUse] = field(default_factory=dict)
    lengths: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    """Of each domain's trained responses, ascending."""
    num_cut: dict[str, Counter[str]] = field(default_factory=dict)
    """Of them, how many were cut, by what cut them."""
    waste: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Tokens per step and use; the index is the step."""
    reasons: Counter[str] = field(default_factory=Counter)
    """How many trained responses have each reward reason."""
    moves: Counter[Move] = field(default_factory=Counter)
    """How requests left engines that did not finish them, and how often."""

    @property
    def is_modelled(self) -> bool:
        return self.tables.is_modelled

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not known of it and why, and why it ended early; in sentences."""
        notes = [*self.tables.notes, self.config_problem, self.accounts_problem, self.held_out.problem]
        if self.status is None:
            problem = problem_of_status(self.tables.run_dir) or f"There is no {STATUS_FILE}"
            notes.append(f"{problem}. So it is not known how the run ended.")
        elif self.status.reason:
            notes.append(f"{self.status.state}: {self.status.reason}")
        return tuple(filter(None, notes))

    @property
    def total_s(self) -> float:
        """The sum of the step times."""
        return float(self.steps["step_time_s"].sum())

    @property
    def bubble_ratio(self) -> float:
        """Idle share of all decode slots, over all rounds."""
        idle, busy = self.steps["decode_slot_steps_idle"].sum(), self.steps["decode_slot_steps_busy"].sum()
        return float(idle / (idle + busy)) if idle + busy else 0.0

    @property
    def wasted_share(self) -> float:
        generated = self.steps["tokens_generated"].sum()
        return float(self.steps["tokens_wasted"].sum() / generated) if generated else 0.0

    def share_by_age(self, num_ages: int) -> list[float]:
        """Shares of the trained tokens that were 0, 1, ... versions old, over the steps of which it is known.

        A step weighs as much as its trained tokens, although tokens of environments, which are among them, have no age.
        """
        by_age: defaultdict[int, float] = defaultdict(float)
        steps = self.steps[["tokens_by_staleness", "staleness_max", "tokens_trained"]]
        for ages, oldest, num_trained in steps.itertuples(index=False):
            if ages is not None:
                known = sum(num_tokens for _, num_tokens in ages)
                for age, num_tokens in ages:
                    by_age[int(age)] += num_trained * num_tokens / known
            elif oldest == 0:
                by_age[0] += num_trained
        whole = sum(by_age.values()) or 1
        return [by_age[age] / whole for age in range(num_ages)]


def read_story(run_dir: Path, step: int | None = None) -> RunStory:
    """Read a run.

    Args:
        run_dir: Its folder.
        step: Whose round is drawn, from 0 as in the tables; None is the step of median duration.

    Raises:
        DataError: It is no run, has no finished step, or not this one.
    """
    tables = open_run(run_dir)
    chosen = _typical_step(tables.steps) if step is None else step
    if step is not None and step not in set(tables.steps["step"]):
        tables = open_run(run_dir, (step, step))  # raises with the steps that there are
    accounts, accounts_problem = _accounts_of(tables)
    presence = Presence(tables.logged, accounts)
    config, config_problem = _record_of(run_dir)
    cuts = Cuts(config)
    waits, environments, gathered = Waits(presence, cuts), EnvironmentWaits(), _Gathered(presence, cuts)
    for part in tables.parts():
        stretches = stretches_of(part)
        gathered.take(part, stretches, chosen)
        waits.add(part, stretches)
        environments.add(part)
    waits.add_lost_engines(tables)
    assert gathered.picture is not None
    return RunStory(
        name=real_path(run_dir).name,
        tables=tables,
        config=config,
        config_problem=config_problem,
        status=read_status(run_dir),
        steps=tables.steps,
        stages=pd.concat(gathered.stages),
        domains=pd.concat(gathered.domains, ignore_index=True),
        picture=gathered.picture,
        held_out=read_held_out(run_dir),
        accounts=accounts,
        accounts_problem=accounts_problem,
        waits=waits.worst(float(tables.steps["step_time_s"].mean())),
        environments=environments,
        engines=gathered.engines,
        lengths={domain: np.sort(np.concatenate(parts)) for domain, parts in sorted(gathered.lengths.items())},
        num_cut=gathered.num_cut,
        waste=pd.concat(gathered.waste),
        reasons=gathered.reasons,
        moves=gathered.moves,
    )


def _record_of(run_dir: Path) -> tuple[Mapping[str, Any], str]:
    try:
        found = read_record(run_dir)
    except DataError as error:
        return {}, f"{error.problem}. So the run's settings are not shown."
    if found is None:
        return {}, f"There is no {CONFIG_FILE}, so the run's settings are not shown."
    return found, ""


def _accounts_of(tables: RunTables) -> tuple[Accounts | None, str]:
    try:
        return accounts_of(tables), ""
    except DataError as error:
        return None, f"Rollout workers are not shown: {error.problem}."


class _Gathered:
    def __init__(self, presence: Presence, cuts: Cuts) -> None:
        self._presence = presence
        self._cuts = cuts
        self.stages: list[pd.DataFrame] = []
        self.domains: list[pd.DataFrame] = []
        self.waste: list[pd.DataFrame] = []
        self.engines: dict[str, EngineUse] = {}
        self.lengths: dict[str, list[npt.NDArray[np.int64]]] = {}
        self.num_cut: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.picture: RoundPicture | None = None
        self.reasons: Counter[str] = Counter()
        self.moves: Counter[Move] = Counter()
        self._kept: Counter[str] = Counter()

    def take(self, part: StepTables, stretches: pd.DataFrame, chosen: int) -> None:
        self.stages.append(stage_seconds(part))
        self.domains.append(part.domains)
        self.waste.append(_token_uses(part))
        self._use_engines(part, stretches)
        trained = part.responses[part.responses["accepted"]]
        self.reasons.update(trained["reward_reason"].dropna())
        for domain, rows in trained.groupby("domain"):
            self.lengths.setdefault(str(domain), []).append(rows["length_tokens"].to_numpy(dtype=np.int64))
            cut = rows.loc[rows["finish_reason"] == "length", [*CUT_COLUMNS]]
            self.num_cut[str(domain)].update(map(self._cuts.of, cut.to_dict("records")))
        self.count_moves(part.intervals)
        if chosen in set(part.steps["step"]):
            self.picture = _picture(part, stretches, chosen)

    def count_moves(self, intervals: pd.DataFrame) -> None:
        """Count how requests left engines; each has the tokens of all engines since it began, or began again."""
        left = intervals[intervals["num_tokens"].notna()].sort_values("ended_at_s", kind="stable")
        for request, activity, num_tokens in left[["subject", "activity", "num_tokens"]].itertuples(index=False):
            self._kept[request] = 0 if activity == "failed" else self._kept[request] + int(num_tokens)
            if activity in MIGRATIONS:
                without: Move = "before its first token" if activity == "evicted" else "began again"
                self.moves["with its tokens" if self._kept[request] else without] += 1

    def _use_engines(self, part: StepTables, stretches: pd.DataFrame) -> None:
        intervals = pd.concat([part.intervals, part.later_intervals]) if part.is_async else part.intervals
        intervals = intervals[intervals["role"].isin(ENGINE_ROLES) & (intervals["activity"] != "starting")]
        own = _spans(intervals, "actor", "started_at_s", "ended_at_s")
        asleep, fetching, loading = (
            _spans(intervals[intervals["activity"] == activity], "actor", "started_at_s", "ended_at_s")
            for activity in ("asleep", "catching_up", "load_weights")
        )
        requests = _spans(stretches, ["step", "engine"], "began_s", "ended_s")
        engines = sorted({*own, *(engine for _, engine in requests)})
        for row in part.steps.to_dict("records"):
            ended_s = float(row["finished_at_s"])
            began_s = ended_s - float(row["step_time_s"])
            complete_s = began_s + float(row["rollout_time_s"]) + float(row["exposed_reward_time_s"])
            for engine in engines:
                mine = requests.get((row["step"], engine), NO_SPANS)
                sleeps, fetches, loads = (spans.get(engine, NO_SPANS) for spans in (asleep, fetching, loading))
                lives = self._presence.of(engine)
                lives = _hull(own.get(engine, NO_SPANS)) if lives is None else lives
                there = np.concatenate([lives, sleeps, fetches, loads])  # weights come before it joins
                busy = np.concatenate([sleeps, fetches, loads, mine])
                use = self.engines.setdefault(engine, EngineUse())
                use.present_s += covered(there, began_s, ended_s)
                use.generating_s += _covered_by_both(mine, there, began_s, ended_s)
                use.asleep_s += covered(sleeps, began_s, ended_s)
                use.fetching_s += covered(fetches, began_s, ended_s)
                use.loading_s += covered(loads, began_s, ended_s)
                use.idle_in_rollout_s += covered(there, began_s, complete_s)
                use.idle_in_rollout_s -= _covered_by_both(busy, there, began_s, complete_s)


NO_SPANS: Final[Spans] = np.empty((0, 2))


def _spans(rows: pd.DataFrame, key: str | list[str], began: str, ended: str) -> dict[Any, Spans]:
    """Beginnings and ends by the values of one column or several."""
    spans = rows[[began, ended]].to_numpy(dtype=float)
    places: Any = rows.groupby(key).indices
    return {key: spans[mine] for key, mine in places.items()}


def _covered_by_both(one: Spans, other: Spans, first_s: float, last_s: float) -> float:
    """Like `covered`, of the time that both cover: some requests of a lost engine are missed only later."""
    either = np.concatenate([one, other])
    return covered(one, first_s, last_s) + covered(other, first_s, last_s) - covered(either, first_s, last_s)


def _hull(spans: Spans) -> Spans:
    """One span from the first beginning to the last end."""
    return np.array([[spans.min(), spans.max()]]) if len(spans) else NO_SPANS


def stage_seconds(part: StepTables) -> pd.DataFrame:
    """Seconds of each step by stage. They add up to the step's time and its checkpoint's."""
    steps = part.steps.set_index("step")
    stages = part.intervals[part.intervals["role"].isin(("driver", "trainer"))]
    seconds = (stages["ended_at_s"] - stages["started_at_s"]).groupby([stages["step"], stages["activity"]]).sum()
    by_activity = seconds.unstack(fill_value=0).reindex(steps.index, fill_value=0.0)

    def of(activity: str) -> pd.Series[float]:
        return by_activity[activity] if activity in by_activity else pd.Series(0.0, index=steps.index)

    frame = pd.DataFrame(
        {
            "rollout": steps["rollout_time_s"],
            "reward": steps["exposed_reward_time_s"],
            "hand_over": of("hand_over"),
            "train": steps["train_time_s"],
            "suspend": steps["suspend_time_s"],
            "switch": steps["switch_time_s"],
            "weight_sync": steps["weight_sync_time_s"] - steps["switch_time_s"],
            "checkpoint": steps["checkpoint_time_s"],
        }
    )
    inside = frame.drop(columns="checkpoint").sum(axis=1)
    frame["other"] = (steps["step_time_s"] - inside).clip(lower=0.0)
    return frame[list(STAGES)]


def _token_uses(part: StepTables) -> pd.DataFrame:
    responses = part.responses
    aborted = responses["finish_reason"] == "aborted"
    kind = np.where(responses["accepted"], "trained", np.where(aborted, "aborted", "finished"))
    tokens = responses["length_tokens"].groupby([responses["step"], kind]).sum().unstack(fill_value=0)
    steps = part.steps.set_index("step")
    uses = tokens.reindex(index=steps.index, columns=list(TOKEN_USES), fill_value=0)
    uses["discarded"] = steps["tokens_generated"] - uses.sum(axis=1)  # no row of `responses` has them
    return uses


def _typical_step(steps: pd.DataFrame) -> int:
    """Choose the step of median duration."""
    order = steps["step_time_s"].argsort(kind="stable")
    return int(steps["step"].iloc[order.iloc[len(order) // 2]])


def _picture(part: StepTables, stretches: pd.DataFrame, step: int) -> RoundPicture:
    row = part.steps[part.steps["step"] == step].iloc[0]
    ended_s = float(row["finished_at_s"])
    began_s = ended_s - float(row["step_time_s"])
    mine = stretches[stretches["step"] == step]
    intervals = part.intervals[(part.intervals["step"] == step) & ~part.intervals["activity"].isin(MOVES)]
    of_engines = intervals[intervals["role"].isin(ENGINE_ROLES)]
    rows = []
    for engine in sorted(set(mine["engine"]) | set(of_engines["actor"]), key=natural_order):
        requests = mine[mine["engine"] == engine]
        times_s, counts = concurrency(*(requests[name].clip(began_s, ended_s) for name in ("began_s", "ended_s")))
        others = of_engines[(of_engines["actor"] == engine) & (of_engines["activity"] != "generate")]
        spans = zip(others["activity"], others["started_at_s"], others["ended_at_s"], strict=True)
        rows.append(EngineRow(engine=engine, times_s=times_s, num_requests=counts, others=tuple(spans)))
    is_actor = ~intervals["role"].isin((*ENGINE_ROLES, ENVIRONMENT)) & (intervals["activity"] != "checkpoint")
    actors = intervals[is_actor]
    stages = zip(actors["actor"], actors["activity"], actors["started_at_s"], actors["ended_at_s"], strict=True)
    return RoundPicture(
        step=step,
        round=int(row["round"]),
        round_kind=str(row["round_kind"]),
        began_s=began_s,
        ended_s=ended_s,
        engines=tuple(rows),
        actors=tuple(stages),
        num_moves=int(mine["end"].isin(MIGRATIONS).sum()),
    )
