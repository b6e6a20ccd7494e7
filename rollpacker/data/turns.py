"""Renders what an environment says as tokens that follow a policy's turn, which is never rendered again.

Token in, token out: a conversation that is rendered anew after each turn has other tokens than the engine sampled,
because templates drop thinking, trim white space or cut words otherwise. Here only what is new is rendered: the end of
the policy's turn as the template writes it, without what the policy wrote of it, a message of the user with the
observation, or the messages that it consists of, and the beginning of the next answer. The template writes that after
a turn in which a marker stands for the policy's words, so nothing of an earlier turn is asked of it.

Where the prompt is a plain text, so is the conversation: an observation is tokens of its text alone. An observation
that is tokens stays as it is. An empty list is nothing at all, but where the prompt opens no answer, as before an
environment that speaks first: there it is no message, and an answer begins.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from rollpacker.core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rollpacker.data.tokenization import PromptTokenizer
    from rollpacker.protocols.environment import Observation
    from rollpacker.protocols.rollout import Prompt

_MARKER = "RollPackerTurn"
"""Stands for a turn, with a digest of the messages behind it: a word that none of them has, and no template changes."""


class TurnRenderer:
    """Implements `rollpacker.protocols.environment.TurnTexts` with the tokenizer of the model directory.

    Args:
        tokenizer: Of the prompts.
        keeps_special: Whether the text of a turn has its special tokens: some models write calls of tools with them.
        end_tokens: Those that end a turn, of which a template writes one.
    """

    def __init__(
        self, tokenizer: PromptTokenizer, *, keeps_special: bool = False, end_tokens: Collection[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._keeps_special = keeps_special
        self._end_tokens = end_tokens

    def action(self, turn: Sequence[int]) -> str:
        return self.spelled(turn) if self._keeps_special else self._tokenizer.decode(turn)

    def spelled(self, turn: Sequence[int]) -> str:
        return self._tokenizer.token_texts(turn)

    def observation(self, prompt: Prompt, observation: Observation, turn: Sequence[int]) -> Sequence[int]:
        tokenizer = self._tokenizer
        if isinstance(observation, str):
            messages: list[Any] = [_user(observation)] if turn or observation else []
        elif isinstance(observation[0], int) if observation else tokenizer.opens_answer:
            return observation  # type: ignore[return-value]  # the first tells what all of them are
        else:
            messages = observation
        if not tokenizer.is_chat(prompt):
            return tokenizer.encode_text("\n".join(message["content"] for message in messages))
        if not turn:
            return tokenizer.encode_text(self._opening(prompt, messages))
        following = tokenizer.encode_text(self._reply(prompt, messages, opens_answer=True))
        return following[self._num_written(prompt, list(turn), following) :]

    def _opening(self, prompt: Prompt, messages: Sequence[Mapping[str, Any]]) -> str:
        """What follows a prompt that opens no answer yet."""
        before = self._tokenizer.render(prompt, [], opens_answer=False)
        whole = self._tokenizer.render(prompt, messages, opens_answer=True)
        if not whole.startswith(before):
            raise _not_extendable(prompt, before, whole)
        return whole.removeprefix(before)

    def _reply(self, prompt: Prompt, messages: Sequence[Mapping[str, Any]], *, opens_answer: bool) -> str:
        """What the template writes behind a turn."""
        marker = _MARKER + hashlib.blake2b(repr(messages).encode(), digest_size=8).hexdigest()
        answered = [*([] if _ends_with_user(prompt) else [_user("-")]), {"role": "assistant", "content": marker}]
        whole = self._tokenizer.render(prompt, [*answered, *messages], opens_answer=opens_answer)
        _, found, after = whole.rpartition(marker)
        if not found:
            raise _not_extendable(prompt, marker, whole)
        return after

    def _num_written(self, prompt: Prompt, turn: list[int], following: list[int]) -> int:
        """How many of the tokens that follow a turn it has itself: those that close it."""
        for number in range(min(len(turn), len(following)), 0, -1):
            if turn[-number:] == following[:number]:
                return number
        # it ended with another token than the template closes it with: Llama 3.1's <|eom_id|>, gpt-oss's <|return|>
        if turn[-1] not in self._end_tokens:
            return 0
        closing = self._tokenizer.encode_text(self._reply(prompt, [], opens_answer=False))
        return next((number for number, token in enumerate(closing, start=1) if token in self._end_tokens), 0)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _ends_with_user(prompt: Prompt) -> bool:
    return not prompt.messages or prompt.messages[-1]["role"] == "user"


def _not_extendable(prompt: Prompt, before: str, whole: str) -> DataError:
    return DataError(
        f"The chat template cannot go on after a turn of prompt {prompt.key!r}: {before[-80:]!r} is not where "
        f"{whole[:200]!r} goes on.",
        "A conversation of several turns needs a template that writes earlier messages as they were.",
        "Give another template by data.chat_template.",
    )
