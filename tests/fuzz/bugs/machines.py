"""Bugs of the machines beside the batching: router, reward budget, planner, stream scaling and tail escalation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollpacker.core import round_time_model
from rollpacker.core.commands import RoundKind, StreamGroups
from rollpacker.core.companions import Companions
from rollpacker.core.engine_states import Closing
from rollpacker.core.length_estimate import LengthEstimate
from rollpacker.core.load_order import LoadOrder
from rollpacker.core.parallelism import ParallelismPlanner, _Controller
from rollpacker.core.reward_budget import RewardBudget
from rollpacker.core.round_time_model import Rest
from rollpacker.core.routing import Router
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.speculative_decoding import SpeculativeDecoding, _Gain, _Range
from rollpacker.core.stream_scaling import StreamScaling
from rollpacker.core.tail_escalation import TailEscalation
from tests.fuzz.bugs.harness import Bug, Worlds, around, both, instead, wherever

# Router


def _believing(right, *args):
    """Have nothing that an engine says of a request be out of date."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Router, "has_moved", lambda *_: False)
        return right(*args)


def _forget_orphans(_, router, engine):
    if router.is_in_fleet(engine):
        router._remove(engine)
    return []


def _forget_waiting(right, router, engine, *facts):
    return right(router, engine, *facts)[:0]


def _close_and_launch(close, router, engines, reason):
    orders = close(router, engines, reason)
    if reason is Closing.LENT:
        router._closed.clear()
    return orders


def _forget_homeless(launch, router, requests, *preferred):
    if router._by_load.has_room():
        return launch(router, requests, *preferred)
    for request in requests:
        router._in_flight.pop(request, None)
    return []


_ROUTING = (
    ("forget what a lost engine ran", around(Router, "lose", _forget_orphans)),
    ("launch twice what a lost engine ran", around(Router, "lose", lambda right, *args: right(*args) * 2)),
    ("forget what waits when an engine joins", around(Router, "join", _forget_waiting)),
    ("forget what finds no engine", around(Router, "_launch_each", _forget_homeless)),
    ("believe an engine that lost the request", around(Scheduler, "_finish", _believing)),
    ("launch on lent engines", around(Router, "close", _close_and_launch)),
    ("keep lent engines without end", around(Router, "reopen", lambda *_: None)),
    ("forget to evict", around(Router, "close", lambda right, *args: right(*args)[1:])),
)

# Reward budget


def _with_runs(change):
    def learn(right, budget, event):
        right(budget, replace(event, case_runs=tuple(map(change, event.case_runs))))

    return around(RewardBudget, "learn", learn)


def _last_run(learn, budget, event):
    learn(budget, event)
    for run in event.case_runs:
        if run.is_passed:
            budget._anchors[event.request.prompt.key][run.case] = run.time_s


def _by_epoch(learn, budget, event):
    prompt = event.request.prompt
    named = event.request._replace(prompt=prompt._replace(key=f"{prompt.epoch}/{prompt.key}"))
    learn(budget, replace(event, request=named))


_BUDGET = (
    ("learn from programs that failed", _with_runs(lambda run: run._replace(is_passed=True))),
    ("the last run instead of the longest", around(RewardBudget, "learn", _last_run)),
    ("one epoch's anchors are not the next one's", around(RewardBudget, "learn", _by_epoch)),
    ("a snapshot without anchors", around(RewardBudget, "restore", lambda _, cls, settings, __: cls(settings))),
)

# Planner


def _remember(learn, planner, controller, event):
    before = list(controller.rounds)
    learn(planner, controller, event)
    num_forgotten = len(before) + 1 - len(controller.rounds)
    controller.rounds[:0] = before[:num_forgotten]


def _keep_reference(move, controller, *args, **kwargs):
    reference = controller.reference
    move(controller, *args, **kwargs)
    controller.reference = reference


def _last_rate(_, controller, degree):
    there = [(num_tokens, time_s) for at, num_tokens, time_s in controller.rounds if at == degree]
    return there[-1][0] / there[-1][1] if there and there[-1][1] else None


def _first_round_alone(judge, planner, controller, num_preemptions):
    degree = controller.degree
    judge(planner, controller, num_preemptions)
    if controller.degree == degree:
        controller.came_from = None


