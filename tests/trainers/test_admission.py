from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rollpacker.core.errors import ForeignVersion, ImpossibleEvent
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, VersionSpan
from rollpacker.protocols.rollout import FinishReason, Response, RolloutGroup
from rollpacker.protocols.trainer import BatchShape
from rollpacker.trainers.admission import Admission

if TYPE_CHECKING:
    from collections.abc import Sequence


def response(sample: int = 0, num_tokens: int = 3, **changes: Any) -> Response:
    whole = Response(
        request=RequestId(4, PromptId(0, "p"), sample),
        engine=EngineId("engine-0"),
        finish_reason=FinishReason.STOP,
        token_ids=np.arange(num_tokens, dtype=np.int32),
        logprobs=np.zeros(num_tokens, dtype=np.float32),
        spans=(VersionSpan(policy_version=7, num_tokens=num_tokens),),
        queue_time_s=0.0,
        generation_time_s=0.0,
    )
    return dataclasses.replace(whole, **changes)


def group(key: str = "p", responses: Sequence[Response] | None = None, **changes: Any) -> RolloutGroup:
    chosen = tuple([response(0), response(1)] if responses is None else responses)
    whole = RolloutGroup(
        prompt=PromptId(0, key),
        domain=Domain("math"),
        prompt_token_ids=np.array([5], dtype=np.int32),
        responses=chosen,
        rewards=(1.0,) * len(chosen),
    )
    return dataclasses.replace(whole, **changes)


def admission(num_groups: int = 3, oldest: int = 7) -> Admission:
    return Admission(
        BatchShape(
            step=7,
            policy_version=7,
            oldest_policy_version=oldest,
            num_groups=num_groups,
            num_responses=2 * num_groups,
            max_response_tokens=10,
        )
    )


def test_a_whole_batch_is_admitted_in_any_split():
    gate = admission()
    gate.admit([group("a")])
    gate.admit([])
    gate.admit([group("b"), group("c")])
    gate.close()


@pytest.mark.parametrize("versions", [(6,), (7, 8), (8, 7, 7)])
def test_one_token_of_another_version_is_refused(versions: tuple[int, ...]):
    spans = tuple(VersionSpan(policy_version=version, num_tokens=1) for version in versions)
    foreign = response(1, num_tokens=len(versions), spans=spans)
    with pytest.raises(ForeignVersion, match=f"r4:p@0#1 holds tokens of policy version {min({*versions} - {7})}"):
        admission().admit([group("a"), group("b", [response(0), foreign])])


@pytest.mark.parametrize("versions", [(5,), (5, 6), (5, 6, 7), (7,)])
def test_tokens_back_to_the_oldest_version_are_admitted_and_no_older_ones(versions: tuple[int, ...]):
    spans = tuple(VersionSpan(policy_version=version, num_tokens=1) for version in versions)
    of_versions = group("a", [response(0), response(1, num_tokens=len(versions), spans=spans)])
    admission(1, oldest=5).admit([of_versions])
    if 5 in versions:
        with pytest.raises(ForeignVersion, match="versions 6 to 7"):
            admission(1, oldest=6).admit([of_versions])


def test_a_version_that_is_not_there_yet_is_refused_whatever_the_oldest_is():
    spans = (VersionSpan(policy_version=6, num_tokens=1), VersionSpan(policy_version=8, num_tokens=2))
    with pytest.raises(ForeignVersion, match="version 8"):
        admission(oldest=0).admit([group("a", [response(0), response(1, spans=spans)])])


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (group(rewards=(1.0,)), "2 responses and 1 rewards"),
        (group(responses=[]), "0 responses"),
        (group(rewards=(1.0, math.nan)), "nan"),
        (group(prompt_token_ids=np.array([], dtype=np.int32)), "empty prompt"),
        (group(responses=[response(0), response(1, num_tokens=0)]), "#1 has 0 tokens"),
        (group(responses=[response(0, num_tokens=11), response(1)]), "#0 has 11 tokens"),
        (group(responses=[response(0), response(1, logprobs=np.zeros(2, dtype=np.float32))]), "2 log-probabilities"),
        (
            group(responses=[response(0), response(1, spans=(VersionSpan(policy_version=7, num_tokens=2),))]),
            "spans over 2 tokens",
        ),
        (group(responses=[response(0), response(1, finish_reason=FinishReason.ABORTED)]), "aborted after 3"),
    ],
)
def test_a_malformed_group_is_refused_with_what_is_wrong(bad: RolloutGroup, says: str):
    with pytest.raises(ImpossibleEvent, match=says):
        admission().admit([bad])


def test_a_prompt_that_comes_twice_is_refused():
    gate = admission()
    gate.admit([group("a")])
    with pytest.raises(ImpossibleEvent, match="a@0 came twice"):
        gate.admit([group("b"), group("a")])
    with pytest.raises(ImpossibleEvent, match="c@0 came twice"):
        gate.admit([group("c"), group("c")])


def test_the_same_text_in_another_epoch_is_another_prompt():
    gate = admission(2)
    gate.admit([group(), group(prompt=PromptId(1, "p"))])
    gate.close()


def test_more_than_was_announced_is_refused():
    with pytest.raises(ImpossibleEvent, match="got 2 groups"):
        admission(1).admit([group("a"), group("b")])
    with pytest.raises(ImpossibleEvent, match="1 groups with 3 responses"):
        admission(1).admit([group("a", [response(0), response(1), response(2)])])


def test_a_call_that_is_refused_takes_no_group_of_it():
    gate = admission(2)
    with pytest.raises(ImpossibleEvent):
        gate.admit([group("a"), group("b", rewards=(1.0,))])
    gate.admit([group("a"), group("b")])
    gate.close()


def test_a_missing_group_or_response_leaves_the_batch_incomplete():
    gate = admission(2)
    gate.admit([group("a")])
    with pytest.raises(ImpossibleEvent, match="1 of 2 groups and 2 of 4 responses"):
        gate.close()
    gate.admit([group("b", [response(0)])])
    with pytest.raises(ImpossibleEvent, match="2 of 2 groups and 3 of 4 responses"):
        gate.close()


def test_a_batch_may_turn_out_smaller_than_it_was_announced_but_not_empty_and_not_larger():
    gate = admission(2)
    with pytest.raises(ImpossibleEvent, match="0 of 2 groups and 0 of 0 responses"):
        gate.close(0)
    gate.admit([group("a")])
    for num_responses in (1, 3, 4, 5):
        with pytest.raises(ImpossibleEvent, match=f"2 of {num_responses} responses"):
            gate.close(num_responses)
    gate.close(2)


def test_a_batch_that_is_complete_takes_no_group_and_is_completed_once():
    gate = admission(2)
    gate.admit([group("a")])
    gate.close(2)
    with pytest.raises(ImpossibleEvent, match="was completed, and more came"):
        gate.admit([group("b")])
    with pytest.raises(ImpossibleEvent, match="was completed, and more came"):
        gate.close(2)


def test_an_empty_batch_cannot_be_announced():
    with pytest.raises(ImpossibleEvent, match="0 groups"):
        admission(0)
