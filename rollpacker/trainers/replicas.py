"""Shares samples among data-parallel replicas, and short ones among the context-parallel ranks of each.

Context-parallel ranks hold the same weights, and their gradients are summed like those of replicas. So a sample that is
short enough for one of them need not be split: every rank would take part in its passes, and communicate in every
layer, for few tokens. The ranks take whole samples instead, as further replicas.

Invariant: the shares are a function of the lengths in their order. So all ranks, which get the same groups, agree on
them without communication, and a repeated run makes the same shares.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, TypeVar

from rollpacker.core.errors import ImpossibleEvent

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rollpacker.config.schema import RunConfig
    from rollpacker.trainers.microbatches import Sample
    from rollpacker.trainers.policy import Policy

Group = TypeVar("Group")


class Balance:
    """Gives each sample to the replica that has got the fewest tokens so far.

    The loads carry over from call to call: many small calls are as balanced as one large one. While all replicas take
    part, they differ by no more than the longest sample.
    """

    def __init__(self, num_replicas: int) -> None:
        self._loads_tokens = [0] * num_replicas

    def assign(self, lengths_tokens: Sequence[int], replicas: Sequence[int]) -> list[int]:
        """Return the replica of each sample, one of `replicas`; the longest samples choose first."""
        chosen = [replicas[0]] * len(lengths_tokens)
        for index in sorted(range(len(lengths_tokens)), key=lambda index: (-lengths_tokens[index], index)):
            chosen[index] = min(replicas, key=lambda replica: (self._loads_tokens[replica], replica))
            self._loads_tokens[chosen[index]] += lengths_tokens[index]
        return chosen


def whole_up_to(config: RunConfig) -> int:
    """Return `trainer.context_parallel_above`, or for null as many tokens as a rank gets of a split micro-batch."""
    trainer = config.trainer
    if trainer.context_parallel == 1:
        return 0
    if trainer.context_parallel_above is not None:
        return trainer.context_parallel_above
    longest = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    return max(trainer.max_tokens_per_microbatch, longest) // trainer.context_parallel


def longest_whole(lengths_tokens: Sequence[int], num_ranks: int, most_tokens: int) -> int:
    """Return the length up to which a call's samples are not split among context-parallel ranks.

    That is `most_tokens`, or what each of `num_ranks`, of all replicas that take part, has to do on average: a longer
    sample would keep its rank busy while the others wait.
    """
    return min(most_tokens, sum(lengths_tokens) // num_ranks)


class StepShares:
    """One rank's samples of one step, whose batch is trained in minibatches of whole consecutive groups."""

    def __init__(
        self,
        *,
        num_groups: int,
        num_minibatches: int,
        num_replicas: int,
        replica: int,
        num_parts: int = 1,
        part: int = 0,
        whole_up_to: int = 0,
    ) -> None:
        """Cut a batch into minibatches as equal in groups as possible; a small last batch has fewer of them.

        Args:
            num_groups: Of the batch, as it was announced.
            num_minibatches: Optimizer updates that it is cut into.
            num_replicas: Data-parallel.
            replica: That of this rank.
            num_parts: Context-parallel ranks of a replica.
            part: That of this rank.
            whole_up_to: As in `longest_whole`.
        """
        self._replica, self._part, self._num_parts = replica, part, num_parts
        self._whole_up_to = whole_up_to
        self._num_minibatches = num_minibatches
        self._bounds = _bounds(num_groups, num_minibatches)
        self._trained = [Balance(num_replicas) for _ in self._bounds[1:]]
        self._observed = Balance(num_replicas)

    def minibatches(self, groups: Sequence[Group]) -> list[Sequence[Group]]:
        """Return the groups of the whole batch by minibatch; it may be smaller than was announced."""
        bounds = _bounds(len(groups), self._num_minibatches)
        return [groups[start:end] for start, end in itertools.pairwise(bounds)]

    def trained(self, samples: Sequence[Sample], replicas: Sequence[int]) -> list[Sample]:
        """Return the rank's share of samples with a gradient; the batch is one minibatch."""
        (balance,) = self._trained
        return list(self._own(balance, samples, replicas).values())

    def observed(self, samples: Sequence[Sample], replicas: Sequence[int]) -> list[Sample]:
        """Return the rank's share of samples that pass forward only."""
        return list(self._own(self._observed, samples, replicas).values())

    def rows(self, num_before: int, groups: Sequence[Sequence[Sample]], replicas: Sequence[int]) -> dict[int, Sample]:
        """Share groups that arrive after `num_before` others, each minibatch separately.

        Returns the rank's samples by their rows in the concatenation of the groups.
        """
        samples = [sample for group in groups for sample in group]
        rows_of: list[list[int]] = [[] for _ in self._trained]
        row = 0
        for index, group in enumerate(groups, start=num_before):
            minibatch = next(part for part, end in enumerate(self._bounds[1:]) if index < end)
            rows_of[minibatch].extend(range(row, row + len(group)))
            row += len(group)
        own = {
            rows[index]: sample
            for rows, balance in zip(rows_of, self._trained, strict=True)
            for index, sample in self._own(balance, [samples[row] for row in rows], replicas).items()
        }
        return dict(sorted(own.items()))

    def _own(self, balance: Balance, samples: Sequence[Sample], replicas: Sequence[int]) -> dict[int, Sample]:
        """By index: those of the replica that are split, and of the others this rank's own."""
        lengths = [sample.num_inputs for sample in samples]
        assigned = balance.assign(lengths, replicas)
        own = {index: samples[index] for index, replica in enumerate(assigned) if replica == self._replica}
        if self._num_parts == 1:
            return own
        longest = longest_whole(lengths, len(replicas) * self._num_parts, self._whole_up_to)
        whole = [index for index in own if lengths[index] <= longest]
        # Each call is balanced by itself: all ranks finish it before the next one begins.
        parts = Balance(self._num_parts).assign([lengths[index] for index in whole], range(self._num_parts))
        for index, part in zip(whole, parts, strict=True):
            if part == self._part:
                own[index] = dataclasses.replace(own[index], is_whole=True)
            else:
                del own[index]
        return own


def _bounds(num_groups: int, num_minibatches: int) -> list[int]:
    """Return where the minibatches of a batch begin, and where the last one ends."""
    num_minibatches = min(num_minibatches, num_groups)
    return [number * num_groups // num_minibatches for number in range(num_minibatches + 1)]


def replicas_on(
    gpus: Collection[int] | None, policy: Policy, replica_gpus: Sequence[Collection[int]], trainer_name: str
) -> Sequence[int]:
    """Return the replicas with all their GPUs among `gpus`, or all of them for None.

    Raises `ImpossibleEvent` when there is none, or none that can work without the others.
    """
    everyone = range(policy.num_replicas)
    if gpus is None or len(everyone) == 1:
        return everyone
    chosen = [replica for replica, own in enumerate(replica_gpus) if set(own) <= set(gpus)]
    if not chosen:
        raise ImpossibleEvent(
            f"Groups were to be trained on GPUs {sorted(gpus)}",
            f"The replicas lie on {[sorted(own) for own in replica_gpus]}, and each works as a whole",
        )
    size = policy.replicas_per_copy
    if len(chosen) < len({replica // size for replica in chosen}) * size:
        raise ImpossibleEvent(
            f"Groups were to be trained on {len(chosen)} of {len(everyone)} replicas",
            f"With trainer.name={trainer_name} every pass needs the parameters of {size} neighbouring ranks",
            "Set trainer.shard_ranks, or choose trainer=megatron",
        )
    return chosen
