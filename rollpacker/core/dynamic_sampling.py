"""Dynamic sampling: a batch holds only prompts whose rewards differ, and new ones are drawn until it is full.

Theory of operation
===================

GRPO learns nothing of a prompt whose group has one and the same reward R0 times: all solved, or none. Such a prompt is
**dropped** as soon as the last of its R0 rewards is known. It is neither trained nor queued, its place in the batch is
open again, and another prompt is launched at once. What counts is the reward as it was scored, before over-long
shaping, as in DAPO's reference code (`filter_groups.metric=acc`).

It comes with either batching, and what they do without drops holds on: with `plain`, P0 prompts race for P0 places;
with `tail`, a short round races `eta_prompts * P0` prompts of `eta_responses * R0` responses, those of a domain whose
last place was taken are deferred to the long queue, and a long round runs the first P0 prompts of the queue.

* A round has **places** per domain, and in a short round a **surplus** beyond them, as tail batching speculates. As
  many prompts race as there are open places and surplus; what is less is **vacant**. A drop makes a vacancy, an
  accepted group does not: so a round defers as many prompts as without drops, and long rounds come as often.
* A vacancy is filled at once, whatever else runs, as far as there is **room**: with `max_active_requests`, no more
  requests than that are in flight at a time, over all engines, and a prompt's responses are launched together. A prompt
  is drawn when there is room for it, not earlier: what never ran is never deferred.
* A short or plain round fills vacancies with new prompts of the same domain. Once the domain has ended, the place goes
  to another domain, and once all have ended to the queue's first prompt that has not run in this round.
* A long round fills vacancies from the queue first, and with new prompts when the queue is empty: they are shorter
  than what was deferred, on average, so that nothing waits for them; the alternative is a smaller batch. Nothing is
  speculated.
* When no prompt is left to fill a place, it is **closed**: the last batch of finite data may be smaller. When all
  places of a round were closed there is nothing to train, and nothing left: the run ends in that round.
* A round launches at most `max_launch_factor * P0` prompts, dropped ones too. If that does not fill its places, the run
  gives up: the data has too few prompts of the right difficulty, and would be used up for nothing.

Without `overlap_rewards` (plain batching only) a batch is scored when all its places are taken; then the places of
dropped prompts are filled all at once and scored together, as often as it takes. That is what DAPO's reference code
does by whole batches (`max_num_gen_batches`). A race of responses would be over before any reward is known, so tail
batching wants its rewards overlapped.

    state      event                          next state
    resting    StepStarted                    racing if a prompt is at hand; else preparing, with DrawPrompts,
                                              or resting, with EndRun, when all data has ended
    preparing  last PromptsDrawn              as for StepStarted
    racing     any fact                       racing, with launches and draws for what is vacant;
                                              or resting, with EndRound or EndRun, when no place is open
                                              or FailRun

Draws may be under way while a round races, and when it ends: what comes then, or is not needed any more, waits at the
supply for the next vacancy. A prompt is in exactly one place at any time (at the supply, queued, racing, accepted or
dropped): so it is trained or dropped exactly once per epoch.

Source: DAPO (arXiv 2503.14476), section 3.2 and algorithm 1; verl's recipe/dapo; RollPacker, section 7, for the queue,
the limit on active requests and prompts that are issued one by one. The order in which places are filled, the constant
surplus and the end of the data are this project's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from rollpacker.core.batching_machine import Decision, StopRequests
from rollpacker.core.commands import DropPrompt, EndRun, FailRun, RoundKind
from rollpacker.core.errors import InvariantViolated
from rollpacker.core.ids import Domain
from rollpacker.core.quotas import apportion, with_speculation
from rollpacker.core.race import Race
from rollpacker.core.round import Group, Outcome
from rollpacker.core.settings import SchedulerSettings
from rollpacker.core.supply import DrawnPrompt


class DynamicSampling(Race):
    """Packs prompts whose rewards differ into rounds of either batching."""

    _GROWS: ClassVar[bool] = True

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        assert settings.dynamic_sampling is not None
        domain_weights = dict(settings.domain_weights)
        self._domains = tuple(domain_weights)
        """In the order that breaks ties."""
        self._is_tail = settings.batching == "tail"
        self._max_active_requests = settings.dynamic_sampling.max_active_requests
        self._is_room_scarce = self._max_active_requests is not None
        self._max_launched = math.floor(settings.dynamic_sampling.max_launch_factor * settings.num_prompts)
        self._quotas = apportion(settings.num_prompts, domain_weights)
        self._kind = RoundKind.PLAIN
        """Of the open round, or the last one."""
        self._surplus: Counter[Domain] = Counter()
        """Of the open round: how many more prompts race than there are places, while there are any."""

    # A round begins

    def _prepare_round(self) -> tuple[Decision, ...]:
        """Begin a round with whatever prompt is at hand, or ask for a first one, or end the run."""
        kind = self.next_kind()
        is_at_hand = bool(self._supply.num_drawn()) or (kind is RoundKind.LONG and bool(self._long_queue))
        if not is_at_hand:
            places, surplus = self._shape_of(kind)
            wanted = {domain: places[domain] + surplus[domain] for domain in self._supply.open_weights}
            return self._supply.ask(_fit(wanted, self._num_launchable(kind))) or (EndRun(),)
        places, self._surplus = self._shape_of(kind)
        self._kind = kind
        opening = self._open(kind, places, num_prompts=places.total() + self._surplus.total())
        return opening, *self._go_on()

    def _shape_of(self, kind: RoundKind) -> tuple[Counter[Domain], Counter[Domain]]:
        """Places and surplus per domain of a round that begins now."""
        if kind is RoundKind.SHORT:
            surplus = Counter(with_speculation(self._quotas, self._settings.eta_prompts))
            surplus.subtract(self._quotas)
            return Counter(self._quotas), surplus
        num_prompts = self._settings.num_prompts
        places = Counter(drawn.domain for drawn in self._long_queue[:num_prompts])
        num_left = num_prompts - places.total()
        supplied = self._supply.num_drawn().keys() | self._supply.open_weights.keys()
        weights = {domain: weight for domain, weight in self._settings.domain_weights if domain in supplied}
        if weights and num_left:
            places.update(apportion(num_left, weights))
        return places, Counter()

    def next_kind(self) -> RoundKind:
        if not self._is_tail:
            return RoundKind.PLAIN
        is_long = len(self._long_queue) >= self._settings.num_prompts or self._supply.has_ended_domain
        return RoundKind.LONG if is_long else RoundKind.SHORT

    # A round goes on

    def _decide(self, group: Group) -> list[Decision]:
        """Accept a group whose rewards differ; leave any other prompt for good, and stop what still runs of it."""
        if group.has_variance:
            return super()._decide(group)
        stopped = self._ledger.drop(group)
        dropping = DropPrompt(round=self._ledger.round, prompt=group.prompt)
        return [dropping, StopRequests(requests=tuple(stopped))] if stopped else [dropping]

    def _fill(self) -> list[Decision]:
        """Launch prompts where places are vacant and there is room, ask for what lacks, close what cannot be filled."""
        if not self._vacancies():
            return []
        self._move_places()
        decisions: list[Decision] = []
        while chosen := self._choose():  # once more after the last new prompts: what they leave vacant is the queue's
            decisions.append(self._ledger.add(chosen, num_launched=self._num_samples(self._kind)))
        if not self._supply.is_waiting:
            decisions += self._ask_or_close()
        return decisions

    def _vacancies(self) -> Counter[Domain]:
        """How many more prompts are to race, per domain that has any."""
        places, racing = self._ledger.places, self._ledger.num_racing
        domains = [domain for domain in self._domains if places[domain]]
        return +Counter({domain: places[domain] + self._surplus[domain] - racing[domain] for domain in domains})

    def _vacant_places(self) -> Counter[Domain]:
        """How many places no prompt races for, per domain that has any."""
        places, racing = self._ledger.places, self._ledger.num_racing
        return +Counter({domain: places[domain] - racing[domain] for domain in self._domains})

    def _num_launchable(self, kind: RoundKind) -> int:
        """How many more prompts may be launched now."""
        ledger = self._ledger
        num_left = max(0, self._max_launched - len(ledger.groups))
        if self._max_active_requests is None:
            return num_left
        return min(num_left, (self._max_active_requests - ledger.num_running) // self._num_samples(kind))

    def _queued(self) -> list[DrawnPrompt]:
        """What of the queue may run in this round: a prompt that was deferred in it waits for another one."""
        return [drawn for drawn in self._long_queue if drawn.prompt not in self._ledger.groups]

    def _move_places(self) -> None:
        """Give the vacant places of domains that have ended to those that have not, or that have prompts at hand."""
        at_hand, weights = self._supply.num_drawn(), self._supply.open_weights
        places = self._ledger.places
        for domain, num_vacant in self._vacant_places().items():
            num_lacking = num_vacant - at_hand[domain]
            if domain in weights or num_lacking <= 0:
                continue
            vacant = self._vacant_places()
            spare = +Counter({other: at_hand[other] - vacant[other] for other in self._domains})
            moved = apportion(num_lacking, weights) if weights else _fit(spare, num_lacking)
            places.update(moved)
            places[domain] -= sum(moved.values())

    def _choose(self) -> list[DrawnPrompt]:
        """Take from queue and supply what is launched now, in launch order."""
        is_long = self._kind is RoundKind.LONG
        room = self._num_launchable(self._kind)
        chosen = self._take_queued(room) if is_long else []
        vacancies = self._vacancies() - Counter(drawn.domain for drawn in chosen)
        chosen += self._supply.take(_fit(vacancies & self._supply.num_drawn(), room - len(chosen)))
        if not (is_long or chosen or self._supply.open_weights or self._supply.is_waiting):
            chosen = self._take_queued(room)
        return chosen

    def _take_queued(self, room: int) -> list[DrawnPrompt]:
        """Take the queue's first prompts for as many vacant places, of whichever domains the places were."""
        vacant, places = self._vacant_places(), self._ledger.places
        chosen = self._queued()[: min(room, vacant.total())]
        needed = Counter(drawn.domain for drawn in chosen)
        for giver, taker in zip((vacant - needed).elements(), (needed - vacant).elements(), strict=False):
            places[giver] -= 1
            places[taker] += 1
        taken = {drawn.prompt for drawn in chosen}
        self._long_queue = [drawn for drawn in self._long_queue if drawn.prompt not in taken]
        return chosen

    def _ask_or_close(self) -> list[Decision]:
        """Ask for prompts for what is vacant still; close places that no prompt is left for; or give up."""
        weights = self._supply.open_weights
        wanted = {domain: count for domain, count in self._vacancies().items() if domain in weights}
        draws = self._supply.ask(_fit(wanted, self._num_launchable(self._kind)))
        vacant = self._vacant_places()
        if draws or not vacant:
            return list(draws)
        ledger = self._ledger
        if not (weights or self._queued() or self._supply.num_drawn()):
            ledger.places.subtract(vacant)
            return []
        if len(ledger.groups) < self._max_launched:
            return []  # there is no room
        return [
            FailRun(
                round=ledger.round,
                num_prompts_launched=len(ledger.groups),
                num_prompts_dropped=sum(group.outcome is Outcome.DROPPED for group in ledger.groups.values()),
                num_prompts_needed=ledger.places.total(),
            )
        ]

    # Self-check and snapshot

    def check(self) -> None:
        super().check()
        ledger = self._ledger
        for group in ledger.groups.values():
            was_complete = group.num_left >= ledger.num_responses
            if was_complete and group.outcome is (Outcome.DROPPED if group.has_variance else Outcome.ACCEPTED):
                raise InvariantViolated(f"{group.prompt} is {group.outcome.value}, has_variance={group.has_variance}.")
        if self._max_active_requests is not None and ledger.num_running > self._max_active_requests:
            raise InvariantViolated(f"{ledger.num_running} requests are in flight, of {self._max_active_requests}.")
        if len(ledger.groups) > self._max_launched:
            raise InvariantViolated(f"Round {ledger.round} launched {len(ledger.groups)} of {self._max_launched}.")
        for domain, count in ledger.num_racing.items():
            if count > ledger.places[domain] + self._surplus[domain]:
                raise InvariantViolated(f"{count} prompts of {domain!r} race for {ledger.places[domain]} places.")
        self._check_room()

    def _check_room(self) -> None:
        """Raise if there is room for a prompt that could fill a vacancy, and none is launched or asked for."""
        is_filling = self._ledger.is_open and not (self._is_scoring or self._supply.is_waiting)
        if not is_filling or self._num_launchable(self._kind) <= 0:
            return
        vacant = self._vacant_places() or self._vacancies().keys() & self._supply.open_weights.keys()
        if vacant:
            raise InvariantViolated(f"Nothing fills the vacancies of {sorted(vacant)} although there is room.")

    def snapshot(self) -> dict[str, Any]:
        return super().snapshot() | {"kind": self._kind.value, "surplus": dict(self._surplus)}

    def _load(self, snapshot: dict[str, Any]) -> None:
        super()._load(snapshot)
        self._kind = RoundKind(snapshot["kind"])
        self._surplus = Counter({Domain(domain): count for domain, count in snapshot["surplus"].items()})


def _fit(wanted: Mapping[Domain, int], room: int) -> dict[Domain, int]:
    """Give each domain what it wants, or its share of the room."""
    total = sum(wanted.values())
    return dict(wanted) if total <= room else apportion(room, wanted)
