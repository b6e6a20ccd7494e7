"""The reference model's own arithmetic of batches: places, launches and launch order, one place or prompt at a time.

It computes what `rollpacker.core.quotas` computes, by other means: so a wrong quota is a difference, not an agreement.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TypeVar

from rollpacker.core.ids import Domain

Item = TypeVar("Item")


def shares(total: int, weights: Mapping[Domain, Fraction | int]) -> dict[Domain, int]:
    """Give each place to the domain that is furthest below its exact share, of equal ones to the first."""
    exact = {domain: Fraction(total) * weight / sum(weights.values()) for domain, weight in weights.items()}
    places = dict.fromkeys(weights, 0)
    for _ in range(total):
        places[max(exact, key=lambda domain: exact[domain] - places[domain])] += 1
    return places


def scaled(count: int, factor: Fraction) -> int:
    """Find the smallest number that is at least `count * factor`, for a factor of at least 1."""
    return next(number for number in itertools.count(count) if number >= count * factor)


def launches(quotas: Mapping[Domain, int], factor: Fraction) -> dict[Domain, int]:
    """Add to each quota its share of the surplus, by quota."""
    num_needed = sum(quotas.values())
    surplus = shares(scaled(num_needed, factor) - num_needed, quotas)
    return {domain: quota + surplus[domain] for domain, quota in quotas.items()}


def evenly_mixed(columns: Sequence[Sequence[Item]]) -> list[Item]:
    """Take the next item of the column that has given the smallest part of itself, half of the item included."""
    rest = [list(column) for column in columns]
    mixed: list[Item] = []
    while any(rest):
        order = min(
            (order for order, column in enumerate(rest) if column),
            key=lambda order: Fraction(2 * (len(columns[order]) - len(rest[order])) + 1, len(columns[order])),
        )
        mixed.append(rest[order].pop(0))
    return mixed
