# ruff: noqa: S106 these tokens are no passwords
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from rollpacker.core.errors import DataError, ModelError
from rollpacker.core.ids import Domain
from rollpacker.data.tokenization import PromptTokenizer, select_fitting
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
    return Prompt(key=key, domain=Domain("math"), messages=made, text=None, ground_truth="")


def plain(text, key="a"):
    message = {"role": "user", "content": text}
    return Prompt(key=key, domain=Domain("math"), messages=(message,), text=text, ground_truth="")


def test_messages_go_through_the_chat_template_whose_special_tokens_are_the_only_ones(templated):
    prompt = chat(("system", "one"), ("user", "two"))
    assert templated.text(prompt) == "<s> one <s> two go"
    assert templated.encode(prompt).tolist() == [1, 4, 1, 5, 6]


def test_a_plain_prompt_is_taken_as_it_is_with_the_tokenizers_own_special_tokens(templated):
    assert templated.text(plain("one two")) == "one two"
    assert templated.encode(plain("one two")).tolist() == [1, 4, 5]


def test_without_a_template_the_contents_are_joined_with_newlines(bare):
    prompt = chat(("system", "one"), ("user", "two"))
    assert bare.text(prompt) == "one\ntwo"
    assert bare.encode(prompt).tolist() == [1, 4, 5]


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


def test_long_prompts_are_dropped_and_counted(templated):
    prompts = [plain("one", "a"), plain("one two one", "b"), plain("two two", "c")]
    kept, num_dropped = select_fitting(prompts, templated, 3)
    assert [(prompt.key, ids.tolist()) for prompt, ids in kept] == [("a", [1, 4]), ("c", [1, 5, 5])]
    assert num_dropped == 1


def test_it_is_an_error_when_no_prompt_fits(templated):
    with pytest.raises(DataError, match="max_prompt_tokens=1") as caught:
        select_fitting([plain("one"), plain("one two")], templated, 1)
    assert "The shortest has 2, the longest 3" in str(caught.value)


def test_a_tokenizer_without_an_end_is_refused(tmp_path):
    with pytest.raises(ModelError, match="end-of-sequence"):
        PromptTokenizer(save_tokenizer(tmp_path))


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ModelError, match="no tokenizer"):
        PromptTokenizer(tmp_path)


def test_a_damaged_tokenizer_is_refused(tmp_path):
    save_tokenizer(tmp_path, eos_token="</s>")
    (tmp_path / "tokenizer.json").write_text("{broken")
    with pytest.raises(ModelError, match="cannot be loaded"):
        PromptTokenizer(tmp_path)


def test_a_tokenizer_file_is_read_as_transformers_would_but_without_torch(tmp_path):
    save_tokenizer(tmp_path, eos_token="</s>", chat_template=TEMPLATE)
    program = (
        "import sys; from pathlib import Path; from rollpacker.data.tokenization import PromptTokenizer;"
        f"print(PromptTokenizer(Path({str(tmp_path)!r})).decode([4, 5]), 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "one two False\n"
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    prompt = chat(("system", "one"), ("user", "two"))
    ids = theirs.apply_chat_template(list(prompt.messages), add_generation_prompt=True)["input_ids"]
    assert PromptTokenizer(tmp_path).encode(prompt).tolist() == ids
    assert PromptTokenizer(tmp_path).encode(plain("one two")).tolist() == theirs("one two")["input_ids"]
