"""The output of `rollpacker plan`: tables of modelled runs, a suggestion, and its uncertainty."""

from __future__ import annotations

import math
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from rollpacker.config.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pandas as pd
    from rich.console import RenderableType

    from rollpacker.analysis.plan.lengths import LengthFacts
    from rollpacker.analysis.plan.search import Space
    from rollpacker.config.schema import RunConfig
    from rollpacker.sim.profile import ProfiledCluster
    from rollpacker.terminal import Terminal

WIDE_COLUMNS = 100
NARROW = {"speedup": "gain", "KV peak": "KV", "preempt": "pre"}
"""Shorter titles for a terminal of 80 columns."""

FOLDED_COLUMNS = 12
"""Of a system's name where a table is too wide: such names as `tail-reward-planner` take two lines."""

LEAST_NEEDED = {
    "preempt": "preemptions",
    "KV peak": "kv_peak_share",
    "waste": "wasted_share",
    "long": "long_share",
    "idle": "bubble_ratio",
}
"""Columns that are left out, in this order, where a table is still too wide, and their names in `plan.parquet`."""

GUESSED = ("_efficiency", "_overhead_s")
"""Keys of the hardware that no data sheet gives."""

FEW_SAMPLES = 1000


def show(
    console: Terminal, outcomes: pd.DataFrame, lengths: LengthFacts, space: Space, *, left_out: Mapping[str, int]
) -> None:
    """Print the whole answer.

    Args:
        console: Where to; its width decides how titles are written.
        outcomes: Of every modelled run.
        lengths: What the runs drew their lengths from.
        space: What was searched.
        left_out: How many runs the time did not allow, by what they would have shown.
    """
    from rich.text import Text

    from rollpacker.analysis.plan.advice import advise, summarise
    from rollpacker.cli.screen import facts, heading

    summaries = summarise(outcomes)
    advice = advise(summaries, baseline=space.baseline, num_gpus=space.num_gpus, rho=space.rho)
    console.print(heading(f"MODELLED, not measured: {_question(space.bases[space.baseline], space)}"))
    for title, rows in _parts(summaries, space):
        console.print(_table(title, rows, console))
    suggestion: list[tuple[str, Text | str]] = [
        ("verdict", Text(advice.summary, style="bold")),
        *advice.reasons.items(),
    ]
    console.print(heading("Suggestion"), facts(suggestion), "", sep="\n")
    uncertain = _uncertainty(space, lengths, outcomes, left_out)
    console.print(heading("How sure this is"), facts(uncertain), "", sep="\n")


def _question(base: RunConfig, space: Space) -> str:
    assert base.hardware is not None
    rollout, trainer, profile = base.rollout, base.trainer, _profile_of(base)
    return (
        f"{base.model.label or 'model.shape'} on {counted(space.num_gpus, 'GPU')} "
        f"({profile.hardware if profile else base.hardware.name}), "
        f"{rollout.num_prompts} x {rollout.num_responses} responses "
        f"up to {rollout.max_response_tokens:,} tokens, trainer TP {trainer.tensor_parallel} "
        f"PP {trainer.pipeline_parallel} CP {trainer.context_parallel}"
    )


def _parts(summaries: pd.DataFrame, space: Space) -> Iterator[tuple[str, pd.DataFrame]]:
    """The titles and the settings of the tables."""
    order = {system: position for position, system in enumerate(space.bases)}
    ordered = summaries.sort_values(
        ["num_gpus", "system", "tensor_parallel", "eta"],
        key=lambda column: column.map(order) if column.name == "system" else column,
    )
    is_here = ordered["num_gpus"] == space.num_gpus
    here = ordered[is_here & (ordered["rho"] == space.rho)]
    repeated = here[here["num_seeds"] > 1]
    once = here[here["num_seeds"] == 1] if len(repeated) else here.iloc[:0]
    on_gpus = f"On {counted(space.num_gpus, 'GPU')}"
    yield f"{on_gpus}, per step", repeated if len(repeated) else here
    if len(once):
        yield f"{on_gpus}, tried once", once
    if not is_here.all():
        yield "On half and twice as many, tried once", ordered[~is_here]


def _table(title: str, rows: pd.DataFrame, console: Terminal) -> RenderableType:
    """The table, with names folded and columns left out as far as the console's width needs it."""
    unlimited = console.options.update(max_width=sys.maxsize)
    table = _table_of(title, rows, console, folds=False)
    for num_left_out in range(len(LEAST_NEEDED) + 1):
        if console.measure(table, options=unlimited).maximum <= console.width:
            break
        table = _table_of(title, rows, console, folds=True, left_out=[*LEAST_NEEDED][:num_left_out])
    return table


