"""Which lost nodes end a run."""

import errno
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from rollpacker.core.errors import EngineFailed, StorageFailed, WorldError
from rollpacker.runtime.ray import cluster as cluster_module
from rollpacker.runtime.ray.cluster import RayCluster
from rollpacker.runtime.ray.node import pin_of
from rollpacker.runtime.ray.rendezvous import NodeReport, Rendezvous
from tests.runtime.allocations import enter_step


class LostFolder(Rendezvous):
    """A network file system that has lost the folder, for ever."""

    def reports_of(self, _ranks):
        raise OSError(errno.ESTALE, "Stale file handle")

    def finish(self):
        raise StorageFailed(f"{self.folder} could not be written: the network file system lost the file (ESTALE)")


class HungFolder(Rendezvous):
    """A network file system that answers nothing before `answer`."""

    def __init__(self, folder, monkeypatch):
        super().__init__(folder)
        self.answer = threading.Event()
        monkeypatch.setattr(cluster_module, "log_tail", self._wait)

    def _wait(self, *_):
        assert self.answer.wait(10), "the event loop is blocked"

    def reports_of(self, _ranks):
        self._wait()
        return {}

    def finish(self):
        self._wait()


class ClusterOfThree(RayCluster):
    """Does not ask Ray which of its nodes are missing."""

    def __init__(self, folder):
        self.notes, self.missing = [], []
        (folder / "ray").mkdir()
        self.rendezvous = Rendezvous(folder / "ray")
        super().__init__(
            SimpleNamespace(is_running=True, log=folder / "head.log"),
            node_names=["n0", "n1", "n2"],
            rendezvous=self.rendezvous,
            start_deadline_s=1,
            stage=self.notes.append,
        )

    async def _missing_nodes(self):
        return self.missing


async def test_a_lost_node_ends_the_run_unless_it_can_be_spared_which_is_said_once(tmp_path):
    cluster = ClusterOfThree(tmp_path)
    cluster.spare([2], cluster.notes.append)
    assert await cluster._find_loss() is None
    cluster.missing = [2]
    assert (await cluster._find_loss(), await cluster._find_loss()) == (None, None)
    assert cluster.lost_nodes == {2}
    (note,) = cluster.notes
    assert note.startswith("n2 is lost: Ray there has ended. The run goes on without it, unless Slurm")
    cluster.rendezvous.report(1, NodeReport(node="n1", stage="ended", failure="Ray has ended on n1."))
    loss = await cluster._find_loss()
    assert loss.problem == "n1 is lost: Ray there has ended."


async def test_until_actors_are_placed_every_node_is_needed(tmp_path):
    cluster = ClusterOfThree(tmp_path)
    cluster.missing = [2]
    assert "n2 is lost" in (await cluster._find_loss()).problem


async def test_a_folder_that_cannot_be_read_is_no_lost_node_and_ray_still_says_which_are(tmp_path):
    cluster = ClusterOfThree(tmp_path)
    cluster.rendezvous = LostFolder(tmp_path / "ray")
    assert await cluster._find_loss() is None
    cluster.missing = [1]
    assert (await cluster._find_loss()).problem == "n1 is lost: Ray there has ended."


async def test_a_head_that_hangs_is_asked_by_one_thread_however_often(tmp_path, monkeypatch):
    cluster, answer, asked = ClusterOfThree(tmp_path), threading.Event(), []
    monkeypatch.setattr(cluster_module, "_ANSWER_S", 0.02)

    def nodes():
        asked.append(len(asked))
        answer.wait(60)
        return [{"Alive": True, "Resources": {pin_of(index): 1}} for index in (0, 1)]

    monkeypatch.setattr("ray.nodes", nodes)
    cluster._missing_nodes = partial(RayCluster._missing_nodes, cluster)
    for _ in range(3):
        assert await cluster._find_loss() is None
    assert asked == [0]
    answer.set()
    monkeypatch.setattr(cluster_module, "_ANSWER_S", 60)
    assert "n2 is lost" in (await cluster._find_loss()).problem


