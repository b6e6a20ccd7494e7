"""The Ray cluster of one run, over one node or many: it starts and ends with the run, and no other run can join it.

Rank 0 starts the head on its node, announces it in the rendezvous, and waits for the nodes of the other ranks (see
`node_service.py`); outside Slurm there is one node. From then on a lost node ends the run: whatever it awaits is
cancelled, a `WorldError` names the node, and the job asks to be requeued: `attempts.py` bounds how often. Without Ray
on a node of engines alone the run goes on; if the node itself is down, Slurm ends the job some minutes later, and
requeues it. An actor that dies is handled by its user.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rollpacker.core.errors import EngineFailed, StorageFailed, WorldError
from rollpacker.protocols.blocking import in_daemon_thread
from rollpacker.runtime.job.allocation import current_allocation
from rollpacker.runtime.job.attempts import request_requeue
from rollpacker.runtime.job.signals import handlers_kept
from rollpacker.runtime.ray.node import RayNode, log_tail, pin_of
from rollpacker.runtime.ray.node_address import LOOPBACK, is_listening
from rollpacker.runtime.ray.rendezvous import NodeReport, Rendezvous

Answer = TypeVar("Answer")

_POLL_S = 0.05
_WATCH_S = 1.0
_ANSWER_S = 5.0
"""Ray's head lists its nodes, and a file system a folder, in milliseconds; after this time the watcher goes on without
the answer."""
_SHUTDOWN_S = 20.0
"""Ray takes a second to disconnect."""
_BLAME_S = 10.0
"""When an actor has died, how long we check whether its whole node has: longer than Ray takes to notice that."""


class RayCluster:
    """`async with RayCluster(...)`: inside, `ray` is connected to all nodes; afterwards nothing of it is left here."""

    def __init__(
        self,
        head: RayNode,
        *,
        node_names: Sequence[str],
        rendezvous: Rendezvous,
        start_deadline_s: float,
        stage: Callable[[str], None],
    ) -> None:
        """Prepare.

        Args:
            head: This node; index 0 of the names.
            node_names: Of all nodes, by rank.
            rendezvous: Open; it announces the head to the other ranks.
            start_deadline_s: From the start of the head until the last node has joined.
            stage: Gets what is waited for.
        """
        self._head = head
        self._node_names = node_names
        self.rendezvous = rendezvous
        self.address = ""
        """host:port of the head, once it listens."""
        self._start_deadline_s = start_deadline_s
        self._stage = stage
        self._watcher: asyncio.Task[None] | None = None
        self._listing = _Question(_nodes_of_ray)
        self._reading = _Question(lambda: self.rendezvous.reports_of(range(len(node_names))))
        self._loss: WorldError | None = None
        self._spare: frozenset[int] = frozenset()
        self._note: Callable[[str], None] = stage
        self.lost_nodes: frozenset[int] = frozenset()
        """Those that the run goes on without, by index."""

    def spare(self, nodes: Iterable[int], note: Callable[[str], None]) -> None:
        """Let the run go on without these nodes; `note` tells a person when one is lost."""
        self._spare, self._note = frozenset(nodes), note

    async def __aenter__(self) -> Self:
        self._deadline = time.monotonic() + self._start_deadline_s
        try:
            await self._start_head()
            await self._wait_for_nodes()
        except BaseException:
            await self._stop()
            raise
        self._body = asyncio.current_task()
        self._watcher = asyncio.create_task(self._watch(), name="watching Ray's nodes")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._watcher is not None
        self._watcher.cancel()
        try:
            if isinstance(error, EngineFailed) and len(self._node_names) > 1:
                until_s = time.monotonic() + _BLAME_S
                while self._loss is None and time.monotonic() < until_s:
                    self._loss = await self._find_loss()
                    await asyncio.sleep(_POLL_S)
        finally:
            await self._stop()
        if self._loss is None or not isinstance(error, asyncio.CancelledError | EngineFailed):
            return
        with suppress(StorageFailed):  # then somebody starts the run again
            request_requeue(current_allocation(os.environ))
        if isinstance(error, asyncio.CancelledError):
            assert self._body is not None
            self._body.uncancel()
            raise self._loss from None
        raise self._loss from error

    async def _start_head(self) -> None:
        name = self._node_names[0]
        self._stage(f"starting Ray on {name}")
        self.rendezvous.create_token()
        address = await in_daemon_thread(lambda: self._head.start_head(self.rendezvous.token_file))
        while not await in_daemon_thread(lambda: is_listening(address)):
            if not self._head.is_running or time.monotonic() > self._deadline:
                in_time = f"within {self._start_deadline_s:g} s" if self._head.is_running else "but has ended"
                raise WorldError(
                    f"Ray did not start on {name} {in_time}.",
                    await self._log_tails([0]),
                    f"Is there room in {self._head.folder.parent} and /dev/shm? Raise backend.deadlines.start_s.",
                )
            await asyncio.sleep(_POLL_S)
        self.address = address
        self.rendezvous.announce_head(address)
        with handlers_kept():  # `ray.init` replaces them
            await in_daemon_thread(lambda: self._connect(address))

    def _connect(self, address: str) -> None:
        import ray
        from ray._private import auto_init_hook, ray_constants

        # a call that comes after `ray.shutdown` fails, and does not join whatever other Ray is on this node
        auto_init_hook.enable_auto_connect = False
        # without this Ray replaces the loopback by this node's address in the network
        ray_constants.ENABLE_RAY_CLUSTER = not address.startswith(f"{LOOPBACK}:")
        # nor does it ask for another environment of actors, which no agent would make: under `uv run`, or by a hook
        ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
        _authenticate(self.rendezvous.token_file)
        while not ray.is_initialized():
            try:
                ray.init(address=address, logging_level="ERROR", log_to_driver=False, _skip_env_hook=True)
            except ConnectionError as error:  # Ray itself waits a minute or less, which may be too short
                if self._head.is_running and time.monotonic() < self._deadline:
                    time.sleep(_POLL_S)
                    continue
                raise WorldError(
                    f"Ray started but did not let this process in: {error}",
                    log_tail(self._head.log),
                    "Is the machine overloaded or out of memory? Start the run again with run.resume=auto.",
                ) from error

    async def _wait_for_nodes(self) -> None:
        last_stage = ""
        while missing := await self._missing_nodes():
            reports = await self._reports()
            if failed := _failed(reports):
                raise await self._did_not_join(failed, reports, "before it joined")
            if time.monotonic() > self._deadline:
                raise await self._did_not_join(missing, reports, f"within {self._start_deadline_s:g} s")
            stage = f"waiting for {self._with_stages(missing, reports)}"
            if stage != last_stage:
                self._stage(stage)
                last_stage = stage
            await asyncio.sleep(_POLL_S)

    async def _watch(self) -> None:
        while self._loss is None:
            await asyncio.sleep(_WATCH_S)
            self._loss = await self._find_loss()
        assert self._body is not None
        self._body.cancel()

    async def _find_loss(self) -> WorldError | None:
        """Check once that every node is still there."""
        if not self._head.is_running:
            return await self._lost([0])
        lost = set(_failed(await self._reports()))
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                lost.update(await self._missing_nodes())
        for node in sorted(lost & self._spare - self.lost_nodes):
            self._note(
                f"{self._node_names[node]} is lost: Ray there has ended. The run goes on without it, unless Slurm "
                "finds the node down and ends the job."
            )
        self.lost_nodes |= lost & self._spare
        return await self._lost(sorted(lost - self._spare)) if lost - self._spare else None

    async def _missing_nodes(self) -> list[int]:
        """Indices of the nodes that are not part of Ray."""
        nodes = await self._listing.answer()
        resources = {name for node in nodes if node["Alive"] for name in node["Resources"]}
        return [index for index in range(len(self._node_names)) if pin_of(index) not in resources]

    async def _reports(self) -> Mapping[int, NodeReport]:
        """The last reports of all ranks; none while the folder cannot be read: Ray is asked, too."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                return await self._reading.answer()
        return {}

    async def _did_not_join(self, nodes: Sequence[int], reports: Mapping[int, NodeReport], when: str) -> WorldError:
        return WorldError(
            f"{self._with_stages(nodes, reports)} did not join Ray {when}.",
            await self._log_tails(nodes),
            f"Every node must reach {self._node_names[0]} over the network (cluster.network_interface) and see "
            f"{self.rendezvous.folder}; backend.deadlines.start_s gives them more time.",
        )

    async def _lost(self, nodes: Sequence[int]) -> WorldError:
        names = " and ".join(self._node_names[index] for index in nodes)
        return WorldError(
            f"{names} is lost: Ray there has ended.",
            await self._log_tails(nodes),
            "The run's checkpoints are complete: unless Slurm requeues its job, start it again with run.resume=auto.",
        )

    def _with_stages(self, nodes: Sequence[int], reports: Mapping[int, NodeReport]) -> str:
        """Names of nodes, with the last report of each."""
        said = {index: f" ({report.failure or report.stage})" for index, report in reports.items()}
        return " and ".join(f"{self._node_names[index]}{said.get(index, '')}" for index in nodes)

    async def _log_tails(self, nodes: Sequence[int]) -> str:
        logs = [self._log_of(index) for index in nodes]
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                return "\n".join(await in_daemon_thread(lambda: [log_tail(log) for log in logs]))
        return f"{logs[-1].parent} does not answer: no log can be read."

    def _log_of(self, index: int) -> Path:
        return self._head.log if index == 0 else self.rendezvous.log_of(self._node_names[index])

    async def _stop(self) -> None:
        import ray

        self._listing.drop()
        self._reading.drop()
        if ray.is_initialized():  # a connection in progress ends with the cluster
            with suppress(TimeoutError):  # where a process of Ray hangs, it ends with the head
                async with asyncio.timeout(_SHUTDOWN_S):
                    await in_daemon_thread(ray.shutdown)
        _authenticate(None)
        with suppress(StorageFailed, TimeoutError):  # the other ranks end without it, by the head's silence
            async with asyncio.timeout(_ANSWER_S):
                await in_daemon_thread(self.rendezvous.finish)  # not before: Ray would report every node that leaves
        await in_daemon_thread(self._head.stop)


class _Question(Generic[Answer]):
    """What a thread asks, one at a time: the answer may take as long as what is asked hangs."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        self._ask = ask
        self._asking: asyncio.Future[Answer] | None = None

    async def answer(self) -> Answer:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(in_daemon_thread(self._ask))
        return await asyncio.shield(self._asking)

    def drop(self) -> None:
        """Stop waiting for the answer, or for its failure."""
        if self._asking is not None:
            self._asking.cancel()


def _nodes_of_ray() -> list[dict[str, Any]]:
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()
    return nodes


def _failed(reports: Mapping[int, NodeReport]) -> list[int]:
    """Indices of the other nodes whose rank has reported why it ended."""
    return [index for index, report in reports.items() if index and report.failure]


def _authenticate(token_file: Path | None) -> None:
    """Use a cluster's token in this process, or none.

    Ray caches these variables, and no public call reads them again (in Ray 2.60
    `ray._private.authentication_test_utils` does the same as this).
    """
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # its stub lacks both

    if token_file is None:
        os.environ.pop("RAY_AUTH_MODE", None)
        os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
    else:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token_file)
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
