"""Which number of rollout workers is best for shorter and longer responses, and what it gains, as PolyRL's Fig 18.

The best number is that with the most tokens per dollar, at the prices of PolyRL's artifact. What PolyRL means by the
length of responses is not said; here it is the one that one response in 140 exceeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.elastic_workers import SERIES, throughputs
from rollpacker.analysis.numbers import Claim, Place, Point, Value, over, paper_rows
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Run, Runs

LENGTHS: Final = {1150: 5.0, 1850: 8.0, 2540: 11.0, 3300: 14.0}
"""Medians in tokens, and the length that one response in 140 exceeds, in thousands."""
WORKERS: Final = (2, 3, 4, 5, 6, 8)

THROUGHPUT, COST, BEST = "throughput over none", "tokens per dollar, over none", "best number of workers"
_PANELS: Final = {THROUGHPUT: ("throughput", "x"), COST: ("cost", "x"), BEST: ("workers", "workers")}


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Take the best number of workers of each length, for each seed that every number has."""
    prices = {row.series: row.y for row in paper_rows("elastic_workers") if row.panel == "price"}
    paper = {(row.panel, row.x): row.y for row in paper_rows("elastic_lengths")}
    for median, thousands in LENGTHS.items():
        alone = throughputs(_of(runs, median, 0))
        gains: dict[int, list[tuple[int, float, float, Run]]] = {}
        for number in WORKERS:
            dollars = 1 + number * prices["worker"] / prices["trainer"]
            for run, gain in over(throughputs(_of(runs, median, number)), alone):
                gains.setdefault(run.seed, []).append((number, gain, gain / dollars, run))
        whole = [of_seed for of_seed in gains.values() if len(of_seed) == len(WORKERS)]
        best = [max(of_seed, key=lambda each: each[2]) for of_seed in whole]
        found: Mapping[str, list[Value]] = {
            THROUGHPUT: [Value(run, gain) for _, gain, _, run in best],
            COST: [Value(run, per_dollar) for _, _, per_dollar, run in best],
            BEST: [Value(run, float(number)) for number, _, _, run in best],
        }
        for panel, (name, unit) in _PANELS.items():
            place = Place(panel=panel, x=thousands, unit=unit, series=SERIES)
            ours = place.ours(found[panel])
            yield ours
            if (reported := paper.get((name, f"{thousands:g}"))) is not None:
                yield place.paper(reported)
                text = f"Qwen3-14B, responses of {thousands:g}k tokens, at the best number of workers: {panel}"
                if panel != BEST:
                    yield Claim(text=text, paper=reported, ours=ours, unit=unit, neutral=1.0)


def _of(runs: Runs, median: int, number: int) -> list[Run]:
    return list(runs.of(setup="elastic", study=f"elastic-lengths-{median}-{number}"))


EXHIBIT = Exhibit(
    name="elastic_lengths",
    title="Rollout workers for shorter and longer responses, Qwen3-14B (PolyRL's Fig 18)",
    experiments=("elastic-lengths",),
    note="The best number of workers is the one with the most tokens per dollar; the model is fitted to Qwen3-8B.",
    gather=gather,
    draw=partial(compare_lines, xlabel="length that one response\nin 140 exceeds (k tokens)"),
)
