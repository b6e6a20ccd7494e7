"""`rollpacker evaluate` without engines: what it refuses at once, and the table that it prints."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollpacker.cli.evaluate import Requirement, _compose, _folder, _require, parse_requirements
from rollpacker.cli.main import main
from rollpacker.cli.scores import score_table
from rollpacker.config.compose import compose
from rollpacker.config.record import to_yaml
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import ConfigError, DataError, WorldError
from rollpacker.evaluation.comparison import differences_by_prompt, rewards_by_set
from rollpacker.evaluation.statistics import mean_reward
from rollpacker.metrics.evaluation_files import read_newest_responses, write_responses
from rollpacker.metrics.evaluation_schemas import EVALUATION_TABLES
from rollpacker.metrics.table_writer import MetricsWriter
from rollpacker.runtime.run.policies import policies_at, policy_name
from rollpacker.runtime.run.progress import make_progress
from rollpacker.terminal import Terminal
from tests.cli.inputs import tree_of
from tests.cli.test_show import row

MODEL = ["model.path=model", "reward=math"]
SET = "evaluation.path=[{path: test.jsonl, name: aime24}]"


LENGTHS = {"length_p50_tokens": 0, "length_p90_tokens": 0}


def write_evaluation(
    folder: Path,
    rewards: dict[str, list[list[float]]],
    step: int = 0,
    *,
    prompt: str = "p",
    ends: Sequence[tuple[str, str]] = (("stop", ""),),
) -> Path:
    """A run's evaluation with these rewards of each set, by prompt and sample.

    Args:
        folder: Of the run.
        rewards: Those.
        step: After which it was.
        prompt: Begins the ids of prompts.
        ends: Finish reasons and reasons of rewards, in turn by sample.
    """
    writer = MetricsWriter(folder / "evaluation", EVALUATION_TABLES)
    tables: dict[str, list[dict[str, object]]] = {name: [] for name in EVALUATION_TABLES}
    for name, prompts in rewards.items():
        shape = {"num_prompts": len(prompts), "num_samples": len(prompts[0])}
        mean = sum(map(sum, prompts)) / sum(map(len, prompts))
        tables["evaluations"].append(
            row("evaluations", step=step, set=name, reward_mean=mean, **shape, **LENGTHS)
            | {"se_given_prompts": 0.25 if len(prompts[0]) > 1 else None, "se_over_prompts": 0.05}
        )
        tables["pass_at_k"].append(row("pass_at_k", step=step, set=name, k=len(prompts[0]), value=1.0))
        tables["evaluation_responses"] += [
            row("evaluation_responses", step=step, set=name, prompt=f"{prompt}{number}", sample=sample, reward=reward)
            | dict(zip(("finish_reason", "reward_reason"), ends[sample % len(ends)], strict=True))
            for number, samples in enumerate(prompts)
            for sample, reward in enumerate(samples)
        ]
    writer.write_step(step, tables)
    writer.close()
    return folder


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["evaluate", *words]) == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "was given neither a run nor model.path"),
        (["runs/x", "runs/y"], "was given runs/x and runs/y"),
        (["runs/y"], "runs/y does not exist"),
        (["runs/x", "model.path=model"], "model.path=model, and the run runs/x"),
        (["runs/x", "run.num_steps=3", SET], "`run.num_steps=3` has no place in an evaluation"),
        (["runs/x", "hydra/launcher=slurm", SET], "in the Slurm job that it is started in"),
        (["runs/x", "at=5", SET], "at=5: runs/x has no such checkpoint. `at` is last, best, start, all, or a step"),
        (["runs/x", "at=5", SET], "whose checkpoint was kept: 4, 6"),
        ([*MODEL, SET, "at=5"], "at=5 without a run"),
        (["runs/x"], "runs/x has no held-out prompts"),
        ([*MODEL], "No held-out prompts are named. A model is scored on them. Add evaluation.path=FILE."),
        (["runs/x"], "Add evaluation.path=FILE"),
        (["runs/x", "evaluation={num_samples: 4}"], "Name held-out files in evaluation.path"),
        (
            ["runs/x", "evaluation={path: nothing.jsonl, num_samples: 4}"],
            "The prompt file nothing.jsonl does not exist",
        ),
        (["runs/x", SET, "require=aime25>=0.3"], "Write aime24>=0.3"),
        (["runs/x", SET, "require=aime24>0.3"], "`aime24>0.3` cannot be read"),
        (["runs/x", SET, "require=aime24>=high"], "For example: require='aime24>=0.3,math500>=0.8'"),
        (["runs/x", SET, "reqire=aime24>=0.3"], "Write require=..."),
        (["runs/x", SET, "against=nothing.parquet"], "nothing.parquet does not exist"),
        (["runs/x", SET, "against=prompts.jsonl"], "prompts.jsonl cannot be read as held-out responses"),
        (["runs/x", SET, "against=other"], "against=other has the sets math500, and this evaluation aime24"),
        (["runs/x", SET, "out=runs"], "out=runs is a folder"),
        (["runs/x", SET, "run.dir=runs/x"], "run.dir=runs/x holds a run that has trained."),
        (["runs/x", SET, "run.dir=runs/x", "at=all"], "Choose a new folder."),
        (["runs/x", "evaluation.path=prompts.jsonl"], "data.path and evaluation.path both read prompts.jsonl"),
        (["runs/x", "evaluation.path=nothing.jsonl"], "nothing.jsonl"),
        ([*MODEL, SET, "engine.num_engines=100000"], "100,001 processes"),
        (
            [*MODEL, f"evaluation.path=[{{path: nothing.jsonl, prompt_suffix: '{'and so on ' * 28}'}}]"],
            "The prompt file nothing.jsonl does not exist",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_starts(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], problem: str
) -> None:
    here = run_dir.parents[1]
    write_evaluation(here / "other", {"math500": [[1.0]]})
    monkeypatch.setenv("TMPDIR", str(here))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = tree_of(here)
    assert problem in refusal(capsys, *words)
    assert tree_of(here) == before


def test_a_modelled_run_has_no_policy(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run_dir / "config.yaml"
    file.write_text(file.read_text().replace("name: ray", "name: sim"))
    assert "runs/x was modelled: it has no policy. RUN is a run with real engines." in refusal(capsys, "runs/x", SET)


def test_each_name_of_a_policy_is_that_checkpoint(run_dir: Path) -> None:
    folder = run_dir / "checkpoints"
    last = {6: folder / "step-000006" / "trainer" / "model"}
    best = {4: folder / "step-000004" / "trainer" / "model"}
    assert policies_at(run_dir, "last") == policies_at(run_dir, "6") == last
    assert policies_at(run_dir, "best") == policies_at(run_dir, "4") == best
    assert policies_at(run_dir, "start") == {0: None}
    assert policies_at(run_dir, "all") == {0: None} | best | last


def test_a_run_without_a_best_policy_says_what_keeps_it(run_dir: Path) -> None:
    (run_dir / "checkpoints" / "best").unlink()
    with pytest.raises(ConfigError, match="marked as the best") as refused:
        policies_at(run_dir, "best")
    assert "run.keep_best=true" in refused.value.allowed
    assert refused.value.remedy == "Write at=6."


def test_a_policy_of_a_checkpoint_is_told_by_its_run_and_step(run_dir: Path, tmp_path: Path) -> None:
    (model,) = policies_at(run_dir, "4").values()
    assert policy_name(model) == f"{run_dir} after step 4"
    assert policy_name(tmp_path / "trainer" / "model") == f"{tmp_path}/trainer/model"


def test_requirements_are_read_with_names_that_have_signs_themselves() -> None:
    assert parse_requirements("a=b.c-1>=0.3, math500>=1") == [
        Requirement(set_name="a=b.c-1", least=0.3),
        Requirement(set_name="math500", least=1.0),
    ]


def printed(table: object) -> str:
    console = Terminal(width=80)
    with console.capture() as capture:
        console.print(*table.shown, sep="\n")  # type: ignore[attr-defined]
    return capture.get()


def test_the_table_fits_80_columns_and_compares_sample_by_sample(tmp_path: Path) -> None:
    mine = write_evaluation(tmp_path / "a", {"aime24": [[1.0, 0.0], [1.0, 1.0]], "longer": [[0.5]]})
    other = write_evaluation(tmp_path / "b", {"aime24": [[0.0, 0.0], [1.0, 0.0]], "longer": [[0.5], [1.0]]})
    others = rewards_by_set(read_newest_responses(other))
    text = printed(score_table({0: mine, 40: mine}, others, other="runs/some-other-run", has_steps=True))
    assert max(map(len, text.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "step set n x k reward +- pass@2 truncated length p50/p90"
    assert lines[1] == "0 aime24 2 x 2 0.750 0.250 (0.050) 1.000 0.0% 0/0"
    assert "40 aime24 2 x 2 0.750 0.250 (0.050) 1.000 0.0% 0/0" in lines
    # differences 1, 0, 0, 1: s^2 = 0.5 within each prompt, whose means are alike
    assert "0 aime24 0.750 0.250 +0.500 0.354 (0.000)" in lines
    assert "40 longer 0.500 0.750 other samples" in lines


def test_prompts_are_counted_by_their_means_and_those_that_lost_most_are_named(tmp_path: Path) -> None:
    drops = [[0.5, 0.0], [0.25, 0.0], [0.0, 0.0], [0.25, 0.5]]
    mine = write_evaluation(tmp_path / "a", {"aime24": [[1.0, 0.0], [0.1, 0.2], *drops], "same": [[1.0]]})
    before = [[1.0, 0.5]] * len(drops)
    other = write_evaluation(tmp_path / "b", {"aime24": [[0.0, 0.0], [0.15, 0.15], *before], "same": [[1.0]]})
    others = rewards_by_set(read_newest_responses(other))
    name = "runs/some-other-run"
    text = printed(score_table({0: mine}, others, other=name))
    assert max(map(len, text.splitlines())) <= 80
    assert f"aime24: 1 prompt better than {name}, 4 worse, 1 the same" in text
    assert "  lost most: p4 -0.750, p3 -0.625, p2 -0.500\n" in text
    assert f"same: 0 prompts better than {name}, 0 worse, 1 the same" in text
    assert text.count("`rollpacker show DIR kind=evaluation") == 1
    assert f"step 40, aime24: 1 prompt better than {name}" in printed(
        score_table({0: mine, 40: mine}, others, other=name, has_steps=True)
    )
    nothing_lost = printed(score_table({0: mine}, rewards_by_set(read_newest_responses(mine)), other=name))
    assert "0 worse" in nothing_lost
    assert "rollpacker show" not in nothing_lost


def test_long_ids_of_prompts_that_lost_are_folded(tmp_path: Path) -> None:
    runs = (write_evaluation(tmp_path / each, {"aime24": [[float(each)]]}, prompt="x" * 100) for each in "01")
    mine, other = (rewards_by_set(read_newest_responses(run)) for run in runs)
    assert differences_by_prompt(mine["aime24"], other["aime24"]) == {"x" * 100 + "0": -1.0}
    text = printed(score_table({0: tmp_path / "0"}, other, other="runs/y"))
    assert max(map(len, text.splitlines())) <= 80
    assert "x" * 100 + "0 -1.000" in "".join(line.removeprefix("  ") for line in text.splitlines())


def test_means_that_differ_by_rounding_alone_are_the_same_also_at_zero() -> None:
    mine = {("p", 0): 0.1, ("p", 1): 0.2, ("p", 2): -0.3}
    assert sum(mine.values()) != 0
    assert differences_by_prompt(mine, dict.fromkeys(mine, 0.0)) == {"p": 0.0}


def test_a_response_whose_environment_failed_is_failed_and_not_truncated(tmp_path: Path) -> None:
    ends = [("length", "environment_error"), ("length", "environment_timeout"), ("length", "truncated"), ("stop", "")]
    run = write_evaluation(tmp_path / "a", {"games": [[0.0] * 4, [0.0] * 4]}, ends=ends)
    lines = [" ".join(line.split()) for line in printed(score_table({0: run}, None, other="")).splitlines()]
    assert lines[0].endswith("truncated failed length p50/p90")
    assert lines[1].endswith("25.0% 50.0% 0/0")
    assert "failed: their environment failed" in " ".join(lines)
    others = [("stop", "environment_error"), ("length", "environment_over"), ("length", "environment_friendly")]
    without = write_evaluation(tmp_path / "b", {"games": [[0.0] * 5]}, ends=[*ends[2:], *others])
    assert "failed" not in printed(score_table({0: without}, None, other=""))


def test_where_names_leave_no_room_for_lengths_they_are_a_table_and_neither_steps_nor_sets_are_broken(
    tmp_path: Path,
) -> None:
    name = "livecodebench-v6-2025"
    text = printed(
        score_table(
            {step: write_evaluation(tmp_path / str(step), {name: [[1.0, 0.0]]}) for step in (0, 12_000)},
            None,
            other="",
            has_steps=True,
        )
    )
    assert max(map(len, text.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[:7] == [
        "step set n x k reward +- pass@2",
        f"0 {name} 1 x 2 0.500 0.250 (0.050) 1.000",
        f"12000 {name} 1 x 2 0.500 0.250 (0.050) 1.000",
        "",
        "step set truncated length p50/p90",
        f"0 {name} 0.0% 0/0",
        f"12000 {name} 0.0% 0/0",
    ]


def test_a_question_mark_is_explained_where_there_is_one(tmp_path: Path) -> None:
    one, two = (write_evaluation(tmp_path / str(num), {"aime24": [[1.0] * num]}) for num in (1, 2))
    of_one, of_two = (" ".join(printed(score_table({0: run}, None, other="")).split()) for run in (one, two))
    assert "1.000 ? (0.050)" in of_one
    assert of_one.endswith("?: unknown, from one sample of each prompt")
    assert "?" not in of_two


def test_the_file_of_an_evaluation_is_read_as_a_run_is(tmp_path: Path) -> None:
    runs = {step: write_evaluation(tmp_path / f"step-{step}", {"aime24": [[float(step > 0), 0.0]]}) for step in (0, 40)}
    out = tmp_path / "e.parquet"
    write_responses(out, runs)
    assert read_newest_responses(out) == [
        {"step": 40, "set": "aime24", "prompt": "p0", "sample": 0, "reward": 1.0},
        {"step": 40, "set": "aime24", "prompt": "p0", "sample": 1, "reward": 0.0},
    ]


def test_a_folder_of_runs_is_no_evaluation_and_one_of_them_is_named(tmp_path: Path) -> None:
    for step in (0, 40):
        (write_evaluation(tmp_path / f"step-{step:06d}", {"aime24": [[1.0]]}) / "run.json").write_text("{}")
    with pytest.raises(DataError, match="is a folder of runs, and no run itself") as raised:
        read_newest_responses(tmp_path)
    assert raised.value.remedy == f"Name one of the runs in it, such as {tmp_path}/step-000040"
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(DataError, match=r"evaluation\.path"):
        read_newest_responses(tmp_path)


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("reward", ["0.5"], "has rewards of the type string\n.* is a number"),
        ("reward", [True], "has rewards of the type bool"),
        ("reward", [None], "has rewards of the type null"),
        ("reward", [[1.0]], "has rewards of the type list"),
        ("reward", [float("nan")], "has rewards that are NaN"),
        ("step", [None], "cannot be read as held-out responses"),
    ],
)
def test_responses_of_other_types_or_without_a_reward_are_refused(
    tmp_path: Path, column: str, values: list[object], words: str
) -> None:
    table = {"step": [1], "set": ["aime24"], "prompt": ["p"], "sample": [0], "reward": [1.0], column: values}
    pq.write_table(pa.table(table), tmp_path / "e.parquet")
    with pytest.raises(DataError, match=words):
        read_newest_responses(tmp_path / "e.parquet")


def test_a_mistake_is_answered_without_torch_or_ray(run_dir: Path) -> None:
    script = (
        "import sys; from rollpacker.cli.main import main; code = main(sys.argv[1:]); "
        "print(code, {'torch', 'ray', 'vllm'} & set(sys.modules))"
    )
    words = ["evaluate", "runs/x", SET, "require=aime25>=0.3"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    assert done.stdout == "2 set()\n"


def test_prompts_of_training_that_are_gone_are_left_out_with_a_note(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def composed(*words: str) -> RunConfig:
        return _compose(run_dir, {0: None}, [SET, *words], run_dir / "e")[0]

    assert composed().data.path is not None
    assert not capsys.readouterr().err
    Path("prompts.jsonl").rename("moved.jsonl")
    assert composed().data.path is None
    assert "prompts.jsonl, which the run was trained on, cannot be found" in capsys.readouterr().err
    assert composed("data.path=moved.jsonl").data.path is not None


def test_a_requirement_names_each_policy_that_fails_and_fails_where_its_set_has_no_score() -> None:
    requirements = parse_requirements("unseen>=0.5")
    with pytest.raises(WorldError, match=r"unseen after step 0 is 0, below 0\.5\. unseen after step 4 is 0\.25,"):
        _require(requirements, {(0, "unseen"): 0.0, (4, "unseen"): 0.25, (6, "unseen"): 0.75})
    with pytest.raises(WorldError, match=r"unseen is 0, below 0\.5"):
        _require(requirements, {(0, "unseen"): 0.0})
    with pytest.raises(WorldError, match=r"^seen has no score\."):
        _require(parse_requirements("seen>=0"), {(0, "unseen"): 0.0})
    with pytest.raises(WorldError, match=r"^seen after step 4 has no score\."):
        _require(parse_requirements("seen>=0.5"), {(0, "seen"): 0.9, (4, "unseen"): 0.9})


def test_a_score_that_is_below_a_requirement_by_rounding_alone_meets_it() -> None:
    score = mean_reward([[1.0] * passed + [0.0] * (5 - passed) for passed in (4, 3, 3, 2, 2)]).value
    assert score < 14 / 25
    _require(parse_requirements("unseen>=0.56"), {(0, "unseen"): score})
    with pytest.raises(WorldError, match=r"unseen is 0\.53996, below 0\.54\."):
        _require(parse_requirements("unseen>=0.54"), {(0, "unseen"): 0.53996})
    with pytest.raises(WorldError, match=r"unseen is 0\.4166667, below 0\.416667\."):
        _require(parse_requirements("unseen>=0.416667"), {(0, "unseen"): 5 / 12})


def test_standard_output_has_nothing_but_the_file_where_it_is_written_there(
    run_dir: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: RunConfig, *_: object) -> None:
        make_progress("plain").note("starting")
        write_evaluation(config.run.dir, {"aime24": [[0.25]]})

    monkeypatch.setattr("rollpacker.launch.ranks.train", train)
    assert main(["evaluate", *MODEL, SET, "out=-"]) == 0
    written, shown = capfdbinary.readouterr()
    assert pq.read_table(io.BytesIO(written))["reward"].to_pylist() == [0.25]
    assert written.startswith(b"PAR1")
    assert b"note: starting" in shown
    assert b"0.250" in shown


def test_a_run_that_only_evaluated_has_no_policy_but_that_which_it_began_with(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: RunConfig, *_: object) -> None:
        assert config.model.path == Path("model")
        write_evaluation(config.run.dir, {"aime24": [[0.25]]})

    monkeypatch.setattr("rollpacker.launch.ranks.train", train)
    evaluated = run_dir.parent / "evaluated"
    evaluated.mkdir()
    config = compose([*MODEL, SET, "data.path=null", "run.num_steps=0", f"run.dir={evaluated}"])
    (evaluated / "config.yaml").write_text(to_yaml(config))
    assert main(["evaluate", str(evaluated)]) == 0


def test_a_folder_that_is_named_with_a_prefix_of_hydra_stays() -> None:
    with _folder(["++run.dir=keep"]) as folder:
        assert folder is None


def test_check_describes_a_run_of_no_steps(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *MODEL, SET, "data.path=null", "run.num_steps=0"]) == 0
    text = capsys.readouterr().out
    assert "aime24 1 x 1: 1 response, once; nothing is trained" in text
    assert "trainer" not in text[text.index("actors") : text.index("writes")]
    described = text[text.index("What it will do") :]
    assert "batch " not in described
    assert "loss" not in described
