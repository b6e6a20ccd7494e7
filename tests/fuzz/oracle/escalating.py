"""The reference model's tail escalation: when larger engines take over, and what it would save, token by token."""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction

from rollpacker.core.commands import BeginRound, Command, EscalateTail, RoundKind, SwitchEngines
from rollpacker.core.events import ProgressMeasured, RunningRequest
from rollpacker.core.ids import EngineId
from rollpacker.core.settings import ParallelismSettings
from tests.fuzz.oracle.engines import EngineModel
from tests.fuzz.oracle.round_time import pass_s, played_s


class EscalationModel:
    """The open round's measurements, and its change of engines."""

    def __init__(self, planner: ParallelismSettings | None, engines: EngineModel) -> None:
        self._planner = planner
        self._settings = planner.escalation if planner else None
        self.engines = engines
        self.degree = planner.initial if planner else 0
        """That the engines have."""
        self.is_timeless = False
        """All happens at once, so that a token takes what the costs say, and a change takes nothing."""
        self.is_measuring = self.is_emptying = self.is_changing = False
        self.has_measured = False
        """In the round."""
        self._is_watching = False
        self._lengths: dict[RoundKind, list[int]] = defaultdict(list)
        self._num_changes = 0
        self._due_at = Fraction(0)
        self._num_left = 0

    @property
    def is_under_way(self) -> bool:
        return self.is_emptying or self.is_changing

    @property
    def _largest(self) -> int:
        assert self._planner is not None
        return max(self._planner.degrees)

    def open(self, degree: int) -> None:
        self.degree, self.engines.newcomers = degree, None
        self.is_measuring = self.is_emptying = self.is_changing = self._is_watching = False

    def begin_round(self, begun: BeginRound) -> None:
        self._begun = begun
        self._num_left = begun.num_prompts_launched * begun.num_responses_launched
        self.is_measuring = self.has_measured = False
        if self._settings:
            self._due_at = self._settings.first_share * self._num_left
            self._is_watching = not begun.races and self.degree < self._largest

    def end_round(self) -> None:
        self.is_measuring = self._is_watching = False

    def is_due_after(self, num_tokens: int) -> bool:
        """Note a finish, and tell whether a measurement is due."""
        self._lengths[self._begun.kind].append(num_tokens)
        self._num_left -= 1
        return self.is_due()

    def is_due(self) -> bool:
        """Tell whether a measurement is due, and note that it is made."""
        is_due = self._is_watching and not self.is_measuring and 0 < self._num_left <= self._due_at
        if is_due and self._settings:
            self.is_measuring = self.has_measured = True
            self._due_at = self._settings.step_share * self._num_left
        return is_due

    def check_decision(self, event: ProgressMeasured, commands: tuple[Command, ...], *, is_lending: bool) -> None:
        """Engines change if that pays, and not while others are being lent."""
        orders = [command for command in commands if isinstance(command, EscalateTail)]
        if not self.is_measuring or is_lending:
            assert not orders, "engines change that nobody measured, or that are being lent"
            self._due_at = Fraction(self._num_left) if self.is_measuring else self._due_at
            self.is_measuring = False
            return
        self.is_measuring = False
        if self.is_timeless:
            assert bool(orders) == self._pays(event), "engines change that should not, or stay that should"
        if orders:
            assert orders == [EscalateTail(round=self._begun.round, tensor_parallel=self._largest)]
            self._is_watching, self.is_emptying = False, True
            self.engines.retiring = set(self.engines.loads)
            self.engines.fallen |= self.engines.retiring
            self.engines.newcomers = self.engines.retiring

    def _pays(self, event: ProgressMeasured) -> bool:
        assert self._planner is not None
        assert self._settings is not None
        usable = self.engines.free()
        rows = {row.engine: row for row in event.engines}
        if not usable or not set(usable) <= set(rows):
            return False
        running = [
            request
            for engine in usable
            for request in rows[engine].running
            if self.engines.holders.get(request.request) == engine
        ]
        num_larger = self._num_larger(usable)
        if not running or not num_larger:
            return False
        costs = {each.degree: each for each in self._planner.costs}
        here, there = costs[self.degree], costs[self._largest]
        batches = -(-len(running) // len(usable)), -(-len(running) // num_larger)
        if pass_s(there, batches[1]) >= pass_s(here, batches[0]):
            return False
        rests = self._rests(running)
        saved_s = played_s(here, rests, len(usable))[0] - sum(played_s(there, rests, num_larger))
        return saved_s > (0.0 if self._num_changes else self._settings.first_cost_s)

    def _num_larger(self, usable: list[EngineId]) -> int:
        assert self._settings is not None
        gpus = [gpu for engine in usable for gpu in self.engines.gpus[engine]]
        return sum(all(gpu in gpus for gpu in each) for each in self._settings.gpus)

    def _rests(self, running: list[RunningRequest]) -> list[tuple[int, int]]:
        """Of each response what it has, prompt and all, and what it lacks."""
        assert self._settings is not None
        lately = self._lengths[self._begun.kind][-self._settings.num_recent_lengths :]
        rests = []
        for number, (_, prompt_tokens, had) in enumerate(sorted(running, key=lambda each: (each[2], each[0]))):
            longer = sorted(length for length in lately if length > had)
            end = (
                longer[math.floor(Fraction(number + 1, len(running) + 1) * len(longer))]
                if longer
                else max(self._settings.max_response_tokens, had + 1)
            )
            rests.append((prompt_tokens + had, end - had))
        return rests

    def check_switch(self, commands: tuple[Command, ...]) -> None:
        """Larger engines are to come as soon as all are empty."""
        expected = []
        if self.is_emptying and all(map(self.engines.is_empty, self.engines.loads)):
            expected = [SwitchEngines(round=self._begun.round, tensor_parallel=self._largest)]
            self.is_emptying, self.is_changing, self.degree = False, True, self._largest
            self.engines.newcomers = self.engines.arriving
        assert [command for command in commands if isinstance(command, SwitchEngines)] == expected, (
            "engines change too early or too late"
        )

    def end(self) -> None:
        """The larger engines are there."""
        assert self.is_changing, "engines were changed that nobody had told to"
        self.is_changing = False
        self._num_changes += 1
