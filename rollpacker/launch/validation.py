"""Validates the runs and jobs of a sweep before the first one is submitted.

All mistakes of all points are reported together, and nothing is created. Where there is no scontrol, the jobs are not
compared with the cluster (`site_mistakes.py`), and a note says so. A dry run takes an unreachable controller for the
same; without a cluster, it does not look at file systems either: this machine may be none of the cluster's.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rollpacker.config.mistakes import collected, raise_mistakes
from rollpacker.config.multirun import Sweep, mistakes_of_points
from rollpacker.config.names_in_slurm import OWN_OPTIONS
from rollpacker.config.schema import RunConfig
from rollpacker.config.words import counted, in_hydra
from rollpacker.core.errors import ConfigError, UserError, WorldError
from rollpacker.launch.batches import FOLDER, batch_folder, batch_script, batches
from rollpacker.launch.container import check_container
from rollpacker.launch.elastic_script import OWN_OPTIONS_OF_WORKERS
from rollpacker.launch.file_systems import FileSystem, file_system_of
from rollpacker.launch.points import Point, points_of
from rollpacker.launch.sbatch_script import gpus_in_gres
from rollpacker.launch.shape import JobShape, job_shape, num_elements, ray_size, workers_shape
from rollpacker.launch.site import Site, read_site
from rollpacker.launch.site_mistakes import site_mistakes
from rollpacker.launch.slurm_commands import has_slurm, named_cluster
from rollpacker.launch.submission_environment import as_submitted, given_by_variables
from rollpacker.runtime.job.allocation import surrounding_images
from rollpacker.runtime.placing.actors import ClusterSize
from rollpacker.runtime.run.preflight import RealRunFacts, ResolvedRun, RunFactsOf
from rollpacker.runtime.run.preflight import validate as validate_run

_SECONDS_PER_MINUTE = 60
_NAMED_TO_SBATCH_ALONE = (
    "Jobs would go to a cluster where they are not looked for, and be submitted twice: squeue and scancel know the "
    "cluster by SLURM_CLUSTERS."
)


def validate_sweep(sweep: Sweep, run_facts_of: RunFactsOf) -> tuple[ResolvedRun, ...]:
    """Validate every point of a sweep for what it would run on: this machine, or jobs when our launcher submits it.

    Raises:
        UserError: Everything that is wrong, what points share once.
        WorldError: Slurm is here, but does not answer; a dry run goes on without it.
    """
    points, settings = points_of(sweep), sweep.launcher
    are_jobs = settings is not None and settings.is_for_slurm
    of_points: list[list[UserError]] = [[] for _ in points]
    resolved_runs: list[ResolvedRun] = []
    for point, own in zip(points, of_points, strict=True):
        with collected(own):
            resolved_runs.append(validate_run(point.config, _in_jobs(run_facts_of) if are_jobs else run_facts_of))
    mistakes = mistakes_of_points(of_points) or list(_shared_folder_mistakes(sweep))
    if settings is None or not are_jobs:
        raise_mistakes(mistakes)
        return tuple(resolved_runs)
    site, unchecked = _site(is_dry_run=settings.dry_run)
    mistakes.extend(_pattern_mistakes(sweep.folder))
    mistakes.extend(_launch_mistakes(points, site, is_dry_run=settings.dry_run))
    raise_mistakes(mistakes)
    raise_mistakes(list(_array_mistakes(points, site)))
    for batch in batches(points):
        batch_script(batch, settings, sweep.folder)  # refuses what cannot be bound into a container
    notes = (*unchecked, *_notes(points, site, is_dry_run=settings.dry_run))
    return tuple(replace(resolved, notes=(*notes, *resolved.notes)) for resolved in resolved_runs)


class _JobFacts(RealRunFacts):
    """The facts of a real run on the nodes of its job, of which this machine need not be one."""

    is_here = False

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._job_config = config

    def cluster(self) -> ClusterSize:
        return ray_size(self._job_config)


def _in_jobs(run_facts_of: RunFactsOf) -> RunFactsOf:
    return lambda config: (
        _JobFacts(config) if config.backend.name == "ray" and config.cluster is not None else run_facts_of(config)
    )


def _site(*, is_dry_run: bool) -> tuple[Site | None, tuple[str, ...]]:
    """Ask Slurm for this cluster; None where it cannot be asked, with a note of what is not checked then."""
    if any(_other_cluster_mistakes(os.environ)):
        return None, ()
    reason = "sbatch, scontrol and squeue are not all here."
    if has_slurm():
        try:
            return read_site(), ()
        except WorldError as error:
            if not is_dry_run:
                remedy = f"{error.remedy} hydra.launcher.dry_run=true goes on without it, and submits nothing."
                raise WorldError(error.problem, error.allowed, remedy) from error
            reason = error.problem
    unchecked = "partitions, their limits and nodes" + (", and whether every node sees run.dir" if is_dry_run else "")
    return None, (f"The jobs were not checked against a cluster ({unchecked}): {reason}",)


def _launch_mistakes(points: Sequence[Point], site: Site | None, *, is_dry_run: bool) -> Iterator[UserError]:
    if not is_dry_run and shutil.which("sbatch") is None:
        yield ConfigError(
            "There is no command `sbatch` here.",
            "hydra/launcher=slurm submits by it; a container has to bind it.",
            "Go to a login node, load the module of Slurm, or choose hydra.launcher.executor=local; "
            "hydra.launcher.dry_run=true prints the scripts here.",
        )
    yield from _other_cluster_mistakes(os.environ)
    if site is not None or not is_dry_run:
        yield from _folder_mistakes(points)
    yield from _job_mistakes(points, site)


def _notes(points: Sequence[Point], site: Site | None, *, is_dry_run: bool) -> Iterator[str]:
    """Tell what cannot be known before the jobs run."""
    if site is not None or not is_dry_run:
        for file_system, run_dir in _file_systems(points).items():
            if file_system.is_shared is None:
                yield (
                    f"run.dir={run_dir} lies on {file_system}, a type that does not say whether every node sees it at "
                    "the same path, as jobs need: `rollpacker doctor` in a job tries it. If so, "
                    "cluster.has_shared_files=true says it."
                )
    clusters = [point.config.cluster for point in points if point.config.cluster is not None]
    names = [cluster.partition or given_by_variables(cluster, os.environ).get("partition") for cluster in clusters]
    if site is not None and site.chooses_partition and None in names:
        yield (
            f"cluster.partition=null leaves the choice to Slurm's JobSubmitPlugins={site.settings['JobSubmitPlugins']}:"
            " it is only known that some partition takes the job."
        )


def _array_mistakes(points: Sequence[Point], site: Site | None) -> Iterator[UserError]:
    if site is None:
        return
    largest = max(1, site.max_array_size)
    to_do = [point for point in points if not point.has_finished]
    for batch in batches(to_do):
        if len(batch.points) > largest:
            yield ConfigError(
                f"{len(batch.points)} points share an array of jobs.",
                f"This Slurm takes {counted(largest, 'point')} of one shape at once "
                f"(MaxArraySize={site.max_array_size}).",
                "Give fewer points at once, and the others when these are submitted.",
            )
    for config in (point.config for point in to_do):
        job = config.elastic.job
        if job is None or workers_shape(config) is None:
            continue
        elements = num_elements(job, config.elastic.max_workers)
        if elements > site.max_array_size:
            yield ConfigError(
                f"The rollout workers of a run are an array of {counted(elements, 'job')}.",
                f"This Slurm takes {site.max_array_size} (MaxArraySize).",
                f"Set elastic.job.num_elements={site.max_array_size} or less."
                if site.max_array_size
                else "Set elastic.job=null, which submits no workers.",
            )


def _job_mistakes(points: Sequence[Point], site: Site | None) -> Iterator[UserError]:
    image = next(iter(surrounding_images(os.environ).values()), None)
    for point in points:
        config, cluster = point.config, point.config.cluster
        if cluster is None:
            yield ConfigError(
                "hydra/launcher=slurm without a cluster.",
                "A job asks for what the point's section `cluster` says.",
                "Choose an option of the group, such as cluster=slurm, and set what the job needs.",
            )
            continue
        if image is not None and cluster.container.image is None:
            yield ConfigError(
                f"This process runs in the image {image}, and cluster.container.image=null.",
                "The nodes would look for its Python outside of it.",
                f"Write {shlex.quote(f'hydra.launcher.container={in_hydra(str(image))}')}",
            )
        yield from _option_mistakes(cluster.sbatch, "cluster")
        yield from _option_mistakes(cluster.environment_nodes.sbatch, "cluster.environment_nodes")
        shape, workers = JobShape(num_nodes=1, cluster=cluster), workers_shape(config)
        yield from _gres_mistakes(shape)
        if shape.beside is not None:
            yield from _gres_mistakes(shape.beside)
        if workers is not None:
            yield from _option_mistakes(workers.cluster.sbatch, workers.section, OWN_OPTIONS_OF_WORKERS)
            yield from _gres_mistakes(workers)
        yield from _time_mistakes(as_submitted(shape, os.environ))
        yield from check_container(cluster.container, cluster.setup)
        if site is not None:
            try:
                yield from site_mistakes(as_submitted(job_shape(config), os.environ), site)
            except ConfigError:
                continue  # the actors find no room, which the validation of the run reports
            if workers is not None:
                yield from site_mistakes(as_submitted(workers, os.environ), site)


def _other_cluster_mistakes(environment: Mapping[str, str]) -> Iterator[UserError]:
    named = named_cluster(environment)
    if named == "all" or "," in named:
        yield ConfigError(
            f"SLURM_CLUSTERS={named} names several clusters.",
            "sbatch would choose one for each job; a job is looked for, and its rollout workers run, on the same one.",
            "export SLURM_CLUSTERS=... with one name",
        )
        return
    clusters = environment.get("SBATCH_CLUSTERS")
    if clusters and clusters != named:
        yield ConfigError(
            f"SBATCH_CLUSTERS={clusters}, and SLURM_CLUSTERS={named or '(not set)'}.",
            _NAMED_TO_SBATCH_ALONE,
            f"export SLURM_CLUSTERS={clusters}",
        )


def _option_mistakes(options: Iterable[str], section: str, also: Collection[str] = ()) -> Iterator[UserError]:
    for name in options:
        if name == "clusters":
            yield ConfigError(
                f"{section}.sbatch names --clusters.",
                _NAMED_TO_SBATCH_ALONE,
                f"Leave out {section}.sbatch.clusters, and export SLURM_CLUSTERS=... instead.",
            )
        elif name in OWN_OPTIONS or name in also:
            key = OWN_OPTIONS.get(name)
            yield ConfigError(
                f"{section}.sbatch names --{name}, which RollPacker sets itself.",
                "It takes options of sbatch that have no key of their own.",
                f"Write {key}=..." if key and section == "cluster" else f"Leave out {section}.sbatch.{name}",
            )
        elif not re.fullmatch(r"[a-z][a-z0-9-]+", name):
            yield ConfigError(
                f"{section}.sbatch names `{name}`.",
                "It takes options of sbatch by their long names, without leading dashes.",
                f"Write {section}.sbatch={{reservation: maintenance}}",
            )


def _gres_mistakes(shape: JobShape) -> Iterator[UserError]:
    """Report GPUs that Slurm would give to the job, and of which the run would not know."""
    section, number, kind = shape.section, shape.cluster.gpus_per_node, shape.cluster.gpu_type
    gres = shape.cluster.sbatch.get("gres", "")
    asked, typed = gpus_in_gres(gres), f"{re.escape(kind)}:" if kind else "([^:=]+:)?"
    if not asked or (number and re.fullmatch(f"gpu:{typed}{number}", ",".join(asked))):
        return
    of_type = f" of the type {kind}" if number and kind else ""
    yield ConfigError(
        f"{section}.sbatch.gres={gres}, and the run has {number or 'no'} GPUs on each of these nodes{of_type}.",
        "It may ask for the same GPUs once more, for a Slurm without --gpus-per-node, and for no others.",
        f"Set {shape.key('gpus_per_node')} to their number; without gres, too, Slurm gives as many."
        if section == "cluster"
        else f"Leave GPUs out of {section}.sbatch.gres",
    )


def _time_mistakes(shape: JobShape) -> Iterator[UserError]:
    cluster, key = shape.cluster, shape.key("time_limit_min")
    if cluster.time_limit_min and cluster.time_limit_min * _SECONDS_PER_MINUTE <= cluster.signal_lead_s:
        yield ConfigError(
            f"{key}={cluster.time_limit_min} is no longer than cluster.signal_lead_s={cluster.signal_lead_s}.",
            "The job is signalled that long before its limit, so it would be signalled at its start.",
            f"Raise {key}, or lower cluster.signal_lead_s.",
        )


def _shared_folder_mistakes(sweep: Sweep) -> Iterator[UserError]:
    """Report that this user may not write the files of a launch into the folder that the points share.

    Where a point cannot make its own folder there, that point's mistake says so. The record is replaced, so the folder
    must be writable and the record this user's.
    """
    folder = sweep.folder.resolve()
    record = folder / "multirun.yaml"
    for place in (folder, record, *([folder / FOLDER] if sweep.launcher is not None else [])):
        if not os.access(place, os.F_OK):
            continue
        is_of_another = place == record and place.stat().st_uid != os.geteuid() != 0
        if is_of_another or not os.access(place, os.W_OK, effective_ids=True):
            yield ConfigError(
                f"{place} is another user's." if is_of_another else f"{place} does not let you write.",
                "The folder that the points share takes the scripts and the record of a launch, of one user alone.",
                f"Choose a run.dir one folder deeper: run.dir={folder}/NAME/...",
            )
            return


def _pattern_mistakes(folder: Path) -> Iterator[UserError]:
    """Report what submitit replaces in the path of a call, or sbatch in that of a log: they would be elsewhere."""
    if found := re.search(r"%[Aajt]|\\", str(batch_folder(folder))):
        yield ConfigError(
            f"The path of {folder.resolve()} has {found[0]} in it.",
            "%A, %a, %j and %t stand for numbers of a job there, and \\ keeps Slurm from replacing any: its ranks "
            "would not find their scripts, or the folder of their logs.",
            "Choose a run.dir without it.",
        )


def _file_systems(points: Sequence[Point]) -> dict[FileSystem, Path]:
    """Where the runs of jobs write, each with the first run.dir there; none of those that are said to be shared."""
    found: dict[FileSystem, Path] = {}
    for config in (point.config for point in points):
        if config.cluster is not None and not config.cluster.has_shared_files:
            found.setdefault(file_system_of(config.run.dir), config.run.dir)
    return found


def _folder_mistakes(points: Sequence[Point]) -> Iterator[UserError]:
    for file_system, run_dir in _file_systems(points).items():
        if file_system.is_shared is False:
            yield ConfigError(
                f"run.dir={run_dir} lies on {file_system}, which other machines probably do not see.",
                "Every node of a job writes and reads there, and so does the next attempt on other nodes.",
                "Choose a run.dir on the cluster's shared file system. If all nodes do see this one, at the same path, "
                "set cluster.has_shared_files=true",
            )
