"""With GPUs every key that nobody names follows from them and from the model; without, nothing changes."""

from __future__ import annotations

import functools

import pytest

from rollpacker.cli.main import main
from rollpacker.config.compose import compose, hydra_session
from rollpacker.config.multirun import compose_sweep
from rollpacker.config.record import differences, to_yaml
from rollpacker.config.roots import TRAIN
from rollpacker.core.errors import ConfigError, UserError
from rollpacker.launch.shape import job_shape, ray_size
from rollpacker.runtime.placing import gpus as gpus_module
from rollpacker.runtime.placing.actors import ClusterSize
from rollpacker.runtime.placing.automatic import Chooser, complete, complete_point
from rollpacker.runtime.placing.gpus import Gpus, gpus_of_run
from rollpacker.runtime.placing.model_fit import validate_fit
from rollpacker.runtime.placing.planning import placed_actors
from tests.golden.placements import WORDS, write_models


@pytest.fixture
def models(tmp_path):
    return write_models(tmp_path)


def chosen(model, *words, number=8, card=80, nodes=1, has_vllm=True):
    gpus = Gpus(num_nodes=nodes, per_node=number, num_bytes=card and card * 1e9, has_vllm=has_vllm)
    return compose([f"model.path={model}", *WORDS, *words], Chooser(gpus).complete)


def test_a_command_without_a_word_on_gpus_uses_all_of_them_in_turns(models):
    config = chosen(models["7B"])
    assert (config.engine.name, config.engine.num_engines, config.engine.tensor_parallel) == ("vllm", 8, 1)
    assert (config.trainer.name, config.trainer.num_ranks, config.model.dtype) == ("fsdp", 8, "bfloat16")
    assert (config.placement.engine, config.placement.trainer) == ("all", "all")
    assert config.trainer.recompute_activations
    assert config.trainer.logits_chunk_tokens == 1024
    placed = placed_actors(config, ClusterSize(num_nodes=1, num_cpus=64, num_gpus=8))
    assert {actor.gpus for actor in placed if actor.role == "engine"} == {(gpu,) for gpu in range(8)}


def test_without_gpus_the_configuration_is_what_it_was(models):
    words = [f"model.path={models['7B']}", *WORDS]
    assert to_yaml(chosen(models["7B"], number=0)) == to_yaml(compose(words))
    assert chosen(models["7B"], "placement=none") == compose([*words, "placement=none"])
    assert chosen(models["7B"], "backend=sim", "hardware=h800", "workload=math").engine.name == "torch"


def test_the_first_gpu_alone_is_a_gpu_though_yaml_reads_it_as_the_number_0(models):
    as_number, as_map = (chosen(models["1.5B"], "system=flash", f"placement.trainer={each}") for each in ("0", "0@0"))
    assert as_number.engine.num_engines == as_map.engine.num_engines == 7
    assert str(as_number.placement.engine) == "rest"


def test_a_trainer_that_streams_keeps_two_copies_where_they_fit_and_shards_gradients_elsewhere(models):
    lending = chosen(models["7B"], "system=rollpacker").trainer
    assert (lending.shard_ranks, lending.shard_gradients) == (4, False)
    apart = chosen(models["1.5B"], "system=rollpacker", "placement=separate")  # nothing is lent
    for config in (chosen(models["7B"], "system=tail"), chosen(models["14B"], "system=rollpacker"), apart):
        assert (config.trainer.shard_ranks, config.trainer.shard_gradients) == (None, True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["engine=torch"], {"engine.name": "torch", "engine.num_engines": 8}),
        (["engine.tensor_parallel=4"], {"engine.name": "vllm", "engine.num_engines": 2}),
        (["engine.num_engines=2"], {"engine.num_engines": 2, "engine.tensor_parallel": 4}),  # also the default
        (["model.dtype=float32"], {"model.dtype": "float32", "engine.tensor_parallel": 1}),
        (["trainer=torch", "model.dtype=float32"], {"trainer.name": "torch", "placement.trainer": "0@0"}),
        (["trainer=megatron"], {"trainer.tensor_parallel": 1, "trainer.data_parallel": 8}),
        (["trainer=megatron", "trainer.context_parallel=2"], {"trainer.data_parallel": 4}),
        (
            ["trainer=megatron", "trainer.tensor_parallel=2", "trainer.data_parallel=4"],
            {"trainer.pipeline_parallel": 1},
        ),
        (["placement=separate"], {"placement.engine": "0-3", "engine.num_engines": 4, "trainer.data_parallel": 4}),
        (["trainer.max_tokens_per_microbatch=3000"], {"trainer.max_tokens_per_microbatch": 3000}),
        (["trainer.data_parallel=4", "engine.num_engines=8"], {"placement.trainer": "0-3@0"}),
    ],
    ids=" ".join,
)
def test_what_is_named_is_kept_and_the_rest_follows(models, words, expected):
    config = chosen(models["0.5B" if "trainer=torch" in words else "7B"], *words)
    for key, value in expected.items():
        assert functools.reduce(getattr, key.split("."), config) == value, key


