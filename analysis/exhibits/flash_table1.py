"""ROLL-Flash's Table 1: the least asynchronous ratio whose throughput is within 5 % of the best.

A ratio is a bound and a lead of so many batches. Engines have 6 GPUs and the trainer 2, whatever the model, and a
prompt has two responses: the paper's splits and lengths are not known to us. 50 runs of 30 steps; those of Qwen3-4B
with the usual length and batch serve all three panels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Numbers, PaperRow, Place, Point, Value, comparing, paper_rows
from rollpacker.analysis.plots import compare_panels
from rollpacker.analysis.runs import Run, Runs

RATIOS: Final = (0, 1, 2, 3, 4)
"""0 is synchronous on the same split."""
STEADY: Final = (4, 26)
"""The first of the steps that count, and the first after them: until then a pipeline fills, and later, at the highest
ratio, nothing is admitted. Steps come in waves, so few of them say little."""
ENOUGH: Final = 0.95
"""Of the best throughput."""
USUAL: Final = {"model": "Qwen3-4B", "num_prompts": 128, "max_response_tokens": 32768}
VARIED: Final = {"model": "model", "length": "max_response_tokens", "batch": "num_prompts"}
"""What each panel varies, as a property of `Run`."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Least ratios beside the paper's, and the throughputs that they follow from."""
    points: list[Point | None] = []
    for row in paper_rows("flash_table1"):
        found, name = _by_ratio(runs, row), _name(row)
        place = Place(panel=f"least ratio by {row.panel}", x=name, unit="ratio")
        ours = place.ours(_least_ratios(found))
        points += [place.paper(row.y), ours, *_throughputs(row.panel, name, found)]
        text = f"least ratio with full throughput, {row.panel} {name}"
        yield Claim(text=text, paper=row.y, ours=ours, unit="ratio")
    yield from sorted(comparing(points), key=lambda point: isinstance(point.x, float))


def _by_ratio(runs: Runs, row: PaperRow) -> dict[int, list[Run]]:
    value = row.x.replace("qwen", "Qwen").replace("b", "B") if row.panel == "model" else int(row.x)
    wanted = USUAL | {VARIED[row.panel]: value}
    studies = {ratio: f"flash-table1-{ratio}-{wanted['max_response_tokens']}" for ratio in RATIOS}
    return {ratio: runs.of(setup="flash", study=study, **wanted) for ratio, study in studies.items()}


def _name(row: PaperRow) -> str:
    if row.panel == "length":
        return f"{int(row.x) // 1024}k"
    return row.x.removeprefix("qwen3-").replace("b", "B")


def _rates(found: Mapping[int, Sequence[Run]]) -> Iterator[tuple[Run, dict[int, float]]]:
    """For each seed that every ratio has: a run of it, and samples per second by ratio."""
    by_seed: dict[int, dict[int, Run]] = {}
    for ratio, of_ratio in found.items():
        for run in of_ratio:
            if run.steps.index[-1] >= STEADY[1] - 1:
                by_seed.setdefault(run.seed, {})[ratio] = run.within(*STEADY)
    for of_seed in by_seed.values():
        if len(of_seed) == len(found):
            yield of_seed[RATIOS[0]], {ratio: run.samples_per_s for ratio, run in of_seed.items()}


def _least_ratios(found: Mapping[int, Sequence[Run]]) -> Iterator[Value]:
    for run, rates in _rates(found):
        enough = ENOUGH * max(rates.values())
        yield Value(run, float(min(ratio for ratio, rate in rates.items() if rate >= enough)))


def _throughputs(panel: str, name: str, found: Mapping[int, Sequence[Run]]) -> Iterator[Point | None]:
    shares = [(run, rates, max(rates.values())) for run, rates in _rates(found)]
    for ratio in RATIOS:
        place = Place(panel=f"throughput by {panel}", x=float(ratio), unit="% of best", series=name)
        yield place.ours(Value(run, 100 * rates[ratio] / best) for run, rates, best in shares)


def draw(numbers: Numbers) -> Figure:
    """Least ratios above, throughput over the ratio below."""
    panels = {f"throughput by {panel}": "asynchronous ratio" for panel in VARIED}
    return compare_panels(numbers, xlabels=panels, num_columns=3, axis_of=lambda _: "")


EXHIBIT = Exhibit(
    name="flash_table1",
    title="Least asynchronous ratio within 5 % of the best throughput (ROLL-Flash, Table 1)",
    experiments=("flash-table1", "flash-table1-lengths", "flash-table1-batches"),
    gather=gather,
    draw=draw,
)
