"""Ours: how far the race favours short responses.

Of `eta * R0` responses the first `R0` are trained, and of `eta * P0` prompts the first `P0` are accepted as they are:
what is trained is shorter than what the policy writes.

An aborted response has no length, only a bound below it, so no number here rests on one. What the policy writes is
taken from a run of plain batches (both factors 1) over the same prompts with the same seed, where every response comes
to its end. Compared are the prompts that both runs trained, until the long-prompt queue was last empty: then every
prompt that was drawn has been trained exactly once, in a short round or in a long one. In runs of real models the
policies differ a little, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import NormalDist
from typing import Final

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.fig11 import FACTORS, MODEL, system_name
from rollpacker.analysis.numbers import Numbers, Place, Point, Value
from rollpacker.analysis.plots import draw_line, hatch_of, line_style, origin_of
from rollpacker.analysis.runs import Run, Runs
from rollpacker.analysis.style import FIGURE_WIDTH_INCHES, OTHER_COLORS, SYSTEM_COLORS, use_style

RACE = "the race alone: length by order of finish (tokens)"
ROUNDS = "trained length against plain (%), by domain"
SURVIVAL = "trained responses that are longer (%)"
FACTOR_MAP = "trained length against plain (%), by factors"
REWARD = "mean reward against plain (points), if length tells"

PLAIN, BOTH = (1.0, 1.0), (1.25, 1.25)
VARIANTS: Final = {"plain": PLAIN, "prompts race": (1.25, 1.0), "responses race": (1.0, 1.25), "both race": BOTH}
"""By the factors for prompts and for responses."""
TRAINED = "trained"
IMPLIED = "aborted, implied by plain"
AT_LEAST = "aborted, at least"
EVERY = "all"
LENGTHS: Final = tuple(round(64 * 2 ** (power / 2)) for power in range(14))
"""In tokens."""
CORRELATIONS: Final = (-0.8, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8)
SOLVE_RATE: Final = 0.5
"""Supposed of what the policy writes; halves move the most."""
_TITLES: Final = (
    "a  only responses race",
    "b  both race, by domain",
    "c  what is trained",
    "d  mean length, plain = 0 (%)",
    "e  supposed: reward by length",
)
_KEY = ["epoch", "prompt"]
_STANDARD = NormalDist()

Pair = tuple["Run", "Run"]
"""A run and the one of plain batches of its seed."""


def gather(runs: Runs) -> Iterator[Point | None]:
    """Compare each variant with plain batches of its seed, prompt by prompt."""
    pairs = {(prompts, responses): _pairs(runs, prompts, responses) for prompts in FACTORS for responses in FACTORS}
    yield from _race(pairs[VARIANTS["responses race"]])
    yield from _rounds(pairs[BOTH])
    for name, factors in VARIANTS.items():
        yield from _survival(name, pairs[factors])
    for (prompts, responses), found in pairs.items():
        place = Place(panel=FACTOR_MAP, x=f"{responses:g}", unit="%", series=f"{prompts:g}")
        yield place.ours(_shifts(_all_of_plain(found), _rows_of(EVERY, EVERY)))
    for name, factors in VARIANTS.items():
        if name != "plain":
            yield from _rewards(name, pairs[factors])


def _pairs(runs: Runs, prompts: float, responses: float) -> list[Pair]:
    plain, found = (
        runs.of(model=MODEL, system=system_name(*factors), task="mix") for factors in (PLAIN, (prompts, responses))
    )
    base = {run.seed: run for run in plain if len(run.responses)}
    return [(run, base[run.seed]) for run in found if run.seed in base and len(run.responses)]


def _trained(run: Run) -> pd.DataFrame:
    """The responses that were trained until the queue was last empty."""
    emptied = run.steps.loc[run.steps["long_queue_length"] == 0, "step"]
    rows = run.responses
    trained: pd.DataFrame = rows[rows["accepted"].astype(bool) & (rows["step"] <= emptied.max())]
    return trained


def _race(pairs: Sequence[Pair]) -> Iterator[Point | None]:
    """Mean lengths in the order of finishing. No prompt loses here, so the mean over a whole group is the plain one."""
    tables = [(run, _by_order(run), float(_trained(plain)["length_tokens"].mean())) for run, plain in pairs]
    num_launched = max((len(table) for _, table, _ in tables), default=0)
    for order in range(num_launched):
        of_order = [(run, *table[order]) for run, table, _ in tables if order < len(table)]
        series = TRAINED if all(is_trained for _, _, is_trained in of_order) else AT_LEAST
        place = Place(panel=RACE, x=float(order + 1), unit="tokens", series=series)
        yield place.ours(Value(run, length) for run, length, _ in of_order)
    implied = []
    for run, table, mean in tables:
        trained = [length for length, is_trained in table if is_trained]
        if len(trained) < len(table):
            implied.append(Value(run, (len(table) * mean - sum(trained)) / (len(table) - len(trained))))
    yield Place(panel=RACE, x=float(num_launched), unit="tokens", series=IMPLIED).ours(implied)
    whole = Place(panel=RACE, x=0.0, unit="tokens", series="plain")
    yield whole.ours(Value(run, mean) for run, _, mean in tables)


def _by_order(run: Run) -> list[tuple[float, bool]]:
    """Mean length at each place in the order of finishing, and whether it was trained; aborted ones come last."""
    rows = run.responses.assign(accepted=run.responses["accepted"].astype(bool))
    rows = rows.sort_values(["accepted", "finished_at_s"], ascending=[False, True])
    order = rows.groupby(["step", *_KEY]).cumcount()
    table = rows.groupby(order).agg({"length_tokens": "mean", "accepted": "all"})
    return list(zip(map(float, table["length_tokens"]), map(bool, table["accepted"]), strict=True))


def _rounds(pairs: Sequence[Pair]) -> Iterator[Point | None]:
    domains = list(dict.fromkeys(domain for run, _ in pairs for domain in run.responses["domain"].unique()))
    apart = [(run, _drawn_apart(run, plain)) for run, plain in pairs]
    for kind, compared in (("short", apart), ("long", apart), (EVERY, _all_of_plain(pairs))):
        for domain in (*domains, EVERY):
            place = Place(panel=ROUNDS, x=domain, unit="%", series=kind)
            yield place.ours(_shifts(compared, _rows_of(kind, domain)))


def _all_of_plain(pairs: Sequence[Pair]) -> list[tuple[Run, pd.DataFrame]]:
    return [(run, _trained(plain)) for run, plain in pairs]


def _drawn_apart(run: Run, plain: Run) -> pd.DataFrame:
    """What plain batches trained of prompts that the run did not launch in the same step.

    In the same step a prompt has the same samples in both runs. Whether it is deferred follows from them, so held
    against them, prompts that were deferred would look shortened, and the others less so.
    """
    launched = set(map(tuple, run.responses[["step", *_KEY]].drop_duplicates().to_numpy()))
    rows = _trained(plain)
    is_apart = [key not in launched for key in map(tuple, rows[["step", *_KEY]].to_numpy())]
    apart: pd.DataFrame = rows[is_apart]
    return apart


def _rows_of(kind: str, domain: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def chosen(rows: pd.DataFrame) -> pd.DataFrame:
        is_kind = (rows["round_kind"] == kind) | (kind == EVERY)
        return rows[is_kind & ((rows["domain"] == domain) | (domain == EVERY))]

    return chosen


def _shifts(
    compared: Iterable[tuple[Run, pd.DataFrame]], choose: Callable[[pd.DataFrame], pd.DataFrame]
) -> Iterator[Value]:
    """By how many percent the chosen responses are longer than what plain batches trained of the same prompts."""
    for run, base_rows in compared:
        own, base = (rows.groupby(_KEY)["length_tokens"].mean() for rows in (choose(_trained(run)), base_rows))
        both = own.index.intersection(base.index)
        if len(both):
            yield Value(run, float(100 * (own.loc[both].mean() / base.loc[both].mean() - 1)))


def _survival(name: str, pairs: Sequence[Pair]) -> Iterator[Point | None]:
    trained = [(run, _trained(run)["length_tokens"].to_numpy()) for run, _ in pairs]
    for length in LENGTHS:
        place = Place(panel=SURVIVAL, x=float(length), unit="%", series=name)
        yield place.ours(Value(run, float(100 * np.mean(lengths > length))) for run, lengths in trained)


def _rewards(name: str, pairs: Sequence[Pair]) -> Iterator[Point | None]:
    """What the mean reward of the trained responses would be, were length and reward correlated."""
    scores = [(run, _scores(run, plain), _scores(plain, plain)) for run, plain in pairs]
    for correlation in CORRELATIONS:
        place = Place(panel=REWARD, x=correlation, unit="points", series=name)
        yield place.ours(
            Value(run, 100 * (_mean_reward(own, correlation) - _mean_reward(base, correlation)))
            for run, own, base in scores
        )


def _scores(run: Run, plain: Run) -> npt.NDArray[np.float64]:
    """Standard normal scores of the lengths trained, by their place among those of their domain in plain batches."""
    base, scores = _trained(plain), []
    for domain, rows in _trained(run).groupby("domain"):
        reference = np.sort(base.loc[base["domain"] == domain, "length_tokens"].to_numpy())
        if reference.size:
            lengths = rows["length_tokens"].to_numpy()
            place = np.searchsorted(reference, lengths, "left") + np.searchsorted(reference, lengths, "right")
            share = (place / 2 + 0.5) / (reference.size + 1)
            scores += [_STANDARD.inv_cdf(each) for each in share]
    return np.asarray(scores)


def _mean_reward(scores: npt.NDArray[np.float64], correlation: float) -> float:
    """The share of right responses by a Gaussian copula between length and being right."""
    threshold, width = _STANDARD.inv_cdf(SOLVE_RATE), (1 - correlation**2) ** 0.5
    return float(np.mean([_STANDARD.cdf((threshold + correlation * score) / width) for score in scores]))


def draw(numbers: Numbers) -> Figure:
    """Five panels: the race, rounds and domains, the whole distribution, all factors, and what it does to rewards."""
    use_style()
    frame = numbers.frame()
    figure: Figure
    figure, panels = plt.subplots(2, 3, figsize=(FIGURE_WIDTH_INCHES, 5.2))
    race, rounds, survival, factors, reward, key = panels.flat
    _draw_race(race, frame[frame["panel"] == RACE])
    _draw_rounds(rounds, frame[frame["panel"] == ROUNDS])
    _draw_lines(survival, frame[frame["panel"] == SURVIVAL])
    _draw_factors(factors, frame[frame["panel"] == FACTOR_MAP])
    _draw_lines(reward, frame[frame["panel"] == REWARD])
    survival.set(xscale="log", yscale="log", ylim=(0.1, 130), xlabel="length (tokens)", ylabel="longer ones (%)")
    survival.xaxis.set_major_locator(FixedLocator([64, 256, 1024, 4096]))
    survival.xaxis.set_minor_locator(NullLocator())
    for axis in (survival.xaxis, survival.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    reward.axhline(0, color="#444444", linewidth=0.8)
    reward.set(xlabel="correlation of length and reward", ylabel="mean reward against plain (points)")
    _draw_key(key, frame)
    for axes, title in zip(panels.flat, _TITLES, strict=False):
        axes.set_title(title, fontsize=8.5)
        axes.tick_params(labelsize=7.5)
        axes.xaxis.label.set_fontsize(8)
        axes.yaxis.label.set_fontsize(8)
    return figure


def _draw_race(axes: Axes, rows: pd.DataFrame) -> None:
    axes.set(xlabel="order of finish", ylabel="mean length (tokens)")
    for series, marker, fill in ((TRAINED, "o", OTHER_COLORS[0]), (AT_LEAST, "^", "white"), (IMPLIED, "D", "white")):
        of_series = rows[rows["series"] == series].sort_values("x")
        axes.errorbar(
            of_series["x"].astype(float),
            of_series["y"],
            yerr=[of_series["y"] - of_series["y_low"], of_series["y_high"] - of_series["y"]],
            elinewidth=0.8,
            linestyle=line_style(rows) if series == TRAINED else "none",
            color=OTHER_COLORS[0],
            marker=marker,
            markersize=4.5,
            markerfacecolor=fill,
            linewidth=1.2,
            label=series,
        )
    for level in rows.loc[rows["series"] == "plain", "y"]:
        name, style = "mean of plain batches", line_style(rows)
        axes.axhline(level, color=SYSTEM_COLORS["verl"], linewidth=1.2, linestyle=style, label=name)
    axes.set_xticks(rows.loc[rows["x"].astype(float) > 0, "x"].astype(float).unique())
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=6.5, loc="upper left", handlelength=1.6, borderaxespad=0.1)


def _draw_rounds(axes: Axes, rows: pd.DataFrame) -> None:
    domains = list(dict.fromkeys(rows["x"]))
    colors = {"short": OTHER_COLORS[2], "long": OTHER_COLORS[0], EVERY: SYSTEM_COLORS["tail"]}
    for position, (kind, color) in enumerate(colors.items()):
        of_kind = rows[rows["series"] == kind]
        places = [domains.index(domain) + 0.27 * (position - 1) for domain in of_kind["x"]]
        spread = [of_kind["y"] - of_kind["y_low"], of_kind["y_high"] - of_kind["y"]]
        label = "all rounds" if kind == EVERY else kind
        hatch = hatch_of(rows)
        axes.bar(places, of_kind["y"], width=0.25, color=color, edgecolor="white", hatch=hatch, label=label)
        axes.errorbar(places, of_kind["y"], yerr=spread, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=1.5)
    axes.axhline(0, color="#444444", linewidth=0.8)
    axes.set_xticks(range(len(domains)), domains)
    axes.set_ylabel("mean length against plain (%)")
    axes.margins(y=0.12)
    axes.grid(visible=False, axis="x")
    axes.legend(fontsize=6.5, loc="lower center", ncols=3, columnspacing=0.8, handlelength=1.2, borderaxespad=0.1)


def _draw_lines(axes: Axes, rows: pd.DataFrame) -> None:
    for name, color in _colors().items():
        draw_line(axes, rows[rows["series"] == name], color)


def _draw_factors(axes: Axes, rows: pd.DataFrame) -> None:
    grid = rows.pivot(index="series", columns="x", values="y")
    sns.heatmap(
        grid, ax=axes, annot=True, fmt=".0f", cmap="Blues_r", cbar=False, linewidths=1, annot_kws={"fontsize": 7.5}
    )
    axes.set(xlabel="factor for responses", ylabel="factor for prompts")
    axes.tick_params(axis="y", rotation=0)


def _draw_key(axes: Axes, frame: pd.DataFrame) -> None:
    axes.set_axis_off()
    style = line_style(frame)
    handles = [Line2D([], [], color=color, linestyle=style, label=name) for name, color in _colors().items()]
    axes.legend(handles=handles, loc="upper left", fontsize=8, title="c and e", alignment="left", title_fontsize=8)
    origin = origin_of(frame, MODEL).replace(", ", "\n")
    axes.text(0.04, 0.2, origin, fontsize=8, color="#555555", transform=axes.transAxes)


def _colors() -> dict[str, str]:
    colors = (SYSTEM_COLORS["verl"], SYSTEM_COLORS["tail-prompts"], OTHER_COLORS[1], SYSTEM_COLORS["tail"])
    return dict(zip(VARIANTS, colors, strict=True))


EXHIBIT = Exhibit(
    name="length_bias",
    title="How far the race favours short responses (ours)",
    experiments=("sensitive_analysis_fig11",),
    gather=gather,
    draw=draw,
)
