"""`rollpacker export` as a user meets it: which checkpoint, where to, and what the card says."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollpacker.cli.main import main
from rollpacker.config.compose import compose
from rollpacker.config.record import to_yaml
from rollpacker.metrics.evaluation_schemas import EVALUATION_TABLES
from rollpacker.metrics.table_writer import MetricsWriter
from rollpacker.runtime.run.checkpoints import CheckpointStore
from rollpacker.runtime.run.exporting import export_at
from tests.cli.inputs import tree_of, write_model
from tests.cli.test_show import row
from tests.runtime.run.test_checkpoints import META


class Trainer:
    """Saves the model of `tests.cli.inputs`; a modelled one none."""

    def __init__(self, *, is_modelled: bool = False) -> None:
        self._is_modelled = is_modelled

    async def save(self, folder: Path) -> None:
        (folder / "trainer.pt").write_text("state")
        if not self._is_modelled:
            write_model(folder / "model")


def save(run_dir: Path, *steps: int, best: int | None = None, is_modelled: bool = False, keep: int = 5) -> None:
    store = CheckpointStore(run_dir, keep=keep)
    for step in steps:
        trainer: Any = Trainer(is_modelled=is_modelled)
        asyncio.run(store.save(replace(META, step=step), scheduler={}, order={}, trainer=trainer))
    if best:
        store.mark_best(best)


@pytest.fixture
def run_dir(workdir: Path) -> Path:
    """A run of 40 steps with three checkpoints, of which the one after 20 is the best."""
    run_dir = workdir / "runs" / "x"
    save(run_dir, 10, 20, 40, best=20)
    words = ["model.path=hf://Qwen/Qwen2.5-1.5B@" + "c" * 40, "data.path=prompts.jsonl", "run.num_steps=40"]
    config = compose([*words, "run.dir=runs/x", "reward.function=secret/place/my.py:score"])
    (run_dir / "config.yaml").write_text(to_yaml(config))
    writer = MetricsWriter(run_dir / "evaluation", EVALUATION_TABLES)
    # the one after 18 steps was ended with its round
    for step, reward, diff in ((0, 0.25, None), (16, 0.5, 0.25), (18, None, None), (40, 0.4, 0.15)):
        scores = {"reward_mean": reward, "se_over_prompts": 0.01, "diff_to_first": diff, "num_prompts": 30}
        scores |= {"num_samples": 1, "se_diff_over_prompts": None if diff is None else 0.02}
        evaluations = [row("evaluations", step=step, set="aime24", **scores)]
        writer.write_step(step, {"evaluations": evaluations, "pass_at_k": [], "evaluation_responses": []})
    writer.close()
    return run_dir


@pytest.mark.parametrize(
    ("words", "steps", "dtype"),
    [([], 40, "bfloat16"), (["at=best", "dtype=float32"], 20, "float32"), (["at=10"], 10, "bfloat16")],
)
def test_the_model_of_a_checkpoint_loads_in_transformers_with_its_tokenizer(
    run_dir: Path, capsys: pytest.CaptureFixture[str], words: list[str], steps: int, dtype: str
) -> None:
    assert main(["export", str(run_dir), "out=mine", *words]) == 0
    assert f"mine: the model of {run_dir} after {steps} steps, in {dtype}." in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained("mine", dtype="auto")
    assert str(model.dtype) == f"torch.{dtype}"
    assert AutoTokenizer.from_pretrained("mine")("1 + 2").input_ids == [6, 3, 7]


def test_the_card_says_what_was_trained_and_how_well_it_does_and_no_path_of_the_machine(run_dir: Path) -> None:
    assert main(["export", str(run_dir), "out=mine", "at=20"]) == 0
    card = Path("mine/README.md").read_text()
    assert card.startswith("---\nbase_model: Qwen/Qwen2.5-1.5B\n")
    assert "after 20 steps of reinforcement learning" in card
    assert "| steps | 20 of 40 |" in card
    assert "| prompts | prompts.jsonl |" in card
    assert "| reward | my.py:score |" in card
    assert "| aime24 | 30 x 1 | 16 steps | 0.500 ± 0.010 | +0.250 ± 0.020 |" in card
    assert "secret" not in card
    assert str(run_dir.parent) not in card


@pytest.mark.parametrize(
    "data",
    [
        "data/team@home/secret/train.jsonl",
        f"data/team@{'c' * 40}/secret/train.jsonl",
        "hf://openai/gsm8k@main/secret/train.jsonl",
    ],
)
def test_a_path_that_looks_like_a_name_of_the_hub_is_left_out_of_the_card(run_dir: Path, data: str) -> None:
    words = ["model.path=secret/team@home", f"data.path={data}", "run.dir=runs/x", "run.num_steps=40"]
    (run_dir / "config.yaml").write_text(to_yaml(compose(words)))
    assert main(["export", str(run_dir), "out=mine"]) == 0
    card = Path("mine/README.md").read_text()
    assert "| base model | team@home |" in card
    assert "| prompts | train.jsonl |" in card
    assert "base_model" not in card
    assert "secret" not in card


def test_the_card_says_that_held_out_scores_cannot_be_read_without_a_path_of_the_machine(run_dir: Path) -> None:
    manifest = run_dir / "evaluation" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema_version": 1}))
    assert main(["export", str(run_dir), "out=mine"]) == 0
    card = Path("mine/README.md").read_text()
    assert "Its held-out scores are left out: evaluation/manifest.json was written with schema version 1.\n" in card
    shutil.rmtree(run_dir / "evaluation")
    assert main(["export", str(run_dir), "out=other"]) == 0
    assert "held-out" not in Path("other/README.md").read_text()


def test_the_card_names_data_of_the_hub_by_its_commit(run_dir: Path) -> None:
    data = f"hf://openai/gsm8k@{'c' * 40}/main"
    words = ["model.path=m", f"data.path=[{data},mine.jsonl]", "run.dir=runs/x", "run.num_steps=40"]
    (run_dir / "config.yaml").write_text(to_yaml(compose(words)))
    assert main(["export", str(run_dir), "out=mine"]) == 0
    assert f"| prompts | {data}, mine.jsonl |" in Path("mine/README.md").read_text()


def test_the_example_in_the_error_without_a_run_is_one_that_has_all_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["export", "out=mine"]) == 2
    assert "For example: rollpacker export runs/x out=my-model\n" in capsys.readouterr().err


MISTAKES = {
    "no such checkpoint": (
        ["at=30", "out=mine"],
        "runs/x has no such checkpoint",
        "`at` is last, best, or a step whose checkpoint was kept: 10, 20, 40.",
        "the best one too, with run.keep_best=true",
        "Write at=40.",
    ),
    "no step of so many digits": ([f"at={5_000 * '9'}", "out=mine"], "has no such checkpoint", "Write at=40."),
    "no such word": (["at=newest", "out=mine"], "at=newest", "last, best, or a step", "Write at=40."),
    "no out": ([], "out=DIR", "new folder"),
    "out exists": (["out=model"], "out=model exists", "never replaced"),
    "out is a link to nothing": (["out=dangling"], "out=dangling exists", "never replaced"),
    "out below a file": (["out=prompts.jsonl/x"], "out=prompts.jsonl/x", "is a file"),
    "unknown type": (["dtype=float16", "out=mine"], "dtype=float16", "bfloat16, float32"),
    "unknown setting": (["to=mine"], "to=mine", "out=..."),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_answered_by_what_is_there_and_changes_nothing(
    run_dir: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    words, *expected = MISTAKES[case]
    Path("dangling").symlink_to("nowhere")
    before = tree_of(Path())
    assert main(["export", str(run_dir), *words]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert all(each in printed for each in expected), printed
    assert tree_of(Path()) == before


def test_a_run_without_a_best_checkpoint_says_so(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(workdir / "run", 3)
    assert main(["export", "run", "at=best", "out=mine"]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert "is marked as the best" in printed
    assert "run.keep_best=true" in printed
    assert "Write at=3." in printed


def test_a_checkpoint_that_was_cut_is_refused(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = run_dir / "checkpoints" / "step-000040" / "trainer" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert main(["export", str(run_dir), "out=mine"]) == 2
    assert "step 40" in capsys.readouterr().err
    assert not Path("mine").exists()


@pytest.fixture
def run_that_goes_on(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that saves a checkpoint, and removes all others, while the first file of an export is copied."""
    copy = shutil.copyfile

    def copy_after_a_step(source: Path, target: Path) -> None:
        monkeypatch.setattr(shutil, "copyfile", copy)
        save(run_dir, 50, best=50, keep=1)
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", copy_after_a_step)
    return run_dir


