"""Which lost nodes end a run."""

from types import SimpleNamespace

from rollpacker.runtime.ray.cluster import RayCluster
from rollpacker.runtime.ray.rendezvous import NodeReport, Rendezvous


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
    assert cluster.notes == ["n2 is lost: Ray there has ended. The run goes on without it."]
    cluster.rendezvous.report(1, NodeReport(node="n1", stage="ended", failure="Ray has ended on n1."))
    loss = await cluster._find_loss()
    assert loss.problem == "n1 is lost: Ray there has ended."


async def test_until_actors_are_placed_every_node_is_needed(tmp_path):
    cluster = ClusterOfThree(tmp_path)
    cluster.missing = [2]
    assert "n2 is lost" in (await cluster._find_loss()).problem
