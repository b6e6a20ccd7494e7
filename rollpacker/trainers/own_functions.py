"""A policy loss and an advantage of the user's: how they are called, and what is asked of them.

    def my_loss(current, behaviour, advantages):                     # my_loss.py, with trainer.loss=my_loss.py:my_loss
        ratio = (current - behaviour).clamp(-20, 20).exp()
        return -ratio * advantages

A loss takes any of `LOSS_PARAMETERS`, by name: tensors with a number per response token of several responses, one after
the other, of which only `current` has a gradient; and `num_tokens`, a list of how many tokens each response has. It
returns the loss of each token; or a pair of that and where it was clipped, true or false. It is weighted, corrected and
summed as any other, of responses whose advantage is 0, too; it writes into no tensor that it is given; and a token's
loss depends on nothing but its own response: not on the others of a call, on random numbers or on earlier calls. An
advantage takes the list of a group's rewards and returns as many numbers, the same ones for the same rewards: each rank
calls it.

What a loss reads follows from the parameters that it names; a `**rest` counts as none. Run as
`python -m rollpacker.trainers.own_functions LOSS ADVANTAGE`, each perhaps empty, it tries them on a few numbers, and
prints `{"key": ..., "problem": ..., "reads": [...]}` as its last line: `key` is `loss` or `advantage`, the one that has
the problem. A third word, `differing`, says that no group has equal rewards.
"""

from __future__ import annotations

import inspect
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
        self._reads = parameters_of(self._function, LOSS_PARAMETERS)
        own = inspect.signature(self._function).parameters
        self.names = tuple(name for name in self._reads if name in own)
        """Without those that it gets by a `**rest`, of which it may use none."""

    def __call__(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        tensors = (tokens.current_N, tokens.proximal_N, tokens.behaviour_N, tokens.advantages_N)
        given = dict(zip(LOSS_PARAMETERS, (*tensors, list(tokens.num_tokens_B)), strict=True))
        found = _call("loss", self._source, lambda: self._function(**{name: given[name] for name in self._reads}))
        parts = found if isinstance(found, tuple) else (found, torch.zeros_like(tokens.current_N, dtype=torch.bool))
        is_tensor = [isinstance(each, torch.Tensor) and each.shape == tokens.current_N.shape for each in parts]
        if is_tensor != [True, True]:
            raise _wrong("loss", self._source, "it returned no tensor with a number for each token")
        if parts[1].dtype is not torch.bool:
            raise _wrong("loss", self._source, "the second of the pair is not true or false for each token")
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


_NUM_TOKENS = (1, 4, 2)
"""Of the three responses on which a loss is tried. 3 does not divide their sum, so that no view makes rows of them."""
_CURRENT = (-0.5, -2.0, -1.0, -0.1, -0.7, -0.3, -1.2)
"""Of their tokens; as the next two."""
_BEHAVIOUR = (-0.7, -1.5, -1.0, -0.2, -0.9, -0.4, -1.0)
_ADVANTAGES: tuple[float, ...] = (1.0, -1.0, -1.0, -1.0, -1.0, 0.0, 0.0)


def _try_loss(source: str) -> tuple[str, ...]:
    """Call a loss on three responses, one of them of advantage 0, and on each alone; returns what it names."""
    loss = _OwnLoss(source)
    losses_N, gradient_N = together = _losses_and_gradient(loss, source, 0, 3)
    if not (losses_N.isfinite().all() and gradient_N.isfinite().all()):
        raise _wrong(
            "loss",
            source,
            f"its losses are {losses_N.tolist()}, and its gradient {gradient_N.tolist()}, of responses of "
            f"{list(_NUM_TOKENS)} tokens with the advantages {list(_ADVANTAGES)}; responses of advantage 0 may be "
            "among those that it gets, and responses of one token",
        )
    if not _are_close(together, _losses_and_gradient(loss, source, 0, 3)):
        raise _wrong("loss", source, "it gives other numbers when it is called again with the same ones")
    for row in range(3):
        rows = _tokens_of(row, row + 1)
        alone, among = _losses_and_gradient(loss, source, row, row + 1), (losses_N[rows], gradient_N[rows])
        if not _are_close(alone, among):
            raise _wrong(
                "loss",
                source,
                f"the losses of a response are {alone[0].tolist()} alone and {among[0].tolist()} beside two "
                "others, or their gradients differ; it gets whichever responses fit into one pass",
            )
    return loss.names


def _tokens_of(first: int, end: int) -> slice:
    """The tokens of the responses from `first` to before `end`."""
    return slice(sum(_NUM_TOKENS[:first]), sum(_NUM_TOKENS[:end]))


def _are_close(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.allclose(own, its, rtol=1e-4) for own, its in zip(one, other, strict=True))


def _is_written(tensor: Tensor, before: Tensor) -> bool:
    """Through `.data` no version rises; and a bound that the numbers keep changes none of them."""
    return tensor._version > 0 or not torch.equal(tensor, before)  # noqa: SLF001  (torch has no other name for it)


def _losses_and_gradient(loss: _OwnLoss, source: str, first: int, end: int) -> tuple[Tensor, Tensor]:
    """Those of the tokens of some responses, [N] each; raises `ConfigError` where a loss writes into its inputs."""
    rows = _tokens_of(first, end)

    def tensors() -> dict[str, Tensor]:
        values = (_CURRENT, _CURRENT, _BEHAVIOUR, _ADVANTAGES)
        return {name: torch.tensor(each[rows]) for name, each in zip(LOSS_PARAMETERS, values, strict=False)}

    given = tensors()
    current_N = given["current"].requires_grad_()
    inputs = {f"{name}_N": each for name, each in given.items()}
    losses_N, _ = loss(Tokens(**inputs, num_tokens_B=_NUM_TOKENS[first:end]))
    written = [name for name, each in tensors().items() if _is_written(given[name], each)]
    if written:
        raise _wrong("loss", source, f"it writes into {', '.join(written)}")
    gradient_N = None
    if losses_N.requires_grad:
        (gradient_N,) = torch.autograd.grad(losses_N.sum(), current_N, allow_unused=True)
    if gradient_N is None:
        raise _wrong(
            "loss",
            source,
            f"what it returned for the advantages {list(_ADVANTAGES[rows])} has no gradient with respect to `current`",
        )
    return losses_N.detach().double(), gradient_N


def _try_advantage(source: str, rewards_R: Sequence[float]) -> None:
    """Call an advantage twice on the rewards of a group."""
    advantages = own_advantage(source)
    if not np.array_equal(advantages(rewards_R), advantages(rewards_R)):
        raise _wrong("advantage", source, "it gives other numbers when it is called again with the same rewards")


def main(words: Sequence[str]) -> None:
    """Try a loss and an advantage, and print what came of it."""
    key, problem = "loss", ""
    reads: tuple[str, ...] = ()
    try:
        loss, advantage, *differing = words
        reads = _try_loss(loss) if loss else ()
        key = "advantage"
        if advantage:
            _try_advantage(advantage, [0.0, 1.0, 1.0, 0.5])
            if not differing:
                _try_advantage(advantage, [1.0] * 4)
    except UnusableFunction as error:
        problem = str(error)
    except ConfigError as error:
        problem = error.problem.partition(": ")[2].rstrip(".")
    sys.stdout.write(f"\n{json.dumps({'key': key, 'problem': problem, 'reads': reads})}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # what the module prints at its end would be read as the answer
