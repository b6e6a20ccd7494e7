"""The search, from coarse to fine: stages of trials, each chosen by the step times of the stage before.

    degrees   every system at each degree of tensor parallelism that fits, the largest first, one seed
    eta       systems that race at the other speculation factors, at their best degree, one seed
    gpus      the baseline and the fastest system that races on half and twice the GPUs, at their best, one seed
    seeds     the best degree of each system with every factor, further seeds: mean and spread
    rho       the baseline and the fastest that races, at other correlations of the lengths within a prompt, one seed

So a few dozen runs stand for a grid of hundreds. Degrees and factors away from the best ones are not tried.
The search is deterministic and has no clock: it hands over trials, and gets the step times of those that ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean

from rollpacker.analysis.plan.trials import ETAS, FIRST_ETA, RHOS, Setting, Trial, has_eta, steps_of
from rollpacker.config.schema import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is searched."""

    bases: Mapping[str, RunConfig]
    """By system; the first is the baseline."""
    num_gpus: int
    """That the user has in mind."""
    degrees_by_gpus: Mapping[int, Mapping[str, tuple[int, ...]]]
    """Degrees that fit, for each number of GPUs that is tried and each system, ascending: some systems share the GPUs
    with a judge."""
    rho: float
    varies_rho: bool
    """False when the lengths name their prompts, and are correlated as they are."""
    num_seeds: int

    @property
    def baseline(self) -> str:
        return next(iter(self.bases))

    @property
    def racing(self) -> tuple[str, ...]:
        """The systems that have an eta."""
        return tuple(name for name, base in self.bases.items() if has_eta(base))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Trials that may run side by side."""

    name: str
    trials: tuple[Trial, ...]
    """The most telling first."""
    num_needed: int = 0
    """So many of the first there must be for an answer, however long they take."""


StepTimes = Mapping[Trial, float]
"""Seconds per step, of the trials of a stage that ran."""


def search(space: Space, model: Callable[[Stage], StepTimes]) -> None:
    """Ask `model` for one stage after the other."""
    times: dict[Trial, float] = {}

    def trial(setting: Setting, seed: int = 0) -> Trial:
        return Trial(setting, seed, steps_of(space.bases[setting.system], setting.eta))

    def fastest(*systems: str) -> Setting:
        """Of some systems, the setting of the least mean step time, on the GPUs of the question."""
        by_setting: dict[Setting, list[float]] = {}
        for each, step_time_s in times.items():
            if each.setting.system in systems and each.setting.num_gpus == space.num_gpus:
                by_setting.setdefault(each.setting, []).append(step_time_s)
        return min(by_setting, key=lambda setting: fmean(by_setting[setting]))

    def compared() -> tuple[Setting, Setting]:
        """What the advice is about, as far as it is known: plain batching, and the fastest that races."""
        return fastest(space.baseline), fastest(*space.racing)

    degrees = space.degrees_by_gpus[space.num_gpus]
    first = [
        Setting(system, FIRST_ETA if system in space.racing else None, degree, space.num_gpus, space.rho)
        for of_rank in zip_longest(*(reversed(degrees[system]) for system in space.bases))
        for system, degree in zip(space.bases, of_rank, strict=True)
        if degree is not None
    ]
    times |= model(Stage(name="degrees", trials=tuple(map(trial, first)), num_needed=len(space.bases)))

    by_eta = [trial(fastest(system)._replace(eta=eta)) for eta in ETAS for system in space.racing]
    times |= model(Stage(name="eta", trials=tuple(each for each in by_eta if each not in times)))

    best = {system: fastest(system) for system in space.bases}
    elsewhere = [
        each._replace(num_gpus=num_gpus, tensor_parallel=nearest_degree(degrees[each.system], each.tensor_parallel))
        for num_gpus, degrees in space.degrees_by_gpus.items()
        for each in compared()
        if num_gpus != space.num_gpus
    ]
    times |= model(Stage(name="gpus", trials=tuple(map(trial, elsewhere))))

    finalists = [
        best[system]._replace(eta=eta)
        for system in space.bases
        for eta in (ETAS if system in space.racing else (None,))
    ]
    finalists.sort(key=lambda each: each != best[each.system])
    repeats = [trial(each, seed) for seed in range(1, space.num_seeds) for each in finalists]
    times |= model(Stage(name="seeds", trials=tuple(repeats), num_needed=len(space.bases)))

    if space.varies_rho:
        varied = [trial(each._replace(rho=rho)) for rho in RHOS if rho != space.rho for each in compared()]
        model(Stage(name="rho", trials=tuple(varied)))


def nearest_degree(degrees: Sequence[int], wanted: int) -> int:
    """The degree that fits and is the fewest doublings away; the larger of two."""
    return min(degrees, key=lambda degree: (max(degree, wanted) / min(degree, wanted), -degree))


def count_trials(space: Space) -> int:
    """How many trials the search will ask for: the same whatever their step times."""
    asked: list[Trial] = []

    def note(stage: Stage) -> StepTimes:
        asked.extend(stage.trials)
        return dict.fromkeys(stage.trials, 1.0)

    search(space, note)
    return len(asked)