_PLANNING = (
    (
        "one controller for all kinds of rounds",
        around(
            ParallelismPlanner,
            "_learn",
            lambda right, planner, _, event: right(planner, planner._controllers[RoundKind.SHORT], event),
        ),
    ),
    ("a decision right after a change", around(_Controller, "move", _keep_reference)),
    ("every change pays", around(ParallelismPlanner, "_pays", lambda *_: True)),
    ("a change that takes longer than it saves", around(ParallelismPlanner, "_cost_s", lambda *_: 0.0)),
    (
        "the way back costs nothing",
        around(ParallelismPlanner, "_cost_s", lambda _, planner, *degrees: planner._switch_s.get(degrees[1], 0.0)),
    ),
    (
        "a long row of rounds is hoped for",
        around(
            ParallelismPlanner,
            "_num_rounds_in_a_row",
            lambda _, planner, __: planner._settings.num_rounds_remembered,
        ),
    ),
    ("a slower degree is kept", around(ParallelismPlanner, "_is_slower_than", lambda *_: False)),
    ("a rate is remembered for ever", around(ParallelismPlanner, "_learn", _remember)),
    ("the last round instead of the mean", around(_Controller, "rate_on", _last_rate)),
    ("a change is tested in its first round alone", around(ParallelismPlanner, "_judge", _first_round_alone)),
    (
        "plan for the kind that was",
        around(ParallelismPlanner, "measure", lambda right, planner, event, _: right(planner, event, planner._kind)),
    ),
    ("no guess", around(ParallelismPlanner, "_guess", lambda *_: None)),
    (
        "a guess without preemptions",
        wherever(round_time_model.round_s, lambda right, costs, *args: right(replace(costs, kv_tokens=10**9), *args)),
    ),
)

# Speculative decoding


def _always_begin_plain(order, machine, degree):
    machine._ranges.setdefault(degree, {size: _Range() for size in machine._settings.batch_sizes})
    return order(machine, degree)


def _change_only(_, each, length):
    each.is_rising, each.length = length >= each.length, length


def _without_accepted(add, gain, passes):
    add(gain, passes._replace(num_accepted=0))


_DRAFTING = (
    ("what a trial gained is never forgotten", around(_Range, "forget", lambda *_: None)),
    ("trials stay as rare after a change", around(_Range, "change", _change_only)),
    ("a fresh degree begins without drafts", around(SpeculativeDecoding, "order", _always_begin_plain)),
    ("accepted drafts count for nothing", around(_Gain, "add", _without_accepted)),
    (
        "a snapshot without what was learned",
        around(SpeculativeDecoding, "restore", lambda _, cls, settings, __: cls(settings)),
    ),
)

# Stream scaling


def _stream_at_once(begin_round, machine, command):
    begin_round(machine, command)
    return (StreamGroups(round=command.round),)


def _lend_again(choose, machine, *args):
    engines = choose(machine, *args)
    machine._has_lent = False
    return engines


def _lend_the_rest(_, machine, engine):
    machine._lending = tuple(each for each in machine._lending if each != engine)
    return ()


def _measure_once(choose, machine, *args):
    is_measuring = machine._is_measuring
    engines = choose(machine, *args)
    machine._is_measuring = is_measuring
    return engines


def _split_replica(block_of, machine, first, *args):
    return block_of(machine, first, *args)[0], bool(machine._gpus[first])


def _more_than_half(choose_blocks, machine, fleet, running):
    lent = choose_blocks(machine, fleet, running)
    for block in machine._blocks(fleet):
        if len(lent.union(block)) < len(fleet):
            lent.update(block)
    return lent


def _fullest(choose_blocks, machine, fleet, running):
    negative = {
        engine: [request._replace(num_prompt_tokens=-sum(request[1:]), num_generated_tokens=0) for request in each]
        for engine, each in running.items()
    }
    return choose_blocks(machine, fleet, negative)


def _note_rows(choose, machine, event, *args):
    machine._all_rows = event.engines
    return choose(machine, event, *args)


