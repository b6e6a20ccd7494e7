"""Whether groups can still be trained in time, by looking for a place for each in the batches to come."""

from __future__ import annotations

from collections.abc import Sequence


def has_place_for_all(births: Sequence[int], *, step: int, num_free: int, batch: int, bound: int) -> bool:
    """Look for an assignment of groups to batches in which none is trained after its birth plus the bound.

    By augmenting paths: a group takes a place in some batch, or that of a group which finds another one.

    Args:
        births: Of each group that is not accepted.
        step: Whose batch has `num_free` places left.
        num_free: Those.
        batch: Places in the batch of each step after it.
        bound: Steps that a group may take from its birth to its batch.
    """
    last = max(births, default=step) + bound
    places = {each: num_free if each == step else batch for each in range(step, last + 1)}
    taken: dict[int, list[int]] = {each: [] for each in places}

    def find(birth: int, tried: set[int]) -> bool:
        for each in range(step, birth + bound + 1):
            if each in tried:
                continue
            tried.add(each)
            if len(taken[each]) < places[each]:
                taken[each].append(birth)
                return True
            for number, other in enumerate(taken[each]):
                if find(other, tried):
                    taken[each][number] = birth
                    return True
        return False

    return all(find(birth, set()) for birth in births)