@pytest.mark.parametrize("at", ["last", "best"])
def test_of_a_checkpoint_that_the_run_removes_meanwhile_the_one_that_replaced_it_is_exported(
    run_that_goes_on: Path, at: str
) -> None:
    assert export_at(run_that_goes_on, at, Path("mine"), "bfloat16") == 50
    assert "after 50 steps" in Path("mine/README.md").read_text()
    assert json.loads(Path("mine/generation_config.json").read_text())["eos_token_id"] == [1]


def test_a_numbered_checkpoint_that_the_run_removes_meanwhile_is_said_to_be_gone(
    run_that_goes_on: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run_that_goes_on), "out=mine", "at=20"]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert "20" in printed
    assert "keeps the last" in printed
    assert "run.keep_checkpoints" in printed
    assert not Path("mine").exists()


@pytest.mark.parametrize("what", ["a folder", "a file", "a link"])
def test_what_appears_in_the_place_of_an_export_meanwhile_stays_and_the_model_lies_beside_it(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    copy = shutil.copyfile

    def copy_while_another_writes(source: Path, target: Path) -> None:
        monkeypatch.setattr(shutil, "copyfile", copy)
        if what == "a folder":
            Path("mine").mkdir()
            Path("mine/notes.txt").write_text("of somebody else")
        elif what == "a file":
            Path("mine").write_text("of somebody else")
        else:
            Path("mine").symlink_to("nowhere")
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", copy_while_another_writes)
    assert main(["export", str(run_dir), "out=mine"]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert "out=mine appeared while the model was written" in printed
    (made,) = Path().glob("mine-*")
    assert f"The model is complete in {made}." in printed
    assert AutoModelForCausalLM.from_pretrained(made, dtype="auto")
    assert what != "a folder" or [path.name for path in Path("mine").iterdir()] == ["notes.txt"]
    assert what != "a file" or Path("mine").is_file()
    assert what != "a link" or Path("mine").is_symlink()
    assert not list(Path().glob(".tmp-*"))


@pytest.mark.parametrize("kind", ["modelled", "without a checkpoint", "no run"])
def test_what_holds_no_model_is_refused(workdir: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    if kind == "modelled":
        save(workdir / "run", 3, is_modelled=True)
    elif kind == "without a checkpoint":
        (workdir / "run").mkdir()
        (workdir / "run" / "run.json").write_text("{}")
    assert main(["export", "run", "out=mine"]) == 2
    expected = {
        "modelled": "modelled run",
        "without a checkpoint": "without a finished step",
        "no run": "does not exist",
    }
    assert expected[kind] in " ".join(capsys.readouterr().err.split())
