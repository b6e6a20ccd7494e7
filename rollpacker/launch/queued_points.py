"""Which points of a sweep have their job in the queue, and whether that job trains what the point says.

A job trains what it was submitted with, which is in its pickled call; the record of a run does not exist before it
begins. Settings that change the result may not differ; of the others, those of the job are named.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from pydantic import ValidationError
from submitit.core.utils import DelayedSubmission

from rollpacker.config.fingerprint import differences
from rollpacker.config.keys import legal_keys, value_at
from rollpacker.config.schema import RunConfig
from rollpacker.config.words import counted, shortened, shown
from rollpacker.core.errors import ConfigError, WorldError
from rollpacker.launch.collect_status import collect_status
from rollpacker.launch.job import PointCall
from rollpacker.launch.points import Point
from rollpacker.launch.run_status_view import RunStatusView
from rollpacker.launch.sbatch import call_file, jobs_of, looks_for_workers
from rollpacker.launch.submissions import Submission, read_submission
from rollpacker.runtime.run.run_folder import MAX_DIFFERENCES

_MAY_HAVE_SECRETS = frozenset({"cluster.environment", "cluster.container.environment", "cluster.setup"})
"""Variables and shell commands, whose values are not shown."""


def points_in_queue(points: Sequence[Point]) -> tuple[dict[int, str], dict[int, str]]:
    """Find the points whose jobs are in the queue.

    Returns:
        The number of each point whose job is in the queue, with the job's state, its number and the settings that it
        keeps; and of the other points those whose job is ending although the run has not finished, with its number.

    Raises:
        ConfigError: Jobs would train something else than their points, or nothing.
        WorldError: Points were submitted before, and Slurm does not answer; or a point's `job.json` cannot be read.
    """
    submitted = [point for point in points if read_submission(point.config.run.dir) is not None]
    collected = collect_status([point.config.run.dir for point in submitted])
    if any(view.job is None for view in collected.views):
        raise WorldError(
            f"Some points were submitted before, and Slurm does not say whether they still run. {collected.complaint}",
            "No point is submitted while its job is in the queue.",
            "Launch where Slurm's commands are, and when its controller answers.",
        )
    queued: dict[int, str] = {}
    ending: dict[int, str] = {}
    refused: list[str] = []
    jobs: list[str] = []
    for point, view in zip(submitted, collected.views, strict=True):
        assert view.submission is not None
        if view.job is None or view.job.is_over:
            continue
        if view.state == "ending" and not point.has_finished:
            ending[point.number] = view.job.job_id
            continue
        place = f"{view.state} as job {view.job.job_id}"
        mistake, kept = _compare(point.config, view, view.submission)
        if mistake:
            refused.append(f"{point.title} is {place}, which {mistake}.")
            jobs += jobs_of(view.submission)
        queued[point.number] = f"{place}, which keeps {kept}" if kept else place
    if refused:
        raise ConfigError(
            "\n".join(refused),
            "A job trains what it was submitted with.",
            f"scancel {' '.join(jobs)}, then launch again; or give the settings of these jobs again.",
        )
    return queued, ending


def _compare(config: RunConfig, view: RunStatusView, submission: Submission) -> tuple[str, str]:
    """Why the job of a run does not train this configuration, or else which other settings of its own it keeps."""
    assert view.job is not None
    if view.job.job_id != submission.job_id:  # one that somebody started the run in, later
        return "", ""
    if not call_file(submission).exists():
        return "has no settings: its launch was interrupted" if view.state == "waiting" else "", ""
    submitted = _submitted_config(submission)
    if submitted is None:
        return "", ""
    there, here = submitted.model_dump(mode="json"), config.model_dump(mode="json")
    if other := differences(config, there):
        return f"was submitted with {_listed([f'{each.key}={each.there} (here {each.here})' for each in other])}", ""
    not_kept = ("elastic.job.",) if looks_for_workers(submission) else ()  # its workers are submitted now
    names = (name for name in legal_keys(RunConfig) if not name.startswith(not_kept))
    pairs = ((name, value_at(there, name), value_at(here, name)) for name in names)
    return "", _listed([_kept(name, value) for name, value, given in pairs if value != given])


def _submitted_config(submission: Submission) -> RunConfig | None:
    """What a job trains; None where another version submitted it, whose call or configuration this one cannot read."""
    try:
        call = DelayedSubmission.load(call_file(submission)).function
        assert isinstance(call, PointCall)
        return RunConfig.model_validate(call.values)
    except (pickle.UnpicklingError, EOFError, ImportError, AttributeError, ValidationError):
        return None


def _kept(name: str, value: object) -> str:
    if name in _MAY_HAVE_SECRETS:
        return f"its own {name}"
    return f"{name}={shortened(shown(value))}"


def _listed(keys: Sequence[str]) -> str:
    num_more = len(keys) - MAX_DIFFERENCES
    return ", ".join([*keys[:MAX_DIFFERENCES], *([f"and {counted(num_more, 'key')} more"] if num_more > 0 else [])])
