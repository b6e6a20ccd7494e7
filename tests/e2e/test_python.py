"""The example of `rollpacker help python`, as it stands there but smaller."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rollpacker import api

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SMALLER = {
    "num_iterations=800": "num_iterations=50",
    "run__num_steps=20": "run__num_steps=2, engine__num_engines=1",
    "unseen_file(100": "unseen_file(8",
}


def blocks() -> list[str]:
    """The indented parts of the text."""
    lines = (api.__doc__ or "").splitlines()
    grouped = itertools.groupby(lines, lambda line: not line or line.startswith("    "))
    return [text for is_code, part in grouped if is_code and (text := textwrap.dedent("\n".join(part)).strip())]


def test_the_example_trains_evaluates_and_loads_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, reward, example = blocks()
    for own, smaller in SMALLER.items():
        assert own in example
        example = example.replace(own, smaller)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_reward.py").write_text(reward)
    names: dict[str, Any] = {}
    exec(compile(example, "example", "exec"), names)  # noqa: S102  our own text
    run = names["run"]
    assert len(run.steps) == 2
    assert list(run.evaluations["step"]) == [0, 2]
    assert set(run.samples["reward_reason"].dropna()) == {"counted", "wrong_sum"}
    assert names["model"].num_parameters() > 0
    assert "The trained model is in walk/run/model (bfloat16)." in capsys.readouterr().out
