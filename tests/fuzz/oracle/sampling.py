"""The reference model's dynamic sampling: which places are open, who may take them, and when a run gives up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from rollpacker.core.commands import BeginRound, DropPrompt, FailRun, RoundKind
from rollpacker.core.events import Event, RewardComputed
from rollpacker.core.ids import Domain, PromptId, RequestId
from rollpacker.core.settings import DynamicSamplingSettings
from tests.fuzz.oracle import quotas

if TYPE_CHECKING:
    from tests.fuzz.oracle.reference_model import ReferenceModel


class SamplingModel:
    """The places of the open round, beside the model's own account of its prompts."""

    def __init__(self, model: ReferenceModel, settings: DynamicSamplingSettings) -> None:
        self.model = model
        self._settings = settings
        self.places: dict[Domain, int] = {}
        """Of the round, which are open."""

    def shape_round(self, begun: BeginRound) -> RoundKind:
        """Check how a round begins, and count its places; gives its kind."""
        model = self.model
        num_prompts = model.settings.num_prompts
        kind = model.next_kind()
        has_source = any(model.drawn.values()) or len(model.ended_domains) < len(model.settings.domain_weights)
        num_needed = num_prompts if has_source else min(num_prompts, len(model.long_queue))
        assert begun.num_prompts_needed == num_needed, "a batch has another size"
        num_launched = sum(model.launches.values()) if kind is RoundKind.SHORT else num_needed
        assert begun.num_prompts_launched == num_launched, "a round is to launch another number of prompts"
        self.places = dict(model.quotas)
        model.expected_prompts = []
        return kind

    def note_waiting(self, waiting: Sequence[RequestId]) -> None:
        """Note what was launched while there was nobody to launch on."""
        model = self.model
        known = {*model.engines.waiting, *model.engines.holders}
        for request in waiting:
            if request not in known:
                model.note_launch(request)
                model.engines.waiting.append(request)
        assert list(waiting) == model.engines.waiting, "other requests wait than nobody could be told to launch"

    def take_up(self, prompt: PromptId) -> None:
        """Take a prompt from where it was: the queue's first one, or the first one of its domain that was drawn."""
        model = self.model
        assert model.round is not None
        is_long = model.round.kind is RoundKind.LONG
        have_all_ended = len(model.ended_domains) == len(model.settings.domain_weights)
        eligible = [queued for queued in model.long_queue if queued not in model.launched]
        self._move_places()
        if prompt in eligible:
            assert prompt == eligible[0], "the long queue is first in, first out"
            assert is_long or have_all_ended, "a deferred prompt ran in a short round while there were new ones"
            model.long_queue.remove(prompt)
            if model.round.kind is RoundKind.SHORT and self._vacant_places()[model.domain_of[prompt]] <= 0:
                giver = next(domain for domain, count in self._vacant_places().items() if count > 0)
                self.places[giver] -= 1
                self.places[model.domain_of[prompt]] += 1
            return
        assert not (is_long and eligible), "a new prompt ran in a long round while the queue had some"
        assert prompt == model.drawn[model.domain_of[prompt]].pop(0), "a prompt was launched out of its turn"

    def _vacant_places(self) -> dict[Domain, int]:
        model = self.model
        racing = Counter(model.domain_of[prompt] for prompt in model.racing())
        return {domain: count - racing[domain] for domain, count in self.places.items()}

    def _move_places(self) -> None:
        """In a short round, the vacant places of a domain that has ended go to domains that have prompts."""
        model = self.model
        assert model.round is not None
        if model.round.kind is not RoundKind.SHORT:
            return
        weights = {domain: w for domain, w in model.settings.domain_weights if domain not in model.ended_domains}
        for domain, num_vacant in self._vacant_places().items():
            num_lacking = num_vacant - len(model.drawn.get(domain, []))
            if domain in weights or num_lacking <= 0:
                continue
            vacant = self._vacant_places()
            spare = {other: len(model.drawn.get(other, [])) - max(0, vacant[other]) for other in model.ended_domains}
            spare = {other: spare[other] for other in model.quotas if other != domain and spare.get(other, 0) > 0}
            takers: dict[Domain, Fraction | int] = {**weights} or {**spare}
            num_moved = num_lacking if weights else min(num_lacking, sum(spare.values()))
            moved = quotas.shares(num_moved, takers) if takers else {}
            for other, count in moved.items():
                self.places[other] += count
                self.places[domain] -= count

    def is_used_up(self) -> bool:
        """Whether no prompt is left that could fill a place of this round."""
        model = self.model
        eligible = [queued for queued in model.long_queue if queued not in model.launched]
        have_all_ended = len(model.ended_domains) == len(model.settings.domain_weights)
        return have_all_ended and not model.awaited and not eligible and not any(model.drawn.values())

    def drop(self, command: DropPrompt) -> None:
        model = self.model
        assert model.round is not None
        assert command.round == model.round.round
        assert command.prompt in model.launched
        assert command.prompt not in model.decided
        assert len(model.rewards[command.prompt]) == model.settings.num_responses, (
            "dropped before its rewards were known"
        )
        assert len(set(model.rewards[command.prompt])) == 1, "a prompt with variance was dropped"
        model.placed.discard(command.prompt)
        model.decided.add(command.prompt)
        model.dropped.append(command.prompt)
        model.engines.forget_waiting({command.prompt})

    def check(self, event: Event) -> None:
        """Whoever is complete is decided, no more is in flight than may be, and nobody waits who could run."""
        model = self.model
        if model.round is None or model.has_given_up:
            return
        if isinstance(event, RewardComputed) and len(model.rewards.get(event.request.prompt, [])) == (
            model.settings.num_responses
        ):
            assert event.request.prompt in model.decided, "a prompt with all its rewards is undecided"
        num_samples = model.round.num_responses_launched
        assert all(each == list(range(num_samples)) for each in model.launched.values())
        num_in_flight = len(model.engines.holders) + len(model.engines.waiting)
        limit = self._settings.max_active_requests
        assert limit is None or num_in_flight <= limit, "more requests are in flight than may be"
        most = math.floor(self._settings.max_launch_factor * model.settings.num_prompts)
        assert len(model.launched) <= most, "a round launched more prompts than it may"
        num_wanted = model.round.num_prompts_launched - len(model.accepted | model.placed)
        num_racing = len(model.racing())
        assert num_racing <= num_wanted, "more prompts race than places and speculation"
        self._move_places()
        has_room = limit is None or limit - num_in_flight >= num_samples
        is_scoring = not model.settings.overlap_rewards and bool(model.to_score - model.scored)
        if has_room and len(model.launched) < most and not (is_scoring or model.awaited or self.is_used_up()):
            assert not self._lacks_some(num_racing), "a place is vacant, and nobody was asked for a prompt"

    def _lacks_some(self, num_racing: int) -> bool:
        model = self.model
        assert model.round is not None
        if model.round.kind is not RoundKind.SHORT:
            return num_racing < model.round.num_prompts_needed - len(model.accepted | model.placed)
        vacant = self._vacant_places()
        surplus = {domain: model.launches[domain] - quota for domain, quota in model.quotas.items()}
        return any(
            count > 0 or (self.places[domain] and domain not in model.ended_domains and count + surplus[domain] > 0)
            for domain, count in vacant.items()
        )

    def give_up(self, command: FailRun) -> None:
        model = self.model
        assert model.round is not None
        most = math.floor(self._settings.max_launch_factor * model.settings.num_prompts)
        assert command.round == model.round.round
        assert command.num_prompts_launched == len(model.launched) == most, "the run gave up too early"
        assert command.num_prompts_dropped == len(model.decided & set(model.dropped))
        assert command.num_prompts_needed == model.round.num_prompts_needed - len(model.accepted | model.placed)
        assert len(model.racing()) < model.round.num_prompts_launched, "the run gave up while enough prompts raced"
        model.has_given_up = True
