"""The arguments of `rollpacker plan`: the question that they ask, and the runs that answer it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.cli.settings import parse_settings, whole_number
from rollpacker.config.mistakes import collected, raise_mistakes
from rollpacker.config.sections.base import MOST_WORKERS
from rollpacker.config.words import key_of, quoted
from rollpacker.core.errors import ConfigError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rollpacker.analysis.plan.lengths import LengthFacts
    from rollpacker.analysis.plan.search import Space
    from rollpacker.config.schema import RunConfig

DEFAULTS = {"gpus": "", "out": "", "seconds": "60", "seeds": "3", "systems": "", "workers": ""}
"""The plan's own settings."""

_TURNS = "Leave it out: engines and trainer take turns on all GPUs"

DECIDED = {
    "system": "Write systems=verl,rollpacker",
    "system.eta_prompts": "Leave it out: eta is one of the answers",
    "system.eta_responses": "Leave it out: eta is one of the answers",
    "engine.num_engines": "Write gpus=N",
    "hardware.num_nodes": "Write gpus=N",
    "placement": _TURNS,
    "placement.engine": _TURNS,
    "placement.trainer": _TURNS,
    "run.dir": "Write out=DIR",
    "run.seed": "Write seeds=N",
    "run.num_steps": "Leave it out: the search chooses it",
    "backend": "Leave it out: a plan is always modelled",
}
"""Keys of a run that the plan decides, and what to do instead."""

DEFAULT_SYSTEMS = ("verl", "rlhfuse", "rollpacker")
"""Of these those that `conf/system` has; the first is plain batching."""

TRAINER_DEGREES = {"trainer.tensor_parallel", "trainer.pipeline_parallel", "trainer.context_parallel"}

DEGREE_KEY = "engine.tensor_parallel"
"""As an argument, it fixes the degree."""

_LIMIT = "rollout.max_response_tokens"
_MOST_CUT = 0.1
"""Of the responses, at a limit that nobody chose."""

MANY_ENGINES = 64 * 2520
"""A multiple of it and of the GPUs: engines on which a trainer of any degrees fits, until the number that was asked for
is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The plan's own settings."""

    num_gpus: int | None
    """None takes those of the experiment."""
    out: Path | None
    """None: a fresh folder below runs/plan."""
    seconds: float
    """After which no further run begins."""
    num_seeds: int
    systems: tuple[str, ...]
    """The first is the baseline."""
    num_workers: int


def split_arguments(arguments: Sequence[str]) -> tuple[Question, list[str]]:
    """Separate the plan's own settings from the keys of the runs; raises for what the plan decides."""
    others, own = parse_settings("plan", arguments, DEFAULTS, example="model=qwen2.5-14b gpus=32", takes_keys=True)
    own["workers"] = own["workers"] or str(len(os.sched_getaffinity(0)))
    mistakes: list[UserError] = [
        ConfigError(
            f"`{argument}` with `rollpacker plan`.",
            "The plan compares systems, factors and numbers of GPUs, and decides these itself.",
            f"{DECIDED[key]}.",
        )
        for argument in others
        if (key := key_of(argument)) in DECIDED
    ]
    keys = set(map(key_of, others))
    if not own["gpus"] and "experiment" not in keys:
        mistakes.append(
            ConfigError("`gpus` is not set.", "The number of GPUs that you have in mind.", "Add gpus=32, for example.")
        )
    if not any(key in {"model", "model.path", "experiment"} or key.startswith("model.shape") for key in keys):
        mistakes.append(_no_model())
    numbers: dict[str, int] = {}
    for name in ("gpus", "seconds", "seeds", "workers"):
        with collected(mistakes):
            if own[name]:
                numbers[name] = whole_number(own, name)
    systems = _systems(own["systems"], mistakes)
    raise_mistakes(mistakes)
    return Question(
        num_gpus=numbers.get("gpus"),
        out=Path(own["out"]) if own["out"] else None,
        seconds=numbers["seconds"],
        num_seeds=numbers["seeds"],
        systems=systems,
        num_workers=numbers["workers"],
    ), others


def _no_model() -> ConfigError:
    from rollpacker.config.roots import TRAIN, groups

    options = [option for option in groups(TRAIN)["model"].options if option != "huggingface"]
    return ConfigError(
        "`model` is not set.",
        f"The model that you have in mind, by its shape: {', '.join(options)}; or model.path=DIR.",
        f"Add model={options[0]}, for example.",
    )


