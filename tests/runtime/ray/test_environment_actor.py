"""What the process of a node's environments leaves as the node has it."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from rollpacker.runtime.ray.actors import EnvironmentActor


def variables_beside(log: str) -> dict[str, str]:
    EnvironmentActor("environments-0", Path(log), ())
    return dict(os.environ)


def test_environments_get_the_variables_of_their_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        variables = pool.submit(variables_beside, str(tmp_path / "log")).result()
    assert variables["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "HF_HUB_OFFLINE" not in variables
