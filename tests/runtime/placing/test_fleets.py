"""Sets of engines of several degrees on the same GPUs."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError, EngineFailed
from rollpacker.core.ids import EngineId
from rollpacker.metrics import profile_fits
from rollpacker.metrics.profiles import ENGINE_MEASUREMENTS, write_profile
from rollpacker.runtime.placing import fleets
from rollpacker.runtime.placing.actors import ClusterSize
from rollpacker.runtime.placing.fleets import config_of, degrees_of
from rollpacker.runtime.placing.model_fit import validate_fit
from rollpacker.runtime.placing.planning import placed_actors
from rollpacker.runtime.placing.topology import colocated_engines
from rollpacker.runtime.ray.rebuilt_engine import RebuiltEngine
from tests.runtime.placing.test_placement_maps import BASE, sized
from tests.runtime.scripted import ScriptedEngine
from tests.sim.test_profile import profile

WORDS = ["model.path=m", "data.path=d", "run.dir=r", "engine=vllm", "system=planner"]


def with_degrees(config, *degrees: int):
    return config.model_copy(
        update={
            "engine": config.engine.model_copy(update={"degrees": degrees}),
            "system": config.system.model_copy(update={"planner": True}),
        }
    )


@given(
    num_nodes=st.integers(1, 3),
    configured=st.sampled_from((1, 2, 4)),
    per_node=st.sampled_from((4, 8)),
    is_colocated=st.booleans(),
)
def test_every_set_has_the_same_gpus_and_no_engine_leaves_its_node(num_nodes, configured, per_node, is_colocated):
    num_engines = num_nodes * per_node // configured
    config = with_degrees(
        sized(
            num_engines,
            configured,
            data_parallel=num_nodes * per_node if is_colocated else 1,
            placement=("all", "all") if is_colocated else None,
            num_gpus=(0 if is_colocated else configured, 0),
        ),
        1,
        2,
        4,
    )
    placed = placed_actors(config, ClusterSize(num_nodes=num_nodes, num_cpus=64, num_gpus=per_node))
    engines = [actor for actor in placed if actor.role == "engine"]
    sets = {degree: [engine for engine in engines if engine.degree == degree] for degree in (1, 2, 4)}
    for degree, members in sets.items():
        assert len(members) == num_nodes * per_node // degree
        assert all(len(engine.gpus) == degree for engine in members)
        gpus = Counter((engine.node, gpu) for engine in members for gpu in engine.gpus)
        assert gpus == Counter((node, gpu) for node in range(num_nodes) for gpu in range(per_node))
        if degree != configured:
            assert {(engine.resources.num_cpus, engine.resources.num_gpus) for engine in members} == {(0, 0)}
    assert len({engine.name for engine in engines}) == len(engines)
    assert set(colocated_engines(config, placed)) == ({engine.name for engine in engines} if is_colocated else set())


def test_without_a_planner_there_is_one_set() -> None:
    config = BASE.model_copy(update={"engine": BASE.engine.model_copy(update={"degrees": (1, 2)})})
    assert degrees_of(config.model_copy(update={"system": BASE.system.model_copy(update={"planner": False})})) == (1,)
    assert degrees_of(with_degrees(BASE, 1, 2)) == (1, 2)


def test_engines_that_a_set_cannot_be_made_of_are_refused() -> None:
    size = ClusterSize(num_nodes=2, num_cpus=64, num_gpus=3)
    with pytest.raises(ConfigError, match=r"3 engines of engine.tensor_parallel=1, which do not make whole engines"):
        placed_actors(with_degrees(sized(6, num_gpus=(1, 0)), 1, 2), size)
    with pytest.raises(ConfigError, match="3 GPUs do not divide by 2"):
        placed_actors(with_degrees(sized(3), 1, 2), size)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["engine.degrees=[1,4]"], "Each degree is twice the one before"),
        (["engine.degrees=[2,4]"], "without engine.tensor_parallel=1"),
        (["engine.degrees=[1,2]", "engine=torch"], "An engine of torch works on one device"),
    ],
)
def test_degrees_that_nobody_can_work_with_are_refused(words, message) -> None:
    with pytest.raises(ConfigError, match=message):
        compose([*WORDS, *words])


def test_a_degree_that_does_not_divide_the_model_is_named(inputs_of_two_heads) -> None:
    config = with_degrees(compose([*WORDS, f"model.path={inputs_of_two_heads}", "engine.num_engines=4"]), 1, 2, 4)
    with pytest.raises(ConfigError, match=r"engine.degrees=4 does not divide the model's 2 attention heads"):
        validate_fit(config)


@pytest.fixture
def inputs_of_two_heads(tmp_path):
    import json

    shape = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 512,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 2048,
        "vocab_size": 1000,
        "torch_dtype": "float32",
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    return tmp_path


def test_what_the_weights_take_less_is_the_caches(inputs_of_two_heads) -> None:
    """8.3 M parameters in float32 are 33 MB: at degree 2 each process has 16 MB more for its cache."""
    words = [*WORDS, f"model.path={inputs_of_two_heads}", "engine.vllm.kv_cache_mb=4", "model.dtype=float32"]
    config = compose([*words, "engine.degrees=[1,2]"])
    other = config_of(config, 2)
    assert (other.engine.tensor_parallel, other.engine.num_engines) == (2, 1)
    assert other.engine.vllm.kv_cache_mb == pytest.approx(4 + 16, abs=1)
    back = compose([*words, "engine.degrees=[1,2]", "engine.tensor_parallel=2", "engine.num_engines=1"])
    with pytest.raises(ConfigError, match="fewer GPUs have no room for a cache"):
        config_of(back, 1)


class ScriptedProcess(ScriptedEngine):
    """One process of an engine that is rebuilt."""

    async def kill(self) -> None:
        self.is_killed = True
        self.die()


async def test_a_rebuilt_engine_is_one_engine_over_several_processes() -> None:
    processes: list[ScriptedProcess] = []

    async def start() -> None:
        pass

    def begin():
        processes.append(ScriptedProcess("engine-0", lambda _: 1))
        return processes[-1], start()

    engine = RebuiltEngine(EngineId("engine-0"), begin, stop_s=5)
    listening = asyncio.create_task(engine.collect())
    for _ in range(2):
        with pytest.raises(EngineFailed, match="has no process"):
            await engine.stats()
        await engine.rebuild()
        await engine.stats()
        await asyncio.sleep(0)
        await engine.end()
        await engine.end()
    assert [process.is_killed for process in processes] == [True, True]
    assert not listening.done(), "an end on purpose is no failure"
    await engine.rebuild()
    processes[-1].die()
    with pytest.raises(EngineFailed):
        await listening


async def test_a_process_that_does_not_start_is_ended() -> None:
    process = ScriptedProcess("engine-0", lambda _: 1)

    async def fail() -> None:
        raise EngineFailed("no memory")

    engine = RebuiltEngine(EngineId("engine-0"), lambda: (process, fail()), stop_s=5)
    with pytest.raises(EngineFailed, match="no memory"):
        await engine.rebuild()
    assert process.is_killed


@pytest.mark.parametrize("lacking", ["decode", "prefill", "kv_cache"])
def test_a_profile_whose_degree_lacks_a_measurement_is_refused(tmp_path, monkeypatch, lacking):
    measured = profile()
    others = [point for point in measured.points if point.measurement in ENGINE_MEASUREMENTS]
    twice = [replace(point, tensor_parallel=2) for point in others if point.measurement != lacking]
    path = tmp_path / "profile.json"
    write_profile(path, replace(measured, points=(*measured.points, *twice)))
    monkeypatch.setattr(fleets, "transformer_of", Mock())
    monkeypatch.setattr(profile_fits, "check_model", Mock())
    config = compose([*WORDS, "engine.num_engines=2", "engine.degrees=[1,2]", f"engine.profile={path}"])
    with pytest.raises(ConfigError, match="no engines of degree 2, measured whole"):
        fleets.costs_of(config)
