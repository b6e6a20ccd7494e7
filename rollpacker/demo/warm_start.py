"""Makes the small language model that the demo trains: Qwen3 with 0.1 M parameters, taught to imitate worked-out walks.

Invariant: the same seed, number of iterations and versions give the same files on the same machine; the number of
torch threads is the caller's, and one thread is fastest for a model of this size.

Numbers begin as points on circles of several wavelengths rather than as noise, so that near numbers are near from the
start and adding is a rotation. From noise, the same model is still wrong in every walk when this one has learnt them.

Qwen3, because that model type may have its own tokenizer, and a vocabulary of words keeps the task small. Of a Qwen2
model transformers takes the vocabulary alone, and cuts every number into digits.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from rollpacker.demo import task
from rollpacker.demo.task import WALKS, Language

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Shapes: B sequences, T tokens, V words, P places, H hidden size, C circles.

NUM_ITERATIONS = 1600
"""About 45 s on one core. The model can add after some 600 and arrives after some 1000; then only the habit is left."""

SEED = 1

LEARNING_RATE = 4e-3
RAMP_UP_ITERATIONS = 30
LAST_RATE_RATIO = 0.02
"""The rate falls linearly to this share."""

TOKENS_PER_BATCH = 1024
EXAMPLES_PER_DRAW = 1024
"""Sorted by length and cut into batches, so that little of a batch is padding."""

HIDDEN_SIZE = 64
INTERMEDIATE_SIZE = 256
NUM_HEADS = 2
HEAD_SIZE = 32
"""What vLLM on a processor can take."""

INITIAL_SPREAD = 0.1
"""Standard deviation of the initial weights. The usual 0.02 is meant for wider models and learns half as fast."""

NUM_CIRCLES = 12
"""Enough to tell all places apart. With more, a step is harder to learn: every circle turns by another angle."""

CIRCLE_RADIUS = 1.0
"""Far above the spread, so that a place is clear from the start."""

SHORTEST_WAVELENGTH = 3.0
"""Places. Tells neighbours apart."""

MAX_TOKENS = 512
"""Positions of the model: far beyond every right answer."""


def make_model(
    folder: Path,
    language: Language = WALKS,
    *,
    num_iterations: int = NUM_ITERATIONS,
    seed: int = SEED,
    on_iteration: Callable[[int, float], None] = lambda _iteration, _loss: None,
) -> None:
    """Write a warmed-up model and its tokenizer into a folder, as ordinary Hugging Face files.

    Args:
        folder: Created when missing.
        language: What it learns.
        num_iterations: Batches to imitate.
        seed: Of the initial weights and the examples.
        on_iteration: Told the number of finished iterations and the loss, nats per token.
    """
    model = _initial_model(seed, language)
    _imitate(model, num_iterations, _batches(language, random.Random(seed)), on_iteration)
    model.save_pretrained(folder)
    make_tokenizer(language).save_pretrained(folder)


def make_tokenizer(language: Language = WALKS) -> Any:
    """Build the tokenizer: one token per word between white space."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: token for token, word in enumerate(language.words)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=task.PAD))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=task.PAD, eos_token=task.END, model_max_length=MAX_TOKENS
    )


def _initial_model(seed: int, language: Language) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(language.words),
        hidden_size=HIDDEN_SIZE,
        intermediate_size=INTERMEDIATE_SIZE,
        num_hidden_layers=2,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=1,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=True,
        head_dim=HEAD_SIZE,
        initializer_range=INITIAL_SPREAD,
        bos_token_id=None,
        eos_token_id=task.WORDS.index(task.END),
        pad_token_id=task.WORDS.index(task.PAD),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        places_PH = model.model.embed_tokens.weight[task.FIRST_PLACE :][: task.NUM_PLACES]
        places_PH.zero_()
        places_PH[:, : 2 * NUM_CIRCLES] = _points_on_circles()
    return model


def _points_on_circles() -> torch.Tensor:
    """Place the numbers on circles, shape [P, 2 * C]. The longest wavelength is twice all places: near from far."""
    longest = 2.0 * task.NUM_PLACES
    wavelengths_C = torch.logspace(math.log10(SHORTEST_WAVELENGTH), math.log10(longest), NUM_CIRCLES)
    angles_PC = torch.arange(task.NUM_PLACES)[:, None] * (2 * math.pi / wavelengths_C)
    return CIRCLE_RADIUS * torch.cat([angles_PC.cos(), angles_PC.sin()], dim=1)


def _imitate(
    model: Any, num_iterations: int, batches: Iterator[_Batch], on_iteration: Callable[[int, float], None]
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for iteration in range(num_iterations):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * _rate_ratio(iteration, num_iterations)
        tokens_BT, targets_BT = next(batches)
        logits_BTV = model(tokens_BT).logits
        loss = functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=_NOT_LEARNED)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        on_iteration(iteration + 1, loss.item())


_NOT_LEARNED = -100
"""Marks targets that do not count: prompt and padding."""


def _rate_ratio(iteration: int, num_iterations: int) -> float:
    return min(1.0, (iteration + 1) / RAMP_UP_ITERATIONS) * max(LAST_RATE_RATIO, 1 - iteration / num_iterations)


class _Example(NamedTuple):
    tokens: list[int]
    num_prompt_tokens: int


_Batch = tuple[torch.Tensor, torch.Tensor]
"""Tokens and next tokens, both [B, T]."""


def _batches(language: Language, rng: random.Random) -> Iterator[_Batch]:
    """Yield without end."""
    token_of = {word: token for token, word in enumerate(language.words)}

    def example() -> _Example:
        prompt, answer = language.example(rng)
        words = prompt.split()
        return _Example([token_of[word] for word in (*words, *answer.split(), task.END)], len(words))

    while True:
        examples = sorted((example() for _ in range(EXAMPLES_PER_DRAW)), key=lambda example: len(example.tokens))
        batches: list[list[_Example]] = [[]]
        for longer in examples:
            if (len(batches[-1]) + 1) * len(longer.tokens) > TOKENS_PER_BATCH:
                batches.append([])
            batches[-1].append(longer)
        rng.shuffle(batches)
        for batch in batches:
            yield _to_tensors(batch)


def _to_tensors(examples: list[_Example]) -> _Batch:
    longest = len(examples[-1].tokens)
    padded = [example.tokens + [_PAD] * (longest - len(example.tokens)) for example in examples]
    sequences_BT = torch.tensor(padded)
    targets_BT = sequences_BT[:, 1:].clone()
    targets_BT[targets_BT == _PAD] = _NOT_LEARNED
    for row_T, example in zip(targets_BT, examples, strict=True):
        row_T[: example.num_prompt_tokens - 1] = _NOT_LEARNED
    return sequences_BT[:, :-1], targets_BT


_PAD = task.WORDS.index(task.PAD)
