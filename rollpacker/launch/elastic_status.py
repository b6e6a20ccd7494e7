"""What a run's folder says of its rollout workers: from their reports and its porter's last look at the queue.

Asks Slurm nothing: the porter in the run's job has, within the last minute. A worker that was killed leaves its report
as it was, so an element of the array is what its newest life says, and gone where it waits in the queue again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rollpacker.core.ids import element_and_life
from rollpacker.runtime.job.elastic_folder import ElasticFolder, WorkerReport

QUEUE_FILE = "slurm.txt"
"""In the run's elastic folder: a line of id, state, reason and expected start for each element that is in the queue."""


def workers_in_words(run_dir: Path) -> str:
    """Such as `3 in the run, 1 joining, 2 waiting (Resources), wish 4, 5 gone`; empty of a run that takes none now."""
    folder = ElasticFolder(run_dir)
    lease = folder.lease()
    if lease is None:
        return ""
    waiting = _waiting(folder.path / QUEUE_FILE)
    ours = sorted(
        (report for report in folder.reports() if report.attempt == lease.attempt),
        key=lambda report: element_and_life(report.worker),
    )
    refused = [report.mismatch for report in ours if report.mismatch]
    here = Counter(report.stage == "in the run" for report in _there(ours, waiting))
    words = [f"{here[True]} in the run"]
    if num_joining := here[False]:
        words.append(f"{num_joining} joining")
    words += [f"{number} waiting ({reason})" for reason, number in sorted(Counter(waiting.values()).items())]
    if (wish := folder.wished()) is not None:
        words.append(f"wish {wish}")
    if num_gone := len(ours) - here.total() - len(refused):
        words.append(f"{num_gone} gone")
    if refused:
        words.append(f"{len(refused)} refused: {refused[-1]}")
    return ", ".join(words)


def _there(reports: Sequence[WorkerReport], waiting: Collection[str]) -> list[WorkerReport]:
    """The newest life of each element, unless it has ended; `reports` are by element and life."""
    newest = {element_and_life(report.worker)[0].removeprefix("e"): report for report in reports}
    return [
        report for element, report in newest.items() if not (report.has_left or report.mismatch or element in waiting)
    ]


def _waiting(queue: Path) -> Mapping[str, str]:
    """Slurm's reason for each element that waits."""
    try:
        rows = [line.split("|") for line in queue.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: row[2] for row in rows if row[1:2] == ["PENDING"]}
