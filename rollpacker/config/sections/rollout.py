"""The batch and the sampling: the `rollout` section."""

from __future__ import annotations

from pydantic import Field

from rollpacker.config.sections.base import Count, Number, Section


class RolloutSection(Section):
    """The batch and the sampling."""

    num_prompts: Count = Field(32, ge=1)
    """P0: prompts in a training batch."""
    num_responses: Count = Field(8, ge=2)
    """R0: responses per prompt, the GRPO group; at least two, also where `trainer.advantage` compares none of them."""
    max_response_tokens: Count = Field(256, ge=1)
    """A response that reaches it ends there, with finish reason `length`."""
    temperature: Number = Field(1.0, ge=0.01, le=10)
    """Divides the logits before sampling; the trainer divides by it too. At less than 0.01 logits overflow, and vLLM
    samples at 0.01 instead."""
