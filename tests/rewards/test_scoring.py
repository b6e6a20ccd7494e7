import json
import os
from pathlib import Path

import pytest

from rollpacker.config.compose import compose_score
from rollpacker.config.sections.data import PromptFile
from rollpacker.config.sections.reward import RewardSection
from rollpacker.core.errors import ConfigError, DataError, StorageFailed
from rollpacker.rewards.scoring import score_file
from tests.data.files import write_parquet

WALK = RewardSection(name="walk")
DEEPMATH = Path(
    os.environ.get("ROLLPACKER_DEEPMATH", Path(__file__).parents[3] / "shared/data/deepmath_math_rule.jsonl")
)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def prompts(tmp_path):
    rows = [
        {"id": "walk-1", "domain": "walk", "prompt": "3 5 :", "ground_truth": "3 5"},
        {"id": 2, "domain": "walk", "prompt": "1 2 :", "ground_truth": "1 2"},
    ]
    return write(tmp_path / "prompts.jsonl", rows)


def test_each_response_gets_a_line_in_the_order_of_the_input(tmp_path, prompts):
    answers = [("2", "+1 2"), ("walk-1", "+2 5"), ("walk-1", "+2 6"), ("2", "hm"), ("walk-1", "+1 4")]
    responses = write(tmp_path / "answers.jsonl", [{"id": key, "response": text} for key, text in answers])
    summary = score_file(WALK, [PromptFile(path=prompts)], responses, tmp_path / "scores.jsonl")
    assert read(tmp_path / "scores.jsonl") == [
        {"id": "2", "reward": 1.0, "reason": "correct"},
        {"id": "walk-1", "reward": 1.0, "reason": "correct"},
        {"id": "walk-1", "reward": 0.0, "reason": "wrong_sum"},
        {"id": "2", "reward": 0.0, "reason": "malformed"},
        {"id": "walk-1", "reward": 0.0, "reason": "missed_target"},
    ]
    assert (summary.num_responses, summary.reward_mean) == (5, 0.4)
    assert summary.num_by_reason == {"correct": 2, "wrong_sum": 1, "malformed": 1, "missed_target": 1}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"id": "walk-2", "response": ""}, ["line 2", "'walk-2' is not in the prompt file", "Did you mean 'walk-1'?"]),
        ({"id": "walk-1"}, ["line 2", "`response` is missing"]),
        ({"id": "walk-1", "answer": ""}, ["line 2", "`response` is missing", "Add `response` in every line"]),
        ({"id": "walk-1", "Response": ""}, ["Rename `Response` to `response` in every line"]),
        ({"id": "walk-1", "response": 5}, ["line 2", "`response` is 5"]),
        ({"response": "+2 5"}, ["line 2", "`id` is missing"]),
    ],
)
def test_a_wrong_response_line_is_named_and_nothing_is_written(tmp_path, prompts, row, words):
    responses = write(tmp_path / "answers.jsonl", [{"id": "walk-1", "response": "+2 5"}, row])
    with pytest.raises(DataError) as caught:
        score_file(WALK, [PromptFile(path=prompts)], responses, tmp_path / "scores.jsonl")
    for word in words:
        assert word in str(caught.value)
    assert "data." not in str(caught.value)
    assert not (tmp_path / "scores.jsonl").exists()


def test_ids_that_are_made_are_named_where_a_response_has_another_one(tmp_path):
    prompts = write(tmp_path / "p.jsonl", [{"domain": "walk", "prompt": "3 5 :", "ground_truth": "3 5"}])
    responses = write(tmp_path / "answers.jsonl", [{"id": 1, "response": "+2 5"}])
    with pytest.raises(
        DataError, match=r"rows without `id` have made ones, such as '\w{16}' of .*p\.jsonl, line 1"
    ) as at:
        score_file(WALK, [PromptFile(path=prompts)], responses, tmp_path / "scores.jsonl")
    assert at.value.remedy == "Give the prompts a field `id`, or name them by their made ids"
    made = at.value.allowed.split("'")[1]
    write(responses, [{"id": made, "response": "+2 5"}])
    score_file(WALK, [PromptFile(path=prompts)], responses, tmp_path / "scores.jsonl")
    assert read(tmp_path / "scores.jsonl")[0]["reason"] == "correct"


def test_responses_are_read_from_a_table_as_prompts_are(tmp_path, prompts):
    responses = write_parquet(tmp_path / "answers.parquet", [{"id": "walk-1", "response": "+2 5"}])
    score_file(WALK, [PromptFile(path=prompts)], responses, tmp_path / "scores.jsonl")
    assert read(tmp_path / "scores.jsonl") == [{"id": "walk-1", "reward": 1.0, "reason": "correct"}]
    wrong = write_parquet(tmp_path / "wrong.parquet", [{"id": "walk-1", "answer": "+2 5"}])
    with pytest.raises(DataError, match=r"wrong\.parquet, row 1: the field `response` is missing"):
        score_file(WALK, [PromptFile(path=prompts)], wrong, tmp_path / "scores.jsonl")


