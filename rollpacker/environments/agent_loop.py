"""Agent loops of one's own, with verl's names: an async function that generates as often as it wants.

    from rollpacker.environments.agent_loop import AgentLoopBase, AgentLoopOutput

    class Guess(AgentLoopBase):
        async def run(self, sampling_params, **kwargs):  # raw_prompt, prompt_ids, and the fields of the prompt's line
            prompt_ids = list(kwargs["prompt_ids"])
            output = await self.server_manager.generate(prompt_ids=prompt_ids, sampling_params=sampling_params)
            ...
            return AgentLoopOutput(prompt_ids=..., response_ids=..., response_mask=..., reward_score=1.0)

`environment=loop environment.loop=FILE.py:NAME` runs it. A trajectory is one request of the scheduler, token in, token
out: the `prompt_ids` of each call are all tokens so far, as they were sampled, and tokens that the loop appends. Those
are an environment's words to the rest of a run, so races, versions and the mask hold without the loop's doing. The
process stands still while engines generate.

Invariant: what is trained is what was sampled. A call or an output that changes an earlier token, leaves one out, or
masks one otherwise, is refused, and its trajectory with it.

Source: verl (github.com/volcengine/verl), `AgentLoopBase.run`, `AgentLoopOutput`, `AsyncLLMServerManager.generate` and
`TokenOutput` of verl/experimental/agent_loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollpacker.data.tokenization import PromptTokenizer
    from rollpacker.data.turns import TurnRenderer
    from rollpacker.protocols.rollout import Prompt


class LoopError(Exception):
    """A loop did what no training could use; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutput:
    """What a call of `generate` gives."""

    token_ids: list[int]
    """Ends with the end-of-sequence token where the model ended its turn. Empty where no further turn may come:
    environment.max_turns or rollout.max_response_tokens is reached."""
    log_probs: list[float]
    """One per token, of what was sampled."""
    stop_reason: str
    """`stop`, or `length` where the trajectory has as many tokens or turns as it may have."""


@dataclass(slots=True, kw_only=True)
class AgentLoopOutput:
    """What a loop returns. One of verl's, or any object with these attributes, is as good."""

    prompt_ids: list[int]
    response_ids: list[int]
    """All that follows the prompt: turns, and what the loop appended."""
    response_mask: list[int]
    """1 for each token that a call of `generate` gave, 0 for the others."""
    reward_score: float | None = None
    """The reward, in a run with reward=environment. Another reward scores the last turn."""
    num_turns: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    extra_fields: Mapping[str, Any] = field(default_factory=dict)


