"""The reference model's stream scaling: when engines are lent, and which, from all subsets of engines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from rollpacker.core.commands import BeginRound, Command, EscalateTail, Evict, LendEngines, StreamGroups
from rollpacker.core.events import EngineJoined, EngineLost, Event, ProgressMeasured, RunningRequest
from rollpacker.core.ids import EngineId
from rollpacker.core.settings import StreamSettings
from tests.fuzz.oracle.engines import EngineModel


class StreamModel:
    """The open round's measurements and lendings."""

    def __init__(self, settings: StreamSettings | None, engines: EngineModel) -> None:
        self._settings = settings
        self.engines = engines
        self.lengths: list[int] = []
        """Tokens of all responses that finished."""
        self.begin_round()

    def begin_round(self) -> None:
        self.is_measuring = False
        self.last_tested = Fraction(0)
        self._has_lent = False
        self._to_empty: list[EngineId] = []
        """Lent engines from which requests have yet to come back."""

    @property
    def is_lending(self) -> bool:
        """True while lent engines are waited for."""
        return bool(self._to_empty)

    def is_due(self, num_finished: int, num_launched: int) -> bool:
        """Tell whether a measurement is due: at each point of the grid that the share of finishes reaches."""
        stream = self._settings
        if stream is None:
            return False
        share = Fraction(num_finished, num_launched)
        points = [
            stream.first_share + number * stream.every_share for number in range(math.ceil(1 / stream.every_share))
        ]
        is_at_point = share <= stream.last_share and any(self.last_tested < point <= share for point in points)
        is_at_point = is_at_point and not self.is_measuring and not self._has_lent
        is_due = is_at_point and self._can_lend(stream)  # a point at which nobody can be lent is passed over
        if is_at_point:
            self.last_tested = share
        self.is_measuring = self.is_measuring or is_due
        return is_due

    def _can_lend(self, stream: StreamSettings) -> bool:
        """Try every subset of at most half of the engines."""
        with_gpus = [engine for engine in self.engines.loads if self.engines.gpus[engine]]
        subsets = (combinations(with_gpus, size) for size in range(1, len(self.engines.loads) // 2 + 1))
        return any(self._is_whole(subset, stream) for each in subsets for subset in each)

    def check_lending(self, event: ProgressMeasured, commands: tuple[Command, ...]) -> None:
        """Engines are lent if any can be and memory suffices, and as few tokens move as can be."""
        choices = self._choices(event, self._settings) if self._settings and self.is_measuring else []
        self.is_measuring = False
        lendings = [command for command in commands if isinstance(command, LendEngines)]
        assert len(lendings) == bool(choices), "engines were lent that cannot be, or none that could"
        for lending in lendings:
            assert lending.engines in choices, "more tokens move than have to"

    def _choices(self, event: ProgressMeasured, stream: StreamSettings) -> list[tuple[EngineId, ...]]:
        """Try every subset of at most half of the engines; list the best ones that memory allows."""
        fleet = list(self.engines.loads)
        rows = {row.engine: row for row in event.engines if row.engine in self.engines.loads}
        if len(rows) < len(fleet):
            return []
        running = {
            engine: [request for request in row.running if self.engines.holders.get(request.request) == engine]
            for engine, row in rows.items()
        }
        with_gpus = [engine for engine in fleet if self.engines.gpus[engine]]
        for size in range(min(len(fleet) // 2, len(with_gpus)), 0, -1):
            subsets = [subset for subset in combinations(with_gpus, size) if self._is_whole(subset, stream)]
            if not subsets:
                continue
            costs = [sum(sum(request[1:]) for engine in subset for request in running[engine]) for subset in subsets]
            demand = sum(self._expected_tokens(request, stream) for each in running.values() for request in each)
            return [
                subset
                for subset, cost in zip(subsets, costs, strict=True)
                if cost == min(costs)
                and (
                    not stream.must_fit
                    or demand <= sum(rows[engine].kv_tokens_capacity for engine in fleet if engine not in subset)
                )
            ]
        return []

    def _is_whole(self, engines: Sequence[EngineId], stream: StreamSettings) -> bool:
        """Whether the engines' GPUs are a union of replicas, and no other engine is on them."""
        gpus = {gpu for engine in engines for gpu in self.engines.gpus[engine]}
        inside = {gpu for replica in stream.replicas if gpus.issuperset(replica) for gpu in replica}
        is_shared = any(
            gpus.intersection(self.engines.gpus[engine]) for engine in self.engines.loads if engine not in engines
        )
        return gpus == inside and not is_shared

    def _expected_tokens(self, request: RunningRequest, stream: StreamSettings) -> int:
        recent = self.lengths[-stream.num_recent_lengths :]
        longer = [length for length in recent if length > request.num_generated_tokens]
        expected = math.ceil(Fraction(sum(longer), len(longer))) if longer else stream.max_response_tokens
        return request.num_prompt_tokens + expected

    def lend(self, command: LendEngines) -> None:
        assert not self.engines.lent & set(self.engines.loads), "engines were lent twice"
        assert 0 < len(command.engines) <= len(self.engines.loads) // 2
        assert not self._has_lent, "a round lent engines twice"
        self._has_lent = True
        self._to_empty = list(command.engines)
        self.engines.lent.update(command.engines)
        self.engines.fallen.update(command.engines)

    def check_groups(self, round_number: int | None, commands: tuple[Command, ...]) -> None:
        """Groups stream from a round's beginning to a trainer that shares no GPU, else once what is lent is empty.

        Args:
            round_number: Of the open round; None between rounds.
            commands: Of the last event.
        """
        is_free = self._settings is not None and not self._settings.replicas
        expected = [StreamGroups(round=command.round) for command in commands if isinstance(command, BeginRound)]
        if not is_free:
            expected = []
        if round_number is None:
            self._to_empty = []
        self._to_empty = [engine for engine in self._to_empty if engine in self.engines.loads]
        if self._to_empty and all(map(self.engines.is_empty, self._to_empty)):
            num_gpus = len([gpu for engine in self._to_empty for gpu in self.engines.gpus[engine]])
            expected.append(
                StreamGroups(round=round_number or 0, engines=tuple(self._to_empty), groups_per_call=num_gpus)
            )
            self._to_empty = []
        assert [command for command in commands if isinstance(command, StreamGroups)] == expected, (
            "groups stream too early, too late, or elsewhere"
        )

    def give_back(self, event: Event) -> None:
        """Wait no more for a lent engine that is lost, or has started again; what shares replicas with it serves."""
        if not isinstance(event, EngineJoined | EngineLost) or event.engine not in self._to_empty:
            return
        assert self._settings is not None
        engine = event.engine
        of_sizes = (combinations(self._to_empty, size) for size in range(1, len(self._to_empty) + 1))
        subsets = (subset for each in of_sizes for subset in each if engine in subset)
        block = next(set(subset) for subset in subsets if self._is_whole(subset, self._settings))
        self._to_empty = [each for each in self._to_empty if each not in block]
        self.engines.lent -= block - {engine}

    def check_evictions(self, commands: tuple[Command, ...]) -> None:
        """What runs on an engine is told to leave as it is lent, or as all engines change."""
        lent = {engine for command in commands if isinstance(command, LendEngines) for engine in command.engines}
        if any(isinstance(command, EscalateTail) for command in commands):
            lent = set(self.engines.loads)
        leaving = [command.request for command in commands if isinstance(command, Evict)]
        assert leaving == [
            request
            for engine in sorted(lent, key=list(self.engines.loads).index)
            for request in self.engines.held_by(engine)
        ]