def test_weights_that_leave_no_half_to_the_cache_are_cut(models):
    assert chosen(models["7B"], card=24, nodes=2).engine.tensor_parallel == 2
    assert chosen(models["32B"], card=141).engine.tensor_parallel == 2
    assert chosen(models["7B"], card=80, has_vllm=False).engine.name == "torch"


def test_memory_that_is_unknown_is_taken_for_the_usual_one_and_refuses_nothing(models):
    assert chosen(models["7B"], card=None).engine.tensor_parallel == 1
    assert chosen(models["32B"], card=None, number=1).trainer.num_ranks == 1


def test_several_nodes_are_one_trainer_and_engines_within_nodes(models):
    config = chosen(models["32B"], number=4, nodes=2, card=141)
    assert (config.trainer.num_ranks, config.engine.num_engines * config.engine.tensor_parallel) == (8, 8)
    placed_actors(config, ClusterSize(num_nodes=2, num_cpus=32, num_gpus=4))


def test_a_run_of_no_steps_has_engines_on_all_gpus_and_needs_no_memory_to_train(models):
    words = ["run.num_steps=0", "evaluation.path=test.jsonl"]
    config = chosen(models["7B"], *words, number=1)
    assert (config.engine.num_engines, config.engine.tensor_parallel) == (1, 1)
    assert chosen(models["32B"], *words, card=24).engine.tensor_parallel == 8
    config = chosen(models["7B"], *words)
    placed = placed_actors(config, ClusterSize(num_nodes=1, num_cpus=64, num_gpus=8))
    assert {actor.gpus for actor in placed if actor.role == "engine"} == {(gpu,) for gpu in range(8)}
    assert "trainer" not in {actor.role for actor in placed}


@pytest.mark.parametrize(
    ("model", "words", "gpus", "said"),
    [
        ("7B", [], {"number": 1}, ["7.6 billion parameters", "1 GPU of 80 GB", "Take 2 such GPUs"]),
        ("32B", [], {"number": 8, "card": 24}, ["cannot be trained on 8 GPUs of 24 GB", "by an estimate"]),
        ("30B-A3B", [], {}, ["Mixture of Experts, 128 in a layer", "dense"]),
        ("7B", ["engine.num_engines=4", "engine.tensor_parallel=1", "trainer.data_parallel=4"], {}, ["4 of 8 GPUs"]),
        ("7B", ["engine.resources.num_gpus=1", "trainer.resources.num_gpus=1"], {}, ["5 of 8 GPUs", "placement=none"]),
    ],
    ids=str,
)
def test_what_does_not_fit_and_a_gpu_that_nobody_uses_are_refused(models, model, words, gpus, said):
    with pytest.raises(UserError) as raised:
        chosen(models[model], *words, **gpus)
    assert all(part in str(raised.value) for part in said), str(raised.value)


def judged(models, *words, **gpus):
    judge = ["reward=judge", f"reward.judge.model.path={models['0.5B']}", "reward.judge.memory_share=0.3"]
    return chosen(models["7B"], *judge, *words, "placement.judge=0", **gpus)


def test_what_a_judge_has_of_a_gpu_is_left_to_it(models):
    assert chosen(models["7B"], card=48).engine.tensor_parallel == 1
    beside, in_turns = (judged(models, f"system={system}", card=40) for system in ("rollpacker", "tail"))
    assert chosen(models["7B"], card=40).engine.tensor_parallel == 1
    assert (beside.engine.tensor_parallel, in_turns.engine.tensor_parallel) == (2, 2)
    assert beside.trainer.max_tokens_per_microbatch < 16384
    assert in_turns.trainer.max_tokens_per_microbatch == 16384  # the judge sleeps in the trainer's turns
    size = ClusterSize(num_nodes=1, num_cpus=64, num_gpus=8)
    assert validate_fit(beside, size) is not None
    with pytest.raises(ConfigError, match=r"less a judge's 0\.3 \(reward.judge.memory_share\)"):
        judged(models, "system=rollpacker", "placement.trainer=0-7", card=36)


def test_copies_of_the_trainer_that_are_named_are_kept(models):
    trainer = chosen(models["1.5B"], "trainer.shard_ranks=4").trainer
    assert (trainer.num_ranks, trainer.shard_ranks, trainer.shard_gradients) == (8, 4, False)


@pytest.mark.parametrize("word", ["trainer.max_tokens_per_microbatch=1000000", "trainer.data_parallel=1"])
def test_a_size_that_is_named_and_does_not_fit_is_blamed_itself(models, word):
    with pytest.raises(ConfigError) as raised:
        chosen(models["7B"], word)
    assert f"with {word} needs" in raised.value.problem
    assert raised.value.remedy == f"Leave out {word.partition('=')[0]}."


