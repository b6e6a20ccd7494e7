"""Lets rollout workers join a Ray and kills each with its whole node: `elastic_joins [JOINS]` (gate G0).

A head on this machine and a toy actor that is called all the time stand for the run; each worker is a real one
(`rollpacker.launch.worker`), gets an actor on its node, and then every process of it gets kill -9. Prints failures of
the toy job, seconds from a worker's start to its arrival and to its actor's answer, and what the head's processes
(gcs_server, raylet, driver) grew by per join, from a fifth of the joins on. Ends with 1 if the toy job failed, or they
grew by 200 kB or more. JOINS is 300; each takes 5 to 30 s, most of it imports.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path

import ray

from rollpacker.config.compose import compose
from rollpacker.config.record import CONFIG_FILE, to_yaml
from rollpacker.config.schema import RunConfig
from rollpacker.core.events import WorkerArrived, WorkerLeft
from rollpacker.core.ids import WorkerId
from rollpacker.protocols.backend import BackendContext
from rollpacker.runtime.ray.cluster import RayCluster
from rollpacker.runtime.ray.elastic_members import RayMembers, open_members
from rollpacker.runtime.ray.node import node_here, pin_of_worker
from rollpacker.runtime.ray.rendezvous import Rendezvous
from tests.e2e.processes import MARK, ProcessesOfRun

MOST_GROWTH_KB = 200
PATIENCE_S = 300.0
TOY_S = 1.0
"""Between two calls: Ray's head remembers every one of the last 100,000, which is no memory that joins cost."""


class Toy:
    """Counts its calls."""

    def __init__(self) -> None:
        self._num_calls = 0

    async def call(self) -> int:
        self._num_calls += 1
        return self._num_calls


class WorkerProcess:
    """A worker, and whatever it starts."""

    def __init__(self, run_dir: Path) -> None:
        self._mark = uuid.uuid4().hex
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rollpacker.launch.worker", run_dir],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env=os.environ | {MARK: self._mark},
            start_new_session=True,
        )

    def kill_node(self) -> None:
        """All at once, as a node's end does it."""
        processes = ProcessesOfRun(self._mark)
        while processes.alive():
            processes.send(signal.SIGKILL)
        self._process.wait()


def head_kb(head: ProcessesOfRun) -> int:
    """Memory of the head's own processes and of this one."""
    own = [pid for pid, process in head.alive().items() if any(name in process.command for name in ("gcs", "raylet"))]
    total = 0
    for pid in [*own, os.getpid()]:
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            total += int(status.partition("VmRSS:")[2].split()[0])
    return total


async def change(members: RayMembers, kind: type) -> WorkerId:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for each in await members.changes():
                if isinstance(each, kind):
                    return each.worker


async def joins(config: RunConfig, context: BackendContext, num_joins: int, mark: str) -> bool:
    node = node_here(config, None, config.run.dir / "ray.log")
    cluster = RayCluster(
        node,
        node_names=("here",),
        rendezvous=Rendezvous(node.folder),
        start_deadline_s=PATIENCE_S,
        stage=lambda _: None,
    )
    arrivals_s, answers_s, memory_kb = [], [], []
    failures: list[str] = []
    async with cluster, open_members(config, cluster, context) as members:
        toy = ray.remote(Toy).options(num_cpus=0, resources={"node-0": 1}).remote()

        async def work() -> None:
            while True:
                try:
                    await toy.call.remote()
                except Exception as error:  # noqa: BLE001 - it is counted
                    failures.append(str(error))
                await asyncio.sleep(TOY_S)

        working = asyncio.create_task(work())
        for number in range(num_joins):
            began = time.monotonic()
            worker = WorkerProcess(config.run.dir)
            name = await change(members, WorkerArrived)
            arrivals_s.append(time.monotonic() - began)
            there = ray.remote(Toy).options(num_cpus=0, resources={pin_of_worker(name): 1}, max_restarts=0).remote()
            async with asyncio.timeout(PATIENCE_S):
                await there.call.remote()
            answers_s.append(time.monotonic() - began - arrivals_s[-1])
            worker.kill_node()
            with suppress(ray.exceptions.RayError):
                await there.call.remote()
                failures.append("an actor of a killed node answered")
            await change(members, WorkerLeft)
            memory_kb.append(head_kb(ProcessesOfRun(mark)))
            print(
                f"{number + 1}: {arrivals_s[-1]:.1f} s, {answers_s[-1]:.1f} s, {memory_kb[-1]} kB, "
                f"{len(failures)} failures",
                flush=True,
            )
        working.cancel()
    warm = memory_kb[num_joins // 5 :]
    growth_kb = (warm[-1] - warm[0]) / max(len(warm) - 1, 1)
    print(
        f"{num_joins} joins and kills: {len(failures)} failures of the job beside them; joined after "
        f"{statistics.median(arrivals_s):.1f} s, actor after another {statistics.median(answers_s):.1f} s (medians); "
        f"head grew by {growth_kb:.0f} kB per join; load {os.getloadavg()[0]:.1f}"
    )
    print(*failures[:3], sep="\n")
    return not failures and growth_kb < MOST_GROWTH_KB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("num_joins", metavar="JOINS", nargs="?", type=int, default=300)
    num_joins = parser.parse_args().num_joins
    mark = os.environ[MARK] = uuid.uuid4().hex
    folder = Path(tempfile.mkdtemp(prefix="g0-"))
    try:
        (folder / "prompts.jsonl").write_text('{"prompt": "1", "answer": "1"}\n')
        words = [f"model.path={folder}", f"data.path={folder / 'prompts.jsonl'}", f"run.dir={folder / 'run'}"]
        config = compose([*words, "elastic.max_workers=2", "elastic.silence_s=20", "backend.object_store_mb=80"])
        (folder / "run").mkdir()
        (folder / "run" / CONFIG_FILE).write_text(to_yaml(config))
        context = BackendContext(
            logs=folder / "logs",
            stage=lambda _: None,
            note=print,
            within=lambda _s, _what, answer: answer,
            limit=asyncio.timeout,
            add_stack_source=lambda _name, _show: None,
        )
        return 0 if asyncio.run(joins(config, context, num_joins, mark)) else 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
