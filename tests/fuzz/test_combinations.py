"""A few combinations of settings; `python -m tests.fuzz.combinations` runs many."""

import pytest

from tests.fuzz.combinations import main, outcome_of

WAITS_FOR_AN_ENVIRONMENT_ALONE = 8
"""Longer than for any engine or reward, which was taken for a stall."""


@pytest.mark.parametrize("seed", [*range(0, 24, 3), WAITS_FOR_AN_ENVIRONMENT_ALONE])
def test_a_combination_of_settings_is_refused_or_ends(seed, tmp_path):
    assert outcome_of(seed, tmp_path) in {"refused", "ended"}


def test_what_fails_is_printed_with_its_words(monkeypatch, capsys):
    monkeypatch.setattr("tests.fuzz.combinations.replay", lambda _: 1 / 0)
    assert main(["8:9"]) == 1
    said = capsys.readouterr().out
    assert "seed 8: ZeroDivisionError: division by zero\n  backend=sim" in said
    assert "'failed': 1" in said
