"""What runs inside vLLM's processes: our weight-transfer backend, and calls that our engine makes of a worker.

EngineCore and workers are started with vLLM's configuration, read after vLLM's import. `PolicyTransfer` is a part of
it: reading it imports this module, which registers the backend, and ties the process's life to the engine's.

Weights come by `receiving`; of vLLM's own verbs for weight updates none is used. An update that broke off is undone by
the next one; until then the model holds neither policy.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig, WeightTransferConfig, set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rollpacker.engines.vllm.lifeline import hold_on
from rollpacker.engines.vllm.receiving import Answer, receive_offer
from rollpacker.protocols.gpu_memory import gpu_memory_peak_gb, reset_gpu_memory_peak

BACKEND = "rollpacker"
"""The name of our backend in vLLM's `WeightTransferConfig`."""


class PolicyTransfer(WeightTransferConfig):  # type: ignore[misc]
    """Names our backend, and ties the process in which it is unpickled."""

    def __init__(self) -> None:
        super().__init__(backend=BACKEND)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        hold_on()


class PolicyReceiver(WeightTransferEngine[WeightTransferInitInfo, WeightTransferUpdateInfo]):  # type: ignore[misc]
    """Begins and ends the loading of a policy under Hugging Face names."""

    init_info_cls = WeightTransferInitInfo
    update_info_cls = WeightTransferUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._is_updating = False
        # it warns of every layer without tensors of its own, at every update; missing ones are refused before
        logging.getLogger(initialize_layerwise_reload.__module__).setLevel(logging.ERROR)
        if self.device.type == "cpu":
            _unname_shared_memory()

    def start_weight_update(self) -> None:
        if self._is_updating:  # an update broke off: what it left is overwritten by this one
            finalize_layerwise_reload(self.model, self.model_config)
        reset_gpu_memory_peak()
        initialize_layerwise_reload(self.model)
        self._is_updating = True

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        self._is_updating = False
        if self.device.type == "cpu":
            _prepack_output_layer(self.model)

    def init_transfer_engine(self, init_info: WeightTransferInitInfo) -> None:
        """Nothing is to be opened ahead."""

    def receive_weights(self, update_info: WeightTransferUpdateInfo) -> None:
        raise NotImplementedError("weights come by `receive_offer`")

    def shutdown(self) -> None:
        """Nothing is held between updates."""


class WorkerExtension:
    """Mixed into vLLM's worker class; its methods are called by `AsyncLLM.collective_rpc`."""

    vllm_config: VllmConfig
    weight_transfer_engine: PolicyReceiver

    def receive_offer(self, offer: dict[str, Any], engine: str) -> Answer:
        """Fetch weights from the trainer, as `receiving.receive_offer` says."""
        with set_current_vllm_config(self.vllm_config):
            return receive_offer(self.weight_transfer_engine, offer, engine)

    def gpu_memory_peak_gb(self) -> float | None:
        return gpu_memory_peak_gb()


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


WeightTransferEngineFactory.register_engine(BACKEND, PolicyReceiver)
