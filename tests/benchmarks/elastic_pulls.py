"""Lets workers pull a policy at once over links of known speed, relayed or not: `elastic_pulls [WORKERS [MB]]`.

As root. The trainer's node and WORKERS (4) are network namespaces on one bridge, each with a raylet of its own; a
worker's link carries 10 MB/s each way, the trainer's 20. MB (64) of weights lie in 16 buckets on the trainer's node,
and an actor on each worker's node pulls them as an engine does (`rollpacker.transfer.shelf`), through Ray: all from
bucket 0 on, and each from one of its own. Prints seconds of the first and the last one, and what left the trainer's
node, for three policies each.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import ray
import torch

from rollpacker.metrics.files import write_atomically
from rollpacker.protocols.weights import first_bucket
from rollpacker.runtime.ray.actors import ShelfPayload
from rollpacker.runtime.ray.node import NodeOffer, RayNode
from rollpacker.runtime.ray.node_address import is_listening
from rollpacker.runtime.ray.private_folder import private_folder
from rollpacker.transfer.packing import PackedPolicy
from rollpacker.transfer.shelf import Contents, pull

WORKER_MBIT, TRAINER_MBIT = 80, 160
NUM_BUCKETS = 16
NUM_POLICIES = 3
MIB = 1 << 20
NAMESPACE = "pulls-{}"


def address(node: int) -> str:
    return f"10.77.0.{node + 1}"


@contextmanager
def network(num_nodes: int) -> Iterator[None]:
    """Nodes 0 (the trainer's) to `num_nodes` - 1, and a bridge between them."""
    run("ip", "link", "add", "pulls", "type", "bridge")
    run("ip", "link", "set", "pulls", "up")
    try:
        for node in range(num_nodes):
            name, rate = NAMESPACE.format(node), TRAINER_MBIT if node == 0 else WORKER_MBIT
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"pulls{node}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", f"pulls{node}", "master", "pulls", "up")
            inside = ("ip", "netns", "exec", name)
            run(*inside, "ip", "addr", "add", f"{address(node)}/24", "dev", "eth0")
            run(*inside, "ip", "link", "set", "eth0", "up")
            run(*inside, "ip", "link", "set", "lo", "up")
            limit = ("root", "tbf", "rate", f"{rate}mbit", "burst", "128kb", "latency", "100ms")
            run(*inside, "tc", "qdisc", "add", "dev", "eth0", *limit)
            run("tc", "qdisc", "add", "dev", f"pulls{node}", *limit)
        yield
    finally:
        for node in range(num_nodes):
            run("ip", "netns", "del", NAMESPACE.format(node))
        run("ip", "link", "del", "pulls")


@contextmanager
def ray_on(node: int, folder: Path) -> Iterator[None]:
    """Ray as a run has it on a node."""
    process = inside(node, folder, "ray", node, folder, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def stay(node: int, folder: Path) -> None:
    """Be a node, inside its namespace, until the standard input ends."""
    offer = NodeOffer(
        pin=f"node-{node}",
        name=f"node{node}",
        address=address(node),
        num_cpus=2 if node == 0 else 0,
        num_gpus=0,
        memory_bytes=None,
        object_store_mb=400,
    )
    ray_node = RayNode(offer, grace_s=300, folder=private_folder([str(folder)], {}), log=folder / f"{node}.log")
    head = folder / "head"
    if node == 0:
        write_atomically(head, ray_node.start_head(folder / "token").encode())
    else:
        while not (head.exists() and is_listening(head.read_text())):
            time.sleep(0.2)
        ray_node.join(head.read_text(), folder / "token")
    sys.stdin.read()
    ray_node.stop()


def inside(node: int, folder: Path, *words: object, **streams: int) -> subprocess.Popen[bytes]:
    """Run a part of this program in a node's namespace."""
    itself = (sys.executable, "-m", "tests.benchmarks.elastic_pulls", *map(str, words))
    command = ["ip", "netns", "exec", NAMESPACE.format(node), *itself]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
    return subprocess.Popen(command, env=os.environ | token | {"OMP_NUM_THREADS": "1"}, **streams)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


class Puller:
    """Stands for an engine."""

    async def pull(self, payload: ShelfPayload, name: str) -> float:
        first = first_bucket(name, len(payload.contents.notes)) if name else 0
        began = time.monotonic()
        await pull(payload.contents, payload.fetch, first)
        return time.monotonic() - began


def sent_bytes() -> int:
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


async def measure(num_workers: int, num_mb: int, folder: Path) -> None:
    """On the trainer's node."""
    while not ray.is_initialized():
        with suppress(ConnectionError, OSError):  # it has not started yet
            ray.init(address=(folder / "head").read_text(), _node_ip_address=address(0), log_to_driver=False)
    while len(ray.nodes()) <= num_workers:
        time.sleep(0.5)  # noqa: ASYNC251  (nothing else is under way)
    actor = ray.remote(Puller)
    pullers = [actor.options(num_cpus=0, resources={f"node-{1 + worker}": 1}).remote() for worker in range(num_workers)]
    bucket_bytes = num_mb * MIB // NUM_BUCKETS
    print(f"| pulls begin at | first (s) | last (s) | from the trainer's node, of {num_workers} times the policy |")
    print("|---|---|---|---|")
    for policy in range(2 * NUM_POLICIES):
        own = policy % 2
        weights = {f"layer{index}": torch.rand(bucket_bytes // 4) for index in range(NUM_BUCKETS)}
        packed = PackedPolicy()
        packed.pack(iter(weights.items()), bucket_bytes)
        contents = Contents(notes=tuple(bucket.note for bucket in packed.buckets))
        references = tuple(ray.put(each.buffer.data[: each.note.num_bytes].numpy()) for each in packed.buckets)
        payload = ShelfPayload(contents=contents, buckets=references)
        before = sent_bytes()
        took = await asyncio.gather(
            *(puller.pull.remote(payload, f"e7_{n}-r0.0" if own else "") for n, puller in enumerate(pullers))
        )
        share = (sent_bytes() - before) / contents.num_bytes
        where = "one of their own" if own else "bucket 0"
        print(f"| {where} | {min(took):.1f} | {max(took):.1f} | {share:.2f} |", flush=True)
        del payload, references


def main(num_workers: int, num_mb: int) -> None:
    """Make the nodes, and measure on the first one."""
    folder = Path(tempfile.mkdtemp(prefix="p-", dir="/tmp"))
    (folder / "token").write_text(uuid.uuid4().hex)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(network(1 + num_workers))
        for node in range(1 + num_workers):
            stack.enter_context(ray_on(node, folder))
        inside(0, folder, "measure", num_workers, num_mb, folder).wait()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ray", node, place]:
            stay(int(node), Path(place))
        case ["measure", workers, mb, place]:
            asyncio.run(measure(int(workers), int(mb), Path(place)))
        case _:
            parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
            parser.add_argument("num_workers", metavar="WORKERS", nargs="?", type=int, default=4)
            parser.add_argument("num_mb", metavar="MB", nargs="?", type=int, default=64)
            given = parser.parse_args()
            main(given.num_workers, given.num_mb)
