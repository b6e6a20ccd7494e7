"""A backend provides the workers of a run, real or modelled: engines, trainer and reward.

The driver and the pipeline above it work with any backend; which one is the configuration's choice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rollpacker.core.ids import Domain, EngineId
    from rollpacker.core.round_time_model import DegreeCosts
    from rollpacker.protocols.engine import Engine
    from rollpacker.protocols.environment import EnvironmentParts
    from rollpacker.protocols.members import Members
    from rollpacker.protocols.reward import ColocatedJudges, RewardService
    from rollpacker.protocols.rollout import Prompt, TokenIds, TokenizedPrompt
    from rollpacker.protocols.trainer import Trainer
    from rollpacker.protocols.weights import WeightSync

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Engines of one tensor-parallel degree."""

    engines: Mapping[EngineId, Engine]
    gpus: Mapping[EngineId, tuple[int, ...]] = field(default_factory=dict)
    """The run's GPUs that each engine works on; empty where they are unknown."""
    costs: DegreeCosts | None = None
    """The costs of such an engine's work, where a profile or a model gives them: for the planner's first estimate."""


class ReplaceEngine(Protocol):
    """Ends what is left of the engine in a slot, and starts a new one there, awake and without a policy.

    Cancelled, it leaves nothing that holds the slot's GPUs.
    """

    def __call__(self, slot: EngineId, name: EngineId, /) -> Awaitable[Engine]:
        """Replace the engine by one of this name; the slot has the name of its first engine in `Fleet.engines`.

        Raises:
            RollpackerError: It did not start.
        """


class EndEngine(Protocol):
    """Ends what is left of a lost engine: one that hangs still holds the memory of its GPUs."""

    def __call__(self, slot: EngineId, /) -> Awaitable[None]:
        """End the process in a slot at once, whatever it does; when this returns, its GPUs are free."""


class Rebuild(Protocol):
    """Ends engines that leave for those of another degree, and starts them again when they come back."""

    def end(self, slot: EngineId, /) -> Awaitable[None]:
        """End the process of the engine in a slot; nothing is in flight there. `collect` waits from then on.

        Raises:
            RollpackerError: It was lost before.
        """

    def rebuild(self, slot: EngineId, /) -> Awaitable[None]:
        """Start it: awake, without a policy, under the name that it had.

        Raises:
            RollpackerError: It did not start; nothing is left of it.
        """