def _systems(text: str, mistakes: list[UserError]) -> tuple[str, ...]:
    from rollpacker.config.keys import nearest
    from rollpacker.config.roots import TRAIN, groups

    options = groups(TRAIN)["system"].options
    if not text:
        return tuple(name for name in DEFAULT_SYSTEMS if name in options)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in options:
            close = nearest(name, options)
            mistakes.append(
                ConfigError(
                    f"`{name}` in systems={text} is not a system.",
                    f"The systems are {', '.join(options)}.",
                    f"Write {close[0]}." if close else "",
                )
            )
    if len(names) < 2:  # noqa: PLR2004  (a comparison has two sides)
        mistakes.append(
            ConfigError(
                f"systems={text} compares nothing.",
                "The first is the baseline, at least one more follows.",
                "Write systems=verl,rollpacker.",
            )
        )
    return names


def folder_of(question: Question) -> Path:
    """The folder that is written: one that does not exist yet, or is empty."""
    from datetime import datetime

    from rollpacker.runtime.run.folder_checks import check_folder

    folder = question.out or Path("runs/plan") / datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    check_folder("out", folder)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"out={folder} exists.", "A plan goes into a folder of its own.", "Choose another out.")
    return folder


def space_of(question: Question, words: Sequence[str], folder: Path) -> tuple[Space, LengthFacts]:
    """Compose every system, find what fits, and validate it as `train` does; creates nothing."""
    from rollpacker.analysis.plan.lengths import length_facts
    from rollpacker.analysis.plan.search import Space
    from rollpacker.analysis.plan.trials import (
        Setting,
        changed,
        check_gpus,
        check_judge,
        config_of,
        trainer_degree,
        with_short_epochs,
    )
    from rollpacker.cli.run_facts import run_facts_of
    from rollpacker.config.compose import compose
    from rollpacker.runtime.run.preflight import validate

    keys = set(map(key_of, words))
    num_gpus = question.num_gpus or _gpus_of_experiment(words)
    own = ["backend=sim", f"run.dir={quoted(folder)}", f"engine.num_engines={_many_engines(num_gpus)}"]
    own.append("hardware.num_nodes=null")  # whatever an experiment says
    bases = {system: compose([*words, *own, f"system={system}"]) for system in question.systems}
    _refuse_other_gpus(bases.values())
    first = bases[question.systems[0]]
    lengths = length_facts(first)  # before the degrees: none would fit lengths that cannot be read
    if _LIMIT not in keys:
        _refuse_cut(lengths, is_default=first.rollout.max_response_tokens == _default_limit())
    if not keys & TRAINER_DEGREES and _shares_nothing(first):
        degree = trainer_degree(first, num_gpus)
        bases = {system: changed(config, {"trainer.tensor_parallel": degree}) for system, config in bases.items()}
        first = bases[question.systems[0]]
    if any(config.system.length_history for config in bases.values()):  # the same prompts for all
        bases = {system: with_short_epochs(config, len(lengths.drawn)) for system, config in bases.items()}
        first = bases[question.systems[0]]
    assert first.workload is not None
    check_gpus(first, num_gpus)
    for config in bases.values():
        check_judge(config, num_gpus)
    space = Space(
        bases=bases,
        num_gpus=num_gpus,
        degrees_by_gpus=_degrees_by_gpus(bases, num_gpus, is_fixed=DEGREE_KEY in keys),
        rho=first.workload.rho,
        varies_rho=not lengths.has_groups,
        num_seeds=question.num_seeds,
    )
    if space.baseline in space.racing or not space.racing:
        raise ConfigError(
            f"systems={','.join(question.systems)} does not compare plain with tail batching.",
            "The first batches plainly, and at least one of the others by tail.",
            "Write systems=verl,rollpacker.",
        )
    for system, config in bases.items():
        setting = Setting(system, None, space.degrees_by_gpus[num_gpus][system][0], num_gpus, space.rho)
        validate(config_of(config, setting), run_facts_of)
    return space, lengths


def _gpus_of_experiment(words: Sequence[str]) -> int:
    from rollpacker.config.compose import compose

    engine = compose(["backend=sim", *words, "run.dir=."]).engine
    return engine.num_engines * engine.tensor_parallel


def _many_engines(num_gpus: int) -> int:
    num_engines = math.lcm(num_gpus, MANY_ENGINES)
    if num_engines > MOST_WORKERS:
        fewer = range(min(num_gpus, MOST_WORKERS), 0, -1)
        nearest = next(each for each in fewer if math.lcm(each, MANY_ENGINES) <= MOST_WORKERS)
        raise ConfigError(
            f"gpus={num_gpus}.",
            f"A plan takes a number whose least common multiple with {MANY_ENGINES} is at most {MOST_WORKERS}.",
            f"Write gpus={nearest}.",
        )
    return num_engines


