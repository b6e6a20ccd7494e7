"""Lets Megatron-core run where there is no CUDA: for tests and for trying a configuration, never on a GPU.

Megatron-core names CUDA everywhere: `device="cuda"`, `torch.cuda.current_device()`, streams, tensor types. This is the
one place that redirects those names, and the only one that patches anything:

* Every `megatron.core` module gets a stand-in for its global `torch`, which answers for `torch.cuda` and puts what is
  created on the CPU. torch itself keeps its factories: patching those broke transformers' loading on the meta device.
* `Tensor.cuda` and `Module.cuda` return what they are called on. `Tensor.type()` says `torch.cuda.*Tensor`, to callers
  in Megatron-core only.
* The state of the CUDA random generator is the CPU's.

What runs is Megatron-core's own parallel state, layers, collectives (over gloo), pipeline schedule, optimizer and
checkpoint code. What a run under the shim says nothing about: CUDA kernels and streams, overlap of computation and
communication, NCCL, memory on an accelerator, Transformer Engine.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULES = (
    "megatron.core.distributed",
    "megatron.core.dist_checkpointing",
    "megatron.core.dist_checkpointing.strategies.torch",
    "megatron.core.models.gpt",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.optimizer",
    "megatron.core.parallel_state",
    "megatron.core.pipeline_parallel",
    "megatron.core.pipeline_parallel.p2p_communication",
    "megatron.core.tensor_parallel.random",
)
"""All that this package uses, so that nothing is imported after the stand-in was handed out."""
_FACTORIES = (
    *("tensor", "empty", "zeros", "ones", "full", "arange", "rand", "randn", "randint", "as_tensor", "eye"),
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
)


def apply() -> None:
    """Redirect CUDA's names in this process unless it has CUDA. Idempotent."""
    if torch.cuda.is_available() or hasattr(torch.Tensor, "is_megatron_shimmed"):
        return
    for name in _MODULES:
        importlib.import_module(name)
    stand_in = _Torch()
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core") and getattr(module, "torch", None) is torch:
            module.torch = stand_in  # type: ignore[attr-defined]
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()  # noqa: SLF001  # what a shim is
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)  # noqa: SLF001
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.Tensor.type = _type_for_megatron(torch.Tensor.type)  # type: ignore[method-assign]
    torch.Tensor.is_megatron_shimmed = True  # type: ignore[attr-defined]


def _type_for_megatron(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        asks_for_name = not args and not kwargs
        if asks_for_name and sys._getframe(1).f_globals["__name__"].startswith("megatron.core"):  # noqa: SLF001
            return answer.replace("torch.", "torch.cuda.", 1)
        return answer

    return type_


class _Stream:
    """A stream or an event of a device that does one thing after the other."""

    device = torch.device("cpu")

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def wait_stream(self, *_: Any) -> None: ...
    def wait_event(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...
    def record(self, *_: Any) -> None: ...
    def record_event(self, *_: Any) -> _Stream:
        return self

    def query(self) -> bool:
        return True


class _Cuda(types.ModuleType):
    """Stands in for `torch.cuda`; what it lacks comes from there."""

    Stream = Event = _Stream

    def __init__(self) -> None:
        super().__init__("torch.cuda of the CPU shim")
        nothing = lambda *_, **__: None  # noqa: E731
        self.set_device = self.synchronize = self.empty_cache = nothing
        self.memory_allocated = self.max_memory_allocated = self.memory_reserved = lambda *_, **__: 0
        self.current_device = lambda: torch.device("cpu")
        self.current_stream = self.default_stream = lambda *_, **__: _Stream()
        self.stream = lambda _: contextlib.nullcontext()
        self.is_current_stream_capturing = lambda: False
        self.manual_seed = torch.manual_seed
        self.get_rng_state = lambda *_, **__: torch.get_rng_state()
        self.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
        self.nvtx = types.SimpleNamespace(range_push=nothing, range_pop=nothing)
        for name, dtype in (
            ("FloatTensor", torch.float32),
            ("IntTensor", torch.int32),
            ("LongTensor", torch.int64),
            ("ByteTensor", torch.uint8),
        ):
            setattr(self, name, functools.partial(torch.tensor, dtype=dtype))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


class _Torch(types.ModuleType):
    """Stands in for `torch`; what it lacks comes from there."""

    def __init__(self) -> None:
        super().__init__("torch of the CPU shim")
        self.cuda = _Cuda()
        for name in _FACTORIES:
            setattr(self, name, _on_cpu(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def create(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if isinstance(device, int) or str(device).startswith("cuda"):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return create
