"""What an environment says, as tokens behind a turn: with the templates that families of models have."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rollpacker.core.errors import ConfigError, DataError
from rollpacker.core.ids import Domain
from rollpacker.data.tokenization import PromptTokenizer
from rollpacker.data.turns import TurnRenderer
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Prompt

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = (
    "{% for m in messages %}{% set c = m.content.split('</think>')[-1] | trim %}"
    "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ c }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
BRACKETS = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
TURNS = (
    "{% for m in messages %}<|start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>model\n{% endif %}"
)
FAMILIES = {"qwen2.5": CHATML, "qwen3": THINKING, "llama3": HEADERS, "mistral": BRACKETS, "gemma": TURNS}

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A byte-level tokenizer with special tokens, as these families have."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")  # noqa: S106  # no password
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    return folder


def prompt(*messages: dict[str, Any], text: str | None = None) -> Prompt:
    return Prompt(key="p", domain=Domain("d"), messages=messages, text=text, reference=AnswerReference(text="1"))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def renderer_of(model_path: Any, family: str) -> tuple[PromptTokenizer, TurnRenderer]:
    tokenizer = PromptTokenizer(model_path, opens_answer=False)
    tokenizer._tokenizer.chat_template = FAMILIES[family]
    return tokenizer, TurnRenderer(tokenizer)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_of_sampled_and_appended_tokens_is_what_the_template_writes(model_path, family):
    """Of turns that a template would not change: then it can be compared with the template's own conversation."""
    tokenizer, renderer = renderer_of(model_path, family)
    numbers = random.Random(family)
    end = tokenizer.encode_text("<|im_end|>")
    for _ in range(200):
        first = prompt(user(_words(numbers)))
        tokens = [*tokenizer.encode(first).tolist(), *renderer.observation(first, "", [])]
        messages: list[dict[str, Any]] = []
        for _ in range(numbers.randrange(1, 4)):
            answer, reply = _words(numbers), _words(numbers)
            turn = [*tokenizer.encode_text((" " if family == "mistral" else "") + answer), *end]
            before = list(tokens)
            tokens += [*turn, *renderer.observation(first, reply, turn)]
            assert tokens[: len(before) + len(turn)] == before + turn, "token in, token out"
            messages += [{"role": "assistant", "content": answer}, user(reply)]
        assert tokenizer.token_texts(tokens) == tokenizer.render(first, messages, opens_answer=True)


def _words(numbers: random.Random) -> str:
    return " ".join(numbers.choice(["go", "left", "3", "né", "<b>"]) for _ in range(numbers.randrange(1, 6)))


def test_thinking_of_earlier_turns_stays_where_a_template_would_drop_it(model_path):
    tokenizer, renderer = renderer_of(model_path, "qwen3")
    turn = [*tokenizer.encode_text("<think>3 is odd</think>  go "), *tokenizer.encode_text("<|im_end|>")]
    following = renderer.observation(prompt(user("hi")), "left", turn)
    assert tokenizer.token_texts(following) == "\n<|im_start|>user\nleft<|im_end|>\n<|im_start|>assistant\n"


def test_a_turn_that_was_cut_is_closed_as_the_template_closes_it(model_path):
    tokenizer, renderer = renderer_of(model_path, "qwen2.5")
    cut = tokenizer.encode_text("go lef")
    following = tokenizer.token_texts(renderer.observation(prompt(user("hi")), "on", cut))
    assert following.startswith("<|im_end|>\n<|im_start|>user\non")


def test_an_environment_that_speaks_first_is_a_message_of_the_user_before_the_answer(model_path):
    tokenizer, renderer = renderer_of(model_path, "qwen2.5")
    system = prompt({"role": "system", "content": "play"})
    assert tokenizer.text(system) == "<|im_start|>system\nplay<|im_end|>\n"
    first = tokenizer.token_texts(renderer.observation(system, "You see a door.", []))
    assert first == "<|im_start|>user\nYou see a door.<|im_end|>\n<|im_start|>assistant\n"


def test_results_of_tools_are_messages_of_their_own_role_and_tokens_stay_as_they_are(model_path):
    tokenizer, _ = renderer_of(model_path, "qwen2.5")
    renderer = TurnRenderer(tokenizer, keeps_special=True)
    turn = tokenizer.encode_text("<|start|>add(1, 2)<|im_end|>")
    assert renderer.action(turn) == "<|start|>add(1, 2)<|im_end|>"
    results = [{"role": "tool", "content": "3"}, {"role": "tool", "content": "\ud800"}]
    following = tokenizer.token_texts(renderer.observation(prompt(user("hi")), results, turn))
    assert following == "\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>tool\n?<|im_end|>\n<|im_start|>assistant\n"
    assert renderer.observation(prompt(user("hi")), [5, 6], turn) == [5, 6]
    assert renderer.observation(prompt(user("hi")), [], []) == []


def test_tools_are_what_the_template_is_told_where_a_line_has_none(model_path):
    told = "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}" + CHATML
    tools = [{"type": "function", "function": {"name": "add"}}]
    with pytest.raises(ConfigError, match="does not read `tools`"):
        PromptTokenizer(model_path, tools=tools)
    tokenizer = PromptTokenizer(model_path)
    tokenizer._tokenizer.chat_template, tokenizer._tools = told, tools
    assert tokenizer.text(prompt(user("hi"))).startswith("add <|im_start|>user")
    with pytest.raises(DataError, match="plain text"):
        tokenizer.text(prompt(user("hi"), text="hi"))


def test_behind_a_plain_prompt_an_observation_is_its_text(model_path):
    tokenizer, renderer = renderer_of(model_path, "qwen2.5")
    plain = prompt(user("3 20 :"), text="3 20 :")
    assert list(renderer.observation(plain, "", [])) == []
    assert tokenizer.token_texts(renderer.observation(plain, "7", [1])) == "7"
    assert renderer.action(np.array(tokenizer.encode_text("+4 7<|im_end|>"))) == "+4 7"
