"""Who may be a rollout worker of a run: who has its code, and is its user; and when it leaves one."""

from __future__ import annotations

import errno
import math
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import rollpacker
from rollpacker.config.compose import compose
from rollpacker.config.fingerprint import config_fingerprint
from rollpacker.config.record import CONFIG_FILE, read_record, to_yaml
from rollpacker.core.errors import ConfigError, DataError, StorageFailed, WorldError
from rollpacker.core.ids import WorkerId
from rollpacker.launch.elastic_status import workers_in_words
from rollpacker.runtime.job import elastic_folder
from rollpacker.runtime.job.allocation import Allocation
from rollpacker.runtime.job.elastic_folder import (
    ElasticFolder,
    Lease,
    Order,
    WorkerReport,
    fingerprint_here,
)
from rollpacker.runtime.job.signals import ALL_SIGNALS
from rollpacker.runtime.ray import elastic_node
from rollpacker.runtime.ray.elastic_node import Outcome, _Worker
from tests.runtime.allocations import allocation
from tests.runtime.ray.test_other_users import STRANGER, as_stranger

WORKER = WorkerId("e5_0-r0")
URG, TERM, INT = signal.SIGURG, signal.SIGTERM, signal.SIGINT


class WaitingRun:
    """A run that takes workers: its folder, its lease, and somebody who answers where its Ray would."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.folder = ElasticFolder(run_dir)
        self._head = socket.create_server(("127.0.0.1", 0))
        self.words = [
            f"run.dir={run_dir}",
            f"model.path={run_dir}",
            f"data.path={run_dir}",
            "reward=walk",
            "elastic.max_workers=1",
        ]
        config = compose(self.words)
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


@pytest.mark.parametrize("is_record_unknown", [False, True], ids=["same schema", "another schema"])
def test_a_worker_of_another_version_of_the_package_is_refused_with_one_line_and_does_not_come_back(
    run, tmp_path, is_record_unknown
):
    package = Path(rollpacker.__file__).parent
    other = tmp_path / "other" / package.name
    shutil.copytree(package, other, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "core" / "routing.py").open("a") as file:
        file.write("# a later version\n")
    if is_record_unknown:
        record = run.run_dir / CONFIG_FILE
        record.write_text(f"{record.read_text()}section_of_another_version: {{}}\n")
    with run.folder.renewed(run.lease):
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
    waits, line = done.stderr.splitlines()
    assert waits == f"Waiting for a run in {run.run_dir} that takes workers."
    has = f"(the run has {run.lease.fingerprint.code})."
    assert " does not join the run: The worker has another code " in line
    assert line.endswith(has)
    told = workers_in_words(run.run_dir)
    assert told.startswith("0 in the run, 1 refused: The worker has another code ")
    assert told.endswith(has)


def test_a_worker_that_waited_for_a_relaunch_compares_itself_with_the_record_of_the_new_attempt(run):
    before = compose([*run.words, "engine.num_threads=1"])
    run.folder.withdraw_lease()
    (run.run_dir / CONFIG_FILE).write_text(to_yaml(before))
    worker = subprocess.Popen(
        [sys.executable, "-m", "rollpacker.launch.worker", run.run_dir], stderr=subprocess.PIPE, text=True
    )
    wait_until_it_hears_signals(worker.pid)
    now = compose([*run.words, "engine.num_threads=2"])
    assert config_fingerprint(before) == config_fingerprint(now), "it is the same run"
    (run.run_dir / CONFIG_FILE).write_text(to_yaml(now))
    other_python = replace(fingerprint_here(now), python="3.0.0")  # it is refused: there is no Ray to go on to
    with run.folder.renewed(replace(run.lease, fingerprint=other_python)):
        _, said = worker.communicate(timeout=300)
    assert said.endswith(f": The worker has another python {platform.python_version()} (the run has 3.0.0).\n")


def wait_until_it_hears_signals(pid: int) -> None:
    """Until a worker's process waits for a run: it has handlers of its own by then."""
    deadline = time.monotonic() + 300
    while True:
        fields = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        if int(fields["SigCgt"], 16) >> (signal.SIGURG - 1) & 1:
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lend this process another user's rights")
def test_another_user_reads_nothing_of_the_workers_and_what_he_writes_is_not_believed(run):
    run.folder.report(
        WorkerReport(worker=WORKER, attempt="7.0.0", node="n1", stage="in the run", num_engines=1, end_time=None)
    )
    run.folder.order(WORKER, Order(reason="it is surplus", may_return=True))
    run.folder.wish(1)
    everything = [run.folder.path, *run.folder.path.glob("**/*")]
    assert len(everything) == 8
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


