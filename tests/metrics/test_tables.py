"""Tables on disk: whole at every moment, each step once, and refused when they do not fit the schema."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rollpacker.core.errors import DataError, InternalError, StorageFailed
from rollpacker.metrics import table_writer, tables
from rollpacker.metrics.columns import SCHEMA_VERSION, VERSION_KEY, Column
from rollpacker.metrics.mending import mend_tables
from rollpacker.metrics.schemas import STEPS, TABLES
from rollpacker.metrics.table_writer import MetricsWriter
from rollpacker.metrics.tables import read_frame, read_last_steps, read_table
from tests.cli.inputs import tree_of

VALUES: dict[str, object] = {
    "int": 7,
    "float": 0.5,
    "bool": True,
    "text": "word",
    "texts": ["word", ""],
    "floats by name": [("a", 0.5)],
}

Row = dict[str, object]


def make_row(table: str, step: int, /, **changes: object) -> Row:
    return {column.name: VALUES[column.type] for column in TABLES[table].columns} | {"step": step} | changes


def make_rows(step: int, num_responses: int = 3, mark: str = "word") -> dict[str, list[Row]]:
    """One row of steps, some responses, no interval."""
    responses = [make_row("responses", step, sample=sample, engine=mark) for sample in range(num_responses)]
    return {"steps": [make_row("steps", step)], "domains": [], "responses": responses, "intervals": []}


def steps_of(run_dir: Path, table: str = "steps") -> list[int]:
    return read_table(run_dir, table)["step"].to_pylist()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def writer(run_dir: Path) -> Iterator[MetricsWriter]:
    writer = MetricsWriter(run_dir / "metrics")
    yield writer
    writer.close()


@pytest.fixture
def merging_by_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_writer, "STEPS_PER_MERGED_PART", 4)


WRITES_AND_CONVERTS = """\
import sys
from pathlib import Path
from rollpacker.metrics.table_writer import MetricsWriter
from tests.metrics.test_tables import make_rows
writer = MetricsWriter(Path(sys.argv[1]) / "metrics")
writer.write_step(0, make_rows(0))
writer.close()
assert "pandas" not in sys.modules
from rollpacker.metrics.tables import read_table
print(len(read_table(Path(sys.argv[1]), "responses").to_pandas()), "pandas" in sys.modules)
"""


def test_writing_loads_no_pandas_and_a_table_can_become_one_of_pandas_afterwards(run_dir: Path) -> None:
    command = [sys.executable, "-c", WRITES_AND_CONVERTS, str(run_dir)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["3", "True"]


def test_what_is_written_is_read_back_with_units(run_dir: Path, writer: MetricsWriter) -> None:
    rows = make_rows(0)
    rows["steps"][0] |= {"loss": math.nan, "kl_to_reference": None, "round_kind": "short"}
    writer.write_step(0, rows)
    writer.write_step(1, make_rows(1))
    table = read_table(run_dir, "steps")
    assert table.schema.equals(STEPS.to_arrow(), check_metadata=True)
    assert table.schema.field("step_time_s").metadata[b"unit"] == b"s"
    first = table.slice(0, 1).to_pylist()[0]
    assert math.isnan(first.pop("loss"))
    assert first == {name: value for name, value in rows["steps"][0].items() if name != "loss"}
    frame = read_frame(run_dir, "responses")
    assert frame["step"].tolist() == [0, 0, 0, 1, 1, 1]
    assert frame.attrs["units"]["length_tokens"] == "tokens"
    assert len(read_table(run_dir, "intervals")) == 0


def test_each_step_is_one_file_per_table(run_dir: Path, writer: MetricsWriter) -> None:
    writer.write_step(12, make_rows(12))
    assert [path.name for path in (run_dir / "metrics" / "steps").iterdir()] == ["step-000012.parquet"]
    assert len(pq.read_table(run_dir / "metrics" / "responses")) == 3


def test_the_schemas_have_the_columns_of_the_specification_and_describe_every_one() -> None:
    promised = """step round_kind step_time_s rollout_time_s exposed_reward_time_s train_time_s weight_sync_time_s
    reward_mean num_prompts num_responses response_length_mean_tokens response_length_max_tokens tokens_generated
    tokens_trained tokens_wasted bubble_ratio policy_version long_queue_length modelled"""
    assert set(promised.split()) <= {column.name for column in STEPS.columns}
    for table in TABLES.values():
        assert len({column.name for column in table.columns}) == len(table.columns)
        for column in table.columns:
            assert column.description
            assert (column.unit == "") == (column.type in {"bool", "text", "texts"})
            assert expected_unit(column) in {None, column.unit}


def expected_unit(column: Column) -> str | None:
    if column.name.endswith("_s"):
        return "s"
    return "tokens" if column.name.endswith("_tokens") or column.name.startswith("tokens_t") else None


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        ("steps", {"losss": 1.0}, "a row of table steps has the unknown losss"),
        ("steps", {"step": 1.5}, "column step of table steps got a value of another type"),
        ("responses", {"length_tokens": "many"}, "column length_tokens of table responses got a value"),
        ("responses", {"accepted": 1}, "column accepted of table responses got a value"),
        ("responses", {"engine": None}, "column engine of table responses got None in 1 of 1 rows"),
        ("intervals", {"started_at_s": None}, "column started_at_s of table intervals got None"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_nothing_is_written(
    run_dir: Path, writer: MetricsWriter, table: str, changes: Row, message: str
) -> None:
    rows = make_rows(0) | {table: [make_row(table, 0, **changes)]}
    with pytest.raises(InternalError, match=message):
        writer.write_step(0, rows)
    assert not list(run_dir.rglob("*.parquet"))


def test_a_row_without_a_column_is_refused_by_its_name(writer: MetricsWriter) -> None:
    rows = make_rows(0)
    del rows["responses"][1]["engine"]
    with pytest.raises(InternalError, match="a row of table responses lacks engine"):
        writer.write_step(0, rows)


def test_a_step_is_not_written_twice_and_no_table_is_forgotten(writer: MetricsWriter) -> None:
    writer.write_step(3, make_rows(3))
    with pytest.raises(InternalError, match="step 3 is there already"):
        writer.write_step(3, make_rows(3))
    with pytest.raises(InternalError, match="rows for the tables"):
        writer.write_step(4, {"steps": []})


def test_many_steps_become_few_files_with_the_same_content(
    run_dir: Path, writer: MetricsWriter, merging_by_4: None
) -> None:
    for step in range(10):
        writer.write_step(step, make_rows(step))
    writer.close()
    assert steps_of(run_dir) == list(range(10))
    assert steps_of(run_dir, "responses") == [step for step in range(10) for _ in range(3)]
    for first, last, expected in ((3, 5, [3, 4, 5]), (9, 12, [9]), (10, 12, [])):
        assert read_table(run_dir, "steps", (first, last))["step"].to_pylist() == expected
    for table in TABLES:
        assert sorted(path.name for path in (run_dir / "metrics" / table).iterdir()) == [
            "step-000008.parquet",
            "step-000009.parquet",
            "steps-000000-000003.parquet",
            "steps-000004-000007.parquet",
        ]


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(orders=st.lists(st.one_of(st.just("write"), st.just("reopen"), st.integers(-1, 14)), max_size=20))
@example(orders=[*["write"] * 9, 1, "write", "write", "reopen", 0, "write"])  # cuts a merged part twice
def test_after_any_steps_truncations_and_restarts_each_step_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, merging_by_4: None, orders: list[str | int]
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    writer = MetricsWriter(run_dir / "metrics")
    expected: list[tuple[int, str]] = []
    for number, order in enumerate(orders):
        if order == "write":
            step = expected[-1][0] + 1 if expected else 0
            writer.write_step(step, make_rows(step, num_responses=1, mark=f"write-{number}"))
            expected.append((step, f"write-{number}"))
        elif order == "reopen":
            writer = MetricsWriter(run_dir / "metrics")
        else:
            assert isinstance(order, int)
            writer.truncate_after(order)
            expected = [(step, mark) for step, mark in expected if step <= order]
        assert writer.last_step == (expected[-1][0] if expected else None)
    writer.close()
    if not expected:
        with pytest.raises(DataError, match="has no metrics"):
            read_table(run_dir, "responses")
        return
    table = read_table(run_dir, "responses")
    assert list(zip(table["step"].to_pylist(), table["engine"].to_pylist(), strict=True)) == expected
    assert len(pq.read_table(run_dir / "metrics" / "responses")) == len(expected)


def test_a_reader_beside_a_busy_writer_always_sees_the_steps_from_0_on_without_gap(
    run_dir: Path, writer: MetricsWriter, merging_by_4: None
) -> None:
    writer.write_step(0, make_rows(0, num_responses=1))
    seen: list[list[int]] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                seen.append(steps_of(run_dir, "responses"))
        except BaseException as error:  # noqa: BLE001 the thread hands it to the test
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(1, 120):
        writer.write_step(step, make_rows(step, num_responses=1))
        if step % 50 == 49:
            writer.truncate_after(step - 6)
            for again in range(step - 5, step + 1):
                writer.write_step(again, make_rows(again, num_responses=1))
    done.set()
    reader.join()
    assert not errors
    assert len(seen) > 1
    assert all(steps == list(range(len(steps))) for steps in seen)


def test_steps_that_are_made_again_while_somebody_reads_are_read_from_one_attempt_only(
    run_dir: Path, writer: MetricsWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(3):
        writer.write_step(step, make_rows(step, num_responses=1, mark="first"))
    original = tables._in_current_schema

    def resume_between_two_parts(*arguments: Any) -> pa.Table:
        monkeypatch.setattr(tables, "_in_current_schema", original)
        writer.truncate_after(-1)
        for step in range(3):
            writer.write_step(step, make_rows(step, num_responses=1, mark="second"))
        return original(*arguments)

    monkeypatch.setattr(tables, "_in_current_schema", resume_between_two_parts)
    assert read_table(run_dir, "responses")["engine"].to_pylist() == ["second"] * 3


def test_a_merge_under_way_does_not_bring_back_steps_that_were_taken_back(
    run_dir: Path, writer: MetricsWriter, merging_by_4: None
) -> None:
    for step in range(4):
        writer.write_step(step, make_rows(step, num_responses=1, mark="first"))
    writer.truncate_after(1)
    for step in range(2, 9):
        writer.write_step(step, make_rows(step, num_responses=1, mark="second"))
    writer.close()
    assert steps_of(run_dir) == list(range(9))
    assert read_table(run_dir, "responses")["engine"].to_pylist() == ["first"] * 2 + ["second"] * 7


@pytest.mark.parametrize("delay_s", [0.0, 0.05])
def test_a_killed_writer_leaves_whole_steps_and_the_next_one_goes_on(run_dir: Path, delay_s: float) -> None:
    script = f"""
    import sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import test_tables
    from rollpacker.metrics import table_writer
    table_writer.STEPS_PER_MERGED_PART = 4
    writer = table_writer.MetricsWriter(test_tables.Path({str(run_dir)!r}) / "metrics")
    step = 0
    while True:
        writer.write_step(step, test_tables.make_rows(step))
        print(step, flush=True)
        step += 1
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = int(process.stdout.readline())
    threading.Event().wait(delay_s)  # where the kill hits is left to chance on purpose
    process.send_signal(signal.SIGKILL)
    told = int((process.stdout.read().split() or [told])[-1])
    process.wait()
    num_steps = len(steps_of(run_dir))
    assert steps_of(run_dir) == list(range(num_steps))
    assert num_steps in {told + 1, told + 2}
    assert steps_of(run_dir, "responses") == [step for step in range(num_steps) for _ in range(3)]
    writer = MetricsWriter(run_dir / "metrics")
    writer.write_step(num_steps, make_rows(num_steps))
    writer.close()
    assert steps_of(run_dir) == list(range(num_steps + 1))
    assert sorted(pq.read_table(run_dir / "metrics" / "steps")["step"].to_pylist()) == list(range(num_steps + 1))
    assert not list(run_dir.rglob(".tmp-*"))


