"""Where the ranks of a job attempt meet."""

import stat

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import StorageFailed, WorldError
from rollpacker.runtime.ray.rendezvous import NodeReport, Rendezvous, rendezvous_of
from tests.runtime.allocations import allocation


@pytest.fixture
def rendezvous(tmp_path):
    opened = Rendezvous(tmp_path / "run" / "jobs" / "7.0.0")
    opened.open(0, "node1")
    return opened


def test_every_rank_may_open_it_and_only_the_user_may_look_in(rendezvous):
    rendezvous.open(1, "node2")
    assert stat.S_IMODE(rendezvous.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_has_been_here_for_another_command_is_told_to_start_a_step(rendezvous, rank):
    Rendezvous(rendezvous.folder).open(1, "node2")
    with pytest.raises(WorldError, match=f"Rank {rank} has already run a command in this step") as raised:
        rendezvous.open(rank, "node")
    assert "srun" in raised.value.remedy


def test_a_job_whose_number_comes_again_does_not_meet_the_earlier_one(tmp_path):
    config = compose(["experiment=e2e", f"model.path={tmp_path}", f"data.path={tmp_path}", f"run.dir={tmp_path}/run"])
    for port in ("36207", "41245"):
        rendezvous = rendezvous_of(config, allocation(tmp_path, node_names=("a", "b"), launcher_port=port))
        assert rendezvous is not None
        rendezvous.open(0, "a")


@pytest.mark.parametrize(
    ("nodes", "words", "meets"),
    [
        (("a",), (), False),
        (("a", "b"), (), True),
        (("a",), ("elastic.max_workers=1",), True),
        (("a", "b"), ("backend=sim",), False),
    ],
)
def test_a_process_that_nobody_meets_needs_no_folder_that_others_see(nodes, words, meets, tmp_path):
    config = compose(["experiment=e2e", f"model.path={tmp_path}", f"data.path={tmp_path}", *words])
    assert (rendezvous_of(config, allocation(tmp_path, node_names=nodes)) is not None) == meets


def test_a_token_is_secret_and_made_once(rendezvous):
    rendezvous.create_token()
    assert stat.S_IMODE(rendezvous.token_file.stat().st_mode) == 0o600
    assert len(rendezvous.token_file.read_text()) == 64
    with pytest.raises(StorageFailed):
        rendezvous.create_token()


def test_what_one_rank_says_another_one_reads(rendezvous):
    other = Rendezvous(rendezvous.folder)
    assert (other.head_address(), other.report_of(1), other.is_finished) == (None, None, False)
    rendezvous.announce_head("10.0.0.1:6379")
    rendezvous.report(1, NodeReport(node="node2", stage="starting Ray"))
    rendezvous.report(1, NodeReport(node="node2", stage="ended", failure="No room."))
    rendezvous.report(3, NodeReport(node="node4", stage="serving"))
    rendezvous.finish()
    listings, list_folder = [], other._names
    other._names = lambda: listings.append(len(listings)) or list_folder()
    stages = {rank: report.stage for rank, report in other.reports_of(range(4)).items()}
    assert stages == {0: "starting", 1: "ended", 3: "serving"}
    assert listings == [0]
    assert other.head_address() == "10.0.0.1:6379"
    assert other.report_of(1) == NodeReport(node="node2", stage="ended", failure="No room.")
    assert other.is_finished
