"""Node lists as Slurm writes them."""

import pytest

from rollpacker.runtime.job.node_list import expand_node_list


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("node1", ["node1"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("gpu[08-10,3],login", ["gpu08", "gpu09", "gpu10", "gpu3", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a-b1,c[5].x", ["a-b1", "c5.x"]),
    ],
)
def test_a_node_list_is_spelled_out_in_its_own_order(short, names):
    assert list(expand_node_list(short)) == names
