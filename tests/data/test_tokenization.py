# ruff: noqa: S106 these tokens are no passwords
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from rollpacker.config.sections.data import DataSection
from rollpacker.core.errors import ConfigError, DataError, ModelError
from rollpacker.core.ids import Domain
from rollpacker.data.chat_templates import JOINING_TEMPLATE, check_chat, has_chat_template
from rollpacker.data.tokenization import PromptTokenizer
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Prompt

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}"
    "{% endif %}<s> {{ m.content }} {% endfor %}{% if add_generation_prompt %}go{% endif %}"
)
VOCABULARY = {"<pad>": 0, "<s>": 1, "</s>": 2, "?": 3, "one": 4, "two": 5, "go": 6, ".": 7}


def save_tokenizer(folder, **special):
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(WordLevel(VOCABULARY, unk_token="?"))
    raw.pre_tokenizer = WhitespaceSplit()
    raw.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    raw.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="?", bos_token="<s>", **special).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def templated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("templated")
    return PromptTokenizer(save_tokenizer(folder, eos_token="</s>", pad_token="<pad>", chat_template=TEMPLATE))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return PromptTokenizer(save_tokenizer(tmp_path_factory.mktemp("bare"), eos_token="</s>"))


def chat(*messages, key="a"):
    made = tuple({"role": role, "content": content} for role, content in messages)
    return Prompt(key=key, domain=Domain("math"), messages=made, text=None, reference=AnswerReference(text=""))


def plain(text, key="a"):
    message = {"role": "user", "content": text}
    return Prompt(key=key, domain=Domain("math"), messages=(message,), text=text, reference=AnswerReference(text=""))


def test_messages_go_through_the_chat_template_whose_special_tokens_are_the_only_ones(templated):
    prompt = chat(("system", "one"), ("user", "two"))
    assert templated.text(prompt) == "<s> one <s> two go"
    assert templated.encode(prompt).tolist() == [1, 4, 1, 5, 6]


def test_a_plain_prompt_is_taken_as_it_is_with_the_tokenizers_own_special_tokens(templated):
    assert templated.text(plain("one two")) == "one two"
    assert templated.encode(plain("one two")).tolist() == [1, 4, 5]


def test_messages_without_a_template_are_refused_with_what_to_do(bare):
    with pytest.raises(ModelError, match="has no chat template, which the messages of prompt 'a-5' need") as caught:
        bare.encode(chat(("user", "one"), key="a-5"))
    assert "data.chat_template" in caught.value.remedy


def tokenizer_with(folder, **section):
    """Of a model whose own template is `TEMPLATE`."""
    if not (folder / "tokenizer.json").exists():
        save_tokenizer(folder, eos_token="</s>", chat_template=TEMPLATE)
    return PromptTokenizer(folder, DataSection(path=None, **section))


def test_a_template_of_ones_own_replaces_the_models(tmp_path):
    (tmp_path / "mine.jinja").write_text(JOINING_TEMPLATE + "{% if think %}two{% endif %}")
    tokenizer = tokenizer_with(tmp_path, chat_template=tmp_path / "mine.jinja", template_arguments={"think": True})
    assert tokenizer.text(chat(("system", "one"), ("user", "."))) == "one\n.\ntwo"


def test_tools_of_a_prompt_are_refused_where_the_template_does_not_read_them(tmp_path, templated):
    with_tools = replace(chat(("user", "one")), row={"tools": [{"name": "add"}]})
    with pytest.raises(ConfigError, match="The prompt 'a' has `tools`, and the chat template of the model"):
        templated.text(with_tools)
    (tmp_path / "mine.jinja").write_text(JOINING_TEMPLATE + "{{ tools[0].name }}")
    assert tokenizer_with(tmp_path, chat_template=tmp_path / "mine.jinja").text(with_tools) == "one\nadd"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"add_generation_prompts": True}, "Leave it out"), ({"messages": "one"}, "messages"), ({"lop": 1}, "loop")],
)
def test_an_argument_that_the_template_does_not_read_is_refused(tmp_path, arguments, words):
    with pytest.raises(ConfigError, match=words):
        tokenizer_with(tmp_path, template_arguments=arguments)


@pytest.mark.parametrize("content", [None, " \n", b"\xff"])
def test_a_template_file_that_cannot_be_used_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "t.jinja").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=r"data\.chat_template=.*t\.jinja"):
        tokenizer_with(tmp_path, chat_template=tmp_path / "t.jinja")


