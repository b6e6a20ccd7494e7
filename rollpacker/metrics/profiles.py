"""A profile: what an engine, a trainer and the calls between them were measured to take, in one JSON file.

    {"version": 6, "facts": {...}, "points": [{"measurement": "prefill", "seconds": 0.0021, ...}, ...]}

Invariant: every point was measured, once for each of its repetitions, on what the facts name; a file is of one model,
one piece of hardware and one set of workers, and appears as a whole or not at all. The fields of facts and points are
those of `ProfileFacts` and `Point`. What a point's `num_items` and `num_tokens` count depends on its measurement:

    prefill          the passes over prompts          prompts, as a run sends them    prompt tokens
    decode           a pass that adds a token each    sequences                       cached tokens of all sequences
    ending           a pass in which some sequences   sequences                       cached tokens of all sequences
                     end, `num_ended` on average
    call             an empty call and its answer     0                               0
    request          a `generate` and its answer      requests                        prompt tokens
    response         from an engine to the driver     responses                       response tokens
    reward           from `score` to the verdicts,    responses                       response tokens
                     without the scoring itself;
                     beside engines that decode,
                     where a run scores during its
                     rollouts
    sandbox_start    scoring a program, without its   programs                        0
                     test cases: a sandbox's start
    program          all test cases of one that no    programs                        0
                     limit stopped
    train            an `accumulate`                  responses with an advantage     prompt and response tokens
    train_forward    an `accumulate`                  responses without an advantage  prompt and response tokens
    train_lengths    `train` of the same tokens in    responses with an advantage     prompt and response tokens
                     few long and in many short
                     sequences of one length each
    update           opening and closing a step       0                               0
    weight_sync      from the trainer to all          engines                         0
                     engines; on shared GPUs with
                     the trainer's sleep, without
                     the engines' wake
    wake             an engine's wake, before its     0                               0
                     new weights
    rollout_start    what the first token with new    0                               0
                     weights after a wake took
                     longer than that of the next
                     request
    first_rollout    what an engine's first passes    0                               0
                     took longer than later ones
    first_train      the same of a trainer's step    0                               0
    kv_cache         nothing: it is a size            0                               tokens that fit

`sandbox_start` and `program` are there if responses had programs that a sandbox ran. Those of an engine alone
(`ENGINE_MEASUREMENTS`) are there for each degree of tensor parallelism; only `ending` may be missing, where no two
sequences were seen to end apart: an end then takes no time in the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from pydantic_core import from_json

from rollpacker.core.errors import DataError
from rollpacker.metrics.codec import encode, from_plain
from rollpacker.metrics.outputs import open_output
from rollpacker.paths import read_bytes, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROFILE_VERSION = 6
"""Grows when a field without a default or a measurement is added, or one is renamed, removed or changes its meaning."""

MEASUREMENTS = {
    "prefill": "prefill: prompts, their tokens",
    "decode": "decode: sequences, cached tokens",
    "ending": "passes of a batch that shrinks",
    "call": "empty call to an engine",
    "request": "asking an engine: requests, tokens",
    "response": "responses on their way back",
    "reward": "reward, without judging: responses, tokens",
    "sandbox_start": "starting a sandbox: programs",
    "program": "all test cases of a program: programs",
    "train": "training: responses, tokens",
    "train_forward": "training without advantage",
    "train_lengths": "training few long ones, many short ones",
    "update": "opening and closing a step",
    "weight_sync": "weight sync: engines",
    "wake": "waking engines",
    "rollout_start": "first token after a wake, beyond the next",
    "first_rollout": "an engine's first passes, beyond later ones",
    "first_train": "a trainer's first step, beyond later ones",
    "kv_cache": "",
}
"""The label of each in a table; a size, which takes no time, has none."""

ENGINE_MEASUREMENTS = ("prefill", "decode", "ending", "weight_sync", "kv_cache")
"""Those of each degree of tensor parallelism, which a reader that needs one degree checks of that one alone."""

_OPTIONAL = ("sandbox_start", "program", "train_lengths")
"""Those of programs, and one that no cost is computed from."""

_LARGEST = 10**15
"""Above every number that is measured, in bytes, tokens or seconds; its square is still a finite float."""

Measured = Annotated[float, Field(ge=0, le=_LARGEST, allow_inf_nan=False)]
Counted = Annotated[int, Field(ge=0, le=_LARGEST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured point; see the module for what its numbers count."""

    measurement: str
    tensor_parallel: Annotated[int, Field(ge=1)]
    """1 where it does not matter."""
    num_items: Measured
    """A mean where sequences ended in the middle."""
    num_tokens: Measured
    seconds: Measured
    """Median over the repetitions."""
    seconds_low: Measured
    """First decile."""
    seconds_high: Measured
    """Ninth decile."""
    num_repeats: Counted
    num_ended: Measured = 0.0
    """Sequences that ended in a pass, on average; only in `ending`."""
    num_bytes: Counted | None = None
    """Of one token, over all GPUs of an engine; only in `kv_cache`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFacts:
    """What was measured, on what, when."""

    hardware: str
    model: str
    """Sizes of the transformer as JSON, which two directories of one model share."""
    dtype: str
    num_parameters: Counted
    num_weight_bytes: Counted
    engine: str
    trainer: str
    num_engines: Annotated[int, Field(ge=1, le=_LARGEST)]
    engine_threads: int
    trainer_threads: int
    collect_interval_s: Measured
    """Shortest time between two answers of one worker to `collect`."""
    measured_on: str
    """Date, as 2026-11-20."""
    rollpacker_version: str
    num_trainer_gpus: Counted | None
    """None where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The content of a file."""

    version: int = PROFILE_VERSION
    facts: ProfileFacts
    points: tuple[Point, ...]

    def of(self, measurement: str, tensor_parallel: int | None = None) -> tuple[Point, ...]:
        """The points of one measurement, of one degree of tensor parallelism where one is given."""
        return tuple(
            point
            for point in self.points
            if point.measurement == measurement and tensor_parallel in {None, point.tensor_parallel}
        )


def write_profile(path: Path, profile: Profile) -> None:
    """Create or replace a profile; a reader sees the old file or the new one."""
    with open_output(path) as file:
        file.write(f"{encode(profile)}\n".encode())


def read_profile(path: Path) -> Profile:
    """Read a profile.

    Raises:
        DataError: It is missing, of another kind or version, holds what cannot have been measured, or lacks a
            measurement that is not of a degree.
    """
    try:
        plain = from_json(read_bytes(path))
        version = plain["version"]
        profile = from_plain(Profile, plain) if version == PROFILE_VERSION else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, reason_of(error)) from error
    if profile is None:
        raise _unreadable(path, f"it has the version {version}")
    for mistake in _mistakes(profile):
        raise _unreadable(path, mistake)
    return profile


def _mistakes(profile: Profile) -> Iterator[str]:
    """What cannot have been measured, and what must have been."""
    if not _is_object(profile.facts.model):
        yield f"its model is no JSON object: {profile.facts.model}"
    for point in profile.points:
        if point.measurement not in MEASUREMENTS:
            yield f"it has the unknown measurement `{point.measurement}`"
        if not point.num_items and point.measurement in {"prefill", "decode", "ending"}:
            yield f"it has a point of no items: {point}"
    for measurement in MEASUREMENTS:
        if measurement not in {*ENGINE_MEASUREMENTS, *_OPTIONAL} and not profile.of(measurement):
            yield f"it has no measurement `{measurement}`"


def _is_object(text: str) -> bool:
    try:
        return isinstance(from_json(text), dict)
    except ValueError:
        return False


def _unreadable(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} cannot be read as a profile: {why}.",
        f"A profile is a JSON file of version {PROFILE_VERSION}, as `rollpacker profile` writes it.",
        "Check the path, or measure again with `rollpacker profile ... out=FILE`.",
    )
