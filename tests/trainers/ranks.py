"""Processes that are the ranks of one trainer after another: started once, they run function after function together.

A function is sent by name, so it lives in a module that the ranks can import, not in a test file. Every wait has a
deadline; after a failure the processes are replaced, for a rank that failed leaves the others' group in disorder.

All are forked from one process that has imported what they need. It ends with the process of the tests: it waits for
the end of a pipe of theirs. A process of tests has one such server; what the first to ask preloads is what it has, and
ranks import the rest themselves.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
import traceback
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollpacker.runtime.ray.node_address import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess

COLLECTIVE_TIMEOUT_S = 120
RUN_TIMEOUT_S = 240
"""Of one function, with the first one's imports on a busy machine."""

EXIT_TIMEOUT_S = 10
"""Of a process that closed its pipe."""

_CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)
"""Exit codes of ranks whose function is run once more: every few hundred runs gloo's thread of torch 2.13 finds that a
piece of memory was freed twice ("double free or corruption", in `allgather_coalesced`). A crash of ours comes again."""

_PRELOADS = ("tests.trainers.fsdp_scenarios", "transformers.models.qwen2.modeling_qwen2")


@dataclass(frozen=True, kw_only=True)
class _Failure:
    traceback: str
    exitcode: int | None = None
    """Of a process that died."""


class Ranks:
    """Starts the processes when the first function is run."""

    def __init__(self, num_ranks: int, preloads: Sequence[str] = ()) -> None:
        """`preloads` are modules that the ranks will need beside those of an FSDP2 trainer."""
        self._num_ranks = num_ranks
        self._preloads = [*_PRELOADS, *preloads]
        self._processes: list[ForkServerProcess] = []
        self._connections: list[Connection] = []

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call it in every process with the same arguments; returns the ranks' answers in their order.

        Of a crash in torch's own code it is called once more, by processes that replace these.
        """
        answers = self._ask(function, arguments)
        if any(isinstance(answer, _Failure) and answer.exitcode in _CRASHES for answer in answers):
            warnings.warn("A rank crashed in torch; its function is run once more", stacklevel=2)
            self.close()
            answers = self._ask(function, arguments)
        failures = [
            f"Rank {rank}: {answer.traceback}" for rank, answer in enumerate(answers) if isinstance(answer, _Failure)
        ]
        if failures:
            self.close()
            raise AssertionError("\n".join(failures))
        return answers

    def _ask(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
        if not self._processes:
            self._start()
        for connection in self._connections:
            connection.send((function, arguments))
        deadline_s = time.monotonic() + RUN_TIMEOUT_S
        answers: list[Any] = []
        for process, connection in zip(self._processes, self._connections, strict=True):
            is_answered = connection.poll(max(0.0, deadline_s - time.monotonic()))
            try:
                answers.append(connection.recv() if is_answered else _Failure(traceback="No answer in time"))
            except (EOFError, ConnectionResetError):
                process.join(EXIT_TIMEOUT_S)
                answers.append(_Failure(traceback=f"The process died: {process.exitcode}", exitcode=process.exitcode))
        return answers

    def close(self) -> None:
        """End the processes."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._connections = [], []

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(self._preloads)
        rendezvous = f"{LOOPBACK}:{free_port(LOOPBACK)}"
        for rank in range(self._num_ranks):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self._num_ranks, rendezvous, there), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._connections.append(here)


def _serve(rank: int, num_ranks: int, rendezvous: str, connection: Connection) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from rollpacker.protocols.trainer import TrainerRank
    from rollpacker.trainers.process_group import join

    torch.set_num_threads(1)
    gc.freeze()  # what was imported is no garbage, and takes half a second to visit
    join(TrainerRank(rank=rank, num_ranks=num_ranks, rendezvous=rendezvous), timeout_s=COLLECTIVE_TIMEOUT_S)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = function(*arguments)
        except Exception:  # noqa: BLE001  # a process boundary: the parent raises it
            answer = _Failure(traceback=traceback.format_exc())
        _leave_groups()
        connection.send(answer)


def _leave_groups() -> None:
    """Destroy every group but that of all ranks: each has threads that poll, and a trainer makes dozens of groups."""
    import torch.distributed as dist

    gc.collect()
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)
    gc.collect()
