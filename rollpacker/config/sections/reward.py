"""Who judges."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rollpacker.config.sections.base import Section
from rollpacker.config.sections.model import ModelSection
from rollpacker.config.sections.resources import ActorResources

RewardName = Literal["math", "walk", "sandbox", "judge", "modelled"]


class JudgeSection(Section):
    """The LLM judge of a modelled run, which reads prompt and response and says one token."""

    model: ModelSection = ModelSection(path=None, dtype="bfloat16")
    """The paper's judge is Qwen2.5-7B-Instruct."""
    placement: Literal["auto", "dedicated", "shared", "turns"] = "auto"
    """`dedicated` has GPUs of its own; `shared` works on the engines' GPUs beside them (CUDA MPS); `turns` has these
    GPUs once the rollout has ended, and is loaded then: with `system.reward=batch` only. `auto` is `shared` with
    `system.reward=scheduled`, as the paper's reward scheduler does it, and `dedicated` otherwise."""
    num_gpus: int = Field(1, ge=1)
    """Of a `dedicated` judge, beside those of engines and trainer. The paper does not give it. With 1, judging 1,024
    answers of the paper's lengths takes a share of a step near Table 1's."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs of one replica; there are as many replicas as the GPUs hold."""
    gpu_share: float = Field(0.2, gt=0, lt=1)
    """Of each GPU's processors that a `shared` judge has, and that the engines are without. A guess."""
    resident_share: float = Field(1.0, ge=0, le=1)
    """Of the judge's layers that stay in GPU memory, where a `shared` judge takes their bytes from the engines' KV
    cache; the others stream over PCIe in step with compute."""
    template_tokens: int = Field(200, ge=0)
    """That surround prompt and response in what the judge reads. A guess."""
    start_s: float = Field(0.0, ge=0)
    """To bring a judge that takes `turns` onto the GPUs, beyond the transfer of its weights. A guess: it sleeps in host
    memory; a process that starts anew takes tens of seconds."""


class RewardSection(Section):
    """Who judges."""

    name: Literal["math", "walk", "modelled"] = "math"
    """Which check; `modelled` checks nothing, and is for modelled runs, which take their verdicts from the workload."""
    domains: dict[str, Literal["math", "walk", "sandbox", "judge"]] = Field(default_factory=dict)
    """Which check judges a domain that `name` does not, such as {arithmetic: walk}. A real `sandbox` or `judge` is not
    there yet."""
    num_workers: int = Field(1, ge=1)
    """Responses that are checked at the same time."""
    timeout_s: float = Field(2.0, gt=0)
    """A response whose check takes longer scores 0 with reason `timeout`."""
    resources: ActorResources = ActorResources(num_cpus=0.5)
    kinds: dict[str, Literal["rule", "sandbox", "judge"]] = Field(default_factory=dict)
    """How a domain's responses are judged in a modelled run. Those that are not named: `code` in the sandbox, `judge`
    by the LLM judge, all others by a rule."""
    num_cores: int | None = Field(None, ge=1)
    """Cores that the `num_workers` programs of a modelled run share; null: those that the hardware's nodes have for
    it, and no more programs at a time than cores."""
    num_rule_workers: int | None = Field(None, ge=1)
    """Answers that rules check at the same time in a modelled run, on cores of their own; null: among the
    `num_workers`. veRL checks one after the other."""
    judge: JudgeSection = JudgeSection()

    def name_of(self, domain: str) -> RewardName:
        """Which check judges a domain."""
        return self.domains.get(domain, self.name)

    @model_validator(mode="after")
    def _judges_in_reality(self) -> Self:
        for domain, name in self.domains.items():
            if self.name == "modelled":
                raise ValueError(
                    f"reward.domains.{domain}={name} with reward.name=modelled.\n"
                    "A modelled run takes every verdict from the workload.\n"
                    f"Leave it out; reward.kinds.{domain} says how a domain is judged in a modelled run."
                )
            if name in {"sandbox", "judge"}:
                what = "code sandbox" if name == "sandbox" else "LLM judge"
                raise ValueError(
                    f"reward.domains.{domain}={name}, and there is no real {what} yet.\n"
                    "Real responses are judged by math or walk.\n"
                    f"Leave the prompts of domain {domain} out, or model the run with backend=sim."
                )
        return self

    @model_validator(mode="after")
    def _models_nothing_in_reality(self) -> Self:
        modelled = ("kinds", "num_cores", "num_rule_workers", "judge")
        if self.name != "modelled":
            for key in modelled:
                value, default = getattr(self, key), type(self).model_fields[key].get_default(call_default_factory=True)
                if value != default:
                    raise ValueError(
                        f"reward.{key} is set with reward.name={self.name}.\n"
                        f"{', '.join(f'reward.{each}' for each in modelled)} describe rewards of a modelled run.\n"
                        f"Choose reward=modelled, or leave out reward.{key}."
                    )
        return self
