"""What a judge reads: question, reference and response in the message of a template, as tokens of the judge's model.

    the judge's chat template( template( question, rubric or answer, fence, response, fence ) )  ->  verdict, a token

A response is the work of a policy that learns to please the judge, so it is kept in its place:

* what is filled in becomes tokens on its own, with special tokens read as plain text: no response can end its turn;
* it stands between two fences, lines with a digest of the response itself, which no response can contain;
* it is cut by tokens of its own. The template, the rubric and the answer are always whole.

Cutting: template and reference leave room in `max_prompt_tokens`. Where question and response have more tokens than
there is room for, each may take half, and what the other leaves; what is longer loses its middle, and a mark stands
there.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollpacker.core.errors import ConfigError, DataError
from rollpacker.data.model_files import check_model_files
from rollpacker.data.tokenization import check_template_arguments, load_tokenizer
from rollpacker.paths import read_text, reason_of
from rollpacker.protocols.references import AnswerReference, JudgeReference, Reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rollpacker.config.sections.judge import JudgeSection
    from rollpacker.config.sections.reward import RewardSection
    from rollpacker.protocols.reward import ScoringRequest
    from rollpacker.protocols.rollout import Prompt, TokenIds

TEMPLATE = Path(__file__).with_name("template.jinja")
"""What `reward.judge.template` replaces."""

VARIABLES = ("question", "response", "rubric", "answer", "fence", "is_truncated")

MIN_ROOM_TOKENS = 16
"""For question and response together; a judge that reads less judges nothing."""

_CUT = "\n[... the middle is left out ...]\n"
"""Stands where a text was cut."""

_FENCE_BYTES = 8
"""Of the digest: 2^64 responses would have to be tried to find one that contains its own fence."""

_PLACES = {name: f"\ue000{index}\ue001" for index, name in enumerate(VARIABLES[:-1])}
"""What stands for a variable while the template is laid out: characters for private use."""

_PLACE = re.compile("\ue000([0-9])\ue001")


_Layout = tuple[list[int] | str, ...]
"""Tokens that are always the same, and between them the names of variables."""


def dialogue(prompt: Prompt) -> str:
    """The question as the judge reads it: the messages without a chat template."""
    if len(prompt.messages) == 1:
        return str(prompt.messages[0]["content"])
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in prompt.messages)


def read_template(path: Path | None) -> str:
    """Read the template, and hold its variables against those that there are.

    Raises:
        ConfigError: It cannot be read, or does not show the response, or uses an unknown variable.
    """
    from jinja2 import TemplateSyntaxError, meta

    key = f"reward.judge.template={path}"
    try:
        text = read_text(path or TEMPLATE)
        used = meta.find_undeclared_variables(_environment().parse(text))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{key} cannot be read: {reason_of(error)}.",
            "It names a text file in UTF-8 that holds a Jinja template.",
            "Correct the path, or leave it out for the one that rollpacker has.",
        ) from error
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"{key} is no Jinja template: line {error.lineno}: {error.message}.",
            f"Its variables are {', '.join(VARIABLES)}.",
            "Correct it.",
        ) from error
    if unknown := sorted(used - set(VARIABLES)):
        raise ConfigError(
            f"{key} uses {', '.join(unknown)}.", f"Its variables are {', '.join(VARIABLES)}.", "Use one of these."
        )
    if missing := [name for name in ("question", "response", "fence") if name not in used]:
        raise ConfigError(
            f"{key} does not use {missing[0]}.",
            "A judge reads question and response, and the fence says where a response begins and ends.",
            f"Write {{{{ {missing[0]} }}}} where it belongs.",
        )
    return text


def check_rubrics(section: RewardSection, prompts: Iterable[Prompt], *, can_ask: bool = True) -> None:
    """Refuse what stands in a judge's way before it is loaded: template, verdicts, rubrics. Loads its tokenizer.

    Raises:
        ModelError: There is none.
        ConfigError: The template is none, or a verdict is not one token.
        DataError: The first prompt whose rubric leaves no room for what is judged.
    """
    if section.has_judge:
        check_model_files(section.judge.model.directory, is_trained=False, can_ask=can_ask)
        reader = JudgePrompts(section.judge)
        for prompt in prompts:
            if section.is_judged(prompt.domain):
                reader.check(prompt)


class JudgePrompts:
    """Makes what a judge reads.

    Raises:
        ModelError: The model's directory has no usable tokenizer.
        ConfigError: The template is none, or a verdict is not one token.
    """

    def __init__(self, section: JudgeSection) -> None:
        self._tokenizer: Any = load_tokenizer(section.model.directory)
        self._max_tokens = section.max_prompt_tokens
        self._arguments = section.template_arguments
        self._chat_template: str | None = self._tokenizer.chat_template
        check_template_arguments("reward.judge.template_arguments", self._arguments, self._chat_template or "")
        words = [("yes", word) for word in section.yes] + [("no", word) for word in section.no]
        self.candidates = tuple(self._verdict_token(key, word) for key, word in words)
        """The tokens of the words for yes, then of those for no."""
        if len(set(self.candidates)) < len(self.candidates):
            raise ConfigError(
                f"The words of reward.judge.yes and reward.judge.no are the tokens {list(self.candidates)}.",
                "Each one is another token.",
                "Leave out those that the judge's tokenizer does not tell apart.",
            )
        template = read_template(section.template)
        self._layouts = {
            key: self._lay_out(template, *key) for key in itertools.product((False, True), (False, True), (False, True))
        }
        self._cut = self._plain(_CUT)

    def encode(self, request: ScoringRequest) -> TokenIds:
        """Give the tokens that the judge reads, at most `max_prompt_tokens`, shape [T]."""
        rubric, answer = _parts(request.reference)
        texts = {"rubric": rubric, "answer": answer, "fence": _fence(request.response_text)}
        filled = {name: self._plain(text) for name, text in texts.items()}
        layout = self._layouts[bool(rubric), bool(answer), request.is_truncated]
        room = self._room(layout, filled)
        assert room >= MIN_ROOM_TOKENS, f"{request.request} was not checked"
        question, response = self._plain(request.prompt_text), self._plain(request.response_text)
        filled["question"] = self._shorten(question, max(room // 2, room - len(response)))
        filled["response"] = self._shorten(response, room - len(filled["question"]))
        parts = (filled[part] if isinstance(part, str) else part for part in layout)
        return np.fromiter(itertools.chain.from_iterable(parts), dtype=np.int32)

    def check(self, prompt: Prompt) -> None:
        """Refuse a prompt whose rubric and answer leave no room for what is judged.

        Raises:
            DataError: So it is.
        """
        rubric, answer = _parts(prompt.reference)
        layout = self._layouts[bool(rubric), bool(answer), True]
        fence = self._plain(_fence("")) * 2  # another digest may be more tokens
        room = self._room(layout, {"fence": fence})
        if room - len(rubric.encode()) - len(answer.encode()) >= MIN_ROOM_TOKENS:
            return  # a token has a byte at least
        filled = {"rubric": self._plain(rubric), "answer": self._plain(answer), "fence": fence}
        room = self._room(layout, filled)
        if room < MIN_ROOM_TOKENS:
            num_tokens = len(filled["rubric"]) + len(filled["answer"])
            raise DataError(
                f"{prompt.line}: rubric and reference answer of the prompt {prompt.key!r} have {num_tokens} tokens, "
                "too many for the judge to read a response beside them",
                f"Allowed: together with the judge's template {MIN_ROOM_TOKENS} tokens fewer than "
                f"reward.judge.max_prompt_tokens={self._max_tokens}",
                "Shorten them, or raise reward.judge.max_prompt_tokens",
            )

    def _room(self, layout: _Layout, filled: Mapping[str, Sequence[int]]) -> int:
        """Tokens that question and response may have together."""
        taken = sum(len(filled.get(part, ()) if isinstance(part, str) else part) for part in layout)
        return self._max_tokens - taken

    def _shorten(self, token_ids: list[int], room: int) -> list[int]:
        if len(token_ids) <= room:
            return token_ids
        kept = max(0, room - len(self._cut))
        head, tail = (kept + 1) // 2, kept // 2
        return [*token_ids[:head], *self._cut, *token_ids[len(token_ids) - tail :]][:room]

    def _plain(self, text: str) -> list[int]:
        """Tokens of a text in which special tokens are words like others."""
        encoded: list[int] = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)[
            "input_ids"
        ]
        return encoded

    def _lay_out(self, template: str, has_rubric: bool, has_answer: bool, is_truncated: bool) -> _Layout:
        from jinja2 import TemplateError

        present = {"rubric": has_rubric, "answer": has_answer}
        places = {name: place if present.get(name, True) else "" for name, place in _PLACES.items()}
        try:
            message = _environment().from_string(template).render(**places, is_truncated=is_truncated)
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                f"The judge's template cannot be filled in: {type(error).__name__}: {error}.",
                f"It writes texts and its variables, {', '.join(VARIABLES)}, and reaches nothing of Python.",
                "Correct the file of reward.judge.template.",
            ) from error
        text = self._as_chat(message)
        parts: list[list[int] | str] = [self._beginning()]
        for index, piece in enumerate(_PLACE.split(text)):
            if index % 2:
                parts.append(VARIABLES[int(piece)])
            elif piece:
                parts.append(self._tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"])
        num_responses = parts.count("response")
        if num_responses != 1:
            raise ConfigError(
                f"The judge's template shows the response {num_responses} times"
                + (" when there is a rubric." if has_rubric else "."),
                "It stands there once, as it is: neither filtered nor under a condition.",
                "Correct the file of reward.judge.template.",
            )
        return tuple(parts)

    def _as_chat(self, message: str) -> str:
        if self._chat_template is None:
            return message
        from jinja2 import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True, **self._arguments
            )
        except TemplateError as error:
            raise ConfigError(
                f"The chat template of reward.judge.model.path refuses a message of the user: {error}.",
                "A judge reads one message, and answers it.",
                "Choose a judge that chats, or other reward.judge.template_arguments.",
            ) from error
        return str(text)

    def _beginning(self) -> list[int]:
        """What the tokenizer puts before a text; a chat template contains it."""
        if self._chat_template is not None:
            return []
        begin = self._tokenizer.bos_token_id
        added = self._tokenizer("", add_special_tokens=True, verbose=False)["input_ids"]
        return [begin] if begin is not None and added[:1] == [begin] else []

    def _verdict_token(self, key: str, word: str) -> int:
        token_ids = self._plain(word)
        if len(token_ids) != 1:
            raise ConfigError(
                f"reward.judge.{key} names {word!r}, which is {len(token_ids)} tokens of the judge's tokenizer.",
                "A verdict is one token.",
                "Choose a word that is one, and ask for it in a template of your own (reward.judge.template).",
            )
        return token_ids[0]


def _environment() -> Any:
    """Read templates as transformers reads those of chats: a file from somewhere runs no code of its own here."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)


def _parts(reference: Reference) -> tuple[str, str]:
    """Rubric and answer, empty where there is none; that the reference is one for a judge was checked before."""
    match reference:
        case JudgeReference():
            return reference.rubric or "", reference.answer or ""
        case AnswerReference():
            return "", reference.text
    raise AssertionError(f"no judge reads {reference}")


def _fence(response: str) -> str:
    digest = hashlib.blake2b(response.encode(errors="surrogatepass"), digest_size=_FENCE_BYTES).hexdigest()
    return f"=== {digest} ==="
