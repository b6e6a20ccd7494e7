"""Shares samples among data-parallel replicas.

Invariant: the shares are a function of the lengths in their order. So all ranks, which get the same groups, agree on
them without communication, and a repeated run makes the same shares.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeVar

from rollpacker.core.errors import ImpossibleEvent

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

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


class StepShares:
    """One replica's samples of one step, whose batch is trained in minibatches of whole consecutive groups."""

    def __init__(self, *, num_groups: int, num_minibatches: int, num_replicas: int, replica: int) -> None:
        """Cut a batch into minibatches as equal in groups as possible; a small last batch has fewer of them."""
        self._replica = replica
        num_parts = min(num_minibatches, num_groups)
        self._bounds = [part * num_groups // num_parts for part in range(num_parts + 1)]
        self._trained = [Balance(num_replicas) for _ in range(num_parts)]
        self._observed = Balance(num_replicas)

    def minibatches(self, groups: Sequence[Group]) -> list[Sequence[Group]]:
        """Return the groups of the whole batch by minibatch."""
        return [groups[start:end] for start, end in itertools.pairwise(self._bounds)]

    def trained(self, samples: Sequence[Sample], replicas: Sequence[int]) -> list[Sample]:
        """Return the replica's share of samples with a gradient; the batch is one minibatch."""
        (balance,) = self._trained
        return [samples[index] for index in self._own(balance, samples, replicas)]

    def observed(self, samples: Sequence[Sample], replicas: Sequence[int]) -> list[Sample]:
        """Return the replica's share of samples that pass forward only."""
        return [samples[index] for index in self._own(self._observed, samples, replicas)]

    def rows(self, num_before: int, groups: Sequence[Sequence[Sample]], replicas: Sequence[int]) -> list[int]:
        """Share groups that arrive after `num_before` others, each minibatch separately.

        Returns the replica's rows in the concatenation of the groups.
        """
        samples = [sample for group in groups for sample in group]
        rows_of: list[list[int]] = [[] for _ in self._trained]
        row = 0
        for index, group in enumerate(groups, start=num_before):
            minibatch = next(part for part, end in enumerate(self._bounds[1:]) if index < end)
            rows_of[minibatch].extend(range(row, row + len(group)))
            row += len(group)
        return sorted(
            rows[index]
            for rows, balance in zip(rows_of, self._trained, strict=True)
            for index in self._own(balance, [samples[row] for row in rows], replicas)
        )

    def _own(self, balance: Balance, samples: Sequence[Sample], replicas: Sequence[int]) -> list[int]:
        assigned = balance.assign([sample.num_inputs for sample in samples], replicas)
        return [index for index, replica in enumerate(assigned) if replica == self._replica]


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
