"""Replay: logs of real scheduling agree, tampered ones are found out."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rollpacker.core.commands import Abort, BeginRound, DrawPrompts, EndRound, Launch, RoundKind, ScoreResponse
from rollpacker.core.errors import DataError, ReplayDiverged
from rollpacker.core.events import (
    EngineJoined,
    EngineUpdated,
    Event,
    PromptsDrawn,
    ResponseAborted,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import Domain, EngineId, PromptId, VersionSpan
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import SchedulerSettings
from rollpacker.metrics.event_log import EventLogWriter, attempt_path, read_event_log
from rollpacker.runtime.rollout.replay import ReplayReport, replay

SETTINGS = SchedulerSettings(
    batching="tail",
    num_prompts=4,
    num_responses=2,
    eta_prompts=Fraction(3, 2),
    eta_responses=Fraction(3, 2),
    overlap_rewards=True,
    domain_weights=((Domain("math"), Fraction(3)), (Domain("code"), Fraction(1))),
)


class LoggedRun:
    """Runs a scheduler on a world in which everything takes a random time, and logs what happens."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.random = random.Random(7)
        self.num_attempts = 0
        self.next_step = 0
        self.num_drawn: dict[Domain, int] = {}
        self.round_kinds: list[RoundKind] = []
        self.num_commands = 0

    def attempt(self, num_steps: int, snapshot: dict[str, Any] | None) -> dict[str, Any]:
        """Run some steps as one attempt; returns the snapshot after the last."""
        if snapshot is None:
            self.scheduler = Scheduler(SETTINGS)
        else:
            self.scheduler = Scheduler.restore(SETTINGS, json.loads(json.dumps(snapshot)))
        self.log = EventLogWriter(attempt_path(self.run_dir, self.num_attempts), SETTINGS, snapshot)
        self.num_attempts += 1
        self.now = 0.0
        self.facts: list[Event] = [
            EngineJoined(engine=EngineId(f"engine-{n}"), policy_version=self.next_step) for n in range(2)
        ]
        while self.facts:
            self.tell(self.facts.pop(0))
        for _ in range(num_steps):
            for engine in self.scheduler.engines:
                self.tell(EngineUpdated(engine=engine, policy_version=self.next_step))
            self.facts = [StepStarted(step=self.next_step, policy_version=self.next_step)]
            while self.facts:
                self.tell(self.facts.pop(self.random.randrange(len(self.facts))))
            self.next_step += 1
        self.log.close()
        return self.scheduler.snapshot()

    def tell(self, event: Event) -> None:
        self.now += self.random.random()
        commands = self.scheduler.handle(event, self.now)
        self.log.append(event, self.now, commands)
        self.num_commands += len(commands)
        for command in commands:
            match command:
                case DrawPrompts():
                    first = self.num_drawn.get(command.domain, 0)
                    self.num_drawn[command.domain] = first + command.num_prompts
                    prompts = tuple(PromptId(0, f"{command.domain}-{first + n}") for n in range(command.num_prompts))
                    self.facts.append(PromptsDrawn(domain=command.domain, prompts=prompts, is_exhausted=False))
                case Launch():
                    self.facts.append(
                        ResponseFinished(
                            request=command.request,
                            engine=command.engine,
                            num_tokens=9,
                            spans=(VersionSpan(self.next_step, 9),),
                        )
                    )
                case Abort():
                    self.facts = [
                        ResponseAborted(request=command.request, engine=command.engine, num_tokens=3)
                        if isinstance(fact, ResponseFinished) and fact.request == command.request
                        else fact
                        for fact in self.facts
                    ]
                case ScoreResponse():
                    self.facts.append(RewardComputed(request=command.request, reward=self.random.random()))
                case BeginRound():
                    self.round_kinds.append(command.kind)
                case _:
                    pass


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of two attempts, with short and long rounds."""
    run = LoggedRun(tmp_path)
    snapshot = run.attempt(6, None)
    run.attempt(5, snapshot)
    assert set(run.round_kinds) == {RoundKind.SHORT, RoundKind.LONG}
    return tmp_path


def test_every_attempt_of_a_run_gives_the_same_commands_again(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path)
    snapshot = run.attempt(6, None)
    run.attempt(5, snapshot)
    num_events = sum(len(read_event_log(attempt_path(tmp_path, attempt)).records) for attempt in range(2))
    assert num_events > 100
    assert replay(tmp_path) == ReplayReport(attempts=2, events=num_events, commands=run.num_commands)


def test_a_killed_attempt_is_replayed_up_to_its_last_whole_line(run_dir: Path) -> None:
    path = attempt_path(run_dir, 1)
    path.write_bytes(path.read_bytes()[:-30])
    assert replay(run_dir).attempts == 2


def rewrite(path: Path, seq: int, change: dict[str, Any]) -> None:
    lines = path.read_text().splitlines()
    lines[seq + 1] = json.dumps(json.loads(lines[seq + 1]) | change)
    path.write_text("\n".join(lines) + "\n")


def test_a_changed_command_is_found_with_its_attempt_event_expected_and_got(run_dir: Path) -> None:
    path = attempt_path(run_dir, 1)
    records = read_event_log(path).records
    seq = next(record.seq for record in records if any(isinstance(command, EndRound) for command in record.commands))
    commands = json.loads(path.read_text().splitlines()[seq + 1])["commands"]
    commands[-1]["long_queue_length"] += 1
    rewrite(path, seq, {"commands": commands})
    with pytest.raises(ReplayDiverged) as raised:
        replay(run_dir)
    assert f"attempt-001, event {seq} at " in raised.value.problem
    assert f"{records[seq].event}" in raised.value.problem
    last = len(commands) - 1
    assert f"expected command {last} of {len(commands)}: EndRound(" in raised.value.problem
    assert f"got command {last} of {len(commands)}: {records[seq].commands[-1]}" in raised.value.problem
    assert raised.value.remedy


def test_a_missing_command_is_found(run_dir: Path) -> None:
    path = attempt_path(run_dir, 0)
    seq = next(record.seq for record in read_event_log(path).records if len(record.commands) == 1)
    rewrite(path, seq, {"commands": []})
    with pytest.raises(ReplayDiverged, match="expected command 0 of 0: none\ngot command 0 of 1: "):
        replay(run_dir)


def test_a_changed_event_is_found(run_dir: Path) -> None:
    path = attempt_path(run_dir, 0)
    joined = {"type": "EngineJoined", "engine": "engine-9", "policy_version": 0, "gpus": [], "kv_tokens": 0}
    rewrite(path, 0, {"event": joined})
    with pytest.raises(ReplayDiverged, match="attempt-000"):
        replay(run_dir)


def test_an_event_that_the_machines_refuse_is_found(run_dir: Path) -> None:
    path = attempt_path(run_dir, 0)
    rewrite(path, 0, {"event": {"type": "StepStarted", "step": 5, "policy_version": 5}})
    with pytest.raises(ReplayDiverged, match=r"attempt-000, event 0 at .*\nImpossibleEvent: "):
        replay(run_dir)


def test_a_run_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no event log") as raised:
        replay(tmp_path)
    assert raised.value.remedy
