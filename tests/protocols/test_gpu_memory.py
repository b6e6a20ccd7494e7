import pytest
import torch

from rollpacker.protocols.gpu_memory import gpu_memory_peak_gb, reset_gpu_memory_peak


def test_the_peak_is_what_torch_held_at_most_since_the_last_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    held, peak = [3_000_000_000], [5_500_000_000]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: peak[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: peak.__setitem__(0, held[0]))
    assert gpu_memory_peak_gb() == 5.5
    assert gpu_memory_peak_gb() == 5.5
    reset_gpu_memory_peak()
    assert gpu_memory_peak_gb() == 3.0


def test_there_is_none_without_a_gpu() -> None:
    reset_gpu_memory_peak()
    assert gpu_memory_peak_gb() is None
