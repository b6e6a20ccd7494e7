"""Turns an evaluation into rows of its tables; the scores are those of `rollpacker.evaluation.statistics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollpacker.core.ids import set_of
from rollpacker.evaluation.comparison import Rewards, paired_difference, rewards_by_set
from rollpacker.evaluation.statistics import mean_reward, pass_at, quantile
from rollpacker.metrics.evaluation_schemas import EVALUATIONS
from rollpacker.protocols.rollout import FinishReason, Response, Verdict
from rollpacker.runtime.run.texts import KeptText

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollpacker.config.sections.evaluation import EvaluationSection, HeldOutFile
    from rollpacker.core.ids import PromptId, RequestId
    from rollpacker.runtime.rollout.evaluation_record import EvaluationRecord
    from rollpacker.runtime.rollout.request_book import RequestRecord

Row = dict[str, Any]

_NO_SCORE: Row = {column.name: None for column in EVALUATIONS.columns if column.is_nullable}
"""Of a set that was cut."""


def evaluation_tables(
    record: EvaluationRecord,
    section: EvaluationSection,
    texts: Mapping[RequestId, KeptText],
    first: Mapping[str, Rewards],
    *,
    is_modelled: bool,
) -> dict[str, list[Row]]:
    """The rows of an evaluation that is over, by table.

    Args:
        record: Every response is there and scored, unless it was cut: a set that lacks one has no score, and no rows
            of its responses, because what is missing is long.
        section: Of the run.
        texts: Of those that are kept as text.
        first: Of the run's first evaluation of each set, to compare with; a set that had none is left out.
        is_modelled: Whether the times are a model's.
    """
    marks = {"step": record.begin.step, "modelled": is_modelled}
    by_set = _scored_by_set(record, section)
    tables: dict[str, list[Row]] = {"evaluations": [], "pass_at_k": [], "evaluation_responses": []}
    for rule in section.rules:
        requests = sorted(by_set[rule.name], key=_place_in(record))
        num_samples = rule.num_samples or 1
        num_unfinished = _num_prompts(record, rule) * num_samples - len(requests)
        of_set = marks | {"set": rule.name}
        row = of_set | _NO_SCORE
        if not num_unfinished:
            responses = [
                of_set | _response_row(record, request, texts.get(request.request, KeptText())) for request in requests
            ]
            scores, of_pass = _scores(requests, section, num_samples)
            row |= scores | _difference(rewards_by_set(responses)[rule.name], first.get(rule.name))
            tables["pass_at_k"] += [of_set | each for each in of_pass]
            tables["evaluation_responses"] += responses
        tables["evaluations"].append(
            row
            | {
                "num_prompts": _num_prompts(record, rule),
                "num_samples": num_samples,
                "mode": "fill" if record.has_filled else "alone",
                "num_unfinished": num_unfinished,
                "is_complete": not num_unfinished,
                "temperature": rule.temperature,
                "tokens_generated": sum(_response(request).num_tokens for request in requests),
                "policy_version": record.policy_version,
                "started_at_s": record.began_at_s,
                "time_s": record.ended_at_s - record.began_at_s,
            }
        )
    return tables


def _scored_by_set(record: EvaluationRecord, section: EvaluationSection) -> dict[str, list[RequestRecord]]:
    """The requests of each set that have a reward."""
    by_set: dict[str, list[RequestRecord]] = {rule.name: [] for rule in section.rules}
    for request in record.requests.values():
        if request.verdict is not None:
            by_set[set_of(request.request)].append(request)
    return by_set


def _num_prompts(record: EvaluationRecord, rule: HeldOutFile) -> int:
    return sum(key.startswith(f"{rule.name}/") for key in record.prompts)


def _place_in(record: EvaluationRecord) -> Any:
    """The order of the file: a request that was launched again after its engine was lost keeps its place."""
    places = {key: place for place, key in enumerate(record.prompts)}
    return lambda request: (places[request.request.prompt.key], request.request.sample)


def _difference(rewards: Rewards, first: Rewards | None) -> Row:
    """How much better than at first, where the same samples were drawn then."""
    difference = None if first is None else paired_difference(rewards, first)
    if difference is None:
        return {}
    return {
        "diff_to_first": difference.value,
        "se_diff_given_prompts": difference.se_given_prompts,
        "se_diff_over_prompts": difference.se_over_prompts,
    }


def _scores(requests: Sequence[RequestRecord], section: EvaluationSection, num_samples: int) -> tuple[Row, list[Row]]:
    """The scores of a set that is complete, and its rows of pass@k."""
    rewards: dict[PromptId, list[float]] = {}
    for request in requests:
        rewards.setdefault(request.request.prompt, []).append(_verdict(request).reward)
    mean = mean_reward(list(rewards.values()))
    num_passed = [sum(reward >= section.pass_reward for reward in of_prompt) for of_prompt in rewards.values()]
    lengths = sorted(_response(request).num_tokens for request in requests)
    num_truncated = sum(_response(request).finish_reason is FinishReason.LENGTH for request in requests)
    row = {
        "reward_mean": mean.value,
        "se_given_prompts": mean.se_given_prompts,
        "se_over_prompts": mean.se_over_prompts,
        "pass_share": sum(num_passed) / len(requests),
        "truncated_share": num_truncated / len(requests),
        "length_mean_tokens": sum(lengths) / len(lengths),
        "length_p50_tokens": quantile(lengths, 50),
        "length_p90_tokens": quantile(lengths, 90),
    }
    of_pass: list[Row] = []
    for k in sorted({k for k in section.pass_at if k <= num_samples}):
        value, error = pass_at(k, num_passed, num_samples)
        of_pass.append({"k": k, "value": value, "se_over_prompts": error})
    return row, of_pass


def _response_row(record: EvaluationRecord, request: RequestRecord, kept: KeptText) -> Row:
    prompt, response, verdict = record.prompts[request.request.prompt.key].prompt, _response(request), _verdict(request)
    return {
        "prompt": prompt.key,
        "domain": prompt.domain,
        "sample": request.request.sample,
        "engine": request.engine,
        "length_tokens": response.num_tokens,
        "finish_reason": response.finish_reason.value,
        "reward": verdict.reward,
        "reward_reason": verdict.reason,
        "launched_at_s": request.launched_at_s,
        "finished_at_s": request.finished_at_s,
        "scored_at_s": request.scored_at_s,
        **kept._asdict(),
    }


def _response(request: RequestRecord) -> Response:
    assert request.response is not None
    return request.response


def _verdict(request: RequestRecord) -> Verdict:
    assert request.verdict is not None
    return request.verdict