async def test_a_folder_that_hangs_is_read_by_one_thread_while_the_driver_goes_on_and_ray_is_asked(
    tmp_path, monkeypatch
):
    cluster, answer, asked = ClusterOfThree(tmp_path), threading.Event(), []
    monkeypatch.setattr(cluster_module, "_ANSWER_S", 0.02)

    def reports_of(ranks):
        asked.append([*ranks])
        answer.wait(60)
        return {0: NodeReport(node="n0", stage=""), 1: NodeReport(node="n1", stage="", failure="Ray has ended on n1.")}

    cluster.rendezvous.reports_of = reports_of
    for _ in range(3):
        assert await cluster._find_loss() is None
    assert asked == [[0, 1, 2]]
    cluster.missing = [2]
    assert "n2 is lost" in (await cluster._find_loss()).problem
    answer.set()
    monkeypatch.setattr(cluster_module, "_ANSWER_S", 60)
    assert "n1 and n2 is lost" in (await cluster._find_loss()).problem


class EndingCluster(ClusterOfThree):
    """Starts nothing, and says in its notes when its head has been stopped."""

    def __init__(self, folder, monkeypatch):
        super().__init__(folder)
        self._head.stop = lambda: self.notes.append("stopped")
        monkeypatch.setattr(cluster_module, "_authenticate", lambda _: None)  # Ray's settings in this process

    async def _start_head(self):
        pass

    async def _wait_for_nodes(self):
        pass


async def lose_an_engine(cluster):
    async with cluster:
        raise EngineFailed("The process of engine-1 died.")


async def test_the_head_ends_and_the_runs_own_error_is_told_when_the_folder_is_lost(tmp_path, monkeypatch):
    cluster = EndingCluster(tmp_path, monkeypatch)
    cluster.rendezvous, cluster.missing = LostFolder(tmp_path / "ray"), [2]
    with pytest.raises(WorldError, match="n2 is lost"):
        await lose_an_engine(cluster)
    assert cluster.notes[-1] == "stopped"


async def test_the_head_ends_and_a_lost_node_is_told_without_its_log_when_the_folder_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "_ANSWER_S", 0.1)
    monkeypatch.setattr(cluster_module, "_BLAME_S", 0.15)
    cluster, folder = EndingCluster(tmp_path, monkeypatch), HungFolder(tmp_path / "ray", monkeypatch)
    cluster.rendezvous, cluster.missing = folder, [2]
    with pytest.raises(WorldError, match=f"n2 is lost(?s:.*){folder.folder} does not answer"):
        await lose_an_engine(cluster)
    assert cluster.notes[-1] == "stopped"
    folder.answer.set()


async def test_the_search_for_a_lost_node_pauses_between_two_looks(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "_BLAME_S", 5 * cluster_module._POLL_S)
    cluster, looks = EndingCluster(tmp_path, monkeypatch), []
    cluster.rendezvous.reports_of = lambda _: looks.append(len(looks)) or {}
    with pytest.raises(EngineFailed):
        await lose_an_engine(cluster)
    assert 1 <= len(looks) <= 5


@pytest.mark.parametrize("is_requeued", [False, True])
async def test_a_job_that_lost_a_node_is_requeued_where_a_batch_script_waits_for_that(
    tmp_path, monkeypatch, is_requeued
):
    enter_step(monkeypatch)
    monkeypatch.setenv("ROLLPACKER_REQUEUE_FILE", str(tmp_path / "7.requeue") if is_requeued else "")
    cluster = EndingCluster(tmp_path, monkeypatch)
    cluster.missing = [2]
    with pytest.raises(WorldError, match="n2 is lost"):
        await lose_an_engine(cluster)
    assert (tmp_path / "7.requeue").exists() is is_requeued


async def test_a_run_that_ends_well_is_not_requeued_for_a_node_that_is_lost_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "request_requeue", pytest.fail)
    cluster = EndingCluster(tmp_path, monkeypatch)
    async with cluster:
        cluster._loss = await cluster._lost([2])


async def test_the_head_ends_when_the_search_for_a_lost_node_fails(tmp_path, monkeypatch):
    cluster = EndingCluster(tmp_path, monkeypatch)

    async def fail():
        raise ConnectionError("Ray does not answer")

    cluster._missing_nodes = fail
    with pytest.raises(ConnectionError):
        await lose_an_engine(cluster)
    assert cluster.notes[-1] == "stopped"
