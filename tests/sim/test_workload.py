"""Lengths have the distribution that they should, belong to their request, and can come from files and runs."""

import dataclasses
import json
import math
import statistics
from pathlib import Path

import pandas as pd
import pytest

from rollpacker.core.errors import ConfigError, DataError
from rollpacker.core.ids import Domain, PromptId, RequestId
from rollpacker.protocols.reward import ResponseToScore
from rollpacker.protocols.rollout import GenerationRequest
from rollpacker.runtime.rollout.requests import sample_seed
from rollpacker.sim.engine import blank_tokens
from rollpacker.sim.lengths import Quantiles, paper_lengths, read_lengths
from rollpacker.sim.reward import ModelledScore
from rollpacker.sim.workload import Drift, Tail, Workload
from tests.sim.composed import composed


def workload(*words: str) -> Workload:
    return Workload(composed("backend=sim", "model=qwen2.5-7b", "run.dir=x", *words))


def with_lengths(file: Path) -> Workload:
    """The workload of `workload.lengths=file`."""
    config = composed("backend=sim", "model=qwen2.5-7b", "run.dir=x")
    return Workload(config.model_copy(update={"workload": config.workload.model_copy(update={"lengths": file})}))


def written(frame: pd.DataFrame, file: Path) -> Path:
    match file.suffix:
        case ".csv":
            frame.to_csv(file)
        case ".parquet":
            frame.to_parquet(file)
        case ".jsonl":
            frame.to_json(file, orient="records", lines=True)
    return file


