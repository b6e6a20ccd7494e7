"""Bugs of driver, replacements, records, trainer calls and checkpoints: whole modelled runs find them."""

from __future__ import annotations

from dataclasses import replace

from rollpacker.core.commands import Launch
from rollpacker.core.events import EngineLost
from rollpacker.core.restarts import Restarts
from rollpacker.data.order import PromptOrder
from rollpacker.metrics.table_writer import MetricsWriter
from rollpacker.runtime.rollout.batch import Batch
from rollpacker.runtime.rollout.driver import Driver
from rollpacker.runtime.rollout.inbox import Inbox
from rollpacker.runtime.rollout.learning import Learner
from rollpacker.runtime.rollout.orders import EngineOrders
from rollpacker.runtime.rollout.replacements import Replacements
from rollpacker.runtime.rollout.request_book import RequestBook
from rollpacker.runtime.rollout.requests import sample_seed
from rollpacker.runtime.run.handover import SharedGpuHandover
from rollpacker.runtime.run.saving import RunSaver
from rollpacker.transfer import confirmations
from tests.fuzz.bugs.harness import Bug, Worlds, around, instead, wherever


def _wait_for_lost(forget, orders, engine):
    lost = [request for request, holder in orders._in_flight.items() if holder == engine]
    forget(orders, engine)
    orders._in_flight |= {request._replace(sample=-1 - request.sample): engine for request in lost}


async def _start_under_old_name(start, replacements, slot, _):
    await start(replacements, slot, slot)


async def _serve_nothing(*_):
    return 0


async def _do_not_wait(_, driver):
    driver._reward.forget()


async def _first_fact(collect, inbox):
    return (await collect(inbox))[:1]


async def _first_abort_forgotten(send, orders, engine, commands):
    aborts = [command for command in commands if not isinstance(command, Launch)]
    forgotten = aborts[0] if len(aborts) > 1 else None
    await send(orders, engine, [command for command in commands if command is not forgotten])


def _eviction_as_abort(report, driver, *args):
    driver._orders._being_evicted.clear()
    report(driver, *args)


def _rewards_reversed(group, record, prompt):
    right = group(record, prompt)
    return replace(right, rewards=right.rewards[::-1])


def _count_verdict_again(scored, book, verdict, now):
    if verdict.request in book.requests:
        book.requests[verdict.request].verdict = None
    scored(book, verdict, now)


async def _forget_streamed(end_streaming, learner):
    await end_streaming(learner)
    learner._accumulated.clear()


async def _nothing(*_):
    pass


_RUNS = (
    (
        "the driver keeps the loss of an engine for itself",
        around(
            Driver,
            "_take",
            lambda right, driver, event: None if isinstance(event, EngineLost) else right(driver, event),
        ),
        0,
    ),
    ("the driver waits for what a lost engine ran", around(EngineOrders, "forget", _wait_for_lost), 3),
    ("a replacement joins with the weights that it happens to hold", around(Replacements, "_serve", _serve_nothing), 5),
    ("a replacement has the lost engine's name", around(Replacements, "_start", _start_under_old_name), 16),
    (
        "a run without engines does not wait for the one that is to come",
        instead(Restarts, "under_way", lambda _: []),
        5,
    ),
    ("engines stay awake on the GPUs where the trainer learns", around(SharedGpuHandover, "to_trainer", _nothing), 111),
    ("new weights before the last response is back", around(Driver, "quiesce", _do_not_wait), 57),
    ("a damaged transfer of weights goes unnoticed", wherever(confirmations._is_right, lambda *_: True), 6),
    ("the driver drops facts that come together", around(Inbox, "collect", _first_fact), 1),
    ("the driver forgets the first of several aborts", around(EngineOrders, "_send", _first_abort_forgotten), 1),
    ("the driver takes an eviction for an abort", around(Driver, "_report_response", _eviction_as_abort), 1),
    (
        "all samples of a prompt share a seed",
        wherever(sample_seed, lambda right, run_seed, request: right(run_seed, request._replace(sample=0))),
        0,
    ),
    ("a response is trained with another one's reward", around(Batch, "group", _rewards_reversed), 0),
    ("a duplicated verdict is counted twice", around(RequestBook, "scored", _count_verdict_again), 46),
    ("a group that streamed is trained again", around(Learner, "end_streaming", _forget_streamed), 1),
    ("a resumed run starts with the first policy", around(RunSaver, "load_trainer", _nothing), 10),
    (
        "a checkpoint says one step less than it holds",
        around(RunSaver, "save", lambda right, saver, num_steps, moment: right(saver, max(0, num_steps - 1), moment)),
        10,
    ),
    ("a resumed run draws from the first prompt", around(PromptOrder, "restore", lambda *_: None), 3),
    ("steps that are made again stay in the tables", around(MetricsWriter, "truncate_after", lambda *_: None), 0),
)

BUGS = tuple(Bug(name=name, patch=patch, worlds=Worlds.RUNS, first=seed) for name, patch, seed in _RUNS)
