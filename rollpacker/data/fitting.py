"""Fits prompts into the length limit: drops the longer ones, or shortens them, as `data.long_prompts` says.

Invariant: what comes back has at most `data.max_prompt_tokens` tokens, in the order of the file, and its `prompt` is
what its tokens were made of; so the reward is told the same text that the policy saw. Only the longest message of the
user (of a plain prompt, its text) is shortened, and the chat template is applied to what is left: its frame, the system
message, the other turns and `data.prompt_suffix` are never cut. A prompt that is too long even so is left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rollpacker.core.errors import DataError
from rollpacker.data.held_out import load_held_out
from rollpacker.protocols.rollout import TokenizedPrompt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollpacker.config.sections.data import DataSection
    from rollpacker.config.sections.evaluation import EvaluationSection
    from rollpacker.core.ids import Domain
    from rollpacker.data.tokenization import PromptTokenizer
    from rollpacker.protocols.rollout import Prompt, TokenIds

_NUM_NAMED = 3
"""Prompts that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingPrompts:
    """The prompts of a run, and the fate of those that were too long."""

    prompts: Mapping[str, TokenizedPrompt]
    """By key, in the order of the file."""
    num_dropped: Mapping[Domain, int]
    num_shortened: Mapping[Domain, int]
    unknown: Sequence[str]
    """Keys of prompts with text that the tokenizer does not know."""

    def notes(self, section: DataSection) -> list[str]:
        """What a person should know; nothing when every prompt fits and is known."""
        notes = [
            f"{verb} {sum(counts.values())} prompts of more than data.max_prompt_tokens={section.max_prompt_tokens} "
            f"tokens ({', '.join(f'{domain} {count}' for domain, count in counts.items())})."
            for verb, counts in (("Dropped", self.num_dropped), ("Shortened", self.num_shortened))
            if counts
        ]
        if self.unknown:
            notes.append(
                f"{len(self.unknown)} of {len(self.prompts)} prompts hold text that the model's tokenizer does not "
                f"know, such as {self.unknown[0]!r}: the policy sees its unknown token there."
            )
        return notes


def fit_prompts(prompts: Sequence[Prompt], tokenizer: PromptTokenizer, section: DataSection) -> FittingPrompts:
    """Tokenize prompts and fit them into the limit.

    Raises:
        DataError: A domain has no prompt left; a prompt has no token at all; or one is too long and none may be.
    """
    limit = section.max_prompt_tokens
    token_ids = dict(zip((prompt.key for prompt in prompts), tokenizer.encode_all(prompts), strict=True))
    for prompt in prompts:
        if len(token_ids[prompt.key]) == 0:
            raise DataError(
                f"Prompt {prompt.key!r} has no token: the tokenizer knows none of its characters",
                "Allowed: prompts of at least one token",
                "Use the tokenizer that belongs to this data, or delete the prompt",
            )
    too_long = [prompt for prompt in prompts if len(token_ids[prompt.key]) > limit]
    if section.long_prompts == "error" and too_long:
        raise _refused(too_long, token_ids, limit)
    kept = {
        prompt.key: TokenizedPrompt(prompt=prompt, token_ids=token_ids[prompt.key])
        for prompt in prompts
        if len(token_ids[prompt.key]) <= limit
    }
    if section.long_prompts in {"truncate_left", "truncate_right"}:
        for prompt in too_long:
            short = _shorten(prompt, tokenizer, limit, keeps_end=section.long_prompts == "truncate_left")
            if short:
                kept[prompt.key] = short
    _check_domains(prompts, kept, token_ids, limit)
    unknown = list(tokenizer.unknown_token_ids)
    return FittingPrompts(
        prompts={prompt.key: kept[prompt.key] for prompt in prompts if prompt.key in kept},
        num_dropped=Counter(prompt.domain for prompt in too_long if prompt.key not in kept),
        num_shortened=Counter(prompt.domain for prompt in too_long if prompt.key in kept),
        unknown=[key for key, each in kept.items() if np.isin(each.token_ids, unknown).any()] if unknown else [],
    )


def fit_held_out(
    section: EvaluationSection, tokenizer: PromptTokenizer, data: DataSection
) -> tuple[dict[str, Mapping[str, TokenizedPrompt]], list[str]]:
    """Read, tokenize and fit the held-out sets, by name and key; also gives what a person should know of them."""
    fitting = {name: fit_prompts(prompts, tokenizer, data) for name, prompts in load_held_out(section).items()}
    notes = [f"Held-out set {name}: {note}" for name, each in fitting.items() for note in each.notes(data)]
    return {name: each.prompts for name, each in fitting.items()}, notes


def _shorten(prompt: Prompt, tokenizer: PromptTokenizer, limit: int, *, keeps_end: bool) -> TokenizedPrompt | None:
    """Keep as many characters as fit, at least one; None when not even one does.

    Characters are tried by bisection, because what a template makes of a message, and how its tokens join, is the
    template's and the tokenizer's business.
    """
    users = [index for index, message in enumerate(prompt.messages) if message["role"] == "user"]
    if not users:
        return None
    index = max(users, key=lambda user: len(prompt.messages[user]["content"]))
    content = prompt.messages[index]["content"]
    suffix = f"\n{prompt.suffix}" if prompt.suffix and content.endswith(f"\n{prompt.suffix}") else ""
    content = content.removesuffix(suffix)
    best = None
    fewest, most = 1, len(content) - 1
    while fewest <= most:
        num_kept = (fewest + most) // 2
        part = content[-num_kept:] if keeps_end else content[:num_kept]
        candidate = _with_content(prompt, index, part + suffix)
        token_ids = tokenizer.encode(candidate)
        if 0 < len(token_ids) <= limit:
            best = TokenizedPrompt(prompt=candidate, token_ids=token_ids)
            fewest = num_kept + 1
        else:
            most = num_kept - 1
    return best


def _with_content(prompt: Prompt, index: int, content: str) -> Prompt:
    messages = list(prompt.messages)
    messages[index] = {**messages[index], "content": content}
    return replace(prompt, messages=tuple(messages), text=None if prompt.text is None else content)


def _refused(too_long: Sequence[Prompt], token_ids: Mapping[str, TokenIds], limit: int) -> DataError:
    named = ", ".join(f"{prompt.key!r} with {len(token_ids[prompt.key])}" for prompt in too_long[:_NUM_NAMED])
    return DataError(
        f"{len(too_long)} prompts have more than data.max_prompt_tokens={limit} tokens, such as {named}",
        "Allowed with data.long_prompts=error: none",
        "Raise data.max_prompt_tokens, or choose drop, truncate_left or truncate_right",
    )


def _check_domains(
    prompts: Sequence[Prompt], kept: Mapping[str, object], token_ids: Mapping[str, TokenIds], limit: int
) -> None:
    """A domain that vanished would be missing from every batch."""
    left = {prompt.domain for prompt in prompts if prompt.key in kept}
    for domain in dict.fromkeys(prompt.domain for prompt in prompts):
        if domain not in left:
            lengths = [len(token_ids[prompt.key]) for prompt in prompts if prompt.domain == domain]
            raise DataError(
                f"None of the {len(lengths)} prompts of domain {domain!r} has at most data.max_prompt_tokens={limit} "
                "tokens",
                f"The shortest has {min(lengths)}, the longest {max(lengths)}",
                "Raise data.max_prompt_tokens, or leave the domain out",
            )