def test_a_part_that_the_manifest_does_not_name_does_not_count(run_dir: Path, writer: MetricsWriter) -> None:
    writer.write_step(0, make_rows(0))
    stray = run_dir / "metrics" / "steps" / "step-000001.parquet"
    stray.write_bytes(b"half of a")
    assert steps_of(run_dir) == [0]
    MetricsWriter(run_dir / "metrics").close()
    assert not stray.exists()


def test_a_run_without_metrics_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no metrics") as raised:
        read_table(tmp_path / "nowhere", "steps")
    assert raised.value.allowed
    assert raised.value.remedy
    MetricsWriter(tmp_path / "metrics").close()
    with pytest.raises(DataError, match="has no metrics"):
        read_frame(tmp_path, "steps")
    with pytest.raises(DataError, match="there is no table 'stepps'"):
        read_table(tmp_path, "stepps")


def test_the_last_steps_are_read_without_the_files_of_older_ones(
    run_dir: Path, writer: MetricsWriter, merging_by_4: None
) -> None:
    assert read_last_steps(run_dir, 1) == []
    for step in range(6):
        writer.write_step(step, make_rows(step))
        assert [row["step"] for row in read_last_steps(run_dir, 1)] == [step]
        assert [row["step"] for row in read_last_steps(run_dir, 3)] == list(range(max(0, step - 2), step + 1))
    last = read_last_steps(run_dir, 1)
    for part in (run_dir / "metrics" / "steps").glob("*00000[0-4]*"):
        part.unlink()
    assert read_last_steps(run_dir, 1) == last


