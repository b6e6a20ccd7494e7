"""What a run's folder says of its rollout workers: from their reports and its porter's last look at the queue.

Asks Slurm nothing: the porter in the run's job has, within the last minute. A worker that was killed leaves its report
as it was, so an element of the array is what its newest life says, and gone where it waits in the queue again or is not
there at all. Workers of other arrays than the porter's, and those that a person started, are what they report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rollpacker.core.ids import element_and_life
from rollpacker.runtime.job.elastic_folder import QUEUE_FILE, ElasticFolder, WorkerReport

_PENDING = "PENDING"


def workers_in_words(run_dir: Path) -> str:
    """Such as `3 in the run, 1 joining, 2 waiting (Resources), wish 4, 5 gone`.

    Empty of a run that takes none now, and where its elastic folder cannot be read, as by another user.
    """
    try:
        return _in_words(ElasticFolder(run_dir))
    except OSError:
        return ""


def _in_words(folder: ElasticFolder) -> str:
    lease = folder.lease()
    if lease is None:
        return ""
    arrays, queue = _queue(folder.path / QUEUE_FILE)
    ours = sorted(
        (report for report in folder.current_reports() if report.attempt == lease.attempt),
        key=lambda report: element_and_life(report.worker),
    )
    refused = [report.mismatch for report in ours if report.mismatch]
    here = Counter(report.stage == "in the run" for report in _there(ours, arrays, queue))
    words = [f"{here[True]} in the run"]
    if num_joining := here[False]:
        words.append(f"{num_joining} joining")
    waiting = Counter(reason for state, reason in queue.values() if state == _PENDING)
    words += [f"{number} waiting ({reason})" for reason, number in sorted(waiting.items())]
    if (wish := folder.wished()) is not None:
        words.append(f"wish {wish}")
    if num_gone := len(ours) - here.total() - len(refused):
        words.append(f"{num_gone} gone")
    if refused:
        words.append(f"{len(refused)} refused: {refused[-1]}")
    return ", ".join(words)


def _there(
    reports: Sequence[WorkerReport], arrays: Collection[str], queue: Mapping[str, tuple[str, str]]
) -> list[WorkerReport]:
    """The newest life of each element, unless it has ended; `reports` are by element and life."""
    newest = {element_and_life(report.worker)[0].removeprefix("e"): report for report in reports}
    return [
        report
        for element, report in newest.items()
        if not (report.has_left or report.mismatch)
        and (queue[element][0] != _PENDING if element in queue else _array(element) not in arrays)
    ]


def _array(element: str) -> str:
    return element.partition("_")[0]


def _queue(file: Path) -> tuple[Collection[str], Mapping[str, tuple[str, str]]]:
    """The arrays that were looked for, and state and reason of each element; none where the file cannot be read."""
    try:
        rows = [line.split("|") for line in file.read_text().splitlines()]
    except OSError:
        return (), {}
    arrays = {_array(row[0]) for row in rows if row[0]}
    return arrays, {row[0]: (row[1], row[2]) for row in rows if len(row) > 2}  # noqa: PLR2004  id, state, reason
