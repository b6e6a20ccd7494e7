"""Advice from the outcomes: means and spreads, whether tail batching pays, and what to ask the cluster for.

Pure functions of tables. Speedups are paired: a seed's plain run against the same seed's run of the other system, with
the same prompts. A gain counts only when it is larger than its spread over seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from rollpacker.analysis.plan.trials import Setting

HALF_IS_ENOUGH = 0.625
"""Half the GPUs are suggested when a step takes at most this share of the GPU-hours, a judge's included: without a
judge's, at most 1.25 times as long."""

DOUBLE_PAYS = 0.6
"""Twice the GPUs are suggested when a step takes at most this share of the time: at least two thirds of the added
GPUs' work counts."""

Row = pd.Series
"""One setting, of the table that `summarise` makes."""

Verdict = Literal["pays", "within the spread", "loses"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The advice, each part with its reason in a sentence."""

    verdict: Verdict
    summary: str
    reasons: dict[str, str]
    """By what to ask for, `eta 1.25`, `TP 2` and `GPUs 32`; what was not varied is left out."""


def add_speedups(outcomes: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Add `speedup`: over the same seed of plain batching at its best, on as many GPUs and at the same rho.

    It is null where plain batching did not run with the seed.
    """
    place = ["num_gpus", "rho"]
    plain = outcomes[outcomes["system"] == baseline]
    degrees = plain.groupby([*place, "tensor_parallel"])["step_time_s"].agg(["size", "mean"]).reset_index()
    in_order = degrees.sort_values(["size", "mean"], ascending=[False, True])  # one lucky seed is no best
    best = in_order.drop_duplicates(place)[[*place, "tensor_parallel"]]
    times = plain.merge(best).set_index([*place, "seed"])["step_time_s"]
    paired = times.reindex(outcomes.set_index([*place, "seed"]).index)
    return outcomes.assign(speedup=paired.to_numpy() / outcomes["step_time_s"])


def summarise(outcomes: pd.DataFrame) -> pd.DataFrame:
    """One row per setting, in the order in which they were first tried.

    Numbers are means over seeds, of the KV peak the largest. `step_spread_s` and `speedup_spread` are standard
    deviations, 0 of a single seed, which says nothing; `num_paired` counts the seeds that have a speedup.
    `first_step_time_s` is of the first seed, which every setting has: what was tried once is compared by it.
    """
    averaged = ("step_time_s", "speedup", "long_share", "bubble_ratio", "wasted_share", "preemptions")
    return (
        outcomes.groupby(list(Setting._fields), sort=False, dropna=False)
        .agg(
            **{column: (column, "mean") for column in averaged},
            step_spread_s=("step_time_s", "std"),
            speedup_spread=("speedup", "std"),
            first_step_time_s=("step_time_s", "first"),
            num_seeds=("seed", "size"),
            num_paired=("speedup", "count"),
            kv_peak_share=("kv_peak_share", "max"),
            kv_tokens_per_engine=("kv_tokens_per_engine", "first"),
            num_all_gpus=("num_all_gpus", "first"),
            gpu_hours_per_1000_steps=("gpu_hours_per_1000_steps", "mean"),
        )
        .fillna({"step_spread_s": 0.0, "speedup_spread": 0.0})
        .reset_index()
    )


def speedup_by_rho(outcomes: pd.DataFrame, num_gpus: int) -> tuple[str, dict[float, float]]:
    """Find the racing system whose rho was varied, and its best setting's mean speedup at each rho.

    The speedup is paired: a rho that was not tried for plain batching, too, is left out.
    """
    racing = outcomes[outcomes["eta"].notna() & (outcomes["num_gpus"] == num_gpus)]
    system = str(racing.groupby("system", sort=False)["rho"].nunique().idxmax())
    own = racing[racing["system"] == system]
    means = own.groupby(["rho", "tensor_parallel", "eta"])[["step_time_s", "speedup"]].mean().dropna()
    best = means.loc[means.groupby("rho")["step_time_s"].idxmin(), "speedup"]
    return system, {float(rho): float(speedup) for (rho, *_), speedup in best.items()}


def advise(summaries: pd.DataFrame, *, baseline: str, num_gpus: int, rho: float) -> Advice:
    """Compare the best racing system with plain batching and with the best of those that do not race, and choose.

    Args:
        summaries: Of everything that was tried.
        baseline: The system of plain batching.
        num_gpus: That the user asked about.
        rho: That the answer is given for.
    """
    at_rho = summaries[summaries["rho"] == rho]
    here = at_rho[at_rho["num_gpus"] == num_gpus]
    racing = here[here["eta"].notna()]
    plain, best = _best(here[here["system"] == baseline]), _least_speculation(racing)
    verdict, instead = verdict_of(best), _best_without_race(here, plain)
    chosen = best if verdict == "pays" and best["speedup"] >= instead["speedup"] else instead
    alike = here[here["system"] == chosen["system"]]
    reasons = {}
    if not np.isnan(chosen["eta"]):
        reasons[f"eta {chosen['eta']:g}"] = _why_eta(chosen, alike)
    reasons[f"TP {chosen['tensor_parallel']}"] = _why_degree(chosen, alike)
    gpus, why = _why_gpus(chosen, at_rho[at_rho["system"] == chosen["system"]])
    reasons[f"GPUs {gpus}"] = why
    return Advice(verdict=verdict, summary=_say_verdict(verdict, best, plain, instead, racing), reasons=reasons)


def verdict_of(row: Row) -> Verdict:
    """A gain or a loss counts when it is larger than its standard deviation over at least two seeds."""
    if row["num_paired"] < 2 or abs(row["speedup"] - 1) <= row["speedup_spread"]:  # noqa: PLR2004
        return "within the spread"
    return "pays" if row["speedup"] > 1 else "loses"


def _best(rows: pd.DataFrame) -> Row:
    """The fastest of those that were tried most often: of settings tried once the fastest was lucky."""
    return rows.sort_values(["num_seeds", "step_time_s"], ascending=[False, True]).iloc[0]


def _best_without_race(here: pd.DataFrame, plain: Row) -> Row:
    """The best of the systems that gain over plain batching without a race, else plain batching."""
    others = here[here["eta"].isna()]
    gaining = others[[verdict_of(row) == "pays" for _, row in others.iterrows()]]
    return _best(gaining) if len(gaining) else plain


def _like(rows: pd.DataFrame, row: Row, *columns: str) -> pd.DataFrame:
    """The rows that have the same in these columns."""
    return rows[(rows[list(columns)] == row[list(columns)]).all(axis=1)]


def _least_speculation(racing: pd.DataFrame) -> Row:
    """Of the settings that are as fast as the fastest, to within the spread, the one that launches least.

    The spread is the standard error of the difference of two means.
    """
    best = _best(racing)
    alike = _like(racing, best, "tensor_parallel", "system", "num_seeds")
    noise = ((alike["step_spread_s"] ** 2 + best["step_spread_s"] ** 2) / best["num_seeds"]) ** 0.5
    as_fast = alike[alike["step_time_s"] - best["step_time_s"] <= noise]
    least: Row = as_fast.sort_values("eta").iloc[0]
    return least


def _say_verdict(verdict: Verdict, best: Row, plain: Row, instead: Row, racing: pd.DataFrame) -> str:
    if best["num_paired"] < 2:  # noqa: PLR2004  (one seed has no spread)
        return "Not decided: a single seed has no spread. Ask for several: seeds=3."
    name, other = best["system"], f"Run {instead['system']}."
    if instead["system"] != plain["system"]:
        other = f"{instead['system']} has {instead['speedup']:.2f} x without a race. {other}"
    spread = f"{best['speedup']:.2f} x, give or take {best['speedup_spread']:.2f} over {best['num_paired']} seeds"
    saved_h = plain["gpu_hours_per_1000_steps"] - best["gpu_hours_per_1000_steps"]
    match verdict:
        case "pays":
            text = f"{name} pays: {spread}; {saved_h:,.0f} GPU·h saved per 1,000 steps."
            if best["eta"] == 1:
                text += " It does so at eta 1, by its other parts: tail batching itself does not pay here."
            else:
                alike = _like(racing, best, "system", "tensor_parallel")
                without = alike.loc[alike["eta"] == 1, "speedup"].dropna()
                text += "".join(f" With eta 1, its other parts alone, it has {each:.2f} x." for each in without)
            return f"{text} {other}" if instead["speedup"] > best["speedup"] else text
        case "loses":
            return f"{name} does not pay, it loses: {spread}. {other}"
        case _:
            return f"{name} does not pay: {spread}, no more than its spread. {other}"


def _why_eta(chosen: Row, alike: pd.DataFrame) -> str:
    """Compare with the other factors by their means, or by the first seed where some have fewer seeds than others."""
    others = _like(alike, chosen, "tensor_parallel")
    others = others[others["eta"] != chosen["eta"]].sort_values("eta")
    has_same_seeds = others["num_seeds"].eq(chosen["num_seeds"]).all()
    column = "step_time_s" if has_same_seeds else "first_step_time_s"
    text = f"{chosen[column]:.0f} s a step" + ("" if has_same_seeds else " with the first seed")
    if others.empty:
        return f"{text}; no other was tried."
    said = ", ".join(
        f"{eta:g} takes {seconds:.0f} s" for eta, seconds in zip(others["eta"], others[column], strict=True)
    )
    faster = others.loc[others[column] < chosen[column], "eta"]
    why = ""
    if len(faster) and not has_same_seeds:
        why = ": the choice goes by all seeds, of the factors that have the most"
    elif len(faster) and (faster > chosen["eta"]).all():
        why = ": no difference beyond the spread is in favour of launching more"
    return f"{text}; {said}{why}."


def _why_degree(chosen: Row, alike: pd.DataFrame) -> str:
    """Compare with the other degrees by the seed and the eta that they were tried with."""
    is_own = alike["tensor_parallel"] == chosen["tensor_parallel"]
    others = alike[~is_own].sort_values("tensor_parallel")
    if others.empty:
        return "the only degree that was tried."
    own = alike[is_own & alike["eta"].isin(others["eta"])].iloc[0]
    text = f"{own['first_step_time_s']:.0f} s a step with the first seed{_at_eta(own, chosen)}"
    return f"{text}; {'; '.join(_against(others, own))}."


def _at_eta(row: Row, chosen: Row) -> str:
    """The eta of a row, in words, where it is not the chosen one."""
    is_chosen = np.isnan(row["eta"]) or row["eta"] == chosen["eta"]
    return "" if is_chosen else f" at eta {row['eta']:g}"


def _against(others: pd.DataFrame, own: Row) -> Iterator[str]:
    """Why the other degrees are worse than the chosen one: short memory one by one, time together."""
    is_faster = others["first_step_time_s"] <= own["first_step_time_s"]
    is_short = ~is_faster & (others["preemptions"] > max(1.0, 2 * own["preemptions"]))
    for each in others[is_short].itertuples():
        yield (
            f"at TP {each.tensor_parallel} an engine holds {each.kv_tokens_per_engine:,} tokens of KV and "
            f"{each.preemptions:.0f} responses a step are preempted ({each.first_step_time_s:.0f} s)"
        )
    is_lower = others["tensor_parallel"] < own["tensor_parallel"]
    for rows, why in (
        (others[~is_short & ~is_faster & is_lower], "the longest response decodes more slowly"),
        (others[~is_short & ~is_faster & ~is_lower], "fewer engines, and more communication than it gains"),
        (others[is_faster], "no slower with this seed, but the choice goes by all seeds"),
    ):
        if len(rows):
            yield (
                ", ".join(f"TP {row.tensor_parallel} {row.first_step_time_s:.0f} s" for row in rows.itertuples())
                + f": {why}"
            )


def _why_gpus(chosen: Row, alike: pd.DataFrame) -> tuple[int, str]:
    """Compare half and twice the GPUs with the best TP here, by the seed and at the eta that they were tried with."""
    num_gpus = int(chosen["num_gpus"])
    is_here = alike["num_gpus"] == num_gpus
    elsewhere = alike[~is_here]
    if elsewhere.empty:
        return num_gpus, f"no other number was tried with {chosen['system']}."
    here = alike[is_here & alike["eta"].isin(elsewhere["eta"])].sort_values("first_step_time_s").iloc[0]
    fastest = elsewhere.groupby("num_gpus")["first_step_time_s"].min()
    times: dict[int, float] = (fastest / here["first_step_time_s"]).to_dict()
    said = "; ".join(f"{other} take {ratio:.2f} times as long a step" for other, ratio in times.items())
    said += _at_eta(here, chosen)
    all_gpus = elsewhere.groupby("num_gpus")["num_all_gpus"].first() / here["num_all_gpus"]
    fewer = [other for other in times if other < num_gpus and times[other] * all_gpus[other] <= HALF_IS_ENOUGH]
    more = [other for other, ratio in times.items() if other > num_gpus and ratio <= DOUBLE_PAYS]
    if fewer:
        return min(fewer), f"{said}: half of the {num_gpus} do nearly as well, for far fewer GPU·h."
    if more:
        return max(more), f"{said}: twice as many are used nearly as well."
    return num_gpus, f"{said}: fewer wait longer than they save, more are used worse."
