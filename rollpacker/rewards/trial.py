"""Tries the user's functions and servers on a first prompt: a mistake in one is known before anything starts."""

from __future__ import annotations

import functools
import json
import re
from contextlib import closing
from typing import TYPE_CHECKING, Any

from rollpacker.config.mistakes import collected, raise_mistakes
from rollpacker.config.python_names import START_LIMIT_S
from rollpacker.core.errors import ConfigError, DataError, UserError
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.processes.server_process import ServerProcess
from rollpacker.protocols.reward import ScoringRequest
from rollpacker.rewards.factory import where_answers_are
from rollpacker.rewards.functions import PARAMETERS
from rollpacker.rewards.remote import ServerUnreachable, ask
from rollpacker.rewards.scores import CHECKER_CRASHED, TIMEOUT
from rollpacker.rewards.scoring_process import SCORER_MEMORY_BYTES
from rollpacker.rewards.worker import SCORING_PROCESS, SUPERVISOR_GRACE_S, arguments_of, ground_truth_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollpacker.config.sections.reward import RewardSection
    from rollpacker.config.sections.reward_checks import Check
    from rollpacker.protocols.rollout import Prompt

_NO_CREDENTIALS = "Have the server accept requests without credentials; none are sent."
_OTHER_PATH = "Correct the path of the URL: that which takes scoring requests by POST."
_REMEDIES = {
    None: "Start the server, or correct the URL.",
    401: _NO_CREDENTIALS,
    403: _NO_CREDENTIALS,
    404: _OTHER_PATH,
    405: _OTHER_PATH,
    429: "Raise the server's limit on requests, or try again later.",
}
"""By the HTTP status of the answer, None where none came."""
_OTHER_REMEDY = "Mend the server, whose own log may say why, or correct the URL."
_MORE_MEMORY = (
    f"A call may take {SCORER_MEMORY_BYTES >> 30} GiB of address space beyond that of the import and of "
    "prepare_scoring(): load there what is larger, or have a server score (reward.url)."
)
_MEMORY_REFUSED = re.compile(r"raised (_Array)?MemoryError|([Cc]annot|can't) allocate memory")
"""As Python, NumPy, the system and PyTorch say it; that of a GPU is another."""


def try_checks(section: RewardSection, prompts: Sequence[Prompt], *, can_reach: bool = True) -> tuple[str, ...]:
    """Have each function and server score one made-up response to the first prompt that it is for.

    Args:
        section: Which checks.
        prompts: All of them.
        can_reach: Whether servers are reached from this machine, as they are from those of the run.

    Returns:
        A note for each check that takes `ground_truth`, where prompts have none.

    Raises:
        ConfigError: One cannot be imported or reached, takes other parameters, raises, hangs, or returns no score.
        DataError: A function names `ground_truth` without a default, and no prompt that it is for has one.
    """
    prompts_of_check: dict[Check, list[Prompt]] = {}
    scorings = functools.cache(section.scoring_of)
    for prompt in prompts:
        for each in scorings(prompt.domain):
            prompts_of_check.setdefault(each.check, []).append(prompt)
    mistakes: list[UserError] = []
    notes: list[str] = []
    for check, those in prompts_of_check.items():
        with collected(mistakes):
            if check.kind == "function":
                notes += _try_function(check, those, section.timeout_s)
            elif check.kind == "url":
                if can_reach:
                    _try_server(check, those[0], section.timeout_s)
                notes += _note_on_answers(check, those)
    raise_mistakes(mistakes)
    return tuple(notes)


def check_functions(section: RewardSection) -> None:
    """Import each function, as far as can be told without prompts; raises `ConfigError` where one cannot be used."""
    mistakes: list[UserError] = []
    for check in dict.fromkeys(each.check for scoring in section.scorings for each in scoring):
        if check.kind == "function":
            with collected(mistakes):
                _process_of(check, section.timeout_s).close()
    raise_mistakes(mistakes)


def _try_server(check: Check, prompt: Prompt, timeout_s: float) -> None:
    try:
        [outcome] = ask(check.source, [_request(prompt)], timeout_s)
    except ServerUnreachable as error:
        raise ConfigError(
            f"{check.key}={check}: no score comes from there: {error}.",
            "Before a run starts, its reward server scores a made-up response.",
            _REMEDIES.get(error.status, _OTHER_REMEDY),
        ) from error
    allowed = 'A server answers {"rewards": [NUMBER, ...]}, one for each response.'
    _refuse(check, prompt, outcome.score.reason, outcome.problem, allowed)


