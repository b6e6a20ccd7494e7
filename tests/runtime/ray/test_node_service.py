"""When a rank stops to serve the run of rank 0."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollpacker.core.errors import StorageFailed, WorldError
from rollpacker.runtime.ray import node_service
from rollpacker.runtime.ray.node_service import _Service
from rollpacker.runtime.ray.rendezvous import Rendezvous

LOST = OSError(errno.ESTALE, "Stale file handle")


class FlakyFolder(Rendezvous):
    """A shared folder that fails `num_failures` times, and then says that rank 0 is done."""

    def __init__(self, folder: Path, num_failures: int) -> None:
        super().__init__(folder)
        self.num_looks, self._num_failures = 0, num_failures

    @property
    def is_finished(self) -> bool:
        self.num_looks += 1
        if self.num_looks <= self._num_failures:
            raise LOST
        return True

    def head_address(self) -> str | None:
        raise LOST

    def report(self, _rank: int, _report: object) -> None:
        raise StorageFailed("The folder could not be written.") from LOST


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_service, "_POLL_S", 0)


@pytest.fixture
def head() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def service(folder: Rendezvous, start_s: float = 60) -> _Service:
    config = SimpleNamespace(backend=SimpleNamespace(deadlines=SimpleNamespace(start_s=start_s)))
    allocation = SimpleNamespace(name="n1", rank=1, node_names=("n0", "n1"))
    return _Service(config, allocation, folder)  # type: ignore[arg-type]


def node(folder: Path, *, is_running: bool = True) -> SimpleNamespace:
    return SimpleNamespace(is_running=is_running, log=folder / "n1.log", offer=SimpleNamespace(name="n1"))


@pytest.mark.parametrize("is_running", [True, False])
def test_it_serves_on_while_the_shared_folder_fails(tmp_path: Path, head: str, is_running: bool) -> None:
    folder = FlakyFolder(tmp_path, num_failures=3)
    service(folder)._serve(node(tmp_path, is_running=is_running), head)  # type: ignore[arg-type]
    assert folder.num_looks == 4


def test_a_folder_that_fails_for_ever_ends_it_with_the_heads_silence(
    tmp_path: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_service, "_HEAD_SILENCE_S", 0)
    monkeypatch.setattr(node_service, "is_listening", lambda _: False)
    with pytest.raises(WorldError, match="Nobody has answered"):
        service(FlakyFolder(tmp_path, 10**9))._serve(node(tmp_path), head)  # type: ignore[arg-type]


def test_a_folder_that_fails_while_it_waits_for_the_head_ends_it_at_the_deadline(tmp_path: Path) -> None:
    assert service(FlakyFolder(tmp_path, num_failures=3))._wait_for_head() is None
    with pytest.raises(WorldError, match="did not appear on n0"):
        service(FlakyFolder(tmp_path, 10**9), start_s=0)._wait_for_head()
