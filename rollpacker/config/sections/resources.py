"""What one actor reserves."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rollpacker.config.sections.base import Number, Section


class ActorResources(Section):
    """What one Ray actor reserves."""

    num_cpus: Number = Field(1, ge=0)
    """Cores that Ray sets aside, whatever the process uses."""
    num_gpus: Number = Field(0, ge=0)
    """GPUs that the process sees: a whole number, or a share of one GPU."""

    @model_validator(mode="after")
    def _gpus_are_whole_or_a_share_of_one(self) -> Self:
        if self.num_gpus > 1 and self.num_gpus % 1:
            raise ValueError(
                f"resources.num_gpus={self.num_gpus:g} is neither a whole number nor a share of one GPU.\n"
                "An actor has whole GPUs, or part of one that it shares with others.\n"
                f"Set it to {int(self.num_gpus)} or {int(self.num_gpus) + 1}, or below 1."
            )
        return self
