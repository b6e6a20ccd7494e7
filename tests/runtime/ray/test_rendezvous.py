"""Where the ranks of a job attempt meet."""

import stat

import pytest

from rollpacker.core.errors import StorageFailed
from rollpacker.runtime.ray.rendezvous import NodeReport, Rendezvous


@pytest.fixture
def rendezvous(tmp_path):
    opened = Rendezvous(tmp_path / "run" / "jobs" / "7.0.0")
    opened.open()
    return opened


def test_every_rank_may_open_it_and_only_the_user_may_look_in(rendezvous):
    rendezvous.open()
    assert stat.S_IMODE(rendezvous.folder.stat().st_mode) == 0o700


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
    rendezvous.finish()
    assert other.head_address() == "10.0.0.1:6379"
    assert other.report_of(1) == NodeReport(node="node2", stage="ended", failure="No room.")
    assert other.is_finished
