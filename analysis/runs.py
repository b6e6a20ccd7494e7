"""Finds runs and reads their tables; says what is missing and goes on with the rest."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from rollpacker.analysis.settings import differing, resolved, settings_of, task_of, values_said
from rollpacker.config.record import CONFIG_FILE, read_record, started_in
from rollpacker.config.words import counted
from rollpacker.core.errors import DataError
from rollpacker.launch import collect_status
from rollpacker.metrics.schemas import ALL_TABLES
from rollpacker.metrics.tables import EVALUATION_FOLDER, MANIFEST, read_frame
from rollpacker.runtime.run.run_folder import RUN_FILE
from rollpacker.runtime.run.status import read_status

PAPER_SETUP = "paper"
"""Of conf/setup: the size of run that the paper's numbers are of."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run that has at least one step."""

    folder: Path
    system: str
    steps: pd.DataFrame
    """The `steps` table; its index is the step, for a run that was repaired may lack some."""
    unread: list[str] = field(default_factory=list)
    """A sentence for each table that was asked for and cannot be read."""
    _tables: dict[str, pd.DataFrame | DataError] = field(default_factory=dict, repr=False)
    """What was read of each table."""

    @property
    def is_modelled(self) -> bool:
        return bool(self.steps["modelled"].any())

    @cached_property
    def config(self) -> dict[str, Any]:
        """The run's configuration, without empty sections; empty where the run kept none that can be read."""
        try:
            sections = read_record(self.folder) or {}
        except DataError:
            return {}
        return {name: section for name, section in sections.items() if section is not None}

    @property
    def started_in(self) -> Path:
        """The folder that relative paths of its configuration begin in; this one where its record does not say."""
        return started_in(self._record) or Path.cwd()

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """What tells it from other runs, by dotted keys."""
        return settings_of(self.config)

    @cached_property
    def resolved_settings(self) -> Mapping[str, Any]:
        """The same, with files and folders as they are compared."""
        return resolved(self.settings, self.started_in)

    @cached_property
    def _record(self) -> str:
        try:
            return (self.folder / CONFIG_FILE).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return ""

    @property
    def model(self) -> str:
        """What the model is called; empty where it is not known."""
        section = self.config.get("model", {})
        return str(section.get("name") or Path(str(section.get("path") or "")).name)

    @property
    def seed(self) -> int:
        return self._number("run", "seed")

    @property
    def setup(self) -> str:
        """The size of run that it is, as conf/setup names it; one without a name counts as the paper's."""
        return str(self.config.get("run", {}).get("setup") or PAPER_SETUP)

    @property
    def study(self) -> str:
        """What it varies beyond model, task, system and seed (see `rollpacker.analysis.exhibit`); empty for nothing."""
        return str(self.config.get("run", {}).get("study", ""))

    @property
    def workload(self) -> str:
        """What a modelled run's responses are called; empty for a real one."""
        return str(self.config.get("workload", {}).get("name", ""))

    @property
    def num_gpus(self) -> int:
        """Of all engines that the run began with; under placement=colocated these are all of its GPUs."""
        return (self._number("engine", "num_engines") or 1) * self.tensor_parallel

    @property
    def num_prompts(self) -> int:
        """Prompts in a training batch, P0."""
        return self._number("rollout", "num_prompts")

    @property
    def num_responses(self) -> int:
        """Responses per prompt in a training batch, R0."""
        return self._number("rollout", "num_responses")

    @property
    def max_response_tokens(self) -> int:
        return self._number("rollout", "max_response_tokens")

    def _number(self, section: str, key: str) -> int:
        """A whole number of its configuration; 0 where this has none."""
        value = self.config.get(section, {}).get(key)
        return value if isinstance(value, int) else 0

    @property
    def samples_per_s(self) -> float:
        """Responses trained per second of all steps."""
        return self.num_prompts * self.num_responses * len(self.steps) / float(self.steps["step_time_s"].sum())

    @property
    def bubble_percent(self) -> float:
        """Share of all decode slots in which no request ran, over all steps; NaN where nothing decoded."""
        idle, busy = self.steps["decode_slot_steps_idle"].sum(), self.steps["decode_slot_steps_busy"].sum()
        return float(100 * idle / (idle + busy)) if idle + busy else math.nan

    @property
    def wasted_percent(self) -> float:
        """Share of the tokens generated that were not trained, over all steps; NaN where no step counted those."""
        wasted, generated = self.steps["tokens_wasted"].sum(min_count=1), self.steps["tokens_generated"].sum()
        return float(100 * wasted / max(1, generated))

    def mean(self, column: str) -> float:
        """Of a column of the `steps` table over all steps."""
        return float(self.steps[column].mean())

    def ratio(self, part: str, whole: str) -> float:
        """Of the sums of two columns of the `steps` table over all steps."""
        return float(self.steps[part].sum() / self.steps[whole].sum())

    def first(self, num_steps: int) -> Run:
        """The run as it was after so many steps; other tables than `steps` stay whole."""
        return replace(self, steps=self.steps.loc[: num_steps - 1])

    def within(self, first: int, stop: int) -> Run:
        """The run as if it had had these steps alone, from `first` up to the one before `stop`."""
        return replace(self, steps=self.steps.loc[first : stop - 1])

    @property
    def tensor_parallel(self) -> int:
        """Of the engines that the run began with."""
        first = self.steps.iloc[0]
        degree = first["tensor_parallel"] if pd.isna(first["escalated_from"]) else first["escalated_from"]
        return int(degree)

    @property
    def processor_s(self) -> float | None:
        """What the run took of a processor, if it did so in one attempt; of a modelled run that is all it takes."""
        status = read_status(self.folder)
        return status.processor_s if status and status.attempt == 0 else None

    @property
    def evaluations(self) -> pd.DataFrame:
        """The `evaluations` table, as far as it has scores; without rows where the run has none."""
        if not (self.folder / EVALUATION_FOLDER / MANIFEST).exists():
            return _empty("evaluations")
        return self._table("evaluations").dropna(subset=["reward_mean"])

    @property
    def task(self) -> str:
        """The one domain of the run's prompts, or `mix`; empty where they cannot be read."""
        domains = self._table("domains")["domain"].unique()
        return "mix" if len(domains) > 1 else "".join(map(str, domains))

    @property
    def responses(self) -> pd.DataFrame:
        """The `responses` table; without a row where it cannot be read."""
        return self._table("responses")

    @property
    def intervals(self) -> pd.DataFrame:
        """The `intervals` table; without a row where it cannot be read."""
        return self._table("intervals")

    def quantile(self, column: str, level: float) -> float:
        """Of a column of the `responses` table; NaN without responses."""
        return float(self.responses[column].quantile(level))

    def _table(self, name: str) -> pd.DataFrame:
        """Read a table once; each time that it is asked for, `unread` says if that failed."""
        if name not in self._tables:
            try:
                self._tables[name] = read_frame(self.folder, name)
            except DataError as error:
                self._tables[name] = error
        table = self._tables[name]
        if isinstance(table, DataError):
            _note(self.unread, f"the {name} of {self.folder} are left out: {table.problem}")
            return _empty(name)
        return table

    @property
    def is_finished(self) -> bool:
        """True when every step is there that the configuration asks for, or that its epochs have."""
        status = read_status(self.folder)
        has_ended = status is not None and status.state == "finished"
        return has_ended or len(self.steps) >= self._number("run", "num_steps")