class TextReader(Protocol):
    """The model's tokenizer, as far as texts for people need it."""

    def text(self, prompt: Prompt, /) -> str:
        """The prompt as the policy sees it."""

    def decode(self, token_ids: TokenIds, /) -> str:
        """The text of tokens, without special ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The workers of a backend, started; the engines hold no policy yet."""

    prompts: Mapping[str, TokenizedPrompt]
    """By key, in the order of the file; those that are too long are left out. Empty where nothing is trained."""
    held_out: Mapping[str, Mapping[str, TokenizedPrompt]] = field(default_factory=dict)
    """Held-out prompts by set and key, in the order of the files."""
    fleets: Mapping[int, Fleet]
    """By tensor-parallel degree. One of them is awake at a time; the first one, unless a checkpoint says otherwise."""
    trainer: Trainer
    """Where nothing is trained, one that nobody calls."""
    reward: RewardService
    text_reader: TextReader | None = None
    """None in a modelled run, whose tokens mean nothing."""
    weight_sync: WeightSync | None = None
    """How the trainer's policy reaches the engines; None lets them load a snapshot (`transfer.snapshots`)."""
    trainer_parts: tuple[tuple[int, ...], ...] = ()
    """The GPUs of each part of the trainer that can work without the others, such as a replica; empty where it shares
    no GPU with engines."""
    colocated_engines: frozenset[EngineId] = frozenset()
    """Engines that sleep while the trainer works, and the other way round, since both do not fit into their GPUs'
    memory. They sleep now, and the trainer is awake. Empty where no GPU is shared, and in a modelled synchronous run
    without `evaluation.when=fill`: nothing generates there while the trainer works, and what a switch costs is in other
    times of the model."""
    judges: ColocatedJudges | None = None
    """Judges that share GPUs with the trainer and sleep while it works; they sleep now. None without any."""
    replace_engine: ReplaceEngine | None = None
    """Replaces a lost engine; None where that cannot be done."""
    end_engine: EndEngine | None = None
    """None where an engine has no process of its own."""
    environments: EnvironmentParts | None = None
    """None where a response is one turn."""
    rebuild: Rebuild | None = None
    """Ends and starts engines when the degree changes; None where all stay resident, and sleep instead."""
    members: Members | None = None
    """Rollout workers that come and go; None in a run without."""
    num_modelled_gpus: int | None = None
    """Of a modelled run, with those of a judge that has its own; None in a real one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The facts of a model before it is loaded."""

    architecture: str
    num_parameters: int | None
    """None when the weights are not in safetensors files, whose headers can be read without torch."""
    num_weight_bytes: int
    max_positions: int | None
    """Longest sequence, prompt and response together; None when the configuration does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCost:
    """What one evaluation costs, in seconds of generation, modelled."""

    alone_s: float
    """As a round of its own."""
    filled_s: float
    """That a training round takes longer which it fills."""
    round_s: float
    """That training round by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledCluster:
    """The GPUs of a modelled run and how they are shared."""

    hardware: str
    num_gpus: int
    num_engines: int
    kv_tokens_per_engine: int
    """What an engine's KV cache holds."""
    num_replicas: int
    """Data-parallel replicas of the trainer."""
    num_trainer_gpus: int | None = None
    """GPUs of its own that the trainer has; None: it takes turns with the engines."""
    trainer_parts: tuple[tuple[int, ...], ...] = ()
    """As `Workers.trainer_parts`."""
    engine_gpus: Mapping[int, Mapping[EngineId, tuple[int, ...]]]
    """Of each engine, by the degree of tensor parallelism that engines can have; the configured one first."""
    evaluation: EvaluationCost | None = None
    """None where nothing is held out."""


ClusterT_co = TypeVar("ClusterT_co", covariant=True)


class RunFacts(Protocol[ClusterT_co]):
    """The facts of a run before it starts; each method may raise a `UserError`, and nothing is created."""

    def model(self) -> ModelFacts: ...

    def num_prompts_by_domain(self) -> Mapping[Domain, int]:
        """In the order of the data; before prompts that are too long are dropped."""

    def num_held_out(self) -> Mapping[str, int]:
        """Prompts of each held-out set, by its name; the same."""

    def check_order(self, order: Mapping[str, object]) -> None:
        """Refuse prompts that are not those of a checkpoint's order, a snapshot of `rollpacker.data.order`."""

    def cluster(self) -> ClusterT_co:
        """The nodes and GPUs of engines and trainer."""

    def notes(self) -> tuple[str, ...]:
        """What may be a mistake about where the run will be."""


Limit = Callable[[float], AbstractAsyncContextManager[asyncio.Timeout]]
"""Limits what is awaited inside to so many seconds, as `asyncio.timeout` does."""


class Within(Protocol):
    """Awaits an answer for so many seconds, or ends the run with what was awaited."""

    def __call__(self, deadline_s: float, what: str, answer: Awaitable[Answer], /) -> Awaitable[Answer]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendContext:
    """What a run provides to its backend."""

    logs: Path
    """A folder for the logs of this attempt; it need not exist yet."""
    stage: Callable[[str], None]
    """Shows what the backend does now."""
    note: Callable[[str], None]
    """Shows a message to the person who follows the run."""
    within: Within
    limit: Limit
    add_stack_source: Callable[[str, Callable[[], Awaitable[str]]], None]
    """Registers a process, by name, whose stacks are reported when a wait expires."""


class Backend(Protocol):
    """Provides the workers of one run, and ends them with it."""

    is_modelled: bool
    """True when times are computed by a model instead of measured."""

    def open(self, context: BackendContext, /) -> AbstractAsyncContextManager[Workers]:
        """Start the workers; when the context ends, however it ends, nothing of them is left."""
