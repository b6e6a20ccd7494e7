"""Streamed steps against unstreamed ones: a batch from the same state, in one call and as a stream would bring it.

Runs in the process of every rank; what is drawn is a function of the seed, so all ranks draw alike.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollpacker.core.ids import EngineId, VersionSpan
from rollpacker.protocols.trainer import BatchShape

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from torch import Tensor

    from rollpacker.protocols.rollout import Response, RolloutGroup
    from rollpacker.protocols.trainer import UpdateMetrics
    from rollpacker.trainers.grpo import GrpoTrainer

MAX_RESPONSE_TOKENS = 16
NUM_BATCHES = 50
NUM_BATCHES_OF_RANKS = 20
"""Where every pass waits for other processes. `tests/benchmarks/streamed_steps.py` has fifty of these, too."""
STALE: tuple[dict[str, Any], ...] = (
    {"loss": "gspo", "clip_ratio_low": 0.1, "clip_ratio_high": 0.1, "entropy_coefficient": 0.1},
    {"loss": "cispo", "advantage": "reinforce_pp", "kl_coefficient": 0.1, "kl_in": "reward"},
)
"""Objectives of asynchronous training: on `stale` groups each of their parts has a gradient."""
GPUS = (0, 1)
"""Of two replicas, one each."""


def random_rewards(seed: int) -> list[tuple[float, ...]]:
    """Groups of one to five responses; about a third have no signal."""
    numbers = np.random.default_rng(seed)
    return [
        tuple(numbers.integers(0, 2, numbers.integers(1, 6)).astype(float).tolist())
        for _ in range(int(numbers.integers(1, 6)))
    ]


def stale(groups: Sequence[RolloutGroup]) -> Sequence[RolloutGroup]:
    """Make the log-probabilities of groups those of another policy."""
    numbers = np.random.default_rng(0)
    for response in (response for group in groups for response in group.responses):
        response.logprobs[:] += numbers.normal(0, 0.5, response.num_tokens)
    return groups


def relabelled(group: RolloutGroup, version: int, draw: random.Random | None = None) -> RolloutGroup:
    """The same tokens, of another version. With `draw` some responses have moved: another engine went on with them."""

    def renewed(response: Response) -> Response:
        spans = (VersionSpan(policy_version=version, num_tokens=response.num_tokens),)
        if draw is None or response.num_tokens < 2 or draw.random() < 0.5:
            return dataclasses.replace(response, spans=spans)
        first = draw.randint(1, response.num_tokens - 1)
        spans = tuple(
            VersionSpan(policy_version=version, num_tokens=count) for count in (first, response.num_tokens - first)
        )
        return dataclasses.replace(response, spans=spans, engine=EngineId("engine-1"))

    return dataclasses.replace(group, responses=tuple(map(renewed, group.responses)))


def shape_of(groups: Sequence[RolloutGroup], version: int) -> BatchShape:
    return BatchShape(
        step=version,
        policy_version=version,
        oldest_policy_version=version,
        num_groups=len(groups),
        num_responses=sum(len(group.responses) for group in groups),
        max_response_tokens=MAX_RESPONSE_TOKENS,
    )


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Of one batch: how far the streamed step is from the unstreamed one."""

    weights: float
    """The largest over all weights."""
    update: float
    """The largest change of a weight by the unstreamed step: what the difference is small against."""
    metrics: float
    """The largest of loss, gradient norm and entropy, relative."""
    num_calls: int
    num_alone: int
    """Of these calls, those that one replica made while the other slept."""


