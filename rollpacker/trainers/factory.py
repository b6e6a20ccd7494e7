"""Makes the trainer that a configuration names; each implementation is imported when it is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from rollpacker.trainers.replicas import whole_up_to

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.trainer import TensorTrainer, TrainerRank
    from rollpacker.trainers.policy import Policy


def make_trainer(config: RunConfig, rank: TrainerRank | None = None) -> TensorTrainer:
    """Load the policy, or one rank's part of it, into this process; None is the only rank.

    With several ranks each process makes its own at the same time, because construction contains collectives.

    Raises:
        ModelError: The directory holds no model that can be trained.
    """
    from rollpacker.trainers.grpo import GrpoTrainer

    return GrpoTrainer(
        _make_policy(config, rank),
        config.objective.model_copy(update={"context_parallel_above": whole_up_to(config)}),
        num_steps=config.run.num_steps,
        replica_gpus=() if rank is None else rank.replica_gpus,
    )


def _make_policy(config: RunConfig, rank: TrainerRank | None) -> Policy:
    deadlines = config.backend.deadlines
    # Ranks wait for rank 0 as long as any call of the trainer may take: to load, train, publish or save.
    timeout_s = max(deadlines.start_s, deadlines.train_s, deadlines.weight_sync_s, deadlines.checkpoint_s)
    model: _Model = {
        "model_dtype": config.model.dtype,
        "temperature": config.rollout.temperature,
        "seed": config.run.seed,
    }
    match config.trainer.name:
        case "torch":
            from rollpacker.trainers.torch_policy import TorchPolicy

            return TorchPolicy(config.model.directory, config.trainer, **model)
        case "fsdp":
            from rollpacker.trainers.fsdp.policy import FsdpPolicy
            from rollpacker.trainers.process_group import join

            join(rank, timeout_s=timeout_s)
            return FsdpPolicy(config.model.directory, config.trainer, **model, timeout_s=timeout_s)
        case "megatron":
            from rollpacker.trainers.megatron.policy import MegatronPolicy
            from rollpacker.trainers.process_group import join

            join(rank, timeout_s=timeout_s)
            return MegatronPolicy(config.model.directory, config.trainer, **model, timeout_s=timeout_s)


class _Model(TypedDict):
    """The arguments of every policy beside the trainer section."""

    model_dtype: str
    temperature: float
    seed: int
