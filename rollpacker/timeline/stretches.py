"""Where each request was, and when: one row per stretch that it spent with one engine.

A response that never moved has one stretch, its row of `responses`. One that moved has one more for each engine that
it left before its end, an `evicted` or `lost` row of `intervals`; one of several turns, a `turn` row for each turn but
the last, and a `failed` one for each time that it began again with another environment. The last stretch ends when the
engine was done. Of a response that the round did not wait for, the driver may learn only after the training, so that
its `finished_at_s` is much later: it was aborted when the round ended, unless the engine had finished it just then.
"""

from __future__ import annotations

import heapq
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.timeline.run_tables import StepTables

Integers = npt.NDArray[np.int64]

MIGRATIONS = ("evicted", "lost")
"""Activities of `intervals` that are about one request: it kept its tokens, or they were lost with its engine."""

MOVES = (*MIGRATIONS, "turn", "failed")
"""All after which a request went on elsewhere: its environment answered, or failed and it began again, too."""

GOES_ON = "goes_on"
"""The end of a row whose stretch goes on in the next step."""

ENVIRONMENT = "environment"
"""Role of the intervals in which a request waited for its environment."""

_ROUNDING_S = 1e-6
"""A modelled step begins at the moment at which the one before ended, but for rounding."""

_REQUEST = re.compile(r"r\d+:(.*)@-?\d+#(\d+)", re.DOTALL)
"""The name of a request: its round, prompt, epoch and sample."""

COLUMNS = ("step", "engine", "request", "label", "began_s", "first_pass_s", "ended_s", "end", "response")


def stretches_of(tables: StepTables) -> pd.DataFrame:
    """Give the stretches of some steps, by engine and beginning.

    A stretch is of the step that trained its response; in an asynchronous run, of the one in whose time it was, and has
    a row for each where engines keep their requests over new weights. `end` is a finish reason, or one of `MOVES`, or
    `GOES_ON`; `response` is the row number in `tables.responses`, of a stretch that is not the last one, too, and -1
    where the response has no row or the stretch goes on; `first_pass_s` is null where it is not known.
    """
    if tables.is_async:
        stretches = _of_rows(tables.responses, tables.intervals, tables.responses["finished_at_s"])
        later = _of_rows(tables.later_responses, tables.later_intervals, tables.later_responses["finished_at_s"])
        both = pd.concat([stretches, later.assign(response=-1)], ignore_index=True)
        return _by_beginning(_in_their_steps(both, tables.steps))
    steps = tables.steps.set_index("step")
    complete_s = (
        steps["finished_at_s"] - steps["step_time_s"] + steps["rollout_time_s"] + steps["exposed_reward_time_s"]
    )
    return _by_beginning(
        _of_rows(tables.responses, tables.intervals, complete_s.reindex(tables.responses["step"]).to_numpy())
    )


def _by_beginning(stretches: pd.DataFrame) -> pd.DataFrame:
    return stretches.sort_values(["engine", "began_s"], ignore_index=True, kind="stable")


