"""One reward service of several actors, each with no more answers in hand than it should have.

    driver ── score ──> RoutedReward ──┬── reward         at most `reward.max_open` answers that rules check
                                       ├── judge-0 ─┐     at most `reward.judge.max_open` answers each; the others
                                       └── judge-1 ─┘     wait here, for the judge that has room first

No actor calls another one. The queue of a judge is short, so that the next answer goes where it is read soonest, and
little has to be read again when a judge is lost: its answers go to the other judges, or wait, in the order in which
they came, and a fresh judge takes its place (`restarts.py`). The run ends when the reward is lost, or when no judge is
left or to come.

Judges on GPUs of a trainer that takes turns with engines sleep while it works; whose place is empty waits for the end
of that turn.

Invariant: every response is with one actor, or waits here; its verdict is handed out once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from rollpacker.core.errors import EngineFailed, RollpackerError
from rollpacker.core.ids import EngineId
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.reward import RewardService
from rollpacker.runtime.rollout.restarts import Restarts

if TYPE_CHECKING:
    from rollpacker.config.sections.reward import RewardSection
    from rollpacker.core.ids import RequestId
    from rollpacker.protocols.reward import ResponseToScore
    from rollpacker.protocols.rollout import Verdict


class JudgeService(RewardService, Protocol):
    """A judge in a process of its own."""

    async def sleep(self) -> None:
        """Give back GPU memory, once what is being read has been judged; what comes meanwhile waits."""

    async def wake(self) -> None: ...


ReplaceJudge = Callable[[EngineId, EngineId], Awaitable[JudgeService]]
"""Given the slot and the name of who is to take it: ends who was there, and starts a judge within a deadline."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Scorer:
    name: EngineId
    service: RewardService
    open: dict[RequestId, ResponseToScore] = field(default_factory=dict)
    """What it has been handed, in this order."""


class _Pool:
    """Scorers that share what comes, and what waits until one of them has room."""

    def __init__(self, scorers: Iterable[_Scorer], max_open: int) -> None:
        self.scorers = list(scorers)
        """Those that are alive."""
        self.waiting: deque[ResponseToScore] = deque()
        self._max_open = max_open

    def hand_out(self) -> dict[_Scorer, list[ResponseToScore]]:
        """Give what waits to those that have room, one by one to the one with the least."""
        shares: dict[_Scorer, list[ResponseToScore]] = {}
        while self.waiting and self.scorers:
            scorer = min(self.scorers, key=lambda scorer: len(scorer.open))
            if len(scorer.open) >= self._max_open:
                break
            response = self.waiting.popleft()
            scorer.open[response.request] = response
            shares.setdefault(scorer, []).append(response)
        return shares

    def forget(self) -> None:
        self.waiting.clear()
        for scorer in self.scorers:
            scorer.open.clear()


