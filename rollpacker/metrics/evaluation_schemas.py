"""The tables of evaluations. They have steps of their own: see `rollpacker.metrics.schemas`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from rollpacker.metrics.columns import (
    DOMAIN,
    MODELLED,
    RESPONSE_TURNS,
    TableSchema,
    count,
    flag,
    number,
    seconds,
    text,
    tokens,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_FINISHED = count("step", "Training steps that the policy had behind it; 0 is the model that training began with")
_SET = text("set", "Name of the held-out set")

EVALUATIONS = TableSchema(
    name="evaluations",
    grain="One row per evaluation and held-out set, in the order of evaluation.path",
    columns=(
        _FINISHED,
        count("policy_version", "Version that generated the responses"),
        _SET,
        count("num_prompts", "Prompts of the set"),
        count("num_samples", "Responses to each prompt"),
        text("mode", "alone (a round of its own) or fill (beside a training round)"),
        count("num_unfinished", "Responses without a reward when the evaluation was stopped"),
        flag("is_complete", "Nothing is unfinished; otherwise the set has no score, since what is missing is long"),
        number("temperature", "That they were sampled at; 0 is greedy"),
        number("reward_mean", "Mean reward, avg@num_samples; null where responses are missing", is_nullable=True),
        number(
            "se_given_prompts",
            "Standard error of reward_mean over other samples of the same prompts: for comparing checkpoints on this "
            "set; null with one sample",
            is_nullable=True,
        ),
        number(
            "se_over_prompts",
            "Standard error of reward_mean over other prompts of the same kind, clustered by prompt: for what it says "
            "beyond this set; null with one prompt",
            is_nullable=True,
        ),
        number(
            "diff_to_first",
            "reward_mean less that of the run's first evaluation of the set with its num_prompts, num_samples and "
            "temperature (other settings are not compared), sample by sample; null in that one and for other prompts",
            is_nullable=True,
        ),
        number(
            "se_diff_given_prompts", "As se_given_prompts, of diff_to_first: is this policy better?", is_nullable=True
        ),
        number("se_diff_over_prompts", "As se_over_prompts, of diff_to_first", is_nullable=True),
        number("pass_share", "Share of the responses with evaluation.pass_reward or more", is_nullable=True),
        number("truncated_share", "Share of the responses that were cut, as num_truncated of steps", is_nullable=True),
        number("length_mean_tokens", "Mean length of the responses", unit="tokens", is_nullable=True),
        count("length_p50_tokens", "Length that half of them do not exceed", unit="tokens", is_nullable=True),
        count("length_p90_tokens", "Length that 90 % of them do not exceed", unit="tokens", is_nullable=True),
        tokens("tokens_generated", "Tokens of the set's responses, as far as they have a reward"),
        seconds("started_at_s", "Begin of the evaluation, all sets together, since the run began"),
        seconds("time_s", "Time that it took, all sets together"),
        MODELLED,
    ),
)

PASS_AT_K = TableSchema(
    name="pass_at_k",
    grain="One row per evaluation, held-out set and k of evaluation.pass_at",
    columns=(
        _FINISHED,
        _SET,
        count("k", "Responses of which one must pass"),
        number("value", "Chance that one of k passes: the mean of 1 - C(n - c, k) / C(n, k) over the prompts"),
        number("se_over_prompts", "Its standard error over other prompts; null with one prompt", is_nullable=True),
        MODELLED,
    ),
)

EVALUATION_RESPONSES = TableSchema(
    name="evaluation_responses",
    grain="One row per held-out response of the complete sets; sets in their order, then prompts in the file's, then "
    "samples",
    columns=(
        _FINISHED,
        _SET,
        text("prompt", "The id field of the prompt file"),
        DOMAIN,
        count("sample", "Index among the prompt's responses, from 0; the same sample has the same seed in every step"),
        text("engine", "Engine that generated it"),
        tokens("length_tokens", "Length of the response"),
        text("finish_reason", "stop (end of sequence) or length (length limit)"),
        number("reward", "Its reward"),
        text("reward_reason", "Why the reward is what it is, one word"),
        seconds("launched_at_s", "When the driver asked for it, since the run began"),
        seconds("finished_at_s", "When the driver learned of its end, since the run began"),
        seconds("scored_at_s", "When the reward was known, since the run began"),
        text("prompt_text", "What the policy saw, of those that evaluation.num_texts keeps", is_nullable=True),
        text("response_text", "What it answered, of the same; special tokens left out", is_nullable=True),
        RESPONSE_TURNS,
        MODELLED,
    ),
)

EVALUATION_TABLES: Mapping[str, TableSchema] = MappingProxyType(
    {table.name: table for table in (EVALUATIONS, PASS_AT_K, EVALUATION_RESPONSES)}
)
"""By their names."""
