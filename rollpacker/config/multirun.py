"""Hydra's multirun, validated as a whole: every point is composed and validated before the first one starts.

Points have their own run directories. Without a `run.dir` the sweep writes into one dated folder, a numbered directory
per point; with one, it must differ between the points. Hydra's own record, `multirun.yaml`, goes into the folder that
the points share. `${now:FORMAT}` is the time of the launch, the same for all points and however often one is composed.

Points that `hydra/launcher=slurm` submits resume from an earlier launch, unless `run.resume` is given.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from rollpacker.config.compose import (
    Complete,
    compose_in,
    hydra_session,
    parse_overrides,
    readable,
    translated_errors,
    validate,
)
from rollpacker.config.entry_names import unescaped_names
from rollpacker.config.given_file import refuse_file
from rollpacker.config.launching import LAUNCHER, LauncherSettings, is_chosen, launcher_mistakes, validate_launcher
from rollpacker.config.mistakes import SeveralMistakes, collected, raise_mistakes
from rollpacker.config.optional_sections import with_defaults_of_deleted
from rollpacker.config.roots import DEFAULT_RUN_DIR, TRAIN, groups
from rollpacker.config.schema import RunConfig
from rollpacker.config.word_mistakes import sweep_values
from rollpacker.config.words import key_of, quoted
from rollpacker.core.errors import ConfigError, UserError
from rollpacker.paths import real_path

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra  # only the type

CompletePoint = Callable[[LauncherSettings | None], Complete]
"""Gives what completes the next point, by what launches it; None is another launcher than ours."""

MOST_POINTS = 1_000
"""As many as a job array has by Slurm's default; composing them takes one or two minutes."""
_NOW = re.compile(r"(?<!\\)\$\{now:([^${}]*)\}")
"""Hydra's `${now:FORMAT}` in an argument."""
HYDRA_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A multirun whose points are known and legal."""

    overrides: tuple[str, ...]
    """The overrides for Hydra."""
    points: tuple[tuple[str, ...], ...]
    """The overrides of each point, in the order in which Hydra runs them."""
    configs: tuple[RunConfig, ...]
    """One per point."""
    folder: Path
    """That the points share, and that takes Hydra's record of the sweep."""
    launcher: LauncherSettings | None
    """None when another launcher than ours runs the points."""

    def with_configs(self, change: Callable[[RunConfig], RunConfig]) -> Sweep:
        """The same with another configuration of every point."""
        return replace(self, configs=tuple(change(config) for config in self.configs))


