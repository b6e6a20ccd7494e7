"""The policy losses, and what is known of each before there is a tensor: what it reads, its bounds, what it refuses.

Three policies, three names: `behaviour` sampled the tokens, `proximal` is the trainer's before the first update of the
step, `current` is the one that is differentiated. A loss is **anchored** at the policy whose log-probabilities it
divides by. With one update per step the proximal policy is the current one, and a ratio to it is 1 for ever: of a stale
token a loss that is anchored there learns as if it had been drawn just now. So stale tokens (`system.max_staleness`)
are trained by a loss that reads the behaviour policy, or with a correction that does (`trainer.mismatch`); never
without, and never with both, which would correct twice. k3_mask only leaves responses out, so it goes with any loss.

`rollpacker.trainers.policy_losses` has the formulas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from rollpacker.config.names_elsewhere import word_for
from rollpacker.config.sections.reward_checks import NAMED_IN_PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rollpacker.config.sections.trainer import TrainerSection


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """One of them."""

    anchor: Literal["none", "proximal", "behaviour"]
    """Which log-probabilities it reads beside the current ones."""
    clip_ratio_low: float | None = None
    """What `trainer.clip_ratio_low` is where it is null; as the next."""
    clip_ratio_high: float | None = None
    words: str
    """What it does with a token, for `rollpacker check`."""


LOSSES: Final[Mapping[str, PolicyLoss]] = {
    "ppo": PolicyLoss(
        anchor="proximal",
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        words="clipped ratio to the policy before the step's first update",
    ),
    "ppo_behaviour": PolicyLoss(
        anchor="behaviour",
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
        words="clipped ratio to the policy that sampled the token",
    ),
    "reinforce": PolicyLoss(anchor="none", words="log-probability times advantage"),
    "tis": PolicyLoss(
        anchor="behaviour",
        clip_ratio_low=1.0,
        clip_ratio_high=0.0,
        words="REINFORCE, weighted by the bounded ratio to the policy that sampled the token",
    ),
    "cispo": PolicyLoss(
        anchor="behaviour",
        clip_ratio_low=1.0,
        clip_ratio_high=0.28,
        words="REINFORCE, weighted by the bounded ratio to the policy that sampled the token",
    ),
    "topr": PolicyLoss(
        anchor="behaviour",
        clip_ratio_low=1.0,
        clip_ratio_high=0.0,
        words="REINFORCE, whose tokens with a negative advantage are weighted by the bounded ratio to the policy "
        "that sampled them",
    ),
    "gspo": PolicyLoss(
        anchor="behaviour",
        clip_ratio_low=3e-4,
        clip_ratio_high=4e-4,
        words="clipped ratio of the whole response, its tokens' geometric mean, to the policy that sampled it",
    ),
}
"""By their values of `trainer.loss`. Bounds: DAPO (arXiv 2503.14476), ROLL's 0 to 1 of TIS and TOPR, no lower bound of
CISPO (MiniMax-M1, arXiv 2506.13585, which names no upper one), GSPO (arXiv 2507.18071, section 5.1)."""

STREAMED_ADVANTAGES: Final = ("group_std", "group_mean", "rloo")
"""Values of `trainer.advantage` that depend on the group alone, as one's own do."""
TURN_ADVANTAGES: Final = ("gigpo", "step_reinforce")
"""Those of each turn, from what an environment gave for it; they depend on the group alone, too."""
BATCH_ADVANTAGES: Final = ("batch_std", "reinforce_pp", "reinforce_pp_baseline")
"""Those that are known only with the last reward of the batch."""

WITHOUT_RATIO: Final = ("none", "k3_mask")
"""Values of `trainer.mismatch` that multiply no loss by a ratio."""


def is_own(name: str | None) -> bool:
    """Whether a loss or an advantage is a function of the user's."""
    return name is not None and ":" in name


def named(key: str, name: str, known: Iterable[str]) -> str:
    """Return a name that is one of the `known`, or a function's; raises `ValueError` for any other."""
    known = tuple(known)
    if name in known or re.fullmatch(NAMED_IN_PYTHON, name):
        return name
    close = word_for(key, name, known)
    raise ValueError(
        f"{key}={name} is not legal.\n"
        f"It is one of {', '.join(known)}, or a function of your own as FILE.py:NAME or PACKAGE.MODULE:NAME.\n"
        + (f"Did you mean {close}?" if close else "Choose one of them.")
    )


def resolved(section: TrainerSection, *, engine_name: str = "torch", max_staleness: int = 0) -> TrainerSection:
    """Return a section with what its nulls of the objective stand for; one that is resolved stays as it is."""
    name = section.loss or ("ppo_behaviour" if max_staleness else "ppo")
    loss = LOSSES.get(name, _OWN)
    needs_correction = engine_name == "vllm" and loss.anchor != "behaviour"
    low, high = section.clip_ratio_low, section.clip_ratio_high
    return section.model_copy(
        update={
            "loss": name,
            "clip_ratio_low": loss.clip_ratio_low if low is None else low,
            "clip_ratio_high": loss.clip_ratio_high if high is None else high,
            "mismatch": section.mismatch or ("token_truncate" if needs_correction else "none"),
            "kl_estimator": section.kl_estimator or ("k1" if section.kl_in == "reward" else "k3"),
        }
    )


def check_stale_tokens(section: TrainerSection, max_staleness: int) -> None:
    """Raise `ValueError` where a resolved section corrects for what sampled a token twice, or stale ones not at all."""
    loss = LOSSES.get(section.loss or "", _OWN)
    if is_own(section.loss):
        return  # what it reads is known when it is tried
    if loss.anchor == "behaviour" and section.mismatch not in WITHOUT_RATIO:
        raise ValueError(
            f"trainer.mismatch={section.mismatch} with trainer.loss={section.loss}.\n"
            "The loss divides by the probability with which the engine sampled the token; the correction would do so "
            "once more.\n"
            "Leave out trainer.mismatch, or set trainer.loss=ppo: with trainer.mismatch=token_truncate it is decoupled "
            "PPO."
        )
    if max_staleness and loss.anchor != "behaviour" and section.mismatch == "none":
        raise ValueError(
            f"trainer.loss={section.loss} with trainer.mismatch=none and system.max_staleness={max_staleness}.\n"
            "Tokens of older policies are trained, and neither of the two reads the probability with which they were "
            "sampled: the loss would learn from them as if the current policy had drawn them.\n"
            f"Set trainer.mismatch=token_truncate, or trainer.loss to "
            f"{', '.join(each for each, known in LOSSES.items() if known.anchor == 'behaviour')}."
        )


_OWN = PolicyLoss(anchor="behaviour", words="a function of your own")
"""It may read all of them; so nothing is corrected unless `trainer.mismatch` says so."""
