"""What engines and reward are asked for: requests made of prompts and of the run's sampling rules."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.reward import RewardSection
from rollpacker.config.sections.rollout import RolloutSection
from rollpacker.core.commands import ScoreResponse
from rollpacker.core.ids import RequestId
from rollpacker.protocols.reward import ResponseToScore
from rollpacker.protocols.rollout import FinishReason, GenerationRequest, Response, TokenizedPrompt
from rollpacker.rewards.overlong import OverlongPunishment


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRules:
    """How responses are sampled and what their rewards are."""

    prompts: Mapping[str, TokenizedPrompt]
    """By key."""
    rollout: RolloutSection
    rewards: RewardSection
    overlong: OverlongPunishment
    seed: int
    """Of the run."""

    @classmethod
    def of(cls, config: RunConfig, prompts: Mapping[str, TokenizedPrompt]) -> Self:
        """Take them from a configuration."""
        return cls(
            prompts=prompts,
            rollout=config.rollout,
            rewards=config.reward,
            overlong=OverlongPunishment.of(config),
            seed=config.run.seed,
        )

    def generation(self, request: RequestId, begun: Response | None) -> GenerationRequest:
        """Ask an engine for a response, or for the rest of one that was begun elsewhere."""
        return GenerationRequest(
            request=request,
            prompt_token_ids=self.prompts[request.prompt.key].token_ids,
            seed=sample_seed(self.seed, request),
            max_response_tokens=self.rollout.max_response_tokens,
            temperature=self.rollout.temperature,
            begun=begun,
        )

    def scoring(self, command: ScoreResponse, response: Response) -> ResponseToScore:
        """Ask the reward for a verdict."""
        return ResponseToScore(
            request=command.request,
            prompt=self.prompts[command.request.prompt.key].prompt,
            token_ids=response.token_ids,
            is_truncated=response.finish_reason is FinishReason.LENGTH,
            case_limits_s=command.case_limits_s,
        )


def sample_seed(run_seed: int, request: RequestId) -> int:
    """The seed of one sample: a function of its names, so that no other sample can change it. 63 bits."""
    prompt = request.prompt
    name = f"{run_seed}/{request.round}/{prompt.epoch}/{prompt.key}/{request.sample}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1
