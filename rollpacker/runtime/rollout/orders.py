"""Orders to engines: one line per engine, what is in flight there, and by which rules it drafts.

Commands that one batch of facts led to are sent together, in the order in which they were given. An engine that takes
its time to accept them holds no other up: what comes meanwhile gathers in its line. One that does not accept them in
time is lost, and its requests go elsewhere.

Invariant: a request is in flight from the call that launches it until its engine has given it back or is lost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rollpacker.core.commands import Abort, DraftRule, Evict, Launch
from rollpacker.core.ids import EngineId, RequestId
from rollpacker.protocols.rollout import GenerationRequest
from rollpacker.protocols.tasks import end_tasks
from rollpacker.runtime.rollout.engines import Engines

EngineCommand = Launch | Abort | Evict


class EngineOrders:
    """Carries out `Launch`, `Abort`, `Evict` and `UseDraftLengths`.

    Args:
        engines: The engines in use.
        write: Writes the request of a launch, as it is sent.
        on_accepted: Told when an engine has accepted all its orders.
        on_error: Told of an error that is no engine's failure.
    """

    def __init__(
        self,
        engines: Engines,
        write: Callable[[Launch], GenerationRequest],
        *,
        on_accepted: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._engines = engines
        self._write = write
        self._on_accepted = on_accepted
        self._on_error = on_error
        self._to_send: dict[EngineId, list[EngineCommand]] = {}
        self._sending: dict[EngineId, asyncio.Task[None]] = {}
        self._in_flight: dict[RequestId, EngineId] = {}
        self._being_evicted: set[RequestId] = set()
        self._draft_rules: tuple[DraftRule, ...] = ()
        self._has_rules: set[EngineId] = set()
        """Engines that were given the rules of now."""

    def use_draft_lengths(self, rules: tuple[DraftRule, ...]) -> None:
        """Have each engine given these rules before its next launch, an engine that has yet to join too."""
        self._draft_rules = rules
        self._has_rules.clear()

    def add(self, command: EngineCommand) -> None:
        """Have a command sent with the next ones."""
        self._to_send.setdefault(command.engine, []).append(command)

    def send(self) -> None:
        """Send what has gathered, to each engine that has accepted what it was sent before."""
        for engine_id in self._to_send:
            if engine_id not in self._sending:
                self._sending[engine_id] = asyncio.create_task(self._drain(engine_id), name=f"orders to {engine_id}")

    async def stop(self) -> None:
        """Send nothing more."""
        await end_tasks(*self._sending.values())

    async def _drain(self, engine_id: EngineId) -> None:
        try:
            while commands := self._to_send.pop(engine_id, None):
                await self._send(engine_id, commands)
        except Exception as error:  # noqa: BLE001  (a task's boundary: the driver raises it again)
            self._on_error(error)
        finally:
            if self._sending.get(engine_id) is asyncio.current_task():
                del self._sending[engine_id]
            self._on_accepted()

    async def _send(self, engine_id: EngineId, commands: Sequence[EngineCommand]) -> None:
        engine = self._engines.find(engine_id)
        for kind, run in itertools.groupby(commands, key=type):
            if kind is Launch:
                if self._draft_rules and engine_id not in self._has_rules:
                    self._has_rules.add(engine_id)
                    give = partial(engine.use_draft_lengths, self._draft_rules)
                    if not await self._engines.guarded(engine_id, "to take its draft lengths", give):
                        return
                to_generate = [self._launch(command) for command in run if isinstance(command, Launch)]
                order = partial(engine.generate, to_generate)
            else:
                requests = [command.request for command in run]
                order = partial(engine.abort, requests)
                if kind is Evict:
                    self._being_evicted.update(requests)
            if not await self._engines.guarded(engine_id, "to take its orders", order):
                return

    def _launch(self, command: Launch) -> GenerationRequest:
        self._in_flight[command.request] = command.engine
        return self._write(command)

    # What is in flight

    def are_owed(self, *, responses: bool) -> bool:
        """True until every engine has accepted its orders and, if asked for, given back its requests."""
        return bool(self._to_send or self._sending or (responses and self._in_flight))

    def came_back(self, request: RequestId, engine: EngineId) -> tuple[bool, bool]:
        """Note that an engine gave a request back.

        Returns:
            Whether the engine held it, else it was lost with its engine and runs elsewhere; and whether the engine had
            been told to evict it.
        """
        if self._in_flight.get(request) != engine:
            return False, False
        del self._in_flight[request]
        is_evicted = request in self._being_evicted
        self._being_evicted.discard(request)
        return True, is_evicted

    def forget(self, engine: EngineId) -> None:
        """Drop what a lost engine was to be sent, and what was in flight on it."""
        self._to_send.pop(engine, None)
        sending = self._sending.pop(engine, None)
        if sending is not None and sending is not asyncio.current_task():
            sending.cancel()
        lost = {request for request, holder in self._in_flight.items() if holder == engine}
        self._in_flight = {request: holder for request, holder in self._in_flight.items() if request not in lost}
        self._being_evicted -= lost

    def describe_wait(self, due: Mapping[RequestId, EngineId | None]) -> list[str]:
        """Say which engines owe responses, and which of these are due in an asynchronous run."""
        per_engine = Counter(self._in_flight.values())
        waits = [f"{count} responses of {engine_id}" for engine_id, count in sorted(per_engine.items())]
        if due:
            named = [f"{request} on {engine or 'no engine'}" for request, engine in itertools.islice(due.items(), 3)]
            waits.append(f"{len(due)} responses that are due in this step, such as {', '.join(named)}")
        return waits
