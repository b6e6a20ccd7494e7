"""The words of `rollpacker plan`: the question they ask, and the runs among which its answer lies."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollpacker.analysis.plan.search import Space
    from rollpacker.config.schema import RunConfig

OWN_WORDS = ("gpus", "out", "seconds", "seeds", "systems", "workers")

DECIDED = {
    "system": "systems=verl,rollpacker",
    "system.eta_prompts": "nothing: eta is one of the answers",
    "system.eta_responses": "nothing: eta is one of the answers",
    "engine.num_engines": "gpus=N",
    "run.dir": "out=DIR",
    "run.seed": "seeds=N",
    "run.num_steps": "nothing: the search chooses it",
    "backend": "nothing: a plan is always modelled",
}
"""Words of a run that the plan decides, and what to write in their place."""

DEFAULT_SYSTEMS = ("verl", "rlhfuse", "rollpacker")
"""Of these those that `conf/system` has; the first is plain batching."""

TRAINER_DEGREES = ("trainer.tensor_parallel", "trainer.pipeline_parallel", "trainer.context_parallel")

DEGREE_WORD = "engine.tensor_parallel="
"""Given, it fixes the degree."""

MANY_ENGINES = 64 * 2520
"""A multiple of it and of the GPUs: engines on which a trainer of any degrees fits, until the number that was asked for
is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The plan's own words."""

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


def split_words(words: Sequence[str]) -> tuple[Question, list[str]]:
    """Tell the plan's own words from those of the runs; refuses what the plan decides."""
    from rollpacker.config.mistakes import raise_mistakes

    own: dict[str, str] = {}
    others: list[str] = []
    mistakes: list[ConfigError] = []
    for word in words:
        name, equals, value = word.partition("=")
        if name in OWN_WORDS and equals:
            own[name] = value
        elif name.lstrip("+~") in DECIDED:
            mistakes.append(
                ConfigError(
                    f"`{word}` with `rollpacker plan`.",
                    "The plan compares systems, factors and numbers of GPUs, and decides these itself.",
                    f"Write {DECIDED[name.lstrip('+~')]}.",
                )
            )
        else:
            mistakes += _near_own_word(name)
            others.append(word)
    num_gpus = _number(own, "gpus", None, mistakes)
    num_seeds = _number(own, "seeds", 3, mistakes)
    seconds = _number(own, "seconds", 60, mistakes)
    num_workers = _number(own, "workers", len(os.sched_getaffinity(0)), mistakes)
    has_gpus = any(word.startswith("experiment=") for word in others)
    if "gpus" not in own and not has_gpus:
        mistakes.append(
            ConfigError("`gpus` is not set.", "The number of GPUs that you have in mind.", "Add gpus=32, for example.")
        )
    if not any(word.startswith(("model=", "model.path=", "model.shape", "experiment=")) for word in others):
        mistakes.append(_no_model())
    systems = _systems(own.get("systems"), mistakes)
    raise_mistakes(list(mistakes))
    return Question(
        num_gpus=num_gpus,
        out=Path(own["out"]) if own.get("out") else None,
        seconds=float(seconds or 0),
        num_seeds=num_seeds or 1,
        systems=systems,
        num_workers=num_workers or 1,
    ), others


def _number(own: Mapping[str, str], name: str, default: int | None, mistakes: list[ConfigError]) -> int | None:
    text = own.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    mistakes.append(
        ConfigError(
            f"{name}={text} is not legal.", f"`{name}` is an integer of at least 1.", f"Write {name}={default or 32}."
        )
    )
    return default


def _no_model() -> ConfigError:
    from rollpacker.config.roots import TRAIN, groups

    options = [option for option in groups(TRAIN)["model"].options if option != "huggingface"]
    return ConfigError(
        "`model` is not set.",
        f"The model that you have in mind, by its shape: {', '.join(options)}; or model.path=DIR.",
        f"Add model={options[0]}, for example.",
    )


def _near_own_word(name: str) -> list[ConfigError]:
    """A word that is no key of a run and nearly one of the plan's."""
    from rollpacker.config.keys import legal_keys, nearest
    from rollpacker.config.roots import TRAIN, groups
    from rollpacker.config.schema import RunConfig

    if "." in name or name in groups(TRAIN) or name in legal_keys(RunConfig):
        return []
    close = nearest(name, OWN_WORDS)
    if not close:
        return []
    return [
        ConfigError(
            f"`{name}` is no word of `rollpacker plan`.",
            f"Beside the keys and groups of a run it takes {', '.join(OWN_WORDS)}.",
            f"Write {close[0]}=...",
        )
    ]