def test_a_template_that_is_no_jinja_is_named(tmp_path):
    (tmp_path / "t.jinja").write_text("{% if %}")
    with pytest.raises(ConfigError, match=r"data\.chat_template=.*t\.jinja holds a chat template that is no Jinja"):
        tokenizer_with(tmp_path, chat_template=tmp_path / "t.jinja").encode(chat(("user", "one")))


def test_the_system_prompt_is_for_messages_that_have_none(tmp_path):
    tokenizer = tokenizer_with(tmp_path, system_prompt="two")
    assert tokenizer.text(chat(("user", "one"))) == "<s> two <s> one go"
    assert tokenizer.text(chat(("system", "."), ("user", "one"))) == "<s> . <s> one go"


def test_plain_prompts_may_go_through_the_template_too(tmp_path):
    tokenizer = tokenizer_with(tmp_path, plain_as_chat=True, system_prompt="two")
    assert tokenizer.text(plain("one")) == "<s> two <s> one go"
    assert tokenizer.encode(plain("one")).tolist() == [1, 5, 1, 4, 6]


@pytest.mark.parametrize("saved_as", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_models_template_is_found_without_loading_its_tokenizer(tmp_path, saved_as):
    assert not has_chat_template(tmp_path)
    content = TEMPLATE if saved_as.endswith("jinja") else json.dumps({"chat_template": TEMPLATE})
    (tmp_path / saved_as).write_text(content)
    assert has_chat_template(tmp_path)


def test_a_model_saved_by_transformers_has_a_template_that_is_found(tmp_path):
    assert has_chat_template(save_tokenizer(tmp_path / "a", eos_token="</s>", chat_template=TEMPLATE))
    assert not has_chat_template(save_tokenizer(tmp_path / "b", eos_token="</s>"))


def test_what_tokenizing_would_stumble_over_is_found_before(tmp_path):
    bare = save_tokenizer(tmp_path / "bare", eos_token="</s>")
    (bare / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="has no chat template"):
        check_chat(DataSection(path=None), bare, [plain("one"), chat(("user", "one"))])
    with pytest.raises(ModelError, match="has no chat template"):
        check_chat(DataSection(path=None, plain_as_chat=True), bare, [plain("one")])
    with pytest.raises(ConfigError, match=r"data\.system_prompt is set, and the prompt 'a' is plain text"):
        check_chat(DataSection(path=None, system_prompt="two"), bare, [plain("one")])
    with pytest.raises(ConfigError, match=r"data\.template_arguments is set, and every prompt is plain text"):
        check_chat(DataSection(path=None, template_arguments={"think": True}), bare, [plain("one")])
    check_chat(DataSection(path=None), bare, [plain("one")])
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    check_chat(DataSection(path=None, chat_template=tmp_path / "t.jinja"), bare, [chat(("user", "one"))])


def test_many_prompts_come_back_in_order_as_int32(templated):
    prompts = [plain("one"), chat(("user", "two")), plain("two two")] * 700
    encoded = templated.encode_all(prompts)
    assert all(ids.dtype == np.int32 for ids in encoded)
    assert [ids.tolist() for ids in encoded] == [[1, 4], [1, 5, 6], [1, 5, 5]] * 700


def test_decoding_leaves_special_tokens_out_and_spaces_alone(templated):
    assert templated.decode(np.array([1, 4, 7, 5, 2, 0], dtype=np.int32)) == "one . two"


def test_the_end_of_sequence_token_stands_in_for_a_missing_padding_token(templated, bare):
    assert (templated.eos_token_id, templated.pad_token_id) == (2, 0)
    assert (bare.eos_token_id, bare.pad_token_id) == (2, 2)


def test_messages_that_the_template_refuses_are_named(templated):
    with pytest.raises(DataError, match=r"'a-17' \(roles: user, system\): system first"):
        templated.encode(chat(("user", "one"), ("system", "two"), key="a-17"))


CALLS = (
    "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name }}"
    "{% for key, value in call.function.arguments|items %} {{ key }}={{ value }}{% endfor %}{% endfor %}{% endfor %}"
)


def calling(arguments):
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    return replace(chat(), messages=({"role": "assistant", "content": "", "tool_calls": [call]},))


@pytest.mark.parametrize("arguments", ['{"a": 1, "b": [2]}', {"a": 1, "b": [2]}])
def test_a_template_gets_the_arguments_of_calls_as_objects_also_where_they_are_json(tmp_path, arguments):
    (tmp_path / "mine.jinja").write_text(CALLS)
    prompt = calling(arguments)
    assert tokenizer_with(tmp_path, chat_template=tmp_path / "mine.jinja").text(prompt) == "add a=1 b=[2]"
    assert prompt == calling(arguments)


def test_half_of_a_surrogate_pair_that_the_json_of_arguments_spells_is_replaced(tmp_path):
    (tmp_path / "mine.jinja").write_text(CALLS)
    tokenizer = tokenizer_with(tmp_path, chat_template=tmp_path / "mine.jinja")
    prompt = calling('{"a": "\\ud83d"}')
    assert tokenizer.text(prompt) == "add a=?"
    assert tokenizer.encode(prompt).tolist() == [3, 3, 3]  # add, a=, ?


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (CALLS, "Can only get item pairs from a mapping"),
        ("{{ messages[0].content.index('one') }}", "substring not found"),
        ("{{ 1 // (messages|length - 1) }}", "division"),
    ],
)
def test_whatever_a_template_raises_is_said_of_the_prompt(tmp_path, template, says):
    (tmp_path / "mine.jinja").write_text(template)
    with pytest.raises(DataError, match=rf"refuses the messages of prompt 'a' \(roles: assistant\): .*{says}"):
        tokenizer_with(tmp_path, chat_template=tmp_path / "mine.jinja").text(calling("[no JSON"))


