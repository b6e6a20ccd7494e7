"""How long a policy takes from a trainer to engines by each transport, against a plain copy of as many bytes.

    python -m tests.benchmarks.weight_sync [MIB] [ENGINES]

Prints, for a policy of MIB (256) MiB in bfloat16 and so many engines (1, 2), the best of three syncs by each
transport: seconds, GB/s per engine, and the ratio to a copy from memory to memory in this process. Everything is on
this machine, on CPUs: `handles` is shared memory, "packed" a policy that lay there before, as where engines and trainer
share GPUs; `broadcast` is gloo over the loopback, `object_store` is Ray's. A sync ends when each engine's process has
checked every byte and copied it to tensors of its own, so one copy and two checksums are part of it.

Takes about a minute.
"""

from __future__ import annotations

import argparse
import os
import time

import torch

from rollpacker.protocols.tensors import checksum_of_tensors, num_bytes_of_tensors
from rollpacker.transfer.offers import SendingOptions
from rollpacker.transfer.packing import PackedPolicy
from rollpacker.transfer.sender import WeightSender
from tests.transfer.receivers import receiving

NUM_REPEATS = 3
BUCKET_MIB = 64
PATIENCE_S = 120.0
HIDDEN = 1024
"""Square matrices of this size: 2 MiB each."""


def make_policy(num_mib: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        f"layers.{index}.weight": torch.randn(HIDDEN, HIDDEN, generator=generator).bfloat16()
        for index in range(max(1, num_mib // 2))
    }


def time_of_copy(policy: dict[str, torch.Tensor]) -> float:
    held = {name: torch.zeros_like(tensor) for name, tensor in policy.items()}

    def copy() -> None:
        for name, tensor in held.items():
            tensor.copy_(policy[name])

    return min(_seconds(copy) for _ in range(NUM_REPEATS))


def time_of_sending(policy: dict[str, torch.Tensor], transport: str, num_engines: int) -> float:
    transport, _, packed = transport.partition(", ")
    return min(_send(policy, transport, num_engines, is_packed=bool(packed)) for _ in range(NUM_REPEATS))


def _send(policy: dict[str, torch.Tensor], transport: str, num_engines: int, *, is_packed: bool) -> float:
    engines = [f"engine-{index}" for index in range(num_engines)]
    options = SendingOptions(
        transport=transport,
        bucket_bytes=BUCKET_MIB << 20,
        timeout_s=PATIENCE_S,
        deadline_s=PATIENCE_S,
    )
    sender = WeightSender(engines=engines, host="127.0.0.1", options=options, device=torch.device("cpu"))
    ahead = PackedPolicy()
    if is_packed:
        ahead.pack(iter(policy.items()), options.bucket_bytes)
    try:
        with receiving(sender.offer, dict.fromkeys(engines, "")):
            while any(sender._board.announcement(0, f"{engine}/0") is None for engine in engines):
                time.sleep(0.01)
            began = time.perf_counter()
            delivery = sender.send_packed(ahead.buckets) if is_packed else sender.send(iter(policy.items()))
            elapsed_s = time.perf_counter() - began
    finally:
        sender.close()
    assert delivery.is_complete
    assert not delivery.lost
    assert delivery.num_bytes == num_bytes_of_tensors(policy)
    return elapsed_s


def time_of_object_store(policy: dict[str, torch.Tensor], num_engines: int) -> float:
    """As `SnapshotSync` does it: a copy of the policy, its checksum, `ray.put`, and a copy in every engine."""
    import ray

    class Engine:
        def __init__(self, policy: dict[str, torch.Tensor]) -> None:
            torch.set_num_threads(1)
            self._held = {name: torch.zeros_like(tensor) for name, tensor in policy.items()}

        def load(self, policy: dict[str, torch.Tensor]) -> str:
            for name, tensor in self._held.items():
                tensor.copy_(policy[name])
            return checksum_of_tensors(self._held)

    ray.init(
        num_cpus=num_engines + 1,
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
        object_store_memory=4 * num_bytes_of_tensors(policy) + (100 << 20),
    )
    try:
        engines = [ray.remote(Engine).remote(policy) for _ in range(num_engines)]
        ray.get([engine.load.remote(policy) for engine in engines])

        def sync() -> None:
            snapshot = {name: tensor.clone() for name, tensor in policy.items()}
            checksum = checksum_of_tensors(snapshot)
            reference = ray.put(snapshot)
            assert set(ray.get([engine.load.remote(reference) for engine in engines])) == {checksum}

        return min(_seconds(sync) for _ in range(NUM_REPEATS))
    finally:
        ray.shutdown()


def _seconds(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("num_mib", metavar="MIB", nargs="?", type=int, default=256)
    parser.add_argument("engine_counts", metavar="ENGINES", nargs="*", type=int, default=[1, 2])
    given = parser.parse_args()
    torch.set_num_threads(1)
    policy = make_policy(given.num_mib)
    gigabytes = num_bytes_of_tensors(policy) / 1e9
    copy_s = time_of_copy(policy)
    load = os.getloadavg()[0]
    print(f"{given.num_mib} MiB, {len(policy)} tensors, {os.cpu_count()} cores, load {load:.1f} before the benchmark")
    print(f"{'transport':<16}{'engines':>8}{'seconds':>10}{'GB/s':>8}{'copies':>8}")
    print(f"{'plain copy':<16}{'':>8}{copy_s:>10.3f}{gigabytes / copy_s:>8.2f}{1:>8.1f}")
    for num_engines in given.engine_counts:
        for transport in ("handles", "handles, packed", "broadcast", "object_store"):
            if transport == "object_store":
                seconds = time_of_object_store(policy, num_engines)
            else:
                seconds = time_of_sending(policy, transport, num_engines)
            print(
                f"{transport:<16}{num_engines:>8}{seconds:>10.3f}{gigabytes / seconds:>8.2f}{seconds / copy_s:>8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
