"""The reference model's length history: which prompts are long, from every length that was ever told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from rollpacker.core.commands import DeferPrompts, RoundKind
from rollpacker.core.events import Event, ResponseAborted, ResponseFinished
from rollpacker.core.ids import Domain, PromptId, RequestId
from rollpacker.core.settings import LengthHistorySettings
from tests.fuzz.oracle import quotas

if TYPE_CHECKING:
    from tests.fuzz.oracle.reference_model import ReferenceModel


class HistoryModel:
    """What was told of lengths, round by round, and what follows from it for the next draw."""

    def __init__(self, model: ReferenceModel, settings: LengthHistorySettings) -> None:
        self._model = model
        self._settings = settings
        self._told: dict[int, dict[RequestId, list[tuple[int, int]]]] = {}
        """Per round what was told of each response before the next step began: 1 if it ended, and its tokens."""
        self._first_launches = quotas.launches(model.quotas, settings.first_eta_prompts)
        num_launched = sum(model.launches.values())
        self._num_deferred_per_round = quotas.scaled(num_launched, 1 / (1 - settings.share)) - num_launched
        self._num_deferred = 0
        self._expected: list[PromptId] = []
        """What is to be deferred at once, and was not yet."""
        self.is_informed = False

    def note(self, event: Event) -> None:
        """Note a length, unless the step after its round has begun or the request runs elsewhere by now."""
        if not isinstance(event, ResponseFinished | ResponseAborted) or event.request.round != self._model.step:
            return
        has_ended = isinstance(event, ResponseFinished)
        engines = self._model.engines
        has_moved = event.request in engines.waiting or engines.holders.get(event.request, event.engine) != event.engine
        if not (has_ended and has_moved):
            of_round = self._told.setdefault(event.request.round, {})
            of_round.setdefault(event.request, []).append((int(has_ended), event.num_tokens))

    def _mean(self, key: str) -> Fraction | None:
        """Tokens per response that ended, of the last round that tells anything of a prompt."""
        for number in sorted(self._told, reverse=True):
            seen = [max(of_request) for request, of_request in self._told[number].items() if request.prompt.key == key]
            if number < self._model.step and seen:
                num_ended = sum(has_ended for has_ended, _ in seen)
                return Fraction(sum(tokens for _, tokens in seen), num_ended or 1)
        return None

    # The draw

    def wants_more(self) -> dict[Domain, int]:
        """What is to be drawn next, now that the first prompts of a round are there; nothing if that is all."""
        model = self._model
        came = {domain: len(prompts) for domain, prompts in model.drawn.items() if prompts}
        if model.ended_domains or came != {domain: count for domain, count in model.quotas.items() if count}:
            return {}
        self.is_informed = all(self._mean(key) is not None for each in model.drawn.values() for _, key in each)
        deferred = self._turns() if self.is_informed else Counter[Domain]()
        wanted = {domain: count + deferred[domain] - came[domain] for domain, count in self.launches().items()}
        return {domain: count for domain, count in wanted.items() if count}

    def launches(self) -> dict[Domain, int]:
        """Prompts of each domain that the next round launches unless it is a long one."""
        return self._model.launches if self.is_informed else self._first_launches

    def is_filled(self) -> bool:
        """Whether a short round has all its prompts."""
        return all(len(self._model.drawn.get(domain, [])) >= count for domain, count in self.launches().items())

    def _turns(self) -> Counter[Domain]:
        """Of each domain as many as its weight says, counted from the first prompt that was ever deferred at once."""
        weights = dict(self._model.settings.domain_weights)
        turns: list[Domain] = []
        while len(turns) < self._num_deferred + self._num_deferred_per_round:
            behind = {
                domain: weight * (len(turns) + 1) / sum(weights.values()) - turns.count(domain)
                for domain, weight in weights.items()
            }
            turns.append(max(behind, key=behind.__getitem__))
        return Counter(turns[self._num_deferred :])

    # The round

    def shape_round(self, drawn: Sequence[PromptId]) -> tuple[RoundKind, list[PromptId]]:
        """Give the kind of a round that is not long, and those of the drawn prompts that race."""
        model = self._model
        racing = set(drawn)
        for domain, num_launched in self.launches().items():
            of_domain = [prompt for prompt in drawn if model.domain_of[prompt] == domain]
            while len(of_domain) > num_launched:
                longest = max(of_domain, key=lambda prompt: self._mean(prompt.key) or 0)
                of_domain.remove(longest)
                racing.remove(longest)
        self._expected = [prompt for prompt in drawn if prompt not in racing]
        self._num_deferred += len(self._expected)
        kind = self.kind_without_queue()
        return kind, [prompt for prompt in drawn if prompt in racing]

    def kind_without_queue(self) -> RoundKind:
        has_race = self.is_informed or max(self._settings.first_eta_prompts, self._settings.first_eta_responses) > 1
        return RoundKind.SHORT if has_race else RoundKind.PLAIN

    def num_samples(self) -> int:
        """Responses per prompt of a short round."""
        settings = self._model.settings
        factor = settings.eta_responses if self.is_informed else self._settings.first_eta_responses
        return quotas.scaled(settings.num_responses, factor)

    def defer(self, command: DeferPrompts) -> None:
        """Check which prompts join the long queue at once."""
        model = self._model
        assert model.round is not None
        assert command.round == model.round.round
        assert list(command.prompts) == self._expected, "other prompts were taken for long than were"
        model.long_queue += self._expected
        self._expected = []

    def check_deferred(self) -> None:
        assert not self._expected, "long prompts were not deferred"
