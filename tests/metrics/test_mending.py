"""Tables that were damaged between two attempts of a run."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rollpacker.core.errors import DataError, StorageFailed
from rollpacker.metrics.evaluation_schemas import EVALUATION_TABLES
from rollpacker.metrics.mending import mend_tables
from rollpacker.metrics.schemas import TABLES
from rollpacker.metrics.table_writer import STEPS_PER_MERGED_PART, MetricsWriter
from rollpacker.metrics.tables import MANIFEST, read_table
from tests.cli.inputs import tree_of
from tests.metrics.test_tables import make_rows
from tests.unreadable import make_unreadable

NUM_STEPS = STEPS_PER_MERGED_PART + 3


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of a merged part and three single steps."""
    run_dir = tmp_path_factory.mktemp("written")
    writer = MetricsWriter(run_dir / "metrics")
    for step in range(NUM_STEPS):
        writer.write_step(step, make_rows(step))
    writer.close()
    assert len(list((run_dir / "metrics" / "steps").iterdir())) == 4
    return run_dir


@pytest.fixture
def run_dir(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "run")


def steps_of(run_dir: Path) -> list[int]:
    return read_table(run_dir, "steps")["step"].to_pylist()


def go_on(run_dir: Path) -> list[str]:
    """Mend, and write one more step as a resumed run does; gives the notes."""
    notes = mend_tables(run_dir / "metrics")
    writer = MetricsWriter(run_dir / "metrics")
    writer.write_step(NUM_STEPS, make_rows(NUM_STEPS))
    writer.close()
    return notes


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:500])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def overwrite(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = (cut, empty, overwrite, make_a_folder, Path.unlink)


def test_whole_tables_are_left_as_they_are(run_dir: Path) -> None:
    before = tree_of(run_dir)
    assert mend_tables(run_dir / "metrics") == []
    assert tree_of(run_dir) == before
    assert mend_tables(run_dir / "none") == []


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("table", TABLES)
def test_a_step_that_cannot_be_read_is_set_aside_with_its_files_and_the_others_count(
    run_dir: Path, table: str, damage: Callable[[Path], None]
) -> None:
    folder = run_dir / "metrics"
    name = f"step-{STEPS_PER_MERGED_PART + 1:06d}.parquet"
    damage(folder / table / name)
    damaged = {each: (folder / each / name).read_bytes() for each in TABLES if (folder / each / name).is_file()}
    (note,) = go_on(run_dir)
    assert f"without step {STEPS_PER_MERGED_PART + 2}: {folder / table / name} is" in note
    assert f"kept in {folder / 'broken-001'}" in note
    assert ".." not in note
    assert steps_of(run_dir) == [step for step in range(NUM_STEPS + 1) if step != STEPS_PER_MERGED_PART + 1]
    assert {each: (folder / "broken-001" / each / name).read_bytes() for each in damaged} == damaged


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_part_of_many_steps_is_set_aside_as_one(run_dir: Path, damage: Callable[[Path], None]) -> None:
    damage(run_dir / "metrics" / "responses" / f"steps-000000-{STEPS_PER_MERGED_PART - 1:06d}.parquet")
    (note,) = go_on(run_dir)
    assert f"without steps 1 to {STEPS_PER_MERGED_PART}: " in note
    assert steps_of(run_dir) == list(range(STEPS_PER_MERGED_PART, NUM_STEPS + 1))


@pytest.mark.parametrize("damage", [cut, empty, overwrite, Path.unlink])
def test_steps_that_are_made_again_are_not_told_as_lost(run_dir: Path, damage: Callable[[Path], None]) -> None:
    first_step = STEPS_PER_MERGED_PART + 2
    for step in (first_step - 1, first_step):
        damage(run_dir / "metrics" / "steps" / f"step-{step:06d}.parquet")
    (note,) = mend_tables(run_dir / "metrics", first_step=first_step)
    assert f"without step {first_step}: " in note
    writer = MetricsWriter(run_dir / "metrics")
    writer.truncate_after(first_step - 1)
    writer.write_step(first_step, make_rows(first_step))
    writer.close()
    assert steps_of(run_dir) == [*range(first_step - 1), first_step]


def test_of_a_part_that_is_made_again_from_its_middle_only_the_steps_before_are_told_as_lost(run_dir: Path) -> None:
    cut(run_dir / "metrics" / "steps" / f"steps-000000-{STEPS_PER_MERGED_PART - 1:06d}.parquet")
    (note,) = mend_tables(run_dir / "metrics", first_step=10)
    assert "without steps 1 to 10: " in note


def test_an_evaluation_is_told_by_the_number_of_steps_before_it(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "evaluation", EVALUATION_TABLES)
    writer.write_step(4, dict.fromkeys(EVALUATION_TABLES, ()))
    writer.close()
    cut(tmp_path / "evaluation" / "evaluations" / "step-000004.parquet")
    (note,) = mend_tables(tmp_path / "evaluation", EVALUATION_TABLES)
    assert "without step 4: " in note


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("name", [MANIFEST, f"responses/step-{STEPS_PER_MERGED_PART:06d}.parquet"])
def test_a_file_that_cannot_be_read_now_stops_the_run_before_anything_is_set_aside(
    run_dir: Path, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, damaged = run_dir / "metrics", STEPS_PER_MERGED_PART + 1
    cut(folder / "steps" / f"step-{damaged:06d}.parquet")
    before = tree_of(run_dir)
    with monkeypatch.context() as patched:
        make_unreadable(patched, folder / name, number)
        with pytest.raises(StorageFailed, match=f"{name} cannot be read: {os.strerror(number)}"):
            mend_tables(folder)
        with pytest.raises(DataError, match="it may be whole"):
            read_table(run_dir, "responses")
    assert tree_of(run_dir) == before
    go_on(run_dir)
    assert steps_of(run_dir) == [step for step in range(NUM_STEPS + 1) if step != damaged]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lend this process another user's rights")
def test_a_part_that_may_not_be_read_stays_where_it_is(run_dir: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # every user may enter it
        Path(name).chmod(0o755)
        metrics = shutil.copytree(run_dir / "metrics", Path(name) / "metrics")
        (metrics / "steps" / f"step-{STEPS_PER_MERGED_PART:06d}.parquet").chmod(0)
        os.seteuid(65534)
        try:
            with pytest.raises(StorageFailed, match="Permission denied"):
                mend_tables(metrics)
        finally:
            os.seteuid(0)


def test_all_parts_may_be_broken(run_dir: Path) -> None:
    for path in (run_dir / "metrics" / "steps").iterdir():
        cut(path)
    assert len(go_on(run_dir)) == 4
    assert steps_of(run_dir) == [NUM_STEPS]


@pytest.mark.parametrize("damage", [cut, empty, overwrite, Path.unlink, lambda path: path.write_text("[]")])
def test_a_lost_manifest_is_made_again_and_no_step_is_lost(run_dir: Path, damage: Callable[[Path], None]) -> None:
    path = run_dir / "metrics" / MANIFEST
    path.write_bytes(path.read_bytes() + b" " * 600)
    if damage is cut:
        path.write_bytes(path.read_bytes()[:20])
    else:
        damage(path)
    (note,) = go_on(run_dir)
    assert f"{path} was" in note
    assert steps_of(run_dir) == list(range(NUM_STEPS + 1))


def test_a_part_that_holds_other_steps_than_its_name_says_is_set_aside(run_dir: Path) -> None:
    folder = run_dir / "metrics" / "steps"
    names = [folder / f"step-{STEPS_PER_MERGED_PART + number:06d}.parquet" for number in (0, 1)]
    shutil.copyfile(*names)
    (note,) = go_on(run_dir)
    assert f"{names[1]} holds other steps" in note


def test_what_was_set_aside_before_stays_when_more_is_broken(run_dir: Path) -> None:
    folder = run_dir / "metrics" / "steps"
    for number in (1, 2):
        cut(folder / f"step-{STEPS_PER_MERGED_PART + number:06d}.parquet")
        mend_tables(run_dir / "metrics")
    assert sorted(path.name for path in (run_dir / "metrics").glob("broken-*")) == ["broken-001", "broken-002"]
