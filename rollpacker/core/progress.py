"""What a measurement of a round's progress cannot say, whoever ordered it."""

from __future__ import annotations

from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import ProgressMeasured


def validate_progress(event: ProgressMeasured) -> None:
    """Refuse a measurement that cannot have been made.

    Raises:
        ImpossibleEvent: An engine is in it twice, or a count is below 0.
    """
    if len({progress.engine for progress in event.engines}) < len(event.engines):
        raise ImpossibleEvent(f"An engine is twice in the progress of round {event.round}.")
    for progress in event.engines:
        counts = [count for request in progress.running for count in request[1:]]
        if min(counts, default=0) < 0 or progress.kv_tokens_capacity < 0:
            raise ImpossibleEvent(f"{progress} has a count below 0.")
