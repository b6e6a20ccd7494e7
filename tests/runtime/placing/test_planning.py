"""Every actor has its node before anything starts."""

from collections import Counter

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError
from rollpacker.runtime.placing.actors import ClusterSize
from rollpacker.runtime.placing.planning import cluster_size, placed_actors
from rollpacker.runtime.placing.topology import colocated_engines, shared_by_judges, spare_nodes
from tests.runtime.allocations import allocation


def configured(*overrides):
    return compose(["model.path=m", "data.path=d", "run.dir=r", *overrides])


def size(num_nodes, num_cpus, num_gpus):
    return ClusterSize(num_nodes=num_nodes, num_cpus=num_cpus, num_gpus=num_gpus)


def nodes_of(config, *numbers):
    return {actor.name: actor.node for actor in placed_actors(config, size(*numbers))}


def test_trainer_and_reward_work_beside_the_driver_and_engines_on_every_node():
    nodes = nodes_of(configured("engine.num_engines=2"), 2, 4, 0)
    assert nodes == {"engine-0": 0, "engine-1": 1, "trainer": 0, "reward": 0}


def test_a_run_of_no_steps_has_no_trainer():
    nodes = nodes_of(configured("engine.num_engines=2", "run.num_steps=0", "evaluation.path=e"), 2, 4, 0)
    assert nodes == {"engine-0": 0, "engine-1": 1, "reward": 0}


def test_a_run_can_spare_the_nodes_that_hold_at_most_engines():
    engines_only = placed_actors(configured("engine.num_engines=3"), size(3, 4, 0))
    assert spare_nodes(engines_only, 4) == {1, 2, 3}, "the last one is empty"
    words = ("engine.resources.num_gpus=1", "trainer.resources.num_gpus=1", "reward.judge.resources.num_gpus=1")
    with_judge = placed_actors(configured(*JUDGED, *words), size(2, 16, 4))
    assert {actor.node for actor in with_judge} == {0, 1}
    assert spare_nodes(with_judge, 2) == set(), "a judge is on the second one"


def test_engines_spread_evenly_and_neighbours_in_number_are_neighbours_in_place():
    nodes = nodes_of(configured("engine.num_engines=6"), 3, 8, 0)
    assert [nodes[f"engine-{index}"] for index in range(6)] == [0, 0, 1, 1, 2, 2]


def test_engines_leave_the_first_node_to_a_trainer_that_fills_it():
    config = configured(
        "engine.num_engines=4", "engine.resources.num_gpus=4", "trainer.resources.num_gpus=8", "engine.num_threads=1"
    )
    nodes = nodes_of(config, 3, 96, 8)
    assert Counter(node for name, node in nodes.items() if name.startswith("engine")) == {1: 2, 2: 2}


def test_fractions_of_a_core_fill_a_node_to_the_last():
    config = configured(
        "engine.num_engines=7",
        "engine.resources.num_cpus=0.1",
        "trainer.resources.num_cpus=0.2",
        "reward.resources.num_cpus=0.1",
    )
    assert len(placed_actors(config, size(1, 1, 0))) == 9


@pytest.mark.parametrize(
    ("overrides", "numbers", "said"),
    [
        (["engine.num_engines=9"], (2, 5, 0), ["engine-8", "10.5 CPUs", "2 nodes of 5 CPUs", "cluster.num_nodes"]),
        (["trainer.resources.num_gpus=4"], (2, 8, 2), ["trainer", "reserves 1 and 4", "cluster.gpus_per_node"]),
        (["trainer.resources.num_cpus=4"], (2, 4, 0), ["reward", "share the first one"]),
    ],
)
def test_an_actor_without_a_place_is_named_before_anything_starts(overrides, numbers, said):
    with pytest.raises(ConfigError) as raised:
        placed_actors(configured(*overrides), size(*numbers))
    assert all(part in str(raised.value) for part in said)


def test_an_allocation_has_what_slurm_gave_and_not_what_the_machine_has(tmp_path):
    given = allocation(tmp_path, node_names=("node1", "node2"), num_cpus=3, gpus=("0", "2"))
    assert cluster_size(configured(), given) == ClusterSize(num_nodes=2, num_cpus=3, num_gpus=2)


def test_cores_of_an_allocation_are_shared_only_where_the_configuration_says_so(tmp_path):
    one_core = allocation(tmp_path, num_cpus=1)
    with pytest.raises(ConfigError, match=r"reserve 3\.5 CPUs"):
        cluster_size(configured(), one_core)
    assert cluster_size(configured("backend.num_cpus=4"), one_core).num_cpus == 4


def test_nodes_of_environments_that_the_job_does_not_have_are_missed_before_anything_starts(tmp_path):
    words = ["environment=gym", "environment.env=my.py:Maze", "reward=environment", "reward.function=null"]
    config = configured("cluster=slurm", "cluster.environment_nodes.num_nodes=2", *words)
    with pytest.raises(ConfigError, match=r"num_nodes=2, and the job has 0 of them"):
        cluster_size(config, allocation(tmp_path))


def test_rays_shared_memory_fits_into_what_slurm_gave(tmp_path):
    small = allocation(tmp_path, num_cpus=8, memory_bytes=1000 << 20)
    with pytest.raises(ConfigError, match=r"object_store_mb=1000 would take all the memory.\n *The job has 1,000 MB"):
        cluster_size(configured("backend.object_store_mb=1000"), small)
    assert cluster_size(configured("backend.object_store_mb=80"), small)


JUDGED = ("reward=judge", "reward.judge.model.path=judge", "reward.judge.num_replicas=2", "engine.num_engines=4")


def gpus_of(config, *numbers):
    return {actor.name: (actor.node, actor.gpus) for actor in placed_actors(config, size(*numbers)) if actor.gpus}


def test_judges_have_gpus_of_their_own_where_most_are_free():
    words = ("engine.resources.num_gpus=1", "trainer.resources.num_gpus=1", "reward.judge.resources.num_gpus=1")
    placed = gpus_of(configured(*JUDGED, *words), 2, 8, 4)
    assert (placed["judge-0"], placed["judge-1"]) == ((1, (0,)), (0, (1,)))
    assert len(set(placed.values())) == len(placed) == 7
    assert "reward" not in {actor.name for actor in placed_actors(configured(*JUDGED), size(1, 8, 0))}
    both = configured(*JUDGED, "reward=walk", "reward.domains.qa=judge")
    assert {"reward", "judge-1"} <= {actor.name for actor in placed_actors(both, size(1, 8, 0))}


def test_judges_work_where_their_map_says_beside_others_or_alone():
    maps = ("placement.engine=0-3", "placement.trainer=4", "placement.judge='3,5'")
    config = configured(*JUDGED, *maps)
    placed = placed_actors(config, size(1, 8, 6))
    assert gpus_of(config, 1, 8, 6)["judge-0"] == (0, (3,))
    assert shared_by_judges(placed) == {"judge-0", "engine-3"}
    assert colocated_engines(config, placed) == ()
    with pytest.raises(ConfigError, match=r"placement.judge=3 holds 1 judge[\s\S]*num_replicas=1"):
        placed_actors(configured(*JUDGED, *maps, "placement.judge=3"), size(1, 8, 6))
    with pytest.raises(ConfigError, match=r"placement.judge=9 names GPU 9"):
        placed_actors(configured(*JUDGED, *maps, "placement.judge=9"), size(1, 8, 6))