def _try_function(check: Check, prompts: Sequence[Prompt], timeout_s: float) -> Sequence[str]:
    """Call a function in a process of its own; gives a note as `_note_on_answers` does."""
    with closing(_process_of(check, timeout_s)) as process:
        notes: Sequence[str] = ()
        if "ground_truth" in process.greeting["needed"]:
            _refuse_without_answers(check, prompts)
            notes = _note_on_answers(check, prompts)
        request = json.dumps(arguments_of(_request(prompts[0])))
        answer: dict[str, Any] = process.ask(request, timeout_s + SUPERVISOR_GRACE_S)
    allowed = "A function returns a finite number, a pair of a number and a reason, or a dict with `score`."
    _refuse(check, prompts[0], answer["reason"], answer["problem"], allowed)
    return notes


def _process_of(check: Check, timeout_s: float) -> ServerProcess:
    """Start the process that calls a function, and wait until it has imported it."""
    process = ServerProcess(
        SCORING_PROCESS, [check.source, str(timeout_s)], "reward process", start_limit_s=START_LIMIT_S
    )
    if failure := process.start_failure():
        process.close()
        raise _unusable(f"{check.key}={check} cannot be used: {failure}", process.greeting)
    return process


def _unusable(problem: str, greeting: Mapping[str, Any]) -> ConfigError:
    """The error of a function whose process is not ready; without a greeting it was too late."""
    if not greeting:
        return ConfigError(
            f"{problem}.",
            f"The import of its module and prepare_scoring() have {START_LIMIT_S:g} s together.",
            "Load less there, or have a server score (reward.url).",
        )
    if greeting.get("has_remedy"):
        return ConfigError(problem)
    return ConfigError(
        f"{problem}.",
        f"It names a function FILE.py:NAME or PACKAGE.MODULE:NAME of any of {', '.join(PARAMETERS)}.",
        "Correct the name or the function.",
    )


def _refuse(check: Check, prompt: Prompt, reason: str, problem: str, allowed: str) -> None:
    if problem:
        raise ConfigError(
            f"{check.key}={check}: on the first prompt, {prompt.key!r}, {problem}.",
            allowed,
            _remedy(reason, problem),
        )


def _remedy(reason: str, problem: str) -> str:
    if reason == TIMEOUT.reason:
        return "Make it faster, or raise reward.timeout_s."
    if reason == CHECKER_CRASHED.reason and _MEMORY_REFUSED.search(problem):
        return _MORE_MEMORY
    return "Correct it."


def _refuse_without_answers(check: Check, prompts: Sequence[Prompt]) -> None:
    if any(ground_truth_of(prompt.reference) for prompt in prompts):
        return
    first = prompts[0]
    others = ", ".join(f"`{name}`" for name in first.row) or "none"
    raise DataError(
        f"{first.line}: neither the prompt {first.key!r} nor any other that {check.key}={check} scores has a "
        "`ground_truth`, which that function takes",
        f"Other fields of this line: {others}",
        f"Give the parameter a default, or {where_answers_are(first)}",
    )


def _note_on_answers(check: Check, prompts: Sequence[Prompt]) -> Sequence[str]:
    """A note where prompts have no answer; empty otherwise."""
    without = [prompt for prompt in prompts if not ground_truth_of(prompt.reference)]
    if not without:
        return ()
    number = f"{len(without):,} of the {len(prompts):,} prompts"
    return (f"{check.key}={check}: {number} that it scores have no ground_truth, the first in {without[0].line}.",)


def _request(prompt: Prompt) -> ScoringRequest:
    """A response that says the answer."""
    return ScoringRequest(
        request=RequestId(round=0, prompt=PromptId(epoch=0, key=prompt.key), sample=0),
        domain=prompt.domain,
        prompt_text="\n".join(message["content"] for message in prompt.messages),
        response_text=f"The answer is {ground_truth_of(prompt.reference)}.",
        is_truncated=False,
        reference=prompt.reference,
        row=prompt.row,
        prompt=prompt.as_written,
    )
