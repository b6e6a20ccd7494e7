"""The search, from coarse to fine: stages of trials, each chosen by the outcomes of the stage before.

    degrees   every system at each degree of tensor parallelism that fits, the largest first, one seed
    eta       systems that race at the other speculation factors, at their best degree, one seed
    gpus      the first and the last system on half and twice the GPUs, at their best degree and factor, one seed
    seeds     the best degree of each system with every factor, further seeds: mean and spread
    rho       the same two, at other correlations of the lengths within a prompt, one seed

So a few dozen runs stand for a grid of hundreds. Degrees and factors away from the best ones are not tried.
The search is deterministic: it sends trials, receives outcomes, and has no clock; its caller may stop it early.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

from rollpacker.analysis.plan.outcomes import Outcome
from rollpacker.analysis.plan.trials import ETAS, FIRST_ETA, RHOS, Setting, Trial, has_eta, steps_of
from rollpacker.config.schema import RunConfig

STAGES = ("degrees", "eta", "gpus", "seeds", "rho")


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is searched."""

    bases: Mapping[str, RunConfig]
    """By system; the first is the baseline."""
    num_gpus: int
    """That the user has in mind."""
    degrees_by_gpus: Mapping[int, tuple[int, ...]]
    """Degrees that fit, for each number of GPUs that is tried."""
    rho: float
    varies_rho: bool
    """False when the lengths name their prompts, and are correlated as they are."""
    num_seeds: int

    @property
    def baseline(self) -> str:
        return next(iter(self.bases))

    @property
    def ends(self) -> tuple[str, str]:
        """The baseline and the last system: what is varied further is varied for these."""
        return self.baseline, list(self.bases)[-1]

    def etas(self, system: str) -> tuple[float | None, ...]:
        return ETAS if has_eta(self.bases[system]) else (None,)

    def first_eta(self, system: str) -> float | None:
        return FIRST_ETA if has_eta(self.bases[system]) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Trials that may run side by side."""

    name: str
    trials: tuple[Trial, ...]
    """The most telling first."""
    num_needed: int = 0
    """So many of the first there must be for an answer, however long they take."""


Search = Generator[Stage, Sequence[Outcome], None]


def search(space: Space) -> Search:
    """Yield stages; each is answered with the outcomes of those of its trials that ran."""
    outcomes: list[Outcome] = []

    def trial(setting: Setting, seed: int = 0) -> Trial:
        num_steps = steps_of(space.bases[setting.system], setting.eta)
        return Trial(setting=setting, seed=seed, num_steps=num_steps)

    def setting(system: str, degree: int, eta: float | None) -> Setting:
        return Setting(system=system, eta=eta, tensor_parallel=degree, num_gpus=space.num_gpus, rho=space.rho)

    degrees = space.degrees_by_gpus[space.num_gpus]
    first = [setting(system, degree, space.first_eta(system)) for degree in reversed(degrees) for system in space.bases]
    outcomes += yield Stage(name="degrees", trials=tuple(trial(each) for each in first), num_needed=len(space.bases))
    best = {system: fastest(outcomes, system) for system in space.bases}

    tried = {outcome.trial.setting for outcome in outcomes}
    by_eta = [replace(best[system], eta=eta) for eta in ETAS for system in space.bases if has_eta(space.bases[system])]
    outcomes += yield Stage(name="eta", trials=tuple(trial(each) for each in by_eta if each not in tried))
    best = {system: fastest(outcomes, system) for system in space.bases}

    elsewhere = [
        replace(best[system], num_gpus=num_gpus, tensor_parallel=nearest_degree(degrees, best[system].tensor_parallel))
        for num_gpus, degrees in space.degrees_by_gpus.items()
        for system in space.ends
        if num_gpus != space.num_gpus
    ]
    outcomes += yield Stage(name="gpus", trials=tuple(trial(each) for each in elsewhere))

    finalists = [replace(best[system], eta=eta) for system in space.bases for eta in space.etas(system)]
    finalists.sort(key=lambda each: each != best[each.system])
    repeats = [trial(each, seed) for seed in range(1, space.num_seeds) for each in finalists]
    outcomes += yield Stage(name="seeds", trials=tuple(repeats), num_needed=len(space.bases))

    if space.varies_rho:
        best = {system: fastest(outcomes, system, space.num_gpus) for system in space.bases}
        other_rhos = [rho for rho in RHOS if rho != space.rho]
        varied = [trial(replace(best[system], rho=rho)) for rho in other_rhos for system in space.ends]
        outcomes += yield Stage(name="rho", trials=tuple(varied))


def fastest(outcomes: Sequence[Outcome], system: str, num_gpus: int | None = None) -> Setting:
    """A system's setting of the least mean step time."""
    times: dict[Setting, list[float]] = {}
    for outcome in outcomes:
        setting = outcome.trial.setting
        if setting.system == system and num_gpus in {None, setting.num_gpus}:
            times.setdefault(setting, []).append(outcome.step_time_s)
    return min(times, key=lambda setting: sum(times[setting]) / len(times[setting]))


def nearest_degree(degrees: Sequence[int], wanted: int) -> int:
    """The degree that fits and is the fewest doublings away; the larger of two."""
    return min(degrees, key=lambda degree: (max(degree, wanted) / min(degree, wanted), -degree))


def count_trials(space: Space) -> int:
    """How many trials the search will ask for."""
    num_systems = len(space.bases)
    num_racing = sum(has_eta(base) for base in space.bases.values())
    num_finalists = num_systems - num_racing + num_racing * len(ETAS)
    return (
        num_systems * len(space.degrees_by_gpus[space.num_gpus])
        + num_racing * (len(ETAS) - 1)
        + len(space.ends) * (len(space.degrees_by_gpus) - 1)
        + num_finalists * (space.num_seeds - 1)
        + (len(space.ends) * sum(rho != space.rho for rho in RHOS) if space.varies_rho else 0)
    )
