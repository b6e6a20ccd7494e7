"""What is said of a job that a cluster cannot run; the cluster is plain data here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollpacker.config.compose import compose
from rollpacker.config.words import replaced
from rollpacker.launch.shape import job_shape, workers_shape
from rollpacker.launch.site import Node, Partition, Site
from rollpacker.launch.site_mistakes import site_mistakes
from rollpacker.launch.submission_environment import as_submitted
from tests.launch.golden_scripts import ELASTIC

MODELLED = ["backend=sim", "model=qwen2.5-7b", "cluster=slurm"]


def _node(name: str, *, gpus: dict[str, int], num_cpus: int = 64, partitions: tuple[str, ...] = ("gpu",)) -> Node:
    return Node(
        name=name,
        num_cpus=num_cpus,
        memory_mb=512_000,
        gpus_by_type=gpus,
        state="IDLE",
        features=("ib", "h800", "80gb") if gpus else ("big",),
        partitions=partitions,
    )


GPU = Partition(
    name="gpu",
    is_default=True,
    state="UP",
    max_time_min=1440,
    default_time_min=None,
    max_nodes=2,
    grace_time_s=0,
    priority_tier=1,
    preempt_mode="OFF",
    allowed_qos=("tail", "Head"),
)
SITE = Site(
    version="24.11.5",
    settings={},
    partitions=(
        GPU,
        replace(GPU, name="cpu", is_default=False, allowed_qos=None, max_nodes=None),
        replace(GPU, name="closed", is_default=False, state="DRAIN"),
    ),
    nodes=(
        _node("g1", gpus={"h800": 8}, partitions=("gpu", "closed")),
        _node("g2", gpus={"h800": 8}, partitions=("gpu", "closed")),
        _node("g3", gpus={"a100": 4}, num_cpus=128, partitions=("gpu", "closed")),
        _node("c1", gpus={}, partitions=("cpu",)),
    ),
)


def _told(*overrides: str, site: Site = SITE) -> list[str]:
    return [str(mistake) for mistake in site_mistakes(job_shape(compose([*MODELLED, *overrides])), site)]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["cluster.gpus_per_node=8", "cluster.num_nodes=2", "cluster.gpu_type=h800", "cluster.cpus_per_node=64"],
        ["cluster.partition=cpu", "cluster.memory_gb_per_node=500", "cluster.qos=anyone"],
        ["cluster.constraint='ib&h800'", "cluster.time_limit_min=1440", "cluster.account=anyone"],
        ["cluster.constraint='[80gb*2&ib*2]'"],
        ["cluster.memory_gb_per_node=0"],
        ["cluster.partition='cpu,gpu'", "cluster.gpus_per_node=8", "cluster.qos=head"],
        ["cluster.partition='gpu,cpu'", "cluster.qos=anyone"],
        ["cluster.partition='closed,gpu'"],
        ["cluster.qos=TAIL", "cluster.time_limit_min=9999", "cluster.num_nodes=3"],
    ],
    ids=" ".join,
)
def test_what_the_cluster_can_give_is_not_complained_of(words: list[str]) -> None:
    assert _told(*words) == []


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        ("cluster.partition=gpus", "cluster.partition=gpus is not a partition", "Write cluster.partition=gpu"),
        ("cluster.partition='gpu,cpux'", "cluster.partition=gpu,cpux names cpux, which", "cluster.partition=gpu,cpu"),
        ("cluster.partition='gpu,x'", "gpu,x names x, which this Slurm does not have", "Choose one of them."),
        ("cluster.partition=closed", "Partition `closed` is DRAIN", "Choose another cluster.partition."),
        ("cluster.time_limit_min=1441", "cluster.time_limit_min=1441 is more", "Set cluster.time_limit_min=1440"),
        ("cluster.num_nodes=3", "3 nodes, more than partition `gpu` allows", "Choose another cluster.partition"),
        ("cluster.qos=tial", "cluster.qos=tial may not use", "Write cluster.qos=tail"),
        ("cluster.cpus_per_node=129", "cluster.cpus_per_node=129 is more than a node", "Lower cluster.cpus_per_node"),
        ("cluster.gpus_per_node=9", "Its largest node has 8 GPUs.", "Lower cluster.gpus_per_node"),
        ("cluster.gpu_type=h80", "cluster.gpu_type=h80 is on no node", "Write cluster.gpu_type=h800"),
        ("cluster.constraint=ibx", "names `ibx`, a feature that no node has", "Write ib instead."),
        ("cluster.memory_gb_per_node=540", "540 (514984 MiB) is more", "Lower cluster.memory_gb_per_node"),
    ],
)
def test_each_mistake_says_what_is_there_and_what_to_do(words: str, problem: str, remedy: str) -> None:
    (told,) = _told(words)
    assert problem in told
    assert remedy in told


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        ("elastic.job.partition=cpux", "elastic.job.partition=cpux is not a", "Write elastic.job.partition=cpu"),
        (
            "elastic.job.partition=cpu",
            "elastic.tensor_parallel=1 is more than a node",
            "Set elastic.job.partition to one whose",
        ),
        ("elastic.engines_per_worker=9", "elastic.tensor_parallel=9 is more", "Lower elastic.engines_per_worker x"),
        ("elastic.job.time_limit_min=1441", "elastic.job.time_limit_min=1441 is more", "time_limit_min=1440 or lower"),
        ("elastic.job.cpus_per_worker=129", "elastic.job.cpus_per_worker=129 is", "Lower elastic.job.cpus_per_worker"),
        ("elastic.job.memory_gb_per_worker=540", "elastic.job.memory_gb_per_worker=540 (", "another elastic.job.part"),
        ("elastic.job.gpu_type=h80", "elastic.job.gpu_type=h80 is on no", "Write elastic.job.gpu_type=h800"),
        (
            "elastic.job.gpu_type=tpu",
            "is on no node",
            "Leave elastic.job.gpu_type out, or choose another elastic.job.gpu_type or elastic.job.p",
        ),
        ("cluster.gpu_type=h80", "cluster.gpu_type=h80 is on no node", "Write elastic.job.gpu_type=h800"),
        ("elastic.job.qos=tial", "elastic.job.qos=tial may not", "Write elastic.job.qos=tail"),
        ("cluster.qos=tial", "cluster.qos=tial may not", "Write elastic.job.qos=tail"),
        ("elastic.job.constraint=ibx", "elastic.job.constraint=ibx names", "Write ib instead."),
    ],
)
def test_each_mistake_of_a_job_of_workers_names_the_key_that_it_was_made_in(
    words: str, problem: str, remedy: str
) -> None:
    least = ["elastic.job.partition=gpu", "elastic.job.least_time_min=null"]
    shape = workers_shape(compose(replaced([*ELASTIC, *least], [words])))
    assert shape is not None
    (told,) = (str(mistake) for mistake in site_mistakes(shape, SITE))
    assert problem in told
    assert remedy in told


def test_a_run_without_workers_of_slurms_has_no_job_for_them() -> None:
    assert workers_shape(compose(MODELLED)) is None


def test_of_several_partitions_each_says_why_it_does_not_take_the_job_when_none_does() -> None:
    told = _told("cluster.partition='gpu,cpu'", "cluster.gpus_per_node=8", "cluster.qos=anyone")
    assert len(told) == 2
    assert "cluster.qos=anyone may not use partition `gpu`" in told[0]
    assert "cluster.gpus_per_node=8 is more than a node of partition `cpu` has" in told[1]
    (told_of_open,) = _told("cluster.partition='closed,cpu'", "cluster.gpus_per_node=8")
    assert "partition `cpu`" in told_of_open


def test_where_slurm_shows_no_nodes_only_partitions_are_compared() -> None:
    hidden = replace(SITE, nodes=())
    words = ["cluster.gpus_per_node=9", "cluster.gpu_type=b200", "cluster.constraint=ibx"]
    assert _told(*words, site=hidden) == []
    (told,) = _told(*words, "cluster.time_limit_min=1441", site=hidden)
    assert "cluster.time_limit_min=1441 is more than partition `gpu` allows" in told


def test_gpus_are_sought_elsewhere_when_a_partition_has_none() -> None:
    (told,) = _told("cluster.partition=cpu", "cluster.gpus_per_node=1")
    assert "Set cluster.partition to one whose nodes have GPUs." in told


def test_a_type_of_gpu_counts_on_its_own() -> None:
    (told,) = _told("cluster.gpu_type=a100", "cluster.gpus_per_node=8")
    assert "Its largest node has 4 GPUs." in told


def test_enough_nodes_must_have_everything_at_once() -> None:
    """Two nodes have 8 GPUs, one has 128 CPUs, none has both."""
    (told,) = _told("cluster.gpus_per_node=8", "cluster.cpus_per_node=128")
    assert "Partition `gpu` has 0 of them." in told


def test_several_mistakes_of_one_job_are_all_said() -> None:
    told = _told("cluster.gpus_per_node=9", "cluster.cpus_per_node=129", "cluster.time_limit_min=9999")
    assert len(told) == 3


def test_a_slurm_without_a_default_partition_wants_one_named() -> None:
    partitions = tuple(replace(partition, is_default=False) for partition in SITE.partitions)
    (told,) = _told(site=replace(SITE, partitions=partitions))
    assert "no default partition" in told


def test_where_a_program_of_the_cluster_may_choose_the_partition_one_of_all_takes_the_job() -> None:
    chosen = replace(SITE, settings={"JobSubmitPlugins": "lua"})
    without_default = tuple(replace(partition, is_default=False) for partition in SITE.partitions)
    cpu_first = tuple(replace(partition, is_default=partition.name == "cpu") for partition in SITE.partitions)
    for partitions in (without_default, cpu_first):
        assert _told("cluster.gpus_per_node=8", site=replace(chosen, partitions=partitions)) == []
    assert len(_told("cluster.gpus_per_node=9", site=chosen)) == 2
    (told,) = _told("cluster.gpus_per_node=8", "cluster.partition=cpu", site=chosen)
    assert "partition `cpu`" in told


@pytest.mark.parametrize(("default", "longest"), [(2, 60), (None, 2)])
def test_the_usual_limit_of_a_partition_is_longer_than_the_lead_of_its_signal(
    default: int | None, longest: int
) -> None:
    short = replace(SITE, partitions=(replace(GPU, default_time_min=default, max_time_min=longest),))
    (told,) = _told(site=short)
    assert "Partition `gpu` limits a job that names no limit to 2 minutes" in told
    assert _told("cluster.signal_lead_s=119", site=short) == []
    if default is not None:
        assert _told("cluster.time_limit_min=60", site=short) == []
    unlimited = as_submitted(job_shape(compose(MODELLED)), {"SBATCH_TIMELIMIT": "UNLIMITED"})
    assert list(site_mistakes(unlimited, short)) == []


ENVIRONMENTS = (
    *("backend=ray", "model.path=m", "data.path=p", "environment=gym", "environment.env=e.py:E"),
    *(
        "reward=environment",
        "reward.function=null",
        "cluster.environment_nodes.num_nodes=1",
        "cluster.environment_nodes.partition=cpu",
    ),
)


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        (
            "partition=cpuu",
            "partition=cpuu is not a partition of this Slurm",
            "Write cluster.environment_nodes.partition=cpu",
        ),
        (
            "cpus_per_node=65",
            "cpus_per_node=65 is more than a node",
            "choose another cluster.environment_nodes.partition",
        ),
        ("num_nodes=2", "asks for 2 nodes of at least 8 CPUs and 0 GPUs", "Lower cluster.environment_nodes.num_nodes"),
        ("constraint=bigg", "constraint=bigg names `bigg`", "Write big instead"),
    ],
)
def test_what_nodes_of_environments_ask_for_is_compared_with_their_own_partition(
    words: str, problem: str, remedy: str
) -> None:
    (told,) = _told(*replaced(ENVIRONMENTS, [f"cluster.environment_nodes.{words}"]))
    assert problem in told
    assert remedy in told
