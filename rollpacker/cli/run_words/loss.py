"""The loss of a real run, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.config.sections.losses import LOSSES, TURN_ADVANTAGES

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig

_NORMALISATIONS = {
    "sequence": "every response counts the same, so a token of a long one counts less",
    "token_bound": "every token counts the same, in batches of long responses as in those of short ones",
    "token_mean": "every token of a batch counts the same; known after the last response, so nothing streams",
}

_CLIPPING_HOLDS = 2
"""Versions: up to there clipping by the behaviour policy's ratio was seen to learn what synchronous training does."""


def loss_words(config: RunConfig) -> str:
    """How tokens are weighted, what corrects the engines' log-probabilities, and how sampling is tested."""
    trainer, objective = config.trainer, config.objective
    high, low = f"{trainer.mismatch_high:g}", f"{trainer.mismatch_low:g}"
    loss = LOSSES.get(objective.loss or "")
    reads_behaviour = loss is None or loss.anchor == "behaviour"
    corrections = {
        "none": "left to the loss" if reads_behaviour else "not corrected",
        "token_truncate": f"a token's loss is multiplied by trainer/engine probability, at most {high}",
        "token_mask": f"a token's loss is multiplied by trainer/engine probability, by 0 outside of {low} to {high}",
        "sequence_truncate": f"a token's loss is multiplied by the product of its response's ratios, at most {high}",
        "sequence_mask": f"a token's loss is multiplied by its response's mean ratio, by 0 outside of {low} to {high}",
        "k3_mask": f"responses whose engine is further than {trainer.mismatch_k3:g} nats per token from the trainer "
        "are left out",
    }
    mismatch = objective.mismatch or "none"
    reason = f"loss={objective.loss}" if reads_behaviour else f"engine={config.engine.name}"
    source = "" if trainer.mismatch is not None else f", by default with {reason}"
    lines = [
        f"{_NORMALISATIONS[trainer.loss_normalisation]} (loss_normalisation={trainer.loss_normalisation})",
        f"{loss.words if loss else 'a function of your own'} (loss={objective.loss}"
        + (")" if trainer.loss is not None else ", by default)"),
        f"gap between trainer and engines: {corrections[mismatch]} (mismatch={mismatch}{source})",
    ]
    if trainer.advantage in TURN_ADVANTAGES:
        lines.append(
            f"each turn has an advantage of its own, from returns that are discounted by {trainer.turn_discount:g} per "
            f"turn (advantage={trainer.advantage})"
        )
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
