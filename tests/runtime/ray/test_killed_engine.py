"""What is left of an engine whose actor was killed, with a real Ray."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import ray
from ray.util.placement_group import placement_group

from rollpacker.config.compose import compose
from rollpacker.config.sections.resources import ActorResources
from rollpacker.core.ids import EngineId
from rollpacker.runtime.ray.actors import EngineActor
from rollpacker.runtime.ray.remote import EngineProcess, Slot, _RemoteEngine
from tests.e2e.processes import is_alive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollpacker.config.schema import RunConfig

psutil = pytest.importorskip("psutil")


CHILD = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()']); print(flush=True); input()"


class ActorWithProcesses(EngineActor):
    """Starts a process that starts another one, as vLLM's do; they do not look whether the actor is there."""

    async def start(self, _engine: EngineId, _config: RunConfig) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._child = subprocess.Popen([sys.executable, "-c", CHILD], **pipes)  # noqa: ASYNC220  # as vLLM does
        self._child.stdout.readline()


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        group = placement_group([{"CPU": 1}])
        ray.get(group.ready())
        yield Slot(group=group, index=0, resources=ActorResources(num_cpus=1), gpus=(), log=tmp_path / "engine.log")
    finally:
        ray.shutdown()


async def test_when_a_kill_returns_the_engine_and_the_processes_that_it_has_started_have_ended(slot: Slot) -> None:
    config = compose(["run.dir=r", "model.path=m", "data.path=d", "placement=none", "reward=math", "engine=vllm"])
    engine: Any = _RemoteEngine(EngineProcess, ActorWithProcesses, "engine-0", slot)
    await engine.start(EngineId("engine-0"), config)
    actor = psutil.Process(await engine._call("pid"))
    processes = [actor, *actor.children(recursive=True)]
    assert len(processes) == 3
    await engine.kill()
    assert [process for process in processes if is_alive(process.pid)] == []
