"""Tail batching that knows long prompts by their history, and defers them before they race.

Theory of operation
===================

A race finds the long prompts by generating them, and pays twice: their tokens are thrown away, and the batch is made
of whatever ended first, so that it is shorter than what the policy writes. In a later epoch much of that is known
beforehand: a prompt of long responses has long ones again (`rollpacker.core.length_history`).

* For a short round `share` of the prompts that are drawn are **deferred at once**: those of each domain whose last
  responses were the longest, as many of each domain as its weight says. The rest race, as in tail batching, for
  `eta_prompts * P0` launches; with a history 9/8 and `eta_responses` 1 are enough.
* What is deferred joins the long queue, behind what lost earlier races, and runs in a long round: P0 prompts, R0
  responses each, every one to its end. So its group is exact.
* A round is **informed** when all of the first P0 prompts that are drawn for it are known. One that is not, as in the
  first epoch, defers nothing at once: it races by `first_eta_prompts` and `first_eta_responses`, or, where both are 1,
  is a plain round. All of them, since a domain that is in its second epoch earlier than the others would have more
  than its share deferred and trained.
* At the end of the data what is left drains as in tail batching.

Invariants: which prompts are deferred at once depends on earlier rounds only, since a round is drawn before it begins
and nothing is learned while it runs. Of each domain as many were deferred at once as its weight says, to
within one prompt, until the data ends. A prompt is in exactly one place at any time: so it is trained exactly once per
epoch.

Dynamic sampling is not for this machine: it draws in the middle of a round, as rewards come, so that what is deferred
would depend on the round itself.

Source: this project; the idea of routing by history from RhymeRL (arXiv 2508.18588).
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

from rollpacker.core.batching_machine import BatchingEvent, Decision
from rollpacker.core.commands import DeferPrompts, RoundKind
from rollpacker.core.events import ResponseAborted, ResponseFinished
from rollpacker.core.ids import Domain
from rollpacker.core.length_history import LengthHistory
from rollpacker.core.quotas import scale_up, with_speculation
from rollpacker.core.settings import SchedulerSettings
from rollpacker.core.supply import DrawnPrompt
from rollpacker.core.tail_batching import TailBatching


class HistoryBatching(TailBatching):
    """Packs prompts into short and long rounds, and those that are known to be long into long ones at once."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        assert settings.length_history is not None
        self._rule = settings.length_history
        self._first_launches = with_speculation(self._quotas, self._rule.first_eta_prompts)
        num_launched = sum(self._launches.values())
        self._num_deferred_per_round = scale_up(num_launched, 1 / (1 - self._rule.share)) - num_launched
        self._history = LengthHistory()
        self._is_informed = False
        """Whether the round that is prepared or runs, or that ran last, is one whose prompts were known."""
        self._num_deferred: Counter[Domain] = Counter()
        """At once, so far."""

    def handle(self, event: BatchingEvent) -> tuple[Decision, ...]:
        decisions = super().handle(event)
        if isinstance(event, ResponseFinished | ResponseAborted):
            has_ended = isinstance(event, ResponseFinished)
            self._history.note(event.request, event.num_tokens, has_ended=has_ended)
        return decisions

    # A round begins

    def _prepare_round(self) -> tuple[Decision, ...]:
        self._history.learn(self._ledger.round)
        if self._is_long_round_due:
            return self._begin_long_round()
        drawn = self._supply.num_drawn()
        if not self._supply.has_ended_domain:
            if not drawn:
                return self._supply.ask(self._quotas)
            if drawn == self._quotas:
                self._is_informed = self._history.knows(self._supply.drawn)
                draws = self._supply.ask(self._rest_of_draw())
                if draws:
                    return draws
                # none is lacking: what was drawn is the round
        return self._begin_short_round() if drawn >= Counter(self._to_race) else self._drain()

    @property
    def _to_race(self) -> dict[Domain, int]:
        """Prompts of each domain that race in the next round unless it is a long one, so far as is known."""
        return self._launches if self._is_informed else self._first_launches

    def _rest_of_draw(self) -> dict[Domain, int]:
        """What to draw beside the first P0 prompts, in the domains' order."""
        deferred = self._shares_to_defer() if self._is_informed else Counter[Domain]()
        return {domain: self._to_race[domain] - quota + deferred[domain] for domain, quota in self._quotas.items()}

    def _shares_to_defer(self) -> Counter[Domain]:
        """How many prompts of each domain are deferred next, one place after the other to who is furthest behind."""
        weights = dict(self._settings.domain_weights)
        deferred = Counter(self._num_deferred)
        for _ in range(self._num_deferred_per_round):
            share = Fraction(deferred.total() + 1) / sum(weights.values())
            deferred[max(weights, key=lambda domain: share * weights[domain] - deferred[domain])] += 1
        return deferred - self._num_deferred

    def _begin_short_round(self) -> tuple[Decision, ...]:
        """Let as many prompts of each domain race as are to, and defer what was drawn beyond them: the longest ones."""
        drawn = self._supply.take()
        long_prompts: set[DrawnPrompt] = set()
        for domain, num_racing in self._to_race.items():
            of_domain = [prompt for prompt in drawn if prompt.domain == domain]
            long_prompts.update(self._history.longest(of_domain, len(of_domain) - num_racing))
        deferred = [prompt for prompt in drawn if prompt in long_prompts]
        self._long_queue += deferred
        self._num_deferred.update(prompt.domain for prompt in deferred)
        kind = RoundKind.SHORT if self._races else RoundKind.PLAIN
        racing = [prompt for prompt in drawn if prompt not in long_prompts]
        opening, starting = self._begin(kind, racing, self._quotas)
        if not deferred:
            return opening, starting
        prompts = tuple(prompt.prompt for prompt in deferred)
        return opening, DeferPrompts(round=self._ledger.round, prompts=prompts), starting

    def _num_samples(self, kind: RoundKind) -> int:
        if kind is RoundKind.SHORT and not self._is_informed:
            return scale_up(self._settings.num_responses, self._rule.first_eta_responses)
        return super()._num_samples(kind)

    def next_kind(self) -> RoundKind:
        kind = super().next_kind()
        return RoundKind.PLAIN if kind is RoundKind.SHORT and not self._races else kind

    @property
    def _races(self) -> bool:
        """Whether a round that is not long launches more than it needs, as far as its prompts are known."""
        return self._is_informed or self._rule.races_at_first

    # Self-check and snapshot

    def check(self) -> None:
        super().check()
        self._history.check()

    def snapshot(self) -> dict[str, Any]:
        return super().snapshot() | {
            "history": self._history.snapshot(),
            "is_informed": self._is_informed,
            "num_deferred": dict(self._num_deferred),
        }

    def _load(self, snapshot: dict[str, Any]) -> None:
        super()._load(snapshot)
        self._history = LengthHistory.restore(snapshot["history"])
        self._is_informed = snapshot["is_informed"]
        self._num_deferred = Counter({Domain(domain): count for domain, count in snapshot["num_deferred"].items()})