def _refuse_other_gpus(configs: Iterable[RunConfig]) -> None:
    """Refuse GPUs beside those of the question, which an experiment may have."""
    for config in configs:
        maps, placement = config.placement.maps, config.placement
        if config.elastic.is_on:
            raise ConfigError(
                f"elastic.max_workers={config.elastic.max_workers} with `rollpacker plan`.",
                "A plan compares runs on as many GPUs as gpus=N says; those of rollout workers would not be counted.",
                "Write elastic=none.",
            )
        if maps is not None and maps[0] != maps[1]:
            raise ConfigError(
                f"placement.engine={placement.engine} and placement.trainer={placement.trainer} with "
                "`rollpacker plan`.",
                "In a plan engines and trainer take turns on all GPUs.",
                "Leave out what sets placement: an experiment, a setup or a file.",
            )


def _refuse_cut(lengths: LengthFacts, *, is_default: bool) -> None:
    """Refuse to plan for a limit that nobody chose and that cuts the tail off, which a plan is about."""
    if not is_default:
        return
    if lengths.share_at_limit is None:
        raise ConfigError(
            f"rollout.max_response_tokens={lengths.limit} with workload.environment.",
            "It limits all turns of a response and the answers to them together, and the lengths are those of turns.",
            "Add rollout.max_response_tokens=N, the limit that you train with.",
        )
    if lengths.share_at_limit > _MOST_CUT:
        raise ConfigError(
            f"{lengths.share_at_limit:.0%} of the responses are longer than "
            f"rollout.max_response_tokens={lengths.limit}.",
            "A plan weighs how long the longest responses are, and a limit that nobody chose cuts them off.",
            f"Add rollout.max_response_tokens={math.ceil(lengths.longest)}, or the limit that you train with.",
        )


def _default_limit() -> int:
    from rollpacker.config.sections.rollout import RolloutSection

    limit: int = RolloutSection.model_fields["max_response_tokens"].default
    return limit


def _shares_nothing(config: RunConfig) -> bool:
    trainer = config.trainer
    return trainer.tensor_parallel == trainer.pipeline_parallel == trainer.context_parallel == 1


def _degrees_by_gpus(
    bases: Mapping[str, RunConfig], num_gpus: int, *, is_fixed: bool
) -> dict[int, dict[str, tuple[int, ...]]]:
    """Each system's degrees that fit on the GPUs of the question, and on half and twice as many where the trainer fits.

    By a profile, a training step takes as long on any number of GPUs, so others are not compared.
    """
    from rollpacker.analysis.plan.trials import degrees_that_fit, possible_degrees

    found: dict[int, dict[str, tuple[int, ...]]] = {}
    first = next(iter(bases.values()))
    assert first.hardware is not None
    for number in (num_gpus,) if first.hardware.profile else (num_gpus, num_gpus // 2, 2 * num_gpus):
        degrees = (first.engine.tensor_parallel,) if is_fixed else possible_degrees(first, number)
        fitting: dict[str, tuple[int, ...]] = {}
        for system, base in bases.items():
            fitting[system], problems = degrees_that_fit(base, number, degrees)
            if not fitting[system] and number == num_gpus:
                raise _nothing_fits(system, num_gpus, problems, is_fixed=is_fixed)
        if all(fitting.values()):
            found[number] = fitting
    return found


def _nothing_fits(system: str, num_gpus: int, problems: Mapping[int, str], *, is_fixed: bool) -> ConfigError:
    """Why each degree does not fit, or why none does."""
    reasons = dict.fromkeys(problems.values())
    if len(reasons) == 1:
        why = f": {next(iter(reasons))}"
    else:
        why = "." + "".join(f"\n  TP {degree}: {problem}" for degree, problem in problems.items())
    allowed = f"Degrees of {', '.join(map(str, problems))} were tried: powers of two in a node."
    remedy = "Take GPUs with more memory (hardware=...), lower rollout.max_response_tokens, or choose another gpus=."
    if is_fixed:
        allowed = f"{DEGREE_KEY} is given, so no other degree was tried."
        remedy = f"Leave out {DEGREE_KEY}, or choose another."
    return ConfigError(f"No engine of system={system} fits on gpus={num_gpus}{why}", allowed, remedy)
