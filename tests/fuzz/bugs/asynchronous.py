"""Bugs of asynchronous batching and of suspension: one or more for each thing that must hold of them."""

from __future__ import annotations

from dataclasses import replace

from rollpacker.core.async_batching import AsyncBatching, LiveGroup
from rollpacker.core.ids import VersionSpan
from rollpacker.core.routing import Router
from rollpacker.runtime.rollout.request_book import RequestBook, RequestRecord
from rollpacker.runtime.run.rollouts import load_rollouts
from tests.fuzz.bugs.harness import Bug, Worlds, around, instead, wherever


def _with(**changes):
    """Have a new machine think something else of its settings."""

    def init(right, machine, settings):
        right(machine, settings)
        for name, change in changes.items():
            setattr(machine, name, change(machine, getattr(machine, name)))

    return around(AsyncBatching, "__init__", init)


def _of_now(count_finish, machine, event):
    group = machine._live.get(event.request.prompt)
    version = machine._policy_version if group is None else group.birth_version
    return count_finish(machine, replace(event, spans=(VersionSpan(version, event.num_tokens),)))


def _only_as_they_complete(fill_batch, machine, candidates):
    groups = list(candidates)
    return fill_batch(machine, groups if len(groups) == 1 else [])


def _keep_the_credit(drop, machine, group):
    machine._num_admitted += 1
    return drop(machine, group)


def _no_successor(drop, machine, group):
    machine._num_wanted -= 1
    return drop(machine, group)


def _without_buffer(snapshot, machine):
    plain = snapshot(machine)
    return plain | {"live": [row for row in plain["live"] if "r" in row["samples"] or "f" in row["samples"]]}


def _born_at_restore(restore, cls, settings, snapshot):
    return restore(cls, settings, snapshot | {"live": [row | {"birth_version": 0} for row in snapshot["live"]]})


def _without(left_out):
    return lambda snapshot, router: {name: part for name, part in snapshot(router).items() if name != left_out}


def _without_next_version(end_step, machine, event, *, keeps):
    end_step(machine, event, keeps=False)


def _at_any_time(end_step, machine, event, *, keeps):
    if keeps:
        machine._newest_version = event.policy_version


def _resume_as_they_came(_, router, running):
    router.is_suspended = router.keeps_requests = False
    return router.launch([request for request in running if router._in_flight[request] is None])


def _undo(end_run, machine):
    ending = end_run(machine)
    machine._step -= 1
    return ending


def _of_this_engine(record):
    return record.response


def _as_of_now(came_back, book, response, now):
    version = response.spans[-1].policy_version if response.spans else 0
    came_back(book, replace(response, spans=(VersionSpan(version, response.num_tokens),)), now)


_ALL = (
    ("anything may overtake what is due", around(AsyncBatching, "_holds_without", lambda *_: True)),
    ("train what is one step older than the bound", _with(_bound=lambda _, bound: bound + 1)),
    ("wait for what is not due", _with(_bound=lambda machine, bound: max(bound - 1, machine._num_ahead > 0))),
    ("what is complete when a step starts waits on", around(AsyncBatching, "_fill_batch", _only_as_they_complete)),
    ("accept in whatever order groups complete", _with(_is_fifo=lambda *_: False)),
    ("accept in order although nobody asked for it", _with(_is_fifo=lambda machine, _: machine._bound == 0)),
    ("admit one prompt too early", _with(_num_ahead=lambda _, ahead: ahead + 1)),
    ("admit one prompt too late", _with(_num_ahead=lambda _, ahead: max(ahead - 1, 0))),
    ("admit more than the run trains", _with(_num_in_all=lambda *_: 10**9)),
    ("a response may be of any policy version", around(AsyncBatching, "_count_finish", _of_now)),
    (
        "accept a group before its last reward",
        instead(LiveGroup, "is_complete", lambda group: group.num_scored >= max(1, len(group.samples) - 1)),
    ),
    ("a checkpoint without the groups that wait complete", around(AsyncBatching, "snapshot", _without_buffer)),
    ("a restored group takes tokens of before its birth", around(AsyncBatching, "restore", _born_at_restore)),
    ("a restored router launches while engines are suspended", around(Router, "snapshot", _without("is_suspended"))),
    ("a restored router knows of no kept requests", around(Router, "snapshot", _without("keeps"))),
    ("keep what is to be given back", around(Router, "suspend", lambda right, router, **_: right(router, keeps=True))),
    ("give back what is to be kept", around(Router, "suspend", lambda right, router, **_: right(router))),
    ("refuse tokens of the next policy", around(AsyncBatching, "end_step", _without_next_version)),
    ("launch while engines are suspended", around(Router, "_is_held_back", lambda *_: False)),
    ("forget to suspend one request", around(Router, "suspend", lambda right, *args, **how: right(*args, **how)[1:])),
    ("forget what was suspended", around(Router, "resume", lambda right, router, _: right(router, []))),
    ("launch twice what was suspended", around(Router, "resume", lambda right, *args: right(*args) * 2)),
    (
        "resume in another order",
        around(Router, "resume", lambda right, router, running: right(router, running[::-1])),
    ),
    ("resume without engines in the order of evictions", around(Router, "resume", _resume_as_they_came)),
    ("start a step while engines are not empty", instead(Router, "is_suspending", lambda _: False)),
    ("start a step before engines have its policy", around(Router, "require_version", lambda *_: None)),
    ("suspend before the batch is full", around(AsyncBatching, "end_step", _at_any_time)),
)

_SAMPLING = (
    ("keep places that no prompt is left for", around(AsyncBatching, "_close_places", lambda *_: [])),
    ("a dropped prompt still counts as admitted", around(AsyncBatching, "_drop", _keep_the_credit)),
    ("no prompt is admitted for a dropped one", around(AsyncBatching, "_drop", _no_successor)),
    ("drop without end", _with(_most_launched=lambda _, most: most + 1 if most else most)),
    ("a step that got no batch never was", around(AsyncBatching, "_end_run", _undo)),
)


_RUNS = (
    ("kept tokens are given up with the engine that has them next", instead(RequestRecord, "kept", _of_this_engine)),
    ("a checkpoint without what is under way", wherever(load_rollouts, lambda *_: RequestBook())),
    ("a suspension's tokens are of the version that ends them", around(RequestBook, "came_back", _as_of_now)),
)

_FIRST = {
    "anything may overtake what is due": 58,
    "train what is one step older than the bound": 58,
    "wait for what is not due": 48,
    "a restored router launches while engines are suspended": 88,
    "launch while engines are suspended": 69,
    "forget what was suspended": 51,
    "launch twice what was suspended": 51,
    "resume in another order": 51,
    "resume without engines in the order of evictions": 109,
    "start a step while engines are not empty": 51,
}
"""Of those that small worlds do not show."""

BUGS = (
    *(Bug(name=name, patch=patch, worlds=Worlds.AHEAD, first=_FIRST.get(name, 0)) for name, patch in _ALL),
    *(
        Bug(name=name, patch=patch, worlds=Worlds.AHEAD_AND_SAMPLING, first=_FIRST.get(name, 0))
        for name, patch in _SAMPLING
    ),
    *(Bug(name=name, patch=patch, worlds=Worlds.RUNS, first=101) for name, patch in _RUNS),
)
