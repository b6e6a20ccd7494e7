"""Asks transformers whether it would load a model directory whole, without reading a weight: `python -m` this, PATH.

Its own loader runs on tensors that have names, shapes and types and no numbers, so whatever it would rename, split, tie
or leave out is as in a real load. This is a process of its own, because it imports torch, for seconds, and because
what transformers raises for a strange configuration is of any class.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollpacker.core.errors import ModelError
from rollpacker.data.json_files import read_object
from rollpacker.data.weight_files import read_tensors, weight_files

if TYPE_CHECKING:
    import torch

_FLAGS = ("is_trained", "has_model", "has_weights")
"""What a command line of this module may end with."""

_ALLOWED = "Allowed: a causal language model that transformers knows, with all its weights and nothing else"


def ask_transformers(model_path: Path, *, is_trained: bool, has_model: bool, has_weights: bool) -> None:
    """Refuse what transformers would not load whole, in a process of its own, which takes seconds.

    Args:
        model_path: A model directory whose files are what they are called.
        is_trained: Whether the model generates responses, which need an end.
        has_model: False asks about the tokenizer alone, which needs no torch.
        has_weights: False compares no tensor: those of quantized models are their libraries' business.

    Raises:
        ModelError: So it is.
    """
    flags = [flag for flag, is_set in zip(_FLAGS, (is_trained, has_model, has_weights), strict=True) if is_set]
    words = [sys.executable, "-P", "-m", __name__, str(model_path), *flags]
    process = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603  # our own module
    if process.returncode == ModelError.exit_code:
        raise ModelError(*json.loads(process.stdout.splitlines()[-1]))
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ModelError(
            f"Transformers ended with exit code {process.returncode} while it read {model_path}: {last}",
            _ALLOWED,
            f"Try `transformers.AutoModelForCausalLM.from_pretrained({str(model_path)!r})`",
        )


def compare(model_path: Path, *, is_trained: bool, has_model: bool, has_weights: bool) -> None:
    """Load the tokenizer, build the model without weights, and hold both against the directory's files.

    Arguments and errors are those of `ask_transformers`, which calls this in a process of its own.
    """
    if not has_model:
        _check_tokenizer(model_path, read_object(model_path / "config.json")["vocab_size"], is_trained=is_trained)
        return
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.utils import logging

    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(model_path, local_files_only=True)
        _check_architecture(model_path, config.model_type, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type))
        _check_tokenizer(model_path, config.get_text_config(decoder=True).vocab_size, is_trained=is_trained)
        if not has_weights:
            return
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        report = _load_nothing(model, _stored(model_path))
    except ModelError:
        raise
    except Exception as error:  # a process boundary: whatever transformers raises is of the directory
        raise ModelError(
            f"{model_path}/config.json describes no model that transformers can build: "
            f"{type(error).__name__}: {_first_lines(error)}",
            _ALLOWED,
            f"Correct config.json, or try `transformers.AutoModelForCausalLM.from_pretrained({str(model_path)!r})`",
        ) from error
    refuse_difference(
        model_path,
        missing=sorted(report.missing_keys),
        unread=sorted(report.unexpected_keys),
        misshapen=sorted((name, tuple(stored), tuple(own)) for name, stored, own in report.mismatched_keys),
    )
    if report.conversion_errors or report.error_msgs:
        raise ModelError(
            f"The weights in {model_path} do not fit the shapes of the model: "
            f"{next(iter(report.conversion_errors.values()), '') or report.error_msgs[0]}",
            _ALLOWED,
            "Correct config.json, or save the model again with `model.save_pretrained(DIR)`",
        )


def refuse_difference(
    model_path: Path,
    *,
    missing: list[str],
    unread: list[str],
    misshapen: list[tuple[str, tuple[int, ...], tuple[int, ...]]],
) -> None:
    """Raise `ModelError` for tensors that are not there, that nothing would read, or of another shape than wanted.

    Of `misshapen` each has its name, its shape in the file and the one that config.json asks for.
    """
    remedy = (
        "Correct config.json (num_hidden_layers, hidden_size, vocab_size, num_attention_heads and the like), or save "
        "model and configuration again with `model.save_pretrained(DIR)`"
    )
    problem = ""
    if misshapen:
        name, stored, wanted = misshapen[0]
        problem = f"{len(misshapen)} tensors have other shapes than config.json asks for: {name} is {list(stored)}"
        problem += f" instead of {list(wanted)}"
    elif missing:
        problem = f"{len(missing)} tensors that config.json asks for are missing, such as {missing[0]}"
    elif unread:
        problem = f"{len(unread)} tensors are in no part of the model that config.json describes, such as {unread[0]}"
    if problem:
        raise ModelError(f"In {model_path} {problem}", "Allowed: weights that fit config.json one by one", remedy)


def _check_architecture(model_path: Path, model_type: str, known: str | tuple[str, ...] | None) -> None:
    """Transformers goes by the type alone, vLLM by the architecture, and an encoder is no policy."""
    file = model_path / "config.json"
    if known is None:
        raise ModelError(
            f"{file} has the model_type {model_type!r}, which is no causal language model in transformers",
            _ALLOWED,
            "Choose a decoder that generates text, such as Qwen3 or Llama",
        )
    names = (known,) if isinstance(known, str) else known
    own = read_object(file).get("architectures")
    if not isinstance(own, list) or not own or own[0] not in names:
        raise ModelError(
            f"{file} names the architectures {own!r}",
            f"Allowed for model_type {model_type!r}: {', '.join(names)}, which generates text",
            "Choose a model of this architecture, or correct the file if it is one",
        )


def _check_tokenizer(model_path: Path, num_words: int, *, is_trained: bool) -> None:
    """Load it. Transformers adds special tokens that its class wants and the files do not have, beyond all others."""
    from rollpacker.data.tokenization import PromptTokenizer, load_tokenizer

    if not is_trained:
        load_tokenizer(model_path)
        return
    tokenizer = PromptTokenizer(model_path)
    for name, token in (("eos_token", tokenizer.eos_token_id), ("pad_token", tokenizer.pad_token_id)):
        if token >= num_words:
            raise ModelError(
                f"The {name} of the tokenizer in {model_path} is {token}, a token that the model does not have",
                f"The model has {num_words} tokens (vocab_size in config.json)",
                f"Name its {name} in tokenizer_config.json",
            )


def _stored(model_path: Path) -> dict[str, torch.Tensor]:
    """The tensors of the files, without their numbers."""
    import torch

    tensors = read_tensors(model_path)
    if tensors is None:
        stored: dict[str, Any] = {}
        for file in weight_files(model_path):
            stored |= torch.load(file, map_location="meta", weights_only=True)
        return stored
    return {name: torch.empty(tensor.shape, device="meta") for name, tensor in tensors.items()}


def _load_nothing(model: Any, stored: dict[str, torch.Tensor]) -> Any:
    """What `from_pretrained` does after it has opened the files; gives its report."""
    import torch
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.modeling_utils import LoadStateDictConfig

    loading = LoadStateDictConfig(
        device_map={"": torch.device("meta")},
        dtype=torch.float32,
        dtype_plan=model._get_dtype_plan(torch.float32),  # noqa: SLF001
        weight_mapping=get_model_conversion_mapping(model),
        ignore_mismatched_sizes=True,
    )
    report, _ = type(model)._load_pretrained_model(model, stored, None, loading)  # noqa: SLF001
    return type(model)._finalize_model_loading(model, loading, report)  # noqa: SLF001


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split())[:400]


if __name__ == "__main__":
    try:
        compare(Path(sys.argv[1]), **{flag: flag in sys.argv[2:] for flag in _FLAGS})
    except ModelError as mistake:
        sys.stdout.write(json.dumps(mistake.args) + "\n")
        sys.exit(mistake.exit_code)
