"""`rollpacker plan`: what tail batching would save on given lengths, model and GPUs, before anyone asks for them."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console, RenderableType

    from rollpacker.cli.arguments import Arguments
    from rollpacker.config.schema import RunConfig
    from rollpacker.whatif.advice import Advice, Spread, Summary
    from rollpacker.whatif.lengths import LengthFacts
    from rollpacker.whatif.outcomes import Outcome
    from rollpacker.whatif.search import Space

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
"""Times the GPUs: engines on which a trainer of any degrees fits, until the number that was asked for is judged."""

NOT_IN_TABLE = {"trial", "has_seen_long"}

NUM_QUANTILES = 200
"""Of the written distribution of lengths."""

WIDE_COLUMNS = 100
NARROW = {"speedup": "gain", "KV peak": "KV", "preempt": "pre", "GPU·h/1k": "GPU·h"}
"""Shorter titles for a terminal of 80 columns."""

GUESSED = ("_efficiency", "_overhead_s", "_latency_s")
"""Keys of the hardware that no data sheet gives."""

FEW_SAMPLES = 1000

STAGE_TITLES = {
    "degrees": "degrees of tensor parallelism",
    "eta": "speculation factors",
    "gpus": "half and twice the GPUs",
    "seeds": "further seeds",
    "rho": "other correlations of lengths",
}


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


def run(arguments: Arguments) -> None:
    """Judge everything, search, write, and show."""
    import signal

    from rollpacker.cli.screen import output
    from rollpacker.whatif.lengths import length_facts

    question, words = split_words(arguments.words)
    folder = _folder(question)
    space = space_of(question, words, folder)
    lengths = length_facts(space.bases[space.baseline])
    space = _with_rho(space, lengths)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends workers and files as Ctrl-C does
    console = output()
    outcomes, num_left_out = _search(space, question)

    from rollpacker.metrics.files import publish_folder, storage_errors

    with storage_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with publish_folder(folder) as temporary:
        _write(temporary, outcomes, lengths, space)
        drawing_problem = _draw(temporary)
    _show(console, outcomes, lengths, space, num_left_out=num_left_out)
    files = [name for name in ("plan.parquet", "lengths.parquet", "plan.png", "plan.pdf") if (folder / name).exists()]
    console.print(f"written to {folder}: {', '.join(files)}", soft_wrap=True)
    if drawing_problem:
        console.print(f"no figure: {drawing_problem}", soft_wrap=True, markup=False)


def show_help() -> None:
    """Print what `rollpacker plan` takes."""
    from rollpacker.cli.help import show_plan_help

    show_plan_help()


# Judging the words


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


def space_of(question: Question, words: Sequence[str], folder: Path) -> Space:
    """Compose every system, find what fits, and judge it as `train` would; nothing is created."""
    from rollpacker.cli.prospects import prospect_of
    from rollpacker.config.compose import compose
    from rollpacker.runtime.preflight import judge
    from rollpacker.whatif.search import Space
    from rollpacker.whatif.trials import Setting, changed, check_gpus, config_of, has_eta, trainer_degrees

    num_gpus = question.num_gpus or _gpus_of_experiment(words)
    bases = {
        system: compose(
            [
                *_modelled(words),
                f"system={system}",
                f"run.dir={folder}",
                f"engine.num_engines={num_gpus * MANY_ENGINES}",
            ]
        )
        for system in question.systems
    }
    first = bases[question.systems[0]]
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
        judge(config_of(config, setting), prospect_of)
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
    from rollpacker.whatif.trials import degrees_that_fit, possible_degrees

    found: dict[int, tuple[int, ...]] = {}
    for number in (num_gpus, num_gpus // 2, 2 * num_gpus):
        degrees = (base.engine.tensor_parallel,) if is_fixed else possible_degrees(base, number)
        fit = degrees_that_fit(base, number, degrees)
        if fit.degrees:
            found[number] = fit.degrees
        elif number == num_gpus:
            raise ConfigError(
                f"No engine fits on gpus={num_gpus}: at TP {max(fit.problems)}, {fit.problems[max(fit.problems)]}",
                f"Degrees of {', '.join(map(str, degrees))} were tried: powers of two within a node.",
                "Take GPUs with more memory (hardware=...), or lower rollout.max_response_tokens.",
            )
    return found


def _with_rho(space: Space, lengths: LengthFacts) -> Space:
    return replace(space, varies_rho=not lengths.names_prompts)


def _folder(question: Question) -> Path:
    from datetime import datetime

    from rollpacker.runtime.preflight import check_creatable

    if question.out is None:
        return Path("runs/plan") / datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    out = question.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"out={out} exists.", "A plan goes into a folder of its own.", "Choose another out.")
    check_creatable("out", out)
    return out


# Searching


def _search(space: Space, question: Question) -> tuple[list[Outcome], int]:
    """Run the stages; gives outcomes, and how many runs the time did not allow."""
    import time

    from rollpacker.cli.screen import plan_progress
    from rollpacker.whatif.search import count_trials, search
    from rollpacker.whatif.workers import open_workers

    began = time.monotonic()
    outcomes: list[Outcome] = []
    num_trials = count_trials(space)
    stages = search(space)
    with plan_progress(num_trials, question.num_workers) as progress, open_workers(question.num_workers) as workers:
        stage = next(stages)
        while True:
            progress.stage(STAGE_TITLES[stage.name])
            tasks = [(space.bases[trial.setting.system], trial) for trial in stage.trials]
            found = []
            may_begin = _Allowance(stage.num_needed, began + question.seconds)
            for outcome in workers.outcomes(tasks, may_begin):
                found.append(outcome)
                progress.advance()
            outcomes += found
            try:
                stage = stages.send(found)
            except StopIteration:
                break
    order = {trial: index for index, trial in enumerate(dict.fromkeys(each.trial for each in outcomes))}
    outcomes.sort(key=lambda each: order[each.trial])
    return outcomes, num_trials - len(outcomes)


class _Allowance:
    """Lets runs begin until the time is up, and those without which there is no answer in any case."""

    def __init__(self, num_needed: int, deadline_s: float) -> None:
        self._num_needed = num_needed
        self._deadline_s = deadline_s

    def __call__(self) -> bool:
        import time

        self._num_needed -= 1
        return self._num_needed >= 0 or time.monotonic() < self._deadline_s


def _write(folder: Path, outcomes: Sequence[Outcome], lengths: LengthFacts, space: Space) -> None:
    from rollpacker.metrics.plans import write_plan
    from rollpacker.whatif.advice import speedups_by_trial

    speedups = speedups_by_trial(outcomes, space.baseline)
    rows = [_row(outcome, speedups.get(outcome.trial), space) for outcome in outcomes]
    write_plan(folder, rows, list(_length_rows(lengths)))


def _row(outcome: Outcome, speedup: float | None, space: Space) -> dict[str, object]:
    trial = outcome.trial
    numbers = {field.name: getattr(outcome, field.name) for field in fields(outcome) if field.name not in NOT_IN_TABLE}
    setting = {field.name: getattr(trial.setting, field.name) for field in fields(trial.setting)}
    return {
        **setting,
        **numbers,
        "seed": trial.seed,
        "num_steps": trial.num_steps,
        "speedup": speedup,
        "gpu_hours_per_1000_steps": outcome.gpu_hours_per_1000_steps,
        "is_asked": (trial.setting.num_gpus, trial.setting.rho) == (space.num_gpus, space.rho),
        "modelled": True,
    }


def _length_rows(lengths: LengthFacts) -> Iterator[dict[str, object]]:
    for domain, drawn in lengths.drawn.items():
        ranked = sorted(drawn)
        for rank in range(NUM_QUANTILES + 1):
            p = rank / NUM_QUANTILES
            yield {
                "domain": domain,
                "p": p,
                "length_tokens": ranked[round(p * (len(ranked) - 1))],
                "limit_tokens": lengths.limit,
                "modelled": True,
            }


def _draw(folder: Path) -> str:
    """Have the figure drawn by `analysis.plan` in a process of its own; gives what went wrong."""
    import subprocess
    import sys

    command = [sys.executable, "-m", "analysis.plan", "--plan", str(folder), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (our own command)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


# Showing


def _show(
    console: Console, outcomes: Sequence[Outcome], lengths: LengthFacts, space: Space, *, num_left_out: int
) -> None:
    from rich.text import Text

    from rollpacker.cli.screen import facts, heading
    from rollpacker.whatif.advice import advise, speedup_range, summarise

    summaries = summarise(outcomes, space.baseline)
    advice = advise(summaries, baseline=space.baseline, num_gpus=space.num_gpus, rho=space.rho)
    ranges = speedup_range(outcomes, _racing(space), space.baseline, space.num_gpus)
    base = space.bases[space.baseline]
    console.print(heading(f"MODELLED, not measured: {_question(base, space)}"))
    for table in _tables(summaries, space, console.width):
        console.print(table)
    console.print(heading("Suggestion"), facts(_suggestion(advice)), "", sep="\n")
    uncertain = _uncertainty(space, lengths, ranges, outcomes, num_left_out)
    console.print(heading("How sure this is"), facts((name, Text(text)) for name, text in uncertain), "", sep="\n")


def _racing(space: Space) -> str:
    from rollpacker.whatif.trials import has_eta

    return [name for name, base in space.bases.items() if has_eta(base)][-1]


def _question(base: RunConfig, space: Space) -> str:
    assert base.hardware is not None
    rollout, trainer = base.rollout, base.trainer
    return (
        f"{space.num_gpus} {base.hardware.name}, {rollout.num_prompts} x {rollout.num_responses} responses "
        f"up to {rollout.max_response_tokens:,} tokens, trainer TP {trainer.tensor_parallel} "
        f"PP {trainer.pipeline_parallel} CP {trainer.context_parallel}"
    )


def _tables(summaries: Sequence[Summary], space: Space, width: int) -> Iterator[RenderableType]:
    here = [each for each in summaries if (each.setting.num_gpus, each.setting.rho) == (space.num_gpus, space.rho)]
    others = [each for each in summaries if each.setting.num_gpus != space.num_gpus]
    order = list(space.bases)

    def key(each: Summary) -> tuple[object, ...]:
        setting = each.setting
        return setting.num_gpus, order.index(setting.system), setting.tensor_parallel, setting.eta or 0.0

    repeated = [each for each in here if each.step_time_s.num_seeds > 1]
    once = [each for each in here if each.step_time_s.num_seeds == 1]
    yield _table(f"On {space.num_gpus} GPUs, per step", sorted(repeated or here, key=key), width)
    if repeated and once:
        yield _table(f"On {space.num_gpus} GPUs, tried once", sorted(once, key=key), width)
    if others:
        yield _table("On half and twice as many, tried once", sorted(others, key=key), width)


def _table(title: str, rows: Sequence[Summary], width: int) -> RenderableType:
    from rich import box
    from rich.table import Table

    is_wide = width >= WIDE_COLUMNS
    table = Table(
        title=title, title_style="bold", title_justify="left", box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0)
    )
    has_gpus = len({each.setting.num_gpus for each in rows}) > 1
    if has_gpus:
        table.add_column("GPUs", justify="right")
    table.add_column("system", no_wrap=True)
    for column in ("TP", "eta", "step s", "speedup", "long", "idle", "waste", "KV peak", "preempt", "GPU·h/1k"):
        table.add_column(column if is_wide else NARROW.get(column, column), justify="right", no_wrap=True)
    for each in rows:
        cells = _cells(each)
        table.add_row(*([str(each.setting.num_gpus)] if has_gpus else []), *cells)
    return table


def _cells(each: Summary) -> list[str]:
    setting, seconds = each.setting, each.step_time_s
    return [
        setting.system,
        str(setting.tensor_parallel),
        "" if setting.eta is None else f"{setting.eta:g}",
        _with_deviation(seconds, _digits(seconds.mean)),
        "" if each.speedup is None else _with_deviation(each.speedup, 2),
        f"{each.long_share:.0%}",
        f"{each.bubble_ratio:.0%}",
        f"{each.wasted_share:.0%}",
        f"{each.kv_peak_share:.0%}",
        f"{each.preemptions:,.0f}",
        f"{each.gpu_hours_per_1000_steps:,.0f}",
    ]


def _with_deviation(spread: Spread, digits: int) -> str:
    text = f"{spread.mean:.{digits}f}"
    return f"{text}±{spread.deviation:.{digits}f}" if spread.num_seeds > 1 else text


def _digits(seconds: float) -> int:
    """Three digits in all."""
    return max(0, 3 - len(str(int(seconds))))


def _suggestion(advice: Advice) -> Iterator[tuple[str, RenderableType]]:
    from rich.text import Text

    yield "verdict", Text(advice.summary, style="bold")
    setting = advice.setting
    answers = {"eta": "" if setting.eta is None else f"{setting.eta:g}", "TP": str(setting.tensor_parallel)}
    answers["GPUs"] = str(advice.num_gpus)
    for name, reason in advice.reasons:
        yield f"{name} {answers[name]}", Text(reason)


def _uncertainty(
    space: Space,
    lengths: LengthFacts,
    ranges: Mapping[float, float],
    outcomes: Sequence[Outcome],
    num_left_out: int,
) -> Iterator[tuple[str, str]]:
    yield "model", _cost_model(space.bases[space.baseline])
    yield "lengths", _about_lengths(lengths)
    if lengths.names_prompts:
        yield "correlation", "Lengths are correlated within a prompt as the file has them."
    elif len(ranges) > 1:
        said = ", ".join(f"{speedup:.2f} x at {rho:g}" for rho, speedup in ranges.items())
        yield "correlation", f"rho, of lengths within a prompt, is a guess. Speedup: {said}."
    else:
        yield (
            "correlation",
            f"rho={next(iter(ranges), 0):g}, of lengths within a prompt, is a guess, and was not varied.",
        )
    num_steps = sum(each.trial.num_steps for each in outcomes)
    text = (
        f"{len(outcomes)} modelled runs of 4 to {max(e.trial.num_steps for e in outcomes)} steps, {num_steps} in all; "
    )
    text += "± is the standard deviation over seeds. From coarse to fine: eta and GPUs were tried at the best TP only."
    if num_left_out:
        text += f" {num_left_out} further runs did not fit into seconds=...: give more to see them."
    yield "search", text
    if planned := [name for name, config in space.bases.items() if config.system.planner]:
        yield (
            "planner",
            (
                f"{' and '.join(planned)} may change to every degree that fits; a real run has the engines that "
                "engine.degrees names."
            ),
        )
    if any(not each.has_seen_long for each in outcomes):
        yield "long rounds", "Some runs ended before their first long round; their step times are of short rounds only."


def _cost_model(base: RunConfig) -> str:
    from rollpacker.config.sections.modelled import HardwareSection

    assert base.hardware is not None
    name, hardware = base.hardware.name, base.hardware
    if hardware.profile:
        return f"{name}: computed from the profile {hardware.profile}, as it was measured there."
    if hardware.fitted_to:
        return (
            f"{name}: from data sheets, with overheads fitted to {hardware.fitted_to}; conf/hardware shows how far off."
        )
    guesses = [key for key in HardwareSection.model_fields if key.endswith(GUESSED)]
    moved = [key for key in guesses if getattr(hardware, key) != HardwareSection.model_fields[key].default]
    if moved:
        return (
            f"{name}: from data sheets; {', '.join(moved)} as conf/hardware or you set them; the rest common figures."
        )
    return f"{name}: from data sheets and common efficiencies, NOT fitted to measurements. Trust ratios before seconds."


def _about_lengths(lengths: LengthFacts) -> str:
    number = "quantiles" if lengths.num_samples is None else f"{lengths.num_samples:,} responses"
    text = f"{lengths.source}: {number}, the longest {lengths.longest:,.0f} tokens; "
    text += f"{lengths.share_at_limit:.1%} are cut at {lengths.limit:,}."
    if lengths.num_samples is not None and lengths.num_samples < FEW_SAMPLES:
        text += f" So few say little of the tail: its top 1 % is {lengths.num_samples // 100} responses."
    if lengths.is_extrapolated:
        text += f" Beyond {lengths.longest:,.0f} the tail is extrapolated (Pareto)."
    elif lengths.longest < lengths.limit:
        text += " None is modelled longer than the longest there."
    return text
