"""Modelled environments: how many turns a trajectory has, and how long its environment takes for each.

Invariant: every number is a function of the configuration, the request and its attempt, so what is drawn does not
depend on when it is asked, by which system, or in which order. An attempt is named by the number of the call that began
it: what begins again draws again.

    reset ──at once──> answered      step ──after its latency──> answered, or never

In batches of turns, answers are kept until the environments of all trajectories have one: what ROLL-Flash compares
with in Fig 9. Those of an evaluation are batches of their own: meanwhile, trajectories that are trained may be
suspended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING

from rollpacker.core.environments import LOST
from rollpacker.core.ids import is_held_out
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.environment import EnvironmentAnswer, EnvironmentParts, EnvironmentReset
from rollpacker.protocols.rollout import FinishReason
from rollpacker.sim.engine import blank_tokens
from rollpacker.sim.workload import two_uniforms, written

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollpacker.config.schema import RunConfig
    from rollpacker.config.sections.modelled_environment import ModelledEnvironmentSection
    from rollpacker.core.ids import RequestId
    from rollpacker.protocols.environment import EnvironmentTurn, Observation
    from rollpacker.protocols.rollout import Prompt
    from rollpacker.sim.workload import Workload

_STANDARD = NormalDist()


@dataclass(frozen=True, slots=True)
class Episode:
    """What one attempt at a trajectory meets."""

    num_turns: int
    latencies_s: tuple[float, ...]
    """Of the step after each turn; infinite where it never comes back."""


class Episodes:
    """Draws episodes.

    Args:
        section: What they are like.
        seed: Of the run.
    """

    def __init__(self, section: ModelledEnvironmentSection, seed: int) -> None:
        self._section = section
        self._seed = seed

    def episode(self, request: RequestId, attempt: int) -> Episode:
        """Draw what an attempt meets: its turns, the time of each step, and the steps that stall or never end."""
        section, name = self._section, f"environment/{written(request)}/{attempt}"
        of_turns, _ = two_uniforms(self._seed, f"{name}/turns")
        wished = section.turns_mean + section.turns_std * _STANDARD.inv_cdf(of_turns)
        num_turns = min(max(1, round(wished)), section.max_turns)
        latencies = [self._latency_s(two_uniforms(self._seed, f"{name}/{turn}")[0]) for turn in range(num_turns)]
        for kind, share, time_s in (
            ("slow", section.fail_slow_share, section.fail_slow_s),
            ("stop", section.fail_stop_share, math.inf),
        ):
            whether, when = two_uniforms(self._seed, f"{name}/{kind}")
            if whether < share:
                latencies[int(when * num_turns)] += time_s
        return Episode(num_turns, tuple(latencies))

    def _latency_s(self, uniform: float) -> float:
        mean_s, std_s = self._section.latency_mean_s, self._section.latency_std_s
        score = _STANDARD.inv_cdf(uniform)
        if self._section.latency == "normal":
            return max(0.0, mean_s + std_s * score)
        variance = math.log1p((std_s / mean_s) ** 2)  # of the logarithm
        return mean_s * math.exp(score * math.sqrt(variance) - variance / 2)


@dataclass(slots=True, kw_only=True)
class _Open:
    """An environment."""

    episode: Episode
    num_steps: int = 0
    timer: asyncio.TimerHandle | None = None
    kept: EnvironmentAnswer | None = None
    """Its answer, while others are waited for."""


@dataclass(slots=True)
class ModelledEnvironments:
    """Implements `rollpacker.protocols.environment.EnvironmentService`."""

    episodes: Episodes
    solves: Callable[[RequestId], bool]
    """Whether a trajectory that comes to its end has solved its task: a reward of 1."""
    in_batches: bool = False
    """Of turns."""
    _open: dict[RequestId, _Open] = field(default_factory=dict, init=False)
    _arrivals: Arrivals[EnvironmentAnswer] = field(default_factory=Arrivals, init=False)

    def reset(self, request: RequestId, call: int, start: EnvironmentReset) -> None:
        """Begin an attempt; all that it meets is drawn from its name, and not from the seed of real environments."""
        del start
        self.end(request)
        self._open[request] = _Open(episode=self.episodes.episode(request, attempt=call))
        self._arrivals.put([EnvironmentAnswer(request=request, call=call)])

    def step(self, request: RequestId, call: int, turn: EnvironmentTurn) -> None:
        """Answer after the latency of this step, or never. A turn that was cut solves nothing."""
        environment = self._open.get(request)
        if environment is None:  # an earlier attempt of the run had it
            self._arrivals.put([EnvironmentAnswer(request=request, call=call, failure=LOST)])
            return
        episode, latency_s = environment.episode, environment.episode.latencies_s[environment.num_steps]
        environment.num_steps += 1
        is_last = environment.num_steps == episode.num_turns
        is_whole = turn.finish_reason is not FinishReason.LENGTH
        answer = EnvironmentAnswer(
            request=request,
            call=call,
            reward=float(is_last and is_whole and self.solves(request)),
            is_terminated=is_last,
        )
        if latency_s < math.inf:
            environment.timer = asyncio.get_running_loop().call_later(latency_s, self._answer, answer)

    def end(self, request: RequestId, *, has_hung: bool = False) -> None:
        del has_hung
        environment = self._open.pop(request, None)
        if environment is None:
            return
        if environment.timer is not None:
            environment.timer.cancel()
        if self.in_batches:
            self._answer_all(are_held_out=is_held_out(request))

    async def collect(self) -> Sequence[EnvironmentAnswer]:
        return await self._arrivals.collect()

    async def close(self) -> None:
        for request in list(self._open):
            self.end(request)
        self._arrivals.close()

    def _answer(self, answer: EnvironmentAnswer) -> None:
        if not self.in_batches:
            self._arrivals.put([answer])
            return
        self._open[answer.request].kept = answer
        self._answer_all(are_held_out=is_held_out(answer.request))

    def _answer_all(self, *, are_held_out: bool) -> None:
        """Give what was kept, once nothing else is waited for."""
        batch = [each for request, each in self._open.items() if is_held_out(request) is are_held_out]
        answers = [environment.kept for environment in batch if environment.kept is not None]
        if len(answers) == len(batch):
            for environment in batch:
                environment.kept = None
            self._arrivals.put(answers)


@dataclass(frozen=True, slots=True)
class BlankTurns:
    """Implements `rollpacker.protocols.environment.TurnTexts` for turns that have a length and no content."""

    observation_tokens: int

    def action(self, turn: Sequence[int]) -> str:
        del turn
        return ""

    def spelled(self, turn: Sequence[int]) -> str:
        return self.action(turn)

    def observation(self, prompt: Prompt, observation: Observation, turn: Sequence[int]) -> Sequence[int]:
        """Zeros; nothing at the beginning, which is the prompt's."""
        del prompt, observation
        blanks: Sequence[int] = blank_tokens(self.observation_tokens if len(turn) else 0)  # type: ignore[assignment]
        return blanks


def modelled_environments(config: RunConfig, workload: Workload) -> EnvironmentParts | None:
    """Make those of a run; None where a response is one turn."""
    section = config.modelled_environment
    if section is None:
        return None
    episodes = Episodes(section, config.run.seed)
    return EnvironmentParts(
        service=ModelledEnvironments(episodes, workload.solves, in_batches=section.pace == "batch"),
        texts=BlankTurns(section.observation_tokens),
        longest_call_s=section.turn_timeout_s,  # of a reset, too
    )
