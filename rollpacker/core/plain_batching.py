"""Plain batching: every round runs P0 prompts with R0 responses each and waits for all of them.

The synchronous baseline. With `overlap_rewards` each response is scored as it finishes; without, the whole batch is
scored after the last one. The last batch of finite data may be smaller: when a domain ends, the others fill its places.

Invariant: nothing is speculated, so nothing is ever stopped. Source: RollPacker, section 2, the veRL baseline.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Self, assert_never

from rollpacker.core.batching import BatchingEvent, Decision
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
from rollpacker.core.round import RoundLedger
from rollpacker.core.settings import SchedulerSettings
from rollpacker.core.supply import PromptSupply


class PlainBatching:
    """Packs prompts into plain rounds."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._supply = PromptSupply(dict(settings.domain_weights))
        self._ledger = RoundLedger()

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
                self._supply.receive(event)
                return () if self._supply.is_waiting else self._prepare_round()
            case _:
                assert_never(event)

    def _prepare_round(self) -> tuple[Decision, ...]:
        """Begin a round, or ask for the prompts that it lacks, or end the run."""
        draws = self._supply.ask_any(self._settings.num_prompts - sum(self._supply.num_drawn().values()))
        if draws:
            return draws
        prompts = self._supply.take()
        if not prompts:
            return (EndRun(),)
        return self._ledger.begin(
            RoundKind.PLAIN,
            prompts,
            Counter(drawn.domain for drawn in prompts),
            num_launched=self._settings.num_responses,
            num_needed=self._settings.num_responses,
        )

    def _count_finish(self, event: ResponseFinished) -> tuple[Decision, ...]:
        """Have the response scored, or, without overlap, the whole batch after its last response."""
        if not self._ledger.finish(event):
            return ()
        if self._settings.overlap_rewards:
            return (ScoreResponse(request=event.request),)
        if self._ledger.num_running:
            return ()
        return tuple(ScoreResponse(request=request) for request in self._ledger.finished_requests())

    def _count_reward(self, event: RewardComputed) -> tuple[Decision, ...]:
        """Accept the group that this reward completes, end the round that it fills."""
        ledger = self._ledger
        if not self._settings.overlap_rewards and ledger.num_running and ledger.launched_group(event.request):
            raise ImpossibleEvent(
                f"{event.request} was scored while {ledger.num_running} responses still run.",
                "Without overlap_rewards a batch is scored after its last response.",
            )
        group = ledger.score(event)
        if group is None or group.num_scored < ledger.num_responses:
            return ()
        ledger.place(group)
        acceptance = ledger.accept(group)
        if not ledger.is_complete:
            return (acceptance,)
        return acceptance, EndRound(round=ledger.round, prompts=ledger.close(), long_queue_length=0)

    def next_kind(self) -> RoundKind:
        """Tell what the next round will be; see `BatchingMachine`."""
        return RoundKind.PLAIN

    def running_requests(self) -> list[RequestId]:
        """List what was started and has not finished."""
        return list(self._ledger.running_requests())

    def check(self) -> None:
        """Re-derive the machine's invariants from scratch.

        Raises:
            InvariantViolated: The state contradicts itself.
        """
        self._supply.check()
        self._ledger.check()
        if self._ledger.is_open and (self._supply.is_waiting or self._supply.num_drawn()):
            raise InvariantViolated(f"Prompts are drawn while round {self._ledger.round} is open.")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {"supply": self._supply.snapshot(), "ledger": self._ledger.snapshot()}

    @classmethod
    def restore(cls, settings: SchedulerSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot."""
        machine = cls(settings)
        machine._supply = PromptSupply.restore(dict(settings.domain_weights), snapshot["supply"])
        machine._ledger = RoundLedger.restore(snapshot["ledger"])
        return machine
