"""What follows a command is split into options and words, and nothing in it is dropped in silence."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from rollpacker.cli import report, train
from rollpacker.cli.arguments import parse_arguments
from rollpacker.cli.main import COMMANDS, main
from rollpacker.cli.settings import parse_steps
from rollpacker.config.words import replaced
from rollpacker.core.errors import ConfigError

TWICE = [
    ("run.seed=1", "run.seed=2"),
    ("run.seed=1", "run.seed=1"),
    ("run.seed=1", "++run.seed=2"),
    ("system=verl", "system=tail"),
    ("hydra/launcher=slurm", "hydra/launcher=basic"),
    ("out=a", "out=b"),
    ("data.columns=prompt:question", "data.columns=ground_truth:answer"),
]


@pytest.mark.parametrize(("command", "words"), list(itertools.product([each.name for each in COMMANDS], TWICE)))
def test_no_command_takes_a_key_twice(command: str, words: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="is given twice") as caught:
        parse_arguments(command, [words[0], "run.dir=r", words[1]], train.HELP, can_sweep=True)
    assert all(f"`{word}`" in caught.value.problem for word in words)
    assert "'KEY={a:b,c:d}'" in caught.value.remedy


def test_the_words_of_a_user_take_the_place_of_a_programs_own() -> None:
    own = ["train", "-m", "run.seed=1", "system=verl", "run.dir=r"]
    words = replaced(own, ["run.seed=2", "+system=tail"])
    assert words == ["train", "-m", "run.dir=r", "run.seed=2", "+system=tail"]
    parse_arguments("train", words[1:], train.HELP, can_sweep=True)


def test_folders_that_look_like_keys_are_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = ["lr=1", "lr=2"]
    for folder in folders:
        (tmp_path / folder).mkdir()
    assert parse_arguments("report", folders, report.HELP, can_sweep=False).words == tuple(folders)


@pytest.mark.parametrize(
    ("option", "allowed", "remedy"),
    [
        ("--lora-rank=8", "no LoRA", "Leave it out."),
        ("--use_lora", "no LoRA", "Leave it out."),
        ("--nproc_per_node=8", "backend.num_gpus", "Leave it out."),
        ("--max-steps=8", "all else is key=value", "Keys have no dashes: write run.num_steps=8"),
        (
            "--epsilon=0.2",
            "all else is key=value",
            "Keys have no dashes: write trainer.clip_ratio_low=VALUE and trainer.clip_ratio_high=VALUE",
        ),
        ("--adv-estimator=grpo", "all else is key=value", "Keys have no dashes: write trainer.advantage=group_std"),
        ("--bf16", "all else is key=value", "Keys have no dashes: write model.dtype=VALUE"),
        ("--logger=wandb", "all else is key=value", "Keys have no dashes: write tracker.wandb=VALUE"),
    ],
)
def test_an_option_of_another_tool_is_answered_as_its_key_is(option: str, allowed: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_arguments("train", [option], train.HELP, can_sweep=True)
    assert allowed in caught.value.allowed
    assert caught.value.remedy == remedy


def test_a_copy_that_torchrun_started_does_not_train(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert main(["train", "model.path=m", "data.path=d"]) == 2
    assert "without torchrun" in capsys.readouterr().err


def test_a_number_that_python_does_not_read_is_no_step() -> None:
    for steps in ("9" * 5000, f"1:{'9' * 5000}"):
        with pytest.raises(ConfigError, match="counted from 1"):
            parse_steps(steps)
