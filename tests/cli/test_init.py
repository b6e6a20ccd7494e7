"""`rollpacker init` prints a command that `rollpacker check` accepts, and why each word is in it."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from rollpacker.cli.main import main
from tests.cli.inputs import tree_of
from tests.runtime.placing.test_host import driver_with


def printed(capsys, *words):
    assert main(["init", *words]) == 0
    return capsys.readouterr().out


def command_in(text):
    lines = text.partition("rollpacker train")[2].partition("\n\n")[0]
    return shlex.split(lines.replace("\\\n", " "))


def test_without_gpus_the_command_is_short_and_says_so(workdir, capsys):
    before = tree_of(workdir)
    text = printed(capsys, "model=model", "data=prompts.jsonl")
    assert command_in(text) == ["model.path=model", "data.path=prompts.jsonl", "run.dir=runs/first"]
    assert "no GPU is seen engine=torch and trainer=torch work on cores" in " ".join(text.split())
    assert tree_of(workdir) == before


def test_on_gpus_the_command_names_what_was_chosen_and_check_accepts_it(workdir, capsys, monkeypatch):
    driver = driver_with(workdir / "driver", *["NVIDIA A100-SXM4-40GB"] * 2)
    monkeypatch.setattr("rollpacker.runtime.placing.host.DRIVER_GPUS", driver)
    monkeypatch.setattr("rollpacker.runtime.placing.gpus.is_vllm_for_gpus_installed", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    command = command_in(
        printed(capsys, "model=model", "data=prompts.jsonl", "run.dir=runs/x", "rollout.num_prompts=8")
    )
    assert {"placement.engine=all", "trainer=fsdp", "trainer.data_parallel=2", "run.dir=runs/x"} <= set(command)
    assert main(["check", *command]) == 0
    assert "Chosen" not in capsys.readouterr().out  # everything is named


def test_a_shell_reads_the_printed_command_as_the_words_that_were_given(workdir, capsys):
    given = ["data.columns={prompt:prompt,ground_truth:ground_truth}", "run.dir=runs/${system.name}"]
    lines = printed(capsys, "model=model", "data=prompts.jsonl", *given).partition("Train by\n")[2].partition("\n\n")[0]
    script = lines.replace("rollpacker train", "printf '%s\\n'")
    words = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert words[-2:] == given


@pytest.mark.parametrize("key", ["", ".path"], ids=["own words", "keys of a run"])
def test_paths_with_blanks_are_taken_and_quoted_in_either_way_of_writing_them(workdir, capsys, key):
    (workdir / "my files").mkdir()
    (workdir / "model").rename(workdir / "my files/model")
    (workdir / "prompts.jsonl").rename(workdir / "my files/the prompts.jsonl")
    command = command_in(printed(capsys, f"model{key}=my files/model", f"data{key}=my files/the prompts.jsonl"))
    assert set(command) == {"model.path=my files/model", "data.path=my files/the prompts.jsonl", "run.dir=runs/first"}
    assert main(["check", *command]) == 0


def test_the_reasons_stand_beside_the_keys_in_lines_of_80_columns_however_long_the_values_are(
    workdir, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    longest = f"model-{'x' * 100}"
    (workdir / "model").rename(workdir / longest)
    data = "[{path: prompts.jsonl, domain: math, prompt_suffix: 'Put the answer into a box at the very end.'}]"
    reasons = printed(capsys, f"model={longest}", f"data={data}").partition("Why\n")[2].splitlines()
    assert reasons[:3] == [
        "  model.path      the policy",
        "  data.path       the prompts",
        "  run.dir         everything that the run writes is below it",
    ]


def test_an_environment_keeps_the_reward_that_it_chooses(workdir, capsys):
    (workdir / "games.py").write_text(
        "class Game:\n"
        "    def reset(self): return 'go', {}\n"
        "    def step(self, action): return 'stop', 0.0, True, False, {}\n"
    )
    text = printed(capsys, "model=model", "data=prompts.jsonl", "environment=gym", "environment.env=games.py:Game")
    assert "environment=gym" in command_in(text)
    assert not any(word.startswith("reward=") for word in command_in(text))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "has no model and no data.\n"),
        (["model=model"], "has no data"),
        (["model=model", "data=nothing.jsonl"], "nothing.jsonl"),
        (["model=model", "data=a,b.jsonl"], "Write KEY=[A,B] for a list; `rollpacker train -m` runs once per value."),
        (["model=model", "data=gsm8"], "recipe of the group `experiment`: gsm8k, dapo-math.\nWrite data=gsm8k\n"),
        (["model=model", "data=prompts.jsonl", "rollout.num_promts=8"], "rollout.num_prompts"),
        (
            ["model=model", "data=prompts.jsonl", "rollout.max_response_tokens=100000"],
            "Set rollout.max_response_tokens=",
        ),
        (["model=model", "model.path=other", "data=prompts.jsonl"], "`model.path` is given twice"),
    ],
    ids=str,
)
def test_a_mistake_is_answered_as_check_does(workdir, capsys, words, said):
    assert main(["init", *words]) == 2
    answer = capsys.readouterr()
    assert said in answer.err
    assert not answer.out
