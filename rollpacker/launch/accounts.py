"""What the rollout workers of a run did and cost: the tables `workers` and `allocations`, made whenever one asks.

Nothing is made while the run goes on: its event logs, its tables and Slurm's accounting know it all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rollpacker.config.record import CONFIG_FILE, read_record
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import DataError, StorageFailed
from rollpacker.core.ids import WorkerId
from rollpacker.launch.allocations import Allocation, Prices, RunJobs, accounted, estimated, jobs_of, merged
from rollpacker.metrics.tables import read_table, write_account
from rollpacker.runtime.job.elastic_folder import ElasticFolder
from rollpacker.runtime.placing.actors import have_engines_gpus
from rollpacker.runtime.run.status import read_status
from rollpacker.timeline.worker_lives import element_of, lives_of

if TYPE_CHECKING:
    from rollpacker.timeline.run_tables import RunTables


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The two tables of a run that may have rollout workers, as rows."""

    workers: list[dict[str, Any]]
    allocations: list[dict[str, Any]]

    def write(self, run_dir: Path) -> str:
        """Write both into the run's folder; says in a sentence why that failed, empty if it did not."""
        try:
            write_account(run_dir, "workers", self.workers)
            write_account(run_dir, "allocations", self.allocations)
        except StorageFailed as error:
            return f"The tables workers and allocations were not written: {error.problem}"
        return ""


def accounts_of(tables: RunTables) -> Accounts | None:
    """Make them; None for a run that takes no workers, or without event logs that can be read.

    Raises:
        DataError: Its settings or an event log cannot be read.
    """
    steps = tables.steps
    if "num_workers_wished" not in steps or not steps["num_workers_wished"].notna().any():
        return None
    if not tables.logged.attempts:
        return None
    config = _config_of(tables.run_dir)
    status = read_status(tables.run_dir)
    is_running = status is not None and status.state == "running"
    lives, stays = lives_of(
        tables,
        report_interval_s=config.elastic.report_interval_s,
        keeps_tokens=config.elastic.keeps_tokens,
        is_running=is_running,
    )
    jobs = jobs_of(tables.run_dir)
    nodes = {report.worker: report.node for report in ElasticFolder(tables.run_dir).reports()}
    workers = [
        life.row(job=_job(life.worker, jobs), node=nodes.get(life.worker), is_modelled=tables.is_modelled)
        for life in lives
    ]
    allocations = merged(accounted(jobs) if jobs else [], _known_before(tables.run_dir))
    if not allocations:
        attempts = tables.attempt_spans
        until_s = attempts[-1][1]
        allocations = estimated(
            attempts,
            [(_job(each.worker, jobs), nodes.get(each.worker), each.since_s, each.until_s, until_s) for each in stays],
            num_gpus=status.num_gpus if status else 0,
            gpus_per_worker=_gpus_per_worker(config),
            job=status.job_id if status else None,
            is_running=is_running,
        )
    prices = Prices(
        trainer=config.cluster.price_per_gpu_hour if config.cluster else None,
        worker=config.elastic.price_per_gpu_hour,
    )
    return Accounts(workers=workers, allocations=[each.row(prices) for each in allocations])


def _config_of(run_dir: Path) -> RunConfig:
    try:
        return RunConfig.model_validate(read_record(run_dir))
    except ValidationError as error:
        raise DataError(
            f"{run_dir / CONFIG_FILE} is missing, or another version wrote it",
            "It has the settings of the run's rollout workers, and the prices of GPUs",
            "Copy it again from where the run wrote it, or use the rollpacker that wrote it",
        ) from error


def _job(worker: WorkerId, jobs: RunJobs | None) -> str | None:
    element = element_of(worker)
    return element if jobs is not None and element.partition("_")[0] in jobs.arrays else None


def _gpus_per_worker(config: RunConfig) -> int:
    elastic = config.elastic
    if config.backend.name != "sim" and not have_engines_gpus(config):
        return 0
    return elastic.engines_per_worker * (elastic.tensor_parallel or config.engine.tensor_parallel)


def _known_before(run_dir: Path) -> list[Allocation]:
    """What Slurm's accounting said when it was asked last: not every machine that has the run's folder has Slurm."""
    try:
        rows = read_table(run_dir, "allocations").to_pylist()
    except DataError:
        return []
    return [
        Allocation(**{name: row[name] for name in Allocation.__slots__}) for row in rows if row["source"] == "sacct"
    ]
