"""A few of the worlds in which workers come and go; `python -m tests.fuzz.elastic_world` runs many."""

import pytest

from tests.fuzz.elastic_world import ElasticWorld


@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_a_world_in_which_workers_come_and_go_holds(seed):
    ElasticWorld(seed, has_workers=seed % 5 != 0).run()
