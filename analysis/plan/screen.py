"""The output of `rollpacker plan`: tables of modelled runs, a suggestion, and its uncertainty."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from rollpacker.analysis.plan.advice import Advice, Spread, Summary
    from rollpacker.analysis.plan.lengths import LengthFacts
    from rollpacker.analysis.plan.outcomes import Outcome
    from rollpacker.analysis.plan.search import Space
    from rollpacker.config.schema import RunConfig
    from rollpacker.terminal import Terminal

WIDE_COLUMNS = 100
NARROW = {"speedup": "gain", "KV peak": "KV", "preempt": "pre", "GPU·h/1k": "GPU·h"}
"""Shorter titles for a terminal of 80 columns."""

GUESSED = ("_efficiency", "_overhead_s", "_latency_s")
"""Keys of the hardware that no data sheet gives."""

FEW_SAMPLES = 1000


def show(
    console: Terminal, outcomes: Sequence[Outcome], lengths: LengthFacts, space: Space, *, num_left_out: int
) -> None:
    """Print the whole answer.

    Args:
        console: Where to; its width decides how titles are written.
        outcomes: Of every modelled run.
        lengths: What the runs drew their lengths from.
        space: What was searched.
        num_left_out: Runs that the time did not allow.
    """
    from rollpacker.analysis.plan.advice import advise, speedup_range, summarise
    from rollpacker.cli.screen import facts, heading

    summaries = summarise(outcomes, space.baseline)
    advice = advise(summaries, baseline=space.baseline, num_gpus=space.num_gpus, rho=space.rho)
    ranges = speedup_range(outcomes, _racing(space), space.baseline, space.num_gpus)
    base = space.bases[space.baseline]
    console.print(heading(f"MODELLED, not measured: {_question(base, space)}"))
    for table in _tables(summaries, space, console.width):
        console.print(table)
    console.print(heading("Suggestion"), facts(_suggestion(advice)), "", sep="\n")
    uncertain = _uncertainty(space, lengths, ranges, outcomes, num_left_out)
    console.print(heading("How sure this is"), facts(uncertain), "", sep="\n")


def _racing(space: Space) -> str:
    from rollpacker.analysis.plan.trials import has_eta

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
        yield f"{name} {answers[name]}", reason


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