def point_names(points: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The name of each point: those of its overrides that not all points have, without its folder."""
    shared = set.intersection(*(set(overrides) for overrides in points))
    return tuple(
        unescaped_names(" ".join(each for each in overrides if each not in shared and key_of(each) != "run.dir"))
        for overrides in points
    )


def notes_of_points(notes: Sequence[Sequence[str]]) -> list[str]:
    """The notes of all points, each once; one that not every point has says which ones have it."""
    owners: dict[str, list[int]] = {}
    for number, own in enumerate(notes):
        for note in own:
            owners.setdefault(note, []).append(number)
    return [note if len(numbers) == len(notes) else f"{_points(numbers)}: {note}" for note, numbers in owners.items()]


def mistakes_of_points(mistakes: Sequence[Sequence[UserError]]) -> list[UserError]:
    """The mistakes of all points, each once; one that not every point has says which ones have it.

    Of the latter, those that differ only in their first lines are one mistake: what follows these lines is said once.
    """
    owners: dict[str, tuple[UserError, list[int]]] = {}
    for number, own in enumerate(mistakes):
        for found in own:
            for mistake in found.listed if isinstance(found, SeveralMistakes) else (found,):
                owners.setdefault(str(mistake), (mistake, []))[1].append(number)
    of_all = [mistake for mistake, numbers in owners.values() if len(numbers) == len(mistakes)]
    first_lines: dict[tuple[type[UserError], str, str, str], list[str]] = {}
    for mistake, numbers in owners.values():
        if len(numbers) < len(mistakes):
            first, end, more = mistake.problem.partition("\n")
            alike = (type(mistake), f"{end}{more}", mistake.allowed, mistake.remedy)
            first_lines.setdefault(alike, []).append(f"{_points(numbers)}: {first}")
    of_some = [
        kind("\n".join(lines) + more, allowed, remedy) for (kind, more, allowed, remedy), lines in first_lines.items()
    ]
    return [*of_all, *of_some]


def _points(numbers: Sequence[int]) -> str:
    return f"point {numbers[0]}" if len(numbers) == 1 else f"points {', '.join(map(str, numbers))}"


def compose_sweep(
    overrides: Sequence[str],
    tell: Callable[[int], None] = lambda _: None,
    complete_point: CompletePoint | None = None,
) -> Sweep:
    """Expand a multirun and validate every point; two points that would share a `run.dir` are refused.

    `tell` is called with the number of points before they are composed, `complete_point` before each.
    """
    refuse_file(overrides)
    started_at = datetime.now().astimezone()
    overrides = [_NOW.sub(lambda found: started_at.strftime(found[1]), word) for word in overrides]
    overrides = with_defaults_of_deleted(TRAIN, readable(TRAIN, overrides))
    with hydra_session() as session:
        base = _base(session, overrides)
        launcher = _launcher(base)
        choices = _choices(session, base)
        points = _expand(base, choices)
        _refuse_lost_sweeps(session, base, points, overrides)
        tell(len(points))
        run_dir = _run_dir(session, points[0])
        added = [*_run_dir_overrides(run_dir, started_at), *_launcher_overrides(launcher, points[0])]
        points = [[*point, *added] for point in points]
        configs: list[RunConfig] = []
        mistakes: list[list[UserError]] = [[] for _ in points]
        for number, (point, own) in enumerate(zip(points, mistakes, strict=True)):
            with collected(own):
                complete = None if complete_point is None else complete_point(launcher)
                configs.append(compose_in(session, TRAIN, point, job_num=number, complete=complete))
        raise_mistakes(mistakes_of_points(mistakes))
    _refuse_shared_dirs(configs, points, choices, run_dir)
    shared_folder = _shared_folder([config.run.dir for config in configs])
    return Sweep(
        overrides=(*overrides, *added, f"hydra.sweep.dir={quoted(shared_folder)}"),
        points=tuple(tuple(point) for point in points),
        configs=tuple(configs),
        folder=shared_folder,
        launcher=launcher,
    )


def run_sweep(sweep: Sweep, task: Callable[[DictConfig], None]) -> None:
    """Run all points through Hydra's sweeper and launcher; raises the first failure after all points have ended.

    `task` is a module-level function: a launcher may pickle it to another machine. It turns its argument into a
    `RunConfig` by `config_of_point`.
    """
    with hydra_session() as session:
        session.multirun(
            config_name=TRAIN.name,
            task_function=task,
            overrides=list(sweep.overrides),
            with_log_configuration=False,
        )


def config_of_point(config: DictConfig, complete: Complete | None = None) -> RunConfig:
    """Complete and validate what Hydra composed for one point."""
    return validate(TRAIN, config, complete)


def _base(session: Hydra, overrides: Sequence[str]) -> DictConfig:
    """Compose what the points share; raises for mistakes of all points."""
    parsed = parse_overrides(session, TRAIN, overrides)
    if is_chosen(parsed):
        raise_mistakes(list(launcher_mistakes(parsed)))
    with translated_errors(TRAIN):
        return session.config_loader.load_configuration(TRAIN.name, list(overrides), run_mode=RunMode.MULTIRUN)


def _launcher(base: DictConfig) -> LauncherSettings | None:
    if base.hydra.launcher._target_ != LAUNCHER:
        return None
    with translated_errors(TRAIN):
        values = OmegaConf.to_container(base.hydra.launcher, resolve=True)
    assert isinstance(values, dict)
    return validate_launcher({str(name): value for name, value in values.items()})


def _launcher_overrides(launcher: LauncherSettings | None, point: Sequence[str]) -> list[str]:
    """The overrides that the launcher adds to every point."""
    if launcher is None:
        return []
    resume = [] if "run.resume" in map(key_of, point) else ["run.resume=auto"]
    image = [] if launcher.container is None else [f"cluster.container.image={quoted(launcher.container)}"]
    return [*resume, *image]


def _choices(session: Hydra, base: DictConfig) -> dict[str, list[str]]:
    """The overrides that each key takes in turn, in Hydra's order."""
    if base.hydra.sweeper._target_ != HYDRA_SWEEPER:
        raise ConfigError(
            f"The sweeper {base.hydra.sweeper._target_} chooses its points while they run.",
            "A multirun is validated as a whole before its first point starts, so its points must be known.",
            "Leave out hydra/sweeper=...",
        )
    task_overrides = OmegaConf.to_container(base.hydra.overrides.task, resolve=False)
    assert isinstance(task_overrides, list)
    given = [f"{name}={value}" for name, value in (base.hydra.sweeper.params or {}).items()] + task_overrides
    choices: dict[str, list[str]] = {}
    for override in OverridesParser.create(session.config_loader).parse_overrides(given):
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices[key] = [str(override.input_line)]
        elif override.is_discrete_sweep():
            choices[key] = [f"{key}={value}" for value in sweep_values(override, MOST_POINTS + 1)]
        else:
            raise ConfigError(
                f"`{override.input_line}` has no countable values.",
                "A multirun takes a,b,c or range(start,stop,step).",
            )
    num_points = math.prod(map(len, choices.values()))
    if num_points > MOST_POINTS:
        largest = max(choices, key=lambda key: len(choices[key]))
        raise ConfigError(
            f"The multirun has {num_points:,} points or more.",
            f"At most {MOST_POINTS:,}: all points are composed and validated before the first one starts.",
            f"Give {largest} fewer values, or split the multirun.",
        )
    return choices


def _expand(base: DictConfig, choices: Mapping[str, Sequence[str]]) -> list[list[str]]:
    hydra_overrides = OmegaConf.to_container(base.hydra.overrides.hydra, resolve=False)
    assert isinstance(hydra_overrides, list)
    return [[*hydra_overrides, *point] for point in itertools.product(*choices.values())]


def _refuse_lost_sweeps(
    session: Hydra, base: DictConfig, points: Sequence[Sequence[str]], overrides: Sequence[str]
) -> None:
    """Refuse a multirun over options that have sweeps of their own: Hydra takes those of what all points share."""
    given = set(map(key_of, overrides))  # they win over the sweeps of options
    shared_words, first = set.intersection(*map(set, points)), dict[str, Sequence[str]]()
    for point in points:
        for word in point:
            if key_of(word) in groups(TRAIN) and word not in shared_words:
                first.setdefault(word, point)
    for word, point in first.items():
        with translated_errors(TRAIN):
            config = session.config_loader.load_configuration(TRAIN.name, list(point), run_mode=RunMode.RUN)
        own, shared = (dict(each.hydra.sweeper.params or {}) for each in (config, base))
        if lost := {name: value for name, value in own.items() if shared.get(name) != value and name not in given}:
            raise ConfigError(
                f"`{word}` has a sweep of its own: {' '.join(f'{name}={value}' for name, value in lost.items())}.",
                f"A multirun over several options of `{key_of(word)}` would leave it out.",
                "Launch once per value.",
            )


def _run_dir(session: Hydra, point: Sequence[str]) -> str:
    """The `run.dir` of a point, with its interpolations."""
    with translated_errors(TRAIN):
        config = session.config_loader.load_configuration(TRAIN.name, list(point), run_mode=RunMode.RUN)
    return str(OmegaConf.to_container(config, resolve=False)["run"]["dir"])  # type: ignore[call-overload, index]


def _run_dir_overrides(run_dir: str, started_at: datetime) -> list[str]:
    """Give each point its own directory when the user named none."""
    if run_dir != DEFAULT_RUN_DIR:
        return []
    return [f"run.dir=runs/{started_at:%Y-%m-%d_%H-%M-%S}/${{hydra:job.num}}-${{system.name}}"]


def _refuse_shared_dirs(
    configs: Sequence[RunConfig], points: Sequence[Sequence[str]], choices: Mapping[str, list[str]], run_dir: str
) -> None:
    """Refuse points that share a folder; `run_dir` is that of the first point, with its interpolations."""
    owners: dict[Path, int] = {}
    for number, config in enumerate(configs):
        first = owners.setdefault(real_path(config.run.dir), number)
        if first == number:
            continue
        own = f"'{run_dir}{'-${hydra:job.num}' if '${' in run_dir else '/${hydra:job.num}-${system.name}'}'"
        if points[first] == points[number]:
            twice = [word for words in choices.values() for word in dict.fromkeys(words) if words.count(word) > 1]
            raise ConfigError(
                f"Points {first} and {number} of the multirun are the same: it lists {' and '.join(twice)} twice.",
                "Every point has its own run directory.",
                f"List each value once, or give the same run another directory: run.dir={own}",
            )
        raise ConfigError(
            f"Points {first} and {number} of the multirun would both write into run.dir={config.run.dir}.",
            "Every point has its own run directory.",
            f"Leave run.dir out, or let it differ: run.dir={own}",
        )


def _shared_folder(run_dirs: Sequence[Path]) -> Path:
    shared = Path(os.path.commonpath([real_path(folder).parent for folder in run_dirs]))
    return Path(os.path.relpath(shared)) if shared.is_relative_to(Path.cwd()) else shared
