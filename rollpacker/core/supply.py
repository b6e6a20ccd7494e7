"""Where a batching machine gets its prompts from: what it asked for, what came, and which domains have ended.

    ask ──DrawPrompts──> driver ──PromptsDrawn──> receive ──(all answered)──> take

Invariant: each `DrawPrompts` is answered once, and no answer is accepted that was not asked for. A domain that has
ended is never asked again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from rollpacker.core.commands import DrawPrompts
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import PromptsDrawn
from rollpacker.core.ids import Domain, PromptId
from rollpacker.core.quotas import apportion, interleave

_NONE: Final[Mapping[Domain, int]] = MappingProxyType({})


class DrawnPrompt(NamedTuple):
    """A prompt that waits for its round, or runs in one."""

    prompt: PromptId
    domain: Domain

    def as_list(self) -> list[Any]:
        """Give it as JSON data."""
        return [list(self.prompt), self.domain]

    @classmethod
    def from_list(cls, plain: Sequence[Any]) -> Self:
        """Rebuild what gave the list."""
        prompt, domain = plain
        return cls(PromptId(*prompt), Domain(domain))


class PromptSupply:
    """The prompts on their way from the prompt order to a round."""

    def __init__(self, domain_weights: Mapping[Domain, Fraction]) -> None:
        self._domain_weights = domain_weights
        self._asked: dict[Domain, int] = {}
        """Draws that have not been answered yet."""
        self._drawn: dict[Domain, list[PromptId]] = {}
        """What came since the last `take`."""
        self._ended: set[Domain] = set()

    @property
    def is_waiting(self) -> bool:
        """True until every draw is answered."""
        return bool(self._asked)

    @property
    def has_ended_domain(self) -> bool:
        return bool(self._ended)

    @property
    def open_weights(self) -> dict[Domain, Fraction]:
        """The weights of the domains that have not ended."""
        return {domain: weight for domain, weight in self._domain_weights.items() if domain not in self._ended}

    def num_drawn(self) -> Counter[Domain]:
        """Count what `take` would give; a domain without a prompt is absent."""
        return Counter({domain: len(prompts) for domain, prompts in self._drawn.items()})

    @property
    def drawn(self) -> list[PromptId]:
        """What `take` would give, domain by domain."""
        return [prompt for prompts in self._drawn.values() for prompt in prompts]

    def ask(self, counts: Mapping[Domain, int]) -> tuple[DrawPrompts, ...]:
        """Ask for prompts of several domains at once; a count of 0 asks nothing."""
        self._asked = {domain: count for domain, count in counts.items() if count}
        return tuple(DrawPrompts(domain=domain, num_prompts=count) for domain, count in self._asked.items())

    def ask_any(self, num_prompts: int, owed: Mapping[Domain, int] = _NONE) -> tuple[DrawPrompts, ...]:
        """Ask for prompts of whichever domains still have some, by weight; asks nothing when all have ended.

        Args:
            num_prompts: In all.
            owed: Of these, so many are to be of a domain, whatever its weight, unless it has ended.
        """
        weights = self.open_weights
        if not weights or num_prompts <= 0:
            return ()
        first = {domain: owed.get(domain, 0) for domain in weights}
        rest = apportion(num_prompts - sum(first.values()), weights)
        return self.ask({domain: first[domain] + rest[domain] for domain in weights})

    def receive(self, event: PromptsDrawn, *known: Container[PromptId]) -> None:
        """Take in the answer to one draw.

        Args:
            event: The answer.
            *known: Prompts taken earlier that have not been trained; none of them may come again.

        Raises:
            ImpossibleEvent: It was not asked for, too many or too few came, or a prompt came twice.
        """
        num_asked = self._asked.get(event.domain)
        if num_asked is None:
            raise ImpossibleEvent(
                f"Prompts of domain {event.domain!r} came, which were not asked for.",
                f"Awaited are draws of {list(self._asked)}.",
            )
        num_came = len(event.prompts)
        if num_came > num_asked or (num_came < num_asked and not event.is_exhausted):
            raise ImpossibleEvent(
                f"{num_came} prompts of domain {event.domain!r} came, is_exhausted={event.is_exhausted}.",
                f"Asked for were {num_asked}; fewer come only when the domain's data has ended.",
            )
        earlier = (*known, set(self.drawn))
        counts = Counter(event.prompts)
        twice = [prompt for prompt in counts if counts[prompt] > 1 or any(prompt in each for each in earlier)]
        if twice:
            raise ImpossibleEvent(
                f"Domain {event.domain!r} gave prompts twice: {', '.join(sorted(map(str, twice)))}.",
                "A prompt is drawn once per epoch.",
            )
        del self._asked[event.domain]
        if event.prompts:
            self._drawn.setdefault(event.domain, []).extend(event.prompts)
        if event.is_exhausted:
            self._ended.add(event.domain)

    def take(self, counts: Mapping[Domain, int] | None = None) -> list[DrawnPrompt]:
        """Hand over the first so many prompts of each domain, evenly mixed, each in its own order; None is all."""
        columns: list[list[DrawnPrompt]] = []
        for domain in self._domain_weights:
            drawn = self._drawn.pop(domain, [])
            num_taken = len(drawn) if counts is None else counts.get(domain, 0)
            columns.append([DrawnPrompt(prompt, domain) for prompt in drawn[:num_taken]])
            if drawn[num_taken:]:
                self._drawn[domain] = drawn[num_taken:]
        return interleave(columns)

    def check(self) -> None:
        """Re-derive the supply's invariants.

        Raises:
            InvariantViolated: It asks a domain that has ended, or for nothing, or holds a prompt twice.
        """
        drawn = self.drawn
        if self._ended & self._asked.keys() or not all(self._asked.values()) or len(drawn) != len(set(drawn)):
            raise InvariantViolated(f"The prompt supply contradicts itself: {self.snapshot()}")

    def snapshot(self) -> dict[str, Any]:
        return {
            "asked": dict(self._asked),
            "drawn": {domain: [list(prompt) for prompt in prompts] for domain, prompts in self._drawn.items()},
            "ended": sorted(self._ended),
        }

    @classmethod
    def restore(cls, domain_weights: Mapping[Domain, Fraction], snapshot: dict[str, Any]) -> Self:
        supply = cls(domain_weights)
        supply._asked = dict(snapshot["asked"])
        supply._drawn = {
            Domain(domain): [PromptId(*prompt) for prompt in prompts] for domain, prompts in snapshot["drawn"].items()
        }
        supply._ended = {Domain(domain) for domain in snapshot["ended"]}
        return supply
