"""The demo's task, its model and its prompt file."""

import json
import random
import statistics

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollpacker.config.sections.data import PromptFile
from rollpacker.config.sections.evaluation import EvaluationSection
from rollpacker.data.held_out import check_apart, load_held_out
from rollpacker.data.prompts import load_prompts
from rollpacker.data.tokenization import PromptTokenizer
from rollpacker.demo import inputs, mixed, task
from rollpacker.demo.task import WALKS
from rollpacker.demo.warm_start import make_model
from rollpacker.rewards import walk


def score(walked, answer):
    return walk.score(answer, walked.ground_truth, is_truncated=False)


def test_worked_out_answers_are_right_when_the_bad_habit_does_not_show():
    rng = random.Random(0)
    for _ in range(200):
        walked = task.draw_walk(rng)
        assert score(walked, task.work_out(walked, rng, habit_probability=0)).reward == 1


def test_the_bad_habit_leaves_room_for_the_reward_to_rise():
    rng = random.Random(0)
    walks = [task.draw_walk(rng) for _ in range(1000)]
    right = statistics.mean(score(walked, task.work_out(walked, rng)).reward for walked in walks)
    assert 0.4 < right < 0.7


def test_answers_are_long_tailed():
    rng = random.Random(0)
    lengths = sorted(len(task.work_out(task.draw_walk(rng), rng).split()) for _ in range(2000))
    assert lengths[-1] >= 8 * statistics.median(lengths)
    assert lengths[int(0.9 * len(lengths))] < 0.5 * lengths[-1]


def test_walks_stay_between_the_first_and_the_last_place():
    rng = random.Random(0)
    for _ in range(2000):
        start, target = task.draw_walk(rng)
        assert 0 <= start < target < task.NUM_PLACES


def test_the_prompt_file_is_one_that_a_run_accepts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(task.prompt_file(50, random.Random(0)))
    prompts = load_prompts([PromptFile(path=file)])
    assert len(prompts) == 50
    assert json.loads(file.read_text().splitlines()[0]).keys() == {"id", "domain", "prompt", "ground_truth"}


def test_the_held_out_walks_are_all_different_and_none_is_trained(tmp_path):
    trained = task.prompt_file(500, random.Random(0))
    unseen = task.unseen_file(100, random.Random(1), trained)
    (tmp_path / "prompts.jsonl").write_text(trained)
    (tmp_path / "unseen.jsonl").write_text(unseen)
    held_out = load_held_out(EvaluationSection(path=[tmp_path / "unseen.jsonl"]))
    assert len({prompt.text for prompt in held_out["unseen"]}) == 100
    check_apart(load_prompts([PromptFile(path=tmp_path / "prompts.jsonl")]), held_out)


def test_the_model_is_an_ordinary_directory_and_the_same_for_the_same_seed(tmp_path):
    for name in ("a", "b"):
        make_model(tmp_path / name, num_iterations=3)
    first, second = (AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("a", "b"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    tokenizer = PromptTokenizer(tmp_path / "a")
    answer = "+4 7 +1 8 +4 12"
    ids = [task.WORDS.index(word) for word in answer.split()]
    assert tokenizer.decode([*ids, tokenizer.eos_token_id]) == answer


@pytest.mark.parametrize("language", [WALKS, mixed.POLICY, mixed.JUDGE], ids=["walks", "mixed", "judge"])
def test_every_user_of_the_model_reads_and_writes_its_words(tmp_path, language):
    """Transformers takes the tokenizer that the model's type says, which need not be the one of tokenizer.json."""
    make_model(tmp_path, num_iterations=1, language=language)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    rng = random.Random(0)
    for _ in range(20):
        for text in language.example(rng):
            words = text.split()
            ids = tokenizer(text)["input_ids"]
            assert ids == [language.words.index(word) for word in words]
            assert tokenizer.decode(ids) == " ".join(words)


def test_inputs_are_made_again_only_when_their_recipe_changed(tmp_path):
    made = inputs.Inputs(folder=tmp_path / "input")
    assert not inputs.are_made(made)
    inputs.make_inputs(made, lambda folder, _: folder.mkdir())
    assert inputs.are_made(made)
    made.recipe.write_text("{}")
    assert not inputs.are_made(made)
