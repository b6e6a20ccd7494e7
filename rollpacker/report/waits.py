"""The worst waits of a run: what waited for what, how long, and why, in a sentence each.

A wait is time in which engines or the trainer had nothing to do because something else was not there yet: the last
responses of a batch, a verdict, an environment's answer, weights, a checkpoint, the first forward pass of a request, a
lost engine's successor.
Training does not count, although engines are idle meanwhile: a synchronous step consists of it.

Each step gives at most one wait per kind, the longest. Waits for weights, checkpoints and the like are nearly the same
in every step, and one row stands for all of them; the other kinds share the rest, at most four rows each as long as
there are others, so that ten stragglers do not hide everything else. Each row has the sum of its kind.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from rollpacker.core.ids import EngineId, worker_of
from rollpacker.report.cuts import Cuts
from rollpacker.report.words import plural, seconds, size, tokens
from rollpacker.timeline.run_tables import ASYNC
from rollpacker.timeline.stretches import ENVIRONMENT, MIGRATIONS, MOVES, covered, request_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from rollpacker.report.presence import Presence, Spans
    from rollpacker.timeline.moments import Moment
    from rollpacker.timeline.run_tables import RunTables, StepTables

    Row = dict[Any, Any]
    """A row of `steps`."""

Kind = Literal[
    "tail",
    "reward",
    "environment",
    "start",
    "queue",
    "suspend",
    "weight_sync",
    "switch",
    "hand_over",
    "checkpoint",
    "lost_engine",
    "move",
]

KIND_NAMES = {
    "tail": "last responses",
    "reward": "rewards",
    "environment": "environments",
    "start": "first forward pass",
    "queue": "place at an engine",
    "suspend": "requests in flight",
    "weight_sync": "weights",
    "switch": "other engines",
    "hand_over": "hand-over of GPUs",
    "checkpoint": "checkpoint",
    "lost_engine": "lost engine",
    "move": "migration",
}

NUM_WAITS = 10
MOST_OF_A_KIND = 4

RESPONSES_PER_LATE_ONE = 20
"""Of so many responses of a batch the last one is waited for; at least one is, where there are others."""

SAME_EVERY_STEP: frozenset[Kind] = frozenset({"start", "weight_sync", "hand_over", "checkpoint"})

SAME_MOMENT = 0.1
"""Share of the longest wait within which requests came to an engine together."""

MUCH_LESS = 0.25
"""Share of the longest wait that is no start of an engine: where prompts are processed in turn, it is half of it."""

ALWAYS: Spans = np.array([[-np.inf, np.inf]])

SHORTEST_SHARE = 1e-3
"""Of the mean step; shorter ones are left out."""


_COLUMNS = [
    *("step", "engine", "prompt", "sample", "domain", "length_tokens", "placed_at_s", "queue_time_s"),
    *("finished_at_s", "scored_at_s", "reward_time_s", "reward_reason", "finish_reason", "num_turns"),
    "environment_time_s",
]
"""Of `responses`, what waits are made from: to take every column apart step by step costs more than all else here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One wait."""

    kind: Kind
    step: int
    duration_s: float
    who: str
    """Waited."""
    why: str
    """A sentence or two, with the response's name where there is one."""
    num_alike: int = 1
    """Steps with a wait of this kind."""
    sum_alike_s: float = 0.0


