"""A profile: what an engine, a trainer and the calls between them were measured to take, in one Parquet file.

Invariant: every row was measured, once for each of its repetitions, on what the row's own facts name; a file is of one
model, one piece of hardware and one set of workers, and appears as a whole or not at all.

The grain is one row per measured point. What a point's `num_items` and `num_tokens` count depends on its measurement:

    prefill          a pass over prompts              prompts, as a run sends them    prompt tokens
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
    weight_sync      from the trainer to all engines  engines                         0
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

`sandbox_start` and `program` are there if responses had programs that a sandbox ran.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rollpacker.core.errors import DataError
from rollpacker.metrics.columns import Column, TableSchema
from rollpacker.metrics.outputs import open_output

if TYPE_CHECKING:
    from pathlib import Path

PROFILE_VERSION = 4
"""Grows when a column or a measurement is added, renamed, removed or changes its meaning."""

_VERSION_KEY = b"rollpacker.profile_version"

PROGRAM_MEASUREMENTS = ("sandbox_start", "program")
"""Of programs in sandboxes."""

MEASUREMENTS = (
    "prefill",
    "decode",
    "ending",
    "call",
    "request",
    "response",
    "reward",
    *PROGRAM_MEASUREMENTS,
    "train",
    "train_forward",
    "train_lengths",
    "update",
    "weight_sync",
    "wake",
    "rollout_start",
    "first_rollout",
    "first_train",
    "kv_cache",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured point; see the module for what its numbers count."""

    measurement: str
    tensor_parallel: int
    """1 where it does not matter."""
    num_items: float
    """A mean where sequences ended in the middle."""
    num_tokens: float
    seconds: float
    """Median over the repetitions."""
    seconds_low: float
    """First decile."""
    seconds_high: float
    """Ninth decile."""
    num_repeats: int
    num_ended: float = 0.0
    """Sequences that ended in a pass, on average; only in `ending`."""
    num_bytes: int | None = None
    """Moved by `weight_sync`; of one token in `kv_cache`, over all GPUs of an engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFacts:
    """What was measured, on what, when: the same in every row."""

    hardware: str
    model: str
    """Sizes of the transformer as JSON, which two directories of one model share."""
    dtype: str
    num_parameters: int
    num_weight_bytes: int
    engine: str
    trainer: str
    num_engines: int
    engine_threads: int
    trainer_threads: int
    collect_interval_s: float
    """Shortest time between two answers of one worker to `collect`."""
    measured_on: str
    """Date, as 2026-11-20."""
    rollpacker_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The content of a file."""

    facts: ProfileFacts
    points: tuple[Point, ...]

    def of(self, measurement: str, tensor_parallel: int | None = None) -> tuple[Point, ...]:
        """The points of one measurement, of one degree of tensor parallelism where one is given."""
        return tuple(
            point
            for point in self.points
            if point.measurement == measurement and tensor_parallel in {None, point.tensor_parallel}
        )


PROFILE = TableSchema(
    name="profile",
    grain="One row per measured point",
    columns=(
        Column(name="measurement", type="text", unit="", description=f"One of {', '.join(MEASUREMENTS)}"),
        Column(name="tensor_parallel", type="int", unit="1", description="GPUs of one engine"),
        Column(name="num_items", type="float", unit="1", description="Sequences, requests, responses or engines"),
        Column(name="num_tokens", type="float", unit="tokens", description="Prompt, cached or trained tokens, in all"),
        Column(name="seconds", type="float", unit="s", description="Median over the repetitions"),
        Column(name="seconds_low", type="float", unit="s", description="First decile over the repetitions"),
        Column(name="seconds_high", type="float", unit="s", description="Ninth decile over the repetitions"),
        Column(name="num_repeats", type="int", unit="1", description="Repetitions"),
        Column(name="num_ended", type="float", unit="1", description="Sequences that ended per pass; only in ending"),
        Column(
            name="num_bytes",
            type="int",
            unit="bytes",
            description="Moved by weight_sync; of one token in kv_cache; null elsewhere",
            is_nullable=True,
        ),
        Column(name="hardware", type="text", unit="", description="Processor or GPU that was measured"),
        Column(name="model", type="text", unit="", description="Sizes of the transformer, as JSON"),
        Column(name="dtype", type="text", unit="", description="Of the weights"),
        Column(name="num_parameters", type="int", unit="1", description="Of the model"),
        Column(name="num_weight_bytes", type="int", unit="bytes", description="Of the model"),
        Column(name="engine", type="text", unit="", description="Implementation, as in engine.name"),
        Column(name="trainer", type="text", unit="", description="Implementation, as in trainer.name"),
        Column(name="num_engines", type="int", unit="1", description="Engines that worked at the same time"),
        Column(name="engine_threads", type="int", unit="1", description="Torch threads of an engine"),
        Column(name="trainer_threads", type="int", unit="1", description="Torch threads of the trainer"),
        Column(
            name="collect_interval_s",
            type="float",
            unit="s",
            description="Shortest time between two answers of one worker to collect",
        ),
        Column(name="measured_on", type="text", unit="", description="Date"),
        Column(name="rollpacker_version", type="text", unit="", description="That measured"),
        Column(name="modelled", type="bool", unit="", description="False: everything here was measured"),
    ),
)


def write_profile(path: Path, profile: Profile) -> None:
    """Create or replace a profile; a reader sees the old file or the new one."""
    facts = {field.name: getattr(profile.facts, field.name) for field in fields(ProfileFacts)}
    rows = [
        {field.name: getattr(point, field.name) for field in fields(Point)} | facts | {"modelled": False}
        for point in profile.points
    ]
    schema = PROFILE.to_arrow()
    schema = schema.with_metadata({**schema.metadata, _VERSION_KEY: str(PROFILE_VERSION).encode()})
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), buffer)
    with open_output(path) as file:
        file.write(memoryview(buffer.getvalue()))


def read_profile(path: Path) -> Profile:
    """Read a profile.

    Raises:
        DataError: It is missing, of another kind or version, or holds what cannot have been measured.
    """
    if path.exists() and not path.is_file():
        raise _unreadable(path, "it is no file")
    try:
        table = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowInvalid) as error:
        raise _unreadable(path, str(error)) from error
    version = (table.schema.metadata or {}).get(_VERSION_KEY, b"").decode()
    if version != str(PROFILE_VERSION):
        raise _unreadable(path, f"it has the profile version {version}" if version else "it is another kind of file")
    rows = table.to_pylist()
    if not rows:
        raise _unreadable(path, "it has no rows")
    points = tuple(Point(**{field.name: row[field.name] for field in fields(Point)}) for row in rows)
    all_facts = {ProfileFacts(**{field.name: row[field.name] for field in fields(ProfileFacts)}) for row in rows}
    if len(all_facts) > 1:
        raise _unreadable(path, f"its rows were measured on {len(all_facts)} different occasions")
    for point in points:
        if point.measurement not in MEASUREMENTS or min(point.num_items, point.num_tokens, point.seconds) < 0:
            raise _unreadable(path, f"it has the impossible row {point}")
    return Profile(facts=all_facts.pop(), points=points)


def _unreadable(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} cannot be read as a profile: {why}.",
        f"A profile is a Parquet file of version {PROFILE_VERSION}, as `rollpacker profile` writes it.",
        "Check the path, or measure again with `rollpacker profile ... out=FILE`.",
    )
