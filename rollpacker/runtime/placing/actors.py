"""The actors of a run: what each one reserves, and its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.resources import ActorResources
from rollpacker.config.words import counted

Role = Literal["engine", "trainer", "judge", "reward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedActor:
    """One actor, what it reserves, and its place."""

    name: str
    role: Role
    resources: ActorResources
    node: int = 0
    """Index of its node; 0 is the one that the driver runs on."""
    gpus: tuple[int, ...] = ()
    """Of its node, counted from 0, ascending. An actor that reserves a share of a GPU shares it with others."""
    degree: int = 1
    """Of tensor parallelism, of an engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSize:
    """The nodes of a run and the resources that Ray has on each."""

    num_nodes: int
    num_cpus: int
    num_gpus: int


def planned_actors(config: RunConfig) -> list[PlacedActor]:
    """Every actor of the run, without its place: engines, the trainer's ranks, judges, the reward."""
    engine, trainer, judge = config.engine.resources, config.trainer.resources, config.reward.judge
    judges = judge.resources
    if config.placement.maps is not None:
        engine = engine.model_copy(update={"num_gpus": config.engine.tensor_parallel})
        trainer = trainer.model_copy(update={"num_gpus": 1})
    if config.placement.judge is not None:
        judges = judges.model_copy(update={"num_gpus": judge.tensor_parallel})
    num_ranks = config.trainer.num_ranks if config.trains else 0
    ranks = ["trainer"] if num_ranks == 1 else [f"trainer-{rank}" for rank in range(num_ranks)]
    return [
        *(
            PlacedActor(name=f"engine-{index}", role="engine", resources=engine, degree=config.engine.tensor_parallel)
            for index in range(config.engine.num_engines)
        ),
        *(PlacedActor(name=name, role="trainer", resources=trainer) for name in ranks),
        *(
            PlacedActor(name=f"judge-{index}", role="judge", resources=judges)
            for index in range(judge.num_replicas if config.reward.has_judge else 0)
        ),
        *([PlacedActor(name="reward", role="reward", resources=config.reward.resources)] * config.reward.has_rules),
    ]


def nodes_in_words(size: ClusterSize) -> str:
    """Describe the nodes in a message."""
    return f"{counted(size.num_nodes, 'node')} of {counted(size.num_gpus, 'GPU')}"


def have_engines_gpus(config: RunConfig) -> bool:
    """Whether the run's engines work on GPUs; those of rollout workers then do so, too."""
    return any(actor.resources.num_gpus for actor in planned_actors(config) if actor.role == "engine")
