# ruff: noqa: S106 these tokens are no passwords
"""Prompts that are too long, with a real tokenizer of one token per word."""

from dataclasses import replace

import pytest

from rollpacker.config.sections.data import DataSection
from rollpacker.core.errors import DataError
from rollpacker.core.ids import Domain
from rollpacker.data.fitting import fit_prompts
from rollpacker.data.tokenization import PromptTokenizer
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Prompt
from tests.data.test_tokenization import TEMPLATE, chat, save_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    return PromptTokenizer(save_tokenizer(folder, eos_token="</s>", chat_template=TEMPLATE))


def plain(text, key="a", domain="math"):
    messages = ({"role": "user", "content": text},)
    return Prompt(
        key=key, domain=Domain(domain), messages=messages, text=text, reference=AnswerReference(text="the answer")
    )


def fit(tokenizer, prompts, limit, long_prompts="drop"):
    return fit_prompts(prompts, tokenizer, DataSection(path=None, max_prompt_tokens=limit, long_prompts=long_prompts))


def texts(fitting):
    return {key: tokenized.prompt.text or tokenized.prompt.messages for key, tokenized in fitting.prompts.items()}


MIXED = [
    plain("one", "a"),
    plain("one two one", "b"),
    plain("two two", "c"),
    plain("one one one", "d", "code"),
    plain("two", "e", "code"),
]


def test_long_prompts_are_dropped_and_counted_by_domain(tokenizer):
    fitting = fit(tokenizer, MIXED, 3)
    assert [(key, prompt.token_ids.tolist()) for key, prompt in fitting.prompts.items()] == [
        ("a", [1, 4]),
        ("c", [1, 5, 5]),
        ("e", [1, 5]),
    ]
    assert (fitting.num_dropped, fitting.num_shortened) == ({"math": 1, "code": 1}, {})
    section = DataSection(path=None, max_prompt_tokens=3)
    assert fitting.notes(section) == [
        "Dropped 2 prompts of more than data.max_prompt_tokens=3 tokens (math 1, code 1)."
    ]


@pytest.mark.parametrize(("end", "kept"), [("left", " . two"), ("right", "one . ")])
def test_plain_text_is_shortened_at_the_chosen_end_and_keeps_its_place_and_its_reference(tokenizer, end, kept):
    prompts = [plain("one . two", "long"), plain("two", "short")]
    fitting = fit(tokenizer, prompts, 3, f"truncate_{end}")
    assert texts(fitting) == {"long": kept, "short": "two"}
    long = fitting.prompts["long"]
    assert tokenizer.encode(long.prompt).tolist() == long.token_ids.tolist()
    assert long.prompt.reference == AnswerReference(text="the answer")
    assert (fitting.num_dropped, fitting.num_shortened) == ({}, {"math": 1})


@pytest.mark.parametrize(("end", "kept"), [("left", " . two"), ("right", "one . ")])
def test_of_messages_only_the_users_longest_is_shortened_and_the_frame_stays_whole(tokenizer, end, kept):
    prompt = chat(("system", "one one one one"), ("user", "two"), ("assistant", "one"), ("user", "one . two"))
    fitting = fit(tokenizer, [prompt], 14 - 1, f"truncate_{end}")
    [short] = fitting.prompts.values()
    assert [message["content"] for message in short.prompt.messages] == ["one one one one", "two", "one", kept]
    assert tokenizer.text(short.prompt).endswith("go")
    assert len(short.token_ids) == 13


@pytest.mark.parametrize(("end", "kept"), [("left", " . two\none two"), ("right", "one . \none two")])
def test_the_suffix_stays_whole_where_a_prompt_is_shortened(tokenizer, end, kept):
    prompts = [replace(plain("one . two\none two"), suffix="one two"), plain("one", "short")]
    fitting = fit(tokenizer, prompts, 5, f"truncate_{end}")
    assert texts(fitting)["a"] == kept
    fitting = fit(tokenizer, prompts, 3, f"truncate_{end}")
    assert list(fitting.prompts) == ["short"]


def test_what_does_not_fit_even_when_shortened_is_dropped(tokenizer):
    prompts = [chat(("system", "one one one one"), ("user", "two two"), key="a"), chat(("user", "one"), key="b")]
    fitting = fit(tokenizer, prompts, 6, "truncate_left")
    assert list(fitting.prompts) == ["b"]
    assert (fitting.num_dropped, fitting.num_shortened) == ({"math": 1}, {})


def test_long_prompts_may_be_an_error(tokenizer):
    with pytest.raises(DataError, match=r"2 prompts have more than .*=3 tokens, such as 'b' with 4, 'd' with 4"):
        fit(tokenizer, MIXED, 3, "error")
    assert len(fit(tokenizer, MIXED, 4, "error").prompts) == 5


def test_a_domain_of_which_nothing_is_left_is_an_error(tokenizer):
    with pytest.raises(DataError, match=r"None of the 2 prompts of domain 'math' has at most .*max_prompt_tokens=2"):
        fit(tokenizer, [plain("one one one"), plain("one two", "b"), plain("one", "c", "code")], 2)


def test_text_outside_of_the_vocabulary_is_counted_and_one_prompt_with_it_named(tokenizer):
    fitting = fit(tokenizer, [plain("one"), plain("one 日本語", "b"), plain("xyz two", "c")], 8)
    assert fitting.unknown == ["b", "c"]
    (note,) = fitting.notes(DataSection(path=None))
    assert note.startswith("2 of 3 prompts hold text that the model's tokenizer does not know, such as 'b':")


def test_a_prompt_without_a_token_is_an_error(tokenizer):
    with pytest.raises(DataError, match="Prompt 'a' has no token"):
        fit_prompts([plain("one")], _Mute(), DataSection(path=None))


class _Mute:
    """A tokenizer that knows no character."""

    def encode_all(self, prompts):
        return [[] for _ in prompts]
