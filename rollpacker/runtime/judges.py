"""One reward service of several actors: rules go to the reward, and what a judge reads to a judge that has room.

    driver ── score ──> RoutedReward ──┬── reward         answers that rules check, all at once
                                       ├── judge-0 ─┐     at most `max_open` answers each; the others wait here,
                                       └── judge-1 ─┘     for the judge that has room first

No actor calls another one. A judge is handed no more than `max_open` answers, so that its queue is short, the next
answer goes where it is read soonest, and little has to be read again when a judge is lost: its answers go to the other
judges, in the order in which they came. Without any judge left the run ends, as it does without its reward; it is
`run.resume=auto` that brings fresh ones.

Invariant: every response is with one actor, or waits here; its verdict is handed out once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rollpacker.core.errors import EngineFailed
from rollpacker.protocols.arrivals import Arrivals

if TYPE_CHECKING:
    from rollpacker.config.sections.reward import RewardSection
    from rollpacker.core.ids import RequestId
    from rollpacker.protocols.reward import ResponseToScore, RewardService
    from rollpacker.protocols.rollout import Verdict


@dataclass(slots=True, kw_only=True, eq=False)
class _Judge:
    name: str
    service: RewardService
    open: dict[RequestId, ResponseToScore] = field(default_factory=dict)
    """What it has been handed, in this order."""


class RoutedReward:
    """Implements `rollpacker.protocols.reward.RewardService`; it owns the services.

    Args:
        section: Which domains a judge reads, and how many answers it may be handed.
        rules: Checks all others; None where a judge reads everything.
        judges: By name.
        note: Tells whoever follows the run.
    """

    def __init__(
        self,
        section: RewardSection,
        rules: RewardService | None,
        judges: Mapping[str, RewardService],
        note: Callable[[str], None],
    ) -> None:
        self._section = section
        self._rules = rules
        self._judges = [_Judge(name=name, service=service) for name, service in judges.items()]
        """Those that are alive."""
        self._services = [*judges.values(), *([rules] if rules else [])]
        self._note = note
        self._waiting: deque[ResponseToScore] = deque()
        self._verdicts: Arrivals[Verdict] = Arrivals()
        self._failure: Exception | None = None
        self._pumps: list[asyncio.Task[None]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def score(self, responses: Sequence[ResponseToScore]) -> None:
        self._listen()
        checked = [response for response in responses if self._section.name_of(response.prompt.domain) != "judge"]
        self._waiting.extend(
            response for response in responses if self._section.name_of(response.prompt.domain) == "judge"
        )
        self._hand_out()
        if checked:
            assert self._rules is not None
            await self._rules.score(checked)

    async def forget(self) -> None:
        self._waiting.clear()
        for judge in self._judges:
            judge.open.clear()
        forgetting = asyncio.gather(*(judge.service.forget() for judge in self._judges), return_exceptions=True)
        if self._rules is not None:
            await self._rules.forget()
        await forgetting  # a judge that is lost is noticed by whoever listens to it

    async def collect(self) -> Sequence[Verdict]:
        """Wait until at least one verdict is there, and take all that are.

        Raises:
            RollpackerError: The reward failed, or no judge is left.
        """
        self._listen()
        verdicts = await self._verdicts.collect()
        if not verdicts and self._failure is not None:
            raise self._failure
        return verdicts

    async def close(self) -> None:
        """Close every service, lost ones too; a pending `collect` returns."""
        for task in (*self._pumps, *self._sending):
            task.cancel()
        await asyncio.gather(*self._pumps, *self._sending, return_exceptions=True)
        await asyncio.gather(*(service.close() for service in self._services), return_exceptions=True)
        self._verdicts.close()

    def _listen(self) -> None:
        if not self._pumps:
            self._pumps = [asyncio.create_task(self._pump_judge(judge), name=judge.name) for judge in self._judges]
            if self._rules is not None:
                self._pumps.append(asyncio.create_task(self._pump_rules(self._rules), name="rules"))

    def _hand_out(self) -> None:
        """Give what waits to the judges that have room, one by one to the one with the least."""
        shares: dict[_Judge, list[ResponseToScore]] = {}
        while self._waiting and self._judges:
            judge = min(self._judges, key=lambda judge: len(judge.open))
            if len(judge.open) >= self._section.judge.max_open:
                break
            response = self._waiting.popleft()
            judge.open[response.request] = response
            shares.setdefault(judge, []).append(response)
        for judge, share in shares.items():
            task = asyncio.create_task(self._send(judge, share))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, judge: _Judge, share: Sequence[ResponseToScore]) -> None:
        try:
            await judge.service.score(share)
        except EngineFailed as error:
            self._lose(judge, error)
        except Exception as error:  # noqa: BLE001 a task's boundary: `collect` raises it
            self._fail(error)

    async def _pump_judge(self, judge: _Judge) -> None:
        try:
            while True:
                verdicts = await judge.service.collect()
                for verdict in verdicts:
                    judge.open.pop(verdict.request, None)
                self._verdicts.put(replace(verdict, scorer=judge.name) for verdict in verdicts)
                self._hand_out()
        except EngineFailed as error:
            self._lose(judge, error)
        except Exception as error:  # noqa: BLE001 likewise
            self._fail(error)

    async def _pump_rules(self, rules: RewardService) -> None:
        try:
            while True:
                self._verdicts.put(await rules.collect())
        except Exception as error:  # noqa: BLE001 likewise
            self._fail(error)

    def _lose(self, judge: _Judge, error: EngineFailed) -> None:
        if judge not in self._judges:
            return  # its pump and a call to it may both notice
        self._judges.remove(judge)
        self._waiting.extendleft(reversed(judge.open.values()))
        if not self._judges:
            self._fail(
                EngineFailed(
                    f"{error.problem} No judge is left that could go on.",
                    error.allowed,
                    f"Read why in {judge.name}.log under run.dir; run.resume=auto continues from the checkpoint.",
                )
            )
            return
        self._note(f"{error.problem} The answers that it read go to the other judges.")
        self._hand_out()

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            self._verdicts.close()
