"""The trainer."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rollpacker.config.sections.base import (
    NOT_IN_FINGERPRINT,
    REAL_RUN,
    Count,
    Flag,
    Kind,
    Number,
    OnlyWith,
    Positive,
    Section,
    WorkerCount,
)
from rollpacker.config.sections.losses import (
    BATCH_ADVANTAGES,
    LOSSES,
    STREAMED_ADVANTAGES,
    TURN_ADVANTAGES,
    named,
)
from rollpacker.config.sections.resources import ActorResources

Mismatch = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "k3_mask"]

_ADVANTAGES = (*STREAMED_ADVANTAGES, *BATCH_ADVANTAGES, *TURN_ADVANTAGES)
_OR_OWN = "or a function as FILE.py:NAME or MODULE:NAME"
_CLIPPING = OnlyWith(
    "objective.clips_ratio",
    words="trainer.loss=ppo and trainer.num_minibatches above 1, or with trainer.loss="
    f"{' or '.join(name for name, loss in LOSSES.items() if loss.anchor == 'behaviour')},",
)
_BOUNDED_ABOVE = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
"""Values of `mismatch` with an upper bound."""


class TrainerSection(Section):
    """The trainer and its objective (GRPO)."""

    name: Literal["torch", "fsdp", "megatron"] = "torch"
    """Which implementation: one process; FSDP2, whose ranks share parameters and optimizer among them, and gradients
    with `shard_gradients`; or Megatron-core, which shards the model in every dimension."""
    data_parallel: Annotated[WorkerCount | None, NOT_IN_FINGERPRINT] = Field(None, ge=1)
    """Replicas that share the batch; null is 1. A modelled run has as many as the trainer's GPUs hold, whatever this
    says: there the number of GPUs alone is varied."""
    learning_rate: Positive = Field(1e-6, le=1)
    """Of AdamW, after the warm-up. An update moves a weight by about as much."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay over `run.num_steps`, advanced by pipeline steps."""
    warmup_steps: Count = 0
    """Steps over which the learning rate rises linearly, the first of them at `learning_rate` / `warmup_steps`."""
    min_lr_ratio: Annotated[Number, OnlyWith("trainer.lr_schedule", "linear", "cosine")] = Field(0.0, ge=0, le=1)
    """What a decaying schedule reaches one step after `run.num_steps`, as a share of `learning_rate`."""
    adam_betas: tuple[Annotated[Number, Field(ge=0, lt=1)], Annotated[Number, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay of the gradient's mean and of its square."""
    weight_decay: Number = Field(0.0, ge=0, le=10)
    """Decoupled, as in AdamW."""
    max_grad_norm: Positive = 1.0
    """A larger gradient is scaled down to it."""
    loss: Annotated[str | None, Kind(f"one of {', '.join(LOSSES)}, {_OR_OWN}")] = None
    """The policy loss. `ppo` clips the ratio to the policy before the step's first update, `ppo_behaviour` that to the
    policy which sampled the token; `reinforce` has no ratio. Three are REINFORCE with a constant weight, the bounded
    ratio to the policy that sampled the token: `tis` and `cispo`, which differ in their default bounds alone, at most 1
    and at most 1.28; and `topr`, where the advantage is negative, with 1 elsewhere. `gspo` clips the geometric mean of
    a response's ratios; as published with loss_normalisation=sequence. Its bounds are narrower than what engines in
    bfloat16 may be off: raise them if `clip_fraction` of fresh tokens is large. null is ppo, and ppo_behaviour with
    `system.max_staleness`, where ppo and reinforce need a `mismatch`: ppo with token_truncate is decoupled PPO. A
    function of your own takes any of current, proximal, behaviour (log-probabilities), advantages (tensors, a number
    per token) and num_tokens (of each response), by name, and returns the loss of each token, and perhaps where it was
    clipped, true or false. One that takes behaviour corrects for it itself, and has no `mismatch` but k3_mask."""
    clip_ratio_low: Annotated[Number | None, _CLIPPING] = Field(None, ge=0, le=1)
    """The probability ratio, or the weight, is clipped below 1 minus this; 1 is no bound. null is what a `loss` has
    in its paper: 0.2, of tis, cispo and topr 1, of gspo 0.0003. With loss=ppo and `num_minibatches` 1 the ratio is 1,
    and nothing is clipped."""
    clip_ratio_high: Annotated[Number | None, _CLIPPING] = Field(None, ge=0)
    """The same above 1 plus this. null is 0.28, which is DAPO's, and for cispo a choice of ours; of tis and topr 0, of
    gspo 0.0004."""
    dual_clip: Annotated[
        Number | None,
        OnlyWith(
            "objective.clips_ratio",
            words="trainer.num_minibatches above 1, or with trainer.loss=ppo_behaviour or gspo,",
        ),
    ] = Field(None, gt=1)
    """With loss=ppo, ppo_behaviour and gspo: where the advantage is negative, the ratio counts at most so much (3 is
    usual), and a token beyond has no gradient. null: no such bound. With loss=ppo and `num_minibatches` 1 no ratio is
    beyond it."""
    topr_weights: Annotated[tuple[Number, Number], OnlyWith("trainer.loss", "topr")] = (1.0, 1.0)
    """Factors of tokens with a positive and with a negative advantage."""
    entropy_coefficient: Number = Field(0.0, ge=0)
    """Weight of an entropy bonus: the entropy of the policy's distribution at each token is taken off its loss, and
    divided as that is (`loss_normalisation`). 0 computes no gradient of it."""
    kl_coefficient: Annotated[Number, REAL_RUN] = Field(0.0, ge=0)
    """Weight of the KL penalty to the initial policy; 0 loads no reference. A modelled run does not count the time of
    the reference's forward pass."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether the penalty is a term of the loss, or a token's reward: then what its response costs from that token on
    is taken off its advantage, which in the mean is the gradient of the whole response's divergence."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """Of the divergence per token, with d the difference of its log-probabilities, policy less reference: k1 is d, k2
    is d^2 / 2, k3 is exp(-d) - 1 + d. In the loss it is its gradient that counts. Over tokens that the current policy
    drew, that of k2 is in the mean that of KL(policy || reference); that of k3 is that of KL(reference || policy); that
    of k1 is 0, so it restrains nothing. null is k3 in the loss, and k1, which has no bias, in the reward."""
    advantage: Annotated[str, Kind(f"one of {', '.join(_ADVANTAGES)}, {_OR_OWN}")] = "group_std"
    """Of a response's reward r in its group: `group_mean` is r less the group's mean (Dr. GRPO), `group_std` that
    divided by the group's standard deviation (GRPO), `rloo` is r less the mean of the others; `batch_std` is group_mean
    divided by the standard deviation of the batch's rewards (Lite PPO), `reinforce_pp` is r, and
    `reinforce_pp_baseline` group_mean, whitened over the batch's tokens (REINFORCE++); these three cannot stream. In a
    run with environments each turn may have its own: `step_reinforce` is a turn's return over those of all turns of
    the group, less their mean and divided by their standard deviation; `gigpo` is group_std plus the same among turns
    that start from one observation (GiGPO). No critic is trained, so GAE is none of them. A function of your own takes
    a group's rewards, a list, and returns as many advantages, the same ones whenever the rewards are the same."""
    turn_discount: Annotated[Number, OnlyWith("trainer.advantage", *TURN_ADVANTAGES)] = Field(0.95, ge=0, le=1)
    """A turn's return is its reward plus this times the return of the next turn."""
    turn_weight: Annotated[Number, OnlyWith("trainer.advantage", "gigpo")] = Field(1.0, ge=0)
    """Of what gigpo adds to group_std."""
    loss_normalisation: Literal["sequence", "token_bound", "token_mean"] = "token_bound"
    """What a token's loss is divided by: its response's length and the number of responses, so that a token of a long
    response counts less; the number of responses times `max_response_tokens`; or the number of tokens, which is known
    only after the last response, so that `token_mean` cannot stream. Responses and tokens are those of the update's
    minibatch; tokens, also of a response's length, those that the policy sampled."""
    mismatch: Mismatch | None = None
    """Correction of the gap between the log-probabilities of engines and trainer, which compute the same policy in
    different ways, and of the age of stale tokens: a token's policy loss is multiplied by the ratio of its
    probabilities, trainer to engine, at most `mismatch_high` (token_truncate); or by 0 where that is outside of the
    bounds (token_mask); by the product of its response's ratios, at most `mismatch_high` (sequence_truncate: long
    responses have large ones); by their geometric mean, and by 0 where that is outside of the bounds (sequence_mask);
    or by 0 where their divergence is above `mismatch_k3` (k3_mask). null is none with engine=torch and with a loss that
    reads the engine's probabilities itself or is a function of your own, and otherwise token_truncate."""
    mismatch_high: Annotated[
        Number, OnlyWith("objective.mismatch", *_BOUNDED_ABOVE, words=f"trainer.mismatch={' or '.join(_BOUNDED_ABOVE)}")
    ] = Field(2.0, ge=1)
    """Upper bound of the ratio."""
    mismatch_low: Annotated[Number, OnlyWith("trainer.mismatch", "token_mask", "sequence_mask")] = Field(
        0.5, ge=0, le=1
    )
    """Lower bound of the ratio."""
    mismatch_k3: Annotated[Positive, OnlyWith("trainer.mismatch", "k3_mask")] = 0.01
    """Most divergence of a response, the mean of ratio - 1 - log ratio over its tokens, nats."""
    surprisal_warn_z: Annotated[Positive | None, REAL_RUN, NOT_IN_FINGERPRINT] = 6.0
    """Warn where the tokens of a step are not drawn from the policy: the mean of minus their log-probabilities differs
    from the mean entropy of their distributions by so many standard deviations, and by more than 0.02 nats. Steps are
    tested whose responses nothing selected: plain and long rounds, without dynamic sampling. null never warns."""
    surprisal_stop_z: Annotated[Positive | None, REAL_RUN, NOT_IN_FINGERPRINT] = 12.0
    """End the run there, before anything learned from such tokens is published or saved. null never ends it."""
    mask_truncated: Flag = False
    """Over-long filtering (DAPO): a response that was cut is left out of the loss: at `max_response_tokens`, and with
    environments at `environment.max_turns` and by its environment, too. Its reward still counts in its group's
    advantages, and it counts in what the loss is divided by, but for `token_mean`. A step whose responses are all cut
    is an update of gradient 0, which AdamW's moments and the weight decay still shape."""
    num_minibatches: Annotated[Count, REAL_RUN] = Field(1, ge=1)
    """Optimizer updates per step; 1 is strictly on-policy. Divides `rollout.num_prompts`. More need a forward pass over
    the whole batch before the first of them, and a `loss` with a ratio: all but reinforce have one. A modelled run
    counts one update, without such a pass."""
    max_tokens_per_microbatch: Annotated[Count, NOT_IN_FINGERPRINT] = Field(16384, ge=1)
    """Tokens per forward pass, counted with the padding of shorter responses; Megatron-core drops that. A longer
    response passes alone. With context parallelism each rank of a group gets 1 / `context_parallel` of them."""
    logits_chunk_tokens: Annotated[Count | None, REAL_RUN, NOT_IN_FINGERPRINT] = Field(None, ge=1)
    """Response tokens whose logits exist at a time: log-probabilities and entropies are computed chunk by chunk, and
    once more in the backward pass, so that no tensor of all tokens times the vocabulary is made. null makes it: 16,384
    tokens of 152,000 words are 10 GB, several times. With GPUs `placement=auto` sets 1024. Models that change their
    logits after the output layer are scored whole."""
    tensor_parallel: Annotated[WorkerCount, NOT_IN_FINGERPRINT] = Field(1, ge=1)
    """Ranks that share each layer; Megatron-core only, like the next two."""
    pipeline_parallel: Annotated[WorkerCount, NOT_IN_FINGERPRINT] = Field(1, ge=1)
    """Groups of ranks that share the layers among them."""
    context_parallel: Annotated[WorkerCount, NOT_IN_FINGERPRINT] = Field(1, ge=1)
    """Groups of ranks that share each sequence."""
    context_parallel_above: Annotated[Count | None, NOT_IN_FINGERPRINT] = 0
    """Context parallelism by length: sequences of more tokens than this are split among the ranks of a group; of the
    others each rank computes some whole, like a replica, which saves the many small passes and their communication. The
    gradient stays the same, to rounding. What one call brings in too few tokens for all ranks is split, too. 0 splits
    every sequence; null only what would take more memory whole than the longest one takes in parts."""
    recompute_activations: Annotated[Flag, NOT_IN_FINGERPRINT] = False
    """Keep only each layer's input for the backward pass and compute the rest again: a third more work for a
    fraction of the memory. A modelled run takes the same time with and without: `hardware.training_efficiency` says
    what is reached, and has to allow for it."""
    shard_gradients: Annotated[Flag, REAL_RUN, OnlyWith("trainer.name", "fsdp"), NOT_IN_FINGERPRINT] = False
    """FSDP2 only: sum gradients over the ranks in every backward pass, and keep a rank's part of them. Otherwise each
    rank keeps its own whole ones, 4 bytes per parameter of the model, until they are summed once per update."""
    shard_ranks: Annotated[WorkerCount | None, REAL_RUN, OnlyWith("trainer.name", "fsdp"), NOT_IN_FINGERPRINT] = Field(
        None, ge=1
    )
    """FSDP2 only: how many neighbouring ranks share one copy of parameters and optimizer among them; divides
    `data_parallel`. null is all of them, which takes the least memory. With fewer there are several copies, and those
    whose GPUs are lent can stream while engines generate on the others' GPUs; 1 keeps everything on each rank."""
    num_threads: Annotated[Count, REAL_RUN, NOT_IN_FINGERPRINT] = Field(1, ge=1)
    """torch threads of each rank's process."""
    resources: Annotated[ActorResources, NOT_IN_FINGERPRINT] = ActorResources()
    """Of each rank."""

    @model_validator(mode="after")
    def _only_what_can_be_split_has_a_length(self) -> Self:
        if self.context_parallel_above and self.context_parallel == 1:
            raise ValueError(
                f"trainer.context_parallel_above={self.context_parallel_above} with trainer.context_parallel=1.\n"
                "It says which sequences the ranks of a context-parallel group (trainer=megatron) split among them.\n"
                "Set trainer.context_parallel to their number, or trainer.context_parallel_above=0."
            )
        return self

    @model_validator(mode="after")
    def _objective_is_legal(self) -> Self:
        if self.loss is not None:
            named("trainer.loss", self.loss, LOSSES)
        named("trainer.advantage", self.advantage, _ADVANTAGES)
        if self.dual_clip is not None and self.loss not in {None, "ppo", "ppo_behaviour", "gspo"}:
            raise ValueError(
                f"trainer.dual_clip={self.dual_clip:g} with trainer.loss={self.loss}.\n"
                "It bounds the ratio of ppo, ppo_behaviour and gspo where the advantage is negative; other losses have "
                "no ratio without a bound.\n"
                "Leave out trainer.dual_clip, or choose trainer.loss=ppo."
            )
        if self.kl_in == "reward" and self.kl_estimator in {"k2", "k3"}:
            raise ValueError(
                f"trainer.kl_in=reward with trainer.kl_estimator={self.kl_estimator}.\n"
                "The gradient of a reward is that of its mean, and k1 is the estimator whose mean that is.\n"
                "Leave out trainer.kl_estimator, or set trainer.kl_in=loss."
            )
        if (self.kl_in, self.kl_estimator) != ("loss", None) and not self.kl_coefficient:
            raise ValueError(
                f"trainer.kl_in={self.kl_in} and trainer.kl_estimator={self.kl_estimator or 'null'} with "
                "trainer.kl_coefficient=0.\n"
                "They say how the KL penalty is computed, and there is none.\n"
                "Set trainer.kl_coefficient, 0.001 for example, or leave them out."
            )
        return self

    @property
    def needs_whole_batch(self) -> dict[str, str]:
        """Keys by which the loss of a group depends on the rest of its batch, and values with which it does not."""
        found = {
            "num_minibatches": (self.num_minibatches > 1, "1"),
            "loss_normalisation": (self.loss_normalisation == "token_mean", "token_bound"),
            "advantage": (self.advantage in BATCH_ADVANTAGES, "group_mean"),
        }
        return {key: other for key, (is_needed, other) in found.items() if is_needed}

    @property
    def clips_ratio(self) -> bool:
        """Whether the loss of a resolved section has a ratio that may pass a bound.

        That of ppo, to the policy before the step's first update, is 1 until there was one.
        """
        loss = LOSSES.get(self.loss or "")
        if loss is None:
            return False  # the user's own takes no bounds
        return loss.anchor == "behaviour" or (loss.anchor == "proximal" and self.num_minibatches > 1)

    @property
    def num_ranks(self) -> int:
        """Processes of a real trainer."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel * (self.data_parallel or 1)

    def replica_of(self, rank: int) -> int:
        """The data-parallel replica of a rank of a real trainer.

        Ranks are in Megatron-core's order: those of a tensor-parallel group next to each other, then context
        parallel ones, then replicas, then pipeline stages.
        """
        return rank // (self.tensor_parallel * self.context_parallel) % (self.data_parallel or 1)

    def part_of(self, rank: int) -> int:
        """The part of a real trainer that a rank belongs to: ranks of one part can work without those of the others.

        A replica; with FSDP2 those that share a copy of the parameters, which every pass gathers from all of them.
        """
        return rank // (self.shard_ranks or self.data_parallel or 1) if self.name == "fsdp" else self.replica_of(rank)