LEFT = Order(reason="it is surplus", may_return=True)


class FlakyFolder(ElasticFolder):
    """A shared folder that fails in one way `num_failures` times, and then has an order for the worker."""

    def __init__(self, run: WaitingRun, failure: str, num_failures: int) -> None:
        super().__init__(run.run_dir)
        self._failure, self._num_left = failure, num_failures
        self.reported: list[str] = []

    def _fails(self, failure: str) -> bool:
        if self._failure != failure or not self._num_left:
            return False
        self._num_left -= 1
        return True

    def report(self, report: WorkerReport) -> None:
        if self._fails("a report cannot be written"):
            raise StorageFailed("The folder could not be written.")
        self.reported.append(report.stage)

    def order_of(self, _worker: WorkerId) -> Order | None:
        if self._fails("the folder cannot be listed"):
            raise OSError(errno.ESTALE, "Stale file handle")
        return None if self._num_left else LEFT

    def is_over(self) -> bool:
        if self._fails("the folder cannot be looked at"):
            raise OSError(errno.ESTALE, "Stale file handle")
        return super().is_over()

    def claim_life(self, element: str) -> WorkerId:
        if self._fails("a life cannot be claimed"):
            raise StorageFailed("The folder could not be written.")
        return super().claim_life(element)

    def lease(self) -> Lease | None:
        if self._fails("the lease cannot be looked for"):
            raise OSError(errno.ESTALE, "Stale file handle")
        return None if self._fails("the lease cannot be read") else super().lease()


RAY_STARTED = "Local node IP: 127.0.0.2\nRay runtime started.\n"


@pytest.fixture
def serve(run: WaitingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Outcome | None]]:
    """Let a worker serve a run whose folder fails, as patient as is said; its Ray has joined."""
    monkeypatch.setattr(elastic_node, "_POLL_S", 0)
    handlers = {number: signal.getsignal(number) for number in ALL_SIGNALS}

    def serve(folder: FlakyFolder, patience_s: float, here: Allocation | None = None) -> Outcome | None:
        worker = _Worker(run.run_dir, here, "e5_0", patience_s)
        worker._folder = folder
        (log := tmp_path / "ray.log").write_text(RAY_STARTED)
        joins = WorkerReport(worker=WORKER, attempt=run.lease.attempt, node="n1", stage="joining", num_engines=1)
        return worker._serve(SimpleNamespace(is_running=True, log=log), run.lease, joins)

    yield serve
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("failure", "num_failures"),
    [
        ("a report cannot be written", 3),
        ("the folder cannot be listed", 3),
        ("the folder cannot be looked at", 3),
        ("the lease cannot be looked for", 3),
        ("the lease cannot be read", 1),
    ],
)
def test_a_worker_stays_in_the_run_while_the_shared_folder_fails(run, serve, failure, num_failures):
    folder = FlakyFolder(run, failure, num_failures)
    assert serve(folder, 60) == Outcome.MAY_RETURN  # as it was told in the end
    assert folder.reported == ["in the run"]


def test_a_worker_whose_folder_fails_for_longer_than_its_patience_ends_with_the_reason(run, serve):
    with pytest.raises(StorageFailed):
        serve(FlakyFolder(run, "a report cannot be written", 10**9), 0)
    with pytest.raises(OSError, match="Stale"):
        serve(FlakyFolder(run, "the folder cannot be listed", 10**9), 0)


def test_a_worker_leaves_a_run_that_withdrew_its_lease_or_goes_on_in_another_attempt(run, serve):
    folder = FlakyFolder(run, "nothing", 1)  # no order comes
    run.folder.give_lease(replace(run.lease, attempt="7.0.1"))
    assert serve(folder, 60) is None
    run.folder.withdraw_lease()
    assert serve(folder, 60) is None


@pytest.mark.usefixtures("serve")
@pytest.mark.parametrize("failure", ["the folder cannot be looked at", "the lease cannot be looked for"])
def test_a_worker_that_waits_for_a_run_looks_again_at_a_folder_that_fails(run, failure):
    run.folder.withdraw_lease()
    worker = _Worker(run.run_dir, None, "e5_0", 0.1)
    worker._folder = FlakyFolder(run, failure, 3)
    assert worker.run() == Outcome.NO_RUN


