"""A tiny real model on disk, and groups whose log-probabilities it really has."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rollpacker.config.sections.trainer import TrainerSection
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, VersionSpan
from rollpacker.protocols.rollout import FinishReason, Response, RolloutGroup
from rollpacker.trainers.grpo import GrpoTrainer
from rollpacker.trainers.torch_policy import TorchPolicy
from tests.trainers.ranks import Ranks
from tests.trainers.streaming import MAX_RESPONSE_TOKENS, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rollpacker.protocols.trainer import BatchShape

VOCABULARY = 24


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _config(num_layers: int, *, is_tied: bool = True) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=is_tied,
        initializer_range=0.3,
        attention_dropout=0.5,  # Engines sample without dropout, so a trainer that applies it is found out.
        eos_token_id=1,
        pad_token_id=0,
    )


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete Hugging Face directory: random Qwen2 with tied embeddings, and a tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    Qwen2ForCausalLM(_config(num_layers=2)).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCABULARY)}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w0")  # noqa: S106  # no passwords
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def other_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with one layer less."""
    folder = tmp_path_factory.mktemp("other_model")
    Qwen2ForCausalLM(_config(num_layers=1)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def untied_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, and an output layer that is not the embedding."""
    folder = tmp_path_factory.mktemp("untied_model")
    Qwen2ForCausalLM(_config(num_layers=1, is_tied=False)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    """Two processes that are one trainer's ranks after another's; they start with the first function that they run."""
    ranks = Ranks(2)
    yield ranks
    ranks.close()


@functools.cache
def _initial_policy(model_path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model_path).eval()


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What the tests build with."""

    model_path: Path

    def trainer(
        self, *, dtype: str = "float32", temperature: float = 1.0, num_steps: int = 10, **section: object
    ) -> GrpoTrainer:
        defaults: dict[str, object] = {"learning_rate": 1e-3, "max_tokens_per_microbatch": 64}
        checked = TrainerSection(**{**defaults, **section})
        policy = TorchPolicy(self.model_path, checked, model_dtype=dtype, temperature=temperature, seed=0)
        return GrpoTrainer(policy, checked, num_steps=num_steps)

    def groups(
        self, rewards: Sequence[Sequence[float]], *, version: int = 0, seed: int = 0, temperature: float = 1.0
    ) -> list[RolloutGroup]:
        """One group per row of rewards, with random tokens of mixed lengths and the initial policy's logprobs."""
        generator = np.random.default_rng(seed)
        model = _initial_policy(self.model_path)
        groups = []
        for index, row in enumerate(rewards):
            prompt_ids = generator.integers(2, VOCABULARY, generator.integers(1, 6)).astype(np.int32)
            responses = []
            for sample in range(len(row)):
                length = int(generator.integers(1, MAX_RESPONSE_TOKENS + 1))
                is_cut = length == MAX_RESPONSE_TOKENS
                token_ids = generator.integers(1, VOCABULARY, length).astype(np.int32)
                logprobs = self.logprobs(model, prompt_ids, token_ids, temperature).detach().numpy()
                responses.append(
                    Response(
                        request=RequestId(version, PromptId(0, f"p{index}"), sample),
                        engine=EngineId("engine-0"),
                        finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
                        token_ids=token_ids,
                        logprobs=logprobs.astype(np.float32),
                        spans=(VersionSpan(policy_version=version, num_tokens=length),),
                        queue_time_s=0.0,
                        generation_time_s=0.0,
                    )
                )
            groups.append(
                RolloutGroup(
                    prompt=PromptId(0, f"p{index}"),
                    domain=Domain("math"),
                    prompt_token_ids=prompt_ids,
                    responses=tuple(responses),
                    rewards=tuple(row),
                )
            )
        return groups

    @staticmethod
    def logprobs(
        model: torch.nn.Module, prompt_ids: np.ndarray, token_ids: np.ndarray, temperature: float
    ) -> torch.Tensor:
        """One unpadded response at a time, the obvious way."""
        ids = torch.tensor(np.concatenate([prompt_ids, token_ids]).astype(np.int64))[None]
        logits = model(input_ids=ids).logits[0, len(prompt_ids) - 1 : -1] / temperature
        return torch.log_softmax(logits, -1)[torch.arange(len(token_ids)), ids[0, len(prompt_ids) :]]

    def shape(self, groups: Sequence[RolloutGroup], *, step: int = 0, version: int = 0) -> BatchShape:
        return dataclasses.replace(shape_of(groups, version), step=step)


@pytest.fixture
def bench(model_path: Path) -> Bench:
    return Bench(model_path=model_path)
