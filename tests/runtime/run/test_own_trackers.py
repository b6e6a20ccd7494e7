"""`tracker.plugin`: which classes of the user's are refused before a run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.config.sections.run import TrackerSection
from rollpacker.core.errors import ConfigError
from rollpacker.runtime.run.trackers import check_trackers

CLASSES = """
import functools


def with_a_reason(method):
    @functools.wraps(method)
    def call(self):
        return method(self, "the run ended")

    return call


class Fit:
    def __init__(self, run_dir, run_id, config): ...
    def log_step(self, row, domains=(), samples=()): ...
    def log_evaluation(self, rows, samples=()): ...
    def close(self): ...


class Loose(Fit):
    def __init__(self, **_): ...
    def log_step(self, *_): ...
    @staticmethod
    def log_evaluation(rows, samples): ...
    @classmethod
    def close(cls): ...


class Decorated(Fit):
    @with_a_reason
    def close(self, reason): ...


class FewArguments(Fit):
    def log_step(self, row): ...


class ManyArguments(Fit):
    def log_evaluation(self, rows, samples, domains): ...


class CloseWithMore(Fit):
    def close(self, reason): ...


class OtherStart(Fit):
    def __init__(self, run_dir): ...
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(CLASSES)
    return f"{tmp_path}/own.py"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("FewArguments", r"it takes no log_step\(row, domains, samples\): too many positional arguments"),
        ("ManyArguments", r"it takes no log_evaluation\(rows, samples\): missing a required argument: 'domains'"),
        ("CloseWithMore", r"it takes no close\(\): missing a required argument: 'reason'"),
        ("OtherStart", r"it takes no OtherStart\(run_dir=..., run_id=..., config=...\): .* 'run_id'"),
    ],
)
def test_a_class_that_does_not_take_what_it_will_be_given_is_refused(source: str, name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        check_trackers(TrackerSection(plugin=f"{source}:{name}"))
    assert "log_step(row, domains, samples), log_evaluation(rows, samples), close()" in caught.value.allowed


@pytest.mark.parametrize("name", ["Fit", "Loose", "Decorated"])
def test_a_class_that_takes_it_in_any_way_is_not(source: str, name: str) -> None:
    check_trackers(TrackerSection(plugin=f"{source}:{name}"))
