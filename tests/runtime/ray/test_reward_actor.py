"""What a reward's process is told of a response."""

from types import SimpleNamespace

import numpy as np
import pytest

from rollpacker.core.ids import Domain, PromptId, RequestId
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.reward import ResponseToScore
from rollpacker.protocols.rollout import Prompt
from rollpacker.rewards.worker import arguments_of
from rollpacker.runtime.ray.actors import RewardActor

MESSAGES = ({"role": "user", "content": "2 + 2?"},)


@pytest.mark.parametrize(("text", "expected"), [(None, list(MESSAGES)), ("2 + 2?", "2 + 2?")])
def test_a_function_gets_the_prompt_as_its_line_has_it_whatever_template_the_policy_sees(text, expected):
    actor = object.__new__(RewardActor)  # without the process around it
    actor._tokenizer = SimpleNamespace(text=lambda _: "<user>2 + 2?</user>", decode=lambda _: "4")
    prompt = Prompt(
        key="a", domain=Domain("math"), messages=MESSAGES, text=text, reference=AnswerReference(text="4"), row={"n": 1}
    )
    request = actor._decode(
        ResponseToScore(
            request=RequestId(0, PromptId(0, "a"), 0),
            prompt=prompt,
            token_ids=np.zeros(1, np.int32),
            is_truncated=False,
        )
    )
    assert request.prompt_text == "<user>2 + 2?</user>"
    assert arguments_of(request) == {
        "prompt": expected,
        "response": "4",
        "ground_truth": "4",
        "row": {"n": 1},
        "is_truncated": False,
    }
