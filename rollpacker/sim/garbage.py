"""When Python looks for cyclic garbage while a modelled run makes objects.

A modelled run allocates millions of containers that live until their step is recorded and then go by their reference
counts. Python's default looks through the young ones after each 700 of them, finds nothing, and in the end looks
through everything, the imported packages included: an eighth of a run's time.

Source: tests/benchmarks/simulator.py, 2.9 s of processor time against 2.5 s for ten 7B steps; with no collection
at all they take 2.5 s, too.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (50_000, 20, 20)
"""Containers, and collections of the younger generation, between two collections: some 10 MB of garbage at most."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Collect rarely, and leave out what is there already."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
