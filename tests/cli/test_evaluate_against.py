"""`rollpacker evaluate against=OTHER` says what two evaluations do not have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.cli.evaluate import notes_of_other_settings
from rollpacker.cli.main import main
from rollpacker.config.compose import compose
from rollpacker.config.record import to_yaml
from rollpacker.config.schema import RunConfig
from tests.cli.test_evaluate import MODEL, SET, write_evaluation

LIMIT = "rollout.max_response_tokens=24"


@pytest.fixture
def other(workdir: Path) -> Path:
    """A run that was scored with `walk` and at most 24 tokens."""
    (workdir / "test.jsonl").write_text('{"id": "t1", "domain": "math", "prompt": "91 + 2 =", "ground_truth": "93"}\n')
    write_evaluation(Path("runs/y"), {"aime24": [[0.5]]})
    config = compose(["model.path=model", "data.path=prompts.jsonl", "reward=walk", SET, LIMIT, "run.dir=runs/y"])
    Path("runs/y/config.yaml").write_text(to_yaml(config))
    return Path("runs/y")


def test_another_reward_and_another_limit_than_those_of_the_other_run_are_named(
    other: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: RunConfig, *_: object) -> None:
        write_evaluation(config.run.dir, {"aime24": [[0.25]]})

    monkeypatch.setattr("rollpacker.launch.ranks.train", train)
    assert main(["evaluate", *MODEL, SET, f"against={other}"]) == 0
    note = (
        "note: against=runs/y was scored otherwise, so differences are not the policy's alone: reward.name is walk "
        "there and math here; aime24: max_response_tokens is 24 there and 256 here.\n"
    )
    assert capsys.readouterr().err == note


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], ""),
        (["rollout.num_prompts=64", "reward.num_workers=2", "evaluation.every_steps=3"], ""),
        (["reward.overlong_buffer_tokens=8"], ""),
        (["evaluation.temperature=0"], "aime24: temperature is 1.0 there and 0.0 here"),
        (["evaluation.max_response_tokens=32"], "aime24: max_response_tokens is 24 there and 32 here"),
        (["reward.timeout_s=9"], "reward.timeout_s is 2.0 there and 9.0 here"),
    ],
)
def test_only_what_changes_a_score_is_named(other: Path, words: list[str], named: str) -> None:
    config = compose(["model.path=model", "data.path=prompts.jsonl", "reward=walk", SET, LIMIT, *words])
    notes = notes_of_other_settings(config, other)
    assert (named in notes[0]) if named else not notes


def test_how_a_judge_is_restarted_changes_no_score(other: Path) -> None:
    judged = [*MODEL, "data.path=prompts.jsonl", "reward=judge", "reward.judge.model.path=model", SET]
    (other / "config.yaml").write_text(to_yaml(compose(judged)))
    restarts = ["reward.judge.max_restarts=0", "reward.judge.restart_pause_s=9"]
    assert not notes_of_other_settings(compose([*judged, *restarts]), other)
    assert notes_of_other_settings(compose([*judged, "reward.judge.threshold=0.9"]), other)


def test_a_run_whose_configuration_cannot_be_read_is_not_said_to_be_scored_alike(other: Path) -> None:
    (other / "config.yaml").write_text("model: {path: m, colour: red}\n")
    (note,) = notes_of_other_settings(compose([*MODEL, "data.path=prompts.jsonl", SET]), other)
    assert note.startswith("Whether against=runs/y was scored alike is not known: ")
    assert "colour" in note
