"""Forward passes of a model whose layers come to the device while it computes.

Synchronous, for one thread. The model is transformers' own: hooks around each decoder layer bind its parameters to
where `DeviceLayers` has its weights, and one before the output layer keeps each row's last position alone. Rows are
padded on the right, and attention is causal, so no position of a row sees padding, no mask is needed, and no cache is
kept.

Shapes: B rows, T positions, H hidden, V tokens of the vocabulary.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rollpacker.core.errors import EngineFailed
from rollpacker.engines.streamed.device_layers import DeviceLayers
from rollpacker.engines.streamed.host_weights import HostWeights
from rollpacker.engines.streamed.loading import decoder_layers
from rollpacker.engines.streamed.residency import LayerSizes, streamed_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rollpacker.engines.streamed.devices import Copy, Device, Mark
    from rollpacker.protocols.rollout import TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Where the time of a pass's decoder layers went, by the device's own clock."""

    computing_s: float
    waiting_s: float
    """Compute waited for a copy."""
    copying_s: float
    """The copy engine was busy with layers that this pass used first; beside compute, but for `waiting_s`."""
    copied_bytes: int
    """Of these layers."""


class StreamedDecoder:
    """A model between its host buffers and a device. It holds no device memory until `wake`.

    Args:
        model: A causal language model in host memory; its parameters are moved into flat buffers.
        device: Where it computes.
        num_slots: Device buffers for layers that stream.

    Raises:
        ModelError: Its layers cannot be streamed.
    """

    def __init__(self, model: Any, device: Device, num_slots: int) -> None:
        self._model = model
        self._device = device
        layers = decoder_layers(model)
        self._host_layers = [HostWeights(layer.parameters(), device) for layer in layers]
        inside = {id(parameter) for layer in layers for parameter in layer.parameters()}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in inside]
        self._host_rest = HostWeights(rest, device)
        self._rest: Tensor | None = None
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device.place))
        self.layers = DeviceLayers(device, [layer.buffer for layer in self._host_layers], num_slots)
        self.sizes = self._read_sizes(num_slots)
        self._marks: list[tuple[Mark, Mark, Mark]] = []
        """Per layer: compute came to it, its weights were there, it had computed."""
        self._copies: list[Copy] = []
        self._last_B = torch.empty(0, dtype=torch.int64)
        for index, layer in enumerate(layers):
            layer.register_forward_pre_hook(functools.partial(self._before, index))
            layer.register_forward_hook(functools.partial(self._after, index))
        model.get_output_embeddings().register_forward_pre_hook(self._keep_last)

    @property
    def is_awake(self) -> bool:
        return self._rest is not None

    @property
    def rest_bytes(self) -> int:
        """Of embeddings, final norm and output layer, which lie on the device while it is awake."""
        return self._host_rest.num_bytes

    @property
    def num_positions(self) -> int | None:
        """The longest prompt that the model is made for; None if it does not say."""
        config = self._model.config.get_text_config(decoder=True)
        return getattr(config, "max_position_embeddings", None)

    def wake(self, num_resident: int) -> None:
        """Take device memory for all but the streamed layers, and for the slots of these."""
        if self._rest is None:
            self._rest, copy = self._device.hold(self._host_rest.buffer, self._device.mark())
            self._device.wait(copy)
            self._host_rest.bind(self._rest)
        self.place(num_resident)

    def place(self, num_resident: int) -> None:
        """Let so many layers be resident from the next pass on."""
        self.layers.place(streamed_layers(self.sizes.num_layers, num_resident))

    def sleep(self) -> None:
        """Give back the device memory."""
        for weights in (*self._host_layers, self._host_rest):
            weights.unbind()
        self.layers.release()
        self._rest = None
        self._device.synchronize()
        self._device.release_cache()

    @torch.no_grad()
    def run(
        self, prompts: Sequence[TokenIds], candidates: Sequence[Sequence[int]]
    ) -> tuple[list[tuple[float, ...]], PassTimes]:
        """Pass over prompts, together.

        Args:
            prompts: At least one, each at least a token long.
            candidates: Per prompt, which tokens' log-probabilities are wanted; at least one.

        Raises:
            EngineFailed: A row's log-probabilities are not numbers.

        A pass that raises anything else has broken off: layers are placed again before the next one.
        """
        self._marks, self._copies = [], []
        tokens_BT = torch.zeros(len(prompts), max(map(len, prompts)), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            tokens_BT[row, : len(prompt)] = torch.as_tensor(prompt)
        place = self._device.place
        self._last_B = torch.tensor([len(prompt) - 1 for prompt in prompts], device=place)
        try:
            output = self._model(input_ids=tokens_BT.to(place), use_cache=False)
        except BaseException:
            for weights in self._host_layers:
                weights.unbind()
            raise
        logprobs_BV = output.logits[:, -1].float().log_softmax(dim=-1)
        rows = [row for row, tokens in enumerate(candidates) for _ in tokens]
        wanted = [token for tokens in candidates for token in tokens]
        flat = iter(
            logprobs_BV[torch.tensor(rows, dtype=torch.int64), torch.tensor(wanted, dtype=torch.int64)].tolist()
        )
        if bool(logprobs_BV.isnan().any()):
            raise EngineFailed(
                f"The judge's log-probabilities of a batch of {len(prompts)} prompts are not numbers.",
                "Weights and activations must be finite in the model's dtype.",
                "Try reward.judge.model.dtype=float32, and check the model's files.",
            )
        self._device.synchronize()
        return [tuple(next(flat) for _ in tokens) for tokens in candidates], self._times()

    def _before(self, index: int, _module: torch.nn.Module, _arguments: object) -> None:
        begun = self._device.mark()
        buffer, copy = self.layers.enter(index)
        if copy is not None:
            self._copies.append(copy)
        self._host_layers[index].bind(buffer)
        ready = self._device.mark()
        self._marks.append((begun, ready, ready))

    def _after(self, index: int, _module: torch.nn.Module, _arguments: object, _output: object) -> None:
        begun, ready, _ = self._marks[-1]
        self._marks[-1] = begun, ready, self._device.mark()
        self._host_layers[index].unbind()
        self.layers.leave(index)

    def _keep_last(self, _module: torch.nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden_BTH = arguments[0]
        rows_B = torch.arange(len(self._last_B), device=hidden_BTH.device)
        return (hidden_BTH[rows_B, self._last_B].unsqueeze(1),)

    def _times(self) -> PassTimes:
        between = self._device.seconds
        copied = [self._device.copied(copy) for copy in self._copies]
        return PassTimes(
            computing_s=sum(between(ready, computed) for _, ready, computed in self._marks),
            waiting_s=sum(between(begun, ready) for begun, ready, _ in self._marks),
            copying_s=sum(seconds for _, seconds in copied),
            copied_bytes=sum(num_bytes for num_bytes, _ in copied),
        )

    def _read_sizes(self, num_slots: int) -> LayerSizes:
        config = self._model.config.get_text_config(decoder=True)
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return LayerSizes(
            num_layers=len(self._host_layers),
            layer_bytes=max(layer.num_bytes for layer in self._host_layers),
            layer_parameters=max(layer.num_parameters for layer in self._host_layers),
            hidden_size=config.hidden_size,
            intermediate_size=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
            attention_width=config.num_attention_heads * head_size,
            vocab_size=config.vocab_size,
            bytes_per_number=self._model.dtype.itemsize,
            num_slots=num_slots,
        )