class AgentLoopBase:
    """A loop of one trajectory; its subclass has `async run(sampling_params, **kwargs)`, which gives its output.

    Args:
        server_manager: Has `generate`.
        prompts: Has the tokenizer, and what the prompt looks like.
        response_length: The most tokens that may follow the prompt.
    """

    def __init__(self, *, server_manager: ServerManager, prompts: LoopPrompts, response_length: int) -> None:
        self.server_manager = server_manager
        self.response_length = response_length
        self._prompts = prompts

    @property
    def tokenizer(self) -> Any:
        """That of the model directory, with the run's chat template."""
        return self._prompts.tokenizer.backend

    async def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Give messages as tokens as far as the beginning of the answer, as the run does with its prompts."""
        return self._prompts.encode(messages=tuple(map(dict, messages)), text=None, row={"tools": tools or []})

    def observation_ids(self, messages: Sequence[Mapping[str, Any]], turn_ids: Sequence[int]) -> list[int]:
        """Give what follows a turn so that another one can follow it: its end, these messages, the next beginning.

        Args:
            messages: Chat messages of the user or of tools; of a plain prompt, the contents are the whole.
            turn_ids: The tokens of the turn, as they were sampled.
        """
        return self._prompts.following(messages, turn_ids)


class LoopPrompts:
    """Turns messages into tokens as the run does; the tokenizer is loaded when it is first asked for.

    Args:
        model_path: The model directory.
        data: Settings of the `data` section that say how prompts become text.
    """

    def __init__(self, model_path: str, data: Mapping[str, Any]) -> None:
        self._model_path, self._data = model_path, data
        self._fields: dict[str, Any] = {}

    def begin(self, messages: Sequence[Mapping[str, Any]], text: str | None, row: Mapping[str, Any]) -> None:
        """Take the prompt of a trajectory."""
        self._fields = {"messages": tuple(map(dict, messages)), "text": text, "row": row}

    @cached_property
    def tokenizer(self) -> PromptTokenizer:
        from rollpacker.config.sections.data import DataSection
        from rollpacker.data.tokenization import PromptTokenizer

        return PromptTokenizer(Path(self._model_path), DataSection(path=None, **self._data))

    @cached_property
    def num_words(self) -> int:
        """Tokens that the model has; where its configuration leaves that to a default, those that 31 bits can name."""
        from rollpacker.data.json_files import decoder_of, read_object

        config = read_object(Path(self._model_path) / "config.json")
        sizes = config if "vocab_size" in config else decoder_of(config)
        return int(sizes.get("vocab_size", 1 << 31))

    def encode(self, **others: Any) -> list[int]:
        """The tokens of the prompt, or of one with other fields."""
        ids: list[int] = self.tokenizer.encode(self._prompt(**others)).tolist()
        return ids

    def following(self, messages: Sequence[Mapping[str, Any]], turn_ids: Sequence[int]) -> list[int]:
        """What follows a turn."""
        observation = [dict(each) for each in messages]
        return list(self._renderer.observation(self._prompt(), observation, turn_ids))

    @cached_property
    def _renderer(self) -> TurnRenderer:
        from rollpacker.data.turns import TurnRenderer

        tokenizer = self.tokenizer  # which loads transformers without torch
        from rollpacker.engines.end_tokens import end_tokens

        return TurnRenderer(tokenizer, end_tokens=end_tokens(Path(self._model_path)))

    def _prompt(self, **others: Any) -> Prompt:
        from rollpacker.core.ids import Domain
        from rollpacker.protocols.references import AnswerReference
        from rollpacker.protocols.rollout import Prompt

        fields = {"key": "", "domain": Domain(""), "reference": AnswerReference(text=""), **self._fields, **others}
        return Prompt(**fields)


class ServerManager:
    """Generates for one trajectory.

    Args:
        prompt_ids: Of the trajectory.
        sampling_params: Of every turn.
        max_tokens: That may follow the prompt.
        max_turns: That may be generated.
        num_words: Tokens that the model has.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, float],
        max_tokens: int,
        max_turns: int,
        num_words: int,
    ) -> None:
        self._tokens = list(prompt_ids)
        """The prompt, and what is known to follow it."""
        self._mask = [0] * len(prompt_ids)
        self._sampling_params = dict(sampling_params)
        self._most = len(prompt_ids) + max_tokens
        self._num_turns_left = max_turns
        self._num_words = num_words
        self._answer: asyncio.Future[TokenOutput] | None = None
        self.asked: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        """Gets the tokens that the loop appended, when it asks for a turn."""
        self.refused: LoopError | None = None
        """The first refusal, should the loop catch it."""

    async def generate(
        self,
        request_id: str | None = None,  # noqa: ARG002 of verl
        *,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any] | None = None,
        **media: Any,
    ) -> TokenOutput:
        """Have the policy write a turn.

        Args:
            request_id: Of no account: a trajectory is one request.
            prompt_ids: All tokens so far, and those that are appended.
            sampling_params: As `run` got them; None is the same.
            media: verl's images and videos, all None.

        Raises:
            LoopError: The tokens do not extend those so far, or by some that the model does not have, another call is
                under way, or the parameters differ.
        """
        try:
            appended = self._asked_for(list(map(int, prompt_ids)), sampling_params or {}, media)
        except LoopError as error:
            self.refused = self.refused or error
            raise
        if self._num_turns_left == 0 or len(self._tokens) + len(appended) >= self._most:
            return TokenOutput(token_ids=[], log_probs=[], stop_reason="length")
        self._num_turns_left -= 1
        self._append(appended, 0)
        self._answer = asyncio.get_running_loop().create_future()
        self.asked.set_result(appended)
        return await self._answer

    def _asked_for(self, tokens: list[int], params: Mapping[str, Any], media: Mapping[str, Any]) -> list[int]:
        """What a call appends, if it may be made."""
        if self._answer is not None:
            raise LoopError("`generate` is called while another call is under way: a trajectory has one sequence")
        if any(self._sampling_params.get(name) != value for name, value in params.items()):
            raise LoopError(f"a turn is sampled with {self._sampling_params}, as all of the run, not with {params}")
        if given := [name for name, value in media.items() if value is not None]:
            raise LoopError(f"`generate` takes no {', '.join(given)}")
        appended = self._extension(tokens)
        if unknown := [token for token in appended if not 0 <= token < self._num_words]:
            raise LoopError(f"it appends token {unknown[0]}; the model has tokens 0 to {self._num_words - 1}")
        return appended

    def give(self, turn: Mapping[str, Any]) -> None:
        """Answer the call that is under way."""
        assert self._answer is not None
        answer, self._answer = self._answer, None
        self.asked = asyncio.get_running_loop().create_future()
        self._append(turn["token_ids"], 1)
        answer.set_result(
            TokenOutput(
                token_ids=list(turn["token_ids"]), log_probs=list(turn["logprobs"]), stop_reason=turn["finish_reason"]
            )
        )

    def check(self, output: Any) -> None:
        """Refuse an output that is not what was sampled; what stands behind the last turn may be anything."""
        tokens = [*output.prompt_ids, *output.response_ids]
        mask = [*([0] * len(output.prompt_ids)), *map(int, output.response_mask)]
        if len(mask) != len(tokens):
            raise LoopError(f"response_mask has {len(output.response_mask)} entries, response_ids has not")
        num_behind = len(self._extension(tokens))
        if mask != [*self._mask, *([0] * num_behind)]:
            raise LoopError("response_mask is not 1 for the tokens that `generate` gave, and 0 for all others")

    def _append(self, token_ids: Sequence[int], mark: int) -> None:
        self._tokens += token_ids
        self._mask += [mark] * len(token_ids)

    def _extension(self, tokens: list[int]) -> list[int]:
        known = self._tokens
        if tokens[: len(known)] == known:
            return tokens[len(known) :]
        pairs = enumerate(zip(tokens, known, strict=False))
        place = next((place for place, (own, other) in pairs if own != other), len(tokens))
        turned = "the prompt" if 1 not in self._mask[:place] else "what was sampled or appended"
        raise LoopError(
            f"its tokens do not go on from {turned}: of {len(known)} tokens so far, the one at {place} is "
            f"{known[place]}, not {tokens[place] if place < len(tokens) else 'there'}; append tokens to those so far, "
            "and render no earlier message again"
        )
