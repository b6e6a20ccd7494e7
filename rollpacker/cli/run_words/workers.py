"""The rollout workers of a run, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.report.words import plural

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.config.sections.elastic_job import ElasticJobSection
    from rollpacker.config.sections.modelled_workers import ModelledWorkersSection


def worker_words(config: RunConfig, *, is_job: bool) -> str:
    """Say how many rollout workers may come, from where, and what the run's own engines do meanwhile.

    Args:
        config: Of a run that may have some.
        is_job: Whether the run is submitted to Slurm, and its workers with it.
    """
    elastic = config.elastic
    degree = elastic.tensor_parallel or config.engine.tensor_parallel
    shape = f"{plural(elastic.engines_per_worker, 'engine')} of {plural(degree, 'GPU')} each"
    if config.backend.name == "sim":
        source = f"MODELLED: {_availability(elastic.modelled)}; an engine starts in {elastic.modelled.start_s:g} s"
    elif elastic.job is None or not is_job:
        source = f"started by you: python -m rollpacker.launch.worker {config.run.dir}"
    else:
        source = _job(elastic.job, elastic.max_workers)
    lines = [
        f"{elastic.min_workers} to {elastic.max_workers}, with {shape}: they come and go, and no step waits for one",
        source,
    ]
    if elastic.seeding == "off" or not config.system.stream:
        lines.append("the run's own engines generate to the end of each round")
    else:
        window = "a learned time" if elastic.seeding_s is None else f"{elastic.seeding_s:g} s"
        lines.append(
            f"the run's own engines generate for {window} of each round, then are lent to the trainer; they come back "
            f"when no worker, or too few, have served for {elastic.reclaim_after_s:g} s"
        )
    return "\n".join(lines)


def _availability(modelled: ModelledWorkersSection) -> str:
    number = plural(modelled.num_workers, "node")
    match modelled.availability:
        case "constant":
            return f"{number} from the beginning to the end"
        case "staircase":
            return f"one node more every {modelled.period_s:g} s up to {number}, then in turns one less and one more"
        case "file":
            return f"nodes by {modelled.counts}"
        case _:
            times = f"up for {modelled.mean_up_s:g} s and away for {modelled.mean_down_s:g} s on average"
            return f"{number}, {times}"


def _job(job: ElasticJobSection, max_workers: int) -> str:
    from rollpacker.launch.shape import num_elements

    partition = "the run's partition" if job.partition is None else job.partition
    elements = num_elements(job, max_workers)
    limit = f"{job.time_limit_min} minutes"
    if job.least_time_min is not None:
        limit += f", or {job.least_time_min} in a gap"
    return (
        f"a job array of {plural(elements, 'element')} in {partition}, of which as many run as are of use, "
        f"each for {limit}"
    )
