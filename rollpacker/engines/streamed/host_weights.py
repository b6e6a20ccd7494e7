"""Parameters in one flat host buffer, so that bringing them to the device is one copy.

Between passes the parameters are views of the host buffer. Bound to a device buffer they are views of that, and no
value is ever written there: what goes to the device need never come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from rollpacker.engines.streamed.devices import Device

_ALIGNMENT_BYTES = 256
"""Where each tensor begins: CUDA's own allocations do, and kernels choose their vector loads by it."""


class HostWeights:
    """Some parameters of a model.

    Args:
        parameters: Each once; their memory is given up one by one.
        device: Makes the host buffer.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], device: Device) -> None:
        self._parameters = list(parameters)
        self._offsets: list[int] = []
        num_bytes = 0
        for parameter in self._parameters:
            self._offsets.append(num_bytes)
            num_bytes += -(-parameter.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.buffer = device.host_buffer(num_bytes)
        """The weights' bytes."""
        self._on_host = [self._view(index, self.buffer) for index in range(len(self._parameters))]
        for parameter, view in zip(self._parameters, self._on_host, strict=True):
            view.copy_(parameter.data)
            parameter.data = view

    @property
    def num_bytes(self) -> int:
        return self.buffer.numel()

    @property
    def num_parameters(self) -> int:
        """Numbers, not tensors."""
        return sum(parameter.numel() for parameter in self._parameters)

    def bind(self, buffer: Tensor) -> None:
        """Let the parameters be views of a buffer of at least so many bytes that holds, or will hold, a copy."""
        for index, parameter in enumerate(self._parameters):
            parameter.data = self._view(index, buffer)

    def unbind(self) -> None:
        """Let the parameters be views of the host buffer again, and keep no other alive."""
        for parameter, view in zip(self._parameters, self._on_host, strict=True):
            parameter.data = view

    def _view(self, index: int, buffer: Tensor) -> Tensor:
        parameter, offset = self._parameters[index], self._offsets[index]
        return buffer[offset : offset + parameter.nbytes].view(parameter.dtype).view(parameter.shape)