def _count_finished(choose, machine, event, fleet, _, *acting):
    holders = {request.request: row.engine for row in event.engines for request in row.running}
    return choose(machine, event, fleet, holders, *acting)


def _start_while_changing(patch):
    for put_in in (
        instead(Router, "is_changing", lambda _: False),
        around(Router, "require_version", lambda *_: None),  # the engines of before hold the policy of before
    ):
        put_in(patch)


_LENDING = (
    ("a stale load", around(LoadOrder, "has_room", lambda right, order: bool(order._heap) or right(order))),
    ("start a step on engines of two degrees", _start_while_changing),
    (
        "believe a second eviction",
        around(Router, "move", _believing),
    ),
    ("stream to GPUs that engines use", around(StreamScaling, "begin_round", _stream_at_once)),
    ("lend twice in a round", around(StreamScaling, "choose", _lend_again)),
    ("lend what is left of a replica", around(StreamScaling, "give_back", _lend_the_rest)),
    ("split a replica", around(StreamScaling, "_block_of", _split_replica)),
    ("lend more than half", around(StreamScaling, "_choose_blocks", _more_than_half)),
    ("move the fullest engines", around(StreamScaling, "_choose_blocks", _fullest)),
    (
        "expect no more than there is",
        around(LengthEstimate, "of", lambda right, estimate, _: right(estimate, 0)),
    ),
    (
        "count the lent engines' memory",
        both(
            around(StreamScaling, "choose", _note_rows),
            around(
                StreamScaling,
                "_do_fit",
                lambda right, machine, running, _, acting: right(machine, running, machine._all_rows, acting),
            ),
        ),
    ),
    ("count what has finished since", around(StreamScaling, "choose", _count_finished)),
    (
        "a snapshot without lengths",
        around(
            StreamScaling,
            "restore",
            lambda right, cls, settings, snapshot: right(cls, settings, snapshot | {"recent_lengths": []}),
        ),
    ),
    ("measure once only", around(StreamScaling, "choose", _measure_once)),
)

# Tail escalation


def _expect_the_shortest(_, machine, running):
    lengths = sorted(machine._lengths[machine._kind])
    longer = [[each for each in lengths if each > request.num_generated_tokens] for request in running]
    ends = [each[0] if each else machine._settings.max_response_tokens for each in longer]
    return [
        Rest(request.num_prompt_tokens + request.num_generated_tokens, max(end - request.num_generated_tokens, 1))
        for request, end in zip(running, ends, strict=True)
    ]


_ESCALATING = (
    ("larger engines take over at any cost", around(TailEscalation, "_pays", lambda *_: True)),
    ("the first larger engine gets all that waits", instead(Companions, "closing", lambda _: None)),
    ("the next round stays on larger engines", around(TailEscalation, "follow", lambda *_: ())),
    (
        "count larger engines on lent GPUs",
        around(TailEscalation, "_num_larger", lambda _, machine, __: machine._costs[machine._target].num_engines),
    ),
    ("every response ends as soon as it may", around(TailEscalation, "_expected_rests", _expect_the_shortest)),
    ("larger engines come before all are empty", around(Router, "are_empty", lambda *_: True)),
)

_FIRST = {
    "forget what finds no engine": 74,
    "believe a second eviction": 106,
    "split a replica": 108,
    "expect no more than there is": 109,
    "count the lent engines' memory": 109,
}
"""Of those that small worlds do not show."""

BUGS = (
    *(
        Bug(name=name, patch=patch, worlds=Worlds.TAIL, first=_FIRST.get(name, 0))
        for name, patch in (*_ROUTING, *_BUDGET, *_DRAFTING)
    ),
    *(Bug(name=name, patch=patch, worlds=Worlds.PLANS) for name, patch in _PLANNING),
    *(Bug(name=name, patch=patch, worlds=Worlds.ESCALATING) for name, patch in _ESCALATING),
    *(Bug(name=name, patch=patch, worlds=Worlds.LENDING, first=_FIRST.get(name, 0)) for name, patch in _LENDING),
    Bug(
        name="forget the launches in the place of a dropped prompt's",
        patch=around(StreamScaling, "count_drop", lambda *_: None),
        worlds=Worlds.LENDING_AND_SAMPLING,
        first=64,
    ),
)
