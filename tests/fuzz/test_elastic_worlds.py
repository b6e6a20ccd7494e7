"""A few of the worlds in which workers come and go.

`python -m tests.fuzz.elastic_world` runs many, and `tests.fuzz.async_elastic_world` those of asynchronous runs.
"""

import pytest

from tests.fuzz.async_elastic_world import AsyncElasticWorld
from tests.fuzz.elastic_world import ElasticWorld

RESTORED_IN_ANOTHER_ORDER = (6579, 11447, 18328)
"""A router that was restored gave what engines had held back in another order than one that never was."""
TAKEN_BACK_WHILE_ONE_DRAINED = 18726
"""Engines came back from the trainer because a worker drained, which the checker counted as one that serves."""


@pytest.mark.parametrize("seed", [*range(0, 60, 4), *RESTORED_IN_ANOTHER_ORDER, TAKEN_BACK_WHILE_ONE_DRAINED])
def test_a_world_in_which_workers_come_and_go_holds(seed):
    ElasticWorld(seed, has_workers=seed % 5 != 0).run()


@pytest.mark.parametrize("seed", range(0, 80, 4))
def test_a_world_in_which_workers_come_and_go_around_updates_holds(seed):
    AsyncElasticWorld(seed, has_workers=seed % 5 != 0).run()
