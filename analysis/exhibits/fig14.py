"""Fig 14: more GPUs for the same batch, up to 128 of them.

The paper's numbers of this figure are not at hand, nor whether its batch grows. Here it does not: the batch is the
algorithm's, and more GPUs are meant to give the same training sooner. `scaling` has what grows with the GPUs.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Numbers, Place, Point, Value, comparing, speedups
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Run, Runs

MODEL = "Qwen2.5-14B"
SYSTEMS = ("verl", "rollpacker")
STUDIES = {32: "", 64: "fig14", 128: "fig14"}
"""GPUs, and the study of the runs on so many; 32 are those of the end-to-end comparison."""

NUM_STEPS = 10
"""Two cycles of tail batching, as long as the shortest of these runs."""

STEP_TIME, THROUGHPUT, SPEEDUP = "step time (s)", "tokens/s trained", "speedup over veRL"

PAPER_SPEEDUPS = {"least": 2.03, "greatest": 2.56}
"""Over veRL, of all that the paper trains end to end on up to 128 GPUs (abstract)."""


def gather(runs: Runs) -> Numbers:
    """Means over the first steps; the paper's speedups are those of all its models and sizes."""
    points: list[Point | None] = []
    gains: list[Point] = []
    for num_gpus, study in STUDIES.items():
        found = {
            system: [
                run.first(NUM_STEPS)
                for run in runs.of(model=MODEL, system=system, task="mix", study=study, num_gpus=num_gpus)
            ]
            for system in SYSTEMS
        }
        for system, of_system in found.items():
            for panel, unit, value_of in ((STEP_TIME, "s", _step_s), (THROUGHPUT, "tokens/s", _tokens_per_s)):
                place = Place(panel=panel, x=float(num_gpus), unit=unit, series=system)
                points.append(place.ours(Value(run, value_of(run)) for run in of_system))
        place = Place(panel=SPEEDUP, x=float(num_gpus), unit="x", series="rollpacker")
        gains += comparing([place.ours(speedups(found["verl"], found["rollpacker"]))])
    return Numbers(points=[*comparing(points), *gains], claims=_claims(gains), missing=runs.missing)


def _step_s(run: Run) -> float:
    return float(run.steps["step_time_s"].mean())


def _tokens_per_s(run: Run) -> float:
    return float(run.steps["tokens_trained"].sum() / run.steps["step_time_s"].sum())


def _claims(gains: list[Point]) -> list[Claim]:
    ordered = sorted(gains, key=lambda point: point.y)
    ours = {"least": ordered[0], "greatest": ordered[-1]} if ordered else {}
    return [
        Claim(
            text=f"{MODEL} on 32 to 128 GPUs: the {which} speedup over veRL (paper: of all models and sizes)",
            paper=paper,
            ours=ours.get(which),
            unit="x",
            neutral=1.0,
        )
        for which, paper in PAPER_SPEEDUPS.items()
    ]


def draw(numbers: Numbers) -> Figure:
    """Step time, throughput and speedup over the number of GPUs."""
    return compare_lines(numbers, xlabel="GPUs", ylabel="", are_sizes=True)


EXHIBIT = Exhibit(
    name="fig14",
    title="The same batch on more GPUs, Qwen2.5-14B (Fig 14)",
    experiments=("e2e_performance", "fig14"),
    gather=gather,
    draw=draw,
)
