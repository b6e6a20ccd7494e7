"""Turns prompts into tokens and tokens into text, with the tokenizer of the model directory.

Invariant: `encode(prompt)` is what the policy sees and `text(prompt)` is the same as text.

* A prompt with `messages` goes through the chat template, the tokenizer's own or that of `data.chat_template`, with the
  variables of `data.template_arguments`. It contains its special tokens and ends where the assistant's answer begins.
* `data.system_prompt` becomes the first message of every such prompt that has no system message.
* A prompt with only `prompt` is taken as it is, with the special tokens that the tokenizer adds to any text (for some
  models one at the beginning); with `data.plain_as_chat` it is one message of the user.

Thinking. What a model writes between thinking tags is part of its response: it counts against the length limit, it is
trained, and the reward sees it (math takes the last boxed answer, wherever it stands). Where a template opens the tag
itself, as DeepSeek-R1's does, it is part of the prompt, and the response has only the closing one. Qwen3's template has
a switch: `data.template_arguments.enable_thinking=false`.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from rollpacker.config.sections.data import DataSection
from rollpacker.core.errors import ConfigError, DataError, ModelError
from rollpacker.data.chat_templates import is_chat, no_template, read_chat_template
from rollpacker.data.model_files import check_directory
from rollpacker.data.tokenizer_files import check_tokenizer_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rollpacker.protocols.rollout import Prompt, TokenIds

_CHUNK_PROMPTS = 1024
"""Prompts tokenized per call: enough to use every core, few enough that the texts need little memory."""

_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
"""Keeps transformers from saying that there is no torch."""

_OWN_VARIABLES = ("messages", "add_generation_prompt", "tools", "documents", "bos_token", "eos_token", "pad_token")
"""Variables of chat templates that are given by the prompt and the tokenizer."""


class PromptTokenizer:
    """The tokenizer of one model directory; never looks outside of it but for `data.chat_template`."""

    def __init__(
        self,
        model_path: Path,
        section: DataSection | None = None,
        *,
        opens_answer: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Load it, and transformers with it.

        Args:
            model_path: A model directory, for its tokenizer.
            section: How prompts become text; None takes every default.
            opens_answer: Whether a prompt ends where the assistant's answer begins; where an environment speaks first,
                that is up to its observation.
            tools: That the chat template tells the model of, as JSON schemas, where a prompt's line has none.

        Raises:
            ModelError: The directory does not exist, has no usable tokenizer, or one without an end-of-sequence token.
            ConfigError: The chat template cannot be read, or does not know the arguments given to it.
        """
        self._section = section or DataSection(path=None)
        self.opens_answer = opens_answer
        self._tools = list(tools)
        self._model_path = model_path
        self._tokenizer = load_tokenizer(model_path)
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
        self.unknown_token_ids = _unknown_tokens(self._tokenizer)
        """What stands for text outside of the vocabulary."""
        if self._section.chat_template is not None:
            self._tokenizer.chat_template = read_chat_template(self._section.chat_template)
        if self._tokenizer.chat_template is not None:
            check_template_arguments(
                "data.template_arguments", self._section.template_arguments, str(self._tokenizer.chat_template)
            )
        self._template_is = (
            f"the chat template of the model in {model_path}"
            if self._section.chat_template is None
            else f"data.chat_template={self._section.chat_template}"
        )
        self._reads_tools = "tools" in _variables_of(str(self._tokenizer.chat_template))
        if self._tools:
            self._require_tools("environment.tools is set")

    @property
    def backend(self) -> Any:
        """The tokenizer as transformers has it."""
        return self._tokenizer

    def text(self, prompt: Prompt) -> str:
        """Give the prompt as the policy sees it."""
        if self.is_chat(prompt):
            if prompt.row.get("tools"):
                self._require_tools(f"The prompt {prompt.key!r} has `tools`", ", or call the field otherwise")
            return self.render(prompt, [], opens_answer=self.opens_answer)
        assert prompt.text is not None
        if self._tools:
            raise DataError(
                f"environment.tools is set, and the prompt {prompt.key!r} is plain text",
                "Allowed: chat messages, whose template tells the model which tools there are",
                "Set data.plain_as_chat=true, or write `messages`",
            )
        return prompt.text

    def _require_tools(self, why: str, also: str = "") -> None:
        if not self._reads_tools:
            raise ConfigError(
                f"{why}, and {self._template_is} does not read `tools`.",
                "The template tells the model which tools there are.",
                f"Take a model that was trained with tools, or give a template by data.chat_template{also}.",
            )

    def is_chat(self, prompt: Prompt) -> bool:
        """Whether a prompt goes through the chat template."""
        return is_chat(prompt, self._section)

    def encode_text(self, text: str) -> list[int]:
        """Give the tokens of a text that goes on, without special tokens beside those that it spells."""
        ids: list[int] = self._tokenizer(_whole(text), add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def token_texts(self, token_ids: Sequence[int]) -> str:
        """Give tokens as a template spells them, special ones too."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

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
            indices = [index for index, prompt in enumerate(prompts) if is_chat(prompt, self._section) is is_templated]
            texts = [self.text(prompts[index]) for index in indices]
            if texts:
                batch = self._tokenizer(texts, add_special_tokens=not is_templated, verbose=False)["input_ids"]
                encoded |= {index: np.asarray(ids, dtype=np.int32) for index, ids in zip(indices, batch, strict=True)}
        return [encoded[index] for index in range(len(prompts))]

    def render(self, prompt: Prompt, further: Sequence[Mapping[str, Any]], *, opens_answer: bool) -> str:
        """Apply the chat template to a prompt and further messages.

        Raises:
            DataError: The template refuses them.
        """
        if self._tokenizer.chat_template is None:
            raise no_template(self._model_path, prompt)
        messages = [_with_read_calls(message) for message in (*prompt.messages, *further)]
        if self._section.system_prompt is not None and all(message["role"] != "system" for message in messages):
            messages.insert(0, {"role": "system", "content": self._section.system_prompt})
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tools=prompt.row.get("tools") or self._tools or None,
                tokenize=False,
                add_generation_prompt=opens_answer,
                **self._section.template_arguments,
            )
        except Exception as error:  # a template is a program: its filters raise errors of many classes
            roles = ", ".join(message["role"] for message in messages)
            own = self._section.chat_template
            source = f"The template of data.chat_template={own}" if own else "The model's chat template"
            raise DataError(
                f"{source} refuses the messages of prompt {prompt.key!r} (roles: {roles}): {error}",
                "Allowed: what the template accepts",
                "Change the messages, for example move a system message into the user's, or change the template",
            ) from error
        return _whole(str(text))


def _whole(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can spell, and which are no text."""
    return text.encode(errors="replace").decode()


def _with_read_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    """Give a message whose calls of tools have their arguments as an object, as vLLM's server gives it to a template.

    OpenAI's form has them as JSON; what is no JSON object is left to the template.
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    return {**message, "tool_calls": [_with_read_arguments(call) for call in calls]}


def _with_read_arguments(call: Any) -> Any:
    match call:
        case {"function": {"arguments": str(text)} as function}:
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(arguments := json.loads(text or "{}"), dict):
                    return {**call, "function": {**function, "arguments": arguments}}
    return call


def _unknown_tokens(tokenizer: Any) -> frozenset[int]:
    """Those that a prompt has for no other reason; GPT-2's is also its end of text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    names = {tokenizer.unk_token, getattr(backend.model, "unk_token", None) if backend else None} - {None}
    ids = {tokenizer.convert_tokens_to_ids(name) for name in names}
    return frozenset(ids - {None, tokenizer.bos_token_id, tokenizer.eos_token_id})


def check_template_arguments(key: str, names: Iterable[str], template: str) -> None:
    """Refuse variables that the template does not read: a misspelt one would have no effect, unnoticed.

    Raises:
        ConfigError: One of the names given by this key is none of the template's.
    """
    read = _variables_of(template)
    for name in names:
        if name not in read or name in _OWN_VARIABLES:
            nearest = difflib.get_close_matches(name, [known for known in read if known not in _OWN_VARIABLES], n=1)
            raise ConfigError(
                f"{key}.{name} is no variable of the chat template that is for the user to set.",
                "A chat template has switches of its own, such as `enable_thinking` of Qwen3's.",
                f"Write {key}.{nearest[0]}." if nearest else "Leave it out.",
            )


def _variables_of(template: str) -> dict[str, None]:
    return dict.fromkeys(re.findall(r"[A-Za-z_]\w*", template))


def load_tokenizer(model_path: Path) -> Any:
    """Load the tokenizer of a model directory as every user of the model does: by transformers' `AutoTokenizer`.

    `tokenizer.json` alone does not say which tokens a text has: for some types of models (Qwen2 is one) transformers
    takes only the vocabulary from it, and the rules of cutting and joining from a class of its own.

    A process that loads models imports torch before its first tokenizer: see `without_torch`.

    Raises:
        ModelError: The directory does not exist, or has no usable tokenizer.
    """
    check_directory(model_path)
    check_tokenizer_files(model_path)
    try:
        with without_torch():
            from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(model_path), local_files_only=True)
    except Exception as error:  # the tokenizers library raises no class of its own
        raise ModelError(
            f"The tokenizer in {model_path} cannot be loaded: {error}",
            "Allowed: a tokenizer in Hugging Face format that needs no code of its own",
            "Correct tokenizer_config.json, or save the tokenizer again with `tokenizer.save_pretrained(DIR)`",
        ) from error


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Import transformers without torch, where the process has not loaded either.

    Transformers imports torch wherever it is installed: 10 of the 13 s of one slow core that a tokenizer takes, in each
    process that reads or writes text. A transformers that was imported without it loads no models.
    """
    if {"torch", "transformers"} & sys.modules.keys():
        yield
        return
    advice = os.environ.get(_NO_ADVICE)
    sys.modules["torch"] = None  # type: ignore[assignment]  # as Python marks a module that is not to be found
    os.environ[_NO_ADVICE] = "1"
    try:
        yield
    finally:
        del sys.modules["torch"]
        if advice is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = advice
