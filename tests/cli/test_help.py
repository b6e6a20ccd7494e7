"""Help texts name everything, of a command or of single topics, and can be read, searched and copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.cli.main import COMMANDS, main
from rollpacker.config.keys import legal_keys
from rollpacker.config.names_elsewhere import key_for
from rollpacker.config.roots import SCORE, TRAIN, groups
from rollpacker.config.schema import RunConfig
from rollpacker.config.score_schema import ScoreConfig
from rollpacker.config.sections.data import PromptFile
from rollpacker.data.prompts import load_prompts
from tests.cli.conftest import run


def _refusal(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_names_every_command_in_a_line_of_80_columns(
    argv: list[str], workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(argv) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert all([command.name, command.summary] in lines for command in COMMANDS)


def test_all_groups_are_a_topic_with_every_option(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(["help", "groups"], capsys)
    for name, group in groups(TRAIN).items():
        assert f"{name} {' | '.join(group.options)}" in text


@pytest.mark.parametrize(("command", "schema"), [("train", RunConfig), ("check", RunConfig), ("score", ScoreConfig)])
def test_the_help_of_a_command_names_every_key_with_its_documentation(
    command: str,
    schema: type[RunConfig | ScoreConfig],
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main([command, "--help"]) == 0
        printed = capsys.readouterr().out
        copied = ("{", "json.dumps", "'data.path", "rollpacker ")  # stays whole, so that it can be copied
        assert all(len(line) <= width or line.strip().startswith(copied) for line in printed.splitlines())
        assert not any(line.endswith(" ") for line in printed.splitlines())
        for key in legal_keys(schema).values():
            assert f"{key.name}=" in printed
            # Columns break lines anywhere, so the words are looked for one by one.
            assert set(key.doc.split()) <= set(printed.split())


@pytest.mark.parametrize(("command", "root"), [("train", TRAIN), ("score", SCORE)])
def test_the_help_of_a_command_names_every_option_of_every_group(
    command: str, root: object, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run([command, "--help"], capsys)
    known = groups(TRAIN if root is TRAIN else SCORE)
    assert known
    for group in known.values():
        assert all(f"{group.name}={option} " in text for option in group.options)


def test_the_help_of_replay_says_what_it_takes(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "rollpacker replay RUN" in run(["replay", "--help"], capsys)


def test_the_help_of_train_shows_a_line_of_each_kind_that_a_run_reads(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["train", "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip().startswith('{"id"')]
    (workdir / "shown.jsonl").write_text("\n".join(lines))
    prompts = load_prompts([PromptFile(path=workdir / "shown.jsonl")])
    kinds = [type(prompt.reference).__name__ for prompt in prompts]
    assert kinds == ["AnswerReference", *["CodeReference"] * 3, "JudgeReference", "AnswerReference"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_a_text_with_usage_and_example(command, capsys) -> None:
    text = run([command.name, "--help"], capsys)
    assert f"Usage rollpacker {command.name} " in text
    assert "Example" in text
    if command.name not in {"train", "check", "score", "data"}:  # `data` is a section as well
        assert run(["help", command.name], capsys) == text


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--help", "engine.vllm"],
        ["train", "engine.vllm", "-h"],
        ["help", "train", "engine.vllm"],
        ["help", "evaluate", "engine.vllm"],
        ["evaluate", "runs/x", "--help", "engine.vllm"],
    ],
)
def test_a_topic_is_one_section_alone(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = run(argv, capsys)
    assert "engine.vllm.memory_share=0.9 Of each GPU's memory" in text
    assert "engine.num_engines" not in text
    assert run(["help", "engine.vllm"], capsys) == text


def test_a_topic_may_be_a_key_a_group_an_option_or_the_launcher(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "rollout.num_prompts"], capsys).startswith("rollout.num_prompts rollout.num_prompts=32 ")
    engine = run(["help", "engine"], capsys)
    assert "engine=vllm" in engine
    assert "engine.num_engines=" in engine
    assert "system=verl" in (option := run(["help", "system=verl"], capsys))
    assert "system=tail" not in option
    assert "hydra.launcher." in run(["help", "hydra/launcher"], capsys)
    assert "data.path" in run(["score", "--help", "data"], capsys)


@pytest.mark.parametrize(
    ("topic", "lines"),
    [
        (
            "experiment=gsm8k",
            (
                "    hf download openai/gsm8k --repo-type dataset",
                "    rollpacker train experiment=gsm8k model.path=Qwen/Qwen2.5-1.5B-Instruct run.dir=runs/gsm8k",
            ),
        ),
        ("elastic=slurm", ("    elastic=slurm elastic.max_workers=8 elastic.job.partition=preemptible",)),
        ("hardware=h800", ("for the same reason: its 27 s are 7 % of 383 s.",)),
    ],
    ids=["recipe", "after a sentence", "a list's item, which wraps"],
)
def test_an_options_commands_stay_lines_that_can_be_copied_and_its_lists_wrap(
    topic: str, lines: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["help", topic]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert set(lines) <= set(printed)


@pytest.mark.parametrize(("command", "argument"), [("train", "config"), ("check", "full"), ("plan", "gpus")])
def test_a_topic_may_be_an_argument_of_the_command(command, argument, capsys) -> None:
    assert main([command, "--help", argument]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Arguments\n  {argument} ")
    assert "Usage" not in shown


def test_words_that_set_a_key_or_name_a_run_are_no_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert "rollout.num_prompts=32" in run(["train", "model.path=x", "--help"], capsys)
    assert run(["evaluate", "runs/x", "--help"], capsys) == run(["evaluate", "--help"], capsys)


def test_a_search_finds_commands_options_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(["help", "/Container"], capsys)
    assert "Commands that mention Container doctor" in text
    assert "cluster.container.image=" in text
    assert "rollout.num_prompts" not in text
    assert "Nothing in the help mentions zyx" in _refusal(["train", "--help", "/zyx"], capsys)


@pytest.mark.parametrize(
    ("topics", "advice"),
    [
        ("enginee", "Try rollpacker help engine"),
        ("jbos", "Try rollpacker help jobs"),
        ("pyhton", "Try rollpacker help python"),
        ("lr", "Try rollpacker help trainer.learning_rate"),
        ("reward.modelled", "Try rollpacker help reward=modelled"),
        ("train check", "Try rollpacker help check"),
        ("groups engine", "Try rollpacker help groups"),
        ("at", "`rollpacker help` lists the commands, `rollpacker help groups` the groups."),
    ],
)
def test_an_unknown_topic_is_refused_with_the_nearest_one_where_it_is_near(
    topics: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _refusal(["help", *topics.split()], capsys).endswith(f"\n{advice}\n")


def test_an_unknown_option_of_a_group_is_refused_with_those_of_the_group(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = _refusal(["help", "engine=nope"], capsys)
    assert "`engine=nope` is not an option of engine.\nIts options are torch, vllm.\n" in refusal
    assert refusal.endswith("`rollpacker help engine` describes them.\n")


@pytest.mark.parametrize(
    ("argv", "advice"),
    [
        (["jobs", "--watch"], "write watch\n"),
        (["report", "--steps=3"], "write step=3\n"),
        (["train", "--lr", "1"], "write trainer.learning_rate=VALUE\n"),
        (["train", "--multi"], "Write --multirun\n"),
        (["train", "--system", "verl"], "write system=VALUE\n"),
        (["train", "--engin=vllm"], "write engine=vllm\n"),
        (["score", "--reward=math"], "write reward=math\n"),
        (["train", "--model=qwen2.5-7b"], "write model=qwen2.5-7b\n"),
        (["train", "--model=Qwen/Qwen2.5-7B"], "write model.path=Qwen/Qwen2.5-7B\n"),
        (["replay", "--info"], "`rollpacker replay --help` says what it takes"),
    ],
)
def test_an_unknown_option_is_refused_with_what_the_command_takes_instead(
    argv: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert advice in _refusal(argv, capsys)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("trainer.lr", "trainer.learning_rate"),
        ("engine.gpu_memory_utilization", "engine.vllm.memory_share"),
        ("num_train_epochs", "run.num_epochs"),
        ("rollout.batch_size", "rollout.num_prompts"),
        ("output_dir", "run.dir"),
        ("actor_rollout_ref.rollout.n", "rollout.num_responses"),
        ("actor_rollout_ref.rollout.val_kwargs.n", "evaluation.num_samples"),
        ("chat_template_kwargs", "data.template_arguments"),
        ("run_name", "tracker.wandb_name"),
    ],
)
def test_another_tools_name_of_a_key_is_answered_with_ours(
    name: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = _refusal(["check", "model.path=m", "data.path=p", f"{name}=1"], capsys)
    assert f"The nearest key here is `{key}`: " in shown
    assert shown.endswith(f"Write {key}=...\n")


def test_every_name_of_other_tools_leads_to_a_legal_key_and_is_none_itself() -> None:
    from rollpacker.config import names_elsewhere

    keys = legal_keys(RunConfig)
    tables = [names_elsewhere._NAMES_ELSEWHERE, names_elsewhere._SET_OTHERWISE, names_elsewhere._NOT_HERE]
    assert {key for table in tables[:2] for key in table} <= set(keys)
    names = [name for table in tables for names in table.values() for name in names.split()]
    assert len(names) == len(set(names))
    leaves = {key.rpartition(".")[2] for key in keys}
    assert not leaves & set(names)
    assert key_for("rollout.num_prompts") is None


def test_the_prose_about_python_wraps_and_its_examples_do_not(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["help", "python"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("    "))
    assert any(len(line) > 80 for line in lines)
