"""What only a modelled run needs: its GPUs and its responses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from rollpacker.config.sections.base import NOT_IN_FINGERPRINT, Count, Number, Positive, Seconds, Section, WorkerCount
from rollpacker.config.sections.modelled_environment import ModelledEnvironmentSection


class WorkloadSection(Section):
    """What a modelled run knows of its responses: their lengths, their rewards and how long these take."""

    name: str
    """What people call it."""
    lengths: Path | None = None
    """Where response lengths come from: the run.dir of a recorded run, or a CSV, Parquet or JSONL file with the column
    `length_tokens` and, where known, `prompt` and `domain`; or with `p` and `tokens`, a table of quantiles. null takes
    the quantiles that the paper measured (Fig 2a)."""
    median_tokens: Positive | None = None
    """With it lengths are log-normal, instead of `lengths`: this is their median."""
    sigma: Number = Field(1.0, ge=0, le=3)
    """With `median_tokens`: standard deviation of the logarithms of lengths; one response in 40 is longer than the
    median times e to twice this."""
    domain: str | None = None
    """The one domain that is used; null uses every domain of the lengths. Log-normal lengths are of this one."""
    num_prompts: Count = Field(4096, ge=1)
    """Of each domain, where neither data.path nor the lengths name the prompts."""
    prompt_tokens: Count = Field(256, ge=1)
    """Length of every prompt; the paper does not give it."""
    rho: Number = Field(0.3, ge=0, lt=1)
    """Correlation of the lengths within a prompt (Gaussian copula), where the lengths do not tell it, for want
    of several of one prompt. A guess: the paper shows marginals only."""
    tail_scale: Number = Field(1.0, ge=0, le=10)
    """Factor on what a length has above the 90 % quantile of its domain: 0 ends all such responses there, 1 leaves them
    as they are, 2 makes the tail twice as long. Not of a recorded run, which has its own."""
    drift_per_step: Number = Field(0.0, gt=-1, le=1)
    """By which share lengths grow from one step to the next: 0.01 makes them 1.65 times as long after 50 steps. Not of
    a recorded run, which has its own."""
    drift_by_step: dict[Count, Positive] = Field(default_factory=dict)
    """Factor on lengths at some steps, interpolated between them and constant outside: {0: 1, 100: 1.5}; on top of
    `drift_per_step`."""
    solve_rate: Number = Field(0.5, ge=0, le=1)
    """Share of the complete responses that are right; one that reaches its length limit never is. A guess."""
    solve_rate_by_domain: dict[str, Annotated[Number, Field(ge=0, le=1)]] = Field(default_factory=dict)
    """Of single domains, instead of `solve_rate`."""
    solve_rate_drift_per_step: Number = Field(0.0, ge=-1, le=1)
    """Added to the share of right responses from step to step, which stays between 0 and 1."""
    solve_rate_rho: Number = Field(0.0, ge=0, lt=1)
    """Correlation of a prompt's responses in being right (Gaussian copula): above 0 some prompts are solved always and
    some never, so that dynamic sampling drops them. A guess: 0 makes all prompts equally hard."""
    endless_share: Number = Field(0.0513, ge=0, lt=1)
    """Share of the programs that never end by themselves; so many had not at the paper's limit of 30 s (Fig 7a). None
    of them is right, so they are at most those that are wrong."""
    run_time_rho: Number = Field(0.8, ge=0, lt=1)
    """Correlation of the run times of a prompt's programs (Gaussian copula): they solve the same problem on the same
    test cases. A guess: the paper shows marginals only."""
    draft_acceptance: Annotated[Number, NOT_IN_FINGERPRINT] = Field(0.6, ge=0, lt=1)
    """With `system.speculative_decoding`: probability that a drafted token is accepted, the same for all tokens. An
    assumption: 0.6 gains 2.2 to 2.4 tokens per pass, and published drafters 2.0 to 2.5 (NeMo RL with EAGLE-3)."""
    reward_time_s: Seconds | None = None
    """Time to judge any response, on a CPU worker; null takes the run times of the paper's sandbox (Fig 7a) for
    programs, `hardware.rule_time_s` for rules, and the LLM judge's prefill."""
    environment: ModelledEnvironmentSection | None = None
    """Only where a response has several turns."""

    @model_validator(mode="after")
    def _lengths_have_one_source(self) -> Self:
        if self.median_tokens is not None and self.lengths is not None:
            raise ValueError(
                f"workload.median_tokens={self.median_tokens:g} with workload.lengths={self.lengths}.\n"
                "Lengths are log-normal, or come from a file.\nLeave out one of the two."
            )
        return self


