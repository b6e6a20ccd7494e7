"""Lengths have the distribution that they should, belong to their request, and can come from files and runs."""

import dataclasses
import json
import math
import statistics

import pandas as pd
import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError, DataError
from rollpacker.core.ids import Domain, PromptId, RequestId
from rollpacker.protocols.reward import ResponseToScore
from rollpacker.protocols.rollout import GenerationRequest
from rollpacker.runtime.driver import sample_seed
from rollpacker.sim.engine import blank_tokens
from rollpacker.sim.lengths import Quantiles, paper_lengths
from rollpacker.sim.workload import Workload


def workload(*words: str) -> Workload:
    return Workload(compose(["backend=sim", "model=qwen2.5-7b", "run.dir=x", *words]))


def length(source: Workload, key: str, sample: int, *, step: int = 0, limit: int = 16384):
    name = RequestId(step, PromptId(0, key), sample)
    return source.length_of(
        GenerationRequest(
            request=name,
            prompt_token_ids=blank_tokens(5),
            seed=sample_seed(0, step, name.prompt, sample),
            max_response_tokens=limit,
            temperature=1.0,
        )
    )


def many(source: Workload, num_prompts: int, num_samples: int, **given) -> list[list[int]]:
    keys = list(source.prompts)[:num_prompts]
    return [[length(source, key, sample, **given).num_tokens for sample in range(num_samples)] for key in keys]


def flat(groups: list[list[int]]) -> list[int]:
    return [each for group in groups for each in group]


PAPER = {
    "math": (660, 1128, 2554, 4091, 0.0100),
    "code": (663, 945, 1620, 2783, 0.0092),
    "judge": (520, 755, 1063, 1416, 0.0018),
}
"""P50, P75, P90, P95 and the share at the limit (Fig 2a)."""


@pytest.mark.parametrize("domain", PAPER)
def test_the_packaged_table_has_the_papers_quantiles(domain):
    distribution = paper_lengths().distribution(Domain(domain))
    for p, tokens in zip((0.5, 0.75, 0.9, 0.95), PAPER[domain], strict=False):
        assert distribution.value(p) == pytest.approx(tokens, rel=0.015)
    assert 1 - distribution.share_below(16383.9) == pytest.approx(PAPER[domain][4], abs=0.0008)


def test_drawn_lengths_have_the_tables_distribution_whatever_the_correlation():
    for rho in (0, 0.6):
        drawn = sorted(flat(many(workload("workload=math", f"workload.rho={rho}"), 2500, 8)))
        for p, tokens in ((0.5, 660), (0.9, 2554)):
            assert drawn[int(p * len(drawn))] == pytest.approx(tokens, rel=0.08)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_samples_of_a_prompt_are_correlated_by_rho(rho):
    table = paper_lengths().distribution(Domain("code"))
    normal = statistics.NormalDist()
    groups = many(workload("workload=code", f"workload.rho={rho}"), 3000, 2, limit=10**9)
    scores = [[normal.inv_cdf(min(max(table.share_below(each), 1e-6), 1 - 1e-6)) for each in group] for group in groups]
    assert statistics.correlation(*zip(*scores, strict=True)) == pytest.approx(rho, abs=0.06)


def test_a_length_belongs_to_its_request_and_a_later_round_draws_again_around_the_prompts_own_nature():
    one, other = workload("workload=math", "workload.rho=0.9"), workload("workload=math", "workload.rho=0.9")
    assert many(one, 50, 4) == many(other, 50, 4)
    again = many(one, 300, 1, step=9)
    first = many(one, 300, 1)
    assert first != again
    ranks = [[math.log(each[0]) for each in lengths] for lengths in (first, again)]
    assert statistics.correlation(*ranks) > 0.7


def test_a_response_at_the_limit_is_truncated_and_never_right():
    source = workload("workload=math", "workload.solve_rate=1")
    lengths = [length(source, key, 0, limit=600) for key in list(source.prompts)[:200]]
    assert {each.num_tokens <= 600 for each in lengths} == {True}
    assert {each.is_truncated for each in lengths} == {each.num_tokens == 600 for each in lengths} == {True, False}
    to_score = ResponseToScore(
        request=RequestId(0, PromptId(0, "math-000000"), 0),
        prompt=source.prompts["math-000000"].prompt,
        token_ids=blank_tokens(600),
        is_truncated=True,
    )
    assert source.judgement_of(to_score).reward == 0
    assert source.judgement_of(dataclasses.replace(to_score, is_truncated=False)).reward == 1


