"""Fig 10: veRL against RollPacker end to end, step by step, and the stages of short and long rounds.

The paper's numbers of a and b are not at hand. RollPacker's rollouts hold their rewards, and late in them the trainer
has half of the GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rollpacker.analysis.exhibit import ALL_SETUPS, Exhibit
from rollpacker.analysis.numbers import Claim, Place, Point, paper_rows
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.rounds import LONGEST, ROLLOUT, means, rounds_exhibit
from rollpacker.analysis.runs import Runs

MODELS = ("Qwen2.5-7B", "Qwen2.5-14B")
SYSTEMS = ("verl", "rollpacker")

FIG10A = rounds_exhibit(
    LONGEST,
    name="fig10a",
    title="The longest response of each step, end to end (Fig 10a)",
    systems=SYSTEMS,
    models=MODELS,
    experiments=("e2e_performance",),
    setups=ALL_SETUPS,
)

FIG10B = rounds_exhibit(
    ROLLOUT,
    name="fig10b",
    title="The rollout time of each step, end to end (Fig 10b)",
    systems=SYSTEMS,
    models=MODELS,
    experiments=("e2e_performance",),
    setups=ALL_SETUPS,
)

LONG_STEP_S = {"7B": 129.0, "14B": 302.0}
"""The printed step time of a long round, of which the figure gives shares."""

STAGES = {"Sync.": "weight_sync", "Rollout": "rollout", "Reward": "exposed_reward", "Training": "train"}

SYSTEM = "tail-reward-planner"
"""The figure is of RollPacker, but its stages add up to the step as if no training overlapped the rollout."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Mean seconds of each stage over the rounds of a kind."""
    for row in paper_rows("fig10c"):
        name, _, rest = row.series.partition(" (")
        stage, kind, model = STAGES[name], rest.split()[0], f"Qwen2.5-{row.x}"
        seconds = row.y / 100 * LONG_STEP_S[row.x]
        place = Place(panel=f"{model}, {kind} rounds", x=stage.replace("_", " "), unit="s")
        ours = place.ours(means(runs.of(model=model, system=SYSTEM, task="mix"), kind, f"{stage}_time_s"))
        yield place.paper(seconds)
        yield ours
        yield Claim(text=f"{place.panel}: {place.x}", paper=seconds, ours=ours, unit="s")


FIG10C = Exhibit(
    name="fig10c",
    title="Stages of short and long rounds (Fig 10c)",
    experiments=("table2",),
    gather=gather,
    draw=partial(compare_bars, ylabel="seconds", num_columns=2),
)
