"""The scheduling policy: the `system` section."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from rollpacker.config.sections.base import NOT_IN_FINGERPRINT, Count, Flag, Number, OnlyWith, Positive, Section

SpeculationFactor = Annotated[Number, Field(ge=1, le=8)]
"""How many times more is launched than needed; 1 means no speculation, the paper uses 1.25."""


PAPER_FACTOR: Final = 1.25
"""Of prompts and of responses (RollPacker, section 3)."""


class SystemSection(Section):
    """Which scheduling policy packs the rollouts."""

    name: str
    """What tables and plots call it."""
    batching: Literal["plain", "tail"]
    """`plain` waits for every response; `tail` runs short rounds that race and long rounds that do not."""
    eta_prompts: Annotated[SpeculationFactor, OnlyWith("system.batching", "tail")] = PAPER_FACTOR
    """Prompts launched per prompt needed in a short round; only with `batching: tail`."""
    eta_responses: Annotated[SpeculationFactor, OnlyWith("system.batching", "tail")] = PAPER_FACTOR
    """Responses launched per response needed in a short round; only with `batching: tail`."""
    length_history: Annotated[Flag, OnlyWith("system.batching", "tail")] = False
    """Remembers how long each prompt's last responses were. Of the prompts drawn for a short round, those with the
    longest ones run in a long round at once, to their end, and never race; so from the second epoch on smaller factors
    do: fewer tokens are wasted, and trained responses are hardly shorter than what the policy writes. As many of each
    domain as its weight says. Not with `dynamic_sampling`."""
    history_share: Annotated[Number, OnlyWith("system.length_history")] = Field(0.2, ge=0.01, le=0.75)
    """With `length_history`: the share of the drawn prompts that is taken for long."""
    first_epoch: Annotated[Literal["race", "exact"], OnlyWith("system.length_history")] = "exact"
    """With `length_history`, until all prompts that are drawn for a round are known: `exact` waits for every response,
    as `batching: plain`; `race` is tail batching with 1.25 times the prompts and responses, as in system=ours-fast:
    faster, and until the next epoch trained responses are much shorter than what the policy writes."""
    reward: Literal["batch", "async", "scheduled"] = "async"
    """`batch` scores the batch after its last response; `async` scores each response as it finishes, and `scheduled`
    moreover stops programs that take much longer than correct ones did (paper, section 4.3)."""
    dynamic_sampling: Flag = False
    """Drops a prompt whose rewards are all equal, of which GRPO learns nothing, and launches another one at once, until
    the batch holds only prompts whose rewards differ (DAPO); with either batching. Each prompt is then trained or
    dropped once per epoch. Not with `batching: tail` and `reward: batch`."""
    max_active_requests: Annotated[Count | None, OnlyWith("system.dynamic_sampling")] = Field(None, ge=1)
    """With dynamic sampling: at most so many responses are generated at a time, over all engines; prompts wait for
    room before they are drawn. null: as many as the round wants. engine.max_num_seqs limits what one engine runs
    at a time, with and without dynamic sampling."""
    max_launch_factor: Annotated[Number, OnlyWith("system.dynamic_sampling")] = Field(10.0, ge=1)
    """With dynamic sampling: a step that launched so many times its prompts without filling its batch ends the run with
    an error. As `max_num_gen_batches` of verl's DAPO recipe."""
    planner: Flag = False
    """Moves rounds of a kind to engines of another tensor-parallel degree when they preempt more and more, or not at
    all (paper, section 4.2). A real run has engines of the degrees that `engine.degrees` names."""
    escalate_tail: Annotated[Flag, OnlyWith("system.planner"), NOT_IN_FINGERPRINT] = False
    """When a few responses of a round are left, engines of the largest of `engine.degrees` take over, if they end it
    sooner by more than the change costs: those have the weights already, and compute what is under way again. In rounds
    in which every response is waited for, so not in short ones with a race. The GPUs hold the weights twice: leave
    1 / degree of their size free on each. A real run needs `engine.profile`."""
    speculative_decoding: Annotated[Flag, NOT_IN_FINGERPRINT] = False
    """Decode passes verify draft tokens, at each batch size as many as gained most tokens per second before, or none.
    Responses have the same distribution with and without. A modelled run's drafts are accepted with
    `workload.draft_acceptance`."""
    stream: Flag = False
    """Streams accepted groups to the trainer before the rollout ends (paper, section 4.4): from its beginning to a
    trainer that shares no GPU with engines; where they share GPUs, when half of the engines can be lent to it. Not with
    trainer.num_minibatches above 1, trainer.loss_normalisation=token_mean or an advantage over the batch
    (trainer.advantage), which need the whole batch first."""
    stream_at: Annotated[Positive | None, OnlyWith("system.stream")] = Field(None, le=1)
    """With `stream` and shared GPUs: half of the engines are lent when this share of a round's requests is finished,
    whether or not what still runs fits into the others (the fixed points of the paper's Table 3). A short round may end
    before: it needs 1 / (`eta_prompts` x `eta_responses`) of its requests. null decides by memory: tested at 20 % and
    every 5 % from there to 50 %."""

    routing: Annotated[Literal["sample", "prompt"], NOT_IN_FINGERPRINT] = "sample"
    """Which engine gets a request: `sample` gives each response of a prompt to the engine with the fewest requests;
    `prompt` keeps those of a prompt that are launched at once on one engine, which computes their prompt once where it
    has a prefix cache, and waits for the longest of them all."""
    max_staleness: Count = 0
    """Asynchronous training (ROLL-Flash): engines go on generating while the trainer learns, and no trained token is
    more than so many policy versions old. No response is ever discarded for its age: prompts are admitted so that none
    can come too late. 0 is synchronous, strictly on-policy training."""
    lookahead: Annotated[Number, OnlyWith("system.max_staleness")] = Field(0.0, ge=0)
    """With `max_staleness`: how many batches of prompts are admitted ahead of the trainer, at most `max_staleness`. It
    is about the mean age of what is trained. 0.5 of 128 prompts are 64."""
    staleness_order: Annotated[Literal["ready", "fifo"], OnlyWith("system.max_staleness")] = "ready"
    """With `max_staleness`: which complete groups a batch takes. `ready` takes them as they complete, as far as no
    other one is due; `fifo` in the order in which their prompts were admitted, so that the prompts of a step do not
    depend on how long responses are."""
    interrupt: Annotated[Literal["recompute", "keep"], OnlyWith("system.max_staleness")] = "recompute"
    """With `max_staleness`: what becomes of responses under way when the policy is updated. `recompute` takes them back
    and prefills them again, so that each token comes from one policy. `keep` leaves them on their engines, which
    pause, take the weights and go on with the KV cache of older policies: nothing is computed twice, and the newest
    tokens are no policy's exactly; only where engines and trainer have GPUs of their own. Ahead of a checkpoint and of
    an evaluation `keep` recomputes, too."""

    @model_validator(mode="after")
    def _admits_no_further_than_it_may_train(self) -> Self:
        if self.lookahead > self.max_staleness:
            raise ValueError(
                f"system.lookahead={self.lookahead:g} with system.max_staleness={self.max_staleness}.\n"
                "Prompts that are admitted so many batches ahead would be trained too late.\n"
                f"Set system.lookahead to {self.max_staleness} or less, or raise system.max_staleness."
            )
        if self.max_staleness and self.batching != "plain":
            raise ValueError(
                f"system.max_staleness={self.max_staleness} with system.batching={self.batching}.\n"
                "Tail batching aborts and defers what asynchronous training only waits for: two answers to one "
                "question.\nSet system.batching=plain, or system.max_staleness=0."
            )
        no_pause = "Asynchronous training has no pause between rounds in which all responses have ended."
        for given, is_given, why, remedy in (
            ("system.planner=true", self.planner, no_pause, "system.planner=false"),
            ("system.reward=batch", self.reward == "batch", no_pause, "system.reward=async"),
            (
                f"system.max_active_requests={self.max_active_requests}",
                self.max_active_requests is not None,
                "In asynchronous training system.lookahead says what is in flight.",
                "system.max_active_requests=null",
            ),
        ):
            if self.max_staleness and is_given:
                raise ValueError(
                    f"system.max_staleness={self.max_staleness} with {given}.\n{why}\n"
                    f"Set {remedy}, or system.max_staleness=0."
                )
        return self

    @model_validator(mode="after")
    def _history_decides_before_a_round(self) -> Self:
        if self.length_history and self.dynamic_sampling:
            raise ValueError(
                "system.length_history=true with system.dynamic_sampling=true.\n"
                "Which prompts are long is decided before their round begins, and dynamic sampling draws prompts while "
                "it runs, as rewards come.\n"
                "Set one of the two to false."
            )
        return self

    @property
    def is_async(self) -> bool:
        """Engines go on while the trainer learns."""
        return self.max_staleness > 0

    @property
    def first_factor(self) -> float:
        """With `length_history`: both factors of a round whose prompts are not all known."""
        return PAPER_FACTOR if self.first_epoch == "race" else 1.0

    @property
    def largest_factors(self) -> tuple[float, float]:
        """How many times the prompts, and the responses of each, any round launches at most."""
        if self.batching == "plain":
            return 1.0, 1.0
        first = self.first_factor if self.length_history else 1.0
        return max(self.eta_prompts, first), max(self.eta_responses, first)