def test_a_degree_that_is_named_is_no_reason(models):
    chooser = Chooser(Gpus(per_node=8, num_bytes=80e9, has_vllm=True))
    compose([f"model.path={models['7B']}", *WORDS, "engine.tensor_parallel=2"], chooser.complete)
    assert {choice.key: choice.reason for choice in chooser.chosen}["engine.num_engines"] == "as many as the GPUs hold"


def reason_of_engine(model, *words, has_vllm):
    chooser = Chooser(Gpus(per_node=8, num_bytes=80e9, has_vllm=has_vllm))
    compose([f"model.path={model}", *WORDS, *words], chooser.complete)
    return {choice.word: choice.reason for choice in chooser.chosen if choice.key == "engine.name"}


def test_an_engine_that_is_torch_because_vllm_is_missing_is_said_to_be_and_one_that_is_named_is_not(models):
    (reason,) = reason_of_engine(models["7B"], has_vllm=False).values()
    assert "pip install 'rollpacker[vllm]'" in reason
    assert reason_of_engine(models["7B"], "engine=torch", has_vllm=False) == {}
    assert reason_of_engine(models["7B"], has_vllm=True) == {"engine=vllm": "vLLM is installed"}


@pytest.mark.parametrize("has_vllm", [True, False])
def test_a_mixture_of_experts_is_evaluated_by_the_engine_that_serves_it(models, has_vllm):
    words = ["run.num_steps=0", "evaluation.path=test.jsonl"]
    ((word, reason),) = reason_of_engine(models["30B-A3B"], *words, has_vllm=has_vllm).items()
    assert (word, "Mixture of Experts" in reason) == ("engine=torch", True)
    assert chosen(models["30B-A3B"], *words).engine.num_engines == 8
    assert chosen(models["30B-A3B"], *words, "engine=vllm").engine.name == "vllm"


def test_gpus_that_maps_leave_out_are_said(models):
    assert chosen(models["0.5B"], "placement.engine=0-1", "placement.trainer=0-1").engine.num_engines == 2


def test_a_job_is_placed_on_what_it_asks_for(models):
    words = [f"model.path={models['14B']}", *WORDS, "cluster=h800", "cluster.num_nodes=2"]
    words += ["cluster.container.image=image.sif", "hydra/launcher=slurm"]
    (config,) = compose_sweep(words, complete_point=complete_point).configs
    assert (config.engine.name, config.trainer.num_ranks, job_shape(config).num_nodes) == ("vllm", 16, 2)
    assert len(placed_actors(config, ray_size(config))) == 16 + 16 + 1


def test_a_cluster_of_a_run_that_no_job_gets_gives_it_no_gpus(models, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus_module, "visible_gpus", lambda: 2)
    monkeypatch.setattr(gpus_module, "gpu_memory", lambda: 80e9)
    words = [f"model.path={models['0.5B']}", *WORDS, "cluster=h800"]
    assert compose(words, complete).trainer.num_ranks == 2
    local = ["hydra/launcher=slurm", "hydra.launcher.executor=local"]
    for launcher in (local, []):
        (config,) = compose_sweep([*words, *launcher], complete_point=complete_point).configs
        assert config.trainer.num_ranks == 2


def test_what_was_chosen_is_recorded_and_not_chosen_again(models):
    config = chosen(models["7B"], "system=tail")
    again = TRAIN.schema.model_validate(config.model_dump(mode="json"))
    assert again == config
    with hydra_session():
        given = dict.fromkeys(differences(config))
        assert Chooser(Gpus(per_node=2, num_bytes=80e9, has_vllm=True)).complete(again.model_dump(), set(given)) == {}


def test_check_refuses_what_does_not_fit_on_this_machine(models, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus_module, "visible_gpus", lambda: 4)
    monkeypatch.setattr(gpus_module, "gpu_memory", lambda: 24e9)
    monkeypatch.setattr(gpus_module, "is_vllm_for_gpus_installed", lambda: True)
    assert main(["check", f"model.path={models['14B']}", *WORDS]) == 2
    told = capsys.readouterr().err
    assert "cannot be trained on 4 GPUs of 24 GB" in told
    assert main(["check", f"model.path={models['30B-A3B']}", *WORDS]) == 2
    assert "Mixture of Experts" in capsys.readouterr().err


@pytest.mark.parametrize(
    "word", ["run=abc", "engine=5", "engine.resources=3", "engine.resources.num_gpus=x", "trainer.data_parallel=x"]
)
def test_what_is_no_configuration_is_refused_as_without_gpus(word, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(UserError, match=word.partition("=")[0]):
        compose(["model.path=m", "data.path=d", "run.dir=r", word], complete)


def test_a_job_that_is_to_use_fewer_gpus_of_its_nodes_is_no_larger_for_it():
    cluster = {"name": "h800", "gpus_per_node": 8}
    assert gpus_of_run({"cluster": cluster, "backend": {"num_gpus": 4}}, is_job=True).number == 4
    assert gpus_of_run({"cluster": cluster, "backend": {"num_gpus": None}}, is_job=True).number == 8
