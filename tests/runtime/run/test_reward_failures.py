"""What a person is told of checks that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.events import CaseRun
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.protocols.rollout import Verdict
from rollpacker.runtime.run.reward_failures import RewardFailures

if TYPE_CHECKING:
    from collections.abc import Sequence


def verdict(reason: str, case_runs: Sequence[CaseRun] = ()) -> Verdict:
    request = RequestId(round=0, prompt=PromptId(epoch=0, key="a"), sample=0)
    return Verdict(request=request, reward=0.0, reason=reason, time_s=1.0, case_runs=tuple(case_runs))


def verdicts(**numbers: int) -> list[Verdict]:
    return [verdict(reason) for reason, number in numbers.items() for _ in range(number)]


def test_each_reason_is_counted_the_most_frequent_first() -> None:
    text = RewardFailures().describe("step 1", verdicts(scored=7, wrong_result=6, checker_crashed=12))
    assert text == (
        "18 of 25 rewards of step 1 failed: 12 checker_crashed, 6 wrong_result. Such a reward is 0, or its part "
        "is, whatever the response is. Read why in reward.log below run.dir/logs."
    )


def test_it_is_said_again_for_a_new_reason_and_when_the_share_is_four_times_as_large() -> None:
    failures = RewardFailures()
    steps = [
        verdicts(wrong_answer=100),
        verdicts(wrong_answer=98, timeout=2),
        verdicts(wrong_answer=93, timeout=7),
        verdicts(wrong_answer=99, not_finite=1),
        verdicts(wrong_answer=92, timeout=7, not_finite=1),
        verdicts(timeout=100),
        verdicts(),
    ]
    is_said = [bool(failures.describe("a step", each)) for each in steps]
    assert is_said == [False, True, False, True, True, True, False]


def test_a_program_that_is_too_slow_is_no_check_that_fails() -> None:
    assert not RewardFailures().describe("step 1", [verdict("timeout", [CaseRun(0, 1.0, False)])])
