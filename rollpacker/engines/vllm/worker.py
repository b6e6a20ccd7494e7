"""What runs inside vLLM's worker processes: our weight-transfer backend, and calls that our engine makes of a worker.

vLLM imports this module in every worker, because the engine names `WorkerExtension` as `worker_extension_cls`, and
that registers the backend. vLLM makes the backend when the model is there; from then on the worker's life is tied to
the engine's.

Order of an update: `init_weight_transfer_engine` (which memory), `start_weight_update`, `update_weights` per bucket,
`finish_weight_update`, then `checksum_of_received`. An update that broke off is undone by `abandon_weight_update`, and
the next one starts afresh; until then the model holds neither policy. Weights that the workers fetch from the trainer
themselves come without these verbs (`receiving`).
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rollpacker.engines.vllm.lifeline import hold_on
from rollpacker.engines.vllm.receiving import receive_offer
from rollpacker.engines.vllm.shared_memory import SharedBuckets
from rollpacker.protocols.gpu_memory import gpu_memory_peak_gb, reset_gpu_memory_peak
from rollpacker.protocols.tensors import RunningChecksum

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vllm.config import VllmConfig

BACKEND = "rollpacker"
"""The name of our backend in vLLM's `WeightTransferConfig`."""


@dataclass
class MemoryInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM's classes are untyped here
    """Which memory the buckets of the next updates lie in."""

    handle: str
    """What a `SharedBuffer` is opened with."""


@dataclass
class BucketInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One bucket."""

    bucket: dict[str, Any]
    """As `SharedBuffer.write` describes it."""


class BucketReceiver(WeightTransferEngine[MemoryInfo, BucketInfo]):  # type: ignore[misc]
    """Loads a policy under Hugging Face names, bucket by bucket, and computes the checksum of what came."""

    init_info_cls = MemoryInfo
    update_info_cls = BucketInfo
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._buckets: SharedBuckets | None = None
        self._is_updating = False
        self._received = RunningChecksum()
        # it warns of every layer without tensors of its own, at every update; missing ones are refused before
        logging.getLogger(initialize_layerwise_reload.__module__).setLevel(logging.ERROR)
        hold_on()
        if self.device.type == "cpu":
            _unname_shared_memory()

    def init_transfer_engine(self, init_info: MemoryInfo) -> None:
        self.shutdown()
        self._buckets = SharedBuckets(init_info.handle, self.device)

    def start_weight_update(self) -> None:
        if self._is_updating:  # an update broke off: what it left is overwritten by this one
            finalize_layerwise_reload(self.model, self.model_config)
        reset_gpu_memory_peak()
        initialize_layerwise_reload(self.model)
        self._is_updating = True
        self._received = RunningChecksum()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Replaces the base class's, which waits for an accelerator even where there is none."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    @torch.no_grad()
    def receive_weights(self, update_info: BucketInfo) -> None:
        assert self._buckets is not None, "memory is opened before an update"
        self.model.load_weights(self._counted(self._buckets.receive(update_info.bucket)))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        self._is_updating = False
        if self.device.type == "cpu":
            _prepack_output_layer(self.model)

    def checksum(self) -> str:
        """As `rollpacker.protocols.tensors.checksum_of_tensors`, over all tensors of the last update."""
        return self._received.digest()

    def shutdown(self) -> None:
        if self._buckets is not None:
            self._buckets.close()
            self._buckets = None

    def _counted(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors:
            self._received.add(name, tensor)
            yield name, tensor


class WorkerExtension:
    """Mixed into vLLM's worker class; its methods are called by `AsyncLLM.collective_rpc`."""

    vllm_config: VllmConfig
    weight_transfer_engine: BucketReceiver
    _weight_update_active: bool

    def receive_offer(self, offer: dict[str, Any], engine: str) -> tuple[str, list[list[Any]]]:
        """Fetch weights from the trainer, as `receiving.receive_offer` says."""
        with set_current_vllm_config(self.vllm_config):
            return receive_offer(self.weight_transfer_engine, offer, engine)

    def checksum_of_received(self) -> str:
        return self.weight_transfer_engine.checksum()

    def gpu_memory_peak_gb(self) -> float | None:
        return gpu_memory_peak_gb()

    def abandon_weight_update(self) -> None:
        """Let the next update start, whatever became of the last one."""
        self._weight_update_active = False


def _unname_shared_memory() -> None:
    """Take this engine's tensor-parallel group out of /dev/shm, where vLLM on a CPU leaves it behind.

    All workers have opened it by now, and what is open stays.
    """
    for file in Path("/dev/shm").glob(f"{os.environ['VLLM_DIST_IDENT']}-*-cpushm_*"):  # noqa: S108  # vLLM's own place
        file.unlink(missing_ok=True)


def _prepack_output_layer(model: torch.nn.Module) -> None:
    """Make a tied output layer use the new embedding.

    vLLM 0.32 on a CPU keeps a packed copy of its weights there, and a layerwise reload packs again only what a file
    names; a tied output layer is in no file. Without this the log-probabilities are those of the old output layer.
    """
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear") and head.weight.numel():
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)


WeightTransferEngineFactory.register_engine(BACKEND, BucketReceiver)
