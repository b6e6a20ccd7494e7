"""A Hugging Face model's forward pass over a micro-batch.

Scored whole, the logits of all response tokens exist at a time, several times over: [N, V], the largest tensors of all.
Scored in chunks, the output layer gives scores instead of logits: it takes C tokens after the others, and its backward
pass computes the logits of each chunk once more. Values and gradients are the same to rounding.

Shapes: B rows, T positions, K last positions that are scored, V vocabulary, H width of the model, N response tokens of
the rows one after the other, C tokens of a chunk.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from rollpacker.core.errors import ModelError
from rollpacker.trainers.losses import score_tokens
from rollpacker.trainers.policy import Scores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rollpacker.trainers.microbatches import MicroBatch

_Score = Callable[["Tensor", "Tensor"], "tuple[Tensor, ...]"]
"""`score_tokens` of logits and token ids."""

_CHANGES_OF_LOGITS = (
    "final_logit_softcapping",  # Gemma
    "logit_scale",  # Cohere
    "logits_scaling",  # Granite
    "lm_head_multiplier",  # Falcon-H1
    "logits_soft_cap",  # RecurrentGemma
    "output_logit_soft_cap",  # xLSTM
    "unpadded_vocab_size",  # Inkling
)
"""What configurations call a change of the logits after the output layer; a factor of 1 makes a copy of them, too."""


def score_microbatch(
    model: Any,
    microbatch: MicroBatch,
    temperature: float,
    chunk_tokens: int | None = None,
    *,
    has_entropy_gradient: bool = False,
) -> Scores:
    """Return log-probabilities of the response tokens, and entropies and variances of their positions.

    `chunk_tokens` is C; None scores whole, as models that change their logits after the output layer are scored anyway.

    Raises:
        ModelError: The model changes them, and its configuration does not tell.
    """
    score = functools.partial(score_tokens, temperature=temperature, has_entropy_gradient=has_entropy_gradient)
    if chunk_tokens is None or _changes_logits(model):
        return _score_whole(model, microbatch, score)
    with _scoring_output(model, microbatch, score, chunk_tokens) as made:
        output = _forward(model, microbatch)
    (scores_N3,) = made
    if _is_changed(output.logits, scores_N3):
        raise ModelError(
            f"{type(model).__name__} changes its logits after the output layer, so they cannot be scored in chunks",
            "trainer.logits_chunk_tokens takes models whose logits are the output layer's",
            "Set trainer.logits_chunk_tokens=null",
        )
    # What the model returned, not what the layer made: FSDP2 waits for the gradient of the former.
    return scores_of_chunks(output.logits, has_entropy_gradient=has_entropy_gradient)


def score_in_chunks(
    score: Callable[[Tensor, Tensor], tuple[Tensor, ...]], hidden_NH: Tensor, ids_N: Tensor, chunk_tokens: int
) -> Tensor:
    """Return what `scores_of_chunks` takes, [N, 3]; a chunk's backward pass calls `score` once more.

    Args:
        score: Log-probabilities with gradient, entropies with or without, variances without, [C] each, of C hidden
            states and tokens.
        hidden_NH: What the output layer takes, of any shape between N and H.
        ids_N: The tokens.
        chunk_tokens: C.
    """

    def stacked(hidden_CH: Tensor, ids_C: Tensor) -> Tensor:
        return torch.stack(score(hidden_CH, ids_C), dim=-1)

    chunks = zip(torch.split(hidden_NH, chunk_tokens), torch.split(ids_N, chunk_tokens), strict=True)
    return torch.cat(
        [
            checkpoint(stacked, hidden_CH, ids_C, use_reentrant=False, preserve_rng_state=False)
            for hidden_CH, ids_C in chunks
        ]
    )


def scores_of_chunks(scores_N3: Tensor, *, has_entropy_gradient: bool) -> Scores:
    """Take the result of `score_in_chunks` apart."""
    logprobs_N, entropies_N, variances_N = scores_N3.unbind(-1)
    entropies_N = entropies_N if has_entropy_gradient else entropies_N.detach()
    return Scores(logprobs_N=logprobs_N, entropies_N=entropies_N, variances_N=variances_N.detach())


def _score_whole(model: Any, microbatch: MicroBatch, score: _Score) -> Scores:
    # The few architectures that ignore logits_to_keep return all T positions.
    logits_BKV = _forward(model, microbatch).logits[:, -microbatch.num_scored :]
    scores = score(logits_BKV, microbatch.target_ids_BK)
    logprobs_N, entropies_N, variances_N = (each_BK[microbatch.is_sampled_BK] for each_BK in scores)
    return Scores(logprobs_N=logprobs_N, entropies_N=entropies_N, variances_N=variances_N)


def _forward(model: Any, microbatch: MicroBatch) -> Any:
    return model(input_ids=microbatch.input_ids_BT, use_cache=False, logits_to_keep=microbatch.num_scored)


def _changes_logits(model: Any) -> bool:
    config = model.config.get_text_config(decoder=True)
    return any(getattr(config, name, None) is not None for name in _CHANGES_OF_LOGITS)


def _is_changed(logits_N3: Tensor, scores_N3: Tensor) -> bool:
    """Whether a model returns something else than its output layer gave it: a copy, a part, or changed in place."""
    is_whole = logits_N3.data_ptr() == scores_N3.data_ptr() and logits_N3.shape == scores_N3.shape
    return not is_whole or scores_N3._version > 0  # noqa: SLF001  (torch has no other name for it)


@contextlib.contextmanager
def _scoring_output(model: Any, microbatch: MicroBatch, score: _Score, chunk_tokens: int) -> Iterator[list[Tensor]]:
    """Let the output layer give scores, [N, 3], in place of logits; yields a list that takes them.

    Within the model's own forward pass, because FSDP2 gathers the layer's weights there, and again for the backward
    pass.
    """
    layer = model.get_output_embeddings()
    project = layer.forward
    made: list[Tensor] = []

    def of_chunk(hidden_CH: Tensor, ids_C: Tensor) -> tuple[Tensor, ...]:
        return score(project(hidden_CH), ids_C)

    def of_all(hidden_BTH: Tensor) -> Tensor:
        is_sampled_BK = microbatch.is_sampled_BK
        hidden_NH = hidden_BTH[:, -microbatch.num_scored :][is_sampled_BK]
        made.append(score_in_chunks(of_chunk, hidden_NH, microbatch.target_ids_BK[is_sampled_BK], chunk_tokens))
        return made[0]

    layer.forward = of_all
    try:
        yield made
    finally:
        layer.forward = project
