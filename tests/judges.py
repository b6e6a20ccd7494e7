"""A tiny judge: a random chat model whose tokens are bytes, so that it reads any text."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rollpacker.config.sections.judge import JudgeSection
from rollpacker.config.sections.model import ModelSection

if TYPE_CHECKING:
    from pathlib import Path

TURN, END = "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for m in messages %}" + TURN + "{{ m.role }}\n{{ m.content }}" + END + "\n{% endfor %}"
    "{% if add_generation_prompt %}" + TURN + "assistant\n{% endif %}"
)

NUM_POSITIONS = 2048


def make_judge(folder: Path, seed: int = 0, *, scale: float = 4.0) -> Any:
    """Write model and tokenizer into a folder; gives the model. Its verdicts are as good as chance."""
    make_tokenizer().save_pretrained(folder)
    torch.manual_seed(seed)
    config = transformers.Qwen2Config(
        vocab_size=len(make_tokenizer()),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=NUM_POSITIONS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=make_tokenizer().eos_token_id,
        pad_token_id=None,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)  # far from uniform, so that a mistake shows
    model.save_pretrained(folder)
    return model


def make_tokenizer() -> Any:
    """Bytes, and the marks of a chat."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([TURN, END])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, chat_template=CHAT_TEMPLATE, model_max_length=NUM_POSITIONS
    )


def judge_section(folder: Path, **keys: Any) -> JudgeSection:
    """A judge of one-letter verdicts, as its tokens are."""
    given = {"yes": tuple("YTR"), "no": tuple("NFW"), "min_mass": 0.0, "max_prompt_tokens": NUM_POSITIONS - 8}
    return JudgeSection(model=ModelSection(path=folder, dtype="float32"), **(given | keys))


@torch.no_grad()
def first_token_logprobs(model: Any, prompt: Any) -> torch.Tensor:
    """Of the whole vocabulary, by a plain forward pass over one prompt."""
    return model(input_ids=torch.tensor([[int(token) for token in prompt]])).logits[0, -1].float().log_softmax(-1)


LETTERS = string.ascii_letters + string.digits + " .,\n"
