"""The test that engines draw their tokens from the policy: surprisal against entropy.

The surprisal of a token is -log q, by the log-probability that the engine gives with it. If it was drawn from the
policy, its mean is the entropy H of its position. So X = -log q - H has the mean 0 given all tokens before it, whatever
they are: a sum M of X over whole responses is a martingale, and tokens of one response, which depend on each other,
need no clustering. With the sum [M] of X^2 and the sum <M> of the positions' variances of -log p,

    z = M / sqrt([M] / 3 + 2 <M> / 3)

is standard normal for many tokens (martingale central limit theorem: Hall and Heyde 1980, theorem 3.2). Its tails are
Gaussian for few tokens, too, and for a policy that is almost sure, whose one unlikely token outweighs all others:
exp(x - x^2 / 6) <= 1 + x + x^2 / 3 makes exp(u M - u^2 ([M] / 3 + 2 <M> / 3) / 2) a supermartingale for every u
(Delyon 2009, "Exponential inequalities for sums of weakly dependent variables"). By <M> alone two such tokens would
pass for a broken engine, and by [M] alone their absence would.

Stale tokens are left out: the policy that drew them is not the one whose entropy is known. Whether a token is stale was
decided before it was drawn, so what is left is a martingale still.

It finds what the difference of log-probabilities does not: drafts that are accepted wrongly, truncation by top-p or
top-k, a temperature that the log-probabilities have and the tokens do not. What selects responses by what was drawn
shifts it, a race, which leaves out the long ones, and dynamic sampling; there it proves nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rollpacker.core.errors import WrongSampling

if TYPE_CHECKING:
    from rollpacker.config.sections.trainer import TrainerSection
    from rollpacker.protocols.trainer import UpdateMetrics

LEAST_GAP_NATS = 0.02
"""A smaller mean of X, which many tokens prove as surely, is left to rounding and quantised weights. Sampling at
temperature 0.9 in place of 1 makes it -0.07 at an entropy of 0.3 nats and -0.20 at one of 1 nat, top_p=0.99 -0.03 and
-0.07 (Zipf's distributions over 50,000 words)."""


def surprisal_z(gap: float, squares: float, variances: float) -> float:
    """Return z of the sums M, [M] and <M>, in nats and nats squared; 0 where nothing was random."""
    scale = math.sqrt((squares + 2 * variances) / 3)
    return gap / scale if scale else 0.0


def surprisal_warning(update: UpdateMetrics, section: TrainerSection, step: int) -> str | None:
    """Say what is wrong with the responses of a step that nothing selected; None where the test passes.

    Raises:
        WrongSampling: It fails by `trainer.surprisal_stop_z`.
    """
    surprisal, entropy, z = update.surprisal, update.current_entropy, update.surprisal_z
    if surprisal is None or entropy is None or z is None or abs(surprisal - entropy) < LEAST_GAP_NATS:
        return None
    problem = (
        f"The engines' tokens of step {step} are not drawn from the policy: their mean surprisal is {surprisal:.4g} "
        f"nats, and the mean entropy of their distributions {entropy:.4g} (z = {z:.1f})."
    )
    if section.surprisal_stop_z is not None and not abs(z) <= section.surprisal_stop_z:
        raise WrongSampling(
            problem,
            f"The two are equal but for chance: |z| is at most trainer.surprisal_stop_z={section.surprisal_stop_z:g}. "
            "Nothing of this step was published or saved.",
            "Turn off what changes how engines sample: speculative decoding, engine.vllm.arguments, a plugin, another "
            "vLLM. trainer.surprisal_stop_z=null goes on, with quantised engines for example.",
        )
    if section.surprisal_warn_z is not None and not abs(z) <= section.surprisal_warn_z:
        return f"{problem} Column surprisal_z of `steps` has every step."
    return None
