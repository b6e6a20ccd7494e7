"""What a person is told of rewards and environments that fail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rollpacker import pipeline
from rollpacker.core.commands import BeginEvaluation, BeginRound, RoundKind
from rollpacker.core.environments import NO_TURN
from rollpacker.core.events import CaseRun
from rollpacker.core.ids import EngineId, PromptId, RequestId
from rollpacker.metrics.tables import read_frame
from rollpacker.protocols.rollout import Verdict
from rollpacker.runtime.rollout.batch import Batch
from rollpacker.runtime.rollout.episodes import ENVIRONMENT_ACTOR, EnvironmentStay
from rollpacker.runtime.rollout.evaluation_record import EvaluationRecord
from rollpacker.runtime.rollout.request_book import RequestBook, RequestRecord
from rollpacker.runtime.run import opening
from rollpacker.runtime.run.failures import EnvironmentFailures, RewardFailures
from rollpacker.runtime.run.progress import Progress
from rollpacker.runtime.run.rollouts import load_rollouts, save_rollouts
from tests.sim.composed import config_of
from tests.sim.test_environment import RUN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WHY = (
    " Read why in the lines `The environment of ... failed` that a real run prints, or, with environment.nodes=all or "
    "nodes of their own, in logs/attempt-*/environments-*.log."
)


def verdict(reason: str, case_runs: Sequence[CaseRun] = ()) -> Verdict:
    request = RequestId(round=0, prompt=PromptId(epoch=0, key="a"), sample=0)
    return Verdict(request=request, reward=0.0, reason=reason, time_s=1.0, case_runs=tuple(case_runs))


def verdicts(**numbers: int) -> list[Verdict]:
    return [verdict(reason) for reason, number in numbers.items() for _ in range(number)]


def test_each_reason_of_failed_rewards_is_counted_the_most_frequent_first() -> None:
    text = RewardFailures().describe("step 1", verdicts(scored=7, wrong_result=6, checker_crashed=12))
    assert text == (
        "18 of 25 rewards of step 1 failed: 12 checker_crashed, 6 wrong_result. Such a reward is 0, or its part "
        "is, whatever the response is. Read why in reward.log below run.dir/logs."
    )


def test_failed_rewards_are_told_again_for_a_new_reason_and_when_the_share_is_four_times_as_large() -> None:
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


def record(prompt: str, sample: int, reason: str | None, scorer: str = ENVIRONMENT_ACTOR) -> RequestRecord:
    name = RequestId(0, PromptId(0, prompt), sample)
    verdict = None if reason is None else Verdict(request=name, reward=0.0, reason=reason, time_s=0.0, scorer=scorer)
    engine = EngineId("engine-0")
    return RequestRecord(request=name, engine=engine, launched_at_s=0.0, placed_at_s=0.0, verdict=verdict)


def book(*records: RequestRecord, activities: Mapping[str, int] | None = None, **counts: int) -> RequestBook:
    stays = [
        EnvironmentStay(request=RequestId(0, PromptId(0, "a"), 0), activity=activity, began_at_s=0.0, ended_at_s=1.0)
        for activity, number in (activities or {}).items()
        for _ in range(number)
    ]
    return RequestBook(requests={each.request: each for each in records}, stays=stays, **counts)


def batch(
    *, scored: Mapping[str, int], dropped: tuple[str, ...] = (), activities: Mapping[str, int], **counts: int
) -> Batch:
    """Of prompts that need two responses each, as many of which have a reward; the others began."""
    begin = BeginRound(
        round=0,
        step=0,
        kind=RoundKind.PLAIN,
        num_prompts_launched=len(scored),
        num_prompts_needed=len(scored),
        num_responses_launched=2,
        num_responses_needed=2,
    )
    records = [
        record(key, sample, "done" if sample < number else None) for key, number in scored.items() for sample in (0, 1)
    ]
    names: dict[str, list[RequestId]] = {
        key: [each.request for each in records if each.request.prompt.key == key] for key in scored
    }
    return Batch(
        begin=begin,
        policy_version=0,
        began_at_s=0.0,
        prompts={},
        book=book(*records, activities=activities, **counts),
        accepted={PromptId(0, key): tuple(of_prompt) for key, of_prompt in names.items() if key not in dropped},
        dropped=dict.fromkeys(PromptId(0, key) for key in dropped),
    )


def test_a_step_is_told_what_failed_and_what_it_lost_by_it() -> None:
    failing = batch(
        scored={"a": 2, "b": 1, "c": 0},
        dropped=("b", "c"),
        activities={"step": 9, "environment_error": 5, "environment_timeout": 1, "stopped": 3, "start": 2},
        num_restarts=4,
        num_given_up=2,
    )
    assert EnvironmentFailures().of_step("step 1", failing) == (
        "Environments failed 6 times in step 1 (5 environment_error, 1 environment_timeout): 4 restarts, 2 responses "
        f"given up, 2 prompts dropped, 2 of 6 responses trained.{WHY}"
    )


def test_prompts_whose_rewards_were_equal_are_not_of_environments_that_failed() -> None:
    told = EnvironmentFailures()
    assert not told.of_step("step 1", batch(scored={"a": 2, "b": 2}, dropped=("b",), activities={"step": 4}))
    both = batch(scored={"a": 2, "b": 2}, dropped=("b",), activities={"environment_crashed": 1}, num_restarts=1)
    said = told.of_step("step 2", both)
    assert said == f"Environments failed 1 time in step 2 (1 environment_crashed): 1 restart.{WHY}"


def test_a_failure_of_a_trajectory_that_is_stopped_has_no_consequence() -> None:
    said = EnvironmentFailures().of_step("step 1", batch(scored={"a": 2}, activities={"environment_error": 1}))
    assert said == f"Environments failed 1 time in step 1 (1 environment_error).{WHY}"


def test_first_observations_that_are_too_long_are_told_without_a_failure() -> None:
    silent = batch(scored={"a": 2, "b": 0}, dropped=("b",), activities={"reset": 3}, num_restarts=2, num_given_up=1)
    assert EnvironmentFailures().of_step("step 1", silent) == (
        "First observations of step 1 fill rollout.max_response_tokens: 2 restarts, 1 response given up, 1 prompt "
        "dropped, 2 of 4 responses trained. Raise it."
    )


def test_first_observations_that_are_too_long_are_told_beside_failures_of_others() -> None:
    both = batch(scored={"a": 2, "b": 0}, dropped=("b",), activities={"environment_lost": 1}, num_given_up=4)
    assert EnvironmentFailures().of_step("step 1", both) == (
        "Environments failed 1 time in step 1 (1 environment_lost): 4 responses given up, 1 prompt dropped, 2 of 4 "
        f"responses trained.{WHY} First observations of 3 responses or more of those given up fill "
        "rollout.max_response_tokens. Raise it."
    )


def test_a_prompt_is_dropped_for_other_causes_than_its_environments() -> None:
    other = batch(scored={"a": 2, "b": 0}, dropped=("b",), activities={"reset": 3})
    assert not EnvironmentFailures().of_step("step 1", other)


def test_an_asynchronous_run_that_is_resumed_names_the_failures_before_its_checkpoint(tmp_path: Path) -> None:
    failing = batch(
        scored={"a": 2, "b": 0},
        dropped=("b",),
        activities={"environment_error": 3},
        num_restarts=2,
        num_given_up=1,
    )
    without_a_stop = EnvironmentFailures().of_step("step 4", failing)
    save_rollouts(tmp_path, failing.book)
    loaded = load_rollouts(tmp_path)
    loaded.give_costs(failing.book)
    assert EnvironmentFailures().of_step("step 4", failing) == without_a_stop
    assert "3 environment_error" in without_a_stop


def test_failed_environments_are_told_again_for_a_new_reason_a_share_four_times_as_large_and_dropped_prompts() -> None:
    told = EnvironmentFailures()
    whole = {str(number): 2 for number in range(50)}
    steps = [
        batch(scored=whole, activities={"step": 100}),
        batch(scored=whole, activities={"environment_error": 2}),
        batch(scored=whole, activities={"environment_error": 3}),
        batch(scored=whole, activities={"environment_timeout": 1}),
        batch(scored=whole, activities={"environment_error": 20}),
        batch(scored=whole | {"b": 0}, dropped=("b",), activities={"environment_error": 9}),
        batch(scored=whole | {"b": 0}, dropped=("b",), activities={"environment_error": 9}),
        batch(scored=whole | dict.fromkeys("bcdef", 0), dropped=tuple("bcdef"), activities={"environment_error": 9}),
    ]
    is_said = [bool(told.of_step("a step", each)) for each in steps]
    assert is_said == [False, True, False, True, True, True, False, True]


def test_held_out_responses_whose_environments_failed_are_told_apart_from_wrong_ones() -> None:
    records = [
        *(record("a", sample, "environment_error") for sample in range(3)),
        record("b", 0, "environment_lost"),
        record("b", 1, "terminated"),
        record("b", 2, "environment_word", scorer="reward-0"),
    ]
    begin = BeginEvaluation(step=3, num_requests=6)
    evaluation = EvaluationRecord(begin=begin, policy_version=3, began_at_s=0.0, prompts={}, book=book(*records))
    told = EnvironmentFailures()
    assert told.of_evaluation("the evaluation after 3 steps", evaluation) == (
        "4 of 6 responses of the evaluation after 3 steps score 0, whatever the policy wrote, because their "
        f"environments failed: 3 environment_error, 1 environment_lost.{WHY}"
    )
    assert not told.of_evaluation("the evaluation after 4 steps", evaluation)


def test_held_out_responses_without_room_for_a_turn_have_no_environment_that_failed() -> None:
    records = [*(record("a", sample, NO_TURN) for sample in range(3)), record("b", 0, "environment_crashed")]
    begin = BeginEvaluation(step=3, num_requests=4)
    evaluation = EvaluationRecord(begin=begin, policy_version=3, began_at_s=0.0, prompts={}, book=book(*records))
    assert EnvironmentFailures().of_evaluation("the first evaluation", evaluation) == (
        "1 of 4 responses of the first evaluation score 0, whatever the policy wrote, because their environments "
        f"failed: 1 environment_crashed.{WHY} 3 of 4 responses of the first evaluation score 0 without a turn of the "
        "policy: their first observations fill evaluation.max_response_tokens (a set may have its own; null is "
        "rollout.max_response_tokens). Raise it."
    )


class Notes(Progress):
    """Keeps what a person is shown."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def test_a_run_names_what_its_batch_lost_with_its_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    monkeypatch.setattr(opening, "make_progress", lambda *_, **__: notes)
    words: list[Any] = [*RUN, "system=verl", "workload.environment.turn_timeout_s=100"]
    words += ["workload.environment.fail_stop_share=0.05", "workload.environment.max_restarts=0", "run.num_steps=1"]
    pipeline.run(config_of(tmp_path, words))
    ((_, step),) = read_frame(tmp_path, "steps").iterrows()
    assert (step["num_prompts_dropped"], step["num_responses"]) == (1, 12)
    (note,) = [line for line in notes.lines if line.startswith("Environments failed")]
    assert "1 response given up, 1 prompt dropped, 12 of 16 responses trained." in note


def test_the_evaluation_of_a_run_that_does_not_train_is_not_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes()
    monkeypatch.setattr(opening, "make_progress", lambda *_, **__: notes)
    held_out = tmp_path / "held.jsonl"
    held_out.write_text('{"id": "h", "domain": "math", "prompt": "x"}\n')
    words: list[Any] = [*RUN, "system=verl", f"evaluation.path={held_out}", "evaluation.num_samples=8"]
    words += ["workload.environment.turn_timeout_s=100", "workload.environment.fail_stop_share=0.9"]
    words += ["workload.environment.max_restarts=0", "run.num_steps=0"]
    pipeline.run(config_of(tmp_path / "run", words))
    (note,) = [line for line in notes.lines if "score 0" in line]
    assert "responses of the first evaluation score 0, whatever the policy wrote" in note
