"""How long engines, trainer and weight transfer take on given GPUs, from first principles.

Invariant: every time is a function of sizes (`Transformer`), peaks, shares of peaks and overheads (`HardwareSection`)
and of what is done. Which of these are data sheets, guesses or fitted to the paper stands in `conf/hardware/`.

    a forward pass   step_overhead_s, and sequence_overhead_s for each sequence in it
                   + with draft tokens draft_overhead_s, and half a sequence's overhead for each of them
                   + max(weights read at the memory's rate, matrix work at the processors' rate)      a roofline;
                     of a layer's experts those are read that its tokens are expected to be sent to
                   + KV cache of all decoding sequences, read at the memory's rate
                   + attention work of prefilled tokens on their context
                   + two all-reduces per layer among the engine's GPUs
    a rollout        rollout_start_s, once before the first pass
    a training step  forward and backward of the fullest replica at `training_efficiency`, three times the forward work
                   + training_sequence_overhead_s for each sequence of the fullest replica
                   + pipeline bubble, all-reduces of tensor parallelism, gradients' all-reduce in rings.
                     Ring attention hides the communication of context parallelism behind its compute.
                     Sequences that are not split (trainer.context_parallel_above) come after those that are, spread
                     over as many more replicas, each of as many fewer GPUs.
    weights          what lies on other nodes over the network, then over NVLink into every engine

Everything that a GPU of a tensor-parallel group does is divided by the group's size, but for KV heads: GPUs beyond
their number hold copies.
Sources: the roofline model (Williams et al., 2009); FLOPs per token as in Kaplan et al., 2020; ring all-reduce moves
2 (n - 1) / n of the bytes per GPU.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rollpacker.config.sections.modelled import HardwareSection
from rollpacker.data.shapes import Transformer
from rollpacker.trainers.replicas import longest_whole

GIGA = 1e9
TERA = 1e12

KV_BLOCK_TOKENS = 16
"""vLLM's default."""

_ALLREDUCES_PER_LAYER = 2
"""After attention and after the MLP (Megatron-LM, section 3), in each of the two passes."""

_ALLREDUCE_LATENCY_S = 1e-5
"""Of one all-reduce within a node, however small. A common figure."""

_DRAFT_TOKEN_OVERHEAD = 0.5
"""Share of `sequence_overhead_s` that a draft token takes: it is sampled as a sequence's, and not scheduled. An
assumption."""

_GRADIENT_BYTES = 4
"""Gradients are reduced in fp32."""


class PassCosts(Protocol):
    """What an engine's passes take and how much fits into it: all that a decoder knows of either."""

    @property
    def num_kv_blocks(self) -> int:
        """Blocks that the KV cache has; 0 or less when the weights alone are too large."""

    @property
    def num_kv_tokens(self) -> int: ...

    @property
    def kv_read_s(self) -> float:
        """To read the KV cache of one token."""

    @property
    def ending_s(self) -> float:
        """By which the next pass comes later for each sequence that ends."""

    @property
    def memory(self) -> str:
        """Of what the capacity follows, in words."""

    def pass_s(self, num_tokens: int) -> float:
        """One pass that adds a token to each of so many sequences, without reading what is cached of them."""

    def draft_pass_s(self, num_sequences: int, draft_length: int) -> float:
        """The same, where the pass verifies so many draft tokens of each sequence besides."""

    def prefill_pass_s(self, num_decoding: int, chunks: Sequence[tuple[int, int]]) -> float:
        """One pass over parts of prompts, given by first and last position, beside so many sequences that decode."""


