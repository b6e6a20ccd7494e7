"""Who generates, learns and judges: a backend brings the workers of a run, real or modelled.

The driver and the pipeline above it work with any backend; which one is the configuration's choice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rollpacker.core.ids import Domain, EngineId
    from rollpacker.core.round_time_model import DegreeCosts
    from rollpacker.protocols.engine import Engine
    from rollpacker.protocols.reward import ColocatedJudges, RewardService
    from rollpacker.protocols.rollout import TokenizedPrompt
    from rollpacker.protocols.trainer import Trainer
    from rollpacker.protocols.weights import WeightSync

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Engines of one tensor-parallel degree."""

    engines: Mapping[EngineId, Engine]
    gpus: Mapping[EngineId, tuple[int, ...]] = field(default_factory=dict)
    """The run's GPUs that each engine works on; empty where nobody knows them."""
    costs: DegreeCosts | None = None
    """What such an engine takes for its work, where a profile or a model says it: for the planner's first guess."""


class ReplaceEngine(Protocol):
    """Ends what is left of the engine that has a slot, and starts a fresh one there, awake and without a policy.

    Cancelled, it leaves nothing that holds the slot's GPUs.
    """

    def __call__(self, slot: EngineId, name: EngineId, /) -> Awaitable[Engine]:
        """Name the new engine; the slot is called after the first one, by its name in `Fleet.engines`.

        Raises:
            RollpackerError: It did not start.
        """


class Rebuild(Protocol):
    """Ends engines that leave for those of another degree, and starts them anew when they come back."""

    def end(self, slot: EngineId, /) -> Awaitable[None]:
        """End the process of who has a slot; asleep or awake, nothing is in flight there. `collect` waits from then on.

        Raises:
            RollpackerError: It was lost before.
        """

    def rebuild(self, slot: EngineId, /) -> Awaitable[None]:
        """Start it: awake, without a policy, under the name that it had.

        Raises:
            RollpackerError: It did not start; nothing is left of it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """What a backend brings, started; the engines hold no policy yet."""

    prompts: Mapping[str, TokenizedPrompt]
    """By key, in the order of the file; those that are too long are left out."""
    fleets: Mapping[int, Fleet]
    """By tensor-parallel degree. One of them is awake at a time; the first one, unless a checkpoint says otherwise."""
    trainer: Trainer
    reward: RewardService
    weight_sync: WeightSync | None = None
    """How the trainer's policy reaches the engines; None lets them load a snapshot (`transfer.snapshots`)."""
    trainer_parts: tuple[tuple[int, ...], ...] = ()
    """The GPUs of each part of the trainer that can work without the others, such as a replica; empty where it shares
    no GPU with engines."""
    colocated_engines: frozenset[EngineId] = frozenset()
    """Engines that sleep while the trainer works, and the other way round, since both cannot be in their GPUs' memory.
    They are asleep now, and the trainer is awake. Empty where nobody shares a GPU, and in a modelled run, whose model
    has the price of a turn in its other times."""
    judges: ColocatedJudges | None = None
    """Judges that sleep likewise, on GPUs of a trainer that takes turns; asleep now. None where there are none."""
    replace_engine: ReplaceEngine | None = None
    """Brings an engine in the place of a lost one; None where that cannot be done."""
    rebuild: Rebuild | None = None
    """How engines of the degree in use make place for others; None where all are resident, and sleep meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of a model before it is loaded."""

    architecture: str
    num_parameters: int | None
    """None when the weights are not in safetensors files, whose headers can be read without torch."""
    num_weight_bytes: int
    max_positions: int | None
    """Longest sequence, prompt and response together; None when the configuration does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledCluster:
    """The GPUs of a modelled run and who shares them."""

    hardware: str
    num_gpus: int
    num_engines: int
    kv_tokens_per_engine: int
    """What an engine's KV cache holds."""
    num_replicas: int
    """Data-parallel replicas of the trainer."""
    degrees: tuple[int, ...] = ()
    """Of tensor parallelism that engines can have; the configured one first."""


ClusterT_co = TypeVar("ClusterT_co", covariant=True)


class RunFacts(Protocol[ClusterT_co]):
    """What a backend says of a run before it starts; each answer may raise a `UserError`, and nothing is created."""

    def model(self) -> ModelFacts: ...

    def num_prompts_by_domain(self) -> Mapping[Domain, int]:
        """In the order of the data; before prompts that are too long are dropped."""

    def cluster(self) -> ClusterT_co:
        """Where the engines and the trainer work."""


class Within(Protocol):
    """Awaits an answer for so many seconds, or ends the run with what was awaited."""

    def __call__(self, deadline_s: float, what: str, answer: Awaitable[Answer], /) -> Awaitable[Answer]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendContext:
    """What a run offers to its backend."""

    logs: Path
    """A folder for the logs of this attempt; it need not exist yet."""
    stage: Callable[[str], None]
    """Names what the backend does now, for whoever follows the run."""
    note: Callable[[str], None]
    """Tells that person something."""
    within: Within
    add_stack_source: Callable[[str, Callable[[], Awaitable[str]]], None]
    """Names a process and how to ask it for its stacks when a wait expires."""


class Backend(Protocol):
    """Brings the workers of one run, and ends them with it."""

    is_modelled: bool
    """True when times are computed by a model instead of measured."""

    def open(self, context: BackendContext, /) -> AbstractAsyncContextManager[Workers]:
        """Start the workers; when the context ends, however it ends, nothing of them is left."""