async def compare(
    trainer: GrpoTrainer, state: Iterable[Tensor], batches: Sequence[Sequence[RolloutGroup]], *, can_lend: bool
) -> list[Difference]:
    """Train each batch twice from the same state, and go on from where the unstreamed step led.

    `state` are parameters and optimizer of this rank, which exist from the first update on; so the first batch is
    trained once more before.
    """
    trainer._replica_gpus = tuple((gpu,) for gpu in GPUS)
    await _in_one_call(trainer, batches[0])
    tensors = list(state)
    differences = []
    for number, batch in enumerate(batches):
        before = [tensor.clone() for tensor in tensors]
        old = _weights(trainer)
        expected = await _in_one_call(trainer, batch)
        whole = _weights(trainer)
        after = [tensor.clone() for tensor in tensors]
        _set(tensors, before)
        trainer._policy_version -= 1
        found, num_calls, num_alone = await _as_a_stream(trainer, batch, random.Random(number), can_lend=can_lend)
        streamed = _weights(trainer)
        _set(tensors, after)
        differences.append(
            Difference(
                weights=_largest(streamed, whole),
                update=_largest(whole, old),
                metrics=_relative(found, expected),
                num_calls=num_calls,
                num_alone=num_alone,
            )
        )
    return differences


def state_of(policy: Any) -> Iterator[Tensor]:
    """Parameters and optimizer of this rank of `TorchPolicy` or `FsdpPolicy`."""
    for parameter in policy._parameters.values():
        for value in (parameter.detach(), *policy._optimizer.state[parameter].values()):
            yield value.to_local() if hasattr(value, "to_local") else value


def require_rounding_only(differences: Sequence[Difference], num_batches: int) -> None:
    """What is asked of every batch; an update moves weights by up to 1e-3."""
    assert len(differences) == num_batches
    for difference in differences:
        assert difference.update > 1e-5
        assert difference.weights < 2e-6
        assert difference.metrics < 1e-4
    assert sum(difference.num_calls for difference in differences) > 2 * num_batches


async def _in_one_call(trainer: GrpoTrainer, batch: Sequence[RolloutGroup]) -> UpdateMetrics:
    groups = [relabelled(group, trainer.policy_version) for group in batch]
    await trainer.begin_step(shape_of(groups, trainer.policy_version))
    await trainer.accumulate(groups)
    return await trainer.finish_step()


async def _as_a_stream(
    trainer: GrpoTrainer, batch: Sequence[RolloutGroup], draw: random.Random, *, can_lend: bool
) -> tuple[UpdateMetrics, int, int]:
    """In random order and calls, responses that moved among them; the first calls on one of the replicas alone.

    Some batches are announced larger than they turn out.
    """
    groups = [relabelled(group, trainer.policy_version, draw) for group in batch]
    draw.shuffle(groups)
    lent = draw.choice([None, *GPUS]) if can_lend else None
    if lent is not None:
        await trainer.sleep()
        await trainer.wake({lent})
    shape, num_missing = shape_of(groups, trainer.policy_version), draw.choice([0, 1, 7])
    await trainer.begin_step(
        dataclasses.replace(
            shape, num_groups=shape.num_groups + num_missing, num_responses=shape.num_responses + 3 * num_missing
        )
    )
    num_calls = num_alone = 0
    while groups:
        size = draw.randint(1, min(2, len(groups)))
        part, groups = groups[:size], groups[size:]
        on_gpus: Collection[int] | None = None if lent is None else {lent}
        await trainer.accumulate(part, on_gpus)
        num_calls += 1
        num_alone += lent is not None
        if lent is not None and draw.random() < 0.5:  # the rollout is over
            await trainer.wake()
            lent = None
    if lent is not None:
        await trainer.wake()
    await trainer.complete_batch(shape.num_responses)
    return await trainer.finish_step(), num_calls, num_alone


def _weights(trainer: GrpoTrainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer._policy.weights()}


def _set(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.detach().copy_(value)


def _largest(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """0 on a rank that does not have them."""
    return max((float((left[name] - right[name]).abs().max()) for name in left if left[name].numel()), default=0.0)


def _relative(found: UpdateMetrics, expected: UpdateMetrics) -> float:
    assert found.num_tokens == expected.num_tokens
    pairs: list[tuple[Any, Any]] = [
        (found.loss, expected.loss),
        (found.grad_norm, expected.grad_norm),
        (found.entropy, expected.entropy),
    ]
    return max(abs(own - other) / max(abs(other), 1e-2) for own, other in pairs)