def _empty(table: str) -> pd.DataFrame:
    """A table without a row."""
    frame: pd.DataFrame = ALL_TABLES[table].to_arrow().empty_table().to_pandas()
    return frame


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The runs that an exhibit may draw from, and what it missed among them.

    Invariant: all are measured or all are modelled, so that no number compares one kind with the other.
    """

    runs: Sequence[Run]
    setup: str = PAPER_SETUP
    """Of the runs that are drawn."""
    missing: list[str] = field(default_factory=list)
    """A sentence for each thing that was looked for and is not there."""
    left_out: list[str] = field(default_factory=list)
    """A sentence for each run that another one of its seed stands for: no number lacks it."""

    def __post_init__(self) -> None:
        """Check the invariant."""
        assert len({run.is_modelled for run in self.runs}) < 2, "measured and modelled runs"  # noqa: PLR2004

    def models(self, *names: str) -> tuple[str, ...]:
        """The models to draw: these, which are the paper's; at another size those that there are runs of."""
        if self.are_papers_size:
            return names
        return tuple(dict.fromkeys(run.model for run in self.runs if run.setup == self.setup))

    def model(self, name: str) -> str:
        """The model of an exhibit that shows one: this one, or at another size, without runs of it, the first."""
        models = self.models(name)
        return name if name in models else next(iter(models), name)

    @property
    def are_papers_size(self) -> bool:
        """Whether the paper's numbers may stand beside these runs."""
        return self.setup == PAPER_SETUP

    def of(self, **wanted: object) -> list[Run]:
        """Every run that has these values, a run per seed; notes it when there is none.

        Runs of another size are left out, and those of a study unless `study` is among the values: the rule is in
        `rollpacker.analysis.exhibit`. So are those that differ from most: from those of their system in any setting
        that changes results, from those of other systems in the task.

        Args:
            **wanted: Properties of `Run` with the value that each should have.
        """
        described = ", ".join(f"{name} {value}" for name, value in wanted.items())
        whole = {"setup": self.setup, "study": ""} | wanted
        found = self._comparable(whole)
        if not found:
            _note(self.missing, f"no run with {described}")
        elif absent := self._seeds(whole) - {run.seed for run in found}:
            _note(self.missing, f"no run with {described}, seed {', '.join(map(str, sorted(absent)))}")
        kept = self._one_per_seed(found)
        for run in kept:
            if not run.is_finished:
                _note(self.missing, f"{run.folder} has only {counted(len(run.steps), 'step')} so far")
        return kept

    def note_shorter(self, found: Iterable[Run], num_steps: int) -> None:
        """Note the finished runs that have fewer steps than the paper's."""
        for run in found:
            if run.is_finished and len(run.steps) < num_steps:
                _note(self.missing, f"{run.folder} has {counted(len(run.steps), 'step')}, the paper's have {num_steps}")

    def _having(self, wanted: Mapping[str, object]) -> list[Run]:
        return [run for run in self.runs if all(getattr(run, name) == value for name, value in wanted.items())]

    def _comparable(self, wanted: Mapping[str, object]) -> list[Run]:
        """Of the runs with these values those that pair with most of any system, and of these those alike."""
        of_any_system = self._having({name: value for name, value in wanted.items() if name != "system"})
        pairing = self._alike(self._having(wanted), of_any_system, lambda run: task_of(run.resolved_settings))
        return self._alike(pairing, pairing, lambda run: run.resolved_settings)

    def _alike(
        self, found: Iterable[Run], others: Sequence[Run], compared: Callable[[Run], Mapping[str, Any]]
    ) -> list[Run]:
        """Of some runs those whose settings, as far as compared, are those of most others; notes the rest."""
        written = [json.dumps(compared(run), sort_keys=True, default=str) for run in others]
        usual = others[written.index(Counter(written).most_common(1)[0][0])] if others else None
        kept = []
        for run in found:
            assert usual is not None, "a run that is found is one of the others"
            if keys := differing([compared(run), compared(usual)]):
                said = values_said(keys, [run.settings, usual.settings])
                _note(self.missing, f"{run.folder} is left out: it differs from {usual.folder} in {said}")
            else:
                kept.append(run)
        return kept

    def _one_per_seed(self, found: Iterable[Run]) -> list[Run]:
        """Of runs with the same seed the one that got farthest, as two of them say no more; notes the others."""
        kept: dict[int, Run] = {}
        for run in sorted(found, key=lambda run: (run.is_finished, len(run.steps)), reverse=True):
            if kept.setdefault(run.seed, run) is not run:
                _note(self.left_out, f"{run.folder} is left out: {kept[run.seed].folder} has its seed, {run.seed}")
        return [kept[seed] for seed in sorted(kept)]

    def _seeds(self, wanted: Mapping[str, object]) -> set[int]:
        """Of all runs of the same size, study and model."""
        shared = {name: wanted[name] for name in ("setup", "study", "model") if name in wanted}
        return {run.seed for run in self.runs if all(getattr(run, name) == value for name, value in shared.items())}


