"""The rows, in the order in which they run: cheap ones first. Imports neither torch nor what the rows use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    packages: tuple[str, ...] = ()
    """Importable names beside torch and transformers."""
    programs: tuple[str, ...] = ()
    deadline_s: float = 120.0
    """Then it has failed. Several times what it takes: starting vLLM takes up to a minute, Ray a quarter of one."""


_ENGINES, _WEIGHTS, _TRAINERS, _JUDGES, _RUNS = (
    f"rollpacker.gpu_check.{module}" for module in ("engines", "weights", "trainers", "judges", "runs")
)
_VLLM, _MEGATRON = ("vllm",), ("megatron.core",)
_RUN = ("ray", "hydra")

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
        deadline_s=240,
    ),
    Row(
        name="megatron",
        shows="Megatron-core does so, too, tensor parallel where there are two GPUs",
        function=f"{_TRAINERS}:against_torch",
        arguments={"trainer": "megatron"},
        packages=_MEGATRON,
        deadline_s=240,
    ),
    Row(
        name="logits-in-chunks",
        shows="a step whose logits exist in chunks gives the same with less memory",
        function=f"{_TRAINERS}:chunks",
    ),
    Row(
        name="turns",
        shows="engine=torch and trainer=fsdp take turns on a GPU, and each sleep frees its memory",
        function=f"{_ENGINES}:turns",
        arguments={"engine": "torch", "trainer": "fsdp"},
    ),
    Row(
        name="weights-ipc",
        shows="weights go from the trainer into engine=torch on the same GPU by CUDA IPC, in place",
        function=f"{_WEIGHTS}:transfer",
        arguments={"engine": "torch", "transport": "handles"},
    ),
    Row(
        name="weights-nccl",
        shows="weights go to engine=torch on another GPU by NCCL",
        function=f"{_WEIGHTS}:transfer",
        arguments={"engine": "torch", "transport": "broadcast"},
        num_gpus=2,
    ),
    Row(
        name="decode",
        shows="how near the memory's bandwidth engine=torch decodes",
        function=f"{_ENGINES}:decode",
        arguments={"engine": "torch"},
    ),
    Row(
        name="mfu",
        shows="what share of the matrix units' speed trainer=torch reaches",
        function=f"{_TRAINERS}:speed",
        arguments={"trainer": "torch"},
    ),
    Row(
        name="mfu-fsdp",
        shows="the same of trainer=fsdp",
        function=f"{_TRAINERS}:speed",
        arguments={"trainer": "fsdp"},
    ),
    Row(
        name="mfu-megatron",
        shows="the same of trainer=megatron",
        function=f"{_TRAINERS}:speed",
        arguments={"trainer": "megatron"},
        packages=_MEGATRON,
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
    Row(
        name="vllm-turns",
        shows="engine=vllm and trainer=fsdp take turns on a GPU, and each sleep frees its memory",
        function=f"{_ENGINES}:turns",
        arguments={"engine": "vllm", "trainer": "fsdp"},
        packages=_VLLM,
        deadline_s=300,
    ),
    Row(
        name="vllm-weights-ipc",
        shows="weights go into vLLM's worker on the same GPU by CUDA IPC",
        function=f"{_WEIGHTS}:transfer",
        arguments={"engine": "vllm", "transport": "handles"},
        packages=_VLLM,
        deadline_s=300,
    ),
    Row(
        name="vllm-weights-nccl",
        shows="weights go into vLLM's worker on another GPU by NCCL",
        function=f"{_WEIGHTS}:transfer",
        arguments={"engine": "vllm", "transport": "broadcast"},
        num_gpus=2,
        packages=_VLLM,
        deadline_s=300,
    ),
    Row(
        name="vllm-tensor-parallel",
        shows="an engine of vLLM on all GPUs answers as the trainer does",
        function=f"{_ENGINES}:tensor_parallel",
        num_gpus=2,
        packages=_VLLM,
        deadline_s=400,
    ),
    Row(
        name="vllm-decode",
        shows="how near the memory's bandwidth engine=vllm decodes",
        function=f"{_ENGINES}:decode",
        arguments={"engine": "vllm"},
        packages=_VLLM,
        deadline_s=300,
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
        packages=_RUN,
        deadline_s=480,
    ),
    Row(
        name="run-loses-engine",
        shows="a run whose engine is killed by SIGKILL replaces it on the same GPU and ends well",
        function=f"{_RUNS}:lost_engine",
        packages=_RUN,
        deadline_s=480,
    ),
)
