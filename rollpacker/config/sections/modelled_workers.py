"""When the rollout workers of a modelled run come and go, and what joins them to the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rollpacker.config.sections.base import Count, Flag, Kind, Positive, PositiveSeconds, Seconds, Section, Seed


class LossSection(Section):
    """Workers that leave at one moment of one step, whatever the availability is."""

    step: Count
    """Training step in which they leave."""
    num_workers: Count = Field(1, ge=1)
    """So many of those that are there and not about to be lost, in the order of their places; fewer if fewer are."""
    after: Literal["publication", "lending"] = "publication"
    """What `delay_s` counts from: the step's policy lies ready for workers, or local engines leave for the trainer."""
    delay_s: Seconds = 0.0
    """From then to the loss."""
    away_s: Seconds | None = None
    """Until workers come in their places; null: none ever does."""


class ModelledWorkersSection(Section):
    """The rollout workers of a modelled run."""

    availability: Literal["constant", "staircase", "file", "random"] = "constant"
    """How many nodes are to be had: always `num_workers`; one more every `period_s` up to `num_workers`, then in turns
    one less and one more (PolyRL's artifact); by `counts`; or each node by chance (`mean_up_s`)."""
    num_workers: Count = Field(4, le=100_000)
    """Nodes at most, but by `counts`; elastic.max_workers may ask for fewer."""
    period_s: PositiveSeconds = 1800.0
    """Of the staircase."""
    counts: Path | None = None
    """Of `file`: a CSV file with the columns `time_s` and `count`, ascending in time."""
    mean_up_s: PositiveSeconds = 7200.0
    """Of `random`: mean time to a node's preemption; times are exponential."""
    mean_down_s: PositiveSeconds = 600.0
    """Of `random`: mean time until the node is to be had again."""
    burst: Count = Field(1, ge=1)
    """Of `random`: a preemption takes one to so many nodes at once, each number as likely."""
    requeue_s: Seconds = 0.0
    """Time after a loss or a dismissal before the node can come again; 120 s on a Slurm cluster that requeues. After a
    dismissal at least 1 s."""
    time_limit_s: PositiveSeconds | None = None
    """After so long a worker leaves, and it knows that from the beginning; null: it stays. Not less than
    elastic.least_stay_s, and more than elastic.drain_lead_s."""
    grace_s: Seconds = 0.0
    """A worker is told so long before it is preempted; 0: it is lost without a word."""
    loses_silently: Flag = False
    """Whether a lost worker stops answering instead of failing: then only its silence tells."""
    losses: Annotated[
        tuple[LossSection, ...], Kind("a list of mappings with step, num_workers, after, delay_s, away_s")
    ] = ()
    """Beside the availability."""
    start_s: Seconds = 60.0
    """From the order to start an engine until it can take weights. A guess, as hardware.engine_restart_s."""
    network_gb_per_s: Positive = 6.25
    """Of a worker's link: PolyRL's 50 Gb/s, 1e9 bytes per second."""
    trainer_network_gb_per_s: Positive = 25.0
    """Of the link of the node from which weights are pulled: PolyRL's 200 Gb/s."""
    relay: Flag = False
    """Whether workers pull buckets from each other too, as real ones do, each beginning at another one. It spares time
    where more than a few pull at once."""
    seed: Seed = 0
    """Of chance, in `random` and `file`, and of who relays."""

    @model_validator(mode="after")
    def _counts_go_with_file(self) -> Self:
        if (self.availability == "file") != (self.counts is not None):
            raise ValueError(
                f"elastic.modelled.availability={self.availability} with elastic.modelled.counts={self.counts}.\n"
                "A file of counts is read with availability=file, and only then.\n"
                "Give both, or neither."
            )
        return self
