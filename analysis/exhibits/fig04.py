"""Fig 4: plain batches beside short and long rounds of tail batching alone, step by step.

The paper's numbers of this figure are not at hand; its text says that four short rounds go with a long one.
"""

from __future__ import annotations

from rollpacker.analysis.numbers import Claim, Place, Value
from rollpacker.analysis.rounds import LONGEST, ROLLOUT, rounds_exhibit, rounds_of
from rollpacker.analysis.runs import Runs

MODELS = ("Qwen2.5-7B", "Qwen2.5-14B")
SYSTEMS = ("verl", "tail")

SHORT_PER_LONG = 4.0
"""Section 3: with a factor of 1.25 for prompts, each short round defers a quarter of a batch."""


def _claim(runs: Runs, model: str) -> Claim:
    ours = Place(panel=model, x="short rounds per long round", unit="rounds").ours(
        Value(run, len(rounds_of(run, "short")) / num_long)
        for run in runs.of(model=model, system="tail", task="mix")
        if (num_long := len(rounds_of(run, "long")))
    )
    return Claim(text=f"{model}: short rounds per long round", paper=SHORT_PER_LONG, ours=ours, unit="rounds")


FIG04A = rounds_exhibit(
    LONGEST,
    name="fig04a",
    title="The longest response of each round, plain and under tail batching (Fig 4a)",
    systems=SYSTEMS,
    models=MODELS,
    experiments=("table2",),
    claim=_claim,
)

FIG04B = rounds_exhibit(
    ROLLOUT,
    name="fig04b",
    title="The rollout time of each round, plain and under tail batching (Fig 4b)",
    systems=SYSTEMS,
    models=MODELS,
    experiments=("table2",),
)
