"""Tail batching: short rounds race more prompts than they need; the long ones that lose run later, among themselves.

Theory of operation
===================

A few responses are many times longer than the rest, and a synchronous batch waits for the longest of them while most
decode slots idle. Tail batching makes most batches not contain one.

* A **short round** launches `eta_prompts * P0` prompts with `eta_responses * R0` responses each. A response counts once
  its reward is known. A prompt is complete with its first `R0` rewards and then takes a place of its domain's quota;
  its other responses are aborted. When a quota is full, the prompts of the domain that still race are aborted too, and
  join the **long queue**. The round ends when all quotas are full.
* A **long round** runs the first `P0` prompts of the queue with exactly `R0` responses, each to its end. It comes as
  soon as the queue is that long. Nobody races in it, so no prompt waits forever, whatever its domain.

    state    event               next state
    resting  StepStarted         racing, a long round, if the queue holds P0 prompts; otherwise drawing
    drawing  last PromptsDrawn   racing, a short round, if every launch has its prompt; otherwise the data ends:
                                 drawing again, to top up the queue; racing, a long round, when that is done;
                                 or resting, with EndRun, when nothing is left
    racing   last place taken    resting, with EndRound

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

from collections import Counter
from typing import Any, Self, assert_never

from rollpacker.core.batching import BatchingEvent, Decision, StopRequests
from rollpacker.core.commands import EndRound, EndRun, RoundKind, ScoreResponse
from rollpacker.core.errors import InvariantViolated
from rollpacker.core.events import PromptsDrawn, ResponseAborted, ResponseFinished, RewardComputed, StepStarted
from rollpacker.core.ids import RequestId
from rollpacker.core.quotas import apportion, scale_up, with_speculation
from rollpacker.core.round import Outcome, RoundLedger
from rollpacker.core.settings import SchedulerSettings
from rollpacker.core.supply import DrawnPrompt, PromptSupply


class TailBatching:
    """Packs prompts into short and long rounds."""

    def __init__(self, settings: SchedulerSettings) -> None:
        domain_weights = dict(settings.domain_weights)
        self._settings = settings
        self._quotas = apportion(settings.num_prompts, domain_weights)
        self._launches = with_speculation(self._quotas, settings.eta_prompts)
        self._supply = PromptSupply(domain_weights)
        self._ledger = RoundLedger()
        self._long_queue: list[DrawnPrompt] = []
        """Deferred prompts of all domains, first in, first out."""

    def handle(self, event: BatchingEvent, now: float) -> tuple[Decision, ...]:  # noqa: ARG002 - needs no time
        """Take in one fact; see `BatchingMachine`."""
        match event:
            case ResponseFinished():
                return (ScoreResponse(request=event.request),) if self._ledger.finish(event) else ()
            case RewardComputed():
                return self._count_reward(event)
            case ResponseAborted():
                self._ledger.launched_group(event.request)
                return ()
            case StepStarted():
                self._ledger.expect(event, is_drawing=self._supply.is_waiting)
                return self._prepare_round()
            case PromptsDrawn():
                self._supply.receive(event, known=self._long_queue)
                return () if self._supply.is_waiting else self._prepare_round()
            case _:
                assert_never(event)

    def _prepare_round(self) -> tuple[Decision, ...]:
        """Begin a round, or ask for the prompts that it lacks, or end the run."""
        num_prompts = self._settings.num_prompts
        if len(self._long_queue) >= num_prompts:
            return self._begin_long_round()
        drawn = self._supply.num_drawn()
        if not drawn and not self._supply.has_ended_domain:
            return self._supply.ask(self._launches)
        if drawn == self._launches:
            return self._begin_short_round()
        self._long_queue += self._supply.take()
        draws = self._supply.ask_any(num_prompts - len(self._long_queue))
        if draws:
            return draws
        return self._begin_long_round() if self._long_queue else (EndRun(),)

    def _begin_short_round(self) -> tuple[Decision, ...]:
        return self._ledger.begin(
            RoundKind.SHORT,
            self._supply.take(),
            self._quotas,
            num_launched=scale_up(self._settings.num_responses, self._settings.eta_responses),
            num_needed=self._settings.num_responses,
        )

    def _begin_long_round(self) -> tuple[Decision, ...]:
        prompts = self._long_queue[: self._settings.num_prompts]
        del self._long_queue[: self._settings.num_prompts]
        return self._ledger.begin(
            RoundKind.LONG,
            prompts,
            Counter(drawn.domain for drawn in prompts),
            num_launched=self._settings.num_responses,
            num_needed=self._settings.num_responses,
        )

    def _count_reward(self, event: RewardComputed) -> tuple[Decision, ...]:
        """Accept the group that this reward completes, defer whom it shuts out, end the round that it fills."""
        ledger = self._ledger
        group = ledger.score(event)
        if group is None or group.num_scored < ledger.num_responses:
            return ()
        acceptance, stopped = ledger.accept(group)
        if not ledger.places[group.domain]:
            for loser in [racing for racing in ledger.racing_groups() if racing.domain == group.domain]:
                stopped += ledger.defer(loser)
                self._long_queue.append(DrawnPrompt(loser.prompt, loser.domain))
        decisions: list[Decision] = [acceptance]
        if stopped:
            decisions.append(StopRequests(requests=tuple(stopped)))
        if ledger.is_full:
            decisions.append(
                EndRound(round=ledger.round, prompts=ledger.close(), long_queue_length=len(self._long_queue))
            )
        return tuple(decisions)

    def running_requests(self) -> list[RequestId]:
        """List what was started and has neither finished nor been stopped."""
        return list(self._ledger.running_requests())

    def check(self) -> None:
        """Re-derive the machine's invariants from scratch.

        Raises:
            InvariantViolated: The state contradicts itself.
        """
        self._supply.check()
        self._ledger.check()
        queued = [drawn.prompt for drawn in self._long_queue]
        if len(queued) != len(set(queued)):
            raise InvariantViolated(f"A prompt waits twice in the long queue: {queued}")
        for group in self._ledger.groups.values():
            if (group.outcome is Outcome.DEFERRED) != (group.prompt in queued):
                raise InvariantViolated(f"{group.prompt} is {group.outcome.value}; the long queue holds {queued}")
        if self._ledger.is_open and (self._supply.is_waiting or self._supply.num_drawn()):
            raise InvariantViolated(f"Prompts are drawn while round {self._ledger.round} is open.")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {
            "supply": self._supply.snapshot(),
            "ledger": self._ledger.snapshot(),
            "long_queue": [drawn.to_plain() for drawn in self._long_queue],
        }

    @classmethod
    def restore(cls, settings: SchedulerSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot."""
        machine = cls(settings)
        machine._supply = PromptSupply.restore(dict(settings.domain_weights), snapshot["supply"])
        machine._ledger = RoundLedger.restore(snapshot["ledger"])
        machine._long_queue = [DrawnPrompt.from_plain(plain) for plain in snapshot["long_queue"]]
        return machine
