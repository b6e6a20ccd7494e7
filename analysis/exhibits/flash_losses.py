"""ROLL-Flash's Fig 4, for real and tiny: what losses learn from samples that are 2 and 8 versions old.

The demo's walks on two cores, 40 steps of 16 prompts x 8 responses; lead and bound are 2, and 8. The paper's claim is
that off-policy losses and plain GRPO end where synchronous training does. `uncorrected` is that plain GRPO: PPO whose
ratio is to the policy before the update, and so 1, as ROLL has it by default; every other loss reads what sampled a
token. 15 runs of about half a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.learning import over_steps, score
from rollpacker.analysis.numbers import Claim, Numbers, Place, Point, Value, comparing
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Run, Runs

BOUNDS: Final = (2, 8)
LOSSES: Final = ("ppo_behaviour", "decoupled", "tis", "cispo", "topr", "gspo", "uncorrected")
SYNCHRONOUS: Final = "synchronous"


def gather(runs: Runs) -> Numbers:
    """Held-out scores over the steps, and at the end against synchronous training."""
    points: list[Point | None] = []
    claims: list[Claim] = []
    plain = runs.of(setup="walks", study="flash-losses-0", system="verl")
    for bound in BOUNDS:
        panel = f"held-out score, staleness {bound}"
        points += over_steps(SYNCHRONOUS, _scored(plain), panel)
        for loss in LOSSES:
            found = runs.of(setup="walks", study=f"flash-losses-{bound}", system=loss)
            points += over_steps(loss, _scored(found), panel)
            claims.append(
                Claim(
                    text=f"{loss} at staleness {bound}: held-out score at the end over that of synchronous training",
                    paper=1.0,
                    ours=Place(panel=panel, x=loss, unit="x").ours(_ratios(plain, found)),
                    unit="x",
                )
            )
    return Numbers(points=comparing(points), claims=claims, missing=runs.missing)


def _scored(found: list[Run]) -> list[Run]:
    return [run for run in found if len(run.evaluations) > 1]


def _ratios(plain: list[Run], found: list[Run]) -> Iterator[Value]:
    last = {run.seed: float(score(run).iloc[-1]) for run in _scored(plain)}
    for run in _scored(found):
        if run.seed in last:
            yield Value(run, float(score(run).iloc[-1]) / last[run.seed])


def draw(numbers: Numbers) -> Figure:
    """A panel for each bound."""
    return compare_lines(numbers, xlabel="training steps", ylabel="")


EXHIBIT = Exhibit(
    name="flash_losses",
    title="Held-out score by loss and staleness, small real runs (ROLL-Flash, Fig 4)",
    experiments=("flash-losses-sync", "flash-losses", "flash-losses-decoupled", "flash-losses-uncorrected"),
    gather=gather,
    draw=draw,
    setups=("walks",),
)
