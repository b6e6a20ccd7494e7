"""What an environment says, as tokens behind a turn: with the templates that families of models have."""

from __future__ import annotations

import dataclasses
import importlib.util
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollpacker.core.errors import ConfigError, DataError
from rollpacker.core.ids import Domain
from rollpacker.data.tokenization import PromptTokenizer
from rollpacker.data.turns import _MARKER, TurnRenderer
from rollpacker.environments.factory import try_observation
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Prompt
from tests.sim.composed import composed

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BRACKETS = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
OWN = {"chatml": CHATML, "mistral": BRACKETS}

SPECIAL = re.compile(r"<[|\uff5c][^<>\s]*[|\uff5c]>|<(?:start|end)_of_turn>|<\|turn>|<turn\|>")
"""Tokens of the templates, of which a tokenizer makes one piece each."""


@dataclass(frozen=True)
class Family:
    """How a family of models writes a turn: what the policy adds to the words, and what its template makes of that."""

    template: str
    """As TRL ships it, or of our own."""
    end: str = "<|im_end|>"
    opening: str = ""
    """Before the words, by the policy; behind what the template opens an answer with."""
    opened: str = ""
    """The end of that, if the template writes it before the last turn alone."""
    earlier: str = ""
    """What it writes in the place of both before an earlier turn."""
    earlier_end: str | None = None
    """Where an earlier turn ends in another way."""


THINKS, HARMONY = "hm</think>", "<|channel|>final<|message|>"
FAMILIES = {
    "chatml": Family("chatml"),
    "mistral": Family("mistral", opening=" ", earlier=" "),
    **{name: Family(name) for name in ("qwen2_5", "qwen3", "qwen3_instruct_2507", "lfm2")},
    **{name: Family(name, end="<|eot_id|>") for name in ("llama3", "llama3_1", "llama3_2")},
    **{name: Family(name, end="<end_of_turn>") for name in ("gemma", "gemma3")},
    "gemma4": Family("gemma4", end="<turn|>"),
    "cohere": Family("cohere", end="<|END_OF_TURN_TOKEN|>"),
    "cohere2": Family("cohere2", end="<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"),
    "qwen3_5_think": Family("qwen3_5_think", opening=f"{THINKS}\n\n", opened="<think>\n"),
    "nemotron_3_nano": Family("nemotron_3_nano", opening=THINKS, opened="<think>\n", earlier="<think></think>"),
    "glm4moe": Family("glm4moe", "<|user|>", f"\n<think>{THINKS}\n", earlier="\n<think></think>\n"),
    **{
        name: Family(name, "<\uff5cend▁of▁sentence\uff5c>", opening=THINKS, opened="<think>\n")
        for name in ("deepseekv3", "deepseek_r1_distill")
    },
    "gptoss": Family("gptoss", "<|return|>", HARMONY, earlier=HARMONY, earlier_end="<|end|>"),
}
WITH_TOOLS = ("qwen2_5", "qwen3", "llama3_1", "lfm2", "qwen3_5_think", "nemotron_3_nano", "glm4moe")


def template_of(name: str) -> str:
    """A template of our own, or one of TRL's, whose package is not imported: it would want others."""
    if name in OWN:
        return OWN[name]
    spec = importlib.util.find_spec("trl")
    assert spec is not None, "make install"
    return (Path(next(iter(spec.submodule_search_locations or ()))) / "chat_templates" / f"{name}.jinja").read_text()


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A byte-level tokenizer with the special tokens of all families."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", bos_token="<|bos|>")  # noqa: S106  # no password
    special = {token for family in FAMILIES.values() for token in SPECIAL.findall(template_of(family.template))}
    tokenizer.add_special_tokens({"additional_special_tokens": sorted({*special, "<|start|>", "<|end|>"})})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    return folder


