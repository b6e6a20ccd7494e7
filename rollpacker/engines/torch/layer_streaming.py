"""Decoder layers streamed from host memory while the model computes, for a GPU without room for all of them.

RollPacker runs the LLM judge on the actor's own GPUs and streams its weights layer by layer (section 4.3). The weights
of a streamed layer lie in one flat buffer of pinned host memory. Hooks around the layer bind its parameters to a slot,
one of a few device buffers that the streamed layers use in turn:

    before layer k   order the copies up to layer k + num_slots - 1, then let compute wait for copy k
    after layer k    bind its parameters to host memory again

The order is a ring: after the last streamed layer comes the first one, for the next pass. Streamed layers lie evenly
among the resident ones, so that each copy has the same compute to hide behind.

Invariants: compute waits for the copy of the layer that it enters; a copy begins after all compute ordered before it,
hence after the layer that used the slot before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from rollpacker.core.errors import ModelError

_ALIGNMENT_BYTES = 256
"""Where each tensor begins: CUDA's own allocations do, and kernels choose their vector loads by it."""


class CopyStream(Protocol):
    """Carries out copies one after the other, beside compute."""

    def copy(self, source: Tensor, target: Tensor) -> Any:
        """Order a copy that begins when all compute ordered so far has ended; returns what `wait` takes."""

    def wait(self, copy: Any) -> None:
        """Let compute go on only when a copy has ended."""