def length(source: Workload, key: str, sample: int, *, step: int = 0, limit: int = 16384):
    name = RequestId(step, PromptId(0, key), sample)
    return source.length_of(
        GenerationRequest(
            request=name,
            prompt_token_ids=blank_tokens(5),
            seed=sample_seed(0, name),
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
    assert source.score_of(to_score).reward == 0
    assert source.score_of(dataclasses.replace(to_score, is_truncated=False)).reward == 1


def test_beyond_the_limit_of_its_table_a_distribution_goes_on_as_a_tail():
    table = paper_lengths().distribution(Domain("math"))
    assert table.value(0.98) < 16384 < table.value(0.995) < table.value(0.999) < math.inf


def test_without_a_limit_the_largest_value_is_the_largest():
    assert Quantiles([(0.1, 1), (0.5, 5), (0.9, 9)]).value(0.9999) == 9


@pytest.mark.parametrize(("num_largest", "is_limit"), [(3, False), (5, False), (6, True)])
def test_lengths_end_at_a_limit_only_if_far_more_of_them_are_there_than_below(tmp_path, num_largest, is_limit):
    lengths = [*(length for length in range(1, 100) for _ in range(3)), *(100 for _ in range(num_largest))]
    pd.DataFrame({"length_tokens": lengths}).to_csv(file := tmp_path / "lengths.csv", index=False)
    table = read_lengths(file).distribution(Domain("any"))
    assert (table.value(0.9999) > 100) == is_limit


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_users_lengths_come_back(tmp_path, suffix):
    frame = pd.DataFrame({"length_tokens": [100, 200, 300, 400] * 25})
    source = with_lengths(written(frame, tmp_path / f"lengths{suffix}"))
    assert source.num_prompts_by_domain == {Domain("any"): 4096}
    drawn = flat(many(source, 500, 2))
    assert min(drawn) >= 100
    assert max(drawn) <= 400
    assert statistics.mean(drawn) == pytest.approx(250, rel=0.05)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_file_of_lengths_that_is_not_there_is_said_to_be_missing(tmp_path, suffix):
    with pytest.raises(DataError, match=f"nope{suffix} cannot be read: No such file or directory"):
        with_lengths(tmp_path / f"nope{suffix}")


def test_lengths_of_named_prompts_stay_with_their_prompt(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("prompt,domain,length_tokens\n7,math,10\n7,math,12\nlong,code,5000\n")
    source = workload(f"workload.lengths={file}")
    assert source.num_prompts_by_domain == {Domain("math"): 1, Domain("code"): 1}
    assert {length(source, "7", sample).num_tokens for sample in range(20)} == {10, 12}
    assert {length(source, "long", sample).num_tokens for sample in range(5)} == {5000}


def test_one_response_to_each_prompt_tells_nothing_of_the_others(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("prompt,length_tokens\n" + "".join(f"{number},{number + 1}\n" for number in range(500)))
    source = workload(f"workload.lengths={file}")
    assert len(source.prompts) == 500
    assert len({length(source, "7", sample).num_tokens for sample in range(20)}) > 10


def test_domains_that_number_their_prompts_alike_keep_all_of_them(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("prompt,domain,length_tokens\n0,math,10\n1,math,20\n0,code,3000\nlast,code,4000\nlast,code,4000\n")
    source = workload(f"workload.lengths={file}")
    assert list(source.prompts) == ["math-0", "1", "code-0", "last"]
    assert source.num_prompts_by_domain == {Domain("math"): 2, Domain("code"): 2}
    assert flat(many(source, 4, 1)) == [10, 20, 3000, 4000]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "0", "domain": "code", "prompt": "1 + 1", "ground_truth": "2"}) + "\n")
    assert flat(many(workload(f"workload.lengths={file}", f"data.path={prompts}"), 1, 3)) == [3000] * 3


def test_a_prompt_that_is_called_as_another_ones_domain_and_name_keeps_its_own_lengths(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("prompt,domain,length_tokens\n0,math,4\n0,math,4\n0,code,3000\nmath-0,code,5\n")
    source = workload(f"workload.lengths={file}")
    assert source.num_prompts_by_domain == {Domain("math"): 1, Domain("code"): 2}
    assert flat(many(source, 3, 1)) == [4, 3000, 5]


@pytest.mark.parametrize("column", ["length_tokens", "p"])
def test_a_number_that_is_missing_in_a_nullable_column_is_refused_with_its_row(tmp_path, column):
    frame = pd.DataFrame({"p": [0.1, 0.5, 0.9], "tokens": [5, 6, 7]} if column == "p" else {"length_tokens": [5, 6, 7]})
    frame[column] = frame[column].astype("Float64" if column == "p" else "Int64")
    frame.loc[1, column] = pd.NA
    with pytest.raises(DataError, match=f"row 2: {column} is `<NA>`"):
        with_lengths(written(frame, tmp_path / "lengths.parquet"))


def test_a_table_may_have_comments_above_it_blanks_between_its_columns_and_number_signs_in_its_names(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text(
        "\ufeff# Of an\n\n# evaluation.\nlength_tokens, domain, prompt\n10, math, q#1\n10, math, q#1\n3000, math, q#2\n"
    )
    source = workload(f"workload.lengths={file}")
    assert source.num_prompts_by_domain == {Domain("math"): 2}
    assert list(source.prompts) == ["q#1", "q#2"]
    assert flat(many(source, 2, 2)) == [10, 10, 3000, 3000]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
@pytest.mark.parametrize("column", ["prompt", "domain"])
@pytest.mark.parametrize("empty", [None, ""])
def test_a_row_without_its_prompt_or_domain_is_refused(tmp_path, suffix, column, empty):
    frame = pd.DataFrame({"prompt": ["a", "b"], "domain": ["math", "math"], "length_tokens": [5, 6]})
    frame.loc[1, column] = empty
    with pytest.raises(DataError, match=f"row 2: {column} is `(nan|None|)`"):
        with_lengths(written(frame, tmp_path / f"lengths{suffix}"))


def test_quantiles_may_come_in_any_order_of_rows_but_do_not_fall(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("domain,p,tokens\nmath,1,90\ncode,0.5,7\nmath,0,10\ncode,1,7\nmath,0.5,40\nmath,0.5,50\n")
    assert with_lengths(file).num_prompts_by_domain == {Domain("math"): 4096, Domain("code"): 4096}
    file.write_text("domain,p,tokens\ncode,0.1,9000\nmath,0.9,200\nmath,0.1,4000\ncode,0.9,9000\n")
    with pytest.raises(DataError, match=r"row 2: tokens is `200`\.\n.*\n.* 1 - p"):
        with_lengths(file)


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
        ("length_tokens\n5\n0\n", "row 2: length_tokens is `0`"),
        ("length_tokens\n99999999999999\n", "row 1: length_tokens is `99999999999999`"),
        ("length_tokens\ninf\n", "row 1: length_tokens is `inf`"),
        ("p,tokens\n0,5\n1.5,6\n", "row 2: p is `1.5`"),
        ("p,tokens\n0,5\n1,nan\n", "row 2: tokens is `nan`"),
        ("length_tokens\n", "has no rows"),
        ("", "cannot be read"),
    ],
)
def test_a_file_without_lengths_is_refused_with_its_fault(tmp_path, content, message):
    file = tmp_path / "lengths.csv"
    file.write_text(content)
    with pytest.raises(DataError, match=message):
        with_lengths(file)


def test_a_file_that_is_not_there_or_of_another_kind_is_refused(tmp_path):
    for name, message in (("missing.csv", "cannot be read"), ("lengths.txt", "neither a folder nor a file")):
        with pytest.raises(DataError, match=message):
            with_lengths(tmp_path / name)


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
            seconds.append(source.score_of(to_score).time_s)
    assert statistics.median(times["code"]) == pytest.approx(0.31, rel=0.1)
    assert sum(each >= 30 for each in times["code"]) / 2000 == pytest.approx(0.052, abs=0.015)
    assert max(times["math"]) < 0.1


def to_score(source: Workload, key: str, *, step: int = 0, sample: int = 0, **changes) -> ResponseToScore:
    values = {
        "request": RequestId(step, PromptId(0, key), sample),
        "prompt": source.prompts[key].prompt,
        "token_ids": blank_tokens(700),
        "is_truncated": False,
    }
    return ResponseToScore(**(values | changes))


def scores(source: Workload, domain: str, number: int = 3000, **changes) -> list[ModelledScore]:
    keys = [key for key in source.prompts if key.startswith(domain)][:number]
    return [source.score_of(to_score(source, key, **changes)) for key in keys]


def test_endless_programs_are_wrong_and_right_ones_end_below_the_papers_limit():
    drawn = scores(workload("workload=code"), "code")
    endless = [each for each in drawn if each.time_s == math.inf]
    assert len(endless) / len(drawn) == pytest.approx(0.0513, abs=0.012)
    assert {each.reward for each in endless} == {0.0}
    assert max(each.time_s for each in drawn if each.reward) < 30.2
    right, wrong = (
        [each.time_s for each in drawn if each.reward == reward and each not in endless] for reward in (1, 0)
    )
    assert statistics.median(right) == pytest.approx(statistics.median(wrong), rel=0.1)
    every = scores(workload("workload=code", "workload.solve_rate=0.97", "workload.endless_share=0.2"), "code")
    assert sum(each.time_s == math.inf for each in every) / len(every) == pytest.approx(0.03, abs=0.01)


@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_run_times_of_a_prompts_programs_are_correlated_by_their_own_rho(rho):
    source = workload("workload=code", f"workload.run_time_rho={rho}", "workload.endless_share=0")
    pairs = [
        [source.score_of(to_score(source, key, sample=sample)).time_s for sample in (0, 1)]
        for key in list(source.prompts)[:3000]
    ]
    assert statistics.median(flat(pairs)) == pytest.approx(0.305, rel=0.04)  # of those that end, Fig 7a
    by_rank = pd.DataFrame(pairs).corr(method="spearman").loc[0, 1]
    assert by_rank == pytest.approx(6 / math.pi * math.asin(rho / 2), abs=0.04)  # of a Gaussian copula


def test_a_check_that_the_modelled_run_would_not_do_is_refused_with_the_words_that_model_it(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text("length_tokens\n100\n200\n")
    words = (f"workload.lengths={file}", "workload.domain=null")
    with pytest.raises(ConfigError, match="`any` is scored by the check `sandbox`") as caught:
        workload(*words, "reward=sandbox")
    assert caught.value.remedy == "Write reward=modelled reward.kinds.any=sandbox."
    assert workload(*words, "reward.kinds.any=sandbox").has_programs
    assert workload("workload=code", "reward=sandbox").has_programs


def test_each_domain_is_scored_by_its_own_kind_and_the_configuration_may_say_another():
    source = workload("workload=mix", "data.max_prompt_tokens=300", "hardware.rule_time_s=0.5")
    kinds = {domain: scores(source, domain, 1)[0] for domain in ("math", "code", "judge")}
    assert [each.has_program for each in kinds.values()] == [False, True, False]
    assert [each.judge_tokens for each in kinds.values()] == [None, None, 256 + 700 + 200]
    assert kinds["math"].time_s == 0.5
    assert source.needs_judge
    other = workload("workload=mix", "reward.kinds.judge=rule", "reward.kinds.math=sandbox")
    assert not other.needs_judge
    assert scores(other, "math", 1)[0].has_program
    assert scores(other, "judge", 1)[0].judge_tokens is None
    fixed = workload("workload=mix", "workload.reward_time_s=3")
    assert not fixed.needs_judge
    assert {scores(fixed, domain, 1)[0].time_s for domain in kinds} == {3}


def test_a_response_that_was_cut_has_no_program_to_run():
    source = workload("workload=code", "workload.solve_rate=1", "hardware.rule_time_s=0.01")
    [score] = scores(source, "code", 1, is_truncated=True)
    assert (score.reward, score.reason, score.has_program, score.time_s) == (0.0, "truncated", False, 0.01)


def test_lengths_drift_by_the_step_and_by_the_table():
    first = workload("workload=math")
    rate = workload("workload=math", "workload.drift_per_step=0.02")
    table = workload("workload=math", "workload.drift_by_step={10: 1.5, 20: 3, 30: 2}")
    both = workload("workload=math", "workload.drift_by_step.0=2", "workload.drift_per_step=-0.5")
    factors = {
        step: [_drifted(first, other, step) for other in (rate, table, both)] for step in (0, 10, 15, 20, 25, 99)
    }
    for step, (by_rate, by_table, by_both) in factors.items():
        assert by_rate == pytest.approx(1.02**step, rel=0.02)
        assert by_table == pytest.approx({0: 1.5, 10: 1.5, 15: 2.25, 20: 3, 25: 2.5, 99: 2}[step], rel=0.02)
        assert step > 10 or by_both == pytest.approx(2 * 0.5**step, rel=0.3 if step else 0.02)
    doubling = workload("workload=math", "workload.drift_per_step=1")
    assert set(flat(many(doubling, 3, 2, step=5000, limit=4096))) == {4096}, "beyond any number"


def _drifted(first: Workload, other: Workload, step: int) -> float:
    """By how much longer the same requests are."""
    lengths = [sum(flat(many(source, 60, 2, step=step, limit=10**9))) for source in (first, other)]
    return lengths[1] / lengths[0]


def test_the_share_of_right_responses_is_a_domains_own_and_drifts_up_to_all():
    source = workload(
        "workload=mix", "workload.solve_rate_by_domain.math=0.2", "workload.solve_rate_drift_per_step=0.01"
    )
    rates = {
        (domain, step): statistics.mean(each.reward for each in scores(source, domain, 2000, step=step))
        for domain, step in (("math", 0), ("math", 30), ("code", 0), ("code", 70))
    }
    assert rates == pytest.approx({("math", 0): 0.2, ("math", 30): 0.5, ("code", 0): 0.5, ("code", 70): 1}, abs=0.04)


def unlimited(*words: str) -> list[int]:
    return flat(many(workload(*words), 500, 2, limit=10**9))


def test_only_what_is_above_the_90_percent_quantile_of_a_domain_is_scaled():
    for domain in PAPER:
        begin = paper_lengths().distribution(Domain(domain)).value(0.9)
        before = unlimited(f"workload={domain}")
        assert 0.05 < sum(length > begin for length in before) / len(before) < 0.15
        for scale in (0, 0.5, 2):
            after = unlimited(f"workload={domain}", f"workload.tail_scale={scale}")
            wanted = [old if old <= begin else begin + scale * (old - begin) for old in before]
            assert after == pytest.approx(wanted, abs=2)


def test_a_recorded_run_takes_no_other_tail():
    recorded = dataclasses.replace(paper_lengths(), exact={(0, 0, "a", 0): 5.0})
    section = composed("backend=sim", "model=qwen2.5-7b", "run.dir=x", "workload.tail_scale=2").workload
    with pytest.raises(ConfigError, match="has its own tail"):
        Tail(section, recorded)


def test_a_recorded_run_takes_no_further_drift():
    recorded = dataclasses.replace(paper_lengths(), exact={(0, 0, "a", 0): 5.0})
    section = composed("backend=sim", "model=qwen2.5-7b", "run.dir=x", "workload.drift_per_step=0.1").workload
    with pytest.raises(ConfigError, match="has its own drift"):
        Drift(section, recorded)


def test_prompts_over_the_limit_are_dropped_as_in_a_real_run():
    source = workload("workload=math", "data.max_prompt_tokens=256")
    assert (len(source.prompts), source.num_long_prompts) == (4096, 0)
    with pytest.raises(DataError, match=r"None of the workload's 4096 prompts has at most data\.max_prompt_tokens=255"):
        workload("workload=math", "data.max_prompt_tokens=255")


@pytest.mark.parametrize("key", ["workload.solve_rate_by_domain.poetry=0.5", "reward.kinds.poetry=judge"])
def test_a_value_for_a_domain_that_there_is_not_is_refused(key):
    with pytest.raises(ConfigError, match="names `poetry`, which is no domain") as caught:
        workload(key)
    assert "math, code, judge" in str(caught.value)


def test_a_response_that_a_recorded_run_scored_has_its_reward_again():
    recorded = dataclasses.replace(paper_lengths(), verdicts={(3, 0, "a", 1): (1.0, "correct")})
    assert recorded.verdict(RequestId(3, PromptId(0, "a"), 1)) == (1.0, "correct")
    assert recorded.verdict(RequestId(3, PromptId(0, "a"), 2)) is None
    assert paper_lengths().verdict(RequestId(3, PromptId(0, "a"), 1)) is None


@pytest.mark.parametrize(("name", "mean", "share_cut"), [("base", 1480, 0.00016), ("think", 9500, 0.035)])
def test_log_normal_lengths_are_what_the_comment_of_their_workload_states(name, mean, share_cut):
    lengths = flat(many(workload(f"workload={name}"), 2000, 4, limit=32768))
    assert statistics.mean(lengths) == pytest.approx(mean, rel=0.05)
    assert sum(each == 32768 for each in lengths) / len(lengths) == pytest.approx(share_cut, abs=0.01)
    assert statistics.median(lengths) == pytest.approx(900 if name == "base" else 7000, rel=0.05)


def test_lengths_come_from_one_place():
    with pytest.raises(ConfigError, match=r"workload.median_tokens=900 with workload.lengths=x.csv"):
        workload("workload=base", "workload.lengths=x.csv")