@pytest.mark.usefixtures("serve")
@pytest.mark.parametrize("failure", ["a life cannot be claimed", "a report cannot be written"])
def test_a_worker_that_joins_a_run_tries_again_while_the_shared_folder_fails_and_is_patient(run, monkeypatch, failure):
    monkeypatch.setattr(elastic_folder, "RENEWAL_S", 0.01)
    unlike = replace(run.lease, fingerprint=replace(run.lease.fingerprint, python="3.0.0"))  # no Ray is needed
    patient, hasty = (_Worker(run.run_dir, None, "e5_0", each) for each in (60, 1))
    patient._folder, hasty._folder = FlakyFolder(run, failure, 3), FlakyFolder(run, failure, 10**9)
    with run.folder.renewed(unlike):
        assert patient.run() == Outcome.ENDS
        assert patient._folder.reported == ["joining"]
        with pytest.raises(StorageFailed):
            hasty.run()


@pytest.mark.usefixtures("serve")
def test_a_worker_whose_log_cannot_be_written_starts_ray_again_in_another_life(run, monkeypatch):
    nodes = []

    class Node(SimpleNamespace):
        def join(self, *_args: object) -> None:
            if len(nodes) < 3:
                raise OSError(errno.ESTALE, "Stale file handle")
            self.log.write_text(RAY_STARTED)

    def node_here(_config: object, _allocation: object, log: Path, worker: WorkerId) -> Node:
        nodes.append(Node(name=worker, log=log, is_running=True, stop=lambda: None))
        return nodes[-1]

    monkeypatch.setattr(elastic_folder, "RENEWAL_S", 0.01)
    monkeypatch.setattr(elastic_node, "node_here", node_here)
    worker = _Worker(run.run_dir, None, "e5_0", 60)
    worker._folder = FlakyFolder(run, "nothing", 0)
    with run.folder.renewed(run.lease):
        assert worker.run() == Outcome.MAY_RETURN
    assert [node.name for node in nodes] == ["e5_0-r0", "e5_0-r1", "e5_0-r2"]
    assert worker._folder.reported == [*("joining", "gone"), *("joining", "gone"), *("joining", "in the run", "gone")]


@pytest.mark.usefixtures("serve")
def test_a_worker_reads_the_record_of_the_run_again_where_it_could_not_be_read(run, monkeypatch):
    errors = [None, DataError("config.yaml cannot be read.")]  # None: for a moment it is not there

    def read_late(run_dir: Path) -> object:
        if not errors:
            return read_record(run_dir)
        if (error := errors.pop()) is not None:
            raise error
        return None

    monkeypatch.setattr(elastic_folder, "RENEWAL_S", 0.01)
    monkeypatch.setattr(elastic_node, "read_record", read_late)
    worker = _Worker(run.run_dir, None, "e5_0", 60)
    with run.folder.renewed(replace(run.lease, fingerprint=replace(run.lease.fingerprint, engine="another"))):
        assert worker.run() == Outcome.ENDS
    assert not errors
    assert [report.mismatch.split()[4] for report in run.folder.reports()] == ["engine"]


@pytest.mark.usefixtures("serve")
def test_a_worker_joins_no_run_whose_head_has_died_whoever_listens_at_its_address_by_now(run, monkeypatch):
    monkeypatch.setattr(elastic_folder, "RENEWAL_S", 0.01)
    assert run.folder.lease() == run.lease, "it was left behind"
    hasty, patient = (_Worker(run.run_dir, None, "e5_0", each) for each in (0.1, 60))
    assert hasty.run() == Outcome.NO_RUN
    assert list(run.folder.reports()) == []
    with run.folder.renewed(run.lease):
        joined = patient._wait_for_lease()
    assert joined == replace(run.lease, num_renewals=joined.num_renewals)


@pytest.mark.usefixtures("serve")
def test_a_lease_that_could_not_be_read_for_a_moment_was_not_renewed(run):
    worker = _Worker(run.run_dir, None, "e5_0", 0.1)
    worker._folder = FlakyFolder(run, "the lease cannot be read", 3)
    assert worker.run() == Outcome.NO_RUN


