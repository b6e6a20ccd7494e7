"""Tries the user's functions and servers on a first prompt: a mistake in one is known before anything starts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollpacker.config.mistakes import collected, raise_mistakes
from rollpacker.core.errors import ConfigError, UserError
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.protocols.reward import ScoringRequest
from rollpacker.rewards.functions import PARAMETERS
from rollpacker.rewards.remote import ServerUnreachable, ask
from rollpacker.rewards.supervisor_process import SupervisorProcess
from rollpacker.rewards.worker import SCORING_PROCESS, SUPERVISOR_GRACE_S, arguments_of, ground_truth_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.config.sections.reward import RewardSection
    from rollpacker.config.sections.reward_checks import Check
    from rollpacker.protocols.rollout import Prompt


def try_checks(section: RewardSection, prompts: Sequence[Prompt], *, can_reach: bool = True) -> None:
    """Have each function and server score one made-up response to the first prompt that it is for.

    Args:
        section: Which checks.
        prompts: All of them.
        can_reach: Whether servers are reached from this machine, as they are from those of the run.

    Raises:
        ConfigError: One cannot be imported or reached, takes other parameters, raises, hangs, or returns no score.
    """
    first_of_domain: dict[str, Prompt] = {}
    for prompt in prompts:
        first_of_domain.setdefault(prompt.domain, prompt)
    first_of_check: dict[Check, Prompt] = {}
    for domain, prompt in first_of_domain.items():
        for each in section.scoring_of(domain):
            first_of_check.setdefault(each.check, prompt)
    mistakes: list[UserError] = []
    for check, prompt in first_of_check.items():
        if check.kind == "function" or (check.kind == "url" and can_reach):
            with collected(mistakes):
                _try(check, prompt, section.timeout_s)
    raise_mistakes(mistakes)


def _try(check: Check, prompt: Prompt, timeout_s: float) -> None:
    request = _request(prompt)
    if check.kind == "url":
        try:
            [outcome] = ask(check.source, [request], timeout_s)
        except ServerUnreachable as error:
            raise ConfigError(
                f"{check.key}={check}: no score comes from there: {error}.",
                "Before a run starts, its reward server scores a made-up response.",
                "Start the server, or correct the URL.",
            ) from error
        problem = outcome.problem
    else:
        problem = _call(check, request, timeout_s)
    if problem:
        raise ConfigError(
            f"{check.key}={check}: on the first prompt, {prompt.key!r}, {problem}.",
            'A server answers {"rewards": [NUMBER, ...]}, one for each response.'
            if check.kind == "url"
            else "A function returns a finite number, a pair of a number and a reason, or a dict with `score`.",
            "Correct it, or raise reward.timeout_s where it takes long.",
        )


def _call(check: Check, request: ScoringRequest, timeout_s: float) -> str:
    """Call a function in a process of its own; give what was wrong with it, or nothing."""
    process = SupervisorProcess(SCORING_PROCESS, [check.source, str(timeout_s)])
    try:
        if failure := process.start_failure():
            raise ConfigError(
                f"{check.key}={check} cannot be used: {failure}.",
                f"It names a function FILE.py:NAME or PACKAGE.MODULE:NAME of any of {', '.join(PARAMETERS)}.",
                "Correct the name or the function.",
            )
        answer: dict[str, Any] = process.ask(json.dumps(arguments_of(request)), timeout_s + SUPERVISOR_GRACE_S)
        return str(answer["problem"])
    finally:
        process.close()


def _request(prompt: Prompt) -> ScoringRequest:
    """A response that says the answer."""
    request = ScoringRequest(
        request=RequestId(round=0, prompt=PromptId(epoch=0, key=prompt.key), sample=0),
        domain=prompt.domain,
        prompt_text="\n".join(message["content"] for message in prompt.messages),
        response_text="",
        is_truncated=False,
        reference=prompt.reference,
        row=prompt.row,
        prompt=prompt.as_written,
    )
    return replace(request, response_text=f"The answer is {ground_truth_of(request)}.")
