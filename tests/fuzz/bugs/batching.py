"""Bugs of rounds, quotas and the batching machines."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from rollpacker.core import quotas
from rollpacker.core.commands import Abort, EndRun, RoundKind
from rollpacker.core.dynamic_sampling import DynamicSampling
from rollpacker.core.history_batching import HistoryBatching
from rollpacker.core.ids import VersionSpan
from rollpacker.core.length_history import LengthHistory
from rollpacker.core.race import Race
from rollpacker.core.round import FINISHED, RUNNING, Group, Outcome, RoundLedger
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.supply import DrawnPrompt, PromptSupply
from rollpacker.core.tail_batching import TailBatching
from tests.fuzz.bugs.harness import Bug, Worlds, around, instead, wherever


def _last_in_first_out(handle, machine, event):
    before = list(machine._long_queue)
    decisions = handle(machine, event)
    deferred = machine._long_queue[len(before) :]
    if deferred and machine._long_queue[: len(before)] == before:
        machine._long_queue = [*deferred[::-1], *before]
    return decisions


def _long_round_early(prepare, machine):
    is_early = 0 < len(machine._long_queue) == machine._settings.num_prompts - 1
    return machine._begin_long_round() if is_early else prepare(machine)


def _long_round_late(prepare, machine):
    if len(machine._long_queue) != machine._settings.num_prompts:
        return prepare(machine)
    last = machine._long_queue.pop()
    decisions = prepare(machine)
    machine._long_queue.append(last)
    return decisions


def _speculate_in_a_long_round(num_samples, machine, kind):
    return num_samples(machine, kind) * (2 if kind is RoundKind.LONG else 1)


def _constant_round(add, ledger, prompts, *, num_launched):
    started = add(ledger, prompts, num_launched=num_launched)
    return replace(started, requests=tuple(request._replace(round=0) for request in started.requests))


def _any_round(launched_group, ledger, request):
    is_late = ledger.is_open and request.round < ledger.round
    return launched_group(ledger, request._replace(round=ledger.round) if is_late else request)


def _score_again(finish, ledger, event):
    group = ledger.launched_group(event.request)
    if group is None or group.outcome is not Outcome.RACING or group.samples[event.request.sample] == RUNNING:
        return finish(ledger, event)
    group.samples[event.request.sample] = FINISHED
    return True


def _one_race(defer_losers, ledger, domain):
    results = [defer_losers(ledger, each) for each in ledger.places]
    return [loser for losers, _ in results for loser in losers], [
        request for _, stopped in results for request in stopped
    ]


def _last_place_closed(place, ledger, group):
    stopped = place(ledger, group)
    if ledger.places[group.domain] == 1:
        ledger.places[group.domain] = 0
    return stopped


def _without_queue(snapshot, scheduler):
    plain = snapshot(scheduler)
    return plain | {"batching": plain["batching"] | {"long_queue": []}}


def _with_variance(has_variance: bool):
    def score(right, ledger, event):
        group = right(ledger, event)
        if group is not None:
            group.has_variance = has_variance
        return group

    return around(RoundLedger, "score", score)


def _queue_dropped(decide, machine, group):
    if not group.has_variance:
        machine._long_queue.append(DrawnPrompt(group.prompt, group.domain))
    return decide(machine, group)


def _no_successor(count_reward, machine, event):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DynamicSampling, "_fill", lambda _: [])
        return count_reward(machine, event)


def _one_launch_more(init, machine, settings):
    init(machine, settings)
    machine._max_launched += 1


def _close_early(ask_or_close, machine):
    decisions = ask_or_close(machine)
    if not (decisions or machine._queued() or machine._supply.num_drawn()):
        for domain, count in machine._vacant_places().items():
            machine._ledger.places[domain] -= count
    return decisions


def _learn_at_once(note, history, request, num_tokens, *, has_ended):
    note(history, request, num_tokens, has_ended=has_ended)
    history.learn(history._last_learned)


def _too_late(note, history, request, num_tokens, *, has_ended):
    history._last_learned, last = -1, history._last_learned
    note(history, request, num_tokens, has_ended=has_ended)
    history._last_learned = last


def _without_bounds(note, history, request, num_tokens, *, has_ended):
    if has_ended:
        note(history, request, num_tokens, has_ended=has_ended)


def _shortest(longest, history, prompts, count):
    chosen = longest(history, prompts, len(prompts) - count)
    return [prompt for prompt in prompts if prompt not in chosen]


def _informed_by_some(knows, history, prompts):
    return any(knows(history, [prompt]) for prompt in prompts)


def _defer_of_the_first_domain(_, machine):
    first, *_others = machine._quotas
    return Counter({first: machine._num_deferred_per_round})


def _history_forgotten(snapshot, history):
    return snapshot(history) | {"lengths": {}}


def _ended_forgotten(restore, cls, weights, snapshot):
    return restore(cls, weights, snapshot | {"ended": []})


def _ties_to_the_last(apportion, total, weights):
    places = apportion(total, dict(reversed(weights.items())))
    return {domain: places[domain] for domain in weights}


def _surplus_to_the_first(with_speculation, counts, factor):
    launches = with_speculation(counts, factor)
    surplus = sum(launches.values()) - sum(counts.values())
    return {domain: count + (surplus if number == 0 else 0) for number, (domain, count) in enumerate(counts.items())}


def _only_if_all_are_scored(group: Any) -> int:
    num_scored: int = group.samples.count(ord("s"))
    return num_scored if num_scored == len(group.samples) else 0


_TAIL = (
    ("forget to defer", around(RoundLedger, "defer_losers", lambda right, *args: ([], right(*args)[1]))),
    ("last in, first out in the long queue", around(TailBatching, "handle", _last_in_first_out)),
    ("speculate in a long round", around(Race, "_num_samples", _speculate_in_a_long_round)),
    ("begin a long round one prompt early", around(TailBatching, "_prepare_round", _long_round_early)),
    ("begin a long round one prompt late", around(TailBatching, "_prepare_round", _long_round_late)),
    (
        "forget to abort",
        around(
            Scheduler,
            "handle",
            lambda right, *args: tuple(each for each in right(*args) if not isinstance(each, Abort)),
        ),
    ),
    ("constant round id", around(RoundLedger, "add", _constant_round)),
    ("wait for every sample of a group", instead(Group, "num_scored", _only_if_all_are_scored)),
    ("ignore the round of a finish", around(RoundLedger, "launched_group", _any_round)),
    ("a duplicated finish is scored twice", around(RoundLedger, "finish", _score_again)),
    ("one race for all domains", around(RoundLedger, "defer_losers", _one_race)),
    ("close the last place of a domain early", around(RoundLedger, "place", _last_place_closed)),
    (
        "end the run with prompts in the queue",
        around(
            TailBatching,
            "_begin_long_round",
            lambda right, machine: (EndRun(),) if machine._supply.has_ended_domain else right(machine),
        ),
    ),
    ("a checkpoint without the long queue", around(Scheduler, "snapshot", _without_queue)),
    ("a restored supply asks domains that have ended", around(PromptSupply, "restore", _ended_forgotten)),
    (
        "accept a foreign policy version",
        around(
            RoundLedger,
            "finish",
            lambda right, ledger, event: right(
                ledger, replace(event, spans=(VersionSpan(ledger.policy_version, event.num_tokens),))
            ),
        ),
    ),
    (
        "score what lost the race",
        around(RoundLedger, "finished_requests", lambda _, ledger: ledger._requests(FINISHED, tuple(Outcome))),
    ),
    ("end the round before the rewards are in", instead(RoundLedger, "is_complete", lambda ledger: ledger.is_full)),
    ("ties of quotas go to the last domain", wherever(quotas.apportion, _ties_to_the_last)),
    (
        "round a factor down",
        wherever(quotas.scale_up, lambda right, count, factor: max(count, right(count, factor) - 1)),
    ),
    ("the surplus goes to the first domain", wherever(quotas.with_speculation, _surplus_to_the_first)),
    (
        "one domain after the other in a batch",
        wherever(quotas.interleave, lambda _, columns: [item for column in columns for item in column]),
    ),
)

_HISTORY = (
    ("learn of a round while it runs", around(LengthHistory, "note", _learn_at_once)),
    ("learn of a round after the next one began", around(LengthHistory, "note", _too_late)),
    ("forget the tokens of aborted responses", around(LengthHistory, "note", _without_bounds)),
    ("defer the shortest prompts", around(LengthHistory, "longest", _shortest)),
    ("defer while some prompts are not known", around(LengthHistory, "knows", _informed_by_some)),
    ("defer prompts of one domain alone", around(HistoryBatching, "_shares_to_defer", _defer_of_the_first_domain)),
    ("a checkpoint without the history", around(LengthHistory, "snapshot", _history_forgotten)),
)

_SAMPLING = (
    ("train what has no variance", _with_variance(has_variance=True)),
    ("drop what has variance", _with_variance(has_variance=False)),
    ("queue what is dropped", around(DynamicSampling, "_decide", _queue_dropped)),
    ("no prompt in the place of a dropped one", around(DynamicSampling, "_count_reward", _no_successor)),
    (
        "forget the limit on active requests",
        around(
            DynamicSampling,
            "_num_launchable",
            lambda _, machine, __: max(0, machine._max_launched - len(machine._ledger.groups)),
        ),
    ),
    ("launch without end", around(DynamicSampling, "__init__", _one_launch_more)),
    ("close places while there is data", around(DynamicSampling, "_ask_or_close", _close_early)),
)

BUGS = (
    *(Bug(name=name, patch=patch, worlds=Worlds.TAIL) for name, patch in _TAIL),
    *(Bug(name=name, patch=patch, worlds=Worlds.HISTORY) for name, patch in _HISTORY),
    *(Bug(name=name, patch=patch, worlds=Worlds.SAMPLING) for name, patch in _SAMPLING),
)
