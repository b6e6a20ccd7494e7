"""Processes end with the engine that they serve: real ones, with the chain that vLLM starts, and without vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from rollpacker.engines.vllm import lifeline

if TYPE_CHECKING:
    from collections.abc import Iterator

psutil = pytest.importorskip("psutil")  # comes with vLLM

PATIENCE_S = 60.0

WORKER = "from rollpacker.engines.vllm import lifeline\nlifeline.hold_on(); print('holds', flush=True); input()"
CORE = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {WORKER!r}])\ninput()"
OWNER = (
    "import os, subprocess, sys\n"
    f"os.environ[{lifeline.OWNER_VARIABLE!r}] = str(os.getpid())\n"
    f"subprocess.run([sys.executable, '-c', {CORE!r}])"
)


@contextmanager
def chain() -> Iterator[tuple[Any, Any, Any]]:
    """An engine's process, vLLM's core and a worker, which all wait for input that never comes."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        owner = psutil.Process(process.pid)
        core, worker = owner.children(recursive=True)
        try:
            yield owner, core, worker
        finally:
            for each in (owner, core, worker):
                if each.is_running():
                    each.kill()


def test_when_the_engines_process_is_killed_vllms_processes_end() -> None:
    with chain() as (owner, core, worker):
        owner.kill()
        assert psutil.wait_procs([core, worker], timeout=PATIENCE_S)[1] == []


def test_when_vllms_core_is_killed_its_worker_ends() -> None:
    with chain() as (_, core, worker):
        core.kill()
        assert psutil.wait_procs([worker], timeout=lifeline.GRACE_S + PATIENCE_S)[1] == []
