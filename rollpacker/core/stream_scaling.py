"""When a round's accepted groups begin to stream to the trainer, and which engines are lent to it for that.

Theory of operation
===================

A trainer that shares no GPU with engines is idle while they generate: groups stream to it from the round's beginning.
Where they share GPUs, engines have to make room. When a part of a round's requests is finished, the engines decode
small batches, and groups that are complete could be trained already. So once per round half of the engines may be lent:
what runs on them moves to the others, which recompute its KV cache, and accepted groups stream to the training replicas
on the lent GPUs.

    state      event                                                      next state
    resting    BeginRound, and the trainer shares no GPU                  streaming, with StreamGroups
    resting    BeginRound, and it does                                    watching
    watching   a finish, with a share of the launches finished that is    measuring, with MeasureProgress
               due: `first_share`, and from there each `every_share`,
               but never above `last_share`
    measuring  ProgressMeasured, and both tests pass                      lending, with LendEngines
               ProgressMeasured, and one of them fails                    watching, for the next share
    lending    an engine of a lent block is lost                          the same, without that block, whose others
                                                                          serve on
    lending    the last answer of the lent engines: they are empty        streaming, with StreamGroups
    lending    no block is left, or `keep`                                lent
    any        EndRound                                                   resting

In streaming and lent nothing more is decided. On lent GPUs groups go to the trainer as many at a time as it has GPUs:
each replica has some, and the call is short, so that all GPUs soon share the rest. On GPUs of its own, where no others
are to come, all groups that are there go at once, which pack best.

The tests:

* **Whole groups.** The GPUs that are lent are whole engines and whole training replicas at once. Engines and replicas
  that share GPUs hang together; such a **block** can be lent if every GPU of it is in both. Blocks are taken in order
  of the tokens per engine that would have to move, fewest first, as far as they fit into half of the engines (rounded
  down). If no block fits, nothing can be lent, and nothing is measured either.
* **Memory**, unless `must_fit` is off. All running requests fit into the engines that remain, at the length that is
  expected of them:

      sum over running requests of (prompt + E[L | L > generated so far])  <=  sum of the remaining engines' KV tokens

  The expectation is the mean of the finished responses among the last `num_recent_lengths` that were longer, rounded up
  to a whole token; where none was, `max_response_tokens`. Responses that lose a race are never seen at full length, so
  in short rounds the estimate leans low; the long rounds' lengths, in the same window, make up for it. A trajectory
  whose environment acts is on no engine and comes back to one: it counts as well, with what it had when its last turn
  ended, and with the mean prompt of those that run.

An engine of the fleet that is missing from the measurement may be full for all one knows: then the tests fail. A
measurement that comes after its round, or a second time, changes nothing. The share counts finishes that were news,
rewarded or not, of all launches of the round; what was aborted never finishes. With dynamic sampling the launches grow
by those of a prompt whenever one is dropped, because another one takes its place.

Invariant: at most one lending per round, and at least half of the engines are kept.

Source: RollPacker, section 4.4 and algorithm 1. The order in which blocks are chosen, the lean on finished lengths and
the total instead of one sum per engine are this project's: the router spreads what moves by load.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Self

from rollpacker.core.commands import BeginRound, MeasureProgress, StreamGroups
from rollpacker.core.errors import InvariantViolated
from rollpacker.core.events import EngineProgress, ProgressMeasured, RunningRequest
from rollpacker.core.ids import EngineId, RequestId
from rollpacker.core.length_estimate import LengthEstimate
from rollpacker.core.settings import StreamSettings


def can_lend(
    settings: StreamSettings, engines: Mapping[EngineId, tuple[int, ...]], *, has_workers: bool = False
) -> bool:
    """Tell whether some of these engines, by their GPUs, could ever be lent; False also where none needs to be.

    With workers that generate the rest of a round all of them may be lent at once (`core.seeding`).
    """
    machine = StreamScaling(settings)
    for engine, gpus in engines.items():
        machine.join(engine, gpus)
    return bool(machine.lendable if has_workers else machine._choose_blocks(list(engines), {}))  # noqa: SLF001  the machine's own rule


class StreamScaling:
    """Watches a round's progress, and chooses the engines that are lent."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._gpus: dict[EngineId, tuple[int, ...]] = {}
        """Of every engine of the fleet."""
        self._in_blocks: tuple[EngineId, ...] | None = None
        """Of the fleet as it is; None until it is asked for."""
        self._recent_lengths: deque[int] = deque(maxlen=settings.num_recent_lengths)
        """Tokens of the last finished responses, oldest first."""
        self._round = -1
        """The open round, or the last one."""
        self._num_launched = 0
        """0 between rounds."""
        self._num_samples = 0
        """Launched of each prompt of the round."""
        self._num_finished = 0
        self._has_dropped = False
        """Prompts of the round were dropped, and others took their place."""
        self._num_tests = 0
        """Ordered in this round."""
        self._next_point = 0
        """The share that is due next is `first_share` plus so many times `every_share`."""
        self._due_at = 0
        """That share in finishes."""
        self._last_at = 0
        """`last_share` in finishes."""
        self._is_measuring = False
        self._has_lent = False
        self._lending: tuple[EngineId, ...] = ()
        """Lent engines that are not known to be empty yet, in joining order."""
        self.is_led = False
        """Whether `lend` says what is lent, and no test does (`core.seeding`)."""

    # The fleet

    def join(self, engine: EngineId, gpus: tuple[int, ...]) -> None:
        """Note an engine's GPUs; one that has restarted is not lent."""
        self.leave(engine)
        self._gpus[engine], self._in_blocks = gpus, None

    def leave(self, engine: EngineId) -> None:
        """Forget an engine."""
        self._gpus.pop(engine, None)
        self._in_blocks = None

    # The round

    def begin_round(self, command: BeginRound) -> tuple[StreamGroups, ...]:
        """Watch a new round, or let its groups stream where the trainer has nothing else to do."""
        self._round = command.round
        self._num_samples = command.num_responses_launched
        self._num_launched = command.num_prompts_launched * self._num_samples
        self._num_finished = self._num_tests = self._next_point = 0
        self._is_measuring = self._has_lent = self._has_dropped = False
        self._lending = ()
        self._count_out()
        return () if self._settings.replicas else (StreamGroups(round=self._round),)

    def count_drop(self) -> None:
        """Count the launches that take the place of a dropped prompt's."""
        self._num_launched += self._num_samples
        self._has_dropped = True
        self._count_out()

    def end_round(self) -> None:
        """Rest until the next round."""
        self._num_launched = self._num_finished = 0
        self._is_measuring = False
        self._lending = ()
        self._count_out()

    def count_finish(self, num_tokens: int) -> tuple[MeasureProgress, ...]:
        """Count a response that finished, and ask for a measurement when one is due."""
        self._recent_lengths.append(num_tokens)
        if not self._settings.replicas:
            return ()  # nothing is tested, and finishes may be of requests that were launched in earlier rounds
        self._num_finished += 1
        if self._has_dropped and self._num_finished > self._num_launched:  # as data ends, two may replace a dropped one
            self._num_launched = self._num_finished
            self._count_out()
        is_done = self._is_measuring or self._has_lent or self.is_led
        if is_done or not self._due_at <= self._num_finished <= self._last_at:
            return ()
        while self._due_at <= self._num_finished:
            self._next_point += 1
            self._count_out()
        if not self._choose_blocks(tuple(self._gpus), {}):
            return ()
        self._is_measuring = True
        self._num_tests += 1
        return (MeasureProgress(round=self._round),)

    def _count_out(self) -> None:
        """Turn shares into finishes."""
        share = self._settings.first_share + self._next_point * self._settings.every_share
        self._due_at = math.ceil(share * self._num_launched)
        first, last = self._settings.first_share, self._settings.last_share
        rounded = math.ceil if first == last else math.floor  # a single share may lie between two finishes
        self._last_at = rounded(last * self._num_launched)

    # The test

    def has_ordered(self, event: ProgressMeasured) -> bool:
        """Tell whether a measurement may answer an order of this machine."""
        return event.round < self._round or (event.round == self._round and self._num_tests > 0)

    def choose(
        self,
        event: ProgressMeasured,
        fleet: Sequence[EngineId],
        holders: Mapping[RequestId, EngineId | None],
        acting: Iterable[int] = (),
    ) -> tuple[EngineId, ...]:
        """Name the engines to lend now, in joining order; none if a test fails or the measurement is late.

        Args:
            event: A measurement that has passed `validate_progress`.
            fleet: All engines, in joining order.
            holders: Which engine holds each request in flight. What has finished or moved since the measurement, by
                what was told so far, does not count.
            acting: Tokens so far of each trajectory whose environment acts.
        """
        if event.round != self._round or not self._is_measuring:
            return ()
        self._is_measuring = False
        progress_of = {progress.engine: progress for progress in event.engines}
        if self.is_led or not all(engine in progress_of for engine in fleet):
            return ()
        running = {
            engine: [request for request in progress_of[engine].running if holders.get(request.request) == engine]
            for engine in fleet
        }
        lent = self._choose_blocks(fleet, running)
        kept = [progress_of[engine] for engine in fleet if engine not in lent]
        if not lent or not self._do_fit([request for each in running.values() for request in each], kept, acting):
            return ()
        self._has_lent = True
        self._lending = tuple(engine for engine in fleet if engine in lent)
        return self._lending

    @property
    def lendable(self) -> tuple[EngineId, ...]:
        """The engines that `lend` may name: those of all blocks, once a round."""
        if self._in_blocks is None:
            self._in_blocks = tuple(engine for block in self._blocks(tuple(self._gpus)) for engine in block)
        return () if self._has_lent else self._in_blocks

    def lend(self, engines: tuple[EngineId, ...]) -> None:
        """Lend engines that are lendable."""
        self._has_lent, self._is_measuring, self._lending = True, False, engines

    def keep(self) -> None:
        """Lend no more: if not every engine is empty yet, none has left its GPUs, and none will."""
        self._lending = ()

    def give_back(self, engine: EngineId) -> tuple[EngineId, ...]:
        """Lend the block of an engine no more, which is lost or has restarted before all were empty; gives the others.

        The trainer could not work on what is left of it.
        """
        if engine not in self._lending:
            return ()
        block = {engine}.union(*(block for block in self._blocks(tuple(self._gpus)) if engine in block))
        lending = self._lending
        self._lending = tuple(each for each in lending if each not in block)
        return tuple(each for each in lending if each in block and each != engine)

    @property
    def lending(self) -> tuple[EngineId, ...]:
        """The lent engines whose last request has yet to leave."""
        return self._lending

    def stream(self) -> StreamGroups:
        """Let groups stream on the lent engines' GPUs: they are empty."""
        engines, self._lending = self._lending, ()
        num_gpus = sum(len(self._gpus[engine]) for engine in engines)
        groups_per_call = None if self.is_led else num_gpus  # no others are to come that could share the rest
        return StreamGroups(round=self._round, engines=engines, groups_per_call=groups_per_call)

    def _choose_blocks(
        self, fleet: Sequence[EngineId], running: Mapping[EngineId, Sequence[RunningRequest]]
    ) -> set[EngineId]:
        """Choose whole blocks, up to half of the engines, that have the fewest tokens to move."""
        tokens_to_move = {
            engine: sum(request.num_prompt_tokens + request.num_generated_tokens for request in running.get(engine, ()))
            for engine in fleet
        }
        by_cost = sorted(
            self._blocks(fleet),
            key=lambda block: Fraction(sum(tokens_to_move[engine] for engine in block), len(block)),
        )
        lent: set[EngineId] = set()
        for block in by_cost:
            if len(lent) + len(block) <= len(fleet) // 2:
                lent.update(block)
        return lent

    def _blocks(self, fleet: Sequence[EngineId]) -> list[list[EngineId]]:
        """List the blocks that can be lent, each in joining order, by their first engine."""
        replica_of = {gpu: number for number, gpus in enumerate(self._settings.replicas) for gpu in gpus}
        users: dict[int, list[EngineId]] = {}
        for engine in fleet:
            for gpu in self._gpus[engine]:
                users.setdefault(gpu, []).append(engine)
        joined = {engine: number for number, engine in enumerate(fleet)}
        blocks = []
        seen: set[EngineId] = set()
        for first in fleet:
            if first in seen:
                continue
            block, is_whole = self._block_of(first, replica_of, users)
            seen |= block
            if is_whole:
                blocks.append(sorted(block, key=joined.__getitem__))
        return blocks

    def _block_of(
        self, first: EngineId, replica_of: Mapping[int, int], users: Mapping[int, Sequence[EngineId]]
    ) -> tuple[set[EngineId], bool]:
        """Collect what hangs together with an engine, and tell whether each GPU of it is in an engine and a replica."""
        block = {first}
        is_whole = bool(self._gpus[first])
        to_visit = list(self._gpus[first])
        visited = set(to_visit)
        while to_visit:
            gpu = to_visit.pop()
            neighbours = set(self._settings.replicas[replica_of[gpu]]) if gpu in replica_of else set()
            is_whole = is_whole and gpu in replica_of and gpu in users
            for engine in users.get(gpu, ()):
                block.add(engine)
                neighbours.update(self._gpus[engine])
            to_visit += neighbours - visited
            visited |= neighbours
        return block, is_whole

    def _do_fit(self, running: Sequence[RunningRequest], kept: Sequence[EngineProgress], acting: Iterable[int]) -> bool:
        if not self._settings.must_fit:
            return True
        estimate = LengthEstimate(self._recent_lengths, self._settings.max_response_tokens)
        num_prompt_tokens = sum(request.num_prompt_tokens for request in running)
        demand = num_prompt_tokens + sum(estimate.of(request.num_generated_tokens) for request in running)
        mean_prompt_tokens = math.ceil(Fraction(num_prompt_tokens, len(running))) if running else 0
        demand += sum(mean_prompt_tokens + estimate.of(num_tokens) for num_tokens in acting)
        return demand <= sum(progress.kv_tokens_capacity for progress in kept)

    # Self-check and snapshot

    def check(self, fleet: Sequence[EngineId]) -> None:
        """Re-derive the machine's invariants.

        Raises:
            InvariantViolated: It knows another fleet, or a round that contradicts itself.
        """
        if self._gpus.keys() != set(fleet) or not self._gpus.keys() >= set(self._lending):
            raise InvariantViolated(f"The fleet is {list(fleet)}; GPUs are known of {list(self._gpus)}.")
        if not 0 <= self._num_finished <= self._num_launched or (self._is_measuring and self._has_lent):
            raise InvariantViolated(f"The progress of round {self._round} contradicts itself: {self.snapshot()}")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {
            "gpus": {engine: list(gpus) for engine, gpus in self._gpus.items()},
            "recent_lengths": list(self._recent_lengths),
            "round": self._round,
            "num_launched": self._num_launched,
            "num_samples": self._num_samples,
            "num_finished": self._num_finished,
            "has_dropped": self._has_dropped,
            "num_tests": self._num_tests,
            "next_point": self._next_point,
            "is_measuring": self._is_measuring,
            "has_lent": self._has_lent,
            "lending": list(self._lending),
        }

    @classmethod
    def restore(cls, settings: StreamSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot."""
        machine = cls(settings)
        machine._gpus = {EngineId(engine): tuple(gpus) for engine, gpus in snapshot["gpus"].items()}
        machine._recent_lengths.extend(snapshot["recent_lengths"])
        machine._round = snapshot["round"]
        machine._num_launched = snapshot["num_launched"]
        machine._num_samples = snapshot["num_samples"]
        machine._num_finished = snapshot["num_finished"]
        machine._has_dropped = snapshot["has_dropped"]
        machine._num_tests = snapshot["num_tests"]
        machine._next_point = snapshot["next_point"]
        machine._is_measuring = snapshot["is_measuring"]
        machine._has_lent = snapshot["has_lent"]
        machine._lending = tuple(map(EngineId, snapshot["lending"]))
        machine._count_out()
        return machine
