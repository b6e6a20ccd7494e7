"""Where the time of a step went, in a run with rollout workers.

In an asynchronous run requests outlive steps: of a stay on an engine, each step counts what lies in its own time, and
workers that generate ahead are not idle while the trainer trains.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rollpacker.core.events import StepMeasured
from rollpacker.core.ids import EngineId, worker_of

if TYPE_CHECKING:
    from rollpacker.runtime.rollout.batch import Batch
    from rollpacker.runtime.rollout.request_book import RequestBook


def elastic_times(
    batch: Batch,
    under_way: RequestBook,
    *,
    local_share: float,
    began_at_s: float,
    ended_at_s: float,
    train_s: float,
    trainer_idle_s: float,
) -> StepMeasured:
    """Take engines' times from the requests of a batch and from those under way, their tokens from the former.

    Args:
        batch: Of the step.
        under_way: Requests that no batch has yet; none in a synchronous run.
        local_share: GPUs of each engine on the trainer's allocation, over those of one of the configured degree.
        began_at_s: When the step before was over, in seconds since the run began.
        ended_at_s: When this one was.
        train_s: As the trainer says.
        trainer_idle_s: The same.
    """
    stays: dict[EngineId, list[tuple[float, float]]] = {}
    tokens: dict[bool, int] = {False: 0, True: 0}
    for record in batch.requests.values():
        if record.response is not None and record.finished_at_s is not None:
            stays.setdefault(record.engine, []).append((record.placed_at_s, record.finished_at_s))
            tokens[worker_of(record.engine) is not None] += record.response.num_tokens - record.num_begun
    for stretch in batch.book.stretches:
        tokens[worker_of(stretch.engine) is not None] += stretch.num_tokens
    for stretch in (*batch.book.stretches, *under_way.stretches):
        stays.setdefault(stretch.engine, []).append((stretch.began_at_s, stretch.ended_at_s))
    for record in under_way.requests.values():
        until_s = ended_at_s if record.finished_at_s is None else record.finished_at_s
        stays.setdefault(record.engine, []).append((record.placed_at_s, until_s))
    busy = {False: 0.0, True: 0.0}
    for engine, spans in stays.items():
        in_step = ((max(began, began_at_s), min(ended, ended_at_s)) for began, ended in spans)
        busy[worker_of(engine) is not None] += covered_s(in_step)
    is_ahead = batch.max_staleness > 0
    return StepMeasured(
        step=batch.begin.step,
        train_s=train_s,
        trainer_idle_s=trainer_idle_s,
        fleet_idle_s=0.0 if is_ahead else ended_at_s - (batch.generated_at_s or batch.ended_at_s),
        local_engine_s=busy[False] * local_share,
        member_engine_s=busy[True],
        local_tokens=tokens[False],
        member_tokens=tokens[True],
    )


def num_moved(batch: Batch, under_way: RequestBook) -> int:
    """Count the launches of requests that had left another engine.

    Those on the same one are no moves: an update suspends what is in flight, and most of it goes on where it was.
    """
    engines = {request: record.engine for request, record in (*batch.requests.items(), *under_way.requests.items())}
    engines |= {stretch.request: stretch.engine for stretch in reversed(under_way.stretches)}
    number = 0
    for stretch in reversed(batch.book.stretches):
        following = engines.get(stretch.request, stretch.engine)
        number += stretch.end in ("evicted", "lost") and following != stretch.engine
        engines[stretch.request] = stretch.engine
    return number


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """How long at least one of some stretches of time lasts."""
    total, until = 0.0, float("-inf")
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total
