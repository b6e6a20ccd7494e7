"""Names of the things that events and commands speak about.

Ids are tuples, because the machines hash millions of them and a tuple hashes in C. Two rules make them safe:

* A prompt is trained once per epoch, so its id carries the epoch: the same text in the next epoch is another prompt.
* A request carries its round, or a late finish of round 3 passes for the same prompt's re-run in round 4.

A held-out prompt has the epoch -1, because it belongs to no pass over the training data, and its set before its key;
the round of its requests is the step that is evaluated.

For the same reason an engine that takes the place of a lost one has another id (`successor_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, NewType, Self

EngineId = NewType("EngineId", str)
"""One inference engine of the run, such as `engine-0`, or `engine-0-r1`, which was started in its place."""

WorkerId = NewType("WorkerId", str)
"""One life of a rollout worker, such as `e4711_3-r1`: an element of a Slurm job array, and `-r` with the number of its
life. Numbers of an element's lives ascend: each time that it joins the run has one of its own."""

Domain = NewType("Domain", str)
"""A kind of task with its own reward and its own share of every batch, such as `math`."""


HELD_OUT: Final = -1
"""The epoch of held-out prompts."""


class PromptId(NamedTuple):
    """One appearance of a prompt in the run's order."""

    epoch: int
    """Which pass over the data, from 0; `HELD_OUT` where it is none."""
    key: str
    """The `id` field of the user's prompt file; of a held-out prompt `set/id`."""

    def __str__(self) -> str:
        return f"{self.key}@{self.epoch}"


class RequestId(NamedTuple):
    """One response that an engine is asked for."""

    round: int
    """Number of the rollout round, from 0, never reused within a run; of a held-out prompt the step that is
    evaluated."""
    prompt: PromptId
    sample: int
    """Index within the prompt's group, from 0; at or above the group size for speculative samples."""

    def __str__(self) -> str:
        return f"r{self.round}:{self.prompt}#{self.sample}"

    def as_list(self) -> list[Any]:
        """Give it as JSON data."""
        return [self.round, list(self.prompt), self.sample]

    @classmethod
    def from_list(cls, plain: Sequence[Any]) -> Self:
        """Rebuild what gave the list."""
        number, prompt, sample = plain
        return cls(number, PromptId(*prompt), sample)


ENVIRONMENT: Final = -1
"""The policy version of tokens that no policy sampled: an environment's observation, and what the template adds."""


class VersionSpan(NamedTuple):
    """Consecutive tokens of a response that one policy version produced, or an environment."""

    policy_version: int
    """`ENVIRONMENT` where it is none; such tokens are context, and never trained."""
    num_tokens: int


def sampled(spans: Iterable[VersionSpan]) -> list[VersionSpan]:
    """The spans that a policy sampled."""
    return [span for span in spans if span.policy_version != ENVIRONMENT]


def successor_of(engine: EngineId, number: int) -> EngineId:
    """Name the engine that takes a lost one's place; `number` counts the restarts of the run's attempt, from 1."""
    return EngineId(f"{engine}-r{number}")


def member_of(worker: WorkerId, number: int) -> EngineId:
    """Name an engine of a worker; `number` counts them from 0."""
    return EngineId(f"{worker}.{number}")


def worker_of(engine: EngineId) -> WorkerId | None:
    """The worker whose engine it is; None of one on the run's own GPUs."""
    worker, dot, _ = engine.rpartition(".")
    return WorkerId(worker) if dot else None


def element_and_life(worker: WorkerId) -> tuple[str, int]:
    """Split a worker's name into its element and the number of its life.

    Raises:
        ValueError: It is no such name.
    """
    element, mark, life = worker.rpartition("-r")
    if not element or not mark or not life.isdecimal():
        raise ValueError(f"{worker!r} is no worker: its name is the element's, -r and a number")
    return element, int(life)


def held_out_prompt(set_name: str, key: str) -> PromptId:
    """Name a prompt of a held-out set; the set's name has no slash."""
    return PromptId(HELD_OUT, f"{set_name}/{key}")


def set_of(request: RequestId) -> str:
    """The held-out set that a response is of."""
    return request.prompt.key.partition("/")[0]


def is_held_out(request: RequestId) -> bool:
    """Tell a response of an evaluation from one that may be trained."""
    return request.prompt.epoch == HELD_OUT
