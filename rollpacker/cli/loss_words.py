"""What `rollpacker check` says of the loss of a real run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig

_NORMALISATIONS = {
    "sequence": "every response counts the same, so a token of a long one counts less",
    "token_bound": "every token counts the same, in batches of long responses as in those of short ones",
    "token_mean": "every token of a batch counts the same; known after the last response, so nothing streams",
}


def loss_words(config: RunConfig) -> str:
    """How tokens are weighted, what corrects the engines' log-probabilities, and how sampling is tested."""
    trainer = config.trainer
    high, low = f"{trainer.mismatch_high:g}", f"{trainer.mismatch_low:g}"
    corrections = {
        "none": "not corrected",
        "token_truncate": f"a token's loss is multiplied by trainer/engine probability, at most {high}",
        "token_mask": f"a token's loss is multiplied by trainer/engine probability, by 0 outside of {low} to {high}",
        "sequence_mask": f"a token's loss is multiplied by its response's mean ratio, by 0 outside of {low} to {high}",
    }
    source = "" if trainer.mismatch is not None else f", by default with engine={config.engine.name}"
    lines = [
        f"{_NORMALISATIONS[trainer.loss_normalisation]} (loss_normalisation={trainer.loss_normalisation})",
        f"gap between trainer and engines: {corrections[config.mismatch]} (mismatch={config.mismatch}{source})",
    ]
    limits = [
        f"{what} beyond {z:g} standard deviations"
        for what, z in (("a warning", trainer.surprisal_warn_z), ("a stop", trainer.surprisal_stop_z))
        if z is not None
    ]
    if config.system.dynamic_sampling:
        limits = ["reported only, since dynamic sampling selects responses"]
    elif limits and config.system.batching == "tail":
        limits.append("in long rounds; short ones select responses")
    if limits:
        lines.append(f"do engines draw from the policy? surprisal against entropy: {', '.join(limits)}")
    return "\n".join(lines)
