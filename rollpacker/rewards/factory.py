"""The rewards, how each must be run, and the references that each can use."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from rollpacker.config.entry_names import word_below
from rollpacker.core.errors import ConfigError, DataError
from rollpacker.core.ids import Domain
from rollpacker.data.jsonl import shown, usual_column
from rollpacker.data.test_cases import load_test_cases
from rollpacker.protocols.references import AnswerReference, CallCase, CodeReference, JudgeReference, StdinCase
from rollpacker.rewards import math_truths, walk
from rollpacker.rewards.remote import UrlRewardWorker
from rollpacker.rewards.routing import RoutingRewardWorker, SummingRewardWorker
from rollpacker.rewards.sandbox.values import encode
from rollpacker.rewards.worker import InPlaceRewardWorker, KillableRewardWorker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollpacker.config.sections.reward import RewardSection
    from rollpacker.config.sections.reward_checks import Check, CheckKind, Scoring
    from rollpacker.config.sections.sandbox import SandboxSection
    from rollpacker.protocols.references import Reference
    from rollpacker.protocols.reward import RewardWorker
    from rollpacker.protocols.rollout import Prompt


def make_reward_worker(section: RewardSection, judge: RewardWorker | None = None) -> RewardWorker:
    """Make the worker of the configured rewards. It belongs to the event loop that first calls it.

    Args:
        section: Which rewards.
        judge: The LLM judge, which this worker owns from now on; None where it works elsewhere, and none of its
            responses come here.

    Raises:
        ConfigError: A reward scores no texts.
    """
    workers: dict[Scoring, RewardWorker] = {}
    for scoring in section.scorings:
        if scoring[0].check.kind != "judge":
            workers[scoring] = _make_all(scoring, section)
        elif judge is not None:
            workers[scoring] = judge
    default = workers.get(section.scoring_of()) or next(iter(workers.values()))
    if len(workers) == 1:
        return default
    scorings = {Domain(domain): section.scoring_of(domain) for domain in section.domains}
    return RoutingRewardWorker(
        default, {domain: workers[scoring] for domain, scoring in scorings.items() if scoring in workers}
    )


def check_references(section: RewardSection, prompts: Iterable[Prompt]) -> None:
    """Refuse the first prompt whose reward could not score its responses, and would give all of them 0.

    Raises:
        DataError: No reference for a reward that needs one, one of another kind than it needs, an answer that it cannot
            read, tests that import what the sandbox lacks, or test cases larger than the files or the output that it
            allows.
    """
    scorings = functools.cache(section.scoring_of)
    for prompt in prompts:
        for each in scorings(prompt.domain):
            _check_reference(section, each.check.kind, prompt)


def where_answers_are(prompt: Prompt) -> str:
    """What to do where prompts have no `ground_truth`, in words."""
    column = usual_column("ground_truth", prompt.row) or "COLUMN"
    return (
        f"name the column that has it ('data.columns={{ground_truth:{column}}}'; for held-out prompts "
        f"`columns: {{ground_truth: {column}}}` in the entry of their file in evaluation.path)"
    )


def _check_reference(section: RewardSection, name: CheckKind, prompt: Prompt) -> None:
    usable, in_words = _USABLE[name]
    allowed, reference = f"Allowed with {name}: {in_words}", prompt.reference
    if reference == AnswerReference(text="") and _USABLE[name] is not _ANY:
        raise DataError(
            f"{prompt.line}: the prompt {prompt.key!r} has nothing that the reward of its domain `{prompt.domain}`, "
            f"{name}, could score a response by",
            allowed,
            f"Fill it in, {where_answers_are(prompt)}, or leave out the prompt",
        )
    if isinstance(reference, AnswerReference) and (problem := _problem(name, reference.text)):
        raise DataError(
            f"{prompt.line}: the prompt {prompt.key!r} has the answer {shown(reference.text)}, {problem}",
            allowed,
            "Correct it, or leave out the prompt",
        )
    if isinstance(reference, CodeReference) and name == "sandbox":
        _check_packages(section, prompt, reference)
        _check_sizes(section.sandbox, prompt, reference)
    if not isinstance(reference, usable):
        described, remedy = _described(reference, prompt.domain)
        raise DataError(
            f"{prompt.line}: the prompt {prompt.key!r} has {described}, which the reward of its domain "
            f"`{prompt.domain}`, {name}, cannot use",
            allowed,
            remedy,
        )


def _problem(name: CheckKind, answer: str) -> str | None:
    """Explain why no response could match an answer, from its text alone, without parsing it."""
    match name:
        case "walk" if walk.read_task(answer) is None:
            return "which is no walk"
        case "math":
            return math_truths.problem(answer)
    return None


def _check_packages(section: RewardSection, prompt: Prompt, reference: CodeReference) -> None:
    folder = section.sandbox.packages
    for name in reference.packages:
        if folder is None or not (any(folder.glob(name)) or any(folder.glob(f"{name}.*"))):
            raise DataError(
                f"{prompt.line}: the tests of the prompt {prompt.key!r} import `{name}`, which the sandbox lacks",
                "Allowed: Python's standard library, `solution`, `pytest`, and what is installed in "
                f"reward.sandbox.packages={folder or 'null'}",
                "Install it there by `pip install --target FOLDER PACKAGE`, or leave out these prompts",
            )


def _check_sizes(sandbox: SandboxSection, prompt: Prompt, reference: CodeReference) -> None:
    """Read again only lines that are long enough: no text is longer than the line that has it."""
    limits_mb = {"files_mb": sandbox.files_mb, "output_mb": sandbox.output_mb}
    if reference.line.num_bytes <= min(limits_mb.values()) << 20:
        return
    for index, case in enumerate(load_test_cases(reference)):
        sizes = {"files_mb": 0, "output_mb": 0}
        match case:
            case StdinCase():
                sizes["files_mb"] = len(case.input.encode(errors="replace"))
                sizes["output_mb"] = len(case.output.rstrip().encode(errors="replace"))
            case CallCase():
                sizes["output_mb"] = min(len(encode(value)) for value in case.accepted)
        for name, num_bytes in sizes.items():
            if num_bytes > limits_mb[name] << 20:
                least_mb = math.ceil(num_bytes / (1 << 20))
                raise DataError(
                    f"{prompt.line}: test case {index} of the prompt {prompt.key!r} has an "
                    f"{'input' if name == 'files_mb' else 'output'} of {least_mb} MB, which no program could "
                    f"{'read' if name == 'files_mb' else 'write'}",
                    f"Allowed: reward.sandbox.{name}={limits_mb[name]}",
                    f"Set reward.sandbox.{name}={least_mb + 1}, or leave out the prompt",
                )


def _make_all(scoring: Scoring, section: RewardSection) -> RewardWorker:
    """Make the worker of one way to score; parts share none, for each collects all verdicts of its worker."""
    if not scoring[0].part:
        return _make(scoring[0].check, section)
    return SummingRewardWorker({each.part: (_make(each.check, section), each.weight) for each in scoring})


def _make(check: Check, section: RewardSection) -> RewardWorker:
    match check.kind:
        case "walk":
            return InPlaceRewardWorker(walk.score)
        case "math":
            return KillableRewardWorker("rollpacker.rewards.math:score", section.num_workers, section.timeout_s)
        case "function":
            return KillableRewardWorker(check.source, section.num_workers, section.timeout_s)
        case "url":
            return UrlRewardWorker(check.source, section.num_workers, section.timeout_s)
        case "sandbox":
            from rollpacker.rewards.sandbox.worker import SandboxRewardWorker

            return SandboxRewardWorker(section.sandbox)
        case "modelled" | "judge" | "environment":
            raise ConfigError(
                f"reward.name={check} scores no texts by itself.",
                "Texts are scored by math, walk, sandbox, judge, a function or a server.",
                "Choose reward=math.",
            )


_ANY = (AnswerReference, CodeReference, JudgeReference), "any reference"

_USABLE: dict[CheckKind, tuple[tuple[type[Reference], ...], str]] = {
    "math": ((AnswerReference,), "an answer in `ground_truth`, as text, LaTeX or a number"),
    "walk": (
        (AnswerReference,),
        "start and target in `ground_truth`, as in `3 20`, the target not below the start",
    ),
    "sandbox": ((CodeReference,), "test cases"),
    "judge": (
        (JudgeReference, AnswerReference),
        "a `rubric`, a `reference_answer`, or an answer in `ground_truth`",
    ),
    "modelled": _ANY,
    "environment": _ANY,
    "function": _ANY,
    "url": _ANY,
}
"""The references that a check can use, as classes and in words."""


def _described(reference: Reference, domain: Domain) -> tuple[str, str]:
    """A reference in words, and what to do where the reward of its domain cannot use it."""
    match reference:
        case AnswerReference():
            words, check, others = "an answer", "math", ", walk or judge, or correct the line"
        case CodeReference():
            words, check, others = "test cases", "sandbox", ", or leave these prompts out"
        case JudgeReference():
            words, check = "a rubric or a reference answer", "judge"
            others = " and reward.judge.model.path, or leave these prompts out"
    return words, f"Set {word_below('reward.domains', domain, check)}{others}"