def test_a_missing_or_broken_part_is_named(run_dir: Path, writer: MetricsWriter) -> None:
    writer.write_step(0, make_rows(0))
    part = run_dir / "metrics" / "steps" / "step-000000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(DataError, match=r"step-000000\.parquet is not readable"):
        read_table(run_dir, "steps")
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(DataError, match=r"step-000000\.parquet is not readable: it is a pipe"):
        read_table(run_dir, "steps")
    part.unlink()
    with pytest.raises(DataError, match=r"step-000000\.parquet is missing"):
        read_table(run_dir, "steps")
    (run_dir / "metrics" / "manifest.json").write_text("")
    with pytest.raises(DataError, match=r"manifest\.json is not readable"):
        read_table(run_dir, "steps")


def test_parts_of_a_reward_are_kept_by_name_also_by_another_run_s_names(run_dir: Path, writer: MetricsWriter) -> None:
    given: list[object] = [{"accuracy": 1.0, "format": -0.5}, None, {"brevity": 0.25}]
    rows = [make_row("responses", 0, sample=sample, reward_parts=parts) for sample, parts in enumerate(given)]
    writer.write_step(0, {**make_rows(0), "responses": rows})
    parts = read_table(run_dir, "responses")["reward_parts"].to_pylist()
    assert [None if each is None else dict(each) for each in parts] == given


