"""Tables 3 and 4: when engines are lent to the stream trainer: at a fixed share of a round, or when memory allows it.

Qwen2.5-7B on mathematics, as the paper has it: means over five long rounds.

Adaptive lending equals lending at 20 % here, in every round. It tests first when a fifth of the requests has finished,
and the test is whether what still runs fits into the engines that remain. At this size it always does: in the long
rounds the 8 of 16 engines that remain hold 7.9 million tokens, and the 819 requests that still run would need 6.9
million if each of them ran to its limit. So the test cannot fail. In the paper adaptive lending is faster than at each
fixed share, hence not equal to 20 %: its engines must have had far less memory than is free beside the weights. The
panels `lent at` show when engines were lent.

Table 4 has the paper's long rounds when the trainer fetches the completed responses once, at 20 to 50 % of the round,
instead of taking each group as it is complete: 128.6 to 133.8 s, slower than without lending (124.2 s), for what
finishes after the fetch waits for the end of the rollout while half of the GPUs generate nothing. Its streaming is
Table 3's adaptive lending. One fetch is not modelled: the stream trainer of this project always streams. So the paper
stands alone there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from rollpacker.analysis.exhibit import ALL_SETUPS, Exhibit
from rollpacker.analysis.numbers import Claim, Place, Point, Value, paper_rows, speedups
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.rounds import means, rounds_of
from rollpacker.analysis.runs import Run, Runs

MODEL = "Qwen2.5-7B"
WITHOUT = "without"

TRIGGERS = {"w/o": WITHOUT, "20%": "20 %", "30%": "30 %", "40%": "40 %", "Adpt.": "adaptive"}
"""When engines are lent, as the paper names it, and as it is named here."""

STUDIES = {"20 %": "stream-at-0.2", "30 %": "stream-at-0.3", "40 %": "stream-at-0.4", "adaptive": "stream-at-None"}
"""In conf/experiment/stream_trainer_table3.yaml."""

STEP = "long rounds: step (s)"

FETCH = "long rounds: step (s), one fetch (Table 4)"
STREAMED = "streaming"

MEASURES = {  # of a round; training is what is left of it when the rollout has ended
    "step (s)": ("step_time_s", "s", 1),
    "lent at (% of the requests)": ("lent_at_share", "%", 100),
    "rollout (s)": ("rollout_time_s", "s", 1),
    "training (s)": ("train_time_s", "s", 1),
}
"""Column of the `steps` table, unit, and how many of the unit the column's is."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Means over the rounds of a kind; nothing else differs between the runs of a seed."""
    model = runs.model(MODEL)
    found = {WITHOUT: runs.of(model=model, study="stream-never", system="tail-reward-planner")}
    found |= {label: runs.of(model=model, study=study, system="rollpacker") for label, study in STUDIES.items()}
    of_paper = _step_times_of_paper() if runs.are_papers_size else {}
    for label, y in of_paper.items():
        yield Place(panel=STEP, x=label, unit="s").paper(y)
    for kind in ("long", "short"):
        for measure, (column, unit, factor) in MEASURES.items():
            for label, runs_at in found.items():
                values = [Value(run, factor * y) for run, y in means(runs_at, kind, column)]
                yield Place(panel=f"{kind} rounds: {measure}", x=label, unit=unit).ours(values)
    if runs.are_papers_size:
        for label, y in _fetched_once_in_paper().items():
            yield Place(panel=FETCH, x=label, unit="s").paper(y)
        yield Place(panel=FETCH, x=STREAMED, unit="s").ours(means(found["adaptive"], "long", "step_time_s"))
    yield from _claims(found, of_paper)


def _step_times_of_paper() -> dict[str, float]:
    """Of long rounds, in seconds, by when engines are lent."""
    rows = [row for row in paper_rows("table03") if row.series == "step time"]
    return {TRIGGERS[row.x]: row.y for row in rows}


def _fetched_once_in_paper() -> dict[str, float]:
    """Of long rounds, in seconds, by the share of the round at which responses are fetched."""
    rows = [row for row in paper_rows("table04") if row.series == "step time"]
    return {STREAMED if row.x == "Stream" else row.x.replace("%", " %"): row.y for row in rows}


def _claims(found: dict[str, list[Run]], of_paper: dict[str, float]) -> list[Claim]:
    """Speedups of long rounds: over those without lending, and of adaptive lending over each fixed share."""
    pairs = [(WITHOUT, label) for label in STUDIES] + [(label, "adaptive") for label in STUDIES if label != "adaptive"]
    return [
        Claim(
            text=f"lending, {label} against {base}: speedup of long rounds",
            paper=of_paper[base] / of_paper[label],
            ours=Place(panel=STEP, x=label, unit="x").ours(speedups(_long(found[base]), _long(found[label]))),
            unit="x",
            neutral=1.0,
        )
        for base, label in pairs
        if of_paper
    ]


def _long(runs: list[Run]) -> list[Run]:
    """The runs as if they had had long rounds alone."""
    return [replace(run, steps=rounds_of(run, "long")) for run in runs]


def _axis_of(panel: str) -> str:
    return panel.partition(": ")[2].partition(",")[0]


EXHIBIT = Exhibit(
    name="table3",
    title="Rounds by when engines are lent to the stream trainer: fixed shares and adaptive (Tables 3, 4)",
    experiments=("stream_trainer_table3", "stream_trainer_table3-without"),
    gather=gather,
    draw=partial(compare_bars, num_columns=2, axis_of=_axis_of),
    setups=ALL_SETUPS,
)
