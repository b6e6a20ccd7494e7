"""The rows, in the order in which they run: cheap ones first. Imports neither torch nor what the rows use."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing to show."""

    name: str
    shows: str
    """What is so if it passes."""
    function: str
    """`module:function`, which takes a `rollpacker.gpu_check.inputs.Bench` and `arguments`, and gives figures."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    num_gpus: int = 1
    """At least."""
    most_gpus: int | None = None
    """At most, where there are so many; None: no more than `num_gpus`, or the function looks at the others itself."""
    packages: tuple[str, ...] = ()
    """Importable names beside torch and transformers."""
    programs: tuple[str, ...] = ()
    deadline_s: float = 120.0
    """Then it has failed. Several times what it takes: starting vLLM takes up to a minute, Ray a quarter of one."""


_ENGINES, _WEIGHTS, _TRAINERS, _JUDGES, _RUNS = (
    f"rollpacker.gpu_check.{module}" for module in ("engines", "weights", "trainers", "judges", "runs")
)
_VLLM, _RUN = ("vllm",), ("ray", "hydra")
_ALL_GPUS = sys.maxsize
_PACKAGES = {"vllm": _VLLM, "megatron": ("megatron.core",)}
"""What an engine or a trainer needs, by its name."""


def _of_engine(engine: str, name: str = "{}", deadline_s: float = 120.0) -> tuple[Row, ...]:
    """What each engine is to show, in rows of such names."""
    row = functools.partial(Row, packages=_PACKAGES.get(engine, ()), deadline_s=deadline_s)
    return (
        row(
            name=name.format("turns"),
            shows=f"engine={engine} and trainer=fsdp take turns on a GPU, and each sleep frees its memory",
            function=f"{_ENGINES}:turns",
            arguments={"engine": engine, "trainer": "fsdp"},
        ),
        row(
            name=name.format("weights-ipc"),
            shows=f"weights go from the trainer into engine={engine} on the same GPU by CUDA IPC, in place",
            function=f"{_WEIGHTS}:transfer",
            arguments={"engine": engine, "transport": "handles"},
        ),
        row(
            name=name.format("weights-nccl"),
            shows=f"weights go to engine={engine} on another GPU by NCCL",
            function=f"{_WEIGHTS}:transfer",
            arguments={"engine": engine, "transport": "broadcast"},
            num_gpus=2,
        ),
        row(
            name=name.format("decode"),
            shows=f"how near the memory's bandwidth engine={engine} decodes",
            function=f"{_ENGINES}:decode",
            arguments={"engine": engine},
        ),
        row(
            name=name.format("round-start"),
            shows=f"how long engine={engine} takes from the end of its sleep to a round's first token",
            function=f"{_ENGINES}:round_start",
            arguments={"engine": engine},
        ),
    )


def _of_trainer(
    trainer: str, function: str, name: str, shows: str, *, deadline_s: float, most_gpus: int | None = None
) -> Row:
    """A row that several trainers have."""
    return Row(
        name=name if trainer == "torch" else f"{name}-{trainer}",
        shows=shows.format(f"trainer={trainer}"),
        function=f"{_TRAINERS}:{function}",
        arguments={"trainer": trainer},
        most_gpus=most_gpus,
        packages=_PACKAGES.get(trainer, ()),
        deadline_s=deadline_s,
    )


ROWS = (
    Row(
        name="flash-attention",
        shows="the flash kernel over packed sequences gives plain attention's values and gradients",
        function=f"{_TRAINERS}:flash_attention",
    ),
    Row(
        name="fsdp",
        shows="FSDP2 trains as the plain trainer: loss, gradient norm and entropy of two steps, float32 and bfloat16",
        function=f"{_TRAINERS}:against_torch",
        arguments={"trainer": "fsdp"},
        most_gpus=2,
        deadline_s=240,
    ),
    Row(
        name="megatron",
        shows="Megatron-core does so, too, tensor parallel where there are two GPUs",
        function=f"{_TRAINERS}:against_torch",
        arguments={"trainer": "megatron"},
        most_gpus=2,
        packages=_PACKAGES["megatron"],
        deadline_s=240,
    ),
    Row(
        name="logits-in-chunks",
        shows="a step whose logits exist in chunks gives the same with less memory",
        function=f"{_TRAINERS}:chunks",
    ),
    *_of_engine("torch"),
    *(
        _of_trainer(trainer, "speed", "mfu", "what share of the matrix units' speed {} reaches", deadline_s=120)
        for trainer in ("torch", "fsdp", "megatron")
    ),
    *(
        _of_trainer(
            trainer,
            "sequence_cost",
            "sequence-cost",
            "what {} takes for a sequence beside its tokens",
            deadline_s=deadline_s,
            most_gpus=most_gpus,
        )
        for trainer, deadline_s, most_gpus in (("torch", 400, None), ("fsdp", 400, None), ("megatron", 900, 2))
    ),
    Row(
        name="judge-overlap",
        shows="a judge whose layers stream from host memory hides the copies behind compute, bit for bit the plain one",
        function=f"{_JUDGES}:overlap",
    ),
    Row(
        name="mps",
        shows="under CUDA MPS a judge beside an engine keeps to its share of the GPU",
        function=f"{_JUDGES}:mps",
        programs=("nvidia-cuda-mps-control",),
    ),
    *_of_engine("vllm", "vllm-{}", 300),
    Row(
        name="vllm-tensor-parallel",
        shows="an engine of vLLM on as many GPUs as divide the key-value heads answers as the trainer does",
        function=f"{_ENGINES}:tensor_parallel",
        num_gpus=2,
        packages=_VLLM,
        deadline_s=400,
    ),
    Row(
        name="vllm-drafts-ngram",
        shows="with draft tokens of the n-grams of a text, engine=vllm still draws from the policy",
        function=f"{_ENGINES}:drafts",
        arguments={"method": "ngram"},
        packages=_VLLM,
        deadline_s=300,
    ),
    Row(
        name="vllm-drafts-suffix",
        shows="with draft tokens of earlier responses, engine=vllm still draws from the policy",
        function=f"{_ENGINES}:drafts",
        arguments={"method": "suffix"},
        packages=(*_VLLM, "arctic_inference"),
        deadline_s=300,
    ),
    Row(
        name="run-learns",
        shows="a whole run with engines and trainer in turns scores better on prompts that it never saw",
        function=f"{_RUNS}:learns",
        most_gpus=_ALL_GPUS,
        packages=_RUN,
        deadline_s=480,
    ),
    Row(
        name="run-loses-engine",
        shows="a run whose engine is killed by SIGKILL replaces it on the same GPU and ends well",
        function=f"{_RUNS}:lost_engine",
        most_gpus=_ALL_GPUS,
        packages=_RUN,
        deadline_s=480,
    ),
)
