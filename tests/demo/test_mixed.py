"""The three tasks of the mixed demo."""

import contextlib
import io
import itertools
import random
from collections import Counter

from rollpacker.config.sections.data import PromptFile
from rollpacker.config.sections.evaluation import EvaluationSection
from rollpacker.data.held_out import check_apart, load_held_out
from rollpacker.data.prompts import load_prompts
from rollpacker.demo import inputs, mixed
from rollpacker.demo.mixed import JUDGE, NO, POLICY, WORDS, YES
from rollpacker.protocols.references import AnswerReference, CodeReference, JudgeReference


def printed(program: str, read: int) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program, {"input": lambda: str(read)})  # noqa: S102  (a program of the demo's own)
    return out.getvalue()


def test_programs_add_or_take_away_but_for_the_few_that_never_end():
    rng = random.Random(0)
    added = []
    for _ in range(400):
        drawn = mixed.draw_addition(rng)
        program = drawn.work_out(rng)
        if program != mixed.ENDLESS:
            added.append(printed(program, 5) == f"{drawn.first + drawn.second + 5}\n")
    assert 380 < len(added) < 400
    assert 0.5 < sum(added) / len(added) < 0.7


def test_climbs_reach_their_goal_unless_they_end_early():
    rng = random.Random(0)
    reached = []
    for _ in range(400):
        climb = mixed.draw_climb(rng)
        answer = climb.work_out(rng)
        places = [climb.start, *map(int, answer.split())]
        assert all(0 < after - before <= mixed.LARGEST_CLIMB for before, after in itertools.pairwise(places))
        reached.append(climb.is_reached_by(answer))
    assert 0.5 < sum(reached) / len(reached) < 0.7


def test_the_judge_learns_from_about_as_many_good_climbs_as_bad_ones():
    rng = random.Random(0)
    verdicts = [mixed.JUDGE.example(rng).answer for _ in range(400)]
    assert set(verdicts) == {YES, NO}
    assert 120 < verdicts.count(YES) < 280


def test_every_word_of_every_example_is_known():
    rng = random.Random(0)
    for language in (mixed.POLICY, mixed.JUDGE):
        for _ in range(300):
            assert {word for text in language.example(rng) for word in text.split()} <= set(language.words)


def test_the_prompt_file_has_what_each_reward_needs(tmp_path):
    (tmp_path / "prompts.jsonl").write_text(mixed.prompt_file(30, random.Random(0)))
    prompts = load_prompts([PromptFile(path=tmp_path / "prompts.jsonl")])
    kinds = {(prompt.domain, type(prompt.reference)) for prompt in prompts}
    assert kinds == {("walk", AnswerReference), ("code", CodeReference), ("judge", JudgeReference)}


def test_the_held_out_prompts_are_of_each_domain_all_different_and_none_is_trained(tmp_path):
    trained = mixed.prompt_file(600, random.Random(0))
    (tmp_path / "prompts.jsonl").write_text(trained)
    (tmp_path / "unseen.jsonl").write_text(mixed.unseen_file(150, random.Random(1), trained))
    held_out = load_held_out(EvaluationSection(path=[tmp_path / "unseen.jsonl"]))
    assert len({prompt.text for prompt in held_out["unseen"]}) == 150
    assert Counter(prompt.domain for prompt in held_out["unseen"]) == {"walk": 50, "code": 50, "judge": 50}
    check_apart(load_prompts([PromptFile(path=tmp_path / "prompts.jsonl")]), held_out)


def test_the_inputs_of_a_mixed_run_have_a_judge_and_what_it_reads(tmp_path):
    made = inputs.Inputs(folder=tmp_path / "input", is_mixed=True)
    languages = {}
    inputs.make_inputs(made, languages.__setitem__)
    assert inputs.are_made(made)
    assert languages == {made.model: POLICY, made.judge: JUDGE}
    assert len(made.unseen.read_text().splitlines()) == inputs.NUM_UNSEEN
    assert "{{ fence }}" in made.template.read_text()
    assert len(WORDS) == len(set(WORDS))
