"""Who generates."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollpacker.config.sections.base import Section
from rollpacker.config.sections.resources import ActorResources


class VllmSection(Section):
    """What only an engine of vLLM takes."""

    memory_share: float = Field(0.9, gt=0, le=1)
    """Of each GPU's memory, for weights, activations and KV cache together."""
    kv_cache_mb: int | None = Field(None, ge=1)
    """KV cache of each GPU, in MB of 2^20 bytes. null takes what is left of the memory share; on a CPU 256."""
    prefix_caching: bool = True
    """Keys and values of common beginnings are computed once per policy version; new weights forget them."""
    enforce_eager: bool | None = None
    """Start sooner, without compiling the model and recording CUDA graphs, and decode more slowly. null is false on a
    GPU and true on a CPU."""
    max_num_batched_tokens: int | None = Field(None, ge=1)
    """Tokens of one forward pass, prompts and decoding together; null takes vLLM's own choice. On a CPU at least those
    of the longest sequence."""
    arguments: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Further arguments of vLLM's AsyncEngineArgs under its own names. A text in brackets or braces is read as JSON."""


class EngineSection(Section):
    """Who generates."""

    name: Literal["torch", "vllm"] = "torch"
    """Which implementation."""
    num_engines: int = Field(2, ge=1)
    """Each holds the whole model."""
    max_num_seqs: int = Field(256, ge=1)
    """Decode slots per engine; further requests wait."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs of one engine, all on one node."""
    num_threads: int = Field(1, ge=1)
    """torch threads per engine process."""
    vllm: VllmSection = VllmSection()
    max_restarts: int = Field(3, ge=0)
    """An engine that is lost is replaced this often in an attempt of the run; after that the others go on without it.
    0 replaces none."""
    restart_pause_s: float = Field(1.0, ge=0)
    """Before an engine's first restart; the pause doubles with each further one, up to a minute."""
    resources: ActorResources = ActorResources()
