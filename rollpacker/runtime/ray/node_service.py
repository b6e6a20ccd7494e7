"""The service of every rank but the first: its node is part of the run's Ray until rank 0 no longer needs it.

    wait for the head -> start Ray here and join -> serve

It ends without an error when rank 0 reports `done`, and with the reason when the head no longer answers. When Ray here
has ended it reports that and stays: rank 0 decides whether the run goes on without this node. An error of the shared
folder ends nothing: it is read again, until the head falls silent. Slurm's signals are ignored here: rank 0 handles
them.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress

from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import RollpackerError, StorageFailed, WorldError
from rollpacker.runtime.job.allocation import Allocation
from rollpacker.runtime.job.signals import ALL_SIGNALS, handlers_kept
from rollpacker.runtime.ray.node import RayNode, log_tail, node_here
from rollpacker.runtime.ray.node_address import is_listening
from rollpacker.runtime.ray.rendezvous import NodeReport, Rendezvous

_POLL_S = 0.2
_HEAD_SILENCE_S = 10.0
"""Without the head for so long, rank 0 is assumed dead. Its last message, `done`, may arrive late over the network."""


def serve_node(config: RunConfig, allocation: Allocation, rendezvous: Rendezvous) -> None:
    """Serve until rank 0 is done.

    Raises:
        RollpackerError: Why this node could not join, or can serve no longer.
    """
    service = _Service(config, allocation, rendezvous)
    with handlers_kept():
        for number in ALL_SIGNALS:
            signal.signal(number, lambda _number, _frame: None)
        try:
            service.run()
        except RollpackerError as error:
            with suppress(StorageFailed):
                service.report("ended", failure=error.problem)
            raise


class _Service:
    """The stages of one rank."""

    def __init__(self, config: RunConfig, allocation: Allocation, rendezvous: Rendezvous) -> None:
        self._config = config
        self._allocation = allocation
        self._rendezvous = rendezvous
        self._head_name = allocation.node_names[0]

    def run(self) -> None:
        self.report(f"waiting for {self._head_name}")
        head_address = self._wait_for_head()
        if head_address is None:
            return
        log = self._rendezvous.log_of(self._allocation.name)
        node = node_here(self._config, self._allocation, log)
        try:
            self.report("starting Ray")
            node.join(head_address, self._rendezvous.token_file)
            self._serve(node, head_address)
        finally:
            node.stop()

    def report(self, stage: str, failure: str = "") -> None:
        report = NodeReport(node=self._allocation.name, stage=stage, failure=failure)
        self._rendezvous.report(self._allocation.rank, report)

    def _wait_for_head(self) -> str | None:
        """Return the head's address; None when rank 0 ended before it had one."""
        start_s = self._config.backend.deadlines.start_s
        deadline = time.monotonic() + start_s
        while not self._is_finished():
            with suppress(OSError):
                if address := self._rendezvous.head_address():
                    return address
            if time.monotonic() > deadline:
                raise WorldError(
                    f"Ray's head did not appear on {self._head_name} within {start_s:g} s.",
                    f"{self._allocation.name} waited for it in {self._rendezvous.folder}.",
                    f"Look for the output of rank 0; does {self._head_name} see the same folder?",
                )
            time.sleep(_POLL_S)
        return None

    def _serve(self, node: RayNode, head_address: str) -> None:
        last_answer = time.monotonic()
        is_lost = False
        while not self._is_finished():
            if not (is_lost or node.is_running):
                is_lost = True
                failure = f"Ray has ended on {node.offer.name}."
                sys.stderr.write(f"{failure}\n{log_tail(node.log)}\n")
                with suppress(StorageFailed):  # Ray's head misses this node, too
                    self.report("ended", failure=failure)
            if is_listening(head_address):
                last_answer = time.monotonic()
            elif time.monotonic() - last_answer > _HEAD_SILENCE_S:
                raise WorldError(
                    f"Nobody has answered at {head_address} on {self._head_name} for {_HEAD_SILENCE_S:g} s.",
                    f"{node.offer.name} serves the run of rank 0, which is there.",
                    "Start the run again with run.resume=auto.",
                )
            time.sleep(_POLL_S)

    def _is_finished(self) -> bool:
        """Whether rank 0 is known to be done."""
        try:
            return self._rendezvous.is_finished
        except OSError:
            return False
