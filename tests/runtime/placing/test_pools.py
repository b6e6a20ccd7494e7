"""What `placement=auto` makes of the GPUs of an asynchronous run."""

from __future__ import annotations

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError
from rollpacker.runtime.placing.actors import ClusterSize
from rollpacker.runtime.placing.automatic import Chooser
from rollpacker.runtime.placing.gpus import Gpus
from rollpacker.runtime.placing.planning import placed_actors
from rollpacker.runtime.placing.topology import colocated_engines
from tests.golden.placements import WORDS, write_models


@pytest.fixture
def models(tmp_path):
    return write_models(tmp_path)


def chosen(model, *words, number=8, card=80, nodes=1):
    gpus = Gpus(num_nodes=nodes, per_node=number, num_bytes=card * 1e9, has_vllm=True)
    return compose([f"model.path={model}", *WORDS, "system=flash", *words], Chooser(gpus).complete)


def gpus_of(config, number=8, nodes=1):
    placed = placed_actors(config, ClusterSize(num_nodes=nodes, num_cpus=64, num_gpus=number))
    assert colocated_engines(config, placed) == ()
    roles = {
        role: {(actor.node, gpu) for actor in placed if actor.role == role for gpu in actor.gpus}
        for role in ("engine", "trainer")
    }
    assert len(roles["engine"]) + len(roles["trainer"]) == number * nodes
    return {role: len(gpus) for role, gpus in roles.items()}


@pytest.mark.parametrize(
    ("model", "given", "trainer", "degree"),
    [
        ("7B", {}, 4, 1),
        ("7B", {"nodes": 2}, 8, 1),
        ("7B", {"nodes": 3}, 12, 1),
        ("14B", {"card": 60}, 6, 2),  # 6 ranks hold what 5 do not
        ("7B", {"number": 2, "nodes": 3}, 3, 1),
    ],
)
def test_half_of_the_gpus_train_or_as_many_more_as_hold_the_model(models, model, given, trainer, degree):
    config = chosen(models[model], **given)
    number, nodes = given.get("number", 8), given.get("nodes", 1)
    gpus = gpus_of(config, number, nodes)
    assert gpus["trainer"] == config.trainer.num_ranks == trainer
    assert config.engine.tensor_parallel == degree
    assert config.engine.num_engines * degree == gpus["engine"] == number * nodes - trainer


@pytest.mark.parametrize(
    ("words", "trainer"),
    [
        (["trainer.data_parallel=2"], 2),
        (["engine.num_engines=6"], 2),
        (["placement.trainer=5-7"], 3),
        (["placement.engine=0-4"], 3),
        (["placement=separate"], 4),
        (["trainer=torch", "model.dtype=float32"], 1),
    ],
    ids=str,
)
def test_what_is_named_decides_the_split(models, words, trainer):
    config = chosen(models["1.5B"], *words)
    assert gpus_of(config) == {"engine": 8 - trainer, "trainer": trainer}


def test_one_gpu_cannot_be_divided(models):
    with pytest.raises(ConfigError, match=r"system\.max_staleness=2 on 1 GPU of 80 GB"):
        chosen(models["0.5B"], number=1)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["engine.num_engines=9"], 9),
        (["engine.num_engines=8"], 8),
        (["engine.num_engines=4", "engine.tensor_parallel=2"], 8),
        (["trainer.data_parallel=8"], 8),
        (["trainer.data_parallel=4", "trainer=megatron", "trainer.tensor_parallel=2"], 8),
        (["placement.engine=all"], 8),
        (["placement.engine=none"], 0),
        (["placement.trainer=0-7"], 8),
    ],
    ids=str,
)
def test_what_is_named_leaves_each_role_a_gpu_or_the_key_is_refused(models, words, number):
    with pytest.raises(ConfigError) as caught:
        chosen(models["1.5B"], *words)
    assert f"{words[0]} takes {number} of 8 GPUs of 80 GB." in caught.value.problem
    assert caught.value.allowed.endswith("each of them 1 to 7.")
    assert caught.value.remedy.startswith(f"Change {words[0].partition('=')[0]}, ")


def test_a_judge_whose_map_alone_is_named_leaves_the_split_as_it_is(models):
    config = chosen(models["7B"], "placement.judge=0", "reward=judge", f"reward.judge.model.path={models['0.5B']}")
    assert gpus_of(config) == {"engine": 4, "trainer": 4}


def test_the_trainer_leaves_engines_gpus_on_which_they_fit(models):
    assert gpus_of(chosen(models["14B"], card=72)) == {"engine": 3, "trainer": 5}
    narrow = chosen(models["14B"], "engine.vllm.memory_share=0.4", card=72)  # an engine of one GPU does not fit
    assert gpus_of(narrow) == {"engine": 2, "trainer": 6}
    assert narrow.engine.tensor_parallel == 2


def test_copies_that_are_named_decide_how_many_gpus_train(models):
    assert gpus_of(chosen(models["0.5B"], "trainer.shard_ranks=3")) == {"engine": 2, "trainer": 6}