def test_a_misspelt_domain_is_refused_as_in_training(tmp_path, prompts):
    responses = write(tmp_path / "answers.jsonl", [{"id": "walk-1", "response": "+2 5"}])
    misspelt = RewardSection(domains={"wlak": "walk"})
    with pytest.raises(ConfigError, match=r"(?s)reward\.domains names `wlak`.*Write reward\.domains\.walk"):
        score_file(misspelt, [PromptFile(path=prompts)], responses, tmp_path / "scores.jsonl")


def test_over_long_reward_shaping_is_refused_since_no_lengths_are_known():
    words = ["data.path=p.jsonl", "responses=r.jsonl", "out=s.jsonl"]
    for key in ("reward.overlong_buffer_tokens=8", "reward.overlong_penalty=2"):
        with pytest.raises(ConfigError, match=key.partition("=")[0] + " is set, and `rollpacker score` does not know"):
            compose_score([*words, key])


def test_an_empty_response_file_is_refused(tmp_path, prompts):
    with pytest.raises(DataError, match=r"response file .* is empty"):
        score_file(WALK, [PromptFile(path=prompts)], write(tmp_path / "answers.jsonl", []), tmp_path / "scores.jsonl")


def test_an_input_file_is_never_overwritten(tmp_path, prompts):
    responses = write(tmp_path / "answers.jsonl", [{"id": "walk-1", "response": "+2 5"}])
    for out in (prompts, responses, tmp_path / "x" / ".." / "answers.jsonl"):
        with pytest.raises(DataError, match="one of the input files"):
            score_file(WALK, [PromptFile(path=prompts)], responses, out)
    assert read(responses) == [{"id": "walk-1", "response": "+2 5"}]
    folder = tmp_path / "prompts"
    folder.mkdir()
    part = folder / "train.jsonl"
    part.write_bytes(prompts.read_bytes())
    with pytest.raises(DataError, match="one of the input files"):
        score_file(WALK, [PromptFile(path=folder)], responses, part)


def test_the_function_or_template_of_a_reward_is_never_overwritten(tmp_path, prompts, monkeypatch):
    monkeypatch.chdir(tmp_path)
    responses = write(tmp_path / "answers.jsonl", [{"id": "walk-1", "response": "+2 5"}])
    own, template = tmp_path / "my.py", tmp_path / "my.jinja"
    own.write_text("def score(response): return 1.0\n")
    template.write_text("{{ response }}")
    judge = {"model": {"path": str(tmp_path)}, "template": template}
    for reward, out in (
        (RewardSection(function=f"{own}:score"), own),
        (RewardSection(function="my:score"), own),
        (RewardSection(parts={"own": {"function": f"{own}:score"}}), own),
        (RewardSection(name="judge", judge=judge), template),
    ):
        before = out.read_text()
        with pytest.raises(DataError, match="one of the input files"):
            score_file(reward, [PromptFile(path=prompts)], responses, out)
        assert out.read_text() == before


def test_a_folder_of_responses_is_refused(tmp_path, prompts):
    (tmp_path / "answers").mkdir()
    write(tmp_path / "answers" / "a.jsonl", [{"id": "walk-1", "response": "+2 5"}])
    with pytest.raises(DataError, match="is a directory"):
        score_file(WALK, [PromptFile(path=prompts)], tmp_path / "answers", tmp_path / "scores.jsonl")


def test_an_output_that_cannot_be_written_is_a_storage_failure(tmp_path, prompts):
    responses = write(tmp_path / "answers.jsonl", [{"id": "walk-1", "response": "+2 5"}])
    with pytest.raises(StorageFailed):
        score_file(WALK, [PromptFile(path=prompts)], responses, responses / "scores.jsonl")


@pytest.mark.skipif(not DEEPMATH.is_file(), reason="the DeepMath prompts are not here")
def test_real_ground_truths_given_as_answers_are_correct(tmp_path):
    rows = read(DEEPMATH)[:60]
    responses = write(
        tmp_path / "answers.jsonl",
        [{"id": row["id"], "response": f"So it is \\boxed{{{row['ground_truth']}}}."} for row in rows],
    )
    summary = score_file(RewardSection(timeout_s=20), [PromptFile(path=DEEPMATH)], responses, tmp_path / "scores.jsonl")
    assert summary.num_by_reason == {"correct": 60}
