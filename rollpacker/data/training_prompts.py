"""Chooses the prompts to train on: without those that are too easy or too hard, by what an earlier evaluation says.

A prompt that the policy always solves, or never, has a group of equal rewards, of which GRPO learns nothing. Dynamic
sampling finds that out by generating it; here `rollpacker evaluate model.path=... evaluation.path=PROMPTS out=FILE` did
so once, before the run.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from rollpacker.core.errors import DataError
from rollpacker.data.prompts import load_prompts, read_prompts
from rollpacker.data.rows import digest_of

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from rollpacker.config.sections.data import DataSection
    from rollpacker.protocols.rollout import Prompt

_REMEDY = "Evaluate the files of data.path alone: rollpacker evaluate model.path=... evaluation.path=... out=FILE"


def load_training_prompts(section: DataSection) -> tuple[tuple[Prompt, ...], list[str]]:
    """Read the prompts to train on, in their order, and what a person should know of those that were left out.

    Prompts that were not evaluated are kept; of all that are kept, the first `data.max_prompts` are trained on.

    Raises:
        DataError: A file cannot be read or has a wrong row; a prompt was evaluated in two sets; or a domain has no
            prompt left.
    """
    if section.solve_rates is None:
        return load_prompts(section.files)[: section.max_prompts], []
    prompts: list[Prompt] = []
    digests: dict[str, str] = {}
    for line, prompt in read_prompts(section.files):
        prompts.append(prompt)
        if "id" in line.made:
            digests[prompt.key] = digest_of(prompt.key)
    low, high = section.keep_solve_rate
    found = _solve_rates(section, {prompt.key for prompt in prompts} - digests.keys(), frozenset(digests.values()))
    rates = {prompt.key: found.get(digests.get(prompt.key, prompt.key)) for prompt in prompts}
    known = sum(rate is not None for rate in rates.values())
    if not known:
        raise DataError(
            f"data.solve_rates={section.solve_rates} knows none of the {len(prompts)} prompts",
            f"It has responses to prompts such as {next(iter(found))!r}; data.path has {prompts[0].key!r}",
            _REMEDY,
        )
    kept = tuple(prompt for prompt in prompts if (rate := rates[prompt.key]) is None or low <= rate <= high)
    for domain in sorted({prompt.domain for prompt in prompts} - {prompt.domain for prompt in kept}):
        raise DataError(
            f"None of the prompts of domain {domain!r} has a solve rate from {low:g} to {high:g}",
            f"Those of data.solve_rates={section.solve_rates} are below or above data.keep_solve_rate",
            "Widen data.keep_solve_rate, or leave the domain out",
        )
    unknown = len(prompts) - known
    of_unknown = f", and {unknown:,} that were not evaluated" if unknown else ""
    return kept[: section.max_prompts], [
        f"Kept {len(kept):,} of {len(prompts):,} prompts: with a solve rate from {low:g} to {high:g}{of_unknown}."
    ]


def _solve_rates(section: DataSection, given: AbstractSet[str], digests: AbstractSet[str]) -> dict[str, float]:
    """The mean reward of each evaluated prompt, by its id.

    Made ids count without their number: equal ones are the same prompt, in whatever set and however often.

    Args:
        section: With the evaluation.
        given: Ids of the files of data.path.
        digests: Of the ids that were made for these.
    """
    from rollpacker.metrics.evaluation_files import read_newest_responses  # Arrow takes half a second to load

    assert section.solve_rates is not None
    rewards: dict[str, list[float]] = {}
    sets: dict[str, str] = {}
    for row in read_newest_responses(section.solve_rates):
        key = row["prompt"]
        if (digest := digest_of(key)) in digests:
            key = digest
        if (first := sets.setdefault(key, row["set"])) != row["set"] and key in given:
            raise DataError(
                f"data.solve_rates={section.solve_rates} has a prompt {key!r} in two sets, {first} and {row['set']}",
                "Allowed: prompts of data.path in one set, since ids of two sets may be equal by chance",
                _REMEDY,
            )
        rewards.setdefault(key, []).append(row["reward"])
    return {key: fmean(each) for key, each in rewards.items()}
