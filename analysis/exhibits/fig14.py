"""Fig 14: a batch that grows with the GPUs: 128, 256 and 512 prompts on 32, 64 and 128 of them.

So each GPU has as many requests on 128 as on 32, and a modelled step takes as long. The paper's, which follow from its
samples per second, take 1.8 times as long on 128, under either system; it does not say why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import PAPER_SYSTEMS, Claim, Place, Point, Value, over, paper_rows, speedups
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Runs

MODEL = "Qwen2.5-14B"
SYSTEMS = ("verl", "rollpacker")
STUDIES = {32: "", 64: "fig14", 128: "fig14"}
"""GPUs, and the study of the runs on so many; 32 are those of the end-to-end comparison."""

PROMPTS_PER_GPU, RESPONSES = 4, 8
"""Of a batch, and of a prompt."""

NUM_STEPS = 10
"""Two cycles of tail batching, as long as the shortest of these runs."""

STEP_TIME, THROUGHPUT, SPEEDUP = "step time (s)", "samples/s trained", "speedup over veRL"
UNITS = {STEP_TIME: "s", THROUGHPUT: "samples/s", SPEEDUP: "x"}


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Means over the first steps."""
    of_paper = {(PAPER_SYSTEMS[row.series], int(row.x)): row.y for row in paper_rows("fig14")}
    rates: dict[tuple[str, int], list[Value]] = {}
    for num_gpus, study in STUDIES.items():
        num_prompts = PROMPTS_PER_GPU * num_gpus
        wanted = {"model": MODEL, "task": "mix", "study": study, "num_gpus": num_gpus, "num_prompts": num_prompts}
        found = {system: [run.first(NUM_STEPS) for run in runs.of(system=system, **wanted)] for system in SYSTEMS}
        for system, of_system in found.items():
            per_s = of_paper[system, num_gpus]
            times = [Value(run, run.mean("step_time_s")) for run in of_system]
            rates[system, num_gpus] = [Value(run, run.samples_per_s) for run in of_system]
            for panel, paper, values in (
                (STEP_TIME, num_prompts * RESPONSES / per_s, times),
                (THROUGHPUT, per_s, rates[system, num_gpus]),
            ):
                place = Place(panel=panel, x=float(num_gpus), unit=UNITS[panel], series=system)
                yield place.paper(paper)
                yield place.ours(values)
        place = Place(panel=SPEEDUP, x=float(num_gpus), unit=UNITS[SPEEDUP], series="rollpacker")
        gain = of_paper["rollpacker", num_gpus] / of_paper["verl", num_gpus]
        ours = place.ours(speedups(found["verl"], found["rollpacker"]))
        yield place.paper(gain)
        yield ours
        text = f"{MODEL} on {num_gpus} GPUs with {num_prompts} prompts: rollpacker over verl"
        yield Claim(text=text, paper=gain, ours=ours, unit="x", neutral=1.0)
    for system in SYSTEMS:
        yield _growth(rates, of_paper, system)


def _growth(
    rates: Mapping[tuple[str, int], Sequence[Value]], of_paper: Mapping[tuple[str, int], float], system: str
) -> Claim:
    """How much of four times the GPUs arrives in samples per second."""
    fewest, most = min(STUDIES), max(STUDIES)
    return Claim(
        text=f"{MODEL}, {system}: samples per second on {most} GPUs over those on {fewest}",
        paper=of_paper[system, most] / of_paper[system, fewest],
        ours=Place(panel=THROUGHPUT, x="growth", unit="x").ours(over(rates[system, most], rates[system, fewest])),
        unit="x",
        neutral=1.0,
    )


EXHIBIT = Exhibit(
    name="fig14",
    title="More GPUs with a batch that grows with them, Qwen2.5-14B (Fig 14)",
    experiments=("e2e_performance", "fig14"),
    gather=gather,
    draw=partial(compare_lines, xlabel="GPUs, with 4 prompts each", are_sizes=True),
)
