"""Requests for scores, and the verdicts that a worker gives on them."""

from rollpacker.core.ids import Domain, PromptId, RequestId
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.reward import ScoringRequest


def request_of(sample, truth, response="", **fields):
    default = {
        "request": RequestId(round=0, prompt=PromptId(epoch=0, key="a"), sample=sample),
        "domain": Domain("walk"),
        "prompt_text": "",
        "response_text": response,
        "is_truncated": False,
        "reference": AnswerReference(text=truth),
    }
    return ScoringRequest(**default | fields)


async def verdicts_of(worker, number):
    """Wait for so many verdicts, each on another sample; give them by sample."""
    verdicts = []
    while len(verdicts) < number:
        verdicts += await worker.collect()
    by_sample = {verdict.request.sample: verdict for verdict in verdicts}
    assert len(by_sample) == len(verdicts) == number
    return [by_sample[sample] for sample in sorted(by_sample)]
