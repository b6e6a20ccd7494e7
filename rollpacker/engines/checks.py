"""What every engine refuses before it touches anything: requests it cannot serve, weights of another model."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rollpacker.core.errors import EngineRaised, ImpossibleEvent, WeightSyncFailed
from rollpacker.core.ids import EngineId, RequestId, sampled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from rollpacker.protocols.rollout import GenerationRequest


NO_VERSION = -1
"""`EngineStats.policy_version` while no policy is held."""


def require_policy(engine: EngineId, policy_version: int) -> None:
    """Refuse requests while no policy is held."""
    if policy_version == NO_VERSION:
        raise ImpossibleEvent(
            f"{engine} was asked to generate while it holds no policy.",
            "Weights are loaded first, also after a sleep.",
            "Call load_weights.",
        )


def require_idle(engine: EngineId, wish: str, num_in_flight: int) -> None:
    """Refuse a wish, such as `sleep`, while requests are in flight."""
    if num_in_flight:
        raise ImpossibleEvent(
            f"{engine} was asked to {wish} with {num_in_flight} requests in flight.",
            "Nothing may be in flight.",
            "Abort the requests, or wait for them.",
        )


def require_loadable(engine: EngineId, num_in_flight: int, *, is_asleep: bool) -> None:
    """Refuse weights while requests are in flight or the engine sleeps."""
    require_idle(engine, "load weights", num_in_flight)
    if is_asleep:
        raise ImpossibleEvent(f"{engine} was asked to load weights while it sleeps.", "Wake it first.", "")


def check_ids(requests: Sequence[GenerationRequest]) -> None:
    """Refuse a call that gives an id to two of its requests."""
    for request, count in Counter(each.request for each in requests).items():
        if count > 1:
            raise ImpossibleEvent(f"Request {request} is given {count} times in one call.", "An id is used once.")


def check_request(request: GenerationRequest, max_tokens_per_seq: int) -> None:
    """Refuse a request that does not fit into a sequence."""
    num_prompt, num_response = len(request.prompt_token_ids), request.max_response_tokens
    if num_prompt < 1 or num_response < 1 or num_prompt + num_response > max_tokens_per_seq:
        raise ImpossibleEvent(
            f"Request {request.request} has {num_prompt} prompt tokens and asks for {num_response} more.",
            f"Both are at least 1, and together at most {max_tokens_per_seq}, what the engine was made for.",
            "Drop longer prompts by data.max_prompt_tokens.",
        )


def logits_not_finite(request: RequestId) -> EngineRaised:
    """Of a model whose weights are not finite numbers, or so large that a sum of theirs is not."""
    return EngineRaised(
        "The model's logits are not finite numbers.",
        f"Seen in {request}. A model with finite weights of usual size has finite logits.",
        "If training made them so, lower trainer.learning_rate or trainer.max_grad_norm.",
    )


def check_begun(engine: EngineId, request: GenerationRequest, policy_version: int) -> None:
    """Refuse to go on with what has all its tokens, or was begun by a policy that the request does not allow."""
    if request.begun is None:
        return
    if request.begun.num_tokens >= request.max_response_tokens:
        raise ImpossibleEvent(
            f"{request.request} was begun with {request.begun.num_tokens} tokens.",
            f"Its response has at most {request.max_response_tokens}.",
        )
    oldest = request.oldest_policy_version
    legal = range(policy_version if oldest is None else oldest, policy_version + 1)
    for span in sampled(request.begun.spans):
        if span.policy_version not in legal:
            raise ImpossibleEvent(
                f"{request.request} was begun by policy version {span.policy_version}.",
                f"{engine} holds version {policy_version}"
                + (", and responses mix none." if oldest is None else f", and tokens may be as old as {oldest}."),
            )


def check_fit(engine: EngineId, held: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> None:
    """Refuse weights of another model, before the first tensor is touched. Only names, shapes and dtypes matter."""
    missing, unexpected = sorted(held.keys() - given.keys()), sorted(given.keys() - held.keys())
    if missing or unexpected:
        raise WeightSyncFailed(
            f"{engine} was sent other tensors than its model has: missing {missing}, unexpected {unexpected}.",
            f"Exactly the {len(held)} names of the model's state dict, tied tensors once.",
            "Give trainer and engine the same model.path.",
        )
    for name, tensor in held.items():
        other = given[name]
        if other.shape != tensor.shape or other.dtype != tensor.dtype:
            raise WeightSyncFailed(
                f"{engine} was sent {name} as {other.dtype} of shape {tuple(other.shape)}.",
                f"It holds {tensor.dtype} of shape {tuple(tensor.shape)}.",
                "Give trainer and engine the same model.path and model.dtype.",
            )
