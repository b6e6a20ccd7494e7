"""The loss of a real run, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.config.sections.losses import LOSSES, TURN_ADVANTAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollpacker.config.schema import RunConfig
    from rollpacker.config.sections.trainer import TrainerSection

_NORMALISATIONS = {
    "sequence": "every response counts the same, so a token of a long one counts less",
    "token_bound": "every token counts the same, in batches of long responses as in those of short ones",
    "token_mean": "every token of an update counts the same; known after the last response, so nothing streams",
}

_ADVANTAGES = {
    "group_std": "the reward less its group's mean, over the group's standard deviation",
    "group_mean": "the reward less its group's mean",
    "rloo": "the reward less the mean of the others in its group",
    "batch_std": "the reward less its group's mean, over the batch's standard deviation",
    "reinforce_pp": "the reward, whitened over the batch's tokens",
    "reinforce_pp_baseline": "the reward less its group's mean, whitened over the batch's tokens",
}
"""Those of responses, by their values of `trainer.advantage`."""

_CLIPPING_HOLDS = 2
"""Versions: up to there clipping by the behaviour policy's ratio was seen to learn what synchronous training does."""


def loss_words(config: RunConfig) -> str:
    """How tokens are weighted, by which advantage, what corrects the engines' log-probabilities, what is tested."""
    trainer, objective = config.trainer, config.objective
    high, low = f"{trainer.mismatch_high:g}", f"{trainer.mismatch_low:g}"
    loss = LOSSES.get(objective.loss or "")
    reads_behaviour = loss is None or loss.anchor == "behaviour"
    corrections = {
        "none": "left to the loss" if reads_behaviour else "not corrected",
        "token_truncate": f"a token's loss is multiplied by trainer/engine probability, at most {high}",
        "token_mask": f"a token's loss is multiplied by trainer/engine probability, by 0 outside of {low} to {high}",
        "sequence_truncate": f"a token's loss is multiplied by the product of its response's ratios, at most {high}",
        "sequence_mask": "a token's loss is multiplied by the geometric mean of its response's ratios, by 0 "
        f"outside of {low} to {high}",
        "k3_mask": f"responses whose engine is further than {trainer.mismatch_k3:g} nats per token from the trainer "
        "are left out",
    }
    mismatch = objective.mismatch or "none"
    reason = f"loss={objective.loss}" if reads_behaviour else f"engine={config.engine.name}"
    source = "" if trainer.mismatch is not None else f", by default with {reason}"
    lines = [
        f"{_NORMALISATIONS[trainer.loss_normalisation]} (loss_normalisation={trainer.loss_normalisation})",
        f"{loss.words if loss else 'a function of your own'}{_bounds_words(objective)} (loss={objective.loss}"
        + (")" if trainer.loss is not None else ", by default)"),
        f"advantage: {_advantage_words(trainer)} (advantage={trainer.advantage})",
        f"gap between trainer and engines: {corrections[mismatch]} (mismatch={mismatch}{source})",
        *_more_terms(objective),
    ]
    if objective.loss == "ppo_behaviour" and config.system.max_staleness > _CLIPPING_HOLDS:
        lines.append(
            f"tokens may be {config.system.max_staleness} versions old: in a small run of up to 8, cispo held the "
            "score and ppo_behaviour lost 0.08 (tests/benchmarks/results/asynchronous.md)"
        )
    limits = [
        f"{what} beyond {z:g} standard deviations"
        for what, z in (("a warning", trainer.surprisal_warn_z), ("a stop", trainer.surprisal_stop_z))
        if z is not None
    ]
    if config.system.dynamic_sampling:
        limits = ["reported only, since dynamic sampling selects responses"]
    elif config.system.is_async:
        limits = ["reported only, since a batch takes what is complete"]
    elif limits and config.system.batching == "tail":
        limits.append("in long rounds; short ones select responses")
    if limits:
        lines.append(f"do engines draw from the policy? surprisal against entropy: {', '.join(limits)}")
    return "\n".join(lines)


def _bounds_words(objective: TrainerSection) -> str:
    """Between which numbers a loss of ours keeps its ratio."""
    low, high = objective.clip_ratio_low, objective.clip_ratio_high
    loss = LOSSES.get(objective.loss or "")
    if loss is None or loss.anchor == "none" or low is None or high is None:
        return ""
    if not objective.clips_ratio:
        return ", which with num_minibatches=1 is 1: nothing is clipped"
    return f", at most {1 + high:g}" if low == 1 else f", {1 - low:g} to {1 + high:g}"


def _more_terms(objective: TrainerSection) -> Iterator[str]:
    """What there is beside the policy loss, and what is left out of it."""
    if objective.dual_clip is not None and objective.clips_ratio:
        yield (
            f"where the advantage is negative, the ratio counts at most {objective.dual_clip:g} "
            f"(dual_clip={objective.dual_clip:g})"
        )
    if objective.loss == "topr" and objective.topr_weights != (1.0, 1.0):
        positive, negative = objective.topr_weights
        yield (
            f"tokens count {positive:g} times with a positive advantage, {negative:g} times with a negative one "
            f"(topr_weights=[{positive:g},{negative:g}])"
        )
    if objective.kl_coefficient:
        place = "added to a token's loss" if objective.kl_in == "loss" else "taken off a token's reward"
        yield (
            f"KL penalty: {objective.kl_coefficient:g} times the divergence from the initial policy is {place} "
            f"(kl_coefficient={objective.kl_coefficient:g}, kl_in={objective.kl_in}, "
            f"kl_estimator={objective.kl_estimator})"
        )
    if objective.kl_coefficient and (objective.kl_in, objective.kl_estimator) == ("loss", "k1"):
        yield "k1 in the loss restrains nothing: its gradient has the mean 0. Choose k2 or k3, or kl_in=reward"
    if objective.entropy_coefficient:
        yield (
            f"entropy bonus: {objective.entropy_coefficient:g} times the entropy is taken off a token's loss "
            f"(entropy_coefficient={objective.entropy_coefficient:g})"
        )
    if objective.mask_truncated:
        yield "responses that were cut are left out of the loss (mask_truncated=true)"


def _advantage_words(trainer: TrainerSection) -> str:
    """What a response, or each of its turns, has of its reward."""
    if trainer.advantage in TURN_ADVANTAGES:
        return f"each turn has its own, from returns that are discounted by {trainer.turn_discount:g} per turn"
    return _ADVANTAGES.get(trainer.advantage, "a function of your own")