@pytest.mark.usefixtures("serve")
def test_a_worker_is_in_the_run_once_its_ray_is_and_one_whose_ray_never_joins_is_refused_and_counted(
    run, tmp_path, monkeypatch
):
    log, stages, offer = tmp_path / "ray.log", [], SimpleNamespace(name="n1")

    class Node:
        """Ray that says so when it has joined, and ends some looks later."""

        def __init__(self, num_looks_until_it_joins: float) -> None:
            self.log, self.offer, self._num_looks, self._joins_at = log, offer, 0, num_looks_until_it_joins
            log.write_text("Local node IP: 127.0.0.2\n")

        @property
        def is_running(self) -> bool:
            stages.extend(report.stage for report in run.folder.reports())
            self._num_looks += 1
            if self._num_looks == self._joins_at:
                log.write_text(RAY_STARTED)
            return self._num_looks < 4

        def stop(self) -> None:
            pass

    monkeypatch.setattr(_Worker, "_join", lambda *_: nodes.pop(0))
    monkeypatch.setattr(elastic_folder, "RENEWAL_S", 0.01)
    nodes = [Node(2)]
    with run.folder.renewed(run.lease):
        assert _Worker(run.run_dir, None, "e5_0", 60).run() == Outcome.MAY_RETURN
    assert stages == ["joining", "joining", "in the run", "in the run"]
    nodes = [Node(math.inf)]
    with run.folder.renewed(run.lease):
        assert _Worker(run.run_dir, None, "e5_1", 60).run() == Outcome.NOT_JOINED
        told = workers_in_words(run.run_dir)
    refusal = f"Ray ended on {socket.gethostname()} before it had joined that of the run."
    assert told == f"0 in the run, 1 gone, 1 refused: {refusal}"


@pytest.mark.usefixtures("serve")
@pytest.mark.parametrize("kind", [ConfigError, WorldError])
def test_a_worker_on_a_node_that_is_unfit_is_refused(run, monkeypatch, capsys, kind):
    error = kind("cluster.network_interface=ib7 has no IPv4 address on n1.", "Its interfaces are lo.")

    def node_here(*_: object) -> None:
        raise error

    monkeypatch.setattr(elastic_folder, "RENEWAL_S", 0.01)
    monkeypatch.setattr(elastic_node, "node_here", node_here)
    with run.folder.renewed(run.lease):
        assert _Worker(run.run_dir, None, "e5_0", 60).run() == Outcome.ENDS
        told = workers_in_words(run.run_dir)
    assert told == f"0 in the run, 1 refused: {error.problem} {error.allowed}"
    assert error.problem in capsys.readouterr().err


@pytest.mark.usefixtures("serve")
@pytest.mark.parametrize(
    ("number", "remaining_s", "leaves_s"),
    [(URG, 120, 90), (URG, 900, 15), (TERM, 120, 15), (TERM, 40, 10)],
)
def test_a_worker_leaves_half_a_minute_before_its_time_limit_and_sooner_where_its_grace_is_shorter(
    run, tmp_path, number, remaining_s, leaves_s
):
    now = time.time()
    worker = _Worker(run.run_dir, allocation(tmp_path, end_time=now + remaining_s, grace_s=15.0), "e5_0", 60)
    signal.raise_signal(number)
    assert worker._end_time == pytest.approx(now + leaves_s, abs=2)
    assert worker.run() == Outcome.MAY_RETURN


@pytest.mark.parametrize("signals", [[URG], [INT, INT]], ids=["its time is over", "a second signal"])
def test_a_worker_with_a_notice_leaves_by_itself(run, tmp_path, serve, capsys, signals):
    folder = FlakyFolder(run, "nothing", 1)  # no order comes

    def report(stay: WorkerReport) -> None:
        reported.append(stay)
        if signals:
            signal.raise_signal(signals.pop(0))

    reported: list[WorkerReport] = []
    folder.report = report
    here = allocation(tmp_path, grace_s=0.05) if signals == [URG] else None
    assert serve(folder, 60, here) == Outcome.MAY_RETURN
    assert not signals
    assert reported[-1].end_time is not None
    assert "The time to leave is over." in capsys.readouterr().err


@pytest.mark.usefixtures("serve")
def test_a_run_that_was_over_before_a_worker_came_may_be_resumed(run, monkeypatch, capsys):
    run.folder.finish()
    worker = _Worker(run.run_dir, None, "e5_0", 0.1)
    assert worker.run() == Outcome.NO_RUN
    assert "No run has taken this worker for 0.1 s." in capsys.readouterr().err
    run.folder.reopen()
    assert worker.run() == Outcome.NO_RUN
    run.folder.finish()
    assert worker.run() == Outcome.ENDS
    assert "The run has ended." in capsys.readouterr().err