def _table_of(
    title: str, rows: pd.DataFrame, console: Terminal, *, folds: bool, left_out: Sequence[str] = ()
) -> RenderableType:
    from rich import box
    from rich.table import Table

    columns = ", ".join(LEAST_NEEDED[name] for name in left_out)
    table = Table(
        title=title,
        title_style="bold",
        title_justify="left",
        caption=f"left out, in plan.parquet: {columns}\n" if columns else None,
        caption_justify="left",
        box=box.SIMPLE,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    names = [name for name in _CELLS if name not in left_out and (name != "GPUs" or rows["num_gpus"].nunique() > 1)]
    for name in names:
        shown = name if console.width >= WIDE_COLUMNS else NARROW.get(name, name)
        table.add_column(shown, justify="left" if name == "system" else "right", no_wrap=True)
    for each in rows.itertuples():
        cells = {name: _CELLS[name](each) for name in names}
        if folds:
            cells["system"] = textwrap.fill(cells["system"], FOLDED_COLUMNS)
        table.add_row(*cells.values())
    return table


def _with_spread(mean: float, spread: float, num_seeds: int, digits: int) -> str:
    text = f"{mean:.{digits}f}"
    return f"{text}±{spread:.{digits}f}" if num_seeds > 1 else text


def _seconds(each: Any) -> str:
    """Three digits in all."""
    digits = max(0, 3 - len(str(int(each.step_time_s))))
    return _with_spread(each.step_time_s, each.step_spread_s, each.num_seeds, digits)


_CELLS: dict[str, Callable[[Any], str]] = {
    "GPUs": lambda each: str(each.num_gpus),
    "system": lambda each: str(each.system),
    "TP": lambda each: str(each.tensor_parallel),
    "eta": lambda each: "" if math.isnan(each.eta) else f"{each.eta:g}",
    "step s": _seconds,
    "speedup": lambda each: (
        _with_spread(each.speedup, each.speedup_spread, each.num_paired, 2) if each.num_paired else ""
    ),
    "long": lambda each: f"{each.long_share:.0%}",
    "idle": lambda each: f"{each.bubble_ratio:.0%}",
    "waste": lambda each: f"{each.wasted_share:.0%}",
    "KV peak": lambda each: f"{each.kv_peak_share:.0%}",
    "preempt": lambda each: f"{each.preemptions:,.0f}",
    "GPU·h/1k": lambda each: f"{each.gpu_hours_per_1000_steps:,.0f}",
}
"""The columns of a table, and what a setting has in each; the first only where settings differ in it."""


def _uncertainty(
    space: Space, lengths: LengthFacts, outcomes: pd.DataFrame, left_out: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    from rollpacker.analysis.plan.advice import speedup_by_rho
    from rollpacker.sim.profile import A_PROFILE_LENDS_NOTHING

    varied, ranges = speedup_by_rho(outcomes, space.num_gpus)
    yield "model", _cost_model(space.bases[space.baseline], space.num_gpus)
    if streaming := _streaming_in_vain(space):
        yield "streaming", f"{' and '.join(streaming)}: {A_PROFILE_LENDS_NOTHING}"
    yield "trainer", "Whether it fits into the memory of its GPUs is not checked."
    yield "lengths", " ".join([_about_lengths(lengths), *lengths.notes])
    if lengths.has_groups:
        yield "correlation", "Lengths are correlated within a prompt as the file has them."
    elif len(ranges) > 1:
        said = ", ".join(f"{speedup:.2f} x at {rho:g}" for rho, speedup in ranges.items())
        yield "correlation", f"rho, of lengths within a prompt, is a guess. Speedup of {varied}: {said}."
    else:
        yield "correlation", f"rho={space.rho:g}, of lengths within a prompt, is a guess, and was not varied."
    num_steps = outcomes["num_steps"]
    text = f"{len(outcomes)} modelled runs of 4 to {num_steps.max()} steps, {num_steps.sum()} in all; "
    text += "± is the standard deviation over seeds."
    varied_at_best = {"eta": "other values of eta", "num_gpus": "other numbers of GPUs"}
    if tried := [words for column, words in varied_at_best.items() if outcomes[column].nunique() > 1]:
        text += f" From coarse to fine: {' and '.join(tried)} were tried at the best TP only."
    if left_out:
        text += f" {sum(left_out.values())} further runs did not fit into seconds=..., of {', '.join(left_out)}: "
        text += "give more to see them."
    yield "search", text
    num_more = outcomes["num_all_gpus"] - outcomes["num_gpus"]
    for number, those in outcomes[num_more > 0].groupby(num_more)["system"]:
        names = [name for name in space.bases if name in set(those)]
        yield "judge", f"{', '.join(names)}: with {counted(number, 'GPU')} more, for the judge; GPU·h count it."
    if planned := [name for name, config in space.bases.items() if config.system.planner]:
        yield (
            "planner",
            (
                f"{' and '.join(planned)} may change to every degree that fits; a real run has the engines that "
                "engine.degrees names."
            ),
        )
    knows_none = set(outcomes.loc[outcomes["deferred_at_once"] == 0, "system"])
    if blind := [name for name, config in space.bases.items() if config.system.length_history and name in knows_none]:
        yield (
            "length history",
            (
                f"{' and '.join(blind)} knows prompts by their last epoch, and some runs ended in the first one: their "
                "step times are without what that gains."
            ),
        )
    if not outcomes["has_seen_long"].all():
        yield "long rounds", "Some runs ended before their first long round; their step times are of short rounds only."


def _streaming_in_vain(space: Space) -> list[str]:
    """The systems whose trainer is to get GPUs of engines, where a profile allows it none."""
    return [
        name for name, base in space.bases.items() if base.system.stream and base.hardware and base.hardware.profile
    ]


def _profile_of(base: RunConfig) -> ProfiledCluster | None:
    from rollpacker.data.shapes import transformer_of
    from rollpacker.sim.profile import ProfiledCluster

    path = base.hardware and base.hardware.profile
    return ProfiledCluster(path, transformer_of(base.model), base.model.dtype) if path else None


def _cost_model(base: RunConfig, num_gpus: int) -> str:
    from rollpacker.config.chosen_options import changed_hardware
    from rollpacker.config.sections.modelled import HardwareSection

    assert base.hardware is not None
    name, hardware = base.hardware.name, base.hardware
    if profile := _profile_of(base):
        return (
            f"{profile.hardware}: computed from the profile {hardware.profile}, as it was measured there. "
            f"Rules and LLM judges follow {name}; programs that were not measured, the paper (Fig 7a). "
            f"Other numbers of GPUs are not compared. {profile.note_on_scale(num_gpus, num_gpus)}"
        ).rstrip()
    fitted, changed = changed_hardware(hardware)
    if changed:
        return (
            f"{name}: from data sheets, with overheads fitted to {hardware.fitted_to}, but hardware={fitted} has other "
            f"values of {', '.join(changed)}: step times and speedups may both be far off."
        )
    if hardware.fitted_to:
        return f"{name}: from data sheets, with overheads fitted to {hardware.fitted_to}; its file shows how far off."
    guesses = [key for key in HardwareSection.model_fields if key.endswith(GUESSED)]
    moved = [key for key in guesses if getattr(hardware, key) != HardwareSection.model_fields[key].default]
    if moved:
        return (
            f"{name}: from data sheets; {', '.join(moved)} as conf/hardware or you set them; the rest common figures."
        )
    return (
        f"{name}: from data sheets and common efficiencies, NOT fitted to measurements. "
        "Step times and speedups may both be far off; compare neither with those of fitted hardware, such as h800."
    )


def _about_lengths(lengths: LengthFacts) -> str:
    if lengths.share_at_limit is None:
        things = "turns"
        limited = f" of a turn; {lengths.limit:,} are the limit of all turns of a response together."
    else:
        things, limited = "responses", f"; {lengths.share_at_limit:.1%} are cut at {lengths.limit:,}."
    number = "" if lengths.num_samples is None else f"{lengths.num_samples:,} {things}, "
    text = f"{lengths.source}: {number}the longest {lengths.longest:,.0f} tokens{limited}"
    if lengths.num_samples is not None and lengths.num_samples < FEW_SAMPLES:
        text += f" So few say little of the tail: its top 1 % is {lengths.num_samples // 100} {things}."
    if lengths.is_extrapolated:
        text += f" Beyond {lengths.longest:,.0f} the tail is extrapolated (Pareto)."
    elif lengths.longest < lengths.limit:
        text += " None is modelled longer than the longest there."
    return text