def _in_their_steps(stretches: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Cut each stretch where a step ends; leave out what was in no step of these, or in the checkpoint before one."""
    step_ended_s = steps["finished_at_s"].to_numpy()
    step_began_s = step_ended_s - (steps["step_time_s"] + steps["checkpoint_time_s"]).to_numpy()
    began_s, ended_s = stretches["began_s"].to_numpy(), stretches["ended_s"].to_numpy()
    first = np.maximum(np.searchsorted(step_began_s - _ROUNDING_S, began_s, side="right") - 1, 0)
    last = np.maximum(np.searchsorted(step_began_s + _ROUNDING_S, ended_s, side="left") - 1, first)
    num_rows = last - first + 1
    rows = stretches.iloc[np.repeat(np.arange(len(stretches)), num_rows)]
    places = np.arange(len(rows)) - np.repeat(np.cumsum(num_rows) - num_rows - first, num_rows)
    began_s, ended_s = rows["began_s"].to_numpy(), rows["ended_s"].to_numpy()
    goes_on = ended_s > step_ended_s[places] + _ROUNDING_S
    is_inside = (began_s < step_ended_s[places] - _ROUNDING_S) & (ended_s > step_began_s[places] - _ROUNDING_S)
    began_s = np.maximum(began_s, step_began_s[places])
    ended_s = np.maximum(np.minimum(ended_s, step_ended_s[places]), began_s)
    cut = rows.assign(
        step=steps["step"].to_numpy()[places],
        began_s=began_s,
        first_pass_s=rows["first_pass_s"].clip(began_s, ended_s),
        ended_s=ended_s,
        end=rows["end"].mask(goes_on, GOES_ON),
        response=rows["response"].mask(goes_on, -1),
    )
    inside: pd.DataFrame = cut[is_inside]
    return inside


def _of_rows(responses: pd.DataFrame, intervals: pd.DataFrame, needed_until_s: Any) -> pd.DataFrame:
    """The stretches of some rows; each response was needed until a moment at most."""
    names = request_names(responses)
    first_pass_s = responses["placed_at_s"] + responses["queue_time_s"]
    in_engine_s = first_pass_s + responses["generation_time_s"]
    ended_s = np.minimum(responses["finished_at_s"], np.maximum(in_engine_s, needed_until_s))
    last = pd.DataFrame(
        {
            "step": responses["step"],
            "engine": responses["engine"],
            "request": names,
            "label": request_labels(names),
            "began_s": responses["placed_at_s"],
            "first_pass_s": np.minimum(first_pass_s, ended_s),
            "ended_s": ended_s,
            "end": responses["finish_reason"],
            "response": np.arange(len(responses)),
        },
        columns=list(COLUMNS),
    )
    moves = intervals[intervals["activity"].isin(MOVES)]
    if moves.empty:
        return last
    rows = pd.Series(np.arange(len(responses)), index=names)
    numbers = moves["subject"].map(rows).fillna(-1).astype("int64").to_numpy()
    earlier = pd.DataFrame(
        {
            "step": moves["step"].to_numpy(),
            "engine": moves["actor"].to_numpy(),
            "request": moves["subject"].to_numpy(),
            "label": request_labels(moves["subject"]).to_numpy(),
            "began_s": moves["started_at_s"].to_numpy(),
            "first_pass_s": np.nan,
            "ended_s": moves["ended_at_s"].to_numpy(),
            "end": moves["activity"].to_numpy(),
            "response": numbers,
        },
        columns=list(COLUMNS),
    )
    return pd.concat([last, earlier], ignore_index=True)


def request_names(responses: pd.DataFrame) -> pd.Series[str]:
    """The names of requests as `subject` of `intervals` spells them."""
    prompt = responses["prompt"] + "@" + responses["epoch"].astype(str)
    return "r" + responses["round"].astype(str) + ":" + prompt + "#" + responses["sample"].astype(str)


def request_labels(names: pd.Series[str]) -> pd.Series[str]:
    """What people are shown instead: the prompt and the number of the sample."""
    return names.str.replace(_REQUEST, r"\1 #\2", regex=True)


def environment_waits(intervals: pd.DataFrame) -> pd.DataFrame:
    """Give the intervals in which requests waited for their environments, with the `label` of each."""
    waits = intervals[intervals["role"] == ENVIRONMENT]
    return waits.assign(label=request_labels(waits["subject"]))


class Lanes:
    """Puts slices on as few lanes as possible so that none overlaps another of its lane.

    The lowest free lane is taken, so that the slices that run longest alone end up on the first ones.
    """

    def __init__(self) -> None:
        self._busy: list[tuple[int, int]] = []
        self._free: list[int] = []

    def choose(self, began: Sequence[int], ended: Sequence[int]) -> list[int]:
        """Choose the lanes of slices, given by beginning; none begins before those of an earlier call."""
        busy, free = self._busy, self._free
        chosen = []
        for start, end in zip(began, ended, strict=True):
            while busy and busy[0][0] <= start:
                heapq.heappush(free, heapq.heappop(busy)[1])
            lane = heapq.heappop(free) if free else len(busy)
            heapq.heappush(busy, (end, lane))
            chosen.append(lane)
        return chosen


def concurrency(began_s: Any, ended_s: Any) -> tuple[npt.NDArray[np.float64], Integers]:
    """Count how many stretches are open at once: the times at which that changes, and the number from then on."""
    times = np.concatenate([np.asarray(began_s, dtype=float), np.asarray(ended_s, dtype=float)])
    changes = np.concatenate([np.ones(len(times) // 2, dtype=np.int64), -np.ones(len(times) // 2, dtype=np.int64)])
    moments, inverse = np.unique(times, return_inverse=True)
    totals = np.zeros(len(moments), dtype=np.int64)
    np.add.at(totals, inverse, changes)
    return moments, np.cumsum(totals)


def covered(spans: npt.NDArray[np.float64], first_s: float, last_s: float) -> float:
    """Seconds between two moments in which at least one of some spans was open; a row is a beginning and an end."""
    if not len(spans):
        return 0.0
    begins, ends = np.clip(spans, first_s, last_s)[np.argsort(spans[:, 0], kind="stable")].T
    reached = np.maximum.accumulate(ends)
    starts = np.maximum(begins, np.concatenate([[first_s], reached[:-1]]))
    return float(np.maximum(0.0, ends - starts).sum())


def natural_order(name: str) -> list[tuple[bool, int, str]]:
    """Sort engine-2 before engine-10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]