def _note(sentences: list[str], sentence: str) -> None:
    if sentence not in sentences:
        sentences.append(sentence)


def read_runs(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Read every run that can be read; also gives a sentence for each one that cannot."""
    runs, problems = [], []
    for folder in folders:
        try:
            steps = read_frame(folder, "steps").set_index("step", drop=False).rename_axis(None).sort_index()
        except DataError as error:
            problems.append(f"Left out: {error.problem}")  # which names the folder
            continue
        if steps.empty:
            problems.append(f"{folder} is left out: no step has finished yet")
            continue
        run = Run(folder=folder, system=str(steps["system"].iloc[0]), steps=steps)
        if not run.config:
            problems.append(f"{folder} has no {CONFIG_FILE} that can be read: its model, seed and setup are not known")
        runs.append(run)
    return runs, problems


def shared_steps(runs: Iterable[Run]) -> list[int]:
    """The steps that each of some runs has, in order; none without a run."""
    return shared_index(run.steps for run in runs)


def shared_index(tables: Iterable[pd.DataFrame | pd.Series]) -> list[int]:
    """The steps by which each of some tables is indexed, in order; none without a table."""
    steps = [set(table.index) for table in tables]
    return sorted(set.intersection(*steps)) if steps else []


def find_runs(folder: Path) -> Iterator[Path]:
    """Every run's folder at or below one, by name, without those whose job has not begun; links to runs count."""
    found = collect_status.find_runs(folder) if folder.is_dir() else iter(())
    return (run_dir for run_dir in found if (run_dir / RUN_FILE).exists())