class Waits:
    """Collects waits step by step."""

    def __init__(self, presence: Presence, cuts: Cuts) -> None:
        self._presence = presence
        self._cuts = cuts
        self._found: dict[Kind, list[Wait]] = defaultdict(list)

    def add(self, part: StepTables, stretches: pd.DataFrame) -> None:
        """Add the waits of some steps."""
        final = stretches[~stretches["end"].isin(MOVES)]
        trained = part.responses.loc[part.responses["accepted"], _COLUMNS]
        trained["name"] = request_names(part.responses)
        of_rows = final[final["response"] >= 0]
        ended_s = pd.Series(of_rows["ended_s"].to_numpy(), index=of_rows["response"]).reindex(trained.index)
        trained["ended_s"] = ended_s.fillna(trained["finished_at_s"])  # of one that ended in an earlier step
        responses, of_engines, stages, moved = (
            dict(list(rows.groupby("step")))
            for rows in (
                trained,
                stretches[["step", "engine", "began_s", "ended_s"]],
                part.intervals[["step", "actor", "role", "activity", "subject", "started_at_s", "ended_at_s"]],
                stretches.loc[stretches["end"].isin(MIGRATIONS), ["step", "response", "ended_s"]],
            )
        )
        for row in part.steps.to_dict("records"):
            step = row["step"]
            during = stages.get(step, part.intervals.iloc[:0])
            found = [*_stages(row, during)]
            if step in responses:
                mine, at_engines = responses[step], of_engines.get(step, stretches.iloc[:0])
                found += [
                    *_tail(row, mine, at_engines, during, self._presence, cuts=self._cuts),
                    *_rewards(row, mine, during),
                    *([] if part.is_async else _first_pass(row, mine)),
                ]
            if step in moved and not part.is_async:
                found += _move(row, part.responses, moved[step])
            for wait in found:
                if wait.duration_s > 0:
                    self._found[wait.kind].append(wait)

    def add_lost_engines(self, tables: RunTables) -> None:
        """Add the time until a lost engine was replaced; nobody waits for those of workers."""
        longest: dict[int, Wait] = {}
        steps = tables.steps
        ends, numbers = steps["finished_at_s"].to_numpy(), steps["step"].to_numpy()
        for moment in tables.logged.moments:
            if moment.what != "lost" or moment.engine is None or not len(ends) or moment.at_s > ends[-1]:
                continue
            if worker_of(EngineId(moment.engine)) is not None:
                continue
            slot = moment.engine.partition("-r")[0]
            later = (other for other in tables.logged.moments if other.at_s >= moment.at_s)
            end = next((other for other in later if _replaces(other, slot)), None)
            duration_s = (float(ends[-1]) if end is None else end.at_s) - moment.at_s
            if end is None:
                came = f"nothing took its place in the {seconds(duration_s)} until the last step's end"
            elif end.what == "joined":
                came = f"{end.engine} took its place after {seconds(duration_s)}"
            else:
                came = f"other engines took the place of all after {seconds(duration_s)}"
            wait = Wait(
                kind="lost_engine",
                step=int(numbers[np.searchsorted(ends, moment.at_s)]),
                duration_s=duration_s,
                who="its requests and the other engines",
                why=f"{moment.engine} was lost; {came}.",
            )
            longest[wait.step] = max(longest.get(wait.step, wait), wait, key=lambda each: each.duration_s)
        self._found["lost_engine"] += longest.values()

    def worst(self, mean_step_s: float) -> tuple[Wait, ...]:
        """The worst ones of all kinds, the worst first."""
        first: list[Wait] = []
        more: list[Wait] = []
        for kind, waits in self._found.items():
            sum_s = sum(wait.duration_s for wait in waits)
            ordered = sorted(waits, key=_worst_first)
            told = [
                replace(wait, num_alike=len(waits), sum_alike_s=sum_s)
                for wait in (ordered[:1] if kind in SAME_EVERY_STEP else ordered[:NUM_WAITS])
                if wait.duration_s >= SHORTEST_SHARE * mean_step_s
            ]
            first += told[:MOST_OF_A_KIND]
            more += told[MOST_OF_A_KIND:]
        chosen = sorted(first, key=_worst_first)[:NUM_WAITS]
        chosen += sorted(more, key=_worst_first)[: NUM_WAITS - len(chosen)]
        return tuple(sorted(chosen, key=_worst_first))


def _replaces(moment: Moment, slot: str) -> bool:
    """Whether an engine begins to serve in this place, or others in place of all."""
    if moment.what == "joined":
        return str(moment.engine).partition("-r")[0] == slot
    return moment.what in {"fleet_change", "tail_change"}


def _worst_first(wait: Wait) -> tuple[float, int, str]:
    return -wait.duration_s, wait.step, wait.kind