class CudaCopyStream:
    """A CUDA stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own omission

    def copy(self, source: Tensor, target: Tensor) -> torch.cuda.Event:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        return self._stream.record_event()  # type: ignore[no-any-return]  # the same

    def wait(self, copy: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._stream.device).wait_event(copy)


class ImmediateCopies:
    """A CPU has one stream: a copy ends before anything else begins."""

    def copy(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source)

    def wait(self, copy: None) -> None:
        pass


class StreamedLayers:
    """Where a model's weights lie. They lie in host memory until `wake`.

    Args:
        model: A causal language model in host memory.
        device: Where it computes.
        resident_share: Of the decoder layers, that stay on the device; embeddings, norm and output layer always do.
        num_slots: Device buffers for streamed layers. No more layers than slots are not streamed, for each would lie
            in a slot permanently. With one slot no copy is hidden.
        copies: None takes a stream that fits the device.

    Raises:
        ModelError: Its layers cannot be streamed.
    """

    def __init__(
        self,
        model: Any,
        device: torch.device,
        *,
        resident_share: float = 1.0,
        num_slots: int = 2,
        copies: CopyStream | None = None,
    ) -> None:
        self._model = model
        self._device = device
        self._copy_stream = copies or (CudaCopyStream(device) if device.type == "cuda" else ImmediateCopies())
        layers = decoder_layers(model) if resident_share < 1 else []
        num_streamed = len(layers) - round(resident_share * len(layers))
        if num_streamed <= num_slots:
            num_streamed = 0
        places = [(index + 1) * len(layers) // num_streamed - 1 for index in range(num_streamed)]
        self._streamed = [_HostLayer(layers[place], is_pinned=device.type == "cuda") for place in places]
        """In their order."""
        self._num_slots = num_slots
        self._slots: list[tuple[Tensor, Any]] = []
        """A buffer each, and the copy into it that was ordered last."""
        self._position = 0
        """Of the streamed layer that computes next, counted through all passes."""
        self._num_ordered = 0
        """Positions whose copies have been ordered."""
        self.copied_bytes = 0
        """Of streamed layers, so far."""
        for index, layer in enumerate(self._streamed):
            layer.module.register_forward_pre_hook(functools.partial(self._enter, index))
            layer.module.register_forward_hook(functools.partial(self._leave, index))

    @property
    def num_streamed(self) -> int:
        """Layers that do not stay on the device."""
        return len(self._streamed)

    def wake(self) -> None:
        """Take device memory for the slots and for all weights that stay; nothing if it has been taken."""
        self._move(self._device)
        if self._streamed and not self._slots:
            size = max(layer.buffer.numel() for layer in self._streamed)
            buffers = [torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(self._num_slots)]
            self._slots = [(buffer, None) for buffer in buffers]
            self._position = self._num_ordered = 0

    def sleep(self) -> None:
        """Give it back."""
        self._move(torch.device("cpu"))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # the copies for the next pass may be under way
        self._slots = []
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _move(self, device: torch.device) -> None:
        for layer in self._streamed:
            layer.unbind()
        streamed = {id(parameter) for layer in self._streamed for parameter in layer.parameters}
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            if id(tensor) not in streamed:
                tensor.data = tensor.data.to(device)

    def _enter(self, index: int, _module: torch.nn.Module, _inputs: object) -> None:
        if index != self._position % len(self._streamed):  # the pass before broke off
            self._position, self._num_ordered = index, index
        while self._num_ordered < self._position + self._num_slots:
            self._order_copy()
        buffer, copy = self._slots[self._position % self._num_slots]
        self._copy_stream.wait(copy)
        self._streamed[index].bind(buffer)

    def _leave(self, index: int, _module: torch.nn.Module, _inputs: object, _output: object) -> None:
        self._streamed[index].unbind()
        self._position += 1

    def _order_copy(self) -> None:
        slot, source = (
            self._num_ordered % self._num_slots,
            self._streamed[self._num_ordered % len(self._streamed)].buffer,
        )
        buffer, _ = self._slots[slot]
        self._slots[slot] = buffer, self._copy_stream.copy(source, buffer[: source.numel()])
        self._num_ordered += 1
        self.copied_bytes += source.numel()


class _HostLayer:
    """A layer whose parameters are views of one flat host buffer, so that one copy moves it to the device."""

    def __init__(self, module: torch.nn.Module, *, is_pinned: bool) -> None:
        self.module = module
        self.parameters = list(module.parameters())
        self._offsets: list[int] = []
        num_bytes = 0
        for parameter in self.parameters:
            self._offsets.append(num_bytes)
            num_bytes += -(-parameter.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.buffer = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=is_pinned)
        for parameter, view in zip(self.parameters, self._views(self.buffer), strict=True):
            view.copy_(parameter.data)
        self.unbind()

    def bind(self, buffer: Tensor) -> None:
        """Let the parameters be views of a buffer that holds, or will hold, a copy of this one."""
        for parameter, view in zip(self.parameters, self._views(buffer), strict=True):
            parameter.data = view

    def unbind(self) -> None:
        """Let the parameters be views of the host buffer again, and keep no other alive."""
        self.bind(self.buffer)

    def _views(self, buffer: Tensor) -> Iterable[Tensor]:
        for parameter, offset in zip(self.parameters, self._offsets, strict=True):
            yield buffer[offset : offset + parameter.nbytes].view(parameter.dtype).view(parameter.shape)


def decoder_layers(model: Any) -> list[torch.nn.Module]:
    """The decoder's layers, in their order.

    Raises:
        ModelError: It has none that can be moved one by one: no list of them, or layers that share weights with each
            other or with the rest.
    """
    config = model.config.get_text_config(decoder=True)
    num_layers = config.num_hidden_layers
    lists = [
        child
        for child in model.get_decoder().children()
        if isinstance(child, torch.nn.ModuleList) and len(child) == num_layers
    ]
    if len(lists) != 1:
        raise _not_streamable(config, f"its decoder has {len(lists)} lists of {num_layers} layers")
    layers = list(lists[0])
    inside = {module: index for index, layer in enumerate(layers) for module in layer.modules()}
    owners: dict[int, set[object]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(inside.get(module, "the rest"))
    if any(len(sharing) > 1 for sharing in owners.values()):
        raise _not_streamable(config, "its layers share weights")
    return layers


def _not_streamable(config: Any, reason: str) -> ModelError:
    return ModelError(
        f"The layers of a {config.model_type} model cannot be streamed: {reason}.",
        "A decoder-only model with one list of layers that own their weights, such as Qwen2, Qwen3 or Llama.",
        "Choose reward.judge.engine=torch or vllm for it.",
    )
