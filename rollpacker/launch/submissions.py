"""The last Slurm job of a run: `job.json` in its folder.

Written once the job has its number and replaced by a later submission, so that the same sweep is not submitted twice,
and the job, its script and its logs can be found from the folder. Of submissions before it the folders are kept, where
the numbers of their workers' arrays are.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from rollpacker.core.errors import WorldError
from rollpacker.launch.sbatch_script import ENVIRONMENTS_LOG_SUFFIX
from rollpacker.metrics.files import make_private_folder, write_atomically
from rollpacker.paths import read_bytes

JOB_FILE = "job.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What `job.json` holds."""

    job_id: str
    """As every command of Slurm takes it; an element of an array as 12_3."""
    folder: Path
    """Of the script, the pickled call and the logs. Absolute."""
    num_nodes: int
    """One rank and one log for each; those of environments come on top."""
    submitted_at: float
    """Seconds since the epoch."""
    cluster: str | None = None
    """That Slurm is asked about, as SLURM_CLUSTERS named it; empty where it named none. None: it is not known."""
    earlier_folders: tuple[Path, ...] = ()
    """Of submissions before this one, from other sweeps; `write_submission` fills them in."""

    @property
    def script(self) -> Path:
        """What sbatch was given; an array has one for all of its elements."""
        return self.folder / f"{self.job_id.partition('_')[0]}_submission.sh"

    @property
    def logs(self) -> tuple[Path, ...]:
        """Of every rank, rank 0 first; a requeued job writes on in the same files."""
        ranks = (self.folder / f"{self.job_id}_{rank}_log.out" for rank in range(self.num_nodes))
        return (*ranks, *sorted(self.folder.glob(f"{self.job_id}_*{ENVIRONMENTS_LOG_SUFFIX}")))


_SUBMISSION = TypeAdapter(Submission)


def write_submission(run_dir: Path, submission: Submission) -> None:
    """Replace the submission of a run; makes the run's folder where there is none yet."""
    make_private_folder(run_dir)
    before = read_submission(run_dir)
    earlier = dict.fromkeys([*before.earlier_folders, before.folder] if before else [])
    earlier.pop(submission.folder, None)
    content = asdict(submission) | {"folder": str(submission.folder), "earlier_folders": [*map(str, earlier)]}
    write_atomically(run_dir / JOB_FILE, (json.dumps(content, indent=1) + "\n").encode())


def read_submission(run_dir: Path) -> Submission | None:
    """Read the submission of a run; None when it was never submitted.

    Raises:
        WorldError: It cannot be read, is damaged, or is of another version.
    """
    file = run_dir / JOB_FILE
    try:
        return _SUBMISSION.validate_json(read_bytes(file), strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is damaged, or another version wrote it"
        raise WorldError(
            f"{file} cannot be read: {reason}",
            "It names the job of the run, and no run is submitted while its job is in the queue.",
            "Make it readable; or remove it, once `squeue --me` lists no job of this run.",
        ) from error
