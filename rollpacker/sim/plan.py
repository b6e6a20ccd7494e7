"""Derives from a modelled run's configuration its GPUs, and the costs of all work on them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rollpacker.config.mistakes import raise_mistakes
from rollpacker.config.modelled_gpus import ModelledGpus, modelled_gpus
from rollpacker.core.errors import ConfigError
from rollpacker.core.ids import EngineId
from rollpacker.core.round_time_model import DegreeCosts
from rollpacker.data.degrees import engine_degree_mistakes, trainer_degree_mistakes
from rollpacker.data.shapes import Transformer, transformer_of
from rollpacker.sim.availability import availability_of
from rollpacker.sim.costs import GIGA, EngineCosts, PassCosts, StepCosts, TrainerCosts, weight_transfer_s
from rollpacker.sim.judge import JudgePlan, hardware_beside, placement_of, plan_judge
from rollpacker.sim.profile import ProfiledCluster
from rollpacker.trainers.replicas import whole_up_to

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.config.sections.model import ShapeSection
    from rollpacker.config.sections.modelled import HardwareSection


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Engines and a trainer, on the same GPUs in turns or each on its own."""

    model: Transformer
    hardware: HardwareSection
    gpus: ModelledGpus
    judge: JudgePlan | None
    """None when no response is read by an LLM judge."""
    profile: ProfiledCluster | None
    """Measured costs, which hold instead of formulas where there is one."""
    engines: Mapping[int, PassCosts]
    """By tensor-parallel degree; the configured one first, the others where a planner may choose them."""
    trainer: StepCosts
    member: PassCosts
    """Of an engine of a rollout worker."""
    keeps_prefixes: bool
    """Whether a trajectory's next turn finds in an engine's KV cache what its last one left there."""

    @property
    def engine(self) -> PassCosts:
        """Of the configured degree."""
        return next(iter(self.engines.values()))

    def weight_transfer_s(self, degree: int) -> float:
        """Send a policy to every engine of a degree."""
        if self.profile:
            return self.profile.weight_transfer_s(degree)
        return weight_transfer_s(
            self.model, self.hardware, share_elsewhere=self._share_elsewhere, tensor_parallel=degree
        )

    @property
    def _share_elsewhere(self) -> float:
        """Of the weights, what the node with engines that the trainer is farthest from gets over the network."""
        gpus = self.gpus
        if not gpus.has_pools:
            return (gpus.num_nodes - 1) / gpus.num_nodes
        ranks = gpus.by_node(gpus.of_trainer)
        return 1 - min(ranks[node] for node in gpus.by_node(gpus.of_engines)) / len(gpus.of_trainer)

    @property
    def rollout_start_s(self) -> float:
        """From an engine's first request with new weights to its first pass; one that never slept has its memory."""
        if self.profile:
            return self.profile.rollout_start_s
        return 0.0 if self.gpus.has_pools else self.hardware.rollout_start_s

    @property
    def engine_switch_s(self) -> float:
        """To put an engine to sleep, or to wake it."""
        return self.profile.wake_s if self.profile else self.hardware.engine_switch_s

    @property
    def own_wake_s(self) -> float:
        """The wake of an engine on the trainer's GPUs that no order to wake precedes, beside `rollout_start_s`."""
        return self.profile.wake_s if self.profile and not self.gpus.has_pools else 0.0

    def degree_costs(self, degree: int, max_num_seqs: int, typical_tokens: int) -> DegreeCosts:
        """What the planner's guess is told of a degree; prompts and what is computed again are of a typical length."""
        costs = self.engines[degree]
        sizes = sorted({min(1 << power, max_num_seqs) for power in range(max_num_seqs.bit_length() + 1)})
        return DegreeCosts(
            degree=degree,
            num_engines=len(self.gpus.of_engines) // degree,
            max_num_seqs=max_num_seqs,
            kv_tokens=costs.num_kv_tokens,
            batch_sizes=tuple(map(float, sizes)),
            pass_s=tuple(costs.pass_s(size) for size in sizes),
            kv_read_s=costs.kv_read_s,
            prefill_s=costs.prefill_pass_s(0, [(0, typical_tokens)]) / typical_tokens,
        )

    @property
    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """The GPUs of each training replica, counted over all nodes; none where they are not the engines'."""
        size, gpus = self.trainer.gpus_per_replica, self.gpus.of_trainer
        if self.gpus.has_pools:
            return ()
        return tuple(tuple(gpus[first : first + size]) for first in range(0, len(gpus), size))

    def engine_gpus(self, degree: int) -> dict[EngineId, tuple[int, ...]]:
        """The GPUs of each engine of a degree: side by side on those that are the engines'."""
        gpus, first = self.gpus.of_engines, next(iter(self.engines))
        name = "engine" if degree == first else f"engine-tp{degree}"
        return {
            EngineId(f"{name}-{index}"): tuple(gpus[index * degree : (index + 1) * degree])
            for index in range(len(gpus) // degree)
        }

    @property
    def num_reward_cores(self) -> int:
        """That run programs, on all nodes."""
        return self.hardware.reward_cores_per_node * self.gpus.num_nodes

    @property
    def num_all_gpus(self) -> int:
        """With those of a judge that has its own."""
        return self.gpus.number + (self.judge.num_own_gpus if self.judge else 0)


def plan_cluster(config: RunConfig, *, needs_judge: bool) -> ClusterPlan:
    """Plan a modelled run, with an LLM judge if the workload needs one.

    Raises:
        ModelError: The model's sizes cannot be read.
        DataError: The profile cannot be read, or the file of the counts of workers.
        ConfigError: It does not fit on the GPUs, or engines or trainer cannot divide the model so.
    """
    assert config.hardware is not None
    model, hardware, trainer = transformer_of(config.model), config.hardware, config.trainer
    tensor_parallel = config.engine.tensor_parallel
    gpus = modelled_gpus(config)
    if hardware.gpus_per_node % tensor_parallel:
        raise ConfigError(
            f"engine.tensor_parallel={tensor_parallel} with hardware.gpus_per_node={hardware.gpus_per_node}.",
            "The GPUs of an engine lie in one node, and engines fill nodes.",
            "Choose a degree that divides the GPUs of a node.",
        )
    member_degree = config.elastic.tensor_parallel or tensor_parallel
    named = [degree for degree in config.engine.degrees if degree != tensor_parallel] if config.system.planner else []
    raise_mistakes(list(_degree_mistakes(config, model.shape, named)))
    judge = plan_judge(config) if needs_judge else None
    beside_judge = hardware_beside(config, judge, hardware) if judge else hardware
    sharing = judge if placement_of(config) == "shared" else None

    profile = ProfiledCluster(hardware.profile, model, config.model.dtype) if hardware.profile else None
    if profile:
        hardware = hardware.model_copy(update={"name": profile.hardware})

    def engine_of(degree: int, key: str = "engine.degrees", here: HardwareSection = beside_judge) -> PassCosts:
        if profile:
            return profile.engine(degree, key)
        return EngineCosts(model=model, hardware=here, tensor_parallel=degree)

    engines: Mapping[int, PassCosts] = {tensor_parallel: engine_of(tensor_parallel, "engine.tensor_parallel")}
    _check_memory(config, engines[tensor_parallel], tensor_parallel, "engine.tensor_parallel", sharing)
    member = engine_of(member_degree, "elastic.tensor_parallel", hardware)  # on nodes of its own, without judges
    if config.elastic.is_on:
        availability_of(config.elastic.modelled)  # refuses a file of counts that the run could not follow
        _check_memory(config, member, member_degree, "elastic.tensor_parallel")
    if config.system.planner:
        others = named if config.engine.degrees else _possible_degrees(config, profile)
        engines = {**engines, **{degree: engine_of(degree) for degree in others}}
    if config.system.escalate_tail and profile is None:
        engines = _beside_standing_by(engines, model.num_weight_bytes)
        _check_memory(config, engines[tensor_parallel], tensor_parallel, "engine.tensor_parallel", sharing)
    for degree in named:
        _check_memory(config, engines[degree], degree, "engine.degrees", sharing)
    needed = _needed_kv_tokens(config)
    engines = {degree: costs for degree, costs in engines.items() if costs.num_kv_tokens >= needed}
    return ClusterPlan(
        model=model,
        hardware=hardware,
        gpus=gpus,
        judge=judge,
        profile=profile,
        engines=engines,
        member=member,
        keeps_prefixes=config.modelled_environment is not None
        and config.engine.vllm.prefix_caching
        and (profile is None or profile.engine_name == "vllm"),
        trainer=profile.trainer(len(gpus.of_trainer))
        if profile
        else TrainerCosts(
            model=model,
            hardware=hardware,
            num_gpus=len(gpus.of_trainer),
            num_nodes=len(gpus.by_node(gpus.of_trainer)) if gpus.has_pools else gpus.num_nodes,
            tensor_parallel=trainer.tensor_parallel,
            pipeline_parallel=trainer.pipeline_parallel,
            context_parallel=trainer.context_parallel,
            max_tokens_per_microbatch=trainer.max_tokens_per_microbatch,
            whole_up_to=whole_up_to(config),
        ),
    )


def _beside_standing_by(engines: Mapping[int, PassCosts], num_weight_bytes: float) -> Mapping[int, PassCosts]:
    """Take the weights of the largest degree, whose engines stand by, from the memory of the others."""
    largest = max(engines)
    return {
        degree: replace(costs, num_bytes_beside=num_weight_bytes / largest)
        if isinstance(costs, EngineCosts) and degree != largest
        else costs
        for degree, costs in engines.items()
    }


def _degree_mistakes(config: RunConfig, shape: ShapeSection, named: Iterable[int]) -> Iterator[ConfigError]:
    """Why the model or the GPUs cannot be divided as engines, those of `engine.degrees` too, and trainer do."""
    engine, elastic = config.engine, config.elastic
    yield from engine_degree_mistakes(engine.tensor_parallel, shape)
    if elastic.is_on and elastic.tensor_parallel:
        yield from engine_degree_mistakes(elastic.tensor_parallel, shape, "elastic.tensor_parallel")
    for degree in named:
        yield from engine_degree_mistakes(degree, shape, "engine.degrees")
        yield from _gpu_mistakes(config, degree)
    if config.trains:
        yield from trainer_degree_mistakes(config.trainer, shape)


def _possible_degrees(config: RunConfig, profile: ProfiledCluster | None) -> list[int]:
    """The configured degree doubled and halved, as far as nodes and the model divide by it, and it was measured."""
    configured = config.engine.tensor_parallel
    shape = transformer_of(config.model).shape
    larger = itertools.takewhile(
        lambda degree: not list(_gpu_mistakes(config, degree)),
        (configured << shift for shift in itertools.count(1)),
    )
    smaller = itertools.takewhile(
        lambda degree: degree > 0 and configured % degree == 0,
        (configured >> shift for shift in itertools.count(1)),
    )
    legal = (degree for degree in (*larger, *smaller) if not list(engine_degree_mistakes(degree, shape)))
    return [degree for degree in legal if profile is None or degree in profile.degrees]


def _gpu_mistakes(config: RunConfig, degree: int) -> Iterator[ConfigError]:
    """Why engines of another degree than the configured one do not fill the GPUs of the engines."""
    assert config.hardware is not None
    gpus = modelled_gpus(config)
    counts = {"each node": config.hardware.gpus_per_node, "the engines": len(gpus.of_engines)}
    if gpus.has_pools:
        counts |= {f"the engines on node {node}": count for node, count in gpus.by_node(gpus.of_engines).items()}
    for whose, count in counts.items():
        if count % degree:
            yield ConfigError(
                f"engine.degrees={list(config.engine.degrees)}: the {count} GPUs of {whose} do not divide by {degree}.",
                "The GPUs of an engine lie in one node, and the engines of every degree fill the same GPUs.",
                f"Leave {degree} out of engine.degrees, or change engine.num_engines.",
            )
            return


def _needed_kv_tokens(config: RunConfig) -> int:
    """Of the longest sequence that may come."""
    assert config.workload is not None
    return max(config.workload.prompt_tokens, config.data.max_prompt_tokens) + config.longest_response_tokens


def _check_memory(config: RunConfig, engine: PassCosts, degree: int, key: str, judge: JudgePlan | None = None) -> None:
    """Refuse, as vLLM does, an engine of a degree that could not hold even one of the longest sequences.

    `judge` is one that shares the engine's GPUs.
    """
    needed = _needed_kv_tokens(config)
    capacity = engine.num_kv_tokens
    if capacity < needed:
        memory = engine.memory
        if isinstance(engine, EngineCosts):
            taken = {"of the judge": judge.costs.memory_bytes_per_gpu} if judge else {}
            if engine.num_bytes_beside:
                taken["of engines that stand by"] = engine.num_bytes_beside
            less = "".join(f", less {num_bytes * degree / GIGA:.1f} GB {whose}" for whose, num_bytes in taken.items())
            memory += f" (hardware.memory_share of hardware.memory_gb{less})"
        raise ConfigError(
            f"An engine of {key}={degree} {memory} has room for {capacity:,} tokens of KV cache.",
            f"One sequence needs up to {needed:,}: prompt and response.",
            f"{f'Leave {degree} out of' if key == 'engine.degrees' else 'Raise'} {key}, or lower "
            "rollout.max_response_tokens or data.max_prompt_tokens"
            + (", or set reward.judge.placement=dedicated." if judge else "."),
        )
