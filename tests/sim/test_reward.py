"""A modelled reward gives each response one verdict, in the time that its work and its limit allow."""

import asyncio
import math

import pytest

from rollpacker.config.sections.reward import RewardSection
from rollpacker.core.events import CaseRun
from rollpacker.core.ids import Domain
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.reward import ResponseToScore
from rollpacker.protocols.rollout import Prompt, Verdict
from rollpacker.sim.engine import blank_tokens
from rollpacker.sim.judge import JudgePlan
from rollpacker.sim.reward import ModelledReward, ModelledScore
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.sim.clusters import request
from tests.sim.test_reward_judge import judge_costs

RIGHT = ModelledScore(reward=1.0, reason="correct", time_s=2.0, has_program=True)
ENDLESS = ModelledScore(reward=0.0, reason="wrong_answer", time_s=math.inf, has_program=True)
RULE = ModelledScore(reward=1.0, reason="correct", time_s=1.0)


def in_virtual_time(test):
    """Run an async test on the virtual loop; pytest-asyncio would run it on a real one."""
    return lambda: run_in_virtual_time(test())


def section(**values) -> RewardSection:
    return RewardSection(name="modelled", **({"num_workers": 4, "timeout_s": 30} | values))


def to_score(number: int, *limits_s: float) -> ResponseToScore:
    prompt = Prompt(key=f"p{number}", domain=Domain("code"), messages=(), text="", reference=AnswerReference(text=""))
    return ResponseToScore(
        request=request(number),
        prompt=prompt,
        token_ids=blank_tokens(1),
        is_truncated=False,
        case_limits_s=limits_s,
    )


async def scored(reward: ModelledReward, responses: list[ResponseToScore]) -> list[tuple[int, float, Verdict]]:
    """(number, when, verdict) of each response, in order of arrival."""
    await reward.score(responses)
    seen: list[tuple[int, float, Verdict]] = []
    while len(seen) < len(responses):
        verdicts = await reward.collect()
        now = asyncio.get_running_loop().time()
        seen += [(int(each.request.prompt.key[1:]), now, each) for each in verdicts]
    await reward.close()
    return seen


def rewarding(scores: list[ModelledScore], **values) -> ModelledReward:
    return ModelledReward(section(**values), score_of=lambda response: scores[int(response.request.prompt.key[1:])])


@in_virtual_time
async def test_as_many_responses_are_scored_at_once_as_there_are_workers():
    seen = await scored(rewarding([RIGHT] * 5, num_workers=2), [to_score(number) for number in range(5)])
    assert [(number, when) for number, when, _ in seen] == [(0, 2.0), (1, 2.0), (2, 4.0), (3, 4.0), (4, 6.0)]
    assert {verdict.time_s for _, _, verdict in seen} == {2.0}  # without waiting


@in_virtual_time
async def test_programs_share_the_cores_of_the_allocation():
    seen = await scored(rewarding([RIGHT] * 4, num_cores=2), [to_score(number) for number in range(4)])
    assert [when for _, when, _ in seen] == [4.0] * 4


@in_virtual_time
async def test_a_program_over_the_rewards_limit_ends_there_with_no_reward():
    [(_, when, verdict)] = await scored(rewarding([ENDLESS]), [to_score(0)])
    assert (when, verdict.reward, verdict.reason, verdict.time_s) == (30, 0.0, "timeout", 30)
    assert verdict.case_runs == (CaseRun(case=0, time_s=30, is_passed=False),)


@in_virtual_time
async def test_a_limit_of_its_own_holds_for_its_test_case_and_kills_a_right_program_too():
    seen = await scored(rewarding([ENDLESS, RIGHT, RIGHT]), [to_score(0, 2.5), to_score(1, 1.5), to_score(2, 2.5)])
    verdicts = {number: (when, verdict.reward, verdict.reason) for number, when, verdict in seen}
    assert verdicts == {0: (2.5, 0.0, "timeout"), 1: (1.5, 0.0, "timeout"), 2: (2.0, 1.0, "correct")}
    runs = {number: verdict.case_runs for number, _, verdict in seen}
    assert runs == {0: (CaseRun(0, 2.5, False),), 1: (CaseRun(0, 1.5, False),), 2: (CaseRun(0, 2.0, True),)}


@in_virtual_time
async def test_a_rule_runs_no_test_case_and_knows_no_case_limit():
    [(_, when, verdict)] = await scored(rewarding([RULE]), [to_score(0, 0.5)])
    assert (when, verdict.reward, verdict.case_runs) == (1.0, 1.0, ())


@in_virtual_time
async def test_rules_with_workers_of_their_own_do_not_wait_for_programs():
    scores = [ENDLESS, RULE, RULE]
    sent = [to_score(number) for number in range(3)]
    together = await scored(rewarding(scores, num_workers=1), sent)
    began = asyncio.get_running_loop().time()
    apart = await scored(rewarding(scores, num_workers=1, num_rule_workers=1), sent)
    assert [when for _, when, _ in together] == [30, 31, 32]
    assert [(number, when - began) for number, when, _ in apart] == [(1, 1), (2, 2), (0, 30)]


@in_virtual_time
async def test_an_answer_for_the_judge_goes_to_the_judge():
    costs = judge_costs()
    reward = ModelledReward(
        section(),
        judge=JudgePlan(costs=costs, num_replicas=1, num_own_gpus=1),
        score_of=lambda _: ModelledScore(reward=1.0, reason="correct", judge_tokens=5000),
    )
    seen = await scored(reward, [to_score(number) for number in range(3)])
    one = costs.batch_s([5000])  # two do not fit into a pass
    assert [when for _, when, _ in seen] == pytest.approx([one, 2 * one, 3 * one])
    assert {verdict.case_runs for _, _, verdict in seen} == {()}


@in_virtual_time
async def test_a_closed_reward_answers_a_pending_collect_with_nothing_and_leaves_no_timer():
    reward = rewarding([ENDLESS])
    await reward.score([to_score(0)])
    pending = asyncio.create_task(reward.collect())
    await asyncio.sleep(1)
    await reward.close()
    assert list(await pending) == []
    with pytest.raises(Exception, match="Nothing can happen any more"):
        asyncio.get_running_loop().jump()
