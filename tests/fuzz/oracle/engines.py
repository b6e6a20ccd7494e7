"""The reference model's engines: what runs where, what waits, and who is lent or is to retire."""

from __future__ import annotations

from collections.abc import Collection

from rollpacker.core.events import EngineJoined, EngineLost, EngineRetired, EnginesSwitched, ResponseEvicted
from rollpacker.core.ids import EngineId, PromptId, RequestId


class EngineModel:
    """The fleet and the requests in flight, as facts and commands say."""

    def __init__(self) -> None:
        self.loads: dict[EngineId, int] = {}
        """Requests on each engine of the fleet, in joining order."""
        self.holders: dict[RequestId, EngineId] = {}
        self.waiting: list[RequestId] = []
        """Requests in flight while no engine is free, in the order in which the next one gets them."""
        self.fallen: set[EngineId] = set()
        """Engines that requests were taken from: late facts of theirs may come."""
        self.gpus: dict[EngineId, tuple[int, ...]] = {}
        self.versions: dict[EngineId, int] = {}
        """What the engines of the fleet hold."""
        self.lent: set[EngineId] = set()
        self.leaving: set[tuple[EngineId, RequestId]] = set()
        """What an engine of the fleet was told to stop or evict, and has not given back."""
        self.retiring: set[EngineId] = set()
        self.arriving: set[EngineId] = set()
        """Larger engines that wait for the others of their set."""
        self.newcomers: set[EngineId] | None = None
        """Where an engine belongs that joins now, if it gets nothing yet."""

    def note(
        self, event: EngineJoined | EngineLost | EngineRetired | EnginesSwitched | ResponseEvicted
    ) -> list[RequestId]:
        """Note a change; gives what has to be launched again: it was evicted, or its engine left or restarted."""
        if isinstance(event, ResponseEvicted):
            self.release(event.request)
            return [event.request]
        if isinstance(event, EnginesSwitched):
            self.arriving.clear()
            self.newcomers = None
            return []
        if isinstance(event, EngineRetired):
            assert event.engine in self.retiring, "an engine retired that nobody had told to"
        orphans = self.remove(event.engine)
        if isinstance(event, EngineJoined):
            self.loads[event.engine] = 0
            self.gpus[event.engine] = event.gpus
            self.versions[event.engine] = event.policy_version
            if self.newcomers is not None:
                self.newcomers.add(event.engine)
        return orphans

    def remove(self, engine: EngineId) -> list[RequestId]:
        if engine not in self.loads:
            return []
        del self.loads[engine], self.versions[engine]
        self.leaving = {(holder, request) for holder, request in self.leaving if holder != engine}
        self.fallen.add(engine)
        self.retiring.discard(engine)
        self.arriving.discard(engine)
        orphans = [request for request, holder in self.holders.items() if holder == engine]
        for request in orphans:
            del self.holders[request]
        return orphans

    def release(self, request: RequestId) -> None:
        self.loads[self.holders.pop(request)] -= 1

    def free(self) -> list[EngineId]:
        return [engine for engine in self.loads if engine not in self.lent | self.retiring | self.arriving]

    def launch(self, request: RequestId, engine: EngineId) -> None:
        """Check that a launch goes to the right engine, and note it."""
        assert engine not in self.lent, "a lent engine was launched on"
        assert engine == min(self.free(), key=self.loads.__getitem__), "not the least loaded engine"
        assert request not in self.holders, "a request is in flight twice"
        self.loads[engine] += 1
        self.holders[request] = engine

    def forget_waiting(self, prompts: Collection[PromptId]) -> None:
        self.waiting = [request for request in self.waiting if request.prompt not in prompts]

    def is_empty(self, engine: EngineId) -> bool:
        """Whether nothing runs on an engine or is on its way from there."""
        return not self.loads[engine] and engine not in {holder for holder, _ in self.leaving}

    def held_by(self, engine: EngineId) -> list[RequestId]:
        return [request for request, holder in self.holders.items() if holder == engine]
