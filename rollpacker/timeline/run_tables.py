"""A run's tables, read a few steps at a time, finished or not.

Invariant: what is handed out speaks of whole steps only, each once, and of no step beyond those that were there when
the run was opened: a run that is still being written looks as it did at that moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.config.record import read_record
from rollpacker.core.errors import DataError
from rollpacker.metrics.tables import EVALUATION_FOLDER, load_manifest, read_table
from rollpacker.timeline.moments import LoggedMoments, read_moments

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd

_ONLY_LOGGED = (
    "engines that joined, were lost, retired or lent, rollout workers that arrived or left, changes of parallelism "
    "and starts of the run"
)

ASYNC = "async"
"""What `round_kind` is in an asynchronous run."""

STEPS_AT_A_TIME = 16
"""Bounds the memory: at the paper's scale 16 steps are 25,000 responses, some 20 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables:
    """All tables of consecutive steps."""

    steps: pd.DataFrame
    domains: pd.DataFrame
    responses: pd.DataFrame
    intervals: pd.DataFrame
    later_responses: pd.DataFrame
    """Of steps after these, whose responses may have run in these: in an asynchronous run; empty in any other."""
    later_intervals: pd.DataFrame

    @property
    def is_async(self) -> bool:
        """Responses run in other steps than the one that trains them."""
        return ASYNC in set(self.steps["round_kind"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTables:
    """A run that has at least one finished step."""

    run_dir: Path
    steps: pd.DataFrame
    """Those that were asked for, by step."""
    num_later: int
    """So many steps after its own one may train a response at most: none but in an asynchronous run."""
    logged: LoggedMoments
    notes: tuple[str, ...]
    """What is missing, in sentences."""

    @property
    def is_async(self) -> bool:
        """Responses go on over weight updates."""
        return ASYNC in set(self.steps["round_kind"])

    @property
    def is_modelled(self) -> bool:
        return bool(self.steps["modelled"].any())

    @property
    def attempt_spans(self) -> list[tuple[float, float]]:
        """Beginning and end of each attempt; they overlap where one did again what the one before had begun."""
        until_s = float(self.steps["finished_at_s"].iloc[-1])
        spans = [(attempt.began_at_s, attempt.ended_at_s) for attempt in self.logged.attempts] or [(0.0, until_s)]
        return [*spans[:-1], (spans[-1][0], max(spans[-1][1], until_s))]

    @property
    def system(self) -> str:
        return str(self.steps["system"].iloc[-1])

    def parts(self, num_steps: int = STEPS_AT_A_TIME) -> Iterator[StepTables]:
        """Read so many steps after the other."""
        for first in range(0, len(self.steps), num_steps):
            steps = self.steps.iloc[first : first + num_steps]
            span = int(steps["step"].iloc[0]), int(steps["step"].iloc[-1])
            responses, intervals, domains = (
                read_table(self.run_dir, table, (span[0], span[1] + self.num_later)).to_pandas()
                for table in ("responses", "intervals", "domains")
            )
            (responses, later_responses), (intervals, later_intervals), (domains, _) = (
                _divided(frame, span[1]) for frame in (responses, intervals, domains)
            )
            yield StepTables(
                steps=steps,
                domains=domains,
                responses=responses,
                intervals=intervals,
                later_responses=later_responses,
                later_intervals=later_intervals,
            )

    def held_out(self) -> Iterator[pd.DataFrame]:
        """Read `evaluation_responses` of each evaluation before, in and after these steps; stopped sets have none.

        Raises:
            DataError: They cannot be read.
        """
        span = int(self.steps["step"].iloc[0]), int(self.steps["step"].iloc[-1]) + 1  # counted in finished steps
        manifest = load_manifest(self.run_dir / EVALUATION_FOLDER)
        if manifest is None or not manifest.parts:
            return
        for step in sorted(set(read_table(self.run_dir, "evaluations", span)["step"].to_pylist())):
            yield read_table(self.run_dir, "evaluation_responses", (step, step)).to_pandas()


def _divided(frame: pd.DataFrame, last_step: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of steps up to one, and those of later ones."""
    is_later = frame["step"] > last_step
    return frame[~is_later].reset_index(drop=True), frame[is_later].reset_index(drop=True)


def open_run(run_dir: Path, steps: tuple[int, int] | None = None) -> RunTables:
    """Look at a run.

    Args:
        run_dir: Its folder.
        steps: First and last step that matter, from 0 as in the tables; None is all of them.

    Raises:
        DataError: There is no such folder, it is no run or one of another version, no step is finished, or none of
            those that were asked for.
    """
    refuse_other_folders(run_dir)
    frame = read_table(run_dir, "steps").to_pandas().sort_values("step", ignore_index=True)
    num_later = 1 + int(frame["staleness_max"].max()) if ASYNC in set(frame["round_kind"]) else 0
    if steps is not None:
        chosen = frame[frame["step"].between(*steps)]
        if chosen.empty:
            first, last = steps[0] + 1, steps[1] + 1
            raise DataError(
                f"{run_dir} has " + (f"no step {first}" if first == last else f"none of the steps {first} to {last}"),
                f"It has the steps {frame['step'].iloc[0] + 1} to {frame['step'].iloc[-1] + 1}",
                "Ask for some of them",
            )
        frame = chosen.reset_index(drop=True)
    logged, note = _logged_of(run_dir, frame["step"])
    return RunTables(run_dir=run_dir, steps=frame, num_later=num_later, logged=logged, notes=(note,) if note else ())


def _logged_of(run_dir: Path, steps: pd.Series[int]) -> tuple[LoggedMoments, str]:
    """What the event logs know of some steps, and what is not known because of them."""
    nothing = LoggedMoments(attempts=(), moments=(), steps=frozenset())
    try:
        logged = read_moments(run_dir)
    except DataError as error:
        return nothing, f"The event logs are left out, so {_ONLY_LOGGED} are not shown: {error.problem}."
    if not logged.attempts:
        return nothing, f"There is no event log: {_ONLY_LOGGED} are not shown."
    note = silence_of(logged, steps)
    return logged, f"{note} There, {_ONLY_LOGGED} are not shown." if note else ""


def silence_of(logged: LoggedMoments, steps: Iterable[int]) -> str:
    """Name the steps of the tables that the event logs lack, in a sentence; empty without any."""
    known = set(map(int, steps))
    silent = sorted(known - logged.steps)
    if not silent:
        return ""
    return (
        f"The event logs say nothing of {len(silent):,} of {len(known):,} steps, such as step {silent[0] + 1}: a log, "
        "or lines at the end of one, are missing."
    )


def refuse_other_folders(run_dir: Path) -> None:
    """Raise `DataError` for what is no run with a finished step, and say where one may be."""
    allowed = "A run is the folder run.dir of `rollpacker train`, in which metrics/ holds a table per kind"
    if not run_dir.is_dir():
        what = "is a file" if run_dir.exists() else "does not exist"
        raise DataError(f"{run_dir} {what}", allowed, "Check the path; `rollpacker jobs DIR` lists the runs below DIR")
    if (run_dir / "metrics" / "manifest.json").exists():
        return
    if parts := sorted(run_dir.glob("metrics/steps/*.parquet")):
        raise DataError(
            f"{run_dir}/metrics/manifest.json is missing, and {len(parts)} files of steps lie beside it",
            "The manifest says which of them count",
            "Copy it again from where the run wrote it, or resume the run: run.resume=auto makes it again",
        )
    if _only_evaluates(run_dir):
        raise DataError(
            f"{run_dir} is a run that only evaluates (run.num_steps=0): it has no training step",
            "Reports, traces, exports and the table `steps` are of training steps",
            f"`rollpacker jobs {run_dir}` shows its held-out scores, `rollpacker show {run_dir}` what was answered",
        )
    if (run_dir / "run.json").exists():
        raise DataError(
            f"{run_dir} is a run without a finished step yet",
            "There is something to show once the first step is over",
            f"`rollpacker jobs {run_dir}` says whether it runs, or why it ended",
        )
    with_steps = sorted(path.parent.parent for path in run_dir.glob("*/metrics/manifest.json"))
    inside = with_steps or sorted(path.parent for path in run_dir.glob("*/run.json"))
    remedy = f"Give one of the runs in it, such as {inside[0]}" if inside else "Check the path"
    raise DataError(f"{run_dir} is not a run: it has no metrics/manifest.json", allowed, remedy)


def _only_evaluates(run_dir: Path) -> bool:
    """True of a run whose configuration asks for no training step."""
    try:
        record = read_record(run_dir) or {}
    except DataError:
        return False
    return (record.get("run") or {}).get("num_steps") == 0
