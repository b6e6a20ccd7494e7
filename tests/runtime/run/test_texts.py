"""What is kept of responses for people: all of a response as one text, and its turns where an environment answered."""

from types import SimpleNamespace

import numpy as np
import pytest

from rollpacker.core.ids import ENVIRONMENT, EngineId, PromptId, RequestId, VersionSpan
from rollpacker.protocols.rollout import FinishReason, Response
from rollpacker.runtime.run.texts import KeptText, TextKeeper

REQUEST = RequestId(0, PromptId(0, "a"), 0)
READER = SimpleNamespace(text=lambda _: "prompt", decode=lambda tokens: "".join(chr(token) for token in tokens))


def kept(text: str, *spans: tuple[int, int]) -> KeptText:
    response = Response(
        request=REQUEST,
        engine=EngineId("engine-0"),
        finish_reason=FinishReason.STOP,
        token_ids=np.array([ord(each) for each in text], dtype=np.int32),
        logprobs=np.zeros(len(text), dtype=np.float32),
        spans=tuple(VersionSpan(*span) for span in spans),
        queue_time_s=0.0,
        generation_time_s=0.0,
    )
    batch = SimpleNamespace(
        order=[REQUEST.prompt],
        requests={REQUEST: SimpleNamespace(response=response)},
        prompts={"a": SimpleNamespace(prompt=None)},
    )
    return TextKeeper(READER, num_prompts=1, num_held_out=0).of_batch(batch)[REQUEST]


@pytest.mark.parametrize(
    ("spans", "turns"),
    [
        ([(3, 4)], None),
        ([(3, 1), (4, 3)], None),
        ([(3, 2), (ENVIRONMENT, 1), (3, 1)], ["ab", "c", "d"]),
        ([(3, 1), (4, 1), (ENVIRONMENT, 2)], ["ab", "cd"]),
        ([(ENVIRONMENT, 1), (3, 1), (ENVIRONMENT, 1), (4, 1)], ["", "a", "b", "c", "d"]),
    ],
)
def test_turns_of_a_policy_and_its_environment_are_kept_in_order_whatever_versions_wrote_them(spans, turns):
    assert kept("abcd", *spans) == KeptText("prompt", "abcd", turns)