def _systems(text: str | None, mistakes: list[ConfigError]) -> tuple[str, ...]:
    from rollpacker.config.keys import nearest
    from rollpacker.config.roots import TRAIN, groups

    options = groups(TRAIN)["system"].options
    if text is None:
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
    """Where the answer goes: a folder that is not there yet."""
    from datetime import datetime

    from rollpacker.runtime.run.folder_checks import check_creatable

    if question.out is None:
        return Path("runs/plan") / datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    out = question.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"out={out} exists.", "A plan goes into a folder of its own.", "Choose another out.")
    check_creatable("out", out)
    return out


def space_of(question: Question, words: Sequence[str], folder: Path) -> Space:
    """Compose every system, find what fits, and judge it as `train` would; nothing is created."""
    from rollpacker.analysis.plan.search import Space
    from rollpacker.analysis.plan.trials import Setting, changed, check_gpus, config_of, has_eta, trainer_degrees
    from rollpacker.cli.run_facts import run_facts_of
    from rollpacker.config.compose import compose
    from rollpacker.runtime.run.preflight import validate
    from rollpacker.sim.workload import Workload

    num_gpus = question.num_gpus or _gpus_of_experiment(words)
    bases = {
        system: compose(
            [
                *_modelled(words),
                f"system={system}",
                f"run.dir={folder}",
                f"engine.num_engines={math.lcm(num_gpus, MANY_ENGINES)}",
            ]
        )
        for system in question.systems
    }
    first = bases[question.systems[0]]
    Workload(first)  # a fault of the lengths or the prompts is said as that, and not as a degree that does not fit
    _check_contrast(question.systems, [has_eta(config) for config in bases.values()])
    if not any(word.startswith(TRAINER_DEGREES) for word in words) and _shares_nothing(first):
        degrees = trainer_degrees(first)
        bases = {system: changed(config, degrees) for system, config in bases.items()}
        first = bases[question.systems[0]]
    check_gpus(first, num_gpus)
    degrees_by_gpus = _degrees_by_gpus(first, num_gpus, is_fixed=any(w.startswith(DEGREE_WORD) for w in words))
    assert first.workload is not None
    for system, config in bases.items():
        setting = Setting(
            system=system,
            eta=None,
            tensor_parallel=degrees_by_gpus[num_gpus][0],
            num_gpus=num_gpus,
            rho=first.workload.rho,
        )
        validate(config_of(config, setting), run_facts_of)
    return Space(
        bases=bases,
        num_gpus=num_gpus,
        degrees_by_gpus=degrees_by_gpus,
        rho=first.workload.rho,
        varies_rho=True,
        num_seeds=question.num_seeds,
    )


def _modelled(words: Sequence[str]) -> list[str]:
    return ["backend=sim", *words]


def _gpus_of_experiment(words: Sequence[str]) -> int:
    from rollpacker.config.compose import compose

    engine = compose([*_modelled(words), "run.dir=."]).engine
    return engine.num_engines * engine.tensor_parallel


def _check_contrast(systems: Sequence[str], race: Sequence[bool]) -> None:
    if race[0] or not any(race):
        raise ConfigError(
            f"systems={','.join(systems)} does not compare plain with tail batching.",
            "The first batches plainly, and at least one of the others by tail.",
            "Write systems=verl,rollpacker.",
        )


def _shares_nothing(config: RunConfig) -> bool:
    trainer = config.trainer
    return trainer.tensor_parallel == trainer.pipeline_parallel == trainer.context_parallel == 1


def _degrees_by_gpus(base: RunConfig, num_gpus: int, *, is_fixed: bool) -> dict[int, tuple[int, ...]]:
    """The degrees that fit on the GPUs of the question, and on half and twice as many where the trainer fits, too."""
    from rollpacker.analysis.plan.trials import degrees_that_fit, possible_degrees

    found: dict[int, tuple[int, ...]] = {}
    for number in (num_gpus, num_gpus // 2, 2 * num_gpus):
        degrees = (base.engine.tensor_parallel,) if is_fixed else possible_degrees(base, number)
        fit = degrees_that_fit(base, number, degrees)
        if fit.degrees:
            found[number] = fit.degrees
        elif number == num_gpus:
            raise _nothing_fits(num_gpus, fit.problems)
    return found


def _nothing_fits(num_gpus: int, problems: Mapping[int, str]) -> ConfigError:
    """Say why each degree does not fit, or why none does."""
    reasons = dict.fromkeys(problems.values())
    if len(reasons) == 1:
        why = f": {next(iter(reasons))}"
    else:
        why = "." + "".join(f"\n  TP {degree}: {problem}" for degree, problem in problems.items())
    return ConfigError(
        f"No engine fits on gpus={num_gpus}{why}",
        f"Degrees of {', '.join(map(str, problems))} were tried: powers of two in a node, or engine.tensor_parallel.",
        "Take GPUs with more memory (hardware=...), lower rollout.max_response_tokens, or choose another gpus=.",
    )
