import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError
from rollpacker.launch.shape import JobShape, job_shape, ray_size

REAL = ["model.path=model", "data.path=prompts.jsonl", "cluster=h800"]
MODELLED = ["backend=sim", "model=qwen2.5-7b", "cluster=slurm"]
PAPER = ["experiment=e2e", *REAL]


def _shape(*overrides: str) -> JobShape:
    return job_shape(compose(list(overrides)))


@pytest.mark.parametrize(("model", "num_nodes"), [("qwen2.5-7b", 2), ("qwen2.5-14b", 4), ("qwen2.5-32b", 8)])
def test_the_papers_end_to_end_runs_take_the_papers_nodes(model: str, num_nodes: int) -> None:
    shape = _shape(*PAPER, f"model={model}")
    assert (shape.num_nodes, shape.cluster.gpus_per_node) == (num_nodes, 8)


@pytest.mark.parametrize(
    ("num_engines", "gpus_per_engine", "num_nodes"),
    [(7, 1, 1), (8, 1, 2), (1, 8, 2), (4, 3, 2), (5, 3, 3), (2, 5, 2)],
)
def test_without_num_nodes_there_are_as_many_as_whole_actors_need(
    num_engines: int, gpus_per_engine: int, num_nodes: int
) -> None:
    """Beside a trainer of one GPU, on nodes of eight."""
    words = [f"engine.num_engines={num_engines}", f"engine.resources.num_gpus={gpus_per_engine}"]
    assert _shape(*REAL, *words, "trainer.resources.num_gpus=1").num_nodes == num_nodes


def test_a_run_without_gpus_takes_one_node() -> None:
    assert _shape(*REAL, "engine.num_engines=40").num_nodes == 1


def test_a_modelled_run_takes_one_node_however_many_gpus_it_models() -> None:
    assert _shape(*MODELLED, "engine.num_engines=64", "cluster.gpus_per_node=8").num_nodes == 1
    assert _shape(*MODELLED, "cluster.num_nodes=3").num_nodes == 3


def test_a_given_number_of_nodes_is_taken_and_too_few_are_refused() -> None:
    assert _shape(*PAPER, "cluster.num_nodes=3").num_nodes == 3
    with pytest.raises(ConfigError, match=r"(?s)placement\.engine=all holds 8 engines.*Set engine\.num_engines=8"):
        ray_size(compose([*PAPER, "cluster.num_nodes=1"]))


def test_an_actor_that_fits_no_node_is_refused() -> None:
    config = compose([*REAL, "engine.resources.num_gpus=9"])
    with pytest.raises(ConfigError, match="engine-0"):
        ray_size(config)


def test_ray_is_told_what_the_job_asks_for_unless_the_backend_says_otherwise() -> None:
    assert ray_size(compose(PAPER)).num_cpus == 96
    size = ray_size(compose([*PAPER, "backend.num_cpus=200", "backend.num_gpus=16"]))
    assert (size.num_nodes, size.num_cpus, size.num_gpus) == (1, 200, 16)


def test_shapes_are_equal_when_slurm_is_asked_for_the_same() -> None:
    assert _shape(*PAPER) == _shape(*PAPER, "cluster.num_nodes=2", "system=verl", "run.seed=1")
    assert _shape(*PAPER) != _shape(*PAPER, "cluster.time_limit_min=60")


def test_nodes_of_environments_are_a_component_that_has_no_gpus_and_takes_no_features_from_the_first() -> None:
    words = [
        "environment=gym",
        "environment.env=my.py:Maze",
        "reward=environment",
        "cluster.environment_nodes.num_nodes=3",
    ]
    more = ["cluster.partition=gpu", "cluster.qos=high", "cluster.constraint=h800", "cluster.environment_nodes.qos=low"]
    beside = _shape(*REAL, *words, *more, "cluster.environment_nodes.cpus_per_node=32").beside
    assert beside is not None
    asked = beside.cluster
    assert (beside.num_nodes, asked.cpus_per_node, asked.gpus_per_node, asked.gpu_type) == (3, 32, 0, None)
    assert (asked.partition, asked.qos, asked.constraint) == ("gpu", "low", None)
    assert _shape(*REAL, "cluster.environment_nodes.num_nodes=3").beside is None