def prompt(*messages: dict[str, Any], text: str | None = None) -> Prompt:
    return Prompt(key="p", domain=Domain("d"), messages=messages, text=text, reference=AnswerReference(text="1"))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def renderer_of(
    model_path: Any, family: str, *other_ends: str, opens_answer: bool = False
) -> tuple[PromptTokenizer, TurnRenderer]:
    tokenizer = PromptTokenizer(model_path, opens_answer=opens_answer)
    tokenizer._tokenizer.chat_template = template_of(FAMILIES[family].template)
    ends = [tokenizer.encode_text(end)[-1] for end in (FAMILIES[family].end, *other_ends)]
    return tokenizer, TurnRenderer(tokenizer, end_tokens=ends)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_conversation_of_sampled_and_appended_tokens_is_what_the_template_writes(model_path, name):
    """But for what a template would make of earlier turns, which stay as they were sampled."""
    tokenizer, renderer = renderer_of(model_path, name)
    family, numbers = FAMILIES[name], random.Random(name)
    for _ in range(100):
        first = prompt(user(_words(numbers)))
        tokens = [*tokenizer.encode(first).tolist(), *renderer.observation(first, "", [])]
        messages: list[dict[str, Any]] = []
        for _ in range(numbers.randrange(1, 4)):
            answer, reply = _words(numbers), _words(numbers)
            turn = tokenizer.encode_text(f"{family.opening}{answer}{family.end}")
            before = list(tokens)
            tokens += [*turn, *renderer.observation(first, reply, turn)]
            assert tokens[: len(before) + len(turn)] == before + turn, "token in, token out"
            messages += [{"role": "assistant", "content": answer}, user(reply)]
        rewritten = tokenizer.token_texts(tokens)
        if family.opening:
            rewritten = rewritten.replace(family.opened + family.opening, family.earlier)
        if family.earlier_end is not None:
            rewritten = rewritten.replace(family.end, family.earlier_end)
        assert rewritten == tokenizer.render(first, messages, opens_answer=True)


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_what_tools_return_follows_a_turn_as_the_template_writes_it_and_an_answer_begins(model_path, name):
    tokenizer, renderer = renderer_of(model_path, name)
    turn = tokenizer.encode_text(f"add{FAMILIES[name].end}")
    results = [{"role": "tool", "content": "3", "name": "add"}, {"role": "tool", "content": "44", "name": "add"}]
    following = tokenizer.token_texts(renderer.observation(prompt(user("hi")), results, turn))
    assert not following.startswith(FAMILIES[name].end), "written once"
    assert following.index("3") < following.index("44")
    opened = tokenizer.render(prompt(user("hi")), [], opens_answer=True)
    closed = tokenizer.render(prompt(user("hi")), [], opens_answer=False)
    assert following.endswith(opened.removeprefix(closed))


def _words(numbers: random.Random) -> str:
    return " ".join(numbers.choice(["go", "left", "3", "né", "<b>"]) for _ in range(numbers.randrange(1, 6)))


def test_an_observation_may_hold_any_word_also_the_one_that_stands_for_a_turn(model_path):
    tokenizer, renderer = renderer_of(model_path, "chatml")
    first, turn = prompt(user("hi")), tokenizer.encode_text("go<|im_end|>")
    text = f"a {_MARKER} b"
    following = tokenizer.token_texts(renderer.observation(first, text, turn))
    assert following == f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def test_a_turn_that_was_cut_is_closed_as_the_template_closes_it(model_path):
    tokenizer, renderer = renderer_of(model_path, "chatml")
    cut = tokenizer.encode_text("go lef")
    following = tokenizer.token_texts(renderer.observation(prompt(user("hi")), "on", cut))
    assert following.startswith("<|im_end|>\n<|im_start|>user\non")


@pytest.mark.parametrize(
    ("family", "end"),
    [("llama3_1", "<|eom_id|>"), ("cohere2", "<|END_OF_TURN_TOKEN|>"), ("gptoss", "<|call|>"), ("chatml", "<|bos|>")],
)
def test_a_turn_that_ended_with_another_of_the_models_end_tokens_is_not_closed_again(model_path, family, end):
    tokenizer, renderer = renderer_of(model_path, family, end)
    first, words = prompt(user("hi")), FAMILIES[family].opening + "add(1, 2)"

    def following(turn: str) -> str:
        return tokenizer.token_texts(renderer.observation(first, "on", tokenizer.encode_text(turn)))

    assert following(words + end) == following(words + FAMILIES[family].end)


def test_an_environment_that_says_nothing_leaves_the_policy_to_begin_and_to_go_on(model_path):
    tokenizer, renderer = renderer_of(model_path, "chatml")
    first, turn = prompt(user("hi")), tokenizer.encode_text("go<|im_end|>")
    assert tokenizer.token_texts(renderer.observation(first, [], [])) == "<|im_start|>assistant\n"
    assert tokenizer.token_texts(renderer.observation(first, [], turn)) == "\n<|im_start|>assistant\n"
    _, renderer = renderer_of(model_path, "chatml", opens_answer=True)
    assert (renderer.observation(first, [], []), renderer.observation(first, [], turn)) == ([], [])


def test_an_environment_that_speaks_first_is_a_message_of_the_user_before_the_answer(model_path):
    tokenizer, renderer = renderer_of(model_path, "chatml")
    system = prompt({"role": "system", "content": "play"})
    assert tokenizer.text(system) == "<|im_start|>system\nplay<|im_end|>\n"
    first = tokenizer.token_texts(renderer.observation(system, "You see a door.", []))
    assert first == "<|im_start|>user\nYou see a door.<|im_end|>\n<|im_start|>assistant\n"


