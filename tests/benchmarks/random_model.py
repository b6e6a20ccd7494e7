"""Make a small random model and a tokenizer trained on a prompt file's own text, to try the pipeline on real prompts.

    python -m tests.benchmarks.random_model prompts.jsonl DIR
    rollpacker train data.path=prompts.jsonl model.path=DIR reward=math system=rollpacker run.dir=runs/random

Its answers are noise and its reward is 0: what can be seen is whether prompts of that size and kind pass through
chat template, engines, reward, trainer and tables. Results: tests/benchmarks/results/deepmath_random_model.md.
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen2's, without tools."""


def texts_of(prompts: Path) -> list[str]:
    lines = [json.loads(line) for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [f"{line.get('prompt') or line['messages']} {line['ground_truth']}" for line in lines]


def train_tokenizer(texts: list[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE, the kind that Qwen2 has."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocabulary_size, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
        ),
    )
    pad, _, end = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=end, pad_token=pad, chat_template=CHAT_TEMPLATE)


def random_model(tokenizer: PreTrainedTokenizerFast, layers: int, hidden: int, positions: int) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=4 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 32,
            num_key_value_heads=max(1, hidden // 64),
            max_position_embeddings=positions,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--positions", type=int, default=2048)
    arguments = parser.parse_args()
    tokenizer = train_tokenizer(texts_of(arguments.prompts), arguments.vocabulary)
    model = random_model(tokenizer, arguments.layers, arguments.hidden, arguments.positions)
    tokenizer.save_pretrained(arguments.out)
    model.save_pretrained(arguments.out)
    print(f"{arguments.out}: {model.num_parameters():,} parameters, {len(tokenizer):,} tokens")


if __name__ == "__main__":
    main()
