"""The driver's side of actors: the same protocols over an actor's handle, with Ray's errors turned into ours.

So the driver cannot tell a remote engine from one in its own process.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.resources import ActorResources
from rollpacker.core.errors import EngineFailed, RollpackerError
from rollpacker.core.events import EngineProgress
from rollpacker.core.foreign_errors import failure_of, one_line
from rollpacker.core.ids import EngineId, RequestId
from rollpacker.protocols.engine import EngineStats
from rollpacker.protocols.reward import ResponseToScore
from rollpacker.protocols.rollout import GenerationRequest, Response, RolloutGroup, Verdict
from rollpacker.protocols.trainer import BatchShape, TrainerRank, UpdateMetrics
from rollpacker.protocols.weights import Weights
from rollpacker.runtime.ray.actors import Actor, EngineActor, JudgeActor, RewardActor, TrainerActor
from rollpacker.transfer.offers import Delivery, SendingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The reserved place of one actor."""

    group: PlacementGroup
    index: int
    resources: ActorResources
    gpus: tuple[int, ...]
    """Of its node, which it sees. They are reserved for the whole run, not by the actor: some have two of them."""
    memory_taken: float = 0.0
    """Share of these GPUs' memory that belongs to judges."""
    log: Path


class _Remote:
    """The driver's side of an actor."""

    def __init__(self, actor_class: type[Actor], name: str, slot: Slot) -> None:
        self.name = name
        self.has_died = False
        place = PlacementGroupSchedulingStrategy(placement_group=slot.group, placement_group_bundle_index=slot.index)
        actor = ray.remote(actor_class).options(
            name=name, max_restarts=0, scheduling_strategy=place, num_cpus=slot.resources.num_cpus, num_gpus=0
        )
        self._handle = actor.remote(name, slot.log, slot.gpus)
        self._log = slot.log

    async def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return await self._handle.call.remote(method, *arguments)
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, RollpackerError):
                raise cause from None
            # of Ray's own half of a call: an argument that was lost, or an answer that does not pickle
            raise failure_of(cause, f"Ray could not carry out {method}() of {self.name}", str(self._log)) from None
        except RayActorError as error:
            self.has_died = True
            raise EngineFailed(
                f"The process of {self.name} died.", one_line(str(error)), f"Its last words are in {self._log}."
            ) from None
        except RayError as error:
            raise failure_of(error, f"{self.name} could not be reached in {method}()", str(self._log)) from None

    async def stacks(self) -> str:
        stacks: str = await self._call("stacks")
        return stacks

    async def pid(self) -> int:
        pid: int = await self._call("pid")
        return pid

    async def close(self) -> None:
        await self._call("close")

    async def kill(self) -> None:
        """End the process, whatever it does; when this returns, it has died."""
        ray.kill(self._handle)
        with suppress(EngineFailed):
            while True:  # an answer that was on its way
                await self._call("pid")


class RemoteEngine(_Remote):
    """An engine in another process."""

    def __init__(self, engine: EngineId, slot: Slot) -> None:
        super().__init__(EngineActor, engine, slot)
        self._engine = engine
        self._memory_taken = slot.memory_taken

    async def start(self, config: RunConfig) -> None:
        if self._memory_taken:
            share = config.engine.vllm.memory_share - self._memory_taken
            vllm = config.engine.vllm.model_copy(update={"memory_share": share})
            config = config.model_copy(update={"engine": config.engine.model_copy(update={"vllm": vllm})})
        await self._call("start", self._engine, config)

    async def generate(self, requests: Sequence[GenerationRequest]) -> None:
        await self._call("generate", requests)

    async def abort(self, requests: Sequence[RequestId]) -> None:
        await self._call("abort", requests)

    async def collect(self) -> Sequence[Response]:
        responses: Sequence[Response] = await self._call("collect")
        return responses

    async def progress(self) -> EngineProgress:
        progress: EngineProgress = await self._call("progress")
        return progress

    async def load_weights(self, weights: Weights) -> str:
        checksum: str = await self._call("load_weights", weights)
        return checksum

    async def sleep(self) -> None:
        await self._call("sleep")

    async def wake(self) -> None:
        await self._call("wake")

    async def stats(self) -> EngineStats:
        stats: EngineStats = await self._call("stats")
        return stats


class RemoteTrainer(_Remote):
    """A trainer, or one rank of it, in another process. Groups may come as a reference into Ray's object store."""

    def __init__(self, name: str, slot: Slot) -> None:
        super().__init__(TrainerActor, name, slot)
        self.has_gpu = bool(slot.gpus)

    async def meeting_place(self) -> str:
        place: str = await self._call("meeting_place")
        return place

    async def start(self, config: RunConfig, rank: TrainerRank | None) -> None:
        await self._call("start", config, rank)

    async def begin_step(self, shape: BatchShape) -> None:
        await self._call("begin_step", shape)

    async def accumulate(self, groups: Sequence[RolloutGroup], gpus: Collection[int] | None = None) -> None:
        await self._call("accumulate", groups, gpus)

    async def finish_step(self) -> UpdateMetrics:
        metrics: UpdateMetrics = await self._call("finish_step")
        return metrics

    async def export_weights(self) -> Weights:
        weights: Weights = await self._call("export_weights")
        return weights

    async def prepare_weights(self) -> None:
        await self._call("prepare_weights")

    async def offer_weights(self, engines: Sequence[EngineId], options: SendingOptions) -> Weights:
        weights: Weights = await self._call("offer_weights", engines, options)
        return weights

    async def send_weights(self) -> Delivery | None:
        delivery: Delivery | None = await self._call("send_weights")
        return delivery

    async def drop_receiver(self, engine: EngineId, why: str) -> None:
        await self._call("drop_receiver", engine, why)

    async def close_offer(self) -> None:
        await self._call("close_offer")

    async def sleep(self) -> None:
        await self._call("sleep")

    async def wake(self, gpus: Collection[int] | None = None) -> None:
        await self._call("wake", gpus)

    async def save(self, folder: Path) -> None:
        await self._call("save", folder)

    async def load(self, folder: Path) -> None:
        await self._call("load", folder)


class RemoteReward(_Remote):
    """A reward service in another process."""

    def __init__(self, name: str, slot: Slot, actor_class: type[RewardActor] = RewardActor) -> None:
        super().__init__(actor_class, name, slot)

    async def start(self, config: RunConfig) -> None:
        await self._call("start", config)

    async def score(self, responses: Sequence[ResponseToScore]) -> None:
        await self._call("score", responses)

    async def forget(self) -> None:
        await self._call("forget")

    async def collect(self) -> Sequence[Verdict]:
        verdicts: Sequence[Verdict] = await self._call("collect")
        return verdicts


class RemoteJudge(RemoteReward):
    """A judge in another process."""

    def __init__(self, name: str, slot: Slot) -> None:
        super().__init__(name, slot, JudgeActor)

    async def sleep(self) -> None:
        await self._call("sleep")

    async def wake(self) -> None:
        await self._call("wake")
