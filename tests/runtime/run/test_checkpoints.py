"""Which checkpoint is whole, after every damage that a file can have."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollpacker.core.errors import StorageFailed
from rollpacker.runtime.rollout.request_book import RequestBook
from rollpacker.runtime.run.checkpoints import SCHEMA_VERSION, CheckpointMeta, CheckpointStore
from rollpacker.runtime.run.file_checksums import END_BYTES, find_change, record_files
from tests.cli.inputs import tree_of
from tests.runtime.driving import until
from tests.unreadable import make_unreadable

META = CheckpointMeta(
    schema_version=SCHEMA_VERSION, run_id="a", fingerprint="f", step=0, elapsed_s=1.5, attempt=0, files={}
)
FILES = ("meta.json", "scheduler.json", "order.json", "trainer/trainer.pt", "trainer/model/model.safetensors")


class WritingTrainer:
    """Saves what a trainer saves."""

    async def save(self, folder: Path) -> None:
        (folder / "model").mkdir()
        for name in ("trainer.pt", "model/model.safetensors", "model/tokenizer.json"):
            (folder / name).write_bytes(name.encode() * 100)


class TrainerInTheWay(WritingTrainer):
    """Leaves a folder where a file of the checkpoint comes."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def save(self, folder: Path) -> None:
        (folder.parent / self._name).mkdir()


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Two checkpoints, after the steps 2 and 3."""
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 3):
        asyncio.run(save(store, step))
    return store


async def save(store: CheckpointStore, step: int, trainer: WritingTrainer | None = None) -> None:
    await store.save(
        replace(META, step=step),
        scheduler={"a": 1},
        order={"b": 2},
        rollouts=RequestBook(),
        trainer=trainer or WritingTrainer(),
    )


class SlowDisk:
    """Writes nothing before `release`, or writes nothing through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any = os, call: str = "fsync") -> None:
        self.is_asked = threading.Event()
        self._is_released = threading.Event()
        self._writers: set[threading.Thread] = set()
        self._write = getattr(module, call)
        monkeypatch.setattr(module, call, self._wait)

    def _wait(self, *given: Any, **named: Any) -> None:
        self._writers.add(threading.current_thread())
        self.is_asked.set()
        assert self._is_released.wait(10), "the event loop is blocked"
        self._write(*given, **named)

    def release(self) -> None:
        """Write, and wait until nobody writes any more."""
        self._is_released.set()
        for thread in self._writers - {threading.current_thread()}:
            thread.join()


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


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_that_cannot_be_read_now_is_not_broken(
    store: CheckpointStore, tmp_path: Path, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "checkpoints" / "step-000003" / name
    with monkeypatch.context() as patched:
        make_unreadable(patched, file, number)
        with pytest.raises(StorageFailed, match=f"{name} cannot be read: {os.strerror(number)}"):
            store.find()
    found = store.find()
    assert found.newest is not None
    assert found.newest.meta.step == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lend this process another user's rights")
def test_checkpoints_that_may_not_be_listed_are_not_taken_for_none() -> None:
    with tempfile.TemporaryDirectory() as name:  # every user may enter it
        Path(name).chmod(0o755)
        store = CheckpointStore(Path(name), keep=1)
        assert store.steps() == []
        (Path(name) / "checkpoints").mkdir(mode=0)
        os.seteuid(65534)
        try:
            with pytest.raises(StorageFailed, match="Permission denied"):
                store.steps()
        finally:
            os.seteuid(0)


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


@pytest.mark.parametrize("key", [each.name for each in fields(CheckpointMeta)])
def test_a_checkpoint_whose_record_lacks_something_is_broken(store: CheckpointStore, tmp_path: Path, key: str) -> None:
    file = tmp_path / "checkpoints" / "step-000003" / "meta.json"
    plain = json.loads(file.read_text())
    del plain[key]
    file.write_text(json.dumps(plain))
    assert store.find().broken[0].problem == f"meta.json is damaged: {key}: Field required"


def test_a_record_of_another_version_is_told_by_its_version_whatever_else_it_holds(
    store: CheckpointStore, tmp_path: Path
) -> None:
    file = tmp_path / "checkpoints" / "step-000003" / "meta.json"
    file.write_text('{"schema_version": 999, "step": "three", "checksums": {}}')
    assert store.find().broken[0].problem == f"meta.json has schema version 999, not {SCHEMA_VERSION}"


def names_in(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


def test_one_that_is_too_old_is_deleted_also_when_another_one_became_the_best(
    store: CheckpointStore, tmp_path: Path
) -> None:
    assert names_in(tmp_path) == ["step-000002", "step-000003"]
    store.mark_best(2)
    asyncio.run(save(store, 4))
    asyncio.run(save(store, 5))
    assert names_in(tmp_path) == ["best", "step-000002", "step-000004", "step-000005"]
    store.mark_best(5)
    assert store.steps() == [4, 5]
    asyncio.run(save(store, 6))
    assert names_in(tmp_path) == ["best", "step-000005", "step-000006"]


def test_a_broken_checkpoint_that_was_the_best_is_not_marked_any_more_nor_is_one_that_takes_its_place(
    store: CheckpointStore, tmp_path: Path
) -> None:
    store.mark_best(3)
    store.set_aside(broken_one(store, tmp_path / "checkpoints" / "step-000003"))
    assert store.best_step() is None
    asyncio.run(save(store, 3))
    assert names_in(tmp_path) == ["broken-step-000003", "step-000002", "step-000003"]


def test_the_best_checkpoint_stays_marked_when_another_one_is_broken(store: CheckpointStore, tmp_path: Path) -> None:
    store.mark_best(2)
    store.set_aside(broken_one(store, tmp_path / "checkpoints" / "step-000003"))
    assert store.best_step() == 2


@pytest.fixture
def copied(store: CheckpointStore, tmp_path: Path) -> Path:
    """A run whose best checkpoint is an old one, copied with its link followed, as `cp -rL` and `scp -r` do."""
    store.mark_best(2)
    for step in (4, 5):
        asyncio.run(save(store, step))
    return shutil.copytree(tmp_path, tmp_path / "copied", symlinks=False)


def test_a_copy_that_followed_the_link_to_the_best_checkpoint_is_linked_again(copied: Path) -> None:
    store = CheckpointStore(copied, keep=2)
    assert store.best_step() == 2
    assert store.relink_best() == copied / "checkpoints" / "copied-best"
    assert store.relink_best() is None
    store.hide_old()
    store.remove_unfinished()
    assert names_in(copied) == ["best", "copied-best", "step-000002", "step-000004", "step-000005"]
    assert (copied / "checkpoints" / "best").readlink() == Path("step-000002")
    store.mark_best(5)
    assert store.best_step() == 5


@pytest.mark.parametrize("what", ["a file", "a folder of something else", "the copy of one that is not there"])
def test_what_is_no_mark_of_the_best_checkpoint_is_moved_away(copied: Path, what: str) -> None:
    store = CheckpointStore(copied, keep=2)
    best = copied / "checkpoints" / "best"
    if what == "the copy of one that is not there":
        shutil.rmtree(store.folder(2))
    else:
        shutil.rmtree(best)
        best.mkdir() if what == "a folder of something else" else best.touch()
    assert store.relink_best() == best.with_name("copied-best")
    assert store.best_step() is None
    store.mark_best(5)
    assert store.best_step() == 5


def test_a_checkpoint_that_is_not_there_cannot_be_the_best(store: CheckpointStore, tmp_path: Path) -> None:
    store.mark_best(1)
    assert names_in(tmp_path) == ["step-000002", "step-000003"]


@pytest.mark.parametrize("name", ["scheduler.json", "order.json", "rollouts.json", "rollouts.npz", "meta.json"])
def test_a_file_of_a_checkpoint_that_cannot_be_written_is_told_with_how_to_go_on(
    store: CheckpointStore, tmp_path: Path, name: str
) -> None:
    before = tree_of(tmp_path)
    with pytest.raises(StorageFailed, match=r"(?s)step-000004 could not be written: .*run\.resume=auto"):
        asyncio.run(save(store, 4, TrainerInTheWay(name)))
    assert tree_of(tmp_path) == before


def test_a_disk_without_room_for_the_trainers_folder_is_told_with_how_to_go_on(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = os.mkdir

    def make_unless_full(path: Path, *words: object) -> None:
        if Path(path).name == "trainer":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        make(path, *words)

    monkeypatch.setattr(os, "mkdir", make_unless_full)
    before = tree_of(tmp_path)
    with pytest.raises(StorageFailed, match=r"step-000004 could not be written: the disk is full \(ENOSPC\)"):
        asyncio.run(save(store, 4))
    assert tree_of(tmp_path) == before


@pytest.mark.parametrize(("module", "call"), [(os, "fsync"), (np, "savez")])
async def test_a_slow_disk_does_not_block_the_event_loop(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, module: Any, call: str
) -> None:
    disk = SlowDisk(monkeypatch, module, call)
    saving = asyncio.create_task(save(store, 4))
    await until(disk.is_asked.is_set)
    assert store.steps() == [2, 3]
    disk.release()
    await saving
    assert store.steps() == [3, 4]


async def test_a_save_that_is_cancelled_while_the_disk_is_slow_changes_no_checkpoint_later(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    saving = asyncio.create_task(save(store, 4))
    await until(disk.is_asked.is_set)
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    disk.release()
    unfinished, *whole = names_in(tmp_path)
    assert unfinished.startswith(".tmp-")
    assert whole == ["step-000002", "step-000003"]
    store.remove_unfinished()
    assert names_in(tmp_path) == whole


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
