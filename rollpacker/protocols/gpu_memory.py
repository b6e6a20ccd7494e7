"""How much of its GPU a process of an engine or a trainer has taken: what an out-of-memory error is about.

Counted is what torch holds of the GPU (reserved, not only allocated): others have the rest. Torch is imported where it
is used, as in `tensors`.
"""

from __future__ import annotations

GIGA = 1e9


def gpu_memory_peak_gb() -> float | None:
    """Most that this process held at a time since `reset_gpu_memory_peak`, in 1e9 bytes; None without a GPU."""
    import torch

    return torch.cuda.max_memory_reserved() / GIGA if torch.cuda.is_available() else None


def reset_gpu_memory_peak() -> None:
    """Begin to measure anew, from what is held now."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
