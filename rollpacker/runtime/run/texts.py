"""The responses of a step that are kept as text, so that a person can read what the policy writes."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from rollpacker.core.ids import ENVIRONMENT, set_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rollpacker.core.ids import PromptId, RequestId
    from rollpacker.protocols.backend import TextReader
    from rollpacker.protocols.rollout import Response
    from rollpacker.runtime.rollout.batch import Batch
    from rollpacker.runtime.rollout.evaluation_record import EvaluationRecord

    Texts = dict[RequestId, "KeptText"]


class KeptText(NamedTuple):
    """What is kept of one response; the fields are columns of its row."""

    prompt_text: str | None = None
    """As the policy saw it."""
    response_text: str | None = None
    response_turns: list[str] | None = None
    """The policy's and its environment's in turns, the policy's first; None where no environment answered."""


def with_texts(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of responses that are kept as text."""
    return [row for row in rows if row["response_text"] is not None]


class TextKeeper:
    """Chooses responses and decodes them.

    Args:
        reader: Of the run's tokenizer; None in a modelled run, which has no texts.
        num_prompts: Of a training batch, whose responses are kept, raced ones too.
        num_held_out: Of each held-out set, the first response to so many prompts.
    """

    def __init__(self, reader: TextReader | None, *, num_prompts: int, num_held_out: int) -> None:
        self._reader = reader
        self._num_prompts = num_prompts
        self._num_held_out = num_held_out

    def of_batch(self, batch: Batch) -> Texts:
        """Of the first prompts of the batch, in its order."""
        chosen = (batch.order or ())[: self._num_prompts]
        return self._read(batch, [request for request in batch.requests if request.prompt in chosen])

    def of_evaluation(self, record: EvaluationRecord) -> Texts:
        """Of the first prompts of each file, which are the same each time."""
        chosen: list[RequestId] = []
        num_by_set: dict[str, int] = {}
        first_samples = {request.prompt.key: request for request in record.requests if request.sample == 0}
        for key in record.prompts:
            request = first_samples.get(key)
            if request is not None and num_by_set.get(set_of(request), 0) < self._num_held_out:
                num_by_set[set_of(request)] = num_by_set.get(set_of(request), 0) + 1
                chosen.append(request)
        return self._read(record, chosen)

    def _read(self, record: Batch | EvaluationRecord, requests: Collection[RequestId]) -> Texts:
        if self._reader is None:
            return {}
        texts: Texts = {}
        prompts: dict[PromptId, str] = {}
        for request in requests:
            if request.prompt not in prompts:
                prompts[request.prompt] = self._reader.text(record.prompts[request.prompt.key].prompt)
            response = record.requests[request].response
            if response is not None:
                text = self._reader.decode(response.token_ids)
                texts[request] = KeptText(prompts[request.prompt], text, self._turns(self._reader, response))
        return texts

    @staticmethod
    def _turns(reader: TextReader, response: Response) -> list[str] | None:
        if response.mask is None:
            return None
        turns: list[str] = []
        begin = 0
        for is_environment, spans in groupby(response.spans, lambda span: span.policy_version == ENVIRONMENT):
            if is_environment and not turns:
                turns.append("")  # its environment spoke first
            end = begin + sum(span.num_tokens for span in spans)
            turns.append(reader.decode(response.token_ids[begin:end]))
            begin = end
        return turns
