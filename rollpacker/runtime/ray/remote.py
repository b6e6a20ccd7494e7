"""The driver's side of actors: their protocols over Ray's handles, with Ray's errors turned into ours.

Invariant: the driver cannot tell a remote engine from one in its own process, except that it can die.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.resources import ActorResources
from rollpacker.core.errors import EngineFailed, RollpackerError
from rollpacker.core.foreign_errors import failure_of, one_line
from rollpacker.core.ids import EngineId
from rollpacker.environments.hosts import EnvironmentHost
from rollpacker.protocols.forwarding import Forwarder
from rollpacker.protocols.members import MemberEngine
from rollpacker.protocols.reward import RewardService
from rollpacker.protocols.trainer import TrainerRank
from rollpacker.runtime.ray.actors import Actor, EngineActor, EnvironmentActor, JudgeActor, RewardActor, TrainerActor
from rollpacker.runtime.ray.judges import JudgeService
from rollpacker.runtime.ray.process_group import end_process_group
from rollpacker.runtime.ray.weight_sync import SendingRank

END_S = 10.0
"""How long an engine's processes may take to end, and Ray to start the one that waits for them: a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The reserved place of one actor."""

    group: PlacementGroup
    index: int
    resources: ActorResources
    gpus: tuple[int, ...]
    """Those of its node that it sees. They are reserved for the whole run, not by the actor: actors may share one."""
    memory_taken: float = 0.0
    """Share of these GPUs' memory that belongs to judges."""
    log: Path

    @property
    def options(self) -> dict[str, Any]:
        """Of its actor: where Ray starts it, and what it reserves there."""
        place = PlacementGroupSchedulingStrategy(placement_group=self.group, placement_group_bundle_index=self.index)
        return {"scheduling_strategy": place, "num_cpus": self.resources.num_cpus}


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedPlace:
    """A place on one node or nowhere, of which nothing is reserved: no placement group, which could hang."""

    pin: str
    """Of the node."""
    gpus: tuple[int, ...] = ()
    log: Path

    @property
    def options(self) -> dict[str, Any]:
        """As of a `Slot`."""
        return {"resources": {self.pin: 1}, "num_cpus": 0}


class Process(Protocol):
    """An actor's process."""

    name: str
    has_died: bool
    """The process is gone, as some call has noticed."""

    async def stacks(self) -> str:
        """Stacks of all threads."""

    async def kill(self) -> None:
        """End the process at once, whatever it does; when this returns, it has died."""

    async def close(self) -> None: ...


class EngineProcess(MemberEngine, Process, Protocol):
    """An engine in another process."""

    async def start(self, engine: EngineId, config: RunConfig) -> None: ...


class TrainerProcess(SendingRank, Process, Protocol):
    """A trainer, or one rank of it, in another process. Groups may come as a reference into Ray's object store."""

    async def meeting_place(self) -> str:
        """Choose the address where all ranks meet."""

    async def start(self, config: RunConfig, rank: TrainerRank | None) -> None: ...


class RewardProcess(RewardService, Process, Protocol):
    """A reward service in another process."""

    async def start(self, config: RunConfig) -> None: ...


class EnvironmentProcess(EnvironmentHost, Process, Protocol):
    """The environments of a node, behind another process."""

    async def start(self, config: RunConfig) -> None: ...


class JudgeProcess(JudgeService, RewardProcess, Protocol):
    """An LLM judge in another process."""


def make_engine_process(engine: EngineId, slot: Slot | PinnedPlace) -> EngineProcess:
    """Start the process of an engine."""
    return cast("EngineProcess", _RemoteEngine(EngineProcess, EngineActor, engine, slot))


def make_trainer_process(name: str, slot: Slot) -> TrainerProcess:
    """Start the process of a trainer or of one of its ranks."""
    return cast("TrainerProcess", _Remote(TrainerProcess, TrainerActor, name, slot))


def make_reward_process(name: str, slot: Slot) -> RewardProcess:
    """Start the process of a reward."""
    return cast("RewardProcess", _Remote(RewardProcess, RewardActor, name, slot))


def make_judge_process(name: str, slot: Slot) -> JudgeProcess:
    """Start the process of an LLM judge."""
    return cast("JudgeProcess", _Remote(JudgeProcess, JudgeActor, name, slot))


def make_environment_process(name: str, place: PinnedPlace) -> EnvironmentProcess:
    """Start the process behind which a node's environments run."""
    return cast("EnvironmentProcess", _Remote(EnvironmentProcess, EnvironmentActor, name, place))


class _Remote(Forwarder):
    """Implements one of the protocols above over an actor."""

    def __init__(self, protocol: type, actor_class: type[Actor], name: str, slot: Slot | PinnedPlace) -> None:
        super().__init__(protocol)
        self.name = name
        self.has_died = False
        actor = ray.remote(actor_class).options(name=name, max_restarts=0, num_gpus=0, **slot.options)
        self._handle = actor.remote(name, slot.log, slot.gpus)
        self._place, self._log = slot, slot.log

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
                f"The process of {self.name} died.", one_line(str(error)), f"The end of its log, {self._log}, says why."
            ) from None
        except RayError as error:
            raise failure_of(error, f"{self.name} could not be reached in {method}()", str(self._log)) from None

    async def kill(self) -> None:
        ray.kill(self._handle)
        with suppress(EngineFailed):
            while True:  # an answer that was on its way
                await self._call("pid")


class _RemoteEngine(_Remote):
    """An engine, whose GPUs are free only when the actor's process and those of vLLM have ended.

    Ray reports an actor's death before, and does not end what vLLM's processes have started.
    """

    _pid: int | None = None
    """Of the actor; None until it answers."""

    async def start(self, engine: EngineId, config: RunConfig) -> None:
        self._pid = await self._call("pid")
        await self._call("start", engine, config)

    async def kill(self) -> None:
        await super().kill()
        if self._pid is not None:
            end = ray.remote(end_process_group).options(**self._place.options | {"num_cpus": 0})
            with suppress(RayError, TimeoutError):  # its node is gone, and they with it
                async with asyncio.timeout(END_S):
                    await end.remote(self._pid, END_S)
