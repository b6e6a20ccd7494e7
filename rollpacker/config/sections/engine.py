"""The inference engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from rollpacker.config.sections.base import (
    NOT_IN_FINGERPRINT,
    REAL_RUN,
    Count,
    Flag,
    OnlyWith,
    Positive,
    Seconds,
    Section,
    WorkerCount,
)
from rollpacker.config.sections.resources import ActorResources

Degree = Annotated[WorkerCount, Field(ge=1)]
"""GPUs of one engine."""


_DRAFTS = (REAL_RUN, OnlyWith("system.speculative_decoding"), NOT_IN_FINGERPRINT)


class VllmSection(Section):
    """What only an engine of vLLM takes; of it a modelled run follows `prefix_caching` alone."""

    memory_share: Annotated[Positive, REAL_RUN, NOT_IN_FINGERPRINT] = Field(0.9, le=1)
    """Of each GPU's memory, for weights, activations and KV cache together. A modelled engine has
    `hardware.memory_share`."""
    kv_cache_mb: Annotated[Count | None, REAL_RUN, NOT_IN_FINGERPRINT] = Field(None, ge=1)
    """KV cache of each GPU, in MB of 2^20 bytes. null takes what is left of the memory share; on a CPU 256. Engines of
    other `degrees` have the same memory: what their weights take less is added."""
    prefix_caching: Annotated[Flag, NOT_IN_FINGERPRINT] = True
    """Keys and values of common beginnings are computed once per policy version; new weights forget them."""
    enforce_eager: Annotated[Flag | None, REAL_RUN, NOT_IN_FINGERPRINT] = None
    """Start sooner, without compiling the model and recording CUDA graphs, and decode more slowly. null is false on a
    GPU and true on a CPU."""
    max_num_batched_tokens: Annotated[Count | None, REAL_RUN, NOT_IN_FINGERPRINT] = Field(None, ge=1)
    """Tokens of one forward pass, prompts and decoding together; null takes vLLM's own choice. On a CPU at least those
    of the longest sequence."""
    drafter: Annotated[Literal["suffix", "ngram", "eagle"] | None, *_DRAFTS] = None
    """What proposes draft tokens. `suffix`: earlier responses and the prompt, by a suffix tree (needs the package
    arctic-inference). `ngram`: the response's own prompt and text. `eagle`: a model beside the policy,
    `draft_model`. null: `suffix` where its package is installed, else `ngram`."""
    draft_model: Annotated[Path | None, REAL_RUN, OnlyWith("engine.vllm.drafter", "eagle"), NOT_IN_FINGERPRINT] = None
    """A local directory of the EAGLE or EAGLE-3 model that was trained for the policy; its `config.json` says which.
    The policy's weights change, its own do not."""
    draft_length: Annotated[Count, *_DRAFTS] = Field(4, ge=1, le=32)
    """Draft tokens per sequence and pass, at most. vLLM takes it when it starts, so the lengths that
    `system.speculative_decoding` learns are not carried out, none of 0 either. A modelled engine carries them out, of
    vLLM too."""
    draft_max_sequences: Annotated[Count | None, *_DRAFTS] = Field(32, ge=1)
    """Larger batches decode plainly: there verifying costs more than it gains. null drafts in all."""
    arguments: Annotated[dict[str, bool | int | float | str], REAL_RUN] = Field(default_factory=dict)
    """Further arguments of vLLM's AsyncEngineArgs under its own names. A text in brackets or braces is read as JSON."""

    @field_validator("arguments")
    @classmethod
    def _are_json_in_brackets(cls, value: dict[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
        for name, each in value.items():
            try:
                vllm_argument(each)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"engine.vllm.arguments.{name}={each!r:.200} is no JSON: {error}.\n"
                    "A text that begins with a bracket or a brace is read as JSON.\n"
                    "Correct it; names and texts in JSON stand in double quotes."
                ) from error
        return value


def vllm_argument(value: bool | float | str) -> Any:
    """Give what one of `VllmSection.arguments` stands for."""
    return json.loads(value) if isinstance(value, str) and value.startswith(("{", "[")) else value


class EngineSection(Section):
    """The inference engines, which generate the responses."""

    name: Literal["torch", "vllm"] = "torch"
    """Which implementation. Either gives a model with longrope (Phi-3, Phi-4-mini) its long factors for all sequences
    if the longest allowed one needs them."""
    num_engines: Annotated[WorkerCount, NOT_IN_FINGERPRINT] = Field(2, ge=1)
    """Each holds the whole model."""
    max_num_seqs: Annotated[Count, NOT_IN_FINGERPRINT] = Field(256, ge=1)
    """Decode slots per engine; further requests wait."""
    tensor_parallel: Annotated[WorkerCount, NOT_IN_FINGERPRINT] = Field(1, ge=1)
    """GPUs of one engine, all on one node."""
    degrees: Annotated[tuple[Degree, ...], OnlyWith("system.planner"), NOT_IN_FINGERPRINT] = ()
    """Degrees of tensor parallelism that `system.planner` may choose among, tensor_parallel being one of them and each
    twice the one before: [1, 2, 4]. There is a set of engines for each, on the same GPUs. Empty leaves a real run at
    tensor_parallel, and gives a modelled one every degree that fits."""
    switch: Annotated[Literal["sleep", "restart"], OnlyWith("engine.degrees"), NOT_IN_FINGERPRINT] = "sleep"
    """Where the engines of the other degrees are. `sleep`: their processes stay, and a change takes about as long as
    sleeping and waking; each keeps a process and a CUDA context of 1 to 2 GB on every GPU, which `vllm.memory_share`
    has to leave free. `restart`: their processes end and start again at every change, which takes as long as a
    start."""
    profile: Annotated[Path | None, OnlyWith("system.planner"), NOT_IN_FINGERPRINT] = None
    """A file that `rollpacker profile` wrote, with all `degrees`: the planner's first guess. null: it goes by
    preemptions and measured rates alone. A modelled run takes what its hardware says."""
    num_threads: Annotated[Count, REAL_RUN, NOT_IN_FINGERPRINT] = Field(1, ge=1)
    """torch threads per engine process."""
    vllm: Annotated[VllmSection, OnlyWith("engine.name", "vllm")] = VllmSection()
    max_restarts: Annotated[Count, NOT_IN_FINGERPRINT] = 3
    """An engine that is lost is replaced this often in an attempt of the run; after that the others go on without it.
    0 replaces none."""
    restart_pause_s: Annotated[Seconds, NOT_IN_FINGERPRINT] = 1.0
    """Before an engine's first restart; the pause doubles with each further one, up to a minute."""
    resources: Annotated[ActorResources, NOT_IN_FINGERPRINT] = ActorResources()
