"""What engines and reward are asked for: requests made of prompts and of the run's sampling rules."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.evaluation import EvaluationSection, HeldOutFile
from rollpacker.config.sections.reward import RewardSection
from rollpacker.config.sections.rollout import RolloutSection
from rollpacker.core.commands import ScoreResponse
from rollpacker.core.ids import PromptId, RequestId, held_out_prompt, is_held_out, set_of
from rollpacker.protocols.reward import ResponseToScore
from rollpacker.protocols.rollout import FinishReason, GenerationRequest, Response, TokenizedPrompt
from rollpacker.rewards.overlong import OverlongPunishment


@dataclass(frozen=True, kw_only=True)
class SamplingRules:
    """How responses are sampled and what their rewards are."""

    prompts: Mapping[str, TokenizedPrompt]
    """By key."""
    held_out: Mapping[str, TokenizedPrompt] = field(default_factory=dict)
    """The same of held-out prompts, whose keys begin with their sets."""
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    rollout: RolloutSection
    rewards: RewardSection
    overlong: OverlongPunishment
    seed: int
    """Of the run."""
    max_staleness: int = 0
    """Of a trained token, in policy versions; above 0 a response may be begun by one version and ended by another."""

    @classmethod
    def of(
        cls,
        config: RunConfig,
        prompts: Mapping[str, TokenizedPrompt],
        held_out: Mapping[str, Mapping[str, TokenizedPrompt]] | None = None,
    ) -> Self:
        """Take them from a configuration; held-out prompts are given by set and key."""
        return cls(
            prompts=prompts,
            held_out={
                held_out_prompt(name, key).key: prompt
                for name, prompts_of_set in (held_out or {}).items()
                for key, prompt in prompts_of_set.items()
            },
            evaluation=config.evaluation,
            rollout=config.rollout,
            rewards=config.reward,
            overlong=OverlongPunishment.of(config),
            seed=config.run.seed,
            max_staleness=config.system.max_staleness,
        )

    def prompt_of(self, request: RequestId) -> TokenizedPrompt:
        """The prompt of a request, trained or held out."""
        return (self.held_out if is_held_out(request) else self.prompts)[request.prompt.key]

    def max_tokens_of(self, request: RequestId) -> int:
        """The most tokens that its response may have, with what environments write."""
        own = self._rules[set_of(request)].max_response_tokens if is_held_out(request) else None
        return own or self.rollout.max_response_tokens

    def generation(
        self, request: RequestId, begun: Response | None, policy_version: int, launch: int = 0
    ) -> GenerationRequest:
        """Ask an engine, which holds this version, for a response, or for the rest of one that was begun before."""
        if is_held_out(request):
            return self._held_out_generation(request, begun, launch)
        return GenerationRequest(
            request=request,
            prompt_token_ids=self.prompts[request.prompt.key].token_ids,
            seed=sample_seed(self.seed, request),
            max_response_tokens=self.rollout.max_response_tokens,
            temperature=self.rollout.temperature,
            begun=begun,
            oldest_policy_version=max(0, policy_version - self.max_staleness) if self.max_staleness else None,
            launch=launch,
        )

    def _held_out_generation(self, request: RequestId, begun: Response | None, launch: int) -> GenerationRequest:
        """Ask for a response of an evaluation, behind those of training."""
        rule = self._rules[set_of(request)]
        assert rule.temperature is not None
        assert rule.top_p is not None
        assert rule.top_k is not None
        return GenerationRequest(
            request=request,
            prompt_token_ids=self.held_out[request.prompt.key].token_ids,
            seed=held_out_seed(self.evaluation.seed, request),
            max_response_tokens=self.max_tokens_of(request),
            temperature=rule.temperature,
            top_p=rule.top_p,
            top_k=rule.top_k,
            priority=1,
            begun=begun,
            launch=launch,
        )

    @cached_property
    def _rules(self) -> Mapping[str, HeldOutFile]:
        return {rule.name: rule for rule in self.evaluation.rules}

    def scoring(self, command: ScoreResponse, response: Response) -> ResponseToScore:
        """Ask the reward for a verdict, of several turns on the last one."""
        return ResponseToScore(
            request=command.request,
            prompt=self.prompt_of(command.request).prompt,
            token_ids=response.last_turn,
            is_truncated=response.finish_reason is FinishReason.LENGTH,
            case_limits_s=command.case_limits_s,
        )


def sample_seed(run_seed: int, request: RequestId) -> int:
    """The seed of one sample: a function of its names, so that no other sample can change it. 63 bits."""
    prompt = request.prompt
    return _63_bits(f"{run_seed}/{request.round}/{prompt.epoch}/{prompt.key}/{request.sample}")


def held_out_seed(evaluation_seed: int, request: RequestId) -> int:
    """The seed of one held-out sample: the same in every step, run and system, so that these are compared in pairs."""
    return _63_bits(f"held out/{evaluation_seed}/{request.prompt.key}/{request.sample}")


def environment_seed(seed: int, prompt: PromptId) -> int:
    """The seed of a prompt's environments, the same for all of its trajectories. 31 bits.

    Args:
        seed: Of the run; of a held-out prompt the evaluation's.
        prompt: The prompt.
    """
    return _63_bits(f"environment/{seed}/{prompt.epoch}/{prompt.key}") >> 32


def _63_bits(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
