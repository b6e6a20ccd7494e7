"""ROLL-Flash's Fig 4, for real and tiny: what losses learn from samples that are 2 and 8 versions old.

The demo's walks on two cores, 40 steps of 16 prompts x 8 responses; lead and bound are 2, and 8. The paper's claim is
that off-policy losses and plain GRPO end where synchronous training does. `uncorrected` is that plain GRPO: PPO whose
ratio is to the policy before the update, and so 1, as ROLL has it by default; every other loss reads what sampled a
token. 15 runs of about half a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.learning import score
from rollpacker.analysis.numbers import Claim, Place, Point, Value, over
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.runs import Run, Runs

BOUNDS: Final = (2, 8)
LOSSES: Final = ("ppo_behaviour", "decoupled", "tis", "cispo", "topr", "gspo", "uncorrected")
NOT_IN_PAPER: Final = "gspo"
SYNCHRONOUS: Final = "synchronous"


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Held-out scores after the last step, and what they are of that of synchronous training."""
    plain = _scores(runs.of(setup="walks", study="flash-losses-0", system="verl"))
    for bound in BOUNDS:
        panel = f"held-out score, staleness {bound}"
        yield Place(panel=panel, x=SYNCHRONOUS, unit="score").ours(plain)
        for loss in LOSSES:
            scores = _scores(runs.of(setup="walks", study=f"flash-losses-{bound}", system=loss))
            yield Place(panel=panel, x=loss, unit="score").ours(scores)
            if loss == NOT_IN_PAPER:
                continue
            ours = Place(panel=panel, x=loss, unit="x").ours(over(scores, plain))
            text = f"{loss} at staleness {bound}: held-out score at the end over that of synchronous training"
            yield Claim(text=text, paper=1.0, ours=ours, unit="x")


def _scores(found: list[Run]) -> list[Value]:
    """Of each run that was evaluated, the last one."""
    return [Value(run, float(score(run).iloc[-1])) for run in found if len(run.evaluations) > 1]


EXHIBIT = Exhibit(
    name="flash_losses",
    title="Held-out score by loss and staleness, small real runs (ROLL-Flash, Fig 4)",
    experiments=("flash-losses-sync", "flash-losses", "flash-losses-decoupled", "flash-losses-uncorrected"),
    gather=gather,
    draw=partial(compare_bars, number="{:.2f}", num_columns=1),
    setups=("walks",),
)
