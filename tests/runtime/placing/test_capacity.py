"""Processes, threads and memory that the machine does not have are refused before anything starts."""

from __future__ import annotations

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError
from rollpacker.runtime.placing.capacity import Capacity, check_capacity

BASE = ["model.path=m", "data.path=p.jsonl", "run.dir=r"]
SMALL = Capacity(where="this machine", num_nodes=1, num_cores=2, memory_bytes=8 << 30)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["engine.num_engines=1000"], "1,001 processes"),
        (["engine.num_engines=10000", "engine.resources.num_cpus=0"], "10,001 processes"),
        (["trainer=fsdp", "trainer.data_parallel=100"], "the trainer's ranks: 100 x 1"),
        (["trainer.resources.num_cpus=1000"], "that reserve 1,002 CPUs"),
        (["backend.num_cpus=10000"], "backend.num_cpus=10000"),
        (["engine.num_threads=10000"], "engine.num_threads=10000"),
        (["trainer.num_threads=33"], "trainer.num_threads=33"),
        (["reward.num_workers=100000"], "reward.num_workers=100000"),
        (["reward=sandbox", "reward.sandbox.num_workers=1000"], "reward.sandbox.num_workers=1000"),
        (["backend.object_store_mb=1000000000"], "backend.object_store_mb=1000000000"),
        (["weight_sync.bucket_mb=5000"], "weight_sync.bucket_mb=5000, of which there are 2"),
        (["elastic.max_workers=2", "elastic.bucket_mb=9000"], "elastic.bucket_mb=9000 would"),
        (["reward=sandbox", "reward.sandbox.memory_mb=9000"], "reward.sandbox.memory_mb=9000"),
        (["reward=sandbox", "reward.sandbox.files_mb=9000"], "reward.sandbox.files_mb=9000"),
    ],
)
def test_what_the_machine_does_not_have_is_refused_with_what_it_has(words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_capacity(compose([*BASE, *words]), SMALL)
    assert problem in caught.value.problem
    assert "This machine has" in caught.value.allowed
    assert caught.value.remedy


def test_processes_that_the_cores_could_share_but_not_the_memory_are_refused() -> None:
    tiny = Capacity(where="this machine", num_nodes=1, num_cores=2, memory_bytes=2 << 30)
    with pytest.raises(ConfigError, match="2,048 MB of memory"):
        check_capacity(compose([*BASE, "engine.num_engines=20"]), tiny)


@pytest.mark.parametrize("words", [[], ["experiment=demo"], ["engine.num_engines=8"], ["engine.num_threads=4"]])
def test_actors_may_share_the_cores_of_a_small_machine(words: list[str]) -> None:
    check_capacity(compose([*BASE, *words]), SMALL)


def test_nodes_add_up_for_processes_but_not_for_the_threads_of_one() -> None:
    nodes = Capacity(where="the job", num_nodes=4, num_cores=2, memory_bytes=None)
    check_capacity(compose([*BASE, "engine.num_engines=100"]), nodes)
    with pytest.raises(ConfigError, match=r"engine\.num_threads=100 is more"):
        check_capacity(compose([*BASE, "engine.num_threads=100"]), nodes)


@pytest.mark.parametrize(
    "words", [["rollout.num_responses=100000000"], ["rollout.num_prompts=1000000000"], ["rollout.num_responses=30000"]]
)
def test_a_step_of_more_responses_than_the_driver_could_hold_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="responses per step") as caught:
        compose([*BASE, *words])
    assert "At most 1,000,000" in caught.value.allowed
