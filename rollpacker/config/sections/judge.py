"""The LLM judge: its model, its prompt, and the reward of its one token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rollpacker.config.sections.base import (
    MODELLED_RUN,
    NOT_IN_FINGERPRINT,
    REAL_RUN,
    Count,
    Flag,
    Number,
    Positive,
    PositiveSeconds,
    Seconds,
    Section,
    WorkerCount,
)
from rollpacker.config.sections.model import ModelSection
from rollpacker.config.sections.resources import ActorResources


class JudgeSection(Section):
    """The LLM judge, which reads question and response and answers with one token."""

    model: ModelSection = ModelSection(path=None, dtype="bfloat16")
    """Any causal language model, best a chat model. The paper's judge is Qwen2.5-7B-Instruct."""
    tensor_parallel: Annotated[WorkerCount, NOT_IN_FINGERPRINT] = Field(1, ge=1)
    """GPUs of one replica, all on one node. In a modelled run there are as many replicas as the GPUs hold; a real judge
    of more than one takes `engine: vllm`."""
    gpu_share: Annotated[Positive, NOT_IN_FINGERPRINT] = Field(0.2, lt=1)
    """Of the processors of each GPU that the judge shares with engines (CUDA MPS). A modelled run takes them from the
    engines; in a real one the judge uses no more (MPS's active thread percentage), and engines all that it leaves. A
    guess."""
    resident_share: Annotated[Number | None, NOT_IN_FINGERPRINT] = Field(None, ge=0, le=1)
    """Of a `streamed` judge's layers that stay in GPU memory; the others stream over PCIe while it computes. null
    streams all. In a modelled run a `shared` judge takes their bytes from the engines' KV cache, and null keeps all."""
    num_slots: Annotated[Count, NOT_IN_FINGERPRINT] = Field(2, ge=1, le=4)
    """Of a `streamed` judge, or a modelled one with a `resident_share`: layers that lie in device memory while others
    stream. With 2 the next layer arrives while one computes; with 1 every copy is waited for (Fig 13b without
    pipelining)."""

    # of a real judge
    engine: Annotated[Literal["torch", "vllm", "streamed"], REAL_RUN] = "torch"
    """Implementation: `torch` a plain forward pass, `vllm` requests of one token, `streamed` a forward pass whose
    layers come from host memory."""
    num_replicas: Annotated[WorkerCount, REAL_RUN, NOT_IN_FINGERPRINT] = Field(1, ge=1)
    """Actors that judge in parallel; an answer goes to the one with the fewest."""
    resources: Annotated[ActorResources, REAL_RUN, NOT_IN_FINGERPRINT] = ActorResources()
    """Of one replica."""
    num_threads: Annotated[Count, REAL_RUN, NOT_IN_FINGERPRINT] = Field(1, ge=1)
    """torch threads per replica."""
    reward: Annotated[Literal["verdict", "graded"], REAL_RUN] = "verdict"
    """The reward by p = P(yes) / (P(yes) + P(no)): `verdict` is 1 from the `threshold` on and 0 below it, as the
    paper's one-token verdict; `graded` is p itself."""
    threshold: Annotated[Positive, REAL_RUN] = Field(0.5, le=1)
    """The lowest p that is a yes; 0.5 is what the more likely of the two tokens says."""
    min_mass: Annotated[Number, REAL_RUN] = Field(0.01, ge=0, le=1)
    """Where yes and no together have a lower probability, the judge would answer something else: the response scores 0
    with reason `no_verdict`. 0 accepts any verdict."""
    yes: Annotated[tuple[str, ...], REAL_RUN] = ("Yes", "yes")
    """Verdicts for the response, each one token of the judge's tokenizer; their probabilities add up."""
    no: Annotated[tuple[str, ...], REAL_RUN] = ("No", "no")
    """Verdicts against it."""
    template: Annotated[Path | None, REAL_RUN] = None
    """A Jinja file over `question`, `response`, `rubric`, `answer`, `fence` and `is_truncated` that makes the message
    to the judge. null takes template.jinja in the package's rewards/judge."""
    template_arguments: Annotated[dict[str, bool | int | float | str], REAL_RUN] = Field(default_factory=dict)
    """Variables of the judge's own chat template, such as {enable_thinking: false} of Qwen3's: the verdict is the
    first token, so thinking has to be off."""
    max_prompt_tokens: Annotated[Count, REAL_RUN] = Field(8192, ge=32)
    """Longest input of the judge. Where question and response have more tokens than there is room for, each may take
    half, and what the other leaves; what is longer loses its middle: the first and the last tokens stay."""
    max_batch_tokens: Annotated[Count, REAL_RUN, NOT_IN_FINGERPRINT] = Field(16384, ge=1)
    """Tokens of one forward pass; a longer answer has its own pass."""
    max_open: Annotated[Count, REAL_RUN, NOT_IN_FINGERPRINT] = Field(64, ge=1)
    """Answers that one replica holds; further ones wait in the driver for the replica that has room first."""
    max_restarts: Annotated[Count, REAL_RUN] = 3
    """A judge that is lost is replaced this often in an attempt of the run; after that the others go on without it. The
    answers that it had go to the others, or wait. 0 replaces none."""
    stall_s: Annotated[PositiveSeconds, REAL_RUN, NOT_IN_FINGERPRINT] = 300
    """A judge that has answers and gives no verdict for so long is lost, however well its process is. Less than
    `backend.deadlines.rollout_stall_s`, after which the run ends."""
    restart_pause_s: Annotated[Seconds, REAL_RUN] = 1.0
    """Before a judge's first restart; the pause doubles with each further one, up to a minute."""
    memory_share: Annotated[Positive, REAL_RUN, NOT_IN_FINGERPRINT] = Field(0.3, le=1)
    """Of the memory of each of its GPUs. Where engines of vLLM work on the same GPU, their `engine.vllm.memory_share`
    is lower by as much."""
    kv_cache_mb: Annotated[Count | None, REAL_RUN, NOT_IN_FINGERPRINT] = Field(None, ge=1)
    """With `vllm`: KV cache of each GPU, in MB of 2^20 bytes. null takes what is left of the memory share; on a CPU
    256."""
    enforce_eager: Annotated[Flag | None, REAL_RUN, NOT_IN_FINGERPRINT] = None
    """With `vllm`: start sooner, without compiling the model. null is false on a GPU and true on a CPU."""

    # of a modelled judge
    placement: Annotated[Literal["auto", "dedicated", "shared", "turns"], MODELLED_RUN] = "auto"
    """Of a modelled run; a real one has `placement.judge`. `dedicated` has GPUs of its own; `shared` works on the
    engines' GPUs beside them (CUDA MPS); `turns` has these GPUs once the rollout has ended, and is loaded then: with
    `system.reward=batch` only. `auto` is `shared` with `system.reward=scheduled`, as the paper's reward scheduler does
    it, and `dedicated` otherwise."""
    num_gpus: Annotated[WorkerCount, MODELLED_RUN] = Field(1, ge=1)
    """Of a `dedicated` judge of a modelled run, beside those of engines and trainer. The paper does not give it. With
    1, judging 1,024 answers of the paper's lengths takes a share of a step near Table 1's."""
    template_tokens: Annotated[Count, MODELLED_RUN] = 200
    """That surround prompt and response in what the judge of a modelled run reads. A guess."""
    start_s: Annotated[Seconds, MODELLED_RUN] = 0.0
    """To load a judge that takes `turns` onto the GPUs of a modelled run, beyond the transfer of its weights. A guess:
    it sleeps in host memory; starting a process takes tens of seconds."""

    def changed(self, keys: Sequence[str]) -> list[str]:
        """Which of these keys differ from their defaults."""
        fields = type(self).model_fields
        return [key for key in keys if getattr(self, key) != fields[key].get_default(call_default_factory=True)]

    @model_validator(mode="after")
    def _verdicts_differ(self) -> Self:
        for key in ("yes", "no"):
            if not getattr(self, key):
                raise ValueError(
                    f"reward.judge.{key}=[] names no verdict.\nA judge can say both.\nName a word, such as ['Yes']."
                )
        if both := set(self.yes) & set(self.no):
            raise ValueError(
                f"reward.judge.yes and reward.judge.no both name {min(both)!r}.\n"
                "A verdict is for a response or against it.\nTake it out of one of them."
            )
        return self
