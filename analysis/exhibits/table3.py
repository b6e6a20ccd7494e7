"""Table 3: when engines are lent to the stream trainer: at a fixed share of a round, or when memory allows it.

Qwen2.5-7B, as the paper's artifact has it. The paper's numbers of this table are not at hand; it says that adaptive
scaling beats fixed shares of 20, 30 and 40 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.exhibit import ALL_SETUPS, Exhibit
from analysis.numbers import Claim, Numbers, Place, Value, comparing
from analysis.plots import compare_bars
from analysis.rounds import means

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from analysis.runs import Run, Runs

SHARES = {"0.2": "20 %", "0.3": "30 %", "0.4": "40 %", "None": "adaptive"}
"""In the studies of conf/experiment/stream_trainer_table3.yaml, and what they are called."""

STAGES = {  # what of the training is left when the rollout has ended
    "step": "step_time_s",
    "rollout": "rollout_time_s",
    "training": "train_time_s",
}


def gather(runs: Runs) -> Numbers:
    """Means over the rounds of a kind; nothing else differs between the runs of a seed."""
    found = {label: runs.of(study=f"stream-at-{share}", system="rollpacker") for share, label in SHARES.items()}
    points = [
        Place(panel=f"{kind} rounds: {stage}", x=label, unit="s").ours(means(of_share, kind, column))
        for kind in ("long", "short")
        for stage, column in STAGES.items()
        for label, of_share in found.items()
    ]
    return Numbers(
        points=comparing(points), claims=_claims(found) if runs.are_papers_size else (), missing=runs.missing
    )


def _claims(found: dict[str, list[Run]]) -> list[Claim]:
    """Long rounds, by how much longer they take when engines are lent at a fixed share."""
    adaptive = {value.run.seed: value.y for value in means(found["adaptive"], "long", "step_time_s")}
    return [
        Claim(
            text=f"adaptive lending against lending at {label}: speedup of long rounds",
            paper=1.0,
            ours=Place(panel="long rounds: step", x=label, unit="x").ours(
                Value(value.run, value.y / adaptive[value.run.seed])
                for value in means(of_share, "long", "step_time_s")
                if value.run.seed in adaptive
            ),
            unit="x",
            is_bound=True,
        )
        for label, of_share in found.items()
        if label != "adaptive"
    ]


def draw(numbers: Numbers) -> Figure:
    """Long rounds above, short ones below."""
    return compare_bars(numbers, ylabel="seconds", number="{:.1f}")


EXHIBIT = Exhibit(
    name="table3",
    title="Rounds by when engines are lent to the stream trainer: fixed shares and adaptive (Table 3)",
    experiments=("stream_trainer_table3",),
    gather=gather,
    draw=draw,
    setups=ALL_SETUPS,
)
