"""Elastic rollout workers: how many there may be, and when they are used."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from rollpacker.config.sections.base import (
    MODELLED_RUN,
    REAL_RUN,
    Count,
    Flag,
    Number,
    OnlyWith,
    PositiveSeconds,
    Seconds,
    Section,
    WorkerCount,
)
from rollpacker.config.sections.elastic_job import ElasticJobSection
from rollpacker.config.sections.modelled_workers import ModelledWorkersSection

_SEEDS: Final = OnlyWith("elastic.seeding", "adaptive", "fixed")


class ElasticSection(Section):
    """Workers on other nodes that generate beside the engines of the run, and may come and go at any time."""

    name: str = "none"
    """What tables and plots call it."""
    max_workers: WorkerCount = 0
    """At most so many; 0: the run has none, and nothing else here matters."""
    min_workers: Annotated[WorkerCount, OnlyWith("elastic.max_workers")] = 0
    """At least so many are asked for; no step ever waits for one."""
    report_interval_s: Annotated[PositiveSeconds, OnlyWith("elastic.max_workers")] = 1.0
    """Between two reports of new tokens by an engine of a worker: so much work a lost one costs at most."""
    silence_s: Annotated[PositiveSeconds, OnlyWith("elastic.max_workers")] = 5.0
    """An engine of a worker that has not reported for so long is lost."""
    start_s: Annotated[PositiveSeconds, OnlyWith("elastic.max_workers")] = 600.0
    """For an engine of a worker to start, model and all; the worker is dismissed if it takes longer."""
    fetch_s: Annotated[PositiveSeconds, OnlyWith("elastic.max_workers")] = 300.0
    """For it to fetch a policy; the same."""
    grace_s: Annotated[PositiveSeconds, OnlyWith("elastic.max_workers")] = 60.0
    """For a worker to leave when it is told to; it is forgotten if it takes longer."""
    least_stay_s: Annotated[Seconds, OnlyWith("elastic.max_workers")] = 120.0
    """A worker whose job ends sooner than this, or than `drain_lead_s`, is dismissed as it arrives."""
    drain_lead_s: Annotated[Seconds, OnlyWith("elastic.max_workers")] = 60.0
    """So long before its known end a worker gets no further request."""
    drain_margin_s: Annotated[Seconds, OnlyWith("elastic.max_workers")] = 5.0
    """So long before it what it still generates goes on elsewhere, its tokens kept."""
    seeding: Annotated[Literal["adaptive", "fixed", "off"], OnlyWith("elastic.max_workers")] = "adaptive"
    """How long the engines on the trainer's GPUs generate in a round before all of them are lent to the trainer and
    workers generate the rest: learned (`adaptive`, PolyRL's adaptive seeding), `seeding_s`, or to the round's end."""
    seeding_s: Annotated[Seconds | None, OnlyWith("elastic.seeding", "fixed")] = None
    """With `seeding: fixed`: so long in every round."""
    seeding_gain: Annotated[Number, OnlyWith("elastic.seeding", "adaptive")] = Field(3.0, ge=1)
    """With `seeding: adaptive`: each step changes the time by the difference of the trainer's wait and the workers',
    divided by this."""
    seeding_memory: Annotated[Flag, OnlyWith("elastic.seeding", "adaptive")] = True
    """With `seeding: adaptive`: the time is learned for each number of workers; false goes on from the last one when
    that number changes, which is only of use to see what the memory is worth."""
    reclaim_after_s: Annotated[Seconds, _SEEDS] = 15.0
    """Lent engines are taken back from the trainer in the middle of a round when for so long no worker has served, or
    so few that the rest of the round would take longer than lending spares."""
    max_pending: Annotated[Count, OnlyWith("elastic.max_workers")] = 8
    """An engine gets so many requests beyond its decode slots; others wait for room on any engine."""
    max_moves: Annotated[Count, OnlyWith("elastic.max_workers")] = 2
    """So often in a round a request moves by choice, from the engine that will end last to the one that will end first;
    0: only what must moves, because its engine is lost, lent or about to leave."""
    balance_every_s: Annotated[PositiveSeconds, OnlyWith("elastic.max_moves")] = 5.0
    """Between two looks at what could move; engines are asked how far they are only when their loads differ."""
    balance_gain_s: Annotated[Seconds, OnlyWith("elastic.max_moves")] = 5.0
    """Requests move by choice only if the later of two engines ends earlier by more than this, known tokens computed
    again."""
    engines_per_worker: Annotated[WorkerCount, OnlyWith("elastic.max_workers")] = Field(1, ge=1)
    """That share the GPUs of a worker."""
    tensor_parallel: Annotated[WorkerCount | None, OnlyWith("elastic.max_workers")] = Field(None, ge=1)
    """GPUs of each; null: engine.tensor_parallel."""
    bucket_mb: Annotated[Count, OnlyWith("elastic.max_workers")] = Field(512, ge=1, le=65_536)
    """Weights are fetched so many MiB at a time; also by the run's own engines, unless they take them from Ray's object
    store. `weight_sync.bucket_mb` has no effect."""
    keeps_tokens: Annotated[Flag, OnlyWith("elastic.max_workers")] = True
    """Whether a request goes on from the tokens that a lost worker had reported; false generates them again, which is
    only of use to see what it costs."""
    price_per_gpu_hour: Annotated[Number | None, OnlyWith("elastic.max_workers")] = Field(None, ge=0)
    """What an hour of a worker's GPU costs, in any currency, for the accounts of a run (`rollpacker report`); null: not
    known, and only GPU-hours are shown."""
    job: Annotated[ElasticJobSection | None, REAL_RUN, OnlyWith("elastic.max_workers")] = None
    """The Slurm jobs of workers; null submits none."""
    modelled: Annotated[ModelledWorkersSection, MODELLED_RUN] = ModelledWorkersSection()
    """The workers of a modelled run."""

    @property
    def is_on(self) -> bool:
        """Whether workers may come."""
        return self.max_workers > 0

    @model_validator(mode="after")
    def _reports_come_before_silence(self) -> Self:
        if 2 * self.report_interval_s > self.silence_s:
            raise ValueError(
                f"elastic.report_interval_s={self.report_interval_s:g} with elastic.silence_s={self.silence_s:g}.\n"
                "An engine is lost when it has missed two reports.\n"
                f"Set elastic.silence_s={2 * self.report_interval_s:g} or more."
            )
        return self

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.min_workers > self.max_workers:
            raise ValueError(
                f"elastic.min_workers={self.min_workers} with elastic.max_workers={self.max_workers}.\n"
                "No more workers are asked for than there may be.\n"
                f"Set elastic.min_workers={self.max_workers} or less, or raise elastic.max_workers."
            )
        if self.drain_margin_s > self.drain_lead_s:
            raise ValueError(
                f"elastic.drain_margin_s={self.drain_margin_s:g} with elastic.drain_lead_s={self.drain_lead_s:g}.\n"
                "What a worker generates goes on elsewhere after the last request was launched there.\n"
                f"Set elastic.drain_margin_s={self.drain_lead_s:g} or less."
            )
        if (self.seeding == "fixed") != (self.seeding_s is not None):
            raise ValueError(
                f"elastic.seeding={self.seeding} with elastic.seeding_s={self.seeding_s}.\n"
                "The seconds are given for a fixed time, and for no other.\n"
                "Set elastic.seeding=fixed and elastic.seeding_s, or leave both out."
            )
        return self

    @model_validator(mode="after")
    def _modelled_lives_are_long_enough(self) -> Self:
        limit_s = self.modelled.time_limit_s
        if not self.is_on or limit_s is None:
            return self
        if limit_s < self.least_stay_s or limit_s <= self.drain_lead_s:
            least = "least_stay_s" if self.least_stay_s > self.drain_lead_s else "drain_lead_s"
            raise ValueError(
                f"elastic.modelled.time_limit_s={limit_s:g} with elastic.{least}={getattr(self, least):g}.\n"
                "Every worker would be dismissed before it serves.\n"
                f"Set elastic.modelled.time_limit_s={getattr(self, least) + 1:g} or more, or lower elastic.{least}."
            )
        return self