def test_a_tokenizer_without_an_end_is_refused(tmp_path):
    with pytest.raises(ModelError, match="end-of-sequence"):
        PromptTokenizer(save_tokenizer(tmp_path))


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ModelError, match="no tokenizer"):
        PromptTokenizer(tmp_path)


def test_a_damaged_tokenizer_is_refused(tmp_path):
    save_tokenizer(tmp_path, eos_token="</s>")
    (tmp_path / "tokenizer.json").write_text("{broken")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        PromptTokenizer(tmp_path)


WORDS = {"<unk>": 0, "<s>": 1, "</s>": 2, "0": 3, "1": 4, "9": 5, "199": 6, ":": 7, "user": 8}


def word_tokenizer():
    raw = Tokenizer(WordLevel(WORDS, unk_token="<unk>"))
    raw.pre_tokenizer = WhitespaceSplit()
    return raw


def byte_tokenizer():
    alphabet = sorted(ByteLevel.alphabet())
    raw = Tokenizer(BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return raw


def save_as(folder, model_type, raw, **settings):
    """A directory whose tokenizer belongs to a model of a type."""
    from transformers import PreTrainedTokenizerFast

    template = "{% for m in messages %}{{ bos_token }} {{ m.role }} : {{ m.content }} {% endfor %}"
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": template}
    PreTrainedTokenizerFast(tokenizer_object=raw, **special).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | settings))
    return folder


@pytest.mark.parametrize(
    "model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "gpt2", "phi3", "deepseek_v3"]
)
@pytest.mark.parametrize("make", [word_tokenizer, byte_tokenizer])
@pytest.mark.parametrize("settings", [{}, {"add_bos_token": True}, {"clean_up_tokenization_spaces": True}])
def test_prompts_have_the_tokens_that_every_user_of_the_model_gives_them(tmp_path, model_type, make, settings):
    ours = PromptTokenizer(save_as(tmp_path, model_type, make(), **settings))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("0 199 :", "a\u0301 b  c", " 1 , 9 .\n"):
        assert ours.encode(plain(text)).tolist() == theirs(text)["input_ids"]
        messages = [{"role": "user", "content": text}]
        templated = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        assert ours.encode(chat(("user", text))).tolist() == templated
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_truncation_and_padding_that_a_tokenizer_file_has_stored_change_no_prompt(tmp_path):
    raw = word_tokenizer()
    raw.enable_truncation(max_length=2)
    raw.enable_padding(length=8)
    tokenizer = PromptTokenizer(save_as(tmp_path, "llama", raw))
    assert tokenizer.encode(plain("0 1 9 199 :")).tolist() == [3, 4, 5, 6, 7]
    assert [ids.tolist() for ids in tokenizer.encode_all([plain("0"), plain("1 9 1")])] == [[3], [4, 5, 4]]


def test_a_tokenizer_is_loaded_without_torch(tmp_path):
    save_tokenizer(tmp_path, eos_token="</s>", chat_template=TEMPLATE)
    program = (
        "import sys; from pathlib import Path; from rollpacker.data.tokenization import PromptTokenizer;"
        f"print(PromptTokenizer(Path({str(tmp_path)!r})).decode([4, 5]), 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "one two False\n"
    assert not result.stderr
