"""The event log: everything comes back, a kill costs at most the last line, and damage is named by its line."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import PydanticSchemaGenerationError

from rollpacker.core.commands import Abort, BeginRound, Command, EndRun, Launch, RoundKind
from rollpacker.core.errors import DataError, StorageFailed
from rollpacker.core.events import EngineJoined, Event, ResponseFinished
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, VersionSpan
from rollpacker.core.settings import SchedulerSettings
from rollpacker.metrics.codec import UnionCodec, from_plain, to_plain
from rollpacker.metrics.event_log import EventLogWriter, LogRecord, attempt_path, attempt_paths, read_event_log

SETTINGS = SchedulerSettings(
    batching="tail",
    num_prompts=4,
    num_responses=2,
    eta_prompts=Fraction(5, 4),
    eta_responses=Fraction(3, 2),
    overlap_rewards=True,
    domain_weights=((Domain("math"), Fraction(2, 3)), (Domain("code"), Fraction(1, 3))),
)
ENGINE = EngineId("engine-0")


def request(sample: int) -> RequestId:
    return RequestId(round=3, prompt=PromptId(epoch=0, key='q"ué\n'), sample=sample)


FINISHED = ResponseFinished(request=request(0), engine=ENGINE, num_tokens=12, spans=(VersionSpan(3, 12),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return attempt_path(tmp_path, 0)


@pytest.fixture
def writer(path: Path) -> EventLogWriter:
    return EventLogWriter(path, SETTINGS, None)


@given(event=st.from_type(Event))
def test_every_event_survives_json(event: Event) -> None:
    codec: UnionCodec[Event] = UnionCodec(Event)
    text = codec.encode(event)
    assert repr(codec.decode(json.loads(text))) == repr(event)
    assert text.startswith(f'{{"type":"{type(event).__name__}"')  # as `scan_event_log` looks for it


def test_a_count_of_numpys_is_written_as_the_number_that_it_is() -> None:
    codec: UnionCodec[Event] = UnionCodec(Event)
    counted = replace(FINISHED, num_tokens=np.int64(12), spans=(VersionSpan(3, np.int32(12)),))
    assert codec.encode(counted) == codec.encode(FINISHED)


@given(command=st.from_type(Command))
def test_every_command_survives_json(command: Command) -> None:
    codec: UnionCodec[Command] = UnionCodec(Command)
    text = codec.encode(command)
    assert repr(codec.decode(json.loads(text))) == repr(command)
    assert text.startswith(f'{{"type":"{type(command).__name__}"')


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ("Launch", "is no object"),
        ({"type": "Lunch"}, "type 'Lunch' is none of"),
        ({"type": "Launch", "engine": "engine-0"}, "Launch does not fit: request: Field required"),
        ({"type": "Launch", "engine": "e", "request": [0, [0, "a"], 1], "to": 1}, "to: Unexpected keyword argument"),
        ({"type": "Launch", "engine": 7, "request": [0, [0, "a"], 1]}, "engine: Input should be a valid string"),
        ({"type": "Launch", "engine": "e", "request": [0, "a", 1]}, "request.1: Input should be an array"),
        ({"type": "Launch", "engine": "e", "request": [0, [0, "a"]]}, "request.2: Field required"),
        ({"type": "Launch", "engine": "e", "request": [0.5, [0, "a"], 1]}, "request.0: Input should be a valid int"),
        ({"type": "Launch", "engine": "e", "request": ["5", [0, "a"], 1]}, "request.0: Input should be a valid int"),
    ],
)
def test_data_that_no_command_gives_is_refused(plain: object, message: str) -> None:
    codec: UnionCodec[Command] = UnionCodec(Command)
    with pytest.raises(ValueError, match=message):
        codec.decode(plain)


def test_settings_of_an_older_version_are_read_without_the_machines_that_it_did_not_know() -> None:
    plain = to_plain(SETTINGS)
    del plain["evaluation"]
    assert from_plain(SchedulerSettings, plain) == SETTINGS
    del plain["num_prompts"]
    with pytest.raises(ValueError, match="SchedulerSettings does not fit: num_prompts: Field required"):
        from_plain(SchedulerSettings, plain)


def test_a_type_that_json_cannot_give_back_fails_at_its_first_use() -> None:
    codec: UnionCodec[Unfit | EndRun] = UnionCodec(Unfit | EndRun)  # type: ignore[arg-type]
    with pytest.raises(PydanticSchemaGenerationError, match="UnionCodec"):
        codec.encode(Unfit(UnionCodec(Event)))


@dataclass
class Unfit:
    codec: UnionCodec[Event]


def test_what_is_logged_is_read_back(path: Path) -> None:
    snapshot = {"queue": [[0, "a"]], "round": 7}
    writer = EventLogWriter(path, SETTINGS, snapshot)
    begin = BeginRound(
        round=3,
        step=3,
        kind=RoundKind.SHORT,
        num_prompts_launched=5,
        num_prompts_needed=4,
        num_responses_launched=3,
        num_responses_needed=2,
    )
    commands = (begin, *(Launch(request=request(sample), engine=ENGINE) for sample in range(3)))
    writer.append(EngineJoined(engine=ENGINE, policy_version=0), 0.25, ())
    writer.append(FINISHED, 1 / 3, commands)
    writer.close()
    log = read_event_log(path)
    assert log.settings == SETTINGS
    assert log.snapshot == snapshot
    assert log.records == (
        LogRecord(seq=0, now=0.25, event=EngineJoined(engine=ENGINE, policy_version=0), commands=()),
        LogRecord(seq=1, now=1 / 3, event=FINISHED, commands=commands),
    )


def test_the_log_is_on_disk_after_a_flush_and_not_before(path: Path, writer: EventLogWriter) -> None:
    assert read_event_log(path).records == ()
    writer.append(FINISHED, 1.0, ())
    assert len(read_event_log(path).records) == 0
    writer.flush()
    assert len(read_event_log(path).records) == 1
    writer.append(FINISHED, 2.0, ())
    writer.flush()
    assert [record.now for record in read_event_log(path).records] == [1.0, 2.0]
    writer.close()
    writer.close()


def test_a_long_step_does_not_wait_in_memory(path: Path, writer: EventLogWriter) -> None:
    for _ in range(10_000):
        writer.append(FINISHED, 1.0, (Abort(request=request(1), engine=ENGINE),))
    assert path.stat().st_size > 1_000_000
    writer.close()


def test_wherever_a_kill_cuts_the_file_the_lines_before_are_read(path: Path, writer: EventLogWriter) -> None:
    for number in range(3):
        writer.append(FINISHED, float(number), (EndRun(),))
    writer.close()
    data = path.read_bytes()
    header_end = data.index(b"\n") + 1
    for end in range(header_end, len(data) + 1):
        path.write_bytes(data[:end])
        log = read_event_log(path)
        assert len(log.records) == data[header_end:end].count(b"\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 3 is broken"),
        (b"", "line 3 is broken"),
        (b"[1]", "line 3 is broken: it is no object"),
        (b'{"seq":5,"now":1.0,"event":{},"commands":[]}', "line 3 is broken: seq is 5, not 1"),
        (b'{"seq":1,"now":"1","event":{},"commands":[]}', "line 3 is broken: now is no number"),
        (b'{"seq":1,"now":1.0,"event":{"type":"EndRun"},"commands":[]}', "line 3 is broken: type 'EndRun' is none of"),
    ],
)
def test_a_broken_line_in_the_middle_is_refused_with_its_number(
    path: Path, writer: EventLogWriter, line: bytes, message: str
) -> None:
    for number in range(3):
        writer.append(FINISHED, float(number), ())
    writer.close()
    lines = path.read_bytes().split(b"\n")
    lines[2] = line
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match=message) as raised:
        read_event_log(path)
    assert raised.value.allowed
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("", "line 1 is broken"),
        ("{}", "line 1 is broken"),
        ('{"schema_version": 99}', "is an event log of version 99"),
        ('{"schema_version": 4, "settings": {}, "snapshot": null}', "line 1 is broken"),
    ],
)
def test_a_file_that_is_no_event_log_is_refused(path: Path, writer: EventLogWriter, header: str, message: str) -> None:
    path.write_text(header)
    with pytest.raises(DataError, match=message):
        read_event_log(path)


def test_a_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_event_log(tmp_path / "none.jsonl")


def test_attempts_are_found_in_their_order(tmp_path: Path) -> None:
    assert attempt_paths(tmp_path) == ()
    for attempt in (1000, 2, 0, 11):
        EventLogWriter(attempt_path(tmp_path, attempt), SETTINGS, None).close()
    assert attempt_paths(tmp_path) == tuple(attempt_path(tmp_path, attempt) for attempt in (0, 2, 11, 1000))


def test_a_full_file_system_leaves_whole_lines_and_writing_goes_on_when_there_is_room(
    path: Path, writer: EventLogWriter, file_size_limit: Callable[[int], AbstractContextManager[None]]
) -> None:
    writer.append(FINISHED, 0.0, ())
    writer.flush()
    for number in range(1, 21):
        writer.append(FINISHED, float(number), ())
    with file_size_limit(path.stat().st_size + 500), pytest.raises(StorageFailed, match="larger than the limit"):
        writer.flush()
    assert [record.now for record in read_event_log(path).records] == [0.0]
    assert path.read_bytes().endswith(b"\n")
    writer.close()
    assert [record.now for record in read_event_log(path).records] == [float(number) for number in range(21)]


def fill(writer: EventLogWriter) -> None:
    for _ in range(20_000):
        writer.append(FINISHED, 1.0, ())


def test_a_full_disk_ends_the_log_and_what_was_written_stays_readable(small_disk: Path) -> None:
    path = attempt_path(small_disk, 0)
    writer = EventLogWriter(path, SETTINGS, None)
    writer.append(FINISHED, 0.0, ())
    writer.flush()
    with pytest.raises(StorageFailed, match=r"the disk is full \(ENOSPC\)"):
        fill(writer)
    with pytest.raises(StorageFailed):
        writer.close()
    log = read_event_log(path)
    assert log.records[0].now == 0.0
    assert path.read_bytes().endswith(b"\n")


def test_copies_of_a_log_are_none_of_a_runs_attempts(tmp_path):
    folder = tmp_path / "events"
    folder.mkdir()
    for name in ("attempt-010", "attempt-009", "attempt-009-old", "attempt-xyz", "attempt-"):
        (folder / f"{name}.jsonl").touch()
    assert [path.stem for path in attempt_paths(tmp_path)] == ["attempt-009", "attempt-010"]
