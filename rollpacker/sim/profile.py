"""Costs from a measured profile instead of formulas: what was measured, and the forms of `metrics.profile_fits`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollpacker.core.errors import ConfigError
from rollpacker.data.shapes import Transformer
from rollpacker.metrics.profile_fits import (
    DecodeCost,
    LinearCost,
    check_model,
    fit_decode,
    fit_ending,
    fit_items,
    fit_items_and_tokens,
    fit_prefill,
)
from rollpacker.metrics.profiles import ENGINE_MEASUREMENTS, Point, Profile, read_profile
from rollpacker.sim.costs import KV_BLOCK_TOKENS
from rollpacker.sim.lengths import Quantiles

A_PROFILE_LENDS_NOTHING = (
    "A profile measures the trainer as a whole, so in the model it is a single replica on all GPUs, and no engines are "
    "lent to it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCosts:
    """What passes between the driver and its workers takes, where they are processes of their own."""

    call_s: float
    """An empty call and its answer."""
    request: LinearCost
    """A `generate` and its answer; by requests."""
    response: LinearCost
    """Responses from an engine to the driver; by responses."""
    reward: LinearCost
    """From `score` to the verdicts, without the scoring itself; by responses and tokens."""
    collect_interval_s: float
    """Shortest time between two answers of one worker to `collect`."""
    first_rollout_s: float
    """By which an engine's very first passes take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCosts:
    """Programs in sandboxes, as the policy that was measured writes them."""

    start_s: float
    """Of a sandbox, which no limit counts; median."""
    run_times: Quantiles
    """Of all test cases of a program: first decile, median and ninth decile, and what lies between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledEngineCosts:
    """An engine as it was measured; implements `PassCosts`."""

    decode: DecodeCost
    prefill: LinearCost
    ending_s: float
    """For each sequence that ends: it is taken out, sent, and scored on the cores that the engine works on."""
    kv_tokens_capacity: int
    source: Path

    @property
    def num_kv_blocks(self) -> int:
        return self.kv_tokens_capacity // KV_BLOCK_TOKENS

    @property
    def num_kv_tokens(self) -> int:
        return self.num_kv_blocks * KV_BLOCK_TOKENS

    @property
    def kv_read_s(self) -> float:
        return self.decode.kv_read_s

    @property
    def memory(self) -> str:
        return f"as measured in {self.source}"

    def pass_s(self, num_tokens: int) -> float:
        return self.decode.base(num_tokens)

    def draft_pass_s(self, num_sequences: int, draft_length: int) -> float:
        """As if each draft token were of a sequence of its own: no drafter was measured."""
        return self.decode.base(num_sequences * (1 + draft_length))

    def prefill_pass_s(self, num_decoding: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Prompts, and then a token for those that decode already: what was measured apart is done one by one."""
        num_tokens = sum(end - begin for begin, end in chunks)
        attention = sum(end * end - begin * begin for begin, end in chunks)
        decode_s = self.decode.base(num_decoding) if num_decoding else 0.0
        return self.prefill(len(chunks), num_tokens, attention) + decode_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledTrainerCosts:
    """A trainer as it was measured, as a whole; implements `StepCosts`."""

    train: LinearCost
    """By responses and tokens."""
    forward: LinearCost
    """The same, for responses without an advantage."""
    call_s: float
    """Contained in both of them."""
    step_s: float
    """Opening and closing a step."""
    first_step_s: float
    num_weight_bytes: int
    gpus_per_replica: int
    num_replicas: int = 1

    def passes_s(
        self,
        lengths_tokens: Sequence[int],
        num_replicas: int | None = None,  # noqa: ARG002  (StepCosts; there is one)
        *,
        forward_only: Sequence[int] = (),
    ) -> float:
        trained_s = self.train(len(lengths_tokens), sum(lengths_tokens)) if lengths_tokens else 0.0
        forward_s = self.forward(len(forward_only), sum(forward_only)) if forward_only else 0.0
        is_one_call = bool(lengths_tokens) and bool(forward_only)
        return max(trained_s + forward_s - (self.call_s if is_one_call else 0.0), 0.0)

    def update_s(self) -> float:
        return self.step_s


