"""How many prompts each domain gets, in whole numbers that always add up.

Invariant: whatever the weights, the parts of a batch sum to the batch and a domain launches at least its quota.
Ties go to the domain that comes first. Source: largest-remainder apportionment (Hamilton), exact over fractions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TypeVar

from rollpacker.core.ids import Domain

Item = TypeVar("Item")


def apportion(total: int, weights: Mapping[Domain, Fraction | int]) -> dict[Domain, int]:
    """Divide `total` places among domains in proportion to their weights.

    Everyone gets the whole part of the exact share; what is left goes to the largest remainders, one place each.
    """
    exact = {domain: Fraction(total) * weight / sum(weights.values()) for domain, weight in weights.items()}
    places = {domain: math.floor(share) for domain, share in exact.items()}
    num_left = total - sum(places.values())
    largest_remainder_first = sorted(places, key=lambda domain: places[domain] - exact[domain])
    for domain in largest_remainder_first[:num_left]:
        places[domain] += 1
    return places


def scale_up(count: int, factor: Fraction) -> int:
    """Round `count * factor` up to a whole number: 50 prompts by 11/10 are 55."""
    return math.ceil(count * factor)


def with_speculation(quotas: Mapping[Domain, int], factor: Fraction) -> dict[Domain, int]:
    """Launch more prompts than the quotas need: in total their sum scaled up, the surplus shared by quota."""
    num_needed = sum(quotas.values())
    surplus = apportion(scale_up(num_needed, factor) - num_needed, quotas)
    return {domain: quota + surplus[domain] for domain, quota in quotas.items()}


def interleave(columns: Sequence[Sequence[Item]]) -> list[Item]:
    """Merge sequences so that each one is spread evenly, its own order kept; ties go to the earlier sequence.

    A batch that is cut into mini-batches then has every domain in each of them, and no domain queues behind another
    at the engines.
    """
    spread = (
        ((2 * index + 1) / len(column), order, item)  # equal fractions give equal doubles, so a tie is a tie
        for order, column in enumerate(columns)
        for index, item in enumerate(column)
    )
    return [item for _, _, item in sorted(spread, key=lambda entry: entry[:2])]
