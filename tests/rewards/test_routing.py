"""Domains with different rewards in one run, with the real checks of math and walks."""

import asyncio
import json
import math
import shlex
from pathlib import Path

import pytest

from rollpacker.config.sections.data import PromptFile
from rollpacker.config.sections.reward import RewardSection
from rollpacker.config.sections.sandbox import SandboxSection
from rollpacker.core.errors import DataError, EngineFailed
from rollpacker.core.ids import Domain
from rollpacker.data.prompts import load_prompts
from rollpacker.rewards import walk
from rollpacker.rewards.factory import check_references, make_reward_worker
from rollpacker.rewards.routing import RoutingRewardWorker
from rollpacker.rewards.scoring import score_file
from rollpacker.rewards.worker import InPlaceRewardWorker, KillableRewardWorker
from tests.rewards.asking import request_of, verdicts_of

MIXED = Path(__file__).parents[1] / "data" / "mixed.jsonl"
SECTION = RewardSection(name="math", domains={"walk": "walk"}, timeout_s=20)


async def reasons_of(worker, number):
    return [verdict.reason for verdict in await verdicts_of(worker, number)]


async def test_each_response_is_scored_once_by_the_reward_of_its_domain():
    """`+1 4` is a walk from 3 to 4, and as math it is no answer to 4: the wrong check would say so."""
    worker = make_reward_worker(SECTION)
    try:
        await worker.score(
            [
                request_of(0, "42", "So it is \\boxed{42}.", domain="math"),
                request_of(1, "3 4", "+1 4"),
                request_of(2, "3 4", "\\boxed{3 4}"),
                request_of(3, "42", "\\boxed{41}", domain="algebra"),
            ]
        )
        assert await reasons_of(worker, 4) == ["correct", "correct", "malformed", "wrong_answer"]
        await worker.score([request_of(4, "3 4", "+1 5")])
        assert await reasons_of(worker, 1) == ["wrong_sum"]
    finally:
        await worker.close()


async def test_a_check_that_cannot_start_is_not_waited_for_although_the_others_work():
    broken = KillableRewardWorker("no_such_module:score", 1, 1.0)
    worker = RoutingRewardWorker(InPlaceRewardWorker(walk.score), {Domain("math"): broken})
    try:
        await worker.score([request_of(0, "42", "42", domain="math")])
        with pytest.raises(EngineFailed, match="No module named 'no_such_module'"):
            await worker.collect()
    finally:
        await worker.close()


async def test_closing_wakes_who_waits_for_verdicts():
    worker = RoutingRewardWorker(InPlaceRewardWorker(walk.score), {Domain("b"): InPlaceRewardWorker(walk.score)})
    await worker.score([request_of(0, "3 4", "+1 4", domain="b")])
    assert await reasons_of(worker, 1) == ["correct"]
    waiting = asyncio.create_task(worker.collect())
    await asyncio.sleep(0)
    await worker.close()
    assert list(await waiting) == []


async def test_one_check_for_every_domain_needs_no_router():
    worker = make_reward_worker(RewardSection(name="walk", domains={"walk": "walk"}))
    assert isinstance(worker, InPlaceRewardWorker)
    await worker.close()


def prompts_of(*keys):
    return [prompt for prompt in load_prompts([PromptFile(path=MIXED)]) if prompt.key in keys]


def test_answers_are_scored_by_math_and_walk():
    check_references(SECTION, prompts_of("math-1", "math-2", "walk-1"))


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("stdin-1", ["line 4", "'stdin-1' has test cases", "`code`, math,", "Set reward.domains.code=sandbox"]),
        ("judge-1", ["line 12", "a rubric or a reference answer", "`judge`, math,", "reward.domains.judge=judge"]),
    ],
)
def test_a_prompt_that_its_reward_would_score_0_whatever_the_response_is_refused(key, words):
    with pytest.raises(DataError) as caught:
        check_references(SECTION, prompts_of("math-1", key))
    for word in words:
        assert word in str(caught.value)


def test_a_domain_of_any_signs_is_advised_as_a_shell_and_the_configuration_take_it(tmp_path):
    row = {"id": 1, "domain": "it's A & B", "prompt": "?", "test_cases": [{"input": "1", "output": "2"}]}
    (tmp_path / "p.jsonl").write_text(json.dumps(row))
    with pytest.raises(DataError) as caught:
        check_references(SECTION, load_prompts([PromptFile(path=tmp_path / "p.jsonl")]))
    word = caught.value.remedy.removeprefix("Set ").removesuffix(", or leave these prompts out")
    assert shlex.split(word) == ['reward.domains."it\'s A & B"=sandbox']


@pytest.mark.parametrize("name", ["math", "walk", "judge", "sandbox"])
@pytest.mark.parametrize("fields", [{}, {"ground_truth": " "}, {"truth": "7"}, {"label": "7"}])
def test_a_reference_is_asked_for_where_the_reward_needs_one(tmp_path, name, fields):
    (tmp_path / "p.jsonl").write_text(json.dumps({"id": 1, "domain": "d", "prompt": "?", **fields}))
    prompts = load_prompts([PromptFile(path=tmp_path / "p.jsonl")])
    words = rf"p\.jsonl, line 1: the prompt '1' has nothing that the reward of its domain `d`, {name}, could score"
    with pytest.raises(DataError, match=words) as caught:
        check_references(RewardSection.model_construct(name=name, domains={}, sandbox=SandboxSection()), prompts)
    column = "label" if "label" in fields else "COLUMN"
    assert f"'data.columns={{ground_truth:{column}}}'" in caught.value.remedy


