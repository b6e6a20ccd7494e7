"""Turns prompts into tokens and tokens into text, with the tokenizer of the model directory.

Invariant: `encode(prompt)` is what the policy sees and `text(prompt)` is the same as text.

* A prompt with `messages` goes through the tokenizer's chat template, which brings its own special tokens and ends
  where the assistant's answer begins.
* Where the tokenizer has no chat template, the contents of the messages are joined with newlines.
* A prompt with only `prompt` is taken as it is. Plain text gets the special tokens that the tokenizer adds to any
  text (for some models one at the beginning).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollpacker.core.errors import DataError, ModelError
from rollpacker.data.model_files import check_tokenizer_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rollpacker.protocols.rollout import Prompt, TokenIds

_CHUNK_PROMPTS = 1024
"""Prompts tokenized per call: enough to use every core, few enough that the texts need little memory."""


class PromptTokenizer:
    """The tokenizer of one model directory; never looks outside of it."""

    def __init__(self, model_path: Path) -> None:
        """Load it, and transformers with it.

        Raises:
            ModelError: The directory does not exist, has no usable tokenizer, or one without an end-of-sequence token.
        """
        check_tokenizer_files(model_path)
        self._tokenizer = _load_tokenizer(model_path)
        eos_token_id = self._tokenizer.eos_token_id
        if eos_token_id is None:
            raise ModelError(
                f"The tokenizer in {model_path} has no end-of-sequence token",
                "Allowed: a tokenizer whose tokenizer_config.json names an `eos_token`",
                "Add `eos_token`, or responses could never end",
            )
        pad_token_id = self._tokenizer.pad_token_id
        self.eos_token_id: int = eos_token_id
        self.pad_token_id: int = eos_token_id if pad_token_id is None else pad_token_id
        """The end-of-sequence token where the tokenizer has no padding of its own; padding is always masked."""
        self._has_template = self._tokenizer.chat_template is not None

    def text(self, prompt: Prompt) -> str:
        """Give the prompt as the policy sees it."""
        if prompt.text is not None:
            return prompt.text
        if not self._has_template:
            return "\n".join(message["content"] for message in prompt.messages)
        return self._apply_template(prompt)

    def encode(self, prompt: Prompt) -> TokenIds:
        """Give the prompt's tokens, shape [T]."""
        return self.encode_all([prompt])[0]

    def encode_all(self, prompts: Sequence[Prompt]) -> list[TokenIds]:
        """Give the tokens of many prompts, in order; faster than one by one."""
        encoded: list[TokenIds] = []
        for start in range(0, len(prompts), _CHUNK_PROMPTS):
            encoded += self._encode_chunk(prompts[start : start + _CHUNK_PROMPTS])
        return encoded

    def decode(self, token_ids: Sequence[int] | TokenIds) -> str:
        """Give the text of tokens, without special tokens and with spaces as they were generated."""
        text = self._tokenizer.decode(
            np.asarray(token_ids, dtype=np.int32).tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)

    def _encode_chunk(self, prompts: Sequence[Prompt]) -> list[TokenIds]:
        """Templates write their special tokens themselves, so the tokenizer must not add them a second time."""
        encoded: dict[int, TokenIds] = {}
        for is_templated in (True, False):
            indices = [index for index, prompt in enumerate(prompts) if self._uses_template(prompt) is is_templated]
            texts = [self.text(prompts[index]) for index in indices]
            if texts:
                batch = self._tokenizer(texts, add_special_tokens=not is_templated, verbose=False)["input_ids"]
                encoded |= {index: np.asarray(ids, dtype=np.int32) for index, ids in zip(indices, batch, strict=True)}
        return [encoded[index] for index in range(len(prompts))]

    def _uses_template(self, prompt: Prompt) -> bool:
        return prompt.text is None and self._has_template

    def _apply_template(self, prompt: Prompt) -> str:
        from jinja2.exceptions import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(
                list(prompt.messages), tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in prompt.messages)
            raise DataError(
                f"The model's chat template refuses the messages of prompt {prompt.key!r} (roles: {roles}): {error}",
                "Allowed: what the template in the model directory accepts",
                "Change the messages, for example move a system message into the user's, or change the template",
            ) from error
        return str(text)


def select_fitting(
    prompts: Sequence[Prompt], tokenizer: PromptTokenizer, max_prompt_tokens: int
) -> tuple[list[tuple[Prompt, TokenIds]], int]:
    """Keep the prompts that are short enough, with their tokens, in order; and count the others.

    Raises:
        DataError: No prompt is left, or one has no token at all.
    """
    token_ids = tokenizer.encode_all(prompts)
    lengths = [len(ids) for ids in token_ids]
    for prompt, length in zip(prompts, lengths, strict=True):
        if length == 0:
            raise DataError(
                f"Prompt {prompt.key!r} has no token: the tokenizer knows none of its characters",
                "Allowed: prompts of at least one token",
                "Use the tokenizer that belongs to this data, or delete the prompt",
            )
    fitting = [(prompt, ids) for prompt, ids in zip(prompts, token_ids, strict=True) if len(ids) <= max_prompt_tokens]
    if not fitting:
        raise DataError(
            f"None of the {len(prompts)} prompts has at most data.max_prompt_tokens={max_prompt_tokens} tokens",
            f"The shortest has {min(lengths, default=0)}, the longest {max(lengths, default=0)}",
            "Raise data.max_prompt_tokens",
        )
    return fitting, len(prompts) - len(fitting)


def _load_tokenizer(model_path: Path) -> Any:
    """Load a tokenizer by its `tokenizer.json` where there is one: AutoTokenizer would import torch, for seconds."""
    try:
        if (model_path / "tokenizer.json").is_file():
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(str(model_path), local_files_only=True)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(model_path), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ModelError(
            f"The tokenizer in {model_path} cannot be loaded: {error}",
            "Allowed: a tokenizer in Hugging Face format that needs no code of its own",
            "Save it again with `tokenizer.save_pretrained(DIR)`",
        ) from error
