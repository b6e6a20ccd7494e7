"""What the scheduler is told once, before the run begins.

Every count and factor is exact: factors, shares and weights are fractions, because 1.1 * 50 in floating point launches
one prompt too many. The settings head every event log, so that a log alone is enough to replay a run.

The machines beside the batching are optional: a part that is None leaves its machine out. Defaults are the paper's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Self

from rollpacker.core.errors import ConfigError
from rollpacker.core.first_guess import DegreeCosts
from rollpacker.core.ids import Domain
from rollpacker.core.quotas import apportion, scale_up


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardBudgetSettings:
    """How long a test case may run, from how long it took correct programs (paper, section 4.3)."""

    factor: Fraction = Fraction(3, 2)
    """lambda: a limit is this many times the longest run that passed; at least 1."""
    min_limit_s: float = 2.0
    """T_min: no limit is below it."""
    max_limit_s: float = 30.0
    """T_max: no limit is above it, and it is the limit of a case that nobody has passed."""

    def __post_init__(self) -> None:
        """Refuse limits that would stop correct programs, or nothing.

        Raises:
            ConfigError: A value out of bounds.
        """
        if self.factor < 1:
            raise ConfigError(
                f"system.reward.factor={self.factor}",
                "It is at least 1 (below, the slowest correct program would be stopped).",
                "Raise system.reward.factor.",
            )
        if not 0 < self.min_limit_s <= self.max_limit_s < math.inf:
            raise ConfigError(
                f"system.reward.min_limit_s={self.min_limit_s:g} with system.reward.max_limit_s={self.max_limit_s:g}",
                "Both are above 0 s, and the first is at most the second.",
                "Lower system.reward.min_limit_s, or raise system.reward.max_limit_s.",
            )

    def to_plain(self) -> dict[str, Any]:
        """Turn into JSON data."""
        return {"factor": str(self.factor), "min_limit_s": self.min_limit_s, "max_limit_s": self.max_limit_s}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """Undo `to_plain`."""
        return cls(**{**plain, "factor": Fraction(plain["factor"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelismSettings:
    """When rounds move to engines of another tensor-parallel degree (paper, section 4.2)."""

    degrees: tuple[int, ...]
    """Allowed degrees, ascending, each twice the one before."""
    initial: int
    """The degree of the first round of every kind."""
    max_growth: Fraction = Fraction(21, 20)
    """More preemptions than this many times the reference double the degree; at least 1."""
    patience: int = 4
    """So many rounds of a kind in a row without a preemption halve its degree."""
    num_rounds_remembered: int = 16
    """So many rounds of a kind are remembered, and over so many at most the gain of a change has to bring in its time.
    Not in the paper; 16 long rounds are 80 steps of 4 + 1, in which lengths drift."""
    costs: tuple[DegreeCosts, ...] = ()
    """Of each degree, where a profile or a model has them: for the guess after a kind's first round."""
    prompt_tokens: int = 0
    """Mean length of the prompts, for the same."""

    def __post_init__(self) -> None:
        """Refuse what no planner can work with.

        Raises:
            ConfigError: A value out of bounds, or degrees that contradict each other.
        """
        degrees = ", ".join(map(str, self.degrees))
        if not self.degrees or self.degrees[0] < 1:
            raise ConfigError(
                f"engine.degrees=[{degrees}]", "At least one degree, from 1 up.", "Set it to [1, 2], say."
            )
        if any(larger != 2 * degree for degree, larger in zip(self.degrees, self.degrees[1:], strict=False)):
            raise ConfigError(
                f"engine.degrees=[{degrees}]",
                "Each degree is twice the one before: the planner doubles and halves.",
                "Set it to [1, 2, 4], say.",
            )
        if self.initial not in self.degrees:
            raise ConfigError(
                f"engine.tensor_parallel={self.initial}",
                f"Allowed are engine.degrees: {degrees}.",
                "Choose one of them.",
            )
        if self.max_growth < 1:
            raise ConfigError(
                f"system.planner.max_growth={self.max_growth}",
                "It is at least 1 (below, fewer preemptions than before would double the degree).",
                "Raise system.planner.max_growth.",
            )
        if self.costs and tuple(sorted(costs.degree for costs in self.costs)) != self.degrees:
            raise ConfigError(
                f"engine.profile has costs of the degrees {[costs.degree for costs in self.costs]}",
                f"Each degree has its costs, or none has; allowed are {degrees}.",
                "Measure a profile of all degrees.",
            )
        for key, count in (("patience", self.patience), ("num_rounds_remembered", self.num_rounds_remembered)):
            if count < 1:
                raise ConfigError(f"system.planner.{key}={count}", "It is at least 1.", f"Raise system.planner.{key}.")

    def to_plain(self) -> dict[str, Any]:
        """Turn into JSON data."""
        return {
            "degrees": list(self.degrees),
            "initial": self.initial,
            "max_growth": str(self.max_growth),
            "patience": self.patience,
            "num_rounds_remembered": self.num_rounds_remembered,
            "costs": [costs.to_plain() for costs in self.costs],
            "prompt_tokens": self.prompt_tokens,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """Undo `to_plain`."""
        return cls(
            **{
                **plain,
                "degrees": tuple(plain["degrees"]),
                "max_growth": Fraction(plain["max_growth"]),
                "costs": tuple(map(DegreeCosts.from_plain, plain.get("costs", ()))),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """When accepted groups stream to the trainer before their round is over (paper, section 4.4)."""

    replicas: tuple[tuple[int, ...], ...]
    """The GPUs of each training replica, counted over all nodes; a GPU is in at most one replica. Empty: the trainer
    shares none with engines, so nobody needs to be lent, and nothing below matters."""
    max_response_tokens: int
    """Where every response is cut off: what is expected of one that is longer than all seen lately."""
    first_share: Fraction = Fraction(1, 5)
    """Of the round's requests must be finished before the first test."""
    last_share: Fraction = Fraction(1, 2)
    """No test after more than this is finished."""
    every_share: Fraction = Fraction(1, 20)
    """From one test to the next."""
    must_fit: bool = True
    """False: the test of memory always passes, so that engines are lent at `first_share`."""
    num_recent_lengths: int = 8192
    """Finished responses that expectations are made of. 8,192 are more than four short rounds and a long one of
    128 x 8, so that the long ones are among them."""

    def __post_init__(self) -> None:
        """Refuse what can never be lent.

        Raises:
            ConfigError: A value out of bounds, or replicas that share GPUs.
        """
        gpus = [gpu for replica in self.replicas for gpu in replica]
        if not all(self.replicas) or min(gpus, default=0) < 0 or len(gpus) != len(set(gpus)):
            raise ConfigError(
                f"system.stream: the training replicas are on the GPUs {[list(replica) for replica in self.replicas]}.",
                "Each has at least one GPU, and no two share one.",
                "Check the trainer's parallelism, or set system.stream=false.",
            )
        for key, count in (
            ("rollout.max_response_tokens", self.max_response_tokens),
            ("system.stream.num_recent_lengths", self.num_recent_lengths),
        ):
            if count < 1:
                raise ConfigError(f"{key}={count}", "It is at least 1.", f"Raise {key}.")
        if not 0 < self.first_share <= self.last_share <= 1:
            raise ConfigError(
                f"system.stream.first_share={self.first_share} with system.stream.last_share={self.last_share}",
                "Both are above 0 and at most 1, and the first is at most the second.",
                "Lower system.stream.first_share, or raise system.stream.last_share.",
            )
        if not 0 < self.every_share <= 1:
            raise ConfigError(
                f"system.stream.every_share={self.every_share}",
                "It is above 0 and at most 1.",
                "Set it to 0.05, the paper's.",
            )

    def to_plain(self) -> dict[str, Any]:
        """Turn into JSON data."""
        return {
            "replicas": [list(replica) for replica in self.replicas],
            "max_response_tokens": self.max_response_tokens,
            "first_share": str(self.first_share),
            "last_share": str(self.last_share),
            "every_share": str(self.every_share),
            "must_fit": self.must_fit,
            "num_recent_lengths": self.num_recent_lengths,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """Undo `to_plain`."""
        shares = {key: Fraction(plain[key]) for key in ("first_share", "last_share", "every_share")}
        return cls(**{**plain, **shares, "replicas": tuple(map(tuple, plain["replicas"]))})


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSamplingSettings:
    """How a round goes on until its batch has only prompts with rewards that differ (DAPO, section 3.2)."""

    max_active_requests: int | None = None
    """At most so many requests are in flight at a time, over all engines; None: as many as the round wants."""
    max_launch_factor: Fraction = Fraction(10)
    """A round launches at most so many times the prompts that its batch needs, then the run gives up. As verl's DAPO
    recipe: `max_num_gen_batches=10`."""

    def __post_init__(self) -> None:
        """Refuse what launches nothing.

        Raises:
            ConfigError: A value out of bounds.
        """
        if self.max_active_requests is not None and self.max_active_requests < 1:
            raise ConfigError(
                f"system.max_active_requests={self.max_active_requests}",
                "It is at least 1, or null for no limit.",
                "Raise system.max_active_requests.",
            )
        if self.max_launch_factor < 1:
            raise ConfigError(
                f"system.max_launch_factor={self.max_launch_factor}",
                "It is at least 1 (below, no batch would ever be complete).",
                "Raise system.max_launch_factor.",
            )

    def to_plain(self) -> dict[str, Any]:
        """Turn into JSON data."""
        return {"max_active_requests": self.max_active_requests, "max_launch_factor": str(self.max_launch_factor)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """Undo `to_plain`."""
        return cls(**{**plain, "max_launch_factor": Fraction(plain["max_launch_factor"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """The scheduling policy of a run."""

    batching: Literal["plain", "tail"]
    """`plain` waits for every response of every batch; `tail` races and defers (paper, section 3)."""
    num_prompts: int
    """P0: prompts in a training batch."""
    num_responses: int
    """R0: responses per prompt, the GRPO group."""
    eta_prompts: Fraction
    """Prompts launched per prompt needed in a short round, at least 1; `plain` ignores it."""
    eta_responses: Fraction
    """Responses launched per response needed in a short round, at least 1; `plain` ignores it."""
    overlap_rewards: bool
    """Score each response as it finishes; False scores a batch when all its responses are there."""
    domain_weights: tuple[tuple[Domain, Fraction], ...]
    """Each domain with its share of every batch, in the order that breaks ties; they need not add up to 1."""
    dynamic_sampling: DynamicSamplingSettings | None = None
    """None: every prompt whose group is complete is trained, whatever its rewards are."""
    reward_budget: RewardBudgetSettings | None = None
    """None: rewards keep their own time limits."""
    parallelism: ParallelismSettings | None = None
    """None: every round runs on the engines that are there."""
    stream: StreamSettings | None = None
    """None: the trainer gets a batch when its round is over."""

    def __post_init__(self) -> None:
        """Refuse what no run can be scheduled by.

        Raises:
            ConfigError: A value out of bounds, or values that contradict each other.
        """
        if self.batching not in {"plain", "tail"}:
            raise ConfigError(
                f"system.batching={self.batching!r}", "Allowed are plain and tail.", "Choose one of them."
            )
        for key, count in (
            ("rollout.num_prompts", self.num_prompts),
            ("rollout.num_responses", self.num_responses),
        ):
            if count < 1:
                raise ConfigError(f"{key}={count}", "It is at least 1.", f"Raise {key}.")
        for key, factor in (("system.eta_prompts", self.eta_prompts), ("system.eta_responses", self.eta_responses)):
            if factor < 1:
                raise ConfigError(f"{key}={factor}", "It is at least 1 (1 means no speculation).", f"Raise {key}.")
        self._check_domains()
        if self.dynamic_sampling is not None:
            self._check_dynamic_sampling(self.dynamic_sampling)

    def _check_dynamic_sampling(self, sampling: DynamicSamplingSettings) -> None:
        is_tail = self.batching == "tail"
        if is_tail and not self.overlap_rewards:
            raise ConfigError(
                "system.dynamic_sampling=true with system.batching=tail and system.reward=batch.",
                "A race of responses is over before the first reward says which prompts count.",
                "Choose system.reward=async or scheduled, or system.batching=plain.",
            )
        num_samples = scale_up(self.num_responses, self.eta_responses) if is_tail else self.num_responses
        if sampling.max_active_requests is not None and sampling.max_active_requests < num_samples:
            raise ConfigError(
                f"system.max_active_requests={sampling.max_active_requests}",
                f"It is at least {num_samples}: all responses of a prompt are launched at once.",
                "Raise system.max_active_requests.",
            )
        if is_tail and sampling.max_launch_factor < self.eta_prompts:
            raise ConfigError(
                f"system.max_launch_factor={sampling.max_launch_factor} with system.eta_prompts={self.eta_prompts}",
                "A short round launches eta_prompts times what it needs before anything is dropped.",
                "Raise system.max_launch_factor.",
            )

    def _check_domains(self) -> None:
        weights = dict(self.domain_weights)
        if not weights:
            raise ConfigError("No domain has a weight.", "At least one domain is needed.", "Check data.path.")
        if len(weights) < len(self.domain_weights):
            names = ", ".join(domain for domain, _ in self.domain_weights)
            raise ConfigError(f"A domain has two weights: {names}", "Each has one.", "Check data.domain_weights.")
        for domain, weight in weights.items():
            if weight <= 0:
                raise ConfigError(
                    f"data.domain_weights.{domain}={weight}",
                    "A weight is above 0.",
                    "Raise it, or remove the domain's prompts.",
                )
        for domain, num_places in apportion(self.num_prompts, weights).items():
            if not num_places:
                raise ConfigError(
                    f"Domain {domain!r} gets no place in a batch of rollout.num_prompts={self.num_prompts}: its share "
                    f"is {float(weights[domain] / sum(weights.values())):.2%}.",
                    "Each domain has at least one place in every batch, or its prompts would never be trained.",
                    f"Raise rollout.num_prompts or data.domain_weights.{domain}, or remove the domain's prompts.",
                )

    def to_plain(self) -> dict[str, Any]:
        """Turn into JSON data; fractions become text such as "5/4"."""
        return {
            "batching": self.batching,
            "num_prompts": self.num_prompts,
            "num_responses": self.num_responses,
            "eta_prompts": str(self.eta_prompts),
            "eta_responses": str(self.eta_responses),
            "overlap_rewards": self.overlap_rewards,
            "domain_weights": [[domain, str(weight)] for domain, weight in self.domain_weights],
            "dynamic_sampling": self.dynamic_sampling and self.dynamic_sampling.to_plain(),
            "reward_budget": self.reward_budget and self.reward_budget.to_plain(),
            "parallelism": self.parallelism and self.parallelism.to_plain(),
            "stream": self.stream and self.stream.to_plain(),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """Undo `to_plain`."""
        return cls(
            batching=plain["batching"],
            num_prompts=plain["num_prompts"],
            num_responses=plain["num_responses"],
            eta_prompts=Fraction(plain["eta_prompts"]),
            eta_responses=Fraction(plain["eta_responses"]),
            overlap_rewards=plain["overlap_rewards"],
            domain_weights=tuple((Domain(domain), Fraction(weight)) for domain, weight in plain["domain_weights"]),
            # logs that were written before there was any have none
            dynamic_sampling=plain.get("dynamic_sampling")
            and DynamicSamplingSettings.from_plain(plain["dynamic_sampling"]),
            reward_budget=plain["reward_budget"] and RewardBudgetSettings.from_plain(plain["reward_budget"]),
            parallelism=plain["parallelism"] and ParallelismSettings.from_plain(plain["parallelism"]),
            stream=plain["stream"] and StreamSettings.from_plain(plain["stream"]),
        )
