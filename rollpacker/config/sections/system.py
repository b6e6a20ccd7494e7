"""The scheduling policy: the `system` section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rollpacker.config.sections.base import NOT_IN_FINGERPRINT, Count, Flag, Number, OnlyWith, Positive, Section

SpeculationFactor = Annotated[Number, Field(ge=1, le=8)]
"""How many times more is launched than needed; 1 means no speculation, the paper uses 1.25."""


class SystemSection(Section):
    """Which scheduling policy packs the rollouts."""

    name: str
    """What tables and plots call it."""
    batching: Literal["plain", "tail"]
    """`plain` waits for every response; `tail` runs short rounds that race and long rounds that do not."""
    eta_prompts: Annotated[SpeculationFactor, OnlyWith("system.batching", "tail")] = 1.25
    """Prompts launched per prompt needed in a short round; only with `batching: tail`."""
    eta_responses: Annotated[SpeculationFactor, OnlyWith("system.batching", "tail")] = 1.25
    """Responses launched per response needed in a short round; only with `batching: tail`."""
    reward: Literal["batch", "async", "scheduled"] = "async"
    """`batch` scores the batch after its last response; `async` scores each response as it finishes, and `scheduled`
    moreover stops programs that take much longer than correct ones did (paper, section 4.3)."""
    dynamic_sampling: Flag = False
    """Drops a prompt whose rewards are all equal, of which GRPO learns nothing, and launches another one at once, until
    the batch holds only prompts whose rewards differ (DAPO); with either batching. Each prompt is then trained or
    dropped once per epoch. Not with `batching: tail` and `reward: batch`, and with `stream` only while the data does
    not end (`run.num_epochs: null`)."""
    max_active_requests: Count | None = Field(None, ge=1)
    """With dynamic sampling: at most so many responses are generated at a time, over all engines; prompts wait for
    room before they are drawn. null: as many as the round wants."""
    max_launch_factor: Annotated[Number, OnlyWith("system.dynamic_sampling")] = Field(10.0, ge=1)
    """With dynamic sampling: a step that launched so many times its prompts without filling its batch ends the run with
    an error. As `max_num_gen_batches` of verl's DAPO recipe."""
    planner: Flag = False
    """Moves rounds of a kind to engines of another tensor-parallel degree when they preempt more and more, or not at
    all (paper, section 4.2). A real run has engines of the degrees that `engine.degrees` names."""
    speculative_decoding: Annotated[Flag, NOT_IN_FINGERPRINT] = False
    """Decode passes verify draft tokens, at each batch size as many as gained most tokens per second before, or none.
    Responses have the same distribution with and without. A modelled run's drafts are accepted with
    `workload.draft_acceptance`."""
    stream: Flag = False
    """Streams accepted groups to the trainer before the rollout ends (paper, section 4.4): from its beginning to a
    trainer that shares no GPU with engines; where they share GPUs, when half of the engines can be lent to it. Not with
    trainer.num_minibatches above 1 or trainer.loss_normalisation=token_mean, which need the whole batch first."""
    stream_at: Positive | None = Field(None, le=1)
    """With `stream` and shared GPUs: half of the engines are lent when this share of a round's requests is finished,
    whether or not what still runs fits into the others (the fixed points of the paper's Table 3). null decides by
    memory: tested at 20 % and every 5 % from there to 50 %."""
