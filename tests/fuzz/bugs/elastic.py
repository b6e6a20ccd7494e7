"""Bugs of rollout workers: fleet, seeding, and requests that wait for room."""

from __future__ import annotations

from dataclasses import replace

from rollpacker.core.balance import Balance
from rollpacker.core.demand import Demand
from rollpacker.core.elastic import Elastic
from rollpacker.core.fleet import Close, Fleet, Remove
from rollpacker.core.load_order import LoadOrder
from rollpacker.core.routing import Router
from rollpacker.core.seeding import Seeding
from rollpacker.core.stream_scaling import StreamScaling
from rollpacker.core.worker import Stage
from tests.fuzz.bugs.harness import Bug, Worlds, around, instead


def _without_fence(right, fleet, event, now):
    fleet._last_life = dict.fromkeys(fleet._last_life, -1)
    return right(fleet, event, now)


def _keep_older_lives(right, fleet, event, now):
    kept = dict(fleet._workers)
    decisions = right(fleet, event, now)
    fleet._workers = kept | fleet._workers
    return [each for each in decisions if not isinstance(each, Remove)]


def _any_version(right, fleet, worker, engine, _, now):
    return right(fleet, worker, engine, fleet._policy_version, now)


def _anew(right, fleet, worker, now):
    worker.fetches_since_s = None
    return right(fleet, worker, now)


def _stay_at_publication(right, fleet, version, now):
    serving = [worker for worker in fleet._workers.values() if worker.stage is Stage.SERVING]
    updated = [list(worker.updated) for worker in serving]
    decisions = [each for each in right(fleet, version, now) if not isinstance(each, Remove)]
    for worker, engines in zip(serving, updated, strict=True):
        worker.stage, worker.updated = Stage.SERVING, engines
    return decisions


def _first_engine_is_enough(right, fleet, worker, engine, *version_and_now):
    if worker.stage is Stage.CATCHING_UP and version_and_now[0] == fleet._policy_version:
        worker.updated = [each for each in worker.engines if each != engine]
    return right(fleet, worker, engine, *version_and_now)


def _not_for(purpose):
    return lambda right, fleet, timer, now: [] if timer.endswith(f" {purpose}") else right(fleet, timer, now)


def _forget_orphans(right, router, *engines):
    right(router, *engines)
    return []


def _later_end(right, fleet, worker, ends_at_s, now):
    worker.ends_at_s = None
    return right(fleet, worker, ends_at_s, now)


def _without(key, empty):
    def restore(right, cls, settings, snapshot):
        return right(cls, settings, snapshot | {key: empty})

    return restore


def _lend_at_once(right, seeding, engines, num_serving):
    seeding._is_over = True
    return right(seeding, engines, max(num_serving, 1))


def _launch_on(right, fleet, worker, empty_at_s):
    return [each for each in right(fleet, worker, empty_at_s) if not isinstance(each, Close)]


def _jump(right, demand, num_useful):
    orders = right(demand, num_useful)
    if orders:
        demand._wish = num_useful
    return (demand.wish,) if orders else ()


def _once(right, elastic):
    if elastic._room is None:
        right(elastic)


def _forget_moves(right, balance, *arguments):
    balance._num_moves.clear()
    return right(balance, *arguments)


_BUGS = (
    ("a fence that forgets lives", around(Fleet, "handle", _without_fence)),
    ("two lives of an element at once", around(Fleet, "_arrive", _keep_older_lives)),
    ("serve with any policy", around(Fleet, "_note_update", _any_version)),
    ("serve on after a publication", around(Fleet, "_publish", _stay_at_publication)),
    ("serve when the first engine can", around(Fleet, "_note_update", _first_engine_is_enough)),
    ("wait for a start without end", around(Fleet, "fire", _not_for("start"))),
    ("wait for a policy without end", around(Fleet, "fire", _not_for("fetch"))),
    ("a deadline that every policy renews", around(Fleet, "_catch_up", _anew)),
    ("forget that a job ends", around(Fleet, "fire", _not_for("drain"))),
    ("stay until the job's end is past", around(Fleet, "fire", _not_for("end"))),
    ("the last of several ends counts", around(Fleet, "_expect_end", _later_end)),
    ("forget what a worker ran", around(Router, "lose", _forget_orphans)),
    ("forget what waits for room", around(Router, "launch_waiting", lambda *_: [])),
    ("take any number of workers", around(Fleet, "_why_not", lambda _, __, event: event.mismatch)),
    ("a snapshot without lives", around(Fleet, "restore", _without("last_life", {}))),
    ("a snapshot without what is lent", around(Seeding, "restore", _without("lent", []))),
    ("lend while nobody serves", around(Seeding, "lend", _lend_at_once)),
    ("never take back what is lent", around(Seeding, "watch", lambda *_: ())),
    ("take back engines that are about to leave", around(StreamScaling, "keep", lambda *_: None)),
    ("launch on a worker that drains", around(Fleet, "_drain", _launch_on)),
    ("a wish that jumps", around(Demand, "_change", _jump)),
    (
        "fill engines beyond their room",
        around(LoadOrder, "limit", lambda right, order, room: right(order, room and replace(room, max_pending=99))),
    ),
    (
        "leave no share to others",
        around(LoadOrder, "limit", lambda right, order, room: right(order, room and replace(room, num_expected=0))),
    ),
    ("move a request as often as it pays", around(Balance, "choose", _forget_moves)),
    ("take all engines for equally fast", around(LoadOrder, "pace", lambda *_: None)),
    ("ask engines while no worker serves", instead(Elastic, "_is_served", lambda _: True)),
    ("leave a share for those that are gone", around(Elastic, "_set_limit", _once)),
)

_FIRST = {
    "serve with any policy": 16,
    "stay until the job's end is past": 18,
    "never take back what is lent": 12,
    "the last of several ends counts": 116,
    "launch on a worker that drains": 31,
}
"""Worlds that find these, so that the search is short."""

_BUGS_AHEAD = (
    ("workers serve on after an update", around(Fleet, "_publish", _stay_at_publication)),
    ("launch what a worker had under the policy of before", around(Router, "_is_held_back", lambda *_: False)),
    ("forget what a worker ran when the policy is updated", around(Router, "lose", _forget_orphans)),
)

BUGS = (
    *(Bug(name=name, patch=patch, worlds=Worlds.ELASTIC, first=_FIRST.get(name, 0)) for name, patch in _BUGS),
    *(Bug(name=name, patch=patch, worlds=Worlds.AHEAD_AND_ELASTIC) for name, patch in _BUGS_AHEAD),
)
