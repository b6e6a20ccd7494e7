"""Rollout workers beside a run on this machine: they join its Ray, generate, die, and leave with it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.commands import EndRound, Evict, LendEngines, ReclaimEngines
from rollpacker.core.errors import EXIT_INTERRUPTED, Preempted
from rollpacker.core.events import EngineLost, EnginesReturned, EngineUpdated, ResponseEvicted, WorkerLeft
from rollpacker.metrics.event_log import attempt_paths
from rollpacker.pipeline import train
from rollpacker.runtime.job.elastic_folder import ElasticFolder
from rollpacker.runtime.job.preemption import Preemption
from rollpacker.runtime.ray.backend import RayBackend
from rollpacker.runtime.rollout.replay import replay
from tests.e2e.launched import UNHURRIED, LaunchedRun, num_recorded_steps, rows, small_run, trained_prompts
from tests.e2e.processes import MARK, ProcessesOfRun, named_in_logs
from tests.e2e.slow_model import make_slow_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PATIENCE_S = 240


def elastic_words(inputs, *overrides):
    return small_run(
        inputs,
        "system=verl",
        "engine.num_engines=1",
        "engine.max_num_seqs=2",
        "elastic.max_workers=2",
        "elastic.least_stay_s=0",
        "elastic.seeding=off",
        "elastic.max_pending=1",
        "run.num_epochs=null",
        "run.num_steps=100000",
        *overrides,
    )


class Worker:
    """A worker's process, and all that it starts, under a mark."""

    def __init__(self, run_dir, mark) -> None:
        self.mark = mark
        self.run_dir = run_dir
        self.log = run_dir.with_suffix(f".worker-{time.monotonic_ns()}.log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rollpacker.launch.worker", run_dir],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {MARK: mark, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def vanish(self):
        """As with its node: nothing of it says a last word."""
        ProcessesOfRun(self.mark).send(signal.SIGKILL)
        self.process.wait()

    def freeze(self):
        """As if its node hung."""
        ProcessesOfRun(self.mark).send(signal.SIGSTOP)

    def engine(self) -> int:
        """The process of its engine, by that one's log."""
        [pid] = [
            named.own_pid
            for name, named in named_in_logs(self.run_dir).items()
            if name.startswith(f"e{self.process.pid}_")
        ]
        return pid

    def output(self) -> str:
        return self.log.read_text(errors="replace")


def until(condition, run, *workers):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        said = "\n".join(worker.output() for worker in workers)
        assert run.process.poll() is None, f"{run.output()}\n{said}"
        assert time.monotonic() < deadline, f"{run.output()}\n{said}"
        time.sleep(0.5)  # a look may read whole tables


def members_of(run):
    return {row["engine"] for row in rows(run.run_dir, "responses")} - {"engine-0"}


def test_a_worker_serves_and_is_killed_another_comes_and_leaves_with_the_run(inputs, tmp_path):
    run = LaunchedRun(tmp_path / "run", *elastic_words(inputs, *UNHURRIED))
    first = Worker(run.run_dir, run.mark)
    until(lambda: num_recorded_steps(run.run_dir) >= 1 and members_of(run), run, first)
    of_first = members_of(run)
    assert [report.stage for report in ElasticFolder(run.run_dir).current_reports()] == ["in the run"]
    os.kill(first.process.pid, signal.SIGKILL)  # its guardian ends Ray there
    steps = num_recorded_steps(run.run_dir)
    second = Worker(run.run_dir, run.mark)
    until(lambda: num_recorded_steps(run.run_dir) > steps and members_of(run) > of_first, run, second)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == EXIT_INTERRUPTED, run.output()
    assert second.process.wait(timeout=60) == 0, second.output()
    trained = trained_prompts(run.run_dir)
    assert len(trained) == len(set(trained))
    for log in attempt_paths(run.run_dir):
        assert log.exists()
    replay(run.run_dir)
    assert not ElasticFolder(run.run_dir).lease()
    run.assert_nothing_is_left()


class WatchedRun(ABC):
    """A run in this process, with workers in others."""

    def __init__(self, config) -> None:
        self.config = config
        self.preemption = Preemption()
        self.workers: list[Worker] = []

    def watch(self, _scheduler, _settings, _first_step):
        self.loop = asyncio.get_running_loop()
        self.begin_worker()
        return self.look

    @abstractmethod
    def look(self, event, now, commands): ...

    def begin_worker(self):
        self.workers.append(Worker(self.config.run.dir, uuid.uuid4().hex))

    def end(self):
        self.preemption.deadline.ask("the test has seen enough", self.loop.time() + 60)

    def run(self):
        try:
            with pytest.raises(Preempted):
                asyncio.run(train(self.config, RayBackend(self.config, None), self.watch, self.preemption))
        finally:
            for worker in self.workers:
                worker.vanish()


class HandOvers(WatchedRun):
    """Its only worker vanishes, or falls silent, as engines were lent; another one comes, for the next time."""

    NUM = int(os.environ.get("HAND_OVERS", "2"))

    def __init__(self, config) -> None:
        super().__init__(config)
        self.rounds: dict[str, list[int]] = {"lent": [], "taken back": [], "given back": [], "ended": []}
        self.num_noticed = 0
        self.ended: list[Worker] = []
        self.serving: Worker | None = None
        """The one to end next: one that only starts would be ended by half."""

    def look(self, event, _now, commands):
        if isinstance(event, EngineUpdated):
            living = [each for each in self.workers if each not in self.ended]
            of_it = [each for each in living if event.engine.startswith(f"e{each.process.pid}_")]
            self.serving = of_it[0] if of_it else self.serving
        if isinstance(event, EngineLost | WorkerLeft) and self.num_noticed < len(self.ended):
            self.num_noticed += 1
        if isinstance(event, EnginesReturned):
            assert event.engines == ("engine-0",)
            self.rounds["given back"].append(event.round)
        for command in commands:
            match command:
                case LendEngines():
                    self.rounds["lent"].append(command.round)
                    self.loop.call_later(0.1, self.end_worker)
                case ReclaimEngines():
                    self.rounds["taken back"].append(command.round)
                case EndRound() if command.round in self.rounds["taken back"]:
                    self.rounds["ended"].append(command.round)
                    if len(self.rounds["ended"]) == self.NUM:
                        self.end()

    def end_worker(self):
        worker, self.serving = self.serving, None
        if worker is not None:  # that one is ended is not known at once, and the next round lends engines, too
            if len(self.ended) % 2:
                worker.freeze()
            else:
                worker.vanish()
            self.ended.append(worker)
            self.begin_worker()


def test_a_step_whose_workers_all_vanish_after_the_hand_over_ends_on_the_engines_that_come_back(
    inputs, tmp_path, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")  # not a real one: engine and trainer take turns on it all the same
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = elastic_words(
        inputs,
        "system.stream=true",
        "trainer=torch",
        "placement=colocated",
        "placement.automatic=false",
        "rollout.num_prompts=32",
        "elastic.max_workers=2",  # the next one may arrive before the loss of the last is known
        "elastic.seeding=fixed",
        "elastic.seeding_s=0.2",
        "elastic.reclaim_after_s=0.5",
        "run.progress=plain",
        f"run.dir={tmp_path / 'run'}",
    )
    given = {word.partition("=")[0]: word for word in words}
    seen = HandOvers(compose(list(given.values())))
    seen.run()
    rounds = seen.rounds
    assert len(rounds["ended"]) == HandOvers.NUM
    assert rounds["taken back"] == rounds["given back"] == rounds["ended"]
    assert set(rounds["ended"]) <= set(rounds["lent"])
    trained = trained_prompts(tmp_path / "run")
    assert len(trained) == len(set(trained)) > 0
    steps = {row["step"]: row for row in rows(tmp_path / "run", "steps")}
    assert [step for step, row in steps.items() if row["num_reclaims"]] == rounds["ended"]
    assert all(steps[step]["num_members_lost"] for step in rounds["ended"])
    assert seen.num_noticed >= HandOvers.NUM
    replay(tmp_path / "run")


class Moves(WatchedRun):
    """Requests move by choice between its own engine and that of a worker, whose process is killed in the end."""

    NUM = 4
    """That move with tokens before that, some from either engine, in rounds that have ended."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.evicted: list[tuple[str, int]] = []
        """From which engine, with how many tokens."""
        self.num_ordered = 0
        self.moved_from: list[str] = []
        """Those that had tokens, in rounds that have ended."""
        self.is_killed = self.is_noticed = False

    def look(self, event, _now, commands):
        self.num_ordered += sum(isinstance(command, Evict) for command in commands)
        if any(isinstance(command, EndRound) for command in commands):
            self.moved_from = [engine for engine, num_tokens in self.evicted if num_tokens]
        match event:
            case ResponseEvicted():
                self.evicted.append((event.engine, event.num_tokens))
                if len(self.moved_from) >= self.NUM and len(set(self.moved_from)) > 1 and not self.is_killed:
                    os.kill(self.workers[0].engine(), signal.SIGKILL)
                    self.is_killed = True
            case EngineLost():
                self.is_noticed = self.is_killed
                self.loop.call_later(3, self.end)


def test_requests_that_move_by_choice_go_on_from_their_last_token_and_a_killed_engine_is_noticed(
    inputs, tmp_path, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    make_slow_model(tmp_path / "model")
    words = elastic_words(
        inputs,
        f"model.path={tmp_path / 'model'}",
        "rollout.max_response_tokens=1000",
        "engine.max_num_seqs=16",
        "elastic.balance_every_s=0.2",
        "elastic.balance_gain_s=0",
        "elastic.report_interval_s=0.2",
        "elastic.max_workers=1",
        "run.progress=plain",
        f"run.dir={tmp_path / 'run'}",
    )
    given = {word.partition("=")[0]: word for word in words}
    seen = Moves(compose(list(given.values())))
    seen.run()
    assert seen.is_noticed
    assert len(seen.evicted) <= seen.num_ordered
    steps = rows(tmp_path / "run", "steps")
    moved = [row for row in rows(tmp_path / "run", "intervals") if row["activity"] == "evicted" and row["num_tokens"]]
    assert len(moved) >= Moves.NUM
    assert len({row["actor"] for row in moved}) == 2
    assert sum(step["num_requests_moved"] for step in steps) >= Moves.NUM  # one that is evicted may come back
    assert all(step["logprob_mismatch_max"] < 1e-4 for step in steps)
    responses = rows(tmp_path / "run", "responses")
    assert all(row["policy_version"] == row["step"] for row in responses)
    trained = trained_prompts(tmp_path / "run")
    assert len(trained) == len(set(trained)) > 0
    replay(tmp_path / "run")