class ProfiledCluster:
    """Everything that a modelled run takes from a profile of its model."""

    def __init__(self, path: Path, model: Transformer, dtype: str) -> None:
        """Read a profile.

        Raises:
            DataError: The file cannot be read as a profile.
            ConfigError: It is of another model.
        """
        self._path = path
        self._profile = read_profile(path)
        check_model("hardware.profile", path, self._profile, model.shape.model_dump(mode="json"), dtype)

    @property
    def hardware(self) -> str:
        """What was measured, and when."""
        facts = self._profile.facts
        return f"{facts.hardware}, measured {facts.measured_on}"

    @property
    def engine_name(self) -> str:
        """Their `engine.name`."""
        return self._profile.facts.engine

    @property
    def num_engine_gpus(self) -> int:
        """On which all engines of the configured degree were measured, which is the first of the file."""
        return self._profile.facts.num_engines * self._profile.points[0].tensor_parallel

    @property
    def num_trainer_gpus(self) -> int:
        """On which the trainer was measured; where none were counted it takes turns with the engines on theirs."""
        return self._profile.facts.num_trainer_gpus or self.num_engine_gpus

    def note_on_scale(self, num_engine_gpus: int, num_trainer_gpus: int) -> str:
        """Say that a run has other GPUs than were measured; empty where it has as many."""
        here, there = (num_engine_gpus, num_trainer_gpus), (self.num_engine_gpus, self.num_trainer_gpus)
        if here == there:
            return ""
        return (
            f"Engines and trainer have {here[0]} and {here[1]} GPUs, and had {there[0]} and {there[1]} when "
            f"{self._path} was measured: a training step and a weight transfer take as long as there."
        )

    @property
    def degrees(self) -> tuple[int, ...]:
        """Of tensor parallelism, ascending: those of which all is measured that engines need."""
        measured = sorted({point.tensor_parallel for point in self._profile.of("decode")})
        return tuple(degree for degree in measured if not self._missing(degree))

    def _missing(self, tensor_parallel: int) -> list[str]:
        """Measurements of engines that a degree lacks; without `ending` the end of a sequence takes no time."""
        needed = (name for name in ENGINE_MEASUREMENTS if name != "ending")
        return [name for name in needed if not self._profile.of(name, tensor_parallel)]

    def engine(self, tensor_parallel: int, key: str = "engine.tensor_parallel") -> ProfiledEngineCosts:
        """An engine of the degree that a key names; raises `ConfigError` where a measurement of it is missing."""
        if missing := self._missing(tensor_parallel):
            raise ConfigError(
                f"{key}={tensor_parallel} with hardware.profile={self._path}, which lacks {', '.join(missing)} of it.",
                f"The profile has engines of degree {', '.join(map(str, self.degrees)) or 'none at all'}.",
                "Choose one of these, or measure a profile of such engines.",
            )
        decode = fit_decode(self._points("decode", tensor_parallel))
        return ProfiledEngineCosts(
            decode=decode,
            ending_s=fit_ending(self._profile.of("ending", tensor_parallel), decode),
            prefill=fit_prefill(self._points("prefill", tensor_parallel)),
            kv_tokens_capacity=round(self._points("kv_cache", tensor_parallel)[0].num_tokens),
            source=self._path,
        )

    def trainer(self, num_gpus: int) -> ProfiledTrainerCosts:
        """The trainer, as one replica on all GPUs of the run: it was measured as a whole."""
        return ProfiledTrainerCosts(
            train=fit_items_and_tokens(self._points("train")),
            forward=fit_items_and_tokens(self._points("train_forward")),
            call_s=self._points("call")[0].seconds,
            step_s=self._points("update")[0].seconds,
            first_step_s=self._points("first_train")[0].seconds,
            num_weight_bytes=self._profile.facts.num_weight_bytes,
            gpus_per_replica=num_gpus,
        )

    @property
    def calls(self) -> CallCosts:
        return CallCosts(
            call_s=self._points("call")[0].seconds,
            request=fit_items(self._points("request")),
            response=fit_items(self._points("response")),
            reward=fit_items_and_tokens(self._points("reward")),
            collect_interval_s=self._profile.facts.collect_interval_s,
            first_rollout_s=self._points("first_rollout")[0].seconds,
        )

    @property
    def wake_s(self) -> float:
        """From the order to wake an engine until it can take weights."""
        return self._points("wake")[0].seconds

    @property
    def rollout_start_s(self) -> float:
        """From an engine's first request with new weights to its first pass."""
        return self._points("rollout_start")[0].seconds

    @property
    def programs(self) -> ProgramCosts | None:
        """None where no program was measured."""
        starts, runs = self._profile.of("sandbox_start"), self._profile.of("program")
        if not (starts and runs):
            return None
        run = runs[0]
        pairs = ((0.1, run.seconds_low), (0.5, run.seconds), (0.9, run.seconds_high))
        return ProgramCosts(start_s=starts[0].seconds, run_times=Quantiles(pairs))

    def weight_transfer_s(self, tensor_parallel: int) -> float:
        """From the trainer to every engine of some degree."""
        return self._points("weight_sync", tensor_parallel)[0].seconds

    def describe_fit(self) -> str:
        """Say how far the fitted forms are from what was measured."""
        engines = [self.engine(degree) for degree in self.degrees]
        shares = {
            "decoding": max(engine.decode.residual for engine in engines),
            "prefill": max(engine.prefill.residual for engine in engines),
            "training": self.trainer(1).train.residual,
        }
        parts = (f"{name} {share:.0%}" for name, share in shares.items())
        text = f"At measured points the fit is off by at most: {', '.join(parts)}."
        return f"{text} {note_on_endings(self._profile)}".rstrip()

    def _points(self, measurement: str, tensor_parallel: int | None = None) -> tuple[Point, ...]:
        """Of a measurement; those of the first degree that has it when none is given."""
        points = self._profile.of(measurement, tensor_parallel)
        first = min(point.tensor_parallel for point in points)
        return tuple(point for point in points if point.tensor_parallel == first)


def note_on_endings(profile: Profile) -> str:
    """Say of which degrees of tensor parallelism the end of a response was not measured; empty where it was of all."""
    degrees = sorted({point.tensor_parallel for point in profile.of("decode")})
    lacking = [str(degree) for degree in degrees if not profile.of("ending", degree)]
    if not lacking:
        return ""
    return (
        f"With tensor parallelism {', '.join(lacking)} no passes were measured in which a batch shrinks: the end of a "
        "response takes no time in the model."
    )
