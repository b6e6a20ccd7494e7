"""One reward service over several actors, each with a bounded number of answers.

    driver ── score ──> RoutedReward ──┬── reward         at most `reward.max_open` answers that rules check
                                       ├── judge-0 ─┐     at most `reward.judge.max_open` answers each; the others
                                       └── judge-1 ─┘     wait here, for the judge that has room first

No actor calls another one. The queue of a judge is short, so that the next answer goes to the judge that is free first,
and little has to be scored again when a judge is lost: its answers go to the other judges, or wait, in the order in
which they came, and a new judge replaces it (`judge_restarts.py`). One that has answers and gives no verdict for
`reward.judge.stall_s` is lost too. The run ends when the reward is lost, or when no judge is left or being restarted.

Judges that share GPUs with the trainer sleep while it works; a lost one is replaced when the trainer sleeps again.

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
from rollpacker.core.settings import RestartSettings
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.reward import RewardService
from rollpacker.protocols.tasks import end_tasks
from rollpacker.runtime.ray.judge_restarts import JudgeRestarts

if TYPE_CHECKING:
    from rollpacker.config.sections.reward import RewardSection
    from rollpacker.core.ids import RequestId
    from rollpacker.protocols.reward import ResponseToScore
    from rollpacker.protocols.rollout import Verdict


class JudgeService(RewardService, Protocol):
    """A judge in a process of its own."""

    async def sleep(self) -> None:
        """Free the GPU memory once the current batch is scored; answers that come meanwhile wait."""

    async def wake(self) -> None: ...


_MAX_LOOKS = 4
"""In the time that a judge may give no verdict. Looks are counted and not seconds: while the process is stopped, by
Ctrl-Z or Slurm, no verdict can arrive."""

ReplaceJudge = Callable[[EngineId, EngineId], Awaitable[JudgeService]]
"""Given a slot and the name of its new judge: ends the old one, and starts the new one within a deadline."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Scorer:
    name: EngineId
    service: RewardService
    open: dict[RequestId, ResponseToScore] = field(default_factory=dict)
    """The answers that it was given, in this order."""
    num_looks: int = 0
    """Looks since its last verdict, or since it was given answers."""


