"""A run's model, prompts and lengths, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.report.words import size

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.backend import ModelFacts
    from rollpacker.runtime.run.preflight import ResolvedRun


def model_words(config: RunConfig, model: ModelFacts) -> str:
    """Give architecture, size, precision and place of the policy's model."""
    parameters = "" if model.num_parameters is None else f", {model.num_parameters:,} parameters"
    source = f", from {config.model.path}" if config.model.path else ""
    if config.backend.name == "sim" and config.model.shape:
        source = f", the shape of {config.model.name}" if config.model.name else ", by model.shape"
    return (
        f"{model.architecture}{parameters}, {size(model.num_weight_bytes)} of weights\n"
        f"computed in {config.model.dtype}{source}"
    )


def prompt_words(config: RunConfig, resolved: ResolvedRun) -> str:
    """Give how many prompts there are, from where, by domain, and what scores each domain."""
    domains = resolved.num_prompts_by_domain
    by_domain = ", ".join(f"{domain} {number:,}" for domain, number in domains.items())
    files = ", ".join(file.written for file in config.data.files)
    made_up = f"made up for the workload {config.workload.name if config.workload else ''}"
    source = f"in {files}" if files else "tasks of the environment" if config.takes_prompts_of_environment else made_up
    text = f"{sum(domains.values()):,} {source}: {by_domain}"
    if config.backend.name == "ray" and (config.reward.domains or config.reward.name_of() != config.reward.name):
        text += "\nrewards: " + ", ".join(f"{domain} by {config.reward.name_of(domain)}" for domain in domains)
    return text


def length_words(config: RunConfig, model: ModelFacts) -> str:
    """Give the limits of prompts and responses, in tokens, and what happens to longer prompts."""
    fate = {
        "drop": "longer ones are dropped",
        "truncate_left": "longer ones lose their beginning",
        "truncate_right": "longer ones lose their end",
        "error": "a longer one is an error",
    }[config.data.long_prompts]
    text = (
        f"prompts up to {config.data.max_prompt_tokens:,} tokens ({fate}), "
        f"responses up to {config.rollout.max_response_tokens:,}"
    )
    return text if model.max_positions is None else f"{text}; the model has {model.max_positions:,} positions"