def written_by(version: int, path: Path) -> None:
    """Have a table or a manifest say that another version wrote it."""
    if path.suffix == ".json":
        path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": version}))
    else:
        table = pq.ParquetFile(path).read()
        pq.write_table(table.replace_schema_metadata({VERSION_KEY: str(version).encode()}), path)


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
@pytest.mark.parametrize("name", ["manifest.json", "steps/step-000000.parquet"])
def test_files_of_another_version_are_refused_and_left_as_they_are(
    run_dir: Path, writer: MetricsWriter, name: str, version: int
) -> None:
    writer.write_step(0, make_rows(0))
    metrics = run_dir / "metrics"
    written_by(version, metrics / name)
    before = tree_of(run_dir)
    for attempt in (lambda: read_table(run_dir, "steps"), lambda: mend_tables(metrics)):
        with pytest.raises(DataError, match=f"schema version {version}") as raised:
            attempt()
        assert f"reads version {SCHEMA_VERSION}" in raised.value.allowed
    assert tree_of(run_dir) == before


def test_a_table_of_this_version_with_other_columns_is_refused(run_dir: Path, writer: MetricsWriter) -> None:
    writer.write_step(0, make_rows(0))
    part = run_dir / "metrics" / "steps" / "step-000000.parquet"
    table = pq.ParquetFile(part).read()
    for other in (table.drop_columns(["tokens_wasted"]), table.append_column("new", pa.array([1]))):
        pq.write_table(other, part)
        with pytest.raises(DataError, match="has other columns"):
            read_table(run_dir, "steps")


def fill(writer: MetricsWriter) -> None:
    """Write ever larger steps until there is no room."""
    generator = random.Random(0)
    for step in range(1000):
        rows = make_rows(step, num_responses=50 * (step + 1))
        for row in rows["responses"]:
            row["prompt"] = generator.randbytes(8).hex()
        writer.write_step(step, rows)


def test_a_file_size_limit_ends_the_writing_and_earlier_steps_stay_readable(
    run_dir: Path, writer: MetricsWriter, file_size_limit: Callable[[int], AbstractContextManager[None]]
) -> None:
    with file_size_limit(60_000), pytest.raises(StorageFailed, match="larger than the limit"):
        fill(writer)
    assert steps_of(run_dir) == list(range(len(steps_of(run_dir)))) != []
    assert not list(run_dir.rglob(".tmp-*"))


def test_a_full_disk_ends_the_writing_and_earlier_steps_stay_readable(small_disk: Path) -> None:
    writer = MetricsWriter(small_disk / "metrics")
    with pytest.raises(StorageFailed, match=r"the disk is full \(ENOSPC\)"):
        fill(writer)
    num_steps = len(steps_of(small_disk))
    assert steps_of(small_disk) == list(range(num_steps)) != []
    writer.truncate_after(num_steps - 2)  # makes room: a resumed run can go on
    writer.write_step(num_steps - 1, make_rows(num_steps - 1))
    assert steps_of(small_disk) == list(range(num_steps))
    writer.make_durable()
