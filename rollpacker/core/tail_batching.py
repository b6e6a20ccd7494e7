"""Tail batching: short rounds race more prompts than they need; the long ones that lose run later, among themselves.

Theory of operation
===================

A few responses are many times longer than the rest, and a synchronous batch waits for the longest of them while most
decode slots idle. Tail batching makes most batches not contain one.

* A **short round** launches `eta_prompts * P0` prompts with `eta_responses * R0` responses each. A response counts once
  its reward is known. A prompt is complete with its first `R0` rewards and then takes a place of its domain's quota;
  its other responses are aborted. When a quota is full, the prompts of the domain that still race are aborted too, and
  join the **long queue**. The round ends when all quotas are full.
* Without `overlap_rewards` the race counts *responses*: a prompt takes its place with its first `R0` of them. When all
  places are taken, exactly the samples that took them are scored, and the round ends with the last of their rewards.
* A **long round** runs the first `P0` prompts of the queue with exactly `R0` responses, each to its end. It comes as
  soon as the queue is that long. No prompt races in it, so no prompt waits forever, whatever its domain.

    state    event               next state
    resting  StepStarted         racing, a long round, if the queue holds P0 prompts; otherwise drawing
    drawing  last PromptsDrawn   racing, a short round, if every launch has its prompt; otherwise the data ends:
                                 drawing again, to top up the queue; racing, a long round, when that is done;
                                 or resting, with EndRun, when nothing is left
    racing   last place taken,   resting, with EndRound
             its rewards known

An aborted prompt is generated again from scratch, under a new round number: so every accepted token comes from the
current policy. It is in exactly one place at any time (drawn, queued, racing or accepted): so it is trained exactly
once.

With eta_prompts = 5/4 a short round defers P0 / 4 prompts: four short rounds, then one long one. With 1 nothing is
deferred.

**End of data.** When a domain ends before a short round is filled, there is nothing left to race against: what was
drawn joins the queue, the queue is topped up from the other domains, and long rounds of at most P0 prompts run until
nothing is left.

Source: RollPacker, section 3. Counting rewards instead of responses, the race per domain and the drain are this
project's.
"""

from __future__ import annotations

from rollpacker.core.batching_machine import Decision
from rollpacker.core.commands import EndRun, RoundKind
from rollpacker.core.quotas import apportion, with_speculation
from rollpacker.core.race import Race
from rollpacker.core.settings import SchedulerSettings


class TailBatching(Race):
    """Packs prompts into short and long rounds."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self._quotas = apportion(settings.num_prompts, dict(settings.domain_weights))
        self._launches = with_speculation(self._quotas, settings.eta_prompts)

    def _prepare_round(self) -> tuple[Decision, ...]:
        if self._is_long_round_due:
            return self._begin_long_round()
        drawn = self._supply.num_drawn()
        if not drawn and not self._supply.has_ended_domain:
            return self._supply.ask(self._launches)
        if drawn == self._launches:
            return self._begin(RoundKind.SHORT, self._supply.take(), self._quotas)
        return self._drain()

    def _drain(self) -> tuple[Decision, ...]:
        """Queue what was drawn, and run what is queued as long as there is some: the data has ended."""
        self._long_queue += self._supply.take()
        draws = self._supply.ask_any(self._settings.num_prompts - len(self._long_queue))
        if draws:
            return draws
        return self._begin_long_round() if self._long_queue else (EndRun(),)

    @property
    def _is_long_round_due(self) -> bool:
        return len(self._long_queue) >= self._settings.num_prompts

    def _begin_long_round(self) -> tuple[Decision, ...]:
        prompts = self._long_queue[: self._settings.num_prompts]
        del self._long_queue[: self._settings.num_prompts]
        return self._begin(RoundKind.LONG, prompts)

    def next_kind(self) -> RoundKind:
        is_long = self._is_long_round_due or self._supply.has_ended_domain
        return RoundKind.LONG if is_long else RoundKind.SHORT