class HardwareSection(Section):
    """The GPUs of a modelled run and how much of their peak is reached.

    `num_nodes`, or `engine.num_engines` and `placement`, say how many they are.
    """

    name: str
    """What people call them."""
    fitted_to: str | None = None
    """What the overheads and efficiencies below were fitted to, by `rollpacker calibrate`; null: they are data sheets,
    common figures and guesses."""
    profile: Path | None = None
    """A file that `rollpacker profile` wrote: engines, trainer, weight transfer and calls take what was
    measured there, instead of what the keys below come to."""
    memory_gb: Positive
    """Of one GPU, 10^9 bytes."""
    memory_gb_per_s: Positive
    """Peak rate at which a GPU reads its memory."""
    tflops: Positive
    """Peak of dense bf16 matrix multiplication, 10^12 per second and GPU."""
    nvlink_gb_per_s: Positive
    """Per GPU, both directions together, as data sheets count it."""
    network_gb_per_s: Positive
    """Per node and direction."""
    pcie_gb_per_s: Positive = 64
    """Between host memory and one GPU, per direction: PCIe 5.0 x16, half of what data sheets give for both."""
    gpus_per_node: WorkerCount = Field(8, ge=1)
    """A tensor-parallel group stays within a node."""
    num_nodes: Annotated[WorkerCount | None, NOT_IN_FINGERPRINT] = Field(None, ge=1, le=100_000)
    """Nodes of the run. With them engine.num_engines may be null: as many as fill the GPUs of placement.engine, or all
    GPUs where engines and trainer take turns. null: as many as the engines need."""
    memory_share: Positive = Field(0.9, le=1)
    """Of a GPU's memory that an engine takes; what its weights leave of it holds the KV cache. vLLM's default."""
    memory_efficiency: Positive = Field(0.8, le=1)
    """Share of `memory_gb_per_s` that decoding reaches. A common figure."""
    matmul_efficiency: Positive = Field(0.6, le=1)
    """Share of `tflops` that prefill and decode reach. A common figure."""
    training_efficiency: Positive = Field(0.4, le=1)
    """Share of `tflops` that forward and backward passes reach (MFU). A common figure."""
    link_efficiency: Positive = Field(0.7, le=1)
    """Share of the rates of NVLink, network and PCIe that transfers reach. A common figure."""
    step_overhead_s: Seconds = 0.002
    """Of every forward pass of an engine: scheduling, sampling, kernel launches. A common figure."""
    rollout_start_s: Seconds = 0.0
    """From an engine's first request with new weights to its first forward pass: it wakes and takes its memory."""
    sequence_overhead_s: Seconds = 0.0
    """Of every sequence in a forward pass of an engine: what scheduling, sampling and detokenization take for each."""
    draft_overhead_s: Annotated[Seconds, NOT_IN_FINGERPRINT] = 0.001
    """Of every forward pass of an engine that verifies draft tokens: the drafter proposes them. An assumption."""
    training_sequence_overhead_s: Seconds = 0.0
    """Of every sequence that a training replica passes forward and backward: what does not depend on its length."""
    weight_sync_efficiency: Positive = Field(0.7, le=1)
    """Share of the network's rate at which new weights come from the other nodes. As `link_efficiency`."""
    reward_cores_per_node: Count = Field(64, ge=1)
    """Cores of a node that run programs for rewards, one at a time each. A guess."""
    rule_time_s: Seconds = 0.01
    """CPU time to compare an answer with its ground truth by a rule. A guess."""
    engine_switch_s: Seconds = 0.5
    """To put an engine to sleep, or to wake it: its memory is freed or taken. A guess."""
    engine_restart_s: Seconds = 60.0
    """From the loss of an engine's process until a fresh one in its place can take weights: start, libraries, memory,
    and the warm-up of its kernels. A guess."""
