"""Which GPUs engines, trainer and judge work on."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from rollpacker.config.gpu_map import REST, GpuMap, rest_of
from rollpacker.config.sections.base import Flag, Section

GpuMapText = Annotated[str, Field(coerce_numbers_to_str=True)]
"""As `rollpacker.config.gpu_map` reads it; a single GPU is a number in YAML."""


class PlacementSection(Section):
    """Which GPUs engines, trainer and judge work on. Where engines and trainer name the same one they take turns."""

    automatic: Flag = True
    """Use the GPUs that the machine, or the job, has: each key that nobody names follows from their number and memory
    and from the model: engines and trainer take turns on all of them, with engine=vllm where it is installed and serves
    the model, trainer=fsdp, model.dtype=bfloat16, degrees and micro-batches that fit. A GPU that nobody uses is then a
    mistake. Nothing is chosen without GPUs, or where `resources` of engines or trainer name some; `rollpacker check`
    prints what is."""
    engine: GpuMapText | None = None
    """GPUs of the engines, such as 0-7 (of every node), 'all 4-7@0' (4 to 7 of node 0, all of the other nodes), or
    `rest`, all that placement.trainer does not name. Engines take them in order, engine.tensor_parallel each. null, for
    both roles, and nothing chosen automatically: every actor has the GPUs that its `resources` ask for, trainer and
    reward on node 0, and none are shared."""
    trainer: GpuMapText | None = None
    """GPUs of the trainer's ranks, one each, written in the same way. On a GPU that both roles name, the engine sleeps
    while the trainer works, and the other way round."""
    judge: GpuMapText | None = None
    """GPUs of the LLM judge's replicas, reward.judge.tensor_parallel each, written in the same way. They may be those
    of engines, beside which the judge works, best under CUDA MPS (reward.judge.gpu_share). Where engines and trainer
    take turns, a judge on the trainer's GPUs sleeps in the trainer's turns. null: it works on cores, or without maps on
    the GPUs of reward.judge.resources."""

    @model_validator(mode="after")
    def _maps_can_be_read(self) -> Self:
        texts = {"engine": self.engine, "trainer": self.trainer, "judge": self.judge}
        for role, text in texts.items():
            if text is None:
                given = next((name for name, other in texts.items() if other is not None), None)
                if given is not None and role != "judge":
                    raise ValueError(
                        f"placement.{role}=null with placement.{given}={texts[given]}.\n"
                        "Maps are given for both engines and trainer, or for neither: then `resources` decides.\n"
                        f"Set placement.{role} too, such as placement.{role}=0-7, or leave out all maps."
                    )
                continue
            if role == "engine" and text == REST:
                continue
            try:
                GpuMap.parse(text)
            except ValueError as error:
                raise ValueError(
                    f"placement.{role}={text} cannot be read: {error}\n"
                    "It is GPUS or GPUS@NODES, several of them with blanks between; GPUS are all, none, or ranges such "
                    "as 0-3,6.\n"
                    f"Write placement.{role}=0-7 for GPUs 0 to 7 of every node, or placement.{role}=4-7@0 for one node."
                ) from None
        return self

    @property
    def maps(self) -> tuple[GpuMap, GpuMap] | None:
        """Of engines and trainer; None where `resources` decide the GPUs."""
        if self.engine is None or self.trainer is None:
            return None
        trainer = GpuMap.parse(self.trainer)
        return rest_of(trainer) if self.engine == REST else GpuMap.parse(self.engine), trainer

    @property
    def judge_map(self) -> GpuMap:
        """Of the judge; no GPU without a map."""
        return GpuMap.parse(self.judge or "none")