class StepCosts(Protocol):
    """What a trainer's work takes."""

    @property
    def gpus_per_replica(self) -> int: ...

    @property
    def num_replicas(self) -> int: ...

    @property
    def num_weight_bytes(self) -> int: ...

    @property
    def first_step_s(self) -> float:
        """By which a trainer's very first step takes longer: what is compiled, allocated and loaded once."""

    def passes_s(
        self, lengths_tokens: Sequence[int], num_replicas: int | None = None, *, forward_only: Sequence[int] = ()
    ) -> float:
        """Forward and backward over sequences, on all replicas or so many.

        `forward_only` are sequences whose group has no advantage, for which some trainers need no backward pass.
        """

    def update_s(self) -> float:
        """Everything of a step beside its passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCosts:
    """An engine on `tensor_parallel` GPUs of one node; implements `PassCosts`."""

    model: Transformer
    hardware: HardwareSection
    tensor_parallel: int
    num_bytes_beside: float = 0.0
    """Of each GPU, that an engine which stands by has for its weights."""

    @property
    def num_kv_blocks(self) -> int:
        """Blocks that fit beside the weights; 0 or less when the weights alone are too large."""
        return math.floor(
            (self._num_bytes - self.model.num_weight_bytes) / (self._kv_bytes_per_token * KV_BLOCK_TOKENS)
        )

    @property
    def num_kv_tokens(self) -> int:
        return max(self.num_kv_blocks, 0) * KV_BLOCK_TOKENS

    @property
    def kv_read_s(self) -> float:
        """To read the KV cache of one token."""
        return self._kv_bytes_per_token / self._memory_rate

    def pass_s(self, num_tokens: int) -> float:
        """One token for each of so many sequences, without reading what is cached of them."""
        return self.forward_s(num_tokens) + self.hardware.sequence_overhead_s * num_tokens

    def draft_pass_s(self, num_sequences: int, draft_length: int) -> float:
        """One pass over a token of each sequence and its draft tokens, which have overheads of their own."""
        if not draft_length:
            return self.pass_s(num_sequences)
        overhead_s = self.hardware.sequence_overhead_s * (1 + _DRAFT_TOKEN_OVERHEAD * draft_length)
        forward_s = self.forward_s(num_sequences * (1 + draft_length))
        return forward_s + overhead_s * num_sequences + self.hardware.draft_overhead_s

    def forward_s(self, num_tokens: int) -> float:
        """One forward pass over so many tokens, without their attention and what each sequence takes."""
        weights_s = self.model.num_bytes_read(num_tokens) / self._memory_rate
        matmul_s = self.model.forward_flops(num_tokens) / self._matmul_rate
        return self.hardware.step_overhead_s + max(weights_s, matmul_s) + self._allreduce_s(num_tokens)

    @property
    def ending_s(self) -> float:
        """Nothing: on a GPU of its own an engine need not wait for what happens to a response."""
        return 0.0

    @property
    def memory(self) -> str:
        weights_gb, memory_gb = self.model.num_weight_bytes / GIGA, self._num_bytes / GIGA
        return f"with {weights_gb:.1f} GB of weights in {memory_gb:.1f} GB"

    def prefill_pass_s(self, num_decoding: int, chunks: Sequence[tuple[int, int]]) -> float:
        """One pass over all of them together, and the attention of the prompts."""
        num_tokens = num_decoding + sum(end - begin for begin, end in chunks)
        overhead_s = self.hardware.sequence_overhead_s * (num_decoding + len(chunks))
        attention_s = sum(self.prefill_attention_s(begin, end) for begin, end in chunks)
        return self.forward_s(num_tokens) + overhead_s + attention_s

    def prefill_attention_s(self, begin: int, end: int) -> float:
        """Attention of the tokens at positions `begin` to `end` of one sequence."""
        return self.model.attention_flops(begin, end) / self._matmul_rate

    @property
    def _num_bytes(self) -> float:
        """Memory for weights and KV cache, of all its GPUs."""
        of_each = self.hardware.memory_gb * GIGA * self.hardware.memory_share - self.num_bytes_beside
        return of_each * self.tensor_parallel

    @property
    def _kv_bytes_per_token(self) -> int:
        return self.model.engine_kv_bytes_per_token(self.tensor_parallel)

    @property
    def _memory_rate(self) -> float:
        return self.hardware.memory_gb_per_s * GIGA * self.hardware.memory_efficiency * self.tensor_parallel

    @property
    def _matmul_rate(self) -> float:
        return self.hardware.tflops * TERA * self.hardware.matmul_efficiency * self.tensor_parallel

    def _allreduce_s(self, num_tokens: int) -> float:
        if self.tensor_parallel == 1:
            return 0.0
        shape = self.model.shape
        num_bytes = num_tokens * shape.hidden_size * self.model.bytes_per_number
        each = _ALLREDUCE_LATENCY_S + _allreduce_s(num_bytes, self.tensor_parallel, nvlink_rate(self.hardware))
        return shape.num_layers * _ALLREDUCES_PER_LAYER * each


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCosts:
    """A trainer on so many GPUs, as many of each of its nodes; implements `StepCosts`."""

    model: Transformer
    hardware: HardwareSection
    num_gpus: int
    num_nodes: int
    tensor_parallel: int
    pipeline_parallel: int
    context_parallel: int
    max_tokens_per_microbatch: int
    whole_up_to: int = 0
    """Length up to which sequences are not split among context-parallel GPUs."""

    @property
    def gpus_per_replica(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def num_replicas(self) -> int:
        return self.num_gpus // self.gpus_per_replica

    @property
    def num_weight_bytes(self) -> int:
        return self.model.num_weight_bytes

    @property
    def first_step_s(self) -> float:
        """Nothing: there is no formula for it."""
        return 0.0

    def passes_s(
        self, lengths_tokens: Sequence[int], num_replicas: int | None = None, *, forward_only: Sequence[int] = ()
    ) -> float:
        """Forward and backward over all sequences, packed without padding and spread over the replicas, or so many."""
        lengths = [*lengths_tokens, *forward_only]
        num_replicas = num_replicas or self.num_replicas
        num_parts = self.context_parallel
        longest = longest_whole(lengths, num_replicas * num_parts, self.whole_up_to)
        split = [length for length in lengths if length > longest]
        whole = [length for length in lengths if length <= longest]
        busy_s = overhead_s = 0.0
        num_microbatches = 0
        for chosen, factor in ((split, 1), (whole, num_parts)):
            flops, tokens = self._fullest_replica(chosen, num_replicas * factor)
            rate = self.hardware.tflops * TERA * self.hardware.training_efficiency * self.gpus_per_replica / factor
            busy_s += flops / rate + self._tensor_parallel_s(tokens * factor / num_parts)
            num_microbatches += math.ceil(tokens / (self.max_tokens_per_microbatch / factor))
            overhead_s += self.hardware.training_sequence_overhead_s * math.ceil(len(chosen) / (num_replicas * factor))
        bubble = (self.pipeline_parallel - 1) / max(1, num_microbatches)
        return busy_s * (1 + bubble) + overhead_s

    def update_s(self) -> float:
        """Sum the gradients in rings over all GPUs that hold the same part of the model.

        Ranks lie as Megatron-LM orders them: tensor, context, data, pipeline. So a ring runs through a node before it
        leaves it, and a node's link carries as many rings as a layer is divided into.
        """
        gpus_per_stage = self.num_gpus // self.pipeline_parallel
        num_bytes = self.model.num_parameters * _GRADIENT_BYTES / (self.tensor_parallel * self.pipeline_parallel)
        rate = nvlink_rate(self.hardware)
        if gpus_per_stage > self.num_gpus / self.num_nodes:
            rate = min(rate, network_rate(self.hardware) / self.tensor_parallel)
        return _allreduce_s(num_bytes, gpus_per_stage // self.tensor_parallel, rate)

    def _fullest_replica(self, lengths_tokens: Sequence[int], num_replicas: int) -> tuple[float, int]:
        """Work and tokens of the replica with most work, when each sequence goes, longest first, to the emptiest."""
        replicas = [(0.0, index, 0) for index in range(num_replicas)]
        for length in sorted(lengths_tokens, reverse=True):
            flops, index, tokens = replicas[0]
            # the backward pass is twice the forward pass: gradients of inputs and of weights
            flops += 3 * (self.model.forward_flops(length) + self.model.attention_flops(0, length))
            heapq.heapreplace(replicas, (flops, index, tokens + length))
        fullest = max(replicas)
        return fullest[0], fullest[2]

    def _tensor_parallel_s(self, tokens_per_gpu: float) -> float:
        shape = self.model.shape
        num_bytes = tokens_per_gpu * shape.hidden_size * self.model.bytes_per_number
        num_allreduces = 2 * _ALLREDUCES_PER_LAYER * shape.num_layers / self.pipeline_parallel
        return num_allreduces * _allreduce_s(num_bytes, self.tensor_parallel, nvlink_rate(self.hardware))


def weight_transfer_s(
    model: Transformer, hardware: HardwareSection, *, share_elsewhere: float, tensor_parallel: int
) -> float:
    """Send a policy from the trainer to every engine; such a share of it lies on other nodes than theirs."""
    from_other_nodes = model.num_weight_bytes * share_elsewhere
    network_s = from_other_nodes / (hardware.network_gb_per_s * GIGA * hardware.weight_sync_efficiency)
    return network_s + model.num_weight_bytes / tensor_parallel / nvlink_rate(hardware)


def nvlink_rate(hardware: HardwareSection) -> float:
    """Bytes per second in one direction; data sheets add both."""
    return hardware.nvlink_gb_per_s / 2 * GIGA * hardware.link_efficiency


def network_rate(hardware: HardwareSection) -> float:
    """Bytes per second into one node."""
    return hardware.network_gb_per_s * GIGA * hardware.link_efficiency


def _allreduce_s(num_bytes: float, num_ranks: int, rate: float) -> float:
    return 2 * (num_ranks - 1) / num_ranks * num_bytes / rate
