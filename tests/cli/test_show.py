"""`rollpacker show` as a user meets it: what was written, in 80 columns, chosen and sorted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rollpacker.api import load
from rollpacker.cli.main import main
from rollpacker.metrics.evaluation_schemas import EVALUATION_TABLES
from rollpacker.metrics.samples import read_samples
from rollpacker.metrics.schemas import ALL_TABLES
from rollpacker.metrics.table_writer import MetricsWriter
from tests.timeline.runs import modelled_run

ZEROS: dict[str, Any] = {"int": 0, "float": 0.0, "bool": False, "text": ""}


def row(table: str, **values: Any) -> dict[str, Any]:
    columns = ALL_TABLES[table].columns
    return {column.name: None if column.is_nullable else ZEROS[column.type] for column in columns} | values


def response(step: int, prompt: str, sample: int, reward: float | None, text: str | None, **values: Any) -> Any:
    own = {"step": step, "prompt": prompt, "sample": sample, "reward": reward, "reward_reason": "found"}
    texts = {"prompt_text": text and f"What is {prompt}?", "response_text": text}
    return row("responses", **own, **texts, domain="math", finish_reason="stop", accepted=sample == 0, **values)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path, ["aime"])


def write_run(folder: Path, sets: list[str]) -> Path:
    """Two steps, and two evaluations of these held-out sets."""
    writer = MetricsWriter(folder / "metrics")
    for step in range(2):
        responses = [
            response(step, f"p{step}", 0, 1.0, "It is\\boxed{7}.", length_tokens=9),
            response(step, f"p{step}", 1, None, "word " * 400, length_tokens=400),
            response(step, f"p{step}", 2, 0.0, None),
        ]
        responses[1]["finish_reason"] = "length"
        steps = [row("steps", step=step, round_kind="plain", system="verl")]
        writer.write_step(step, {"steps": steps, "domains": [], "responses": responses, "intervals": []})
    writer.close()
    evaluations = MetricsWriter(folder / "evaluation", EVALUATION_TABLES)
    for step in (0, 2):
        answers = [
            row(
                "evaluation_responses",
                step=step,
                set=name,
                prompt=f"{name[0]}1",
                reward=float(step > 0),
                reward_reason="held",
                prompt_text="Unseen?",
                response_text=f"Answer after {step}",
                finish_reason="stop",
                length_tokens=3,
            )
            for name in sets
        ]
        scores = [row("evaluations", step=step, set="aime")]
        rows = {"evaluations": scores, "pass_at_k": [], "evaluation_responses": answers}
        evaluations.write_step(step, rows)
    evaluations.close()
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["show", *words]) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def test_the_samples_of_training_and_of_evaluations_are_one_table(run_dir: Path) -> None:
    samples = read_samples(run_dir)
    assert samples[["step", "kind", "prompt", "sample"]].to_numpy().tolist() == [
        [0, "evaluation", "a1", 0],
        [1, "training", "p0", 0],
        [1, "training", "p0", 1],
        [2, "training", "p1", 0],
        [2, "training", "p1", 1],
        [2, "evaluation", "a1", 0],
    ]


def test_evaluations_are_shown_where_no_step_is_left(run_dir: Path) -> None:
    MetricsWriter(run_dir / "metrics").truncate_after(-1)
    assert read_samples(run_dir)["kind"].tolist() == ["evaluation", "evaluation"]


def test_the_newest_step_and_evaluation_are_shown_in_80_columns(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, str(run_dir))
    assert "step 2  math p1 #0  reward 1, found, 9 tokens" in text
    assert "#1  no reward, 400 tokens, cut at the limit, not trained" in text
    assert "after 2 steps  aime a1 #0  reward 1, held" in text
    assert "It is\\boxed{7}." in text
    assert "p0" not in text
    assert "lines=0 prints all" in text
    assert max(map(len, text.splitlines())) <= 80
    assert said(capsys, str(run_dir), "lines=0").count("word") == 400


def test_one_prompt_is_shown_over_the_steps_and_one_step_alone(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, str(run_dir), "prompt=a1")
    assert text.index("before training") < text.index("after 2 steps")
    assert "step 1  math p0" in said(capsys, str(run_dir), "step=1")
    assert "aime" not in said(capsys, str(run_dir), "step=2", "kind=training")


def test_they_are_sorted_and_counted(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, str(run_dir), "sort=-length", "num=1")
    assert "400 tokens" in text
    assert "1 of 3 responses; num=3 prints all." in text


def test_training_leaves_room_for_the_evaluation(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, str(run_dir), "num=2")
    assert text.index("step 2  math p1 #0") < text.index("after 2 steps  aime a1 #0")
    assert "#1" not in text
    assert "2 of 3 responses; num=3 prints all." in text
    assert "#1" in said(capsys, str(run_dir), "num=2", "kind=training")


def test_every_held_out_set_has_its_place_and_one_of_them_may_be_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = str(write_run(tmp_path, ["math", "math", "math", "code", "aime"]))
    text = said(capsys, run_dir, "kind=evaluation", "num=3")
    assert [name in text for name in ("math m1", "code c1", "aime a1")] == [True] * 3
    text = said(capsys, run_dir, "set=code")
    assert "after 2 steps  code c1" in text
    assert "1 of" not in text
    assert not any(name in text for name in ("math", "aime"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prompt=nobody"], "no text of the prompt 'nobody'. Texts are of the prompts a1, p0, p1"),
        (["step=9"], "no text of the step 9. Texts are of the steps 0, 1, 2"),
        (["step=1", "prompt=a1"], "Texts of the prompt 'a1' are of the steps 0, 2. For example: step=2"),
        (["set=math"], "no text of the held-out set 'math'. Texts are of the held-out sets aime"),
        (["set=aime", "kind=training"], "Sets are of evaluations"),
        (["sort=size"], "`sort` is one of reward, -reward"),
        (["kind=test"], "`kind` is one of training, evaluation"),
        (["num=0"], "`num` is an integer of at least 1"),
        ([f"num={'9' * 5000}"], "`num` is an integer of at least 1, with at most 9 digits"),
        (["stpe=1"], "Write step=..."),
    ],
)
def test_what_is_not_there_is_refused(
    run_dir: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in " ".join(said(capsys, str(run_dir), *words, code=2).split())


def test_a_run_that_only_evaluated_shows_what_it_was_answered(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run_dir / "metrics")
    text = said(capsys, str(run_dir))
    assert "aime a1 #0  reward 1, held" in text
    assert "has kept no text of training" in said(capsys, str(run_dir), "kind=training", code=2)


def test_an_evaluation_of_a_trained_policy_is_not_called_before_training(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run_dir / "metrics")
    (run_dir / "config.yaml").write_text("run: {num_steps: 0}")
    assert said(capsys, str(run_dir), "step=0").startswith("evaluation  aime a1 #0  reward 0, held")


@pytest.mark.parametrize("damage", ["garbled", "gone", "manifest"])
def test_a_damaged_table_of_evaluations_is_named_beside_the_texts_of_training(
    run_dir: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    part = run_dir / "evaluation" / "evaluation_responses" / "step-000002.parquet"
    if damage == "manifest":
        part = run_dir / "evaluation" / "manifest.json"
    part.unlink() if damage == "gone" else part.write_bytes(b"PAR1")
    assert main(["show", str(run_dir)]) == 0
    printed = capsys.readouterr()
    assert "step 2  math p1 #0  reward 1, found, 9 tokens" in printed.out
    note = " ".join(printed.err.split())
    assert f"note: Texts of evaluations are left out: {part}" in note
    assert main(["show", str(run_dir), "kind=training"]) == 0
    assert capsys.readouterr().err == ""
    for words in (["set=aime"], ["prompt=a1"]):
        assert str(part) in " ".join(said(capsys, str(run_dir), *words, code=2).split())
    with pytest.warns(UserWarning, match="Texts of evaluations are left out"):
        assert set(load(run_dir).samples["kind"]) == {"training"}


def test_a_damaged_table_of_evaluations_is_refused_where_nothing_was_trained(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run_dir / "metrics")
    part = run_dir / "evaluation" / "evaluation_responses" / "step-000002.parquet"
    part.unlink()
    assert f"{part} is missing, although" in " ".join(said(capsys, str(run_dir), code=2).split())


def test_a_run_that_only_trained_shows_its_texts(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run_dir / "evaluation")
    assert "step 2  math p1 #0  reward 1, found, 9 tokens" in said(capsys, str(run_dir))


def test_a_modelled_run_has_no_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = modelled_run(tmp_path / "run", "run.num_steps=1")
    assert "has kept no text" in said(capsys, str(run_dir), code=2)


def test_what_an_environment_answered_stands_apart_from_what_the_policy_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = ["", "You see a door.", "open it", "It is open.", "walk"]
    writer = MetricsWriter(tmp_path / "metrics")
    rows = [response(0, "maze", 0, 0.5, "".join(turns), response_turns=turns)]
    writer.write_step(0, {"steps": [row("steps")], "domains": [], "responses": rows, "intervals": []})
    writer.close()
    assert said(capsys, str(tmp_path)).splitlines()[1:] == [
        *("    What is maze?", "    You see a door.", "    open it", "    It is open.", "    walk", "")
    ]


def cut_response(config: str, turns: list[str] | None, reason: str) -> tuple[str, Any]:
    cut = {"finish_reason": "length", "reward_reason": reason}
    return config, response(0, "maze", 0, 0.5, "text", response_turns=turns) | cut


@pytest.mark.parametrize(
    ("written", "cut"),
    [
        (
            cut_response("environment: {max_turns: 2}", ["open it", "It is open.", "walk"], "limit"),
            "ended at environment.max_turns",
        ),
        (cut_response("environment: {max_turns: 2}", ["", "A door.", "walk"], "limit"), "cut at the limit"),
        (cut_response("reward: {name: environment}", ["walk"], "truncated"), "ended by the environment"),
        (cut_response("reward: {name: math}", None, "truncated"), "cut at the limit"),
        (cut_response("reward: {name: environment}", ["walk"], "environment_timeout"), "its environment failed"),
        (cut_response("no mapping", ["walk"], "truncated"), "cut at the limit"),
    ],
)
def test_what_cut_a_response_is_the_limit_of_tokens_or_its_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: tuple[str, Any], cut: str
) -> None:
    config, of_response = written
    (tmp_path / "config.yaml").write_text(config)
    writer = MetricsWriter(tmp_path / "metrics")
    writer.write_step(0, {"steps": [row("steps")], "domains": [], "responses": [of_response], "intervals": []})
    writer.close()
    assert f"0 tokens, {cut} What is maze?" in " ".join(said(capsys, str(tmp_path)).split())


def test_a_held_out_response_is_cut_at_the_limit_of_the_evaluation(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = row("evaluation_responses", step=3, set="maze", finish_reason="length", length_tokens=16)
    answer |= {"prompt_text": "Out?", "response_turns": ["left", "A wall.", "right"], "response_text": "left right"}
    writer = MetricsWriter(run_dir / "evaluation", EVALUATION_TABLES)
    scores = [row("evaluations", step=3, set="maze")]
    writer.write_step(3, {"evaluations": scores, "pass_at_k": [], "evaluation_responses": [answer]})
    writer.close()
    record = "{rollout: {max_response_tokens: 100}, environment: {max_turns: 2}, evaluation: {max_response_tokens: 16}}"
    (run_dir / "config.yaml").write_text(record)
    assert "16 tokens, cut at the limit" in " ".join(said(capsys, str(run_dir), "step=3", "kind=evaluation").split())
