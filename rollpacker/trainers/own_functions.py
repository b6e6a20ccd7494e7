"""A policy loss and an advantage of the user's: how they are called, and what is asked of them.

    def my_loss(current, behaviour, advantages):                     # my_loss.py, with trainer.loss=my_loss.py:my_loss
        ratio = (current - behaviour).clamp(-20, 20).exp()
        return -ratio * advantages

A loss takes any of `LOSS_PARAMETERS`, by name: tensors with a number per response token of several responses, one after
the other, of which only `current` has a gradient; and `num_tokens`, a list of how many tokens each response has. It
returns the loss of each token; or a pair of that and where it was clipped, true or false. It is weighted, corrected and
summed as any other, of responses whose advantage is 0, too; and a token's loss depends on nothing but its own response:
what is in one call is not for it to know. An advantage takes the list of a group's rewards and returns as many numbers.

What a loss reads follows from its parameters. Run as `python -m rollpacker.trainers.own_functions LOSS ADVANTAGE`, each
perhaps empty, it tries them on a few numbers, and prints `{"problem": ..., "reads": [...]}` as its last line. A third
word, `differing`, says that no group has equal rewards.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rollpacker.config.python_names import UnusableFunction, in_words, load_named, parameters_of
from rollpacker.core.errors import ConfigError
from rollpacker.trainers.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    from torch import Tensor

LOSS_PARAMETERS = ("current", "proximal", "behaviour", "advantages", "num_tokens")


def own_loss(source: str) -> Callable[[Tokens], tuple[Tensor, Tensor]]:
    """Import a loss, called as those of `policy_losses.py` are; raises `UnusableFunction`."""
    return _OwnLoss(source)


def own_advantage(source: str) -> Callable[[Sequence[float]], npt.NDArray[np.float32]]:
    """Import an advantage; raises `UnusableFunction`."""
    function = load_named(source)

    def advantages(rewards_R: Sequence[float]) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = _call(
            "advantage", source, lambda: np.asarray(function(list(rewards_R)), dtype=np.float32)
        )
        if found.shape != (len(rewards_R),) or not np.isfinite(found).all():
            raise _wrong("advantage", source, f"it returned {found.tolist()} for the rewards {list(rewards_R)}")
        return found

    return advantages


class _OwnLoss:
    def __init__(self, source: str) -> None:
        self._source = source
        self._function = load_named(source)
        self.reads = parameters_of(self._function, LOSS_PARAMETERS)

    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        tensors = (tokens.current_N, tokens.proximal_N, tokens.behaviour_N, tokens.advantages_N)
        given = dict(zip(LOSS_PARAMETERS, (*tensors, list(tokens.num_tokens_B)), strict=True))
        found = _call("loss", self._source, lambda: self._function(**{name: given[name] for name in self.reads}))
        parts = found if isinstance(found, tuple) else (found, torch.zeros_like(tokens.current_N, dtype=torch.bool))
        is_tensor = [isinstance(each, torch.Tensor) and each.shape == tokens.current_N.shape for each in parts]
        if is_tensor != [True, True]:
            raise _wrong("loss", self._source, "it returned no tensor with a number for each token")
        return parts


def _call(key: str, source: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:  # the user's boundary: their function may raise anything
        raise _wrong(key, source, f"it raised {in_words(error, __file__)}") from error


def _wrong(key: str, source: str, problem: str) -> ConfigError:
    legal = {
        "loss": f"A loss takes any of {', '.join(LOSS_PARAMETERS)} and returns a tensor with the loss of each token.",
        "advantage": "An advantage takes a list of rewards and returns as many finite numbers.",
    }
    return ConfigError(f"trainer.{key}={source}: {problem}.", legal[key], "Correct it.")


def _try_loss(source: str) -> tuple[str, ...]:
    """Call a loss on three responses, one of them of advantage 0; returns what it reads."""
    loss = _OwnLoss(source)
    current_N = torch.tensor([-0.5, -2.0, -1.0, -0.1, -0.3, -1.2], requires_grad=True)
    advantages = [1.0, 1.0, -1.0, -1.0, 0.0, 0.0]
    loss_N, _ = loss(
        Tokens(
            current_N=current_N,
            proximal_N=current_N.detach(),
            behaviour_N=torch.tensor([-0.7, -1.5, -1.0, -0.2, -0.4, -1.0]),
            advantages_N=torch.tensor(advantages),
            num_tokens_B=(2, 2, 2),
        )
    )
    if not loss_N.requires_grad:
        raise _wrong("loss", source, "what it returned has no gradient with respect to `current`")
    (gradient_N,) = torch.autograd.grad(loss_N.sum(), current_N)
    if not (loss_N.isfinite().all() and gradient_N.isfinite().all()):
        raise _wrong(
            "loss",
            source,
            f"its losses are {loss_N.tolist()}, and its gradient {gradient_N.tolist()}, of tokens with the advantages "
            f"{advantages}; responses of advantage 0 may be among those that it gets",
        )
    return loss.reads


def main(words: Sequence[str]) -> None:
    """Try a loss and an advantage, and print what came of it."""
    problem = ""
    reads: tuple[str, ...] = ()
    try:
        loss, advantage, *differing = words
        reads = _try_loss(loss) if loss else ()
        if advantage:
            own_advantage(advantage)([0.0, 1.0, 1.0, 0.5])
            if not differing:
                own_advantage(advantage)([1.0] * 4)
    except UnusableFunction as error:
        problem = str(error)
    except ConfigError as error:
        problem = error.problem.partition(": ")[2].rstrip(".")
    sys.stdout.write(f"\n{json.dumps({'problem': problem, 'reads': reads})}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # what the module prints at its end would be read as the answer
