"""Which prompts are trained, by what an evaluation said of them."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollpacker.config.sections.data import DataSection, PromptFile
from rollpacker.core.errors import DataError
from rollpacker.data.prompts import load_prompts
from rollpacker.data.training_prompts import load_training_prompts

REWARDS = {"easy": [1, 1, 1, 1], "middle": [0, 1, 1, 0], "hard": [0, 0, 0, 0], "nearly": [1, 1, 1, 0]}


def write_rates(path, **sets):
    rows = [
        {"step": 0, "set": name, "prompt": key, "sample": sample, "reward": float(reward)}
        for name, rewards in sets.items()
        for key, of_prompt in rewards.items()
        for sample, reward in enumerate(of_prompt)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def section(tmp_path):
    prompts, rates = tmp_path / "prompts.jsonl", tmp_path / "rates.parquet"
    with prompts.open("w") as file:
        for key in [*REWARDS, "unknown"]:
            print(json.dumps({"id": key, "domain": "math", "prompt": f"{key}?", "ground_truth": "1"}), file=file)
    write_rates(rates, prompts=REWARDS)
    return lambda **words: DataSection.model_validate({"path": prompts, "solve_rates": rates, **words})


def keys_and_notes(section):
    prompts, notes = load_training_prompts(section)
    return [prompt.key for prompt in prompts], notes


def test_prompts_that_are_always_or_never_solved_are_left_out_and_unknown_ones_stay(section):
    keys, notes = keys_and_notes(section())
    assert keys == ["middle", "nearly", "unknown"]
    assert notes == ["Kept 3 of 5 prompts: with a solve rate from 0.05 to 0.95, and 1 that were not evaluated."]


def test_both_ends_of_the_range_are_kept(section):
    assert keys_and_notes(section(keep_solve_rate=[0.5, 0.75]))[0] == ["middle", "nearly", "unknown"]
    assert keys_and_notes(section(keep_solve_rate=[0.51, 1]))[0] == ["easy", "nearly", "unknown"]


def test_without_solve_rates_every_prompt_is_kept(section):
    assert keys_and_notes(section(solve_rates=None)) == ([*REWARDS, "unknown"], [])


def test_the_first_prompts_that_are_kept_are_trained_on_where_only_so_many_are_wanted(section):
    assert keys_and_notes(section(max_prompts=2))[0] == ["middle", "nearly"]
    assert keys_and_notes(section(solve_rates=None, max_prompts=2))[0] == ["easy", "middle"]


def test_rates_of_other_prompts_are_refused(section, tmp_path):
    others = tmp_path / "others.jsonl"
    others.write_text('{"id": "other", "domain": "math", "prompt": "1?", "ground_truth": "1"}\n')
    with pytest.raises(DataError, match="knows none of the 1 prompts"):
        load_training_prompts(section(path=others))


def test_rates_of_a_prompt_in_two_sets_are_refused_and_those_of_others_are_not(section, tmp_path):
    two = {"train": REWARDS, "unseen": {"else": [1]}, "old": {"else": [0]}}
    assert keys_and_notes(section(solve_rates=write_rates(tmp_path / "two", **two)))[0] == [
        "middle",
        "nearly",
        "unknown",
    ]
    three = write_rates(tmp_path / "three", **two, test={"easy": [0, 0, 0, 0]})
    with pytest.raises(DataError, match=r"a prompt 'easy' in two sets, train and test"):
        load_training_prompts(section(solve_rates=three))


def test_rates_of_rows_without_ids_count_in_whatever_sets_they_were_evaluated(section, tmp_path):
    def write(name, *texts):
        rows = [{"domain": "math", "prompt": text, "ground_truth": "1"} for text in texts]
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return tmp_path / name

    files = [write("a.jsonl", "easy", "middle"), write("b.jsonl", "easy", "middle", "middle", "unknown")]
    of_a, of_b = (load_prompts([PromptFile(path=file)]) for file in files)
    rates = write_rates(
        tmp_path / "made",
        a={of_a[0].key: [1, 1], of_a[1].key: [1, 1]},
        b={of_b[0].key: [1, 1], of_b[1].key: [0, 1], of_b[2].key: [0, 1]},
    )
    prompts, notes = load_training_prompts(section(path=files, solve_rates=rates))
    assert [prompt.text for prompt in prompts] == ["middle", "middle", "middle", "unknown"]
    assert notes == ["Kept 4 of 6 prompts: with a solve rate from 0.05 to 0.95, and 1 that were not evaluated."]


def test_a_domain_of_which_nothing_is_left_is_an_error(section, tmp_path):
    alone = tmp_path / "alone.jsonl"
    alone.write_text('{"id": "hard", "domain": "math", "prompt": "1?", "ground_truth": "1"}\n')
    with pytest.raises(DataError, match="None of the prompts of domain 'math'"):
        load_training_prompts(section(path=alone))


def test_a_range_whose_ends_are_swapped_is_refused(section):
    with pytest.raises(ValueError, match="keeps nothing in between"):
        section(keep_solve_rate=[0.9, 0.1])
