"""Continuous integration cannot pass without having run the tests against a real Slurm."""

from pathlib import Path

import pytest

from tests.slurm.requirement import VARIABLE, cannot_run

ROOT = Path(__file__).parents[2]


def test_what_cannot_run_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no slurmd"):
        cannot_run("no slurmd")


def test_what_cannot_run_fails_where_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(pytest.fail.Exception, match="no slurmd"):
        cannot_run("no slurmd")


def test_it_must_in_continuous_integration() -> None:
    assert f"export {VARIABLE}=1" in (ROOT / ".ci/run").read_text()
