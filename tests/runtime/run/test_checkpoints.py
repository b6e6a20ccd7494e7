"""Which checkpoint is whole, after every damage that a file can have."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker.runtime.run.checkpoints import SCHEMA_VERSION, CheckpointMeta, CheckpointStore
from rollpacker.runtime.run.file_checksums import END_BYTES, find_change, record_files
from tests.cli.inputs import tree_of

META = CheckpointMeta(schema_version=SCHEMA_VERSION, run_id="a", fingerprint="f", step=0, elapsed_s=1.5, attempt=0)
FILES = ("meta.json", "scheduler.json", "order.json", "trainer/trainer.pt", "trainer/model/model.safetensors")


class WritingTrainer:
    """Saves what a trainer saves."""

    async def save(self, folder: Path) -> None:
        (folder / "model").mkdir()
        for name in ("trainer.pt", "model/model.safetensors", "model/tokenizer.json"):
            (folder / name).write_bytes(name.encode() * 100)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Two checkpoints, after the steps 2 and 3."""
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 3):
        saving = store.save(replace(META, step=step), scheduler={"a": 1}, order={"b": 2}, trainer=WritingTrainer())
        asyncio.run(saving)
    return store


def remove(path: Path) -> None:
    path.unlink()


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def overwrite(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


def make_a_list(path: Path) -> None:
    path.write_text("[]")


def make_an_object(path: Path) -> None:
    path.write_text("{}")


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_a_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


DAMAGES = (remove, halve, lengthen, empty, overwrite, make_a_list, make_an_object, make_a_folder, make_a_loop)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_with_a_damaged_file_is_broken_and_the_older_one_is_found(
    store: CheckpointStore, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "checkpoints" / "step-000003"
    damage(folder / name)
    before = tree_of(tmp_path)
    found = store.find()
    assert found.newest is not None
    assert found.newest.meta.step == 2
    assert [(broken.folder, broken.step) for broken in found.broken] == [(folder, 3)]
    assert name in found.broken[0].problem
    assert tree_of(tmp_path) == before


@pytest.mark.parametrize("place", ["nothing in it", "a file", "a link to nothing"])
def test_a_checkpoint_that_is_none_is_broken(store: CheckpointStore, tmp_path: Path, place: str) -> None:
    folder = tmp_path / "checkpoints" / "step-000003"
    shutil.rmtree(folder)
    if place == "nothing in it":
        folder.mkdir()
    elif place == "a file":
        folder.write_text("")
    else:
        folder.symlink_to("elsewhere")
    found = store.find()
    assert found.newest is not None
    assert found.newest.meta.step == 2
    assert len(found.broken) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", 2),
        ("step", "3"),
        ("step", -3),
        ("step", None),
        ("elapsed_s", float("nan")),
        ("elapsed_s", "x"),
        ("schema_version", 999),
        ("fingerprint", "another"),
        ("files", {"order.json": 3}),
        ("attempt", []),
    ],
)
def test_a_checkpoint_whose_record_says_what_cannot_be_is_broken(
    store: CheckpointStore, tmp_path: Path, key: str, value: object
) -> None:
    file = tmp_path / "checkpoints" / "step-000003" / "meta.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    found = store.find(fingerprint="f")
    assert found.newest is not None
    assert found.newest.meta.step == 2
    assert len(found.broken) == 1


def test_every_broken_checkpoint_is_kept_and_none_is_found_again(store: CheckpointStore, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "step-000003"
    kept = []
    for _ in range(3):
        if not folder.exists():
            shutil.copytree(tmp_path / "checkpoints" / "step-000002", folder)
        kept += [store.set_aside(broken).name for broken in store.find().broken or [broken_one(store, folder)]]
    assert kept == ["broken-step-000003", "broken-step-000003-2", "broken-step-000003-3"]
    assert store.steps() == [2]


def broken_one(store: CheckpointStore, folder: Path):
    empty(folder / "meta.json")
    return store.find().broken[0]


def test_a_checkpoint_of_a_version_that_did_not_record_its_files_is_resumed(
    store: CheckpointStore, tmp_path: Path
) -> None:
    file = tmp_path / "checkpoints" / "step-000003" / "meta.json"
    plain = json.loads(file.read_text())
    del plain["files"]
    file.write_text(json.dumps(plain))
    found = store.find()
    assert found.newest is not None
    assert found.newest.meta.step == 3
    make_a_list(file.with_name("order.json"))
    assert store.find().broken[0].problem == "order.json is damaged: it is no JSON object"


@pytest.mark.parametrize("size", [0, 1, END_BYTES - 1, END_BYTES, END_BYTES + 1, 2 * END_BYTES, 2 * END_BYTES + 1])
def test_a_change_at_the_beginning_or_the_end_of_a_file_of_any_size_is_found(tmp_path: Path, size: int) -> None:
    file = tmp_path / "deep" / "file"
    file.parent.mkdir()
    file.write_bytes(bytes(size))
    records = record_files(tmp_path)
    assert find_change(tmp_path, records) is None
    for place in {0, size - 1} if size else ():
        with file.open("r+b") as opened:
            opened.seek(place)
            opened.write(b"x")
        assert find_change(tmp_path, records) == "the content of deep/file has changed"
        file.write_bytes(bytes(size))
    file.write_bytes(bytes(size + 1))
    assert find_change(tmp_path, records) == f"deep/file has {size + 1:,} bytes of {size:,}"
