"""Every engine and every rank has its GPUs, shared only where the maps say so."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.config.compose import compose
from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.placement import PlacementSection
from rollpacker.core.errors import ConfigError
from rollpacker.launch.shape import job_shape
from rollpacker.runtime.placing.actors import ClusterSize, PlacedActor
from rollpacker.runtime.placing.planning import placed_actors
from rollpacker.runtime.placing.topology import colocated_engines, run_gpus

REAL = ["model.path=m", "data.path=d", "run.dir=r"]
BASE = compose([*REAL, "engine.name=vllm", "trainer.name=megatron", "engine.resources.num_cpus=0"])


def sized(
    num_engines: int,
    tensor_parallel: int = 1,
    data_parallel: int = 1,
    trainer_tensor_parallel: int = 1,
    *,
    placement: tuple[str, str] | None = None,
    num_gpus: tuple[float, float] = (0, 0),
) -> RunConfig:
    """The base with other numbers, without the price of composing it."""
    free = {"num_cpus": 0.0}
    return BASE.model_copy(
        update={
            "engine": BASE.engine.model_copy(
                update={
                    "num_engines": num_engines,
                    "tensor_parallel": tensor_parallel,
                    "resources": BASE.engine.resources.model_copy(update=free | {"num_gpus": num_gpus[0]}),
                }
            ),
            "trainer": BASE.trainer.model_copy(
                update={
                    "data_parallel": data_parallel,
                    "tensor_parallel": trainer_tensor_parallel,
                    "resources": BASE.trainer.resources.model_copy(update=free | {"num_gpus": num_gpus[1]}),
                }
            ),
            "placement": PlacementSection(engine=placement[0], trainer=placement[1])
            if placement
            else PlacementSection(),
        }
    )


def nodes_of(num_nodes: int, num_gpus: int) -> ClusterSize:
    return ClusterSize(num_nodes=num_nodes, num_cpus=8, num_gpus=num_gpus)


def seats_of(placed: list[PlacedActor], role: str) -> list[tuple[int, int]]:
    return [(actor.node, gpu) for actor in placed if actor.role == role for gpu in actor.gpus]


def assert_everyone_is_placed(config: RunConfig, placed: list[PlacedActor], num_gpus: int) -> None:
    engines = [actor for actor in placed if actor.role == "engine"]
    ranks = [actor for actor in placed if actor.role == "trainer"]
    assert len(engines) == config.engine.num_engines
    assert len(ranks) == config.trainer.num_ranks
    assert all(len(engine.gpus) == config.engine.tensor_parallel for engine in engines)
    assert all(len(rank.gpus) == 1 for rank in ranks)
    for begin in range(0, len(ranks), config.trainer.tensor_parallel):
        assert len({rank.node for rank in ranks[begin : begin + config.trainer.tensor_parallel]}) == 1
    assert all(gpu < num_gpus for actor in placed for gpu in actor.gpus)
    for role in ("engine", "trainer"):
        assert max(Counter(seats_of(placed, role)).values()) == 1


@given(
    num_nodes=st.integers(1, 4),
    degree=st.sampled_from((1, 2, 4)),
    trainer_degree=st.sampled_from((1, 2, 4)),
    engine_groups=st.sets(st.integers(0, 1), min_size=1),
    trainer_groups=st.sets(st.integers(0, 1), min_size=1),
)
def test_maps_place_everyone_and_those_who_share_a_gpu_take_turns(
    num_nodes: int, degree: int, trainer_degree: int, engine_groups: set[int], trainer_groups: set[int]
) -> None:
    """On nodes of eight GPUs, of which each role has one half, the other, or both."""
    maps = [",".join(f"{4 * half}-{4 * half + 3}" for half in groups) for groups in (engine_groups, trainer_groups)]
    config = sized(
        4 * len(engine_groups) * num_nodes // degree,
        degree,
        4 * len(trainer_groups) * num_nodes // trainer_degree,
        trainer_degree,
        placement=(maps[0], maps[1]),
    )
    placed = placed_actors(config, nodes_of(num_nodes, 8))
    assert_everyone_is_placed(config, placed, 8)
    of_engines, of_trainer = set(seats_of(placed, "engine")), set(seats_of(placed, "trainer"))
    shared_halves = engine_groups & trainer_groups
    assert {gpu // 4 for _, gpu in of_engines & of_trainer} == shared_halves
    takers = {actor.name for actor in placed if actor.role == "engine" and actor.gpus[0] // 4 in shared_halves}
    assert set(colocated_engines(config, placed)) == takers


@given(
    num_nodes=st.integers(1, 4),
    num_engines=st.integers(1, 12),
    num_ranks=st.integers(1, 6),
    degree=st.sampled_from((1, 2, 4)),
)
def test_without_maps_nobody_shares_a_gpu_and_nobody_sleeps(
    num_nodes: int, num_engines: int, num_ranks: int, degree: int
) -> None:
    config = sized(num_engines, degree, num_ranks, num_gpus=(degree, 1))
    try:
        placed = placed_actors(config, nodes_of(num_nodes, 8))
    except ConfigError:
        assert num_engines * degree + num_ranks > 8 * num_nodes or degree > 1  # blocks of several may not fit
        return
    assert_everyone_is_placed(config, placed, 8)
    assert not set(seats_of(placed, "engine")) & set(seats_of(placed, "trainer"))
    assert colocated_engines(config, placed) == ()
    assert placed[-1].node == placed[num_engines].node == 0  # reward and first rank, beside the driver


def test_ranks_fill_the_first_node_and_go_on_where_there_is_room() -> None:
    placed = placed_actors(sized(1, 1, 6, 2, num_gpus=(1, 1)), nodes_of(2, 8))
    assert [actor.node for actor in placed if actor.role == "trainer"] == [0] * 8 + [1] * 4
    assert placed[0].gpus == (4,)


def test_shares_of_a_gpu_are_handed_out_until_it_is_full() -> None:
    config = sized(3, num_gpus=(0.4, 0.5))
    placed = placed_actors(config, nodes_of(1, 2))
    assert [actor.gpus for actor in placed] == [(0,), (1,), (1,), (0,), ()]
    assert colocated_engines(config, placed) == ()  # a reserved share belongs to its actor all the time
    with pytest.raises(ConfigError, match=r"1\.9 GPUs, and there is no room for engine-1"):
        placed_actors(sized(2, num_gpus=(0.7, 0.5)), nodes_of(1, 2))  # no two of them fit on one


def test_engines_and_ranks_follow_their_maps_in_order() -> None:
    placed = placed_actors(sized(3, 2, 2, placement=("all 0-1@0", "2-3@0")), nodes_of(2, 4))
    assert [(actor.name, actor.node, actor.gpus) for actor in placed] == [
        ("engine-0", 0, (0, 1)),
        ("engine-1", 1, (0, 1)),
        ("engine-2", 1, (2, 3)),
        ("trainer-0", 0, (2,)),
        ("trainer-1", 0, (3,)),
        ("reward", 0, ()),
    ]
    assert run_gpus(placed[2], 4) == (6, 7)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (sized(8, placement=("0-7", "0")), ["placement.engine=0-7 names GPU 7 of node 0", "4 GPUs, counted from 0"]),
        (sized(8, placement=("all", "0@2")), ["placement.trainer=0@2 names node 2", "2 nodes of 4 GPUs"]),
        (sized(2, 2, placement=("0-2", "0")), ["3 GPUs of node 0, which engine.tensor_parallel=2", "multiple of 2"]),
        (
            sized(8, 1, 1, 2, placement=("all", "0-1@0 3@1")),
            ["1 GPU of node 1, which trainer.tensor_parallel=2", "multiple of 2"],
        ),
        (
            sized(2, placement=("all", "0")),
            ["placement.engine=all holds 8 engines", "engine.num_engines=2", "Set engine.num_engines=8"],
        ),
        (
            sized(8, 1, 1, 2, placement=("all", "all")),
            ["placement.trainer=all holds 8 ranks", "has 2", "Set trainer.data_parallel=4"],
        ),
        (sized(1, placement=("0@0", "none@0")), ["holds 0 ranks", "Change placement.trainer"]),
    ],
)
def test_a_map_that_fits_neither_nodes_nor_actors_is_refused_with_a_way_out(config: RunConfig, said: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        placed_actors(config, nodes_of(2, 4))
    assert all(part in str(raised.value) for part in said), str(raised.value)
    assert all((raised.value.problem, raised.value.allowed, raised.value.remedy))


def test_cores_are_counted_on_each_node() -> None:
    config = compose([*REAL, "placement.engine=0-3", "placement.trainer=0@0", "engine.num_engines=8"])
    size = ClusterSize(num_nodes=2, num_cpus=5, num_gpus=4)
    with pytest.raises(ConfigError, match=r"6 actors on node 0 reserve 5\.5 CPUs"):
        placed_actors(config, size)


@pytest.mark.parametrize(
    ("words", "num_nodes"),
    [
        (["placement=colocated", "engine.num_engines=16", "trainer.data_parallel=16"], 2),
        (["placement=separate", "engine.num_engines=8", "trainer.data_parallel=8"], 2),
        (["placement=overlapping", "engine.num_engines=24", "trainer.data_parallel=12"], 3),
        (["placement.engine='all none@0'", "placement.trainer=all@0", "trainer.data_parallel=8"], 2),
    ],
    ids=str,
)
def test_a_job_asks_for_as_many_nodes_as_its_maps_fill(words: list[str], num_nodes: int) -> None:
    config = compose([*REAL, "cluster=h800", "trainer.name=fsdp", "engine.num_engines=8", *words])
    assert job_shape(config).num_nodes == num_nodes
