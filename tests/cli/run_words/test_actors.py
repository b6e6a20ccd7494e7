"""`check` says what a modelled run does not know of its hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.metrics.profiles import write_profile
from tests.sim.clusters import SMALL
from tests.sim.test_profile import profile


@pytest.mark.parametrize(("hardware", "is_fitted"), [("h800", True), ("h100", False)])
def test_hardware_without_fitted_overheads_and_memory_that_is_not_checked_are_told(
    workdir: Path, capsys: pytest.CaptureFixture[str], hardware: str, is_fitted: bool
) -> None:
    assert main(["check", "backend=sim", "model=qwen2.5-7b", f"hardware={hardware}"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert ("its overheads are not fitted" in text) is not is_fitted
    assert "whether training fits into the memory of a GPU is not checked" in text


def test_with_keys_that_differ_from_those_of_the_fit_they_are_named(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "backend=sim", "model=qwen2.5-7b", "hardware.name=mine", "hardware.tflops=165"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "its overheads were fitted for hardware=h800, which has other values of tflops" in text


def test_by_a_profile_the_gpus_are_those_that_were_measured(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_profile(workdir / "profile.json", profile(hardware="NVIDIA L4"))
    words = [f"model.shape.{key}={value}" for key, value in SMALL.shape.model_dump().items()]
    words += ["rollout.max_response_tokens=512", "data.max_prompt_tokens=256", "workload.prompt_tokens=64"]
    assert main(["check", "backend=sim", "model=qwen2.5-7b", "hardware.profile=profile.json", *words]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "GPUs (NVIDIA L4, measured 2026-11-20), in virtual time" in text
