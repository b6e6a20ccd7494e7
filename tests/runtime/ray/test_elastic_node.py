"""Who may be a rollout worker of a run: who has its code, and is its user."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollpacker
from rollpacker.config.compose import compose
from rollpacker.config.record import CONFIG_FILE, to_yaml
from rollpacker.core.ids import WorkerId
from rollpacker.launch.elastic_status import workers_in_words
from rollpacker.runtime.job.elastic_folder import ElasticFolder, Lease, Order, WorkerReport, fingerprint_here
from rollpacker.runtime.ray.elastic_node import Outcome
from tests.runtime.ray.test_other_users import STRANGER, as_stranger

WORKER = WorkerId("e5_0-r0")


class WaitingRun:
    """A run that takes workers: its folder, its lease, and somebody who answers where its Ray would."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.folder = ElasticFolder(run_dir)
        self._head = socket.create_server(("127.0.0.1", 0))
        config = compose(
            [
                f"run.dir={run_dir}",
                f"model.path={run_dir}",
                f"data.path={run_dir}",
                "reward=walk",
                "elastic.max_workers=1",
            ]
        )
        self.folder.open()
        (run_dir / CONFIG_FILE).write_text(to_yaml(config))
        self.lease = Lease(
            attempt="7.0.0",
            head_address=f"127.0.0.1:{self._head.getsockname()[1]}",
            token_file=run_dir / "token",
            fingerprint=fingerprint_here(config),
        )
        self.folder.give_lease(self.lease)

    def close(self) -> None:
        self._head.close()


@pytest.fixture
def run() -> Iterator[WaitingRun]:
    folder = Path(tempfile.mkdtemp(prefix="run-", dir="/tmp"))
    folder.chmod(0o755)  # others may come as far as the run's own folders
    waiting = WaitingRun(folder / "run")
    yield waiting
    waiting.close()
    shutil.rmtree(folder)


def test_a_worker_of_another_version_of_the_package_is_refused_with_one_line_and_does_not_come_back(run, tmp_path):
    package = Path(rollpacker.__file__).parent
    other = tmp_path / "other" / package.name
    shutil.copytree(package, other, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "core" / "routing.py").open("a") as file:
        file.write("# a later version\n")
    done = subprocess.run(
        [sys.executable, "-m", "rollpacker.launch.worker", run.run_dir],
        cwd=other.parent,
        env={**os.environ, "PYTHONPATH": str(other.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == Outcome.ENDS
    [line] = done.stderr.splitlines()
    has = f"(the run has {run.lease.fingerprint.code})."
    assert " does not join the run: The worker has another code " in line
    assert line.endswith(has)
    told = workers_in_words(run.run_dir)
    assert told.startswith("0 in the run, 1 refused: The worker has another code ")
    assert told.endswith(has)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lend this process another user's rights")
def test_another_user_reads_nothing_of_the_workers_and_what_he_writes_is_not_believed(run):
    run.folder.report(
        WorkerReport(worker=WORKER, attempt="7.0.0", node="n1", stage="in the run", num_engines=1, end_time=None)
    )
    run.folder.order(WORKER, Order(reason="it is surplus", may_return=True))
    run.folder.wish(1)
    everything = [run.folder.path, *run.folder.path.glob("**/*")]
    assert len(everything) == 7
    for place in everything:
        assert "denied" in as_stranger("ls", place)
        assert "denied" in as_stranger("touch", place / "new" if place.is_dir() else place)
    assert run.folder.lease() == run.lease
    assert [report.worker for report in run.folder.reports()] == [WORKER]
    for place in everything:  # as if its folder had been opened to him
        os.chown(place, STRANGER, STRANGER)
    assert run.folder.lease() is None
    assert run.folder.order_of(WORKER) is None
    assert list(run.folder.reports()) == []
