"""What this GPU can do at best, measured by torch alone: the yardsticks of the figures."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.utils.benchmark import Timer


def best_seconds(work: Callable[[], object]) -> float:
    """Time some work on the device, the fastest of five times, each after two to warm up."""
    timer = Timer("work()", globals={"work": work})
    return min(timer.timeit(1).mean for _ in range(5))


def memory_bandwidth() -> float:
    """Bytes per second that a copy on the device reads and writes."""
    num_bytes = min(1 << 32, torch.cuda.mem_get_info()[0] // 8) if torch.cuda.is_available() else 1 << 25
    source = torch.ones(num_bytes // 4, device=_device())
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_seconds(functools.partial(target.copy_, source))


def matrix_flops() -> float:
    """Floating-point operations per second of a product of large bfloat16 matrices."""
    size = 8192 if torch.cuda.is_available() else 512
    left, right = (torch.randn(size, size, device=_device(), dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / best_seconds(functools.partial(torch.matmul, left, right))


def leave_gpu() -> None:
    """Give back what torch keeps of freed memory, so that other processes have it."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
