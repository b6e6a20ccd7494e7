"""What the scheduler is told once, before the run begins.

Every number is exact: factors and weights are fractions, because 1.1 * 50 in floating point launches one prompt too
many. The settings head every event log, so that a log alone is enough to replay a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Self

from rollpacker.core.errors import ConfigError
from rollpacker.core.ids import Domain
from rollpacker.core.quotas import apportion


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
    """Score each response as it finishes; False scores a batch after its last response. `tail` needs True."""
    domain_weights: tuple[tuple[Domain, Fraction], ...]
    """Each domain with its share of every batch, in the order that breaks ties; they need not add up to 1."""

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
        if self.batching == "tail" and not self.overlap_rewards:
            raise ConfigError(
                "system.overlap_rewards=false with system.batching=tail",
                "A response counts in the race once its reward is known, so rewards must overlap the rollout.",
                "Set system.overlap_rewards=true, or system.batching=plain.",
            )
        self._check_domains()

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
        )