@pytest.mark.parametrize(
    "fields",
    [{"name": "environment"}, {"name": "modelled"}, {"function": "reward.py:score"}, {"url": "http://localhost:8000"}],
    ids=str,
)
def test_an_environment_a_function_and_a_server_need_no_reference(tmp_path, monkeypatch, fields):
    monkeypatch.chdir(tmp_path)
    Path("reward.py").write_text("def score(response):\n    return 1.0\n")
    Path("p.jsonl").write_text(json.dumps({"id": 1, "domain": "d", "prompt": "?", "number": 7}))
    [prompt] = load_prompts([PromptFile(path=Path("p.jsonl"))])
    check_references(RewardSection(**fields), [prompt])
    assert prompt.row == {"number": 7}


MATH, WALK = "as text, LaTeX or a number", "start and target"
UNANSWERABLE = [
    *(
        ("math", truth, MATH)
        for truth in ("nan", "NaN", "-Infinity", "None", "?", "$$", "\\boxed{}", "\\frac{", "...", "\t")
    ),
    *(("walk", truth, WALK) for truth in ("abc", "3", "3 20 21", "3 -20", "20 3", 3, 3.5, "9" * 30 + " 20", "nan", "")),
    *(
        (name, truth, "a finite number")
        for name in ("math", "walk", "judge")
        for truth in (math.nan, math.inf, -math.inf)
    ),
    *((name, truth, "a string or") for name in ("math", "walk", "judge") for truth in (True, ["7"], {"answer": 7})),
    *((name, truth, "has nothing that") for name in ("math", "walk", "judge") for truth in (None, "  \n")),
    *(("sandbox", truth, "test cases") for truth in ("7", 7, "")),
]


@pytest.mark.parametrize(("name", "truth", "words"), UNANSWERABLE)
def test_a_prompt_that_its_reward_cannot_hold_a_response_against_is_refused_before_the_start(
    tmp_path, name, truth, words
):
    """By the same two functions in `check`, `score` and `train`."""
    right = {"math": {"ground_truth": "7"}, "walk": {"ground_truth": "3 20"}, "judge": {"rubric": "Be kind."}}
    rows = [right.get(name, {"test_cases": ["assert f(1)"]}), {"ground_truth": truth}]
    lines = [{"id": index, "domain": "any", "prompt": "?", **row} for index, row in enumerate(rows)]
    (tmp_path / "p.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    section = RewardSection.model_construct(name=name, domains={}, sandbox=SandboxSection())
    with pytest.raises(DataError, match=r"p\.jsonl, line 2: ") as caught:
        check_references(section, load_prompts([PromptFile(path=tmp_path / "p.jsonl")]))
    assert words in str(caught.value)


def test_tests_that_import_what_the_sandbox_lacks_are_refused_and_run_with_it(tmp_path):
    line = {"id": 1, "domain": "code", "prompt": "?", "test_list": ["import numpy as np\nassert f(np.zeros(1))"]}
    (tmp_path / "p.jsonl").write_text(json.dumps(line))
    prompts = load_prompts([PromptFile(path=tmp_path / "p.jsonl")])
    with pytest.raises(DataError, match=r"line 1: the tests of the prompt '1' import `numpy`"):
        check_references(RewardSection(name="sandbox"), prompts)
    (tmp_path / "packages" / "numpy").mkdir(parents=True)
    sandbox = SandboxSection(packages=tmp_path / "packages")
    check_references(RewardSection(name="sandbox", sandbox=sandbox), prompts)


MANY, LESS = "1 " * 700_000, "1 " * 400_000
OVERSIZED = [
    ({"input": MANY, "output": "1"}, "test case 1 of the prompt '1' has an input of 2 MB", "files_mb=1"),
    ({"input": "", "output": MANY}, "an output of 2 MB", "output_mb=1"),
    ({"args": [], "expected": [MANY]}, "an output of 2 MB", "output_mb=1"),
]


@pytest.mark.parametrize(("case", "words", "allowed"), OVERSIZED, ids=["input", "output", "a value"])
def test_a_test_case_larger_than_a_sandbox_allows_is_refused(tmp_path, case, words, allowed):
    def prompts(case):
        small = {"input": "", "output": ""} if "input" in case else {"args": [], "expected": 1}
        line = {"id": 1, "domain": "code", "prompt": "?", "entry_point": "f", "test_cases": [small, case]}
        (tmp_path / "p.jsonl").write_text(json.dumps(line))
        return load_prompts([PromptFile(path=tmp_path / "p.jsonl")])

    section = RewardSection(name="sandbox", sandbox=SandboxSection(files_mb=1, output_mb=1))
    with pytest.raises(DataError, match=words) as caught:
        check_references(section, prompts(case))
    assert caught.value.allowed == f"Allowed: reward.sandbox.{allowed}"
    check_references(RewardSection(name="sandbox"), prompts(case))
    check_references(section, prompts({"input": LESS, "output": LESS, "time_limit_s": 1}))


def test_a_file_of_responses_may_hold_several_domains(tmp_path):
    answers = [("math-1", "\\boxed{42}"), ("walk-1", "+1 4 +4 8 +4 12 +4 16 +4 20"), ("math-2", "\\boxed{2}")]
    responses = tmp_path / "answers.jsonl"
    responses.write_text("".join(f"{json.dumps({'id': key, 'response': text})}\n" for key, text in answers))
    with pytest.raises(DataError, match="'stdin-1' has test cases"):
        score_file(SECTION, [PromptFile(path=MIXED)], responses, tmp_path / "scores.jsonl")
    rules = tmp_path / "rules.jsonl"
    rules.write_text("".join(MIXED.read_text().splitlines(keepends=True)[:3]))
    score_file(SECTION, [PromptFile(path=rules)], responses, tmp_path / "scores.jsonl")
    scores = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [score["reason"] for score in scores] == ["correct", "correct", "wrong_answer"]
