"""Probes of the trainer: a step with and without gradients, its update, and the way of its weights to the engines."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from rollpacker.core.ids import PromptId, VersionSpan
from rollpacker.profiling.probes.bench import Bench
from rollpacker.profiling.subject import now_s
from rollpacker.protocols.rollout import RolloutGroup
from rollpacker.protocols.trainer import BatchShape

_SHORTER = 8
"""How many times shorter the short sequences of `of_equal_tokens` are than its long ones."""


def selections(batch: Sequence[RolloutGroup]) -> Iterator[list[RolloutGroup]]:
    """Yield parts of a batch that differ in size and in length, and the whole."""
    by_length = sorted(batch, key=_num_tokens)
    shuffled = random.Random(0).sample(by_length, len(by_length))
    for share in (4, 2):
        num_groups = max(1, len(batch) // share)
        yield by_length[:num_groups]
        yield by_length[-num_groups:]
        yield shuffled[:num_groups]
    yield by_length


def of_equal_tokens(batch: Sequence[RolloutGroup], longest: int) -> tuple[list[RolloutGroup], list[RolloutGroup]]:
    """Return a batch's tokens in few long sequences, and the same number in `_SHORTER` times as many short ones.

    The difference is what a sequence takes beside its tokens, and longer attention counts against it. Sequences of one
    length need no padding, so these batches say nothing of the data's, whose times the `train` points are.
    `longest` bounds a sequence, of prompt and response.
    """
    num_groups = max(1, len(batch) // _SHORTER)
    mean = sum(len(group.prompt_token_ids) * len(group.responses) + _num_tokens(group) for group in batch)
    mean //= sum(len(group.responses) for group in batch)
    short = max(min(_SHORTER * mean, longest) // _SHORTER, 2)
    return _reshaped(batch, num_groups, _SHORTER * short), _reshaped(batch, _SHORTER * num_groups, short)


def _reshaped(batch: Sequence[RolloutGroup], num_groups: int, num_tokens: int) -> list[RolloutGroup]:
    """Make groups whose sequences have `num_tokens` each, of a batch's tokens; nobody gave them these probabilities."""
    groups = []
    for index in range(num_groups):
        group = batch[index % len(batch)]
        prompt = group.prompt_token_ids[: max(1, num_tokens // 2)]
        size = num_tokens - len(prompt)
        responses = tuple(
            replace(
                response,
                token_ids=np.resize(response.token_ids, size),
                logprobs=np.resize(response.logprobs, size),
                spans=(VersionSpan(policy_version=0, num_tokens=size),),
            )
            for response in group.responses
        )
        number = PromptId(index // len(batch), group.prompt.key)
        groups.append(replace(group, prompt=number, prompt_token_ids=prompt, responses=responses))
    return groups


def _num_tokens(group: RolloutGroup) -> int:
    return sum(response.num_tokens for response in group.responses)


async def probe_training(bench: Bench, groups: Sequence[RolloutGroup], *, is_trained: bool) -> None:
    """Time a step on some groups, with gradients or with forward passes only."""
    num_responses, num_tokens, accumulate_s, update_s = await train(bench, groups, is_trained=is_trained)
    kind = "train" if is_trained else "train_forward"
    bench.points.note((kind, num_responses, num_tokens), num_responses, num_tokens, accumulate_s)
    bench.points.note(("update",), 0, 0, update_s)


async def probe_lengths(bench: Bench, groups: Sequence[RolloutGroup]) -> None:
    """Time the passes of groups that `of_equal_tokens` gave."""
    num_responses, num_tokens, accumulate_s, _ = await train(bench, groups, is_trained=True)
    bench.points.note(("train_lengths", num_responses, num_tokens), num_responses, num_tokens, accumulate_s)


async def train(bench: Bench, groups: Sequence[RolloutGroup], *, is_trained: bool) -> tuple[int, int, float, float]:
    """Take a step on some groups, whose rewards give every response an advantage, or none.

    Returns its responses and tokens, the time of its passes, and the remaining time.
    """
    subject, trainer = bench.subject, bench.subject.workers.trainer
    given = [_rewarded(group, subject.policy_version, is_trained=is_trained) for group in groups]
    num_responses = sum(len(group.responses) for group in given)
    num_tokens = sum(
        len(group.prompt_token_ids) + response.num_tokens for group in given for response in group.responses
    )
    shape = BatchShape(
        step=0,
        policy_version=subject.policy_version,
        oldest_policy_version=subject.policy_version,
        num_groups=len(given),
        num_responses=num_responses,
        max_response_tokens=max(
            subject.config.rollout.max_response_tokens,
            *(response.num_tokens for group in given for response in group.responses),
        ),
    )
    await subject.trainers_turn()
    began = now_s()
    await subject.within(trainer.begin_step(shape))
    begun = now_s()
    await subject.within(trainer.accumulate(given))
    accumulated = now_s()
    update = await subject.within(trainer.finish_step())
    finished = now_s()
    subject.policy_version = update.policy_version
    return num_responses, num_tokens, accumulated - begun, begun - began + finished - accumulated


async def probe_weight_sync(bench: Bench) -> None:
    """Time the trainer's weights on their way to all engines in use."""
    bench.points.note(("weight_sync",), len(bench.subject.engines), 0, await bench.subject.publish())


def _rewarded(group: RolloutGroup, policy_version: int, *, is_trained: bool) -> RolloutGroup:
    """Return the group with rewards, and with tokens of the policy that the trainer holds by now."""
    responses = tuple(
        replace(response, spans=(VersionSpan(policy_version=policy_version, num_tokens=response.num_tokens),))
        for response in group.responses
    )
    rewards = tuple(float(is_trained and index % 2) for index in range(len(responses)))
    return replace(group, responses=responses, rewards=rewards)
