"""A run's evaluations, in words: of what, when, and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.cli.run_words.rollout import num_steps_of
from rollpacker.protocols.backend import ModelledCluster
from rollpacker.report.words import digits, plural

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.runtime.placing.actors import ClusterSize
    from rollpacker.runtime.run.preflight import ResolvedRun


def evaluation_words(config: RunConfig, resolved: ResolvedRun) -> str:
    """What is evaluated, when, and what it costs in responses and, in a modelled run, in time."""
    section, num_steps = config.evaluation, num_steps_of(config, resolved)
    sizes = {rule.name: (resolved.num_held_out[rule.name], rule.num_samples or 1) for rule in section.rules}
    num_responses = sum(prompts * samples for prompts, samples in sizes.values())
    turns = range(section.every_steps, num_steps + 1, section.every_steps) if section.every_steps else range(0)
    steps = {*turns, *([0] if section.at_start else []), *([num_steps] if section.at_end else [])}
    when = [
        *(["before the first step"] if section.at_start else []),
        *([f"every {plural(section.every_steps, 'step')}"] if section.every_steps else []),
        *(["after the last one"] if section.at_end else []),
    ]
    per_step = config.rollout.num_prompts * config.rollout.num_responses
    listed = ", ".join(f"{name} {prompts:,} x {samples}" for name, (prompts, samples) in sizes.items())
    if not config.trains:
        return f"{listed}: {plural(num_responses, 'response')}, once; nothing is trained"
    if not steps:
        return f"{listed}: never, by evaluation.every_steps, at_start and at_end"
    return (
        f"{listed}: {plural(num_responses, 'response')}, {' and '.join(when)}\n"
        f"{plural(len(steps), 'evaluation')}, {plural(len(steps) * num_responses, 'response')} in all, where training "
        f"has {num_steps * per_step:,}\n{_cost(config, resolved.cluster)}"
    )


def _cost(config: RunConfig, cluster: ClusterSize | ModelledCluster) -> str:
    """How evaluations run, and what each takes of the run's time."""
    has_long_rounds = config.system.batching == "tail" and config.system.eta_prompts > 1
    kind = "long" if has_long_rounds else "training"
    ways = {
        "alone": "each is a round of its own (evaluation.when=alone)",
        "fill": f"those between the first step and the last fill {kind} rounds (evaluation.when=fill), and are stopped "
        f"{config.evaluation.grace_s:g} s after their engines are wanted",
    }
    if config.system.stream:
        ways["fill"] += "; on GPUs that are lent to the trainer (system.stream) alone costs less: they are not idle"
    cost = cluster.evaluation if isinstance(cluster, ModelledCluster) else None
    if cost is None:
        return f"{ways[config.evaluation.when]}; backend=sim models what either costs where a response is one turn"
    return (
        f"{ways[config.evaluation.when]}\n"
        f"MODELLED, one evaluation: alone {digits(cost.alone_s)} s; as fill a {kind} round of {digits(cost.round_s)} s "
        f"takes {digits(cost.filled_s)} s more"
    )