class _Pool:
    """Scorers that share a queue."""

    def __init__(self, scorers: Iterable[_Scorer], max_open: int) -> None:
        self.scorers = list(scorers)
        """Live ones."""
        self.waiting: deque[ResponseToScore] = deque()
        self._max_open = max_open

    def hand_out(self) -> dict[_Scorer, list[ResponseToScore]]:
        """Assign waiting answers one by one to the scorer with the fewest, while one has room."""
        shares: dict[_Scorer, list[ResponseToScore]] = {}
        while self.waiting and self.scorers:
            scorer = min(self.scorers, key=lambda scorer: len(scorer.open))
            if len(scorer.open) >= self._max_open:
                break
            response = self.waiting.popleft()
            if not scorer.open:
                scorer.num_looks = 0
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
        section: Which domains a judge scores, how many answers a scorer may have, and how often a judge is replaced.
        rules: Scores all others; None where judges score everything.
        judges: By name.
        note: Shows a message to the person who follows the run.
        replace_judge: Replaces a lost one; None where that cannot be done.
        colocated: Slots of judges that share GPUs with the trainer; they sleep.
    """

    def __init__(
        self,
        section: RewardSection,
        rules: RewardService | None,
        judges: Mapping[EngineId, JudgeService],
        note: Callable[[str], None],
        *,
        replace_judge: ReplaceJudge | None = None,
        colocated: Collection[EngineId] = (),
    ) -> None:
        self._section = section
        self._rules = _Pool(
            [] if rules is None else [_Scorer(name=EngineId("reward"), service=rules)], section.max_open
        )
        self._judges = _Pool(
            [_Scorer(name=name, service=service) for name, service in judges.items()], section.judge.max_open
        )
        self._judging = dict(judges)
        """Every judge there ever was, by name."""
        self._colocated = frozenset(colocated)
        self._is_asleep = bool(colocated)
        self._note = note
        self._replace_judge = replace_judge
        self._restarts = JudgeRestarts(
            judges,
            start=None if replace_judge is None else self._start_judge,
            settings=RestartSettings(
                max_restarts=section.judge.max_restarts, first_pause_s=section.judge.restart_pause_s
            ),
            withheld=self._colocated,
            note=note,
            on_ready=self._join,
            on_failed=self._require_judge,
            on_error=self._fail,
        )
        self._verdicts: Arrivals[Verdict] = Arrivals()
        self._pumps: dict[_Scorer, asyncio.Task[None]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    # Responses in, verdicts out

    async def score(self, responses: Sequence[ResponseToScore]) -> None:
        self._listen_to_all()
        for response in responses:
            is_judged = self._section.is_judged(response.prompt.domain)
            (self._judges if is_judged else self._rules).waiting.append(response)
        self._hand_out()

    async def forget(self) -> None:
        scorers = [*self._rules.scorers, *self._judges.scorers]
        self._rules.forget()
        self._judges.forget()
        # the loss of one is noticed by its pump
        await asyncio.gather(*(scorer.service.forget() for scorer in scorers), return_exceptions=True)

    async def collect(self) -> Sequence[Verdict]:
        """Wait until at least one verdict is there, and take all that are.

        Raises:
            RollpackerError: The reward failed, or no judge is left.
        """
        self._listen_to_all()
        return await self._verdicts.collect()

    async def close(self) -> None:
        """Close every service, lost ones too; a pending `collect` returns."""
        await self._restarts.stop()
        await end_tasks(*self._pumps.values(), *self._sending, self._watching)
        services = [*(scorer.service for scorer in self._rules.scorers), *self._judging.values()]
        await asyncio.gather(*(service.close() for service in services), return_exceptions=True)
        self._verdicts.close()

    # GPUs shared with the trainer

    @property
    def colocated(self) -> list[EngineId]:
        return [each.name for each in self._judges.scorers if self._restarts.slot_of(each.name) in self._colocated]

    async def sleep(self) -> None:
        """Free shared GPUs for the trainer."""
        if self._colocated and not self._is_asleep:
            self._is_asleep = True
            await self._restarts.withhold(self._colocated)
            await self._each_colocated(lambda judge: judge.sleep())

    async def wake(self) -> None:
        """Take them again."""
        if self._is_asleep:
            await self._each_colocated(lambda judge: judge.wake())
            self._is_asleep = False
            for scorer in self._judges.scorers:
                scorer.num_looks = 0
            await self._restarts.withhold(())

    async def _each_colocated(self, order: Callable[[JudgeService], Awaitable[None]]) -> None:
        async def give(scorer: _Scorer) -> None:
            try:
                await order(self._judging[scorer.name])
            except EngineFailed as error:
                self._lose(scorer, error)

        await asyncio.gather(*(give(scorer) for scorer in self._judges.scorers if scorer.name in self.colocated))

    # Scorers

    def _listen_to_all(self) -> None:
        if not self._pumps:
            for scorer in [*self._rules.scorers, *self._judges.scorers]:
                self._listen(scorer)
            if self._judges.scorers:
                self._watching = asyncio.create_task(self._watch(), name="judges that give no verdict")

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
                scorer.num_looks = 0
                for verdict in verdicts:
                    scorer.open.pop(verdict.request, None)
                self._verdicts.put(replace(verdict, scorer=scorer.name) for verdict in verdicts)
                self._hand_out()
        except EngineFailed as error:
            self._lose(scorer, error)
        except Exception as error:  # noqa: BLE001 the same
            self._fail(error)

    async def _watch(self) -> None:
        """Lose judges that have answers and give no verdict; those that sleep may."""
        stall_s = self._section.judge.stall_s
        while True:
            await asyncio.sleep(stall_s / _MAX_LOOKS)
            for scorer in list(self._judges.scorers):
                scorer.num_looks += 1
                is_asleep = self._is_asleep and self._restarts.slot_of(scorer.name) in self._colocated
                if scorer.open and scorer.num_looks > _MAX_LOOKS and not is_asleep:
                    self._lose(
                        scorer,
                        EngineFailed(
                            f"{scorer.name} has {len(scorer.open)} answers and gave no verdict for {stall_s:g} s.",
                            "The limit is reward.judge.stall_s.",
                        ),
                    )

    def _lose(self, scorer: _Scorer, error: EngineFailed) -> None:
        if scorer in self._rules.scorers:
            self._fail(error)
        if scorer not in self._judges.scorers:
            return  # its pump and a call may both notice
        self._judges.scorers.remove(scorer)
        if (pump := self._pumps.get(scorer)) not in (None, asyncio.current_task()):
            pump.cancel()  # a verdict that came late would be a second one
        self._judges.waiting.extendleft(reversed(scorer.open.values()))
        what_follows = self._restarts.vacate(scorer.name)
        if self._require_judge(scorer.name, error):
            self._note(f"{error.problem} The answers that it had go to other judges, or wait. {what_follows}")
            self._hand_out()

    async def _start_judge(self, slot: EngineId, name: EngineId) -> None:
        assert self._replace_judge is not None
        self._judging[name] = await self._replace_judge(slot, name)

    def _join(self, name: EngineId) -> None:
        scorer = _Scorer(name=name, service=self._judging[name])
        self._judges.scorers.append(scorer)
        self._note(f"{name} has taken the place of {self._restarts.slot_of(name)}.")
        self._listen(scorer)
        self._hand_out()

    def _require_judge(self, last: EngineId, error: RollpackerError) -> bool:
        """Check that a judge is left or being restarted; else end the run and return False."""
        if self._judges.scorers or self._restarts.are_expected:
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
        self._verdicts.fail(error)
