"""What a run's folder says of its rollout workers: from their reports and its porter's last look at the queue.

Asks Slurm nothing: the porter in the run's job has, within the last minute.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rollpacker.runtime.job.elastic_folder import ElasticFolder

QUEUE_FILE = "slurm.txt"
"""In the run's elastic folder: a line of id, state, reason and expected start for each element that is in the queue."""


def workers_in_words(run_dir: Path) -> str:
    """Such as `3 in the run, 2 waiting (Resources), wish 4, 5 gone`; empty of a run that takes no workers now."""
    folder = ElasticFolder(run_dir)
    lease = folder.lease()
    if lease is None:
        return ""
    ours = [report for report in folder.reports() if report.attempt == lease.attempt]
    here = [report for report in ours if not (report.has_left or report.mismatch)]
    refused = [report.mismatch for report in ours if report.mismatch]
    words = [f"{len(here)} in the run", *_waiting(folder.path / QUEUE_FILE)]
    if (wish := folder.wished()) is not None:
        words.append(f"wish {wish}")
    if num_gone := len(ours) - len(here) - len(refused):
        words.append(f"{num_gone} gone")
    if refused:
        words.append(f"{len(refused)} refused: {refused[-1]}")
    return ", ".join(words)


def _waiting(queue: Path) -> list[str]:
    try:
        rows = [line.split("|") for line in queue.read_text().splitlines()]
    except OSError:
        return []
    reasons = Counter(row[2] for row in rows if row[1:2] == ["PENDING"])
    return [f"{number} waiting ({reason})" for reason, number in sorted(reasons.items())]