def _tail(
    step: Row,
    accepted: pd.DataFrame,
    stretches: pd.DataFrame,
    intervals: pd.DataFrame,
    presence: Presence,
    *,
    cuts: Cuts,
) -> Iterator[Wait]:
    began_s = float(step["finished_at_s"]) - float(step["step_time_s"])
    ended_s = accepted["ended_s"].clip(lower=began_s)
    num_early = len(ended_s) - max(1, len(ended_s) // RESPONSES_PER_LATE_ONE)
    most_s = float(np.sort(ended_s)[num_early - 1])  # of a single response its own end
    last: Any = ended_s.idxmax()
    last_s = float(ended_s[last])
    row: Any = accepted.loc[last]
    median = float(accepted["length_tokens"].median())
    ratio = f", {row['length_tokens'] / median:.0f} times the median" if row["length_tokens"] > 1.5 * median else ""
    cut = cuts.of(row)
    end = cut and f", {cut}"
    if row["environment_time_s"] > 0:
        turns = plural(int(row["num_turns"]), "turn")
        end += f"; it waited {seconds(row['environment_time_s'])} for its environment, in {turns}"
    resting = intervals[(intervals["role"] == "engine") & (intervals["activity"] == "asleep")]
    asleep = resting[resting["started_at_s"] < last_s]
    num_lent = asleep["actor"].nunique()
    awake = stretches[~stretches["engine"].isin(asleep["actor"])]
    lives = _lives_at(last_s, {*awake["engine"], *presence.engines} - {*asleep["actor"]}, presence)
    num_engines = len(lives)
    busy = _busy_engines(awake[awake["engine"].isin(lives)], most_s, last_s)
    idle = max(0.0, _mean_open(lives, most_s, last_s) - busy)
    standing = f" {idle:.0f} of {plural(num_engines, 'engine')} were idle then (mean)." if num_engines > 1 else ""
    if num_lent:
        standing += f" {num_lent} more had been lent to the trainer."
    yield Wait(
        kind="tail",
        step=int(step["step"]),
        duration_s=last_s - most_s,
        who="trainer and idle engines" if num_engines > 1 else "trainer",
        why=f"{num_early:,} of {plural(len(ended_s), 'response')} were complete {seconds(most_s - began_s)} into the "
        f"step. The last was {row['prompt']} #{row['sample']} on {row['engine']}: "
        f"{tokens(int(row['length_tokens']))}{ratio}{end}.{standing}",
    )


def _lives_at(at_s: float, engines: Iterable[str], presence: Presence) -> dict[str, Spans]:
    """Of the engines that were there at a moment, when they were; one of which it is not known always was."""
    known = {engine: presence.of(engine) for engine in engines}
    lives = {engine: ALWAYS if spans is None else spans for engine, spans in known.items()}
    return {engine: spans for engine, spans in lives.items() if ((spans[:, 0] <= at_s) & (at_s <= spans[:, 1])).any()}


def _busy_engines(stretches: pd.DataFrame, first_s: float, last_s: float) -> float:
    """How many engines had a request between two moments, on average."""
    spans = stretches[["began_s", "ended_s"]].to_numpy(dtype=float)
    by_engine = stretches.groupby("engine").indices
    return _mean_open({str(engine): spans[mine] for engine, mine in by_engine.items()}, first_s, last_s)


def _mean_open(spans: Mapping[str, Spans], first_s: float, last_s: float) -> float:
    """How many engines had a span open between two moments, on average."""
    if last_s <= first_s:
        return float(len(spans))
    return sum(covered(of_engine, first_s, last_s) for of_engine in spans.values()) / (last_s - first_s)


def _rewards(step: Row, accepted: pd.DataFrame, intervals: pd.DataFrame) -> Iterator[Wait]:
    """The wait after the last response: for the last answers of environments, where these took most of it."""
    if not accepted["scored_at_s"].notna().any():
        return
    number, duration_s = int(step["step"]), float(step["exposed_reward_time_s"])
    who = "trainer" if step["round_kind"] == ASYNC else "trainer and all engines"
    generated_s = float(step["finished_at_s"]) - float(step["step_time_s"]) + float(step["rollout_time_s"])
    answers = intervals[(intervals["role"] == ENVIRONMENT) & intervals["subject"].isin(accepted["name"])]
    if len(answers) and answers["ended_at_s"].max() - generated_s > duration_s / 2:
        answer: Any = answers.iloc[int(answers["ended_at_s"].argmax())]
        asked: Any = accepted[accepted["name"] == answer["subject"]].iloc[0]
        why = (
            f"All responses were generated, and answers of environments were missing. The last was that to "
            f"{asked['prompt']} #{asked['sample']} ({asked['domain']}, {asked['reward_reason']}), "
            f"{seconds(answer['ended_at_s'] - answer['started_at_s'])} after its last token."
        )
        yield Wait(kind="environment", step=number, duration_s=duration_s, who=who, why=why)
        return
    row: Any = accepted.iloc[int(accepted["scored_at_s"].argmax())]
    yield Wait(
        kind="reward",
        step=number,
        duration_s=duration_s,
        who=who,
        why=f"All responses were generated, and rewards were missing. The last verdict was {row['prompt']} "
        f"#{row['sample']} ({row['domain']}, {row['reward_reason']}): {seconds(row['reward_time_s'])} of scoring, "
        f"known {seconds(max(0.0, row['scored_at_s'] - row['finished_at_s']))} after its last token.",
    )


def _first_pass(step: Row, accepted: pd.DataFrame) -> Iterator[Wait]:
    """The longest wait of a trained response at its engine: for a place, unless those that came with it waited too."""
    queued_s = accepted["queue_time_s"]
    longest: Any = queued_s.idxmax()
    row: Any = accepted.loc[longest]
    median_s, longest_s = float(queued_s.median()), float(queued_s.max())
    number = int(step["step"])
    if median_s > longest_s / 2:
        why = f"Engines took {seconds(median_s)} (median) from a request to their first forward pass for it."
        yield Wait(kind="start", step=number, duration_s=median_s, who="all requests", why=why)
        return
    came_s = (accepted["placed_at_s"] - row["placed_at_s"]).abs()
    others = accepted[(accepted["engine"] == row["engine"]) & (came_s <= SAME_MOMENT * longest_s)].drop(index=longest)
    others_s = float(others["queue_time_s"].median())  # nan of none
    batch = f"the median of its batch is {seconds(median_s)}"
    if others_s < MUCH_LESS * longest_s:
        why = (
            f"{row['prompt']} #{row['sample']} waited at {row['engine']} for a place, {seconds(others_s)} (median) "
            f"those that came with it; {batch}."
        )
        yield Wait(kind="queue", step=number, duration_s=longest_s, who="one response", why=why)
        return
    together = f", and {seconds(others_s)} (median) for those that came with it" if len(others) else ""
    why = (
        f"{row['engine']} took {seconds(longest_s)} to its first forward pass for {row['prompt']} #{row['sample']}"
        f"{together}; {batch}."
    )
    yield Wait(kind="start", step=number, duration_s=longest_s, who="requests that came together", why=why)


def _move(step: Row, responses: pd.DataFrame, moved: pd.DataFrame) -> Iterator[Wait]:
    moved = moved[moved["response"].isin(responses.index)]
    if moved.empty:
        return
    left_s = moved.groupby("response")["ended_s"].max()
    rows = responses.loc[left_s.index]
    gap_s = rows["placed_at_s"] - left_s
    longest: Any = gap_s.idxmax()
    row: Any = rows.loc[longest]
    why = f"{row['prompt']} #{row['sample']} had left its engine and was on its way to {row['engine']}."
    number = int(step["step"])
    yield Wait(kind="move", step=number, duration_s=float(gap_s.max()), who="one response", why=why)


def _stages(step: Row, intervals: pd.DataFrame) -> Iterator[Wait]:
    number = int(step["step"])
    per_engine = size(float(step["weight_sync_bytes"]))
    rate = float(step["weight_sync_gb_per_second"])
    yield Wait(
        kind="suspend",
        step=number,
        duration_s=float(step["suspend_time_s"]),
        who="trainer",
        why="Engines were to give back what was in flight, before the trainer had their GPUs, or new weights came.",
    )
    yield Wait(
        kind="switch",
        step=number,
        duration_s=float(step["switch_time_s"]),
        who="all engines",
        why="Engines of another tensor-parallel degree took the place of those before, for the next step.",
    )
    speed = f" at {size(1e9 * rate)}/s" if rate > 0 else ""
    transfer = f"; the transfer took {seconds(float(step['weight_transfer_time_s']))}"
    yield Wait(
        kind="weight_sync",
        step=number,
        duration_s=float(step["weight_sync_time_s"]) - float(step["switch_time_s"]),
        who="all engines",
        why=f"New weights were sent, {per_engine} to each engine{speed}{transfer}.",
    )
    yield Wait(
        kind="checkpoint",
        step=number,
        duration_s=float(step["checkpoint_time_s"]),
        who="all engines",
        why="A checkpoint was written before the step began.",
    )
    handed = intervals[intervals["activity"] == "hand_over"]
    if len(handed):
        yield Wait(
            kind="hand_over",
            step=number,
            duration_s=float((handed["ended_at_s"] - handed["started_at_s"]).sum()),
            who="trainer",
            why="Engines went to sleep, and the trainer took over the GPUs that they share.",
        )
