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
  soon as the queue is that long. Nobody races in it, so no prompt waits forever, whatever its domain.

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

from collections import Counter
from typing import Any, Self, assert_never

from rollpacker.core.batching import BatchingEvent, Decision, StopRequests
from rollpacker.core.commands import EndRound, EndRun, RoundKind, ScoreResponse
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import (
    PromptsDrawn,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import RequestId
from rollpacker.core.quotas import apportion, scale_up, with_speculation
from rollpacker.core.round import Group, Outcome, RoundLedger
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
                return self._count_finish(event)
            case RewardComputed():
                return self._count_reward(event)
            case ResponseAborted() | ResponseEvicted():
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

    def _count_finish(self, event: ResponseFinished) -> tuple[Decision, ...]:
        """Have the response scored, or, without overlap, count it in the race and have the whole batch scored."""
        ledger = self._ledger
        if not ledger.finish(event):
            return ()
        if self._settings.overlap_rewards:
            return (ScoreResponse(request=event.request),)
        group = ledger.groups[event.request.prompt]
        if group.num_finished < ledger.num_responses:
            return ()
        decisions = self._give_place(group)
        if ledger.is_full:
            decisions += [ScoreResponse(request=request) for request in ledger.finished_requests()]
        return tuple(decisions)

    def _count_reward(self, event: RewardComputed) -> tuple[Decision, ...]:
        """Accept the group that this reward completes, and end the round that it completes."""
        ledger = self._ledger
        if not self._settings.overlap_rewards and not ledger.is_full and ledger.launched_group(event.request):
            raise ImpossibleEvent(
                f"{event.request} was scored while places of round {ledger.round} are open.",
                "Without overlap_rewards a batch is scored when all its places are taken.",
            )
        group = ledger.score(event)
        if group is None or group.num_scored < ledger.num_responses:
            return ()
        stopping = self._give_place(group) if group.outcome is Outcome.RACING else []
        decisions: list[Decision] = [ledger.accept(group), *stopping]
        if ledger.is_complete:
            decisions.append(
                EndRound(round=ledger.round, prompts=ledger.close(), long_queue_length=len(self._long_queue))
            )
        return tuple(decisions)

    def _give_place(self, group: Group) -> list[Decision]:
        """Give a group its place, defer whom it shuts out, and stop what still runs of both."""
        ledger = self._ledger
        stopped = ledger.place(group)
        if not ledger.places[group.domain]:
            losers, of_losers = ledger.shut_out(group.domain)
            stopped += of_losers
            self._long_queue += losers
        return [StopRequests(requests=tuple(stopped))] if stopped else []

    def next_kind(self) -> RoundKind:
        """Tell what the next round will be; see `BatchingMachine`."""
        is_long = len(self._long_queue) >= self._settings.num_prompts or self._supply.has_ended_domain
        return RoundKind.LONG if is_long else RoundKind.SHORT

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
        self._ledger.check_deferred(self._long_queue)
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