def test_results_of_tools_are_messages_of_their_own_role_and_tokens_stay_as_they_are(model_path):
    tokenizer, _ = renderer_of(model_path, "chatml")
    renderer = TurnRenderer(tokenizer, keeps_special=True)
    turn = tokenizer.encode_text("<|start|>add(1, 2)<|im_end|>")
    assert renderer.action(turn) == renderer.spelled(turn) == "<|start|>add(1, 2)<|im_end|>"
    plain = TurnRenderer(tokenizer)
    assert (plain.action(turn), plain.spelled(turn)) == ("add(1, 2)", "<|start|>add(1, 2)<|im_end|>")
    results = [{"role": "tool", "content": "3"}, {"role": "tool", "content": "\ud800"}]
    following = tokenizer.token_texts(renderer.observation(prompt(user("hi")), results, turn))
    assert following == "\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>tool\n?<|im_end|>\n<|im_start|>assistant\n"
    assert renderer.observation(prompt(user("hi")), [5, 6], turn) == [5, 6]


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
    tokenizer, renderer = renderer_of(model_path, "chatml")
    plain = prompt(user("3 20 :"), text="3 20 :")
    assert list(renderer.observation(plain, "", [])) == []
    assert tokenizer.token_texts(renderer.observation(plain, "7", [1])) == "7"
    assert renderer.action(np.array(tokenizer.encode_text("+4 7<|im_end|>"))) == "+4 7"


@pytest.mark.parametrize("name", ["gemma4", "gptoss"])
def test_a_template_without_a_place_for_results_of_tools_is_refused_before_the_run(model_path, name):
    tools = "environment.tools=[rollpacker.environments.calculator:calculate]"
    config = composed("environment=tools", tools, f"model.path={model_path}", "data.path=x.jsonl", "run.dir=x")
    tokenizer, _ = renderer_of(model_path, name)
    with pytest.raises(DataError, match=r"leaves out a message of the role `tool`|refuses the messages of prompt 'p'"):
        try_observation(config, tokenizer, prompt(user("hi")))


def test_an_observation_is_tried_in_the_role_in_which_the_run_writes_it(model_path):
    gym = ("environment=gym", "environment.env=rollpacker.environments.walk_turns:WalkTurns")
    taskset = ("environment=verifiers", "environment.env=x")
    tokenizer, _ = renderer_of(model_path, "chatml")
    tokenizer._tokenizer.chat_template = CHATML.replace("in messages", "in messages if m.role != 'tool'")
    with_tools = dataclasses.replace(prompt(user("hi")), row={"ground_truth": "3 20", "tools": [{"name": "add"}]})

    def try_it(*words: str) -> None:
        config = composed(*words, f"model.path={model_path}", "data.path=x.jsonl", "run.dir=x")
        try_observation(config, tokenizer, with_tools)

    try_it(*gym)
    with pytest.raises(DataError, match="leaves out a message of the role `tool`"):
        try_it(*taskset)


def test_a_tokenizer_that_cannot_write_what_is_looked_for_refuses_no_run(model_path, monkeypatch):
    words = ("environment=gym", "environment.env=rollpacker.environments.walk_turns:WalkTurns")
    config = composed(*words, f"model.path={model_path}", "data.path=x.jsonl", "run.dir=x")
    tokenizer, _ = renderer_of(model_path, "chatml")
    monkeypatch.setattr(type(tokenizer), "token_texts", lambda *_: "<pad>")
    try_observation(config, tokenizer, prompt(user("hi")))


ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_what_an_environment_says_first_is_tried_behind_the_prompt_before_the_run(model_path):
    def try_it(env: str) -> None:
        words = ("environment=gym", f"environment.env=rollpacker.environments.{env}", "environment.max_restarts=0")
        config = composed(*words, f"model.path={model_path}", "data.path=x.jsonl", "run.dir=x")
        walk = dataclasses.replace(prompt(user("hi")), reference=AnswerReference(text="3 20"))
        try_observation(config, tokenizer, walk)

    tokenizer, _ = renderer_of(model_path, "chatml")
    try_it("frozen_lake:FrozenLake")
    tokenizer._tokenizer.chat_template = ALTERNATING
    try_it("walk_turns:WalkTurns")  # says nothing: the prompt says it all
    with pytest.raises(
        DataError, match=r"refuses the messages of prompt 'p' \(roles: user, user\): roles must alternate"
    ):
        try_it("frozen_lake:FrozenLake")
