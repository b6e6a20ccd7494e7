"""A judge's model with torch and transformers: plain forward passes, for `protocols.judging.JudgeModel`.

Prompts are sorted by length and cut into batches of at most `max_batch_tokens`, padding included. They are padded on
the right, where a causal model does not look from the prompt's last token, so that no mask is needed and the logits are
those of the prompt alone. Only that last token's hidden state reaches the output layer: of a vocabulary of 152,000 the
logits of a whole batch would take gigabytes.

`reward.judge.engine=streamed` is the same judge with layers that stream from host memory (`layer_streaming`): the same
passes, bit-equal (a CPU's rounding of a pass of one token depends on the alignment of its weights).

Everything happens in one thread, so that the process answers meanwhile.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rollpacker.core.errors import EngineFailed, ModelError
from rollpacker.engines.judging import batches_by_length, check_candidates
from rollpacker.engines.torch.layer_streaming import StreamedLayers
from rollpacker.engines.torch.model_files import fix_longrope, load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollpacker.config.sections.judge import JudgeSection
    from rollpacker.protocols.rollout import TokenIds

T = TypeVar("T")


class TorchJudge:
    """Reads prompts with a model on the GPU that this process sees, else on the CPU.

    Args:
        section: Model, threads, tokens of a batch, and which share of the layers stays on the device.

    Raises:
        ModelError: The directory holds no model that transformers can load, or one without an output layer, or whose
            layers cannot be streamed.
    """

    def __init__(self, section: JudgeSection) -> None:
        self._max_batch_tokens = section.max_batch_tokens
        self._thread = ThreadPoolExecutor(1, "judge", lambda: torch.set_num_threads(section.num_threads))
        self._device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        self._model = load_model(section.model.directory, section.model.dtype, device="cpu")
        fix_longrope(self._model, section.max_prompt_tokens + 1)  # with the verdict, as vLLM counts
        self._num_words: int = self._model.config.get_text_config(decoder=True).vocab_size
        output_layer = self._model.get_output_embeddings()
        if output_layer is None:
            raise ModelError(
                f"{section.model.path} has no output layer over a vocabulary.",
                "A judge is a causal language model.",
                "Choose another reward.judge.model.path.",
            )
        self._last_B: torch.Tensor | None = None
        output_layer.register_forward_pre_hook(self._keep_last)
        resident_share = 1.0
        if section.engine == "streamed":
            resident_share = section.resident_share or 0.0
            if self._device.type == "cuda":
                torch.cuda.set_per_process_memory_fraction(section.memory_share, self._device)
        self._layers = StreamedLayers(
            self._model, self._device, resident_share=resident_share, num_slots=section.num_slots
        )
        self._layers.wake()

    async def next_token_logprobs(
        self, prompts: Sequence[TokenIds], candidates: Sequence[int]
    ) -> Sequence[tuple[float, ...]]:
        check_candidates(candidates, self._num_words)
        return await self._in_thread(lambda: self._read_all(prompts, candidates))

    async def sleep(self) -> None:
        """Move the weights to host memory."""
        await self._in_thread(self._layers.sleep)

    async def wake(self) -> None:
        await self._in_thread(self._layers.wake)

    async def describe_work(self) -> str:
        """Say how much was copied; a model that stays whole has nothing to say."""
        num_streamed, num_bytes = self._layers.num_streamed, self._layers.copied_bytes
        return f"Streamed judge: {num_bytes / 1e9:.2f} GB of {num_streamed} layers copied." if num_streamed else ""

    async def close(self) -> None:
        """End the thread; a batch under way ends first."""
        await asyncio.to_thread(self._thread.shutdown)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _read_all(self, prompts: Sequence[TokenIds], candidates: Sequence[int]) -> list[tuple[float, ...]]:
        answers: dict[int, tuple[float, ...]] = {}
        for indices in batches_by_length(prompts, self._max_batch_tokens):
            logprobs = self._read([prompts[index] for index in indices], candidates)
            answers |= zip(indices, logprobs, strict=True)
        return [answers[index] for index in range(len(prompts))]

    @torch.inference_mode()
    def _read(self, prompts: Sequence[TokenIds], candidates: Sequence[int]) -> list[tuple[float, ...]]:
        lengths_B = torch.tensor([len(prompt) for prompt in prompts])
        tokens_BT = torch.zeros((len(prompts), int(lengths_B.max())), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            tokens_BT[row, : len(prompt)] = torch.from_numpy(prompt)
        self._last_B = (lengths_B - 1).to(self._device)
        logits_BV = self._model(input_ids=tokens_BT.to(self._device), use_cache=False).logits[:, 0].float()
        chosen_BC = logits_BV.log_softmax(-1)[:, list(candidates)]
        if bool(chosen_BC.isnan().any()):
            raise EngineFailed(
                f"The judge's log-probabilities of a batch of {len(prompts)} prompts are not numbers.",
                "Weights and activations must be finite in the model's dtype.",
                "Try reward.judge.model.dtype=float32, and check the model's files.",
            )
        return [tuple(row) for row in chosen_BC.tolist()]

    def _keep_last(self, _module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Of the hidden states, let those of the last tokens through."""
        hidden_BTH, *others = inputs
        assert self._last_B is not None
        rows_B = torch.arange(len(self._last_B), device=hidden_BTH.device)
        return (hidden_BTH[rows_B, self._last_B].unsqueeze(1), *others)
