"""The driver's client of the reward: a reward that makes no progress holds nothing else up.

    driver ── add, forget ──> this line ── score, forget: one call at a time ──> reward
    driver <── on_verdicts ── this line <──────────── collect ────────────────── reward

While a call stands, what comes meanwhile gathers here and goes out with the next one: no more than the responses of the
round, which its record holds anyhow. How many a process of the reward has in hand at once is the reward's business
(`reward.max_open`, `reward.judge.max_open`).

Those of an evaluation that fills a round stand behind: one is handed over only while the reward has no other, and few
at a time, so that a response that is to be trained waits for no more than these.

Invariant: responses are handed over in order and once; none is after it was forgotten. A reward that has some in hand
and gives no verdict until its deadline fails the run, which names the one that it has had longest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from rollpacker.core.ids import is_held_out
from rollpacker.runtime.rollout.aside import Aside

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollpacker.core.ids import Domain, RequestId
    from rollpacker.protocols.reward import ResponseToScore, RewardService
    from rollpacker.protocols.rollout import Verdict
    from rollpacker.runtime.waiting.watchdog import Watchdog

_MOST_BEHIND = 16
"""Held-out responses beside a round that the reward has at a time: no more than a small pool of workers takes."""


class RewardClient:
    """Hands responses to the reward, and passes its verdicts on.

    Args:
        reward: Scores responses.
        check_of: The name of a domain's reward, for a person.
        watchdog: Reports a deadline that is over, by its clock.
        stall_s: How long the reward may be without a verdict while it has responses in hand.
        on_verdicts: Told of verdicts.
        on_error: Told of what ends the run.
    """

    def __init__(
        self,
        reward: RewardService,
        *,
        check_of: Callable[[Domain], str],
        watchdog: Watchdog,
        stall_s: float,
        on_verdicts: Callable[[Sequence[Verdict]], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._reward = reward
        self._check_of = check_of
        self._watchdog = watchdog
        self._stall_s = stall_s
        self._on_verdicts = on_verdicts
        self._aside = Aside(on_error=on_error)
        self._to_score: list[ResponseToScore] = []
        self._behind: deque[ResponseToScore] = deque()
        """Held out, in order; not open yet."""
        self._is_to_forget = False
        self._open: dict[RequestId, tuple[Domain, float]] = {}
        """Of each response without a verdict, the oldest first: its domain, and since when it has waited."""
        self._last_verdict_at_s = self._watchdog.time()
        self._is_paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_calling = False

    def start(self) -> None:
        """Listen to the reward."""
        self._aside.begin(self._listen(), "pump: verdicts")

    async def stop(self) -> None:
        """Leave the reward alone."""
        if self._timer is not None:
            self._timer.cancel()
        await self._aside.stop()

    def add(self, responses: Sequence[ResponseToScore], *, is_filling: bool = False) -> None:
        """Have responses scored, held-out ones behind the others if their evaluation fills a round."""
        self._hand_over([each for each in responses if not (is_filling and is_held_out(each.request))])
        self._behind.extend(each for each in responses if is_filling and is_held_out(each.request))
        self._let_held_out_follow()

    def _let_held_out_follow(self) -> None:
        """Take what stands behind, as far as nothing that may be trained is open."""
        num_free = _MOST_BEHIND - len(self._open)
        if self._behind and num_free > 0 and all(map(is_held_out, self._open)):
            self._hand_over([self._behind.popleft() for _ in range(min(num_free, len(self._behind)))])

    def _hand_over(self, responses: Sequence[ResponseToScore]) -> None:
        if not responses:
            return
        now = self._watchdog.time()
        for response in responses:
            self._open[response.request] = response.prompt.domain, now
        self._to_score += responses
        self._call()
        self._set_deadline()

    def pause(self) -> None:
        """Allow the reward any time: its judges sleep."""
        self._is_paused = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def resume(self) -> None:
        """Expect verdicts again."""
        self._is_paused, self._last_verdict_at_s = False, self._watchdog.time()
        self._set_deadline()

    def _set_deadline(self) -> None:
        if self._open and self._timer is None and not self._is_paused:
            self._timer = self._watchdog.call_at(self._watchdog.time() + self._stall_s, self._check_deadline)

    def forget(self) -> None:
        """Drop what has no verdict: it is not needed any more."""
        self._behind.clear()
        if self._open:
            self._open.clear()
            self._to_score.clear()
            self._is_to_forget = True
            self._call()

    @property
    def is_busy(self) -> bool:
        """True while it has responses without a verdict."""
        return bool(self._open or self._behind)

    def describe_wait(self) -> list[str]:
        """What the reward has in hand, in words; nothing if that is nothing."""
        if not self._open:
            return []
        request, (domain, since) = next(iter(self._open.items()))
        what = f"the verdict of the reward ({self._check_of(domain)}) on sample {request.sample} of prompt"
        since_when = f"which it has had for {self._watchdog.time() - since:.4g} s"
        others = f", and on {len(self._open) - 1} more" if len(self._open) > 1 else ""
        return [f"{what} {request.prompt.key!r}, {since_when}{others}"]

    def _call(self) -> None:
        if not self._is_calling:
            self._is_calling = True
            self._aside.begin(self._give_orders(), "orders to the reward")

    async def _give_orders(self) -> None:
        """Give the reward one order after the other, until there is none."""
        while self._is_to_forget or self._to_score:
            if self._is_to_forget:  # what is to be scored came later
                self._is_to_forget = False
                await self._reward.forget()
            else:
                to_score, self._to_score = self._to_score, []
                await self._reward.score(to_score)
        self._is_calling = False

    async def _listen(self) -> None:
        while True:
            verdicts = await self._reward.collect()
            self._last_verdict_at_s = self._watchdog.time()
            for verdict in verdicts:
                self._open.pop(verdict.request, None)
            self._on_verdicts(verdicts)
            self._let_held_out_follow()

    def _check_deadline(self) -> None:
        """Give the reward up if it has stood still for too long."""
        self._timer = None
        if not self._open:
            return
        _, since = next(iter(self._open.values()))
        due_s = max(since, self._last_verdict_at_s) + self._stall_s
        if self._watchdog.time() < due_s:
            self._timer = self._watchdog.call_at(due_s, self._check_deadline)
        else:
            failing = self._watchdog.give_up(self._stall_s, " and ".join(self.describe_wait()))
            self._aside.begin(failing, "deadline of the reward")
