"""Watches how many rows of logits exist at a time."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LogitsWatch(TorchDispatchMode):
    """The most rows that any tensor with `width` columns had while this was entered, forward and backward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        self.most_rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, Tensor) and each.ndim and each.shape[-1] == self._width:
                self.most_rows = max(self.most_rows, each.numel() // self._width)
        return made