def test_beyond_the_limit_of_its_table_a_distribution_goes_on_as_a_tail():
    table = paper_lengths().distribution(Domain("math"))
    assert table.value(0.98) < 16384 < table.value(0.995) < table.value(0.999) < math.inf


def test_without_a_limit_the_largest_value_is_the_largest():
    assert Quantiles([(0.1, 1), (0.5, 5), (0.9, 9)]).value(0.9999) == 9


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_users_lengths_come_back(tmp_path, suffix):
    frame = pd.DataFrame({"length_tokens": [100, 200, 300, 400] * 25})
    file = tmp_path / f"lengths{suffix}"
    writers = {".csv": "to_csv", ".parquet": "to_parquet", ".jsonl": "to_json"}
    getattr(frame, writers[suffix])(file, **({"orient": "records", "lines": True} if suffix == ".jsonl" else {}))
    source = workload(f"workload.lengths={file}")
    assert source.num_prompts_by_domain == {Domain("any"): 4096}
    drawn = flat(many(source, 500, 2))
    assert min(drawn) >= 100
    assert max(drawn) <= 400
    assert statistics.mean(drawn) == pytest.approx(250, rel=0.05)


def test_lengths_of_named_prompts_stay_with_their_prompt(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("prompt,domain,length_tokens\n7,math,10\n7,math,12\nlong,code,5000\n")
    source = workload(f"workload.lengths={file}")
    assert source.num_prompts_by_domain == {Domain("math"): 1, Domain("code"): 1}
    assert {length(source, "7", sample).num_tokens for sample in range(20)} == {10, 12}
    assert {length(source, "long", sample).num_tokens for sample in range(5)} == {5000}


def test_the_prompts_of_a_file_are_used_by_name_and_domain(tmp_path):
    file = tmp_path / "prompts.jsonl"
    lines = [{"id": f"q{n}", "domain": "math", "prompt": "1 + 1", "ground_truth": "2"} for n in range(40)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list(workload(f"data.path={file}").prompts) == [f"q{n}" for n in range(40)]
    file.write_text(file.read_text().replace("math", "poetry"))
    with pytest.raises(ConfigError, match="prompts of domain `poetry`"):
        workload(f"data.path={file}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tokens\n5\n", "has the columns tokens"),
        ("length_tokens\n5\nfive\n", "row 2: length_tokens is `five`"),
        ("length_tokens\n-5\n", "row 1: length_tokens is `-5`"),
        ("length_tokens\n", "has no rows"),
        ("", "cannot be read"),
    ],
)
def test_a_file_without_lengths_is_refused_with_its_fault(tmp_path, content, message):
    file = tmp_path / "lengths.csv"
    file.write_text(content)
    with pytest.raises(DataError, match=message):
        workload(f"workload.lengths={file}")


def test_a_file_that_is_not_there_or_of_another_kind_is_refused(tmp_path):
    for name, message in (("missing.csv", "cannot be read"), ("lengths.txt", "neither a folder nor a file")):
        with pytest.raises(DataError, match=message):
            workload(f"workload.lengths={tmp_path / name}")


def test_a_domain_that_the_lengths_do_not_have_is_refused():
    with pytest.raises(ConfigError, match=r"workload\.domain=poetry has no prompt"):
        workload("workload.domain=poetry")


def test_sandboxed_code_takes_the_papers_time_and_other_answers_hardly_any():
    source = workload("workload=mix")
    times = {"math": [], "code": []}
    for domain, seconds in times.items():
        for number in range(2000):
            key = f"{domain}-{number:06d}"
            to_score = ResponseToScore(
                request=RequestId(0, PromptId(0, key), 0),
                prompt=source.prompts[key].prompt,
                token_ids=blank_tokens(5),
                is_truncated=False,
            )
            seconds.append(source.judgement_of(to_score).time_s)
    assert statistics.median(times["code"]) == pytest.approx(0.31, rel=0.1)
    assert sum(each >= 30 for each in times["code"]) / 2000 == pytest.approx(0.052, abs=0.015)
    assert max(times["math"]) < 0.1
