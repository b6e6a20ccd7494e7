"""A model's tensors under their names, tied ones once, and the checksum over what they hold.

Trainer and engine both call this module, so that the two ends of a weight transfer agree on names, order and bytes.
Whoever has a tensor has torch: it is imported where it is used, and importing this module stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.protocols.weights import checksum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch


def named_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers under their Hugging Face names, ascending, without copying.

    Tensors that share memory appear once. Of their names the one counts that Hugging Face stores in a file (an
    output layer tied to the embedding goes by the embedding's name), then the first in sorted order.
    """
    tied = getattr(model, "all_tied_weights_keys", {})
    state = model.state_dict()
    chosen: dict[str, torch.Tensor] = {}
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    for name in sorted(state, key=lambda name: (name in tied, name)):
        tensor = state[name]
        place = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        chosen[name] = tensor
    return dict(sorted(chosen.items()))


def checksum_of_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """`checksum` over the tensors' bytes, in the order of their names, whatever their device, layout or dtype."""
    return checksum(_named_bytes(tensors))


def num_bytes_of_tensors(tensors: Mapping[str, torch.Tensor]) -> int:
    """Bytes that the tensors hold."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _named_bytes(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, memoryview]]:
    import torch

    for name in sorted(tensors):
        flat = tensors[name].detach().cpu().contiguous().view(-1)
        yield name, flat.view(torch.uint8).numpy().data