class RoutedReward:
    """Implements `RewardService` and `ColocatedJudges` of `rollpacker.protocols.reward`; it owns the services.

    Args:
        section: Which domains a judge reads, how many answers anyone may be handed, and how often a judge is replaced.
        rules: Checks all others; None where a judge reads everything.
        judges: By name.
        note: Tells whoever follows the run.
        replace_judge: Brings one in the place of a lost one; None where that cannot be done.
        colocated_engines: Judges on GPUs that a trainer has in its turn; asleep.
    """

    def __init__(
        self,
        section: RewardSection,
        rules: RewardService | None,
        judges: Mapping[EngineId, JudgeService],
        note: Callable[[str], None],
        *,
        replace_judge: ReplaceJudge | None = None,
        colocated_engines: Collection[EngineId] = (),
    ) -> None:
        self._section = section
        self._rules = _Pool(
            [] if rules is None else [_Scorer(name=EngineId("reward"), service=rules)], section.max_open
        )
        self._judges = _Pool(
            [_Scorer(name=name, service=service) for name, service in judges.items()], section.judge.max_open
        )
        self._judging = dict(judges)
        """By name, every judge that there was."""
        self._colocated_engines = frozenset(colocated_engines)
        """Seats."""
        self._is_asleep = bool(colocated_engines)
        self._note = note
        self._replace_judge = replace_judge
        self._restarts = Restarts(
            slots=judges,
            bring=None if replace_judge is None else self._bring,
            max_restarts=section.judge.max_restarts,
            first_pause_s=section.judge.restart_pause_s,
            setting="reward.judge.max_restarts",
            note=note,
            on_ready=self._join,
            on_empty=self._require_judge,
            on_error=self._fail,
            fillable=self._own_seats(judges),
        )
        self._verdicts: Arrivals[Verdict] = Arrivals()
        self._failure: Exception | None = None
        self._pumps: dict[_Scorer, asyncio.Task[None]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    # Responses in, verdicts out

    async def score(self, responses: Sequence[ResponseToScore]) -> None:
        self._listen_to_all()
        for response in responses:
            is_judged = self._section.name_of(response.prompt.domain) == "judge"
            (self._judges if is_judged else self._rules).waiting.append(response)
        self._hand_out()

    async def forget(self) -> None:
        scorers = [*self._rules.scorers, *self._judges.scorers]
        self._rules.forget()
        self._judges.forget()
        # one that is lost is noticed by whoever listens to it
        await asyncio.gather(*(scorer.service.forget() for scorer in scorers), return_exceptions=True)

    async def collect(self) -> Sequence[Verdict]:
        """Wait until at least one verdict is there, and take all that are.

        Raises:
            RollpackerError: The reward failed, or no judge is left.
        """
        self._listen_to_all()
        verdicts = await self._verdicts.collect()
        if not verdicts and self._failure is not None:
            raise self._failure
        return verdicts

    async def close(self) -> None:
        """Close every service, lost ones too; a pending `collect` returns."""
        await self._restarts.stop()
        tasks = [*self._pumps.values(), *self._sending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        services = [*(scorer.service for scorer in self._rules.scorers), *self._judging.values()]
        await asyncio.gather(*(service.close() for service in services), return_exceptions=True)
        self._verdicts.close()

    # Turns with the trainer

    @property
    def takers(self) -> list[EngineId]:
        return [
            each.name for each in self._judges.scorers if self._restarts.slot_of(each.name) in self._colocated_engines
        ]

    async def sleep(self) -> None:
        """Leave GPUs to the trainer."""
        if self._colocated_engines and not self._is_asleep:
            self._is_asleep = True
            await self._restarts.fill_only(self._own_seats(self._restarts.slots))
            await self._each_turn_taker(lambda judge: judge.sleep())

    async def wake(self) -> None:
        """Take them again."""
        if self._is_asleep:
            self._is_asleep = False
            await self._each_turn_taker(lambda judge: judge.wake())
            await self._restarts.fill_only(self._restarts.slots)

    def _own_seats(self, slots: Iterable[EngineId]) -> list[EngineId]:
        """Those whose GPUs are the judges' now."""
        return [slot for slot in slots if not (self._is_asleep and slot in self._colocated_engines)]

    async def _each_turn_taker(self, order: Callable[[JudgeService], Awaitable[None]]) -> None:
        async def give(scorer: _Scorer) -> None:
            try:
                await order(self._judging[scorer.name])
            except EngineFailed as error:
                self._lose(scorer, error)

        await asyncio.gather(*(give(scorer) for scorer in self._judges.scorers if scorer.name in self.takers))

    # Scorers

    def _listen_to_all(self) -> None:
        if not self._pumps:
            for scorer in [*self._rules.scorers, *self._judges.scorers]:
                self._listen(scorer)

    def _listen(self, scorer: _Scorer) -> None:
        self._pumps[scorer] = asyncio.create_task(self._pump(scorer), name=f"verdicts of {scorer.name}")

    def _hand_out(self) -> None:
        for pool in (self._rules, self._judges):
            for scorer, share in pool.hand_out().items():
                task = asyncio.create_task(self._send(scorer, share), name=f"answers to {scorer.name}")
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _send(self, scorer: _Scorer, share: Sequence[ResponseToScore]) -> None:
        try:
            await scorer.service.score(share)
        except EngineFailed as error:
            self._lose(scorer, error)
        except Exception as error:  # noqa: BLE001 a task's boundary: `collect` raises it
            self._fail(error)

    async def _pump(self, scorer: _Scorer) -> None:
        try:
            while True:
                verdicts = await scorer.service.collect()
                for verdict in verdicts:
                    scorer.open.pop(verdict.request, None)
                self._verdicts.put(replace(verdict, scorer=scorer.name) for verdict in verdicts)
                self._hand_out()
        except EngineFailed as error:
            self._lose(scorer, error)
        except Exception as error:  # noqa: BLE001 likewise
            self._fail(error)

    def _lose(self, scorer: _Scorer, error: EngineFailed) -> None:
        if scorer in self._rules.scorers:
            self._fail(error)
        if scorer not in self._judges.scorers:
            return  # its pump and a call to it may both notice
        self._judges.scorers.remove(scorer)
        self._judges.waiting.extendleft(reversed(scorer.open.values()))
        what_follows = self._restarts.vacate(scorer.name)
        if self._require_judge(scorer.name, error):
            self._note(f"{error.problem} The answers that it had go to other judges, or wait. {what_follows}")
            self._hand_out()

    async def _bring(self, slot: EngineId, name: EngineId) -> None:
        assert self._replace_judge is not None
        self._judging[name] = await self._replace_judge(slot, name)

    def _join(self, name: EngineId) -> None:
        scorer = _Scorer(name=name, service=self._judging[name])
        self._judges.scorers.append(scorer)
        self._note(f"{name} has taken the place of {self._restarts.slot_of(name)}.")
        self._listen(scorer)
        self._hand_out()

    def _require_judge(self, last: EngineId, error: RollpackerError) -> bool:
        """End the run when nobody is there, or to come, to read answers; False then."""
        if self._judges.scorers or self._restarts.are_expected(self._restarts.slots):
            return True
        self._fail(
            EngineFailed(
                f"{error.problem} No judge is left that could go on.",
                error.allowed,
                f"Read why in {last}.log under run.dir; run.resume=auto continues from the checkpoint.",
            )
        )
        return False

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            self._verdicts.close()
