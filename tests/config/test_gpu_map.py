from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.config.compose import compose
from rollpacker.config.gpu_map import GpuMap, map_text
from rollpacker.core.errors import ConfigError

REAL = ["model.path=m", "data.path=d"]


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("all", (0, 1, 2, 3), (0, 1, 2, 3)),
        ("2-3", (2, 3), (2, 3)),
        ("3,0-1", (0, 1, 3), (0, 1, 3)),
        ("2@0", (2,), ()),
        ("all 2-3@0", (2, 3), (0, 1, 2, 3)),
        ("all none@0", (), (0, 1, 2, 3)),
        ("1@0-1", (1,), (1,)),
    ],
)
def test_a_map_says_which_gpus_of_each_node(text: str, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    gpu_map = GpuMap.parse(text)
    assert (gpu_map.gpus_of(0, 4), gpu_map.gpus_of(1, 4)) == (first, second)


@given(st.sets(st.integers(0, 63), min_size=1))
def test_gpus_come_ascending_in_whatever_order_they_are_named(gpus: set[int]) -> None:
    assert GpuMap.parse(",".join(map(str, gpus))).gpus_of(5, 64) == tuple(sorted(gpus))


def test_the_rest_is_what_the_trainer_s_map_does_not_name() -> None:
    words = [*REAL, "placement.engine=rest", "placement.trainer='2-3 none@1'"]
    maps = compose(words).placement.maps
    assert maps is not None
    assert [maps[0].gpus_of(node, 4) for node in (0, 1)] == [(0, 1), (0, 1, 2, 3)]


@given(st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=6).filter(any))
def test_a_map_that_was_written_names_the_same_gpus(nodes: list[set[int]]) -> None:
    gpus = [tuple(sorted(each)) for each in nodes]
    gpu_map = GpuMap.parse(map_text(gpus))
    assert [gpu_map.gpus_of(node, 8) for node in range(len(gpus))] == gpus


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("al", "`al` is no range of GPUs"),
        ("0-", "`0-` is no range"),
        ("-1", "`-1` is no range"),
        ("0-3@", "`` is no range of nodes"),
        ("3-1", "range 3-1 ends before it begins"),
        ("0-3,2", "GPU 2 twice"),
        ("0@1 2@0-1", "node 1 twice"),
        ("0-3 4-7", "two parts without `@`"),
        ("' '", "names no GPU"),
    ],
)
def test_what_is_no_map_is_refused_with_its_value_and_an_example(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose([*REAL, f"placement.engine='{text.strip(chr(39))}'", "placement.trainer=0"])
    assert said in raised.value.problem
    assert raised.value.problem.startswith("placement.engine=")
    assert "placement.engine=0-7" in raised.value.remedy


def test_both_roles_have_a_map_or_none_has() -> None:
    with pytest.raises(ConfigError, match=r"placement\.trainer=null with placement\.engine=0-3"):
        compose([*REAL, "placement.engine=0-3"])
    assert compose(REAL).placement.maps is None


def test_one_gpu_is_a_number_and_a_map_nevertheless() -> None:
    maps = compose([*REAL, "placement.engine=0", "placement.trainer=1"]).placement.maps
    assert maps is not None
    assert [gpu_map.gpus_of(0, 2) for gpu_map in maps] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["engine.tensor_parallel=2"], ["engine.tensor_parallel=2 with engine.name=torch", "engine=vllm"]),
        (["trainer.tensor_parallel=2"], ["trainer.tensor_parallel=2 with trainer.name=torch", "trainer=megatron"]),
        (
            ["trainer.name=fsdp", "trainer.pipeline_parallel=2"],
            ["trainer.pipeline_parallel=2 with trainer.name=fsdp", "trainer=megatron"],
        ),
        (["trainer.data_parallel=2"], ["trainer.data_parallel=2 with trainer.name=torch", "trainer=fsdp"]),
        (
            ["engine.name=vllm", "engine.tensor_parallel=4", "engine.resources.num_gpus=2"],
            ["engine.resources.num_gpus=2 with engine.tensor_parallel=4", "Set engine.resources.num_gpus=4"],
        ),
        (
            ["trainer.name=fsdp", "trainer.resources.num_gpus=2"],
            ["trainer.resources.num_gpus=2 with trainer.name=fsdp", "trainer.data_parallel"],
        ),
        (["placement=colocated", "engine.resources.num_gpus=3"], ["placement.engine=all", "Leave out"]),
        (["placement=colocated", "trainer.resources.num_gpus=3"], ["placement.trainer=all", "Leave out"]),
        (["engine.resources.num_gpus=1.5"], ["num_gpus=1.5", "below 1"]),
        (["placement=overlapping", "backend=sim", "model=qwen2.5-7b"], ["placement.engine=", "backend=ray"]),
    ],
    ids=" ".join,
)
def test_parallel_work_that_nobody_can_do_is_refused_before_anything_starts(words: list[str], said: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        compose([*REAL, *words])
    assert all(part in str(raised.value) for part in said), str(raised.value)


@pytest.mark.parametrize(
    "words",
    [
        ["engine.name=vllm", "engine.tensor_parallel=2"],
        ["engine.name=vllm", "engine.tensor_parallel=2", "engine.resources.num_gpus=2"],
        [
            "trainer.name=megatron",
            "trainer.tensor_parallel=2",
            "trainer.pipeline_parallel=2",
            "trainer.data_parallel=2",
        ],
        ["trainer.name=fsdp", "trainer.data_parallel=4", "trainer.resources.num_gpus=1"],
        ["placement=overlapping", "trainer.name=fsdp", "trainer.data_parallel=4"],
    ],
    ids=" ".join,
)
def test_parallel_work_that_somebody_can_do_is_legal(words: list[str]) -> None:
    assert compose([*REAL, *words])
