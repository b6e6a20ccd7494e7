"""Ray gives its own parts a minute or less to start; a run gives them the deadline that its user set."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from rollpacker.core.errors import WorldError
from rollpacker.runtime.ray import start
from rollpacker.runtime.ray.cluster import RayCluster
from rollpacker.runtime.ray.node import NodeOffer, RayNode
from rollpacker.runtime.ray.node_address import free_port
from rollpacker.runtime.ray.private_folder import private_folder
from rollpacker.runtime.ray.rendezvous import Rendezvous

SLOW_RAY = {
    "__init__.py": "",
    "_raylet.py": "",
    "_private/services.py": """
asked, start_raylet, start_ray_process = [], None, None
def get_node(*arguments):
    asked.append(arguments)
    if len(asked) < 3:
        raise RuntimeError("no such node yet")
    return asked
""",
    "_private/parameter.py": """
class RayParams:
    def __init__(self, setup_worker_path=None):
        self.setup_worker_path = setup_worker_path
""",
    "scripts/scripts.py": """
import sys
from ray._private import services
from ray._private.parameter import RayParams
def main():
    assert sys.modules["grpc"] is None
    print(sys.argv, services.get_node("address", "id"), RayParams().setup_worker_path)
""",
}
"""Has its raylet when it is asked for the third time."""


def start_slow_ray(folder, grace_s):
    for name, content in SLOW_RAY.items():
        file = folder / "ray" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    command = [sys.executable, "-P", start.__file__, str(grace_s), folder / "workers", "start", "--block"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_ray_waits_for_its_raylet_as_long_as_it_is_told(tmp_path):
    done = start_slow_ray(tmp_path, 600)
    worker = Path(start.__file__).with_name("worker.py")
    assert done.stdout == f"['ray', 'start', '--block'] {[('address', 'id')] * 3} {worker}\n", done.stderr


def test_ray_waits_for_its_raylet_no_longer_than_it_is_told(tmp_path):
    assert "no such node yet" in start_slow_ray(tmp_path, 0).stderr


ASLEEP = """\
import pathlib, time
command = pathlib.Path("/proc/self/cmdline").read_text()
if "worker_server.py" in command:
    time.sleep(3600)
if "agent.py" in command or "agent/main.py" in command:
    raise SystemExit("no agent of Ray is started")
"""
"""As `sitecustomize`, which every Python but an idle agent imports first: no worker gets to its own imports."""


def test_what_a_run_is_made_of_is_imported_without_torch():
    """So its head has neither torch nor the models of transformers: its tokenizer is loaded without them."""
    program = "import sys, rollpacker.pipeline, rollpacker.runtime.ray.backend; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_ray_lets_its_run_in_without_agents_while_its_workers_still_import_and_leaves_it_its_signals(
    tmp_path, monkeypatch, capfd
):
    (tmp_path / "sitecustomize.py").write_text(ASLEEP)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    same = free_port("127.0.0.1")  # as when two ports drawn in one start coincide, by chance once in 13,000 starts
    monkeypatch.setattr("rollpacker.runtime.ray.node.free_port", lambda _: same)
    offer = NodeOffer(
        pin="node-0", name="here", address="127.0.0.1", num_cpus=1, num_gpus=0, memory_bytes=None, object_store_mb=80
    )
    head = RayNode(offer, grace_s=600, folder=private_folder(["/tmp"], {}), log=tmp_path / "ray.log")  # noqa: S108
    rendezvous = Rendezvous(tmp_path / "meeting")
    rendezvous.open(0, "here")
    heard = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.set)
    async with RayCluster(head, node_names=["here"], rendezvous=rendezvous, start_deadline_s=600, stage=lambda _: None):
        assert ray.is_initialized()
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(heard.wait(), 60)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    assert "SIGTERM received" not in capfd.readouterr().err, "Ray's own handler ran, too"
    with pytest.raises(ray.exceptions.RaySystemError, match="Ray has not been started yet"):
        ray.put("late")  # which would start another Ray, or join that of another job


class Head:
    """Listens at once; runs until it has been looked at so many times."""

    def __init__(self, tmp_path, num_looks):
        self.log = tmp_path / "ray.log"
        self.log.write_text("the end of its log\n")
        self.folder = tmp_path
        self._num_looks = num_looks

    def start_head(self, token_file):
        assert token_file.exists()
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def is_running(self):
        self._num_looks -= 1
        return self._num_looks >= 0

    def stop(self):
        self._server.close()

    async def listen(self):
        self._server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)


@pytest.fixture
def refusals(monkeypatch):
    """What `ray.init` raises, one after the other, before it lets this process in."""
    refused = []
    connected = []

    def init(**_):
        if refused:
            raise refused.pop(0)
        connected.append(True)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: bool(connected))
    monkeypatch.setattr(ray, "shutdown", connected.clear)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"node-0": 1.0}}])
    return refused


async def connect(tmp_path, *, num_looks):
    head, rendezvous = Head(tmp_path, num_looks), Rendezvous(tmp_path / "meeting")
    rendezvous.open(0, "here")
    await head.listen()
    async with RayCluster(head, node_names=["here"], rendezvous=rendezvous, start_deadline_s=600, stage=lambda _: None):
        assert ray.is_initialized()


async def test_a_ray_that_does_not_let_its_run_in_yet_is_asked_again(tmp_path, refusals):
    refusals += [ConnectionError("busy"), ConnectionError("still busy")]
    await connect(tmp_path, num_looks=1000)
    assert refusals == []


async def test_a_ray_that_has_ended_meanwhile_is_not(tmp_path, refusals):
    refusals += [ConnectionError("busy")] * 1000
    with pytest.raises(WorldError, match=r"(?s)did not let this process in: busy.*the end of its log"):
        await connect(tmp_path, num_looks=3)
