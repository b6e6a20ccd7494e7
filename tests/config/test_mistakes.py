"""Several mistakes are told as one list, whoever found them."""

from __future__ import annotations

import pickle

from rollpacker.config.mistakes import combined
from rollpacker.core.errors import ConfigError


def test_lists_of_several_points_become_one_list_that_has_each_mistake_once() -> None:
    a, b, c = (ConfigError(name, "Allowed.", f"Change {name}.") for name in "abc")
    points = [combined([a, b]), combined([b, c]), c]
    whole = combined(points)
    assert str(whole).startswith("3 mistakes:\n1. a\n   Allowed.\n   Change a.\n2. b\n")
    assert str(whole).count("mistakes:") == 1
    assert str(pickle.loads(pickle.dumps(whole))) == str(whole)  # noqa: S301 our own bytes
    assert combined([combined([a, a]), a]) is a
