"""`rollpacker check`: prints what `train` would do with the same arguments, by the same validation; starts nothing."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import TYPE_CHECKING

from rich.text import Text

from rollpacker.cli.actor_words import actor_words, job_words
from rollpacker.cli.command_help import CONFIG_FILE, INPUTS, CommandHelp
from rollpacker.cli.loss_words import loss_words
from rollpacker.cli.placement_table import placement_table
from rollpacker.cli.screen import facts, heading, output
from rollpacker.cli.split_words import split_words
from rollpacker.cli.worker_words import environment_words, worker_words
from rollpacker.core.quotas import apportion, scale_up
from rollpacker.engines.vllm.installed import ARCTIC, drafter_of
from rollpacker.protocols.backend import ModelledCluster
from rollpacker.report.words import digits, plural
from rollpacker.runtime.placing.fleets import degrees_of
from rollpacker.runtime.placing.planning import placed_actors
from rollpacker.runtime.placing.topology import engine_gpus, trainer_parts
from rollpacker.runtime.rollout.scheduling import NOTHING_TO_LEND, can_stream
from rollpacker.sim.variance import share_without_variance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.cli.arguments import Arguments
    from rollpacker.config.schema import RunConfig
    from rollpacker.config.sections.system import SystemSection
    from rollpacker.core.settings import AsyncSettings, LengthHistorySettings, SchedulerSettings
    from rollpacker.protocols.backend import ModelFacts
    from rollpacker.runtime.placing.actors import ClusterSize
    from rollpacker.runtime.run.preflight import ResolvedRun
    from rollpacker.terminal import Terminal

FULL = "full"
"""The argument that asks for all keys."""


HELP = CommandHelp(
    purpose="Print what a run sets beside the defaults and what it will do. Loads no model, creates nothing.",
    usage="[full] [-m] [config=FILE] [key=value | group=option] ...",
    arguments=(("full", "Print all keys, not only those that differ from their defaults."), CONFIG_FILE),
    examples=(
        f"rollpacker check {INPUTS} \\\n    reward=math system=rollpacker run.dir=runs/x",
        f"rollpacker check -m {INPUTS} \\\n    system=verl,rollpacker run.seed=0,1",
    ),
    lists_keys_of="train",
)


def run(arguments: Arguments) -> None:
    """Print the resolved run, or every point of a multirun."""
    overrides = [argument for argument in arguments.words if argument != FULL]
    if arguments.is_multirun:
        _check_sweep(overrides)
    else:
        _check_run(overrides, is_full=FULL in arguments.words)


def _check_run(overrides: Sequence[str], *, is_full: bool) -> None:
    from rollpacker.cli.run_facts import run_facts_of
    from rollpacker.config.compose import compose
    from rollpacker.data.hub import with_pinned_names
    from rollpacker.runtime.placing.automatic import Chooser
    from rollpacker.runtime.run.preflight import validate

    chooser = Chooser()
    config = with_pinned_names(compose(overrides, chooser.complete), can_download=False)
    resolved = validate(config, run_facts_of)
    console = output()
    _print_configuration(console, config, is_full=is_full)
    if chooser.chosen:
        rows = ((f"  {choice.word}", choice.reason) for choice in chooser.chosen)
        console.print(heading("Chosen for the GPUs (placement=auto)"), facts(rows), "", sep="\n")
    described = _describe(config, resolved, _notes_of_tokens(config))
    console.print(heading("What it will do"), facts(described.items()), sep="\n")
    if not isinstance(resolved.cluster, ModelledCluster):
        console.print("", heading("Placement"), placement_table(config, resolved.cluster, resolved.fit), sep="\n")


def _print_configuration(console: Terminal, config: RunConfig, *, is_full: bool) -> None:
    from rollpacker.config.record import differences, to_yaml

    if is_full:
        console.print(heading("Configuration"), Text(to_yaml(config)), sep="\n")
        return
    changed = differences(config)
    console.print(
        heading("Configuration, where it differs from the defaults (`rollpacker check full ...` prints all keys)"),
        facts((f"  {name}", json.dumps(value, ensure_ascii=False)) for name, value in changed.items()),
        "",
        sep="\n",
    )


def _check_sweep(overrides: Sequence[str]) -> None:
    """Print what all points share, then each point with what is its own."""
    from rollpacker.cli.run_facts import run_facts_of
    from rollpacker.cli.screen import tell_points
    from rollpacker.config.multirun import compose_sweep, point_names
    from rollpacker.data.hub import with_pinned_names
    from rollpacker.launch.validation import validate_sweep
    from rollpacker.runtime.placing.automatic import complete

    sweep = compose_sweep(overrides, tell=tell_points, complete=complete).with_configs(
        lambda config: with_pinned_names(config, can_download=False)
    )
    resolved_runs = validate_sweep(sweep, run_facts_of)
    are_jobs = sweep.launcher is not None and sweep.launcher.executor == "slurm"
    notes: dict[str, list[str]] = {}  # of points with the same model and data: read once
    points = []
    for config, resolved in zip(sweep.configs, resolved_runs, strict=True):
        inputs = config.model_dump_json(include={"model", "data", "rollout"})
        if inputs not in notes:
            notes[inputs] = _notes_of_tokens(config)
        points.append(_describe(config, resolved, notes[inputs], is_job=are_jobs))
    shared = {label: text for label, text in points[0].items() if all(point[label] == text for point in points)}
    console = output()
    console.print(heading(f"All {len(points)} points"), facts(shared.items()), "", sep="\n")
    for number, (own, point) in enumerate(zip(point_names(sweep.points), points, strict=True)):
        own_facts = {label: text for label, text in point.items() if label not in shared}
        console.print(heading(f"Point {number}  {own}"), facts(own_facts.items()), "", sep="\n")


def _notes_of_tokens(config: RunConfig) -> list[str]:
    """Notes on the prompts of a real run, read with its tokenizer unless an image has the libraries."""
    if config.backend.name != "ray" or (config.cluster is not None and config.cluster.container.image is not None):
        return []
    from rollpacker.runtime.run.prompt_look import notes_of_tokens

    return notes_of_tokens(config)


_OWN_GPUS = "groups train as they are accepted: the trainer shares no GPU"
"""What streaming does there."""
_OF_TRAINING = ("prompts", "batch", "rollout", "techniques", "workers", "split", "steps", "start")
"""What is not described of a run of no steps."""


def _describe(
    config: RunConfig, resolved: ResolvedRun, further_notes: Sequence[str], *, is_job: bool = False
) -> dict[str, str]:
    notes = [*resolved.notes, *further_notes]
    described = {
        "model": _model(config, resolved.model),
        "prompts": _prompts(config, resolved),
        "lengths": _lengths(config, resolved.model),
        **({"programs": _programs(config)} if "sandbox" in config.reward.names else {}),
        "batch": _batch(config, resolved.settings),
        "rollout": _rollout(config, resolved.settings),
        "techniques": _techniques(config, resolved.cluster),
        **({"turns": environment_words(config)} if config.environment or config.modelled_environment else {}),
        **({"workers": worker_words(config, is_job=is_job)} if config.elastic.is_on else {}),
        **({"split": split_words(config, resolved.cluster)} if config.system.is_async else {}),
        **({"loss": loss_words(config)} if config.backend.name == "ray" else {}),
        "steps": _steps(config, resolved),
        **({"evaluation": _evaluation(config, resolved)} if resolved.num_held_out else {}),
        "actors": actor_words(config, resolved.cluster, is_job=is_job),
        **({"job": job_words(config)} if is_job else {}),
        "writes": _writes(config),
        **({"notes": "\n".join(notes)} if notes else {}),
        "start": f"after step {resolved.finished_steps}" if resolved.finished_steps else "from the beginning",
    }
    return {label: text for label, text in described.items() if config.trains or label not in _OF_TRAINING}


def _model(config: RunConfig, model: ModelFacts) -> str:
    parameters = "" if model.num_parameters is None else f", {model.num_parameters:,} parameters"
    source = f", from {config.model.path}" if config.model.path else ""
    return (
        f"{model.architecture}{parameters}, {_bytes(model.num_weight_bytes)} of weights\n"
        f"computed in {config.model.dtype}{source}"
    )


def _prompts(config: RunConfig, resolved: ResolvedRun) -> str:
    domains = resolved.num_prompts_by_domain
    by_domain = ", ".join(f"{domain} {number:,}" for domain, number in domains.items())
    files = ", ".join(file.written for file in config.data.files)
    made_up = f"made up for the workload {config.workload.name if config.workload else ''}"
    source = f"in {files}" if files else "tasks of the environment" if config.takes_prompts_of_environment else made_up
    text = f"{sum(domains.values()):,} {source}: {by_domain}"
    if config.backend.name == "ray" and (config.reward.domains or config.reward.name_of() != config.reward.name):
        text += "\nrewards: " + ", ".join(f"{domain} by {config.reward.name_of(domain)}" for domain in domains)
    return text


def _batch(config: RunConfig, settings: SchedulerSettings) -> str:
    num_prompts, num_responses = settings.num_prompts, settings.num_responses
    text = f"{num_prompts} prompts x {num_responses} responses = {num_prompts * num_responses:,} responses per step"
    quotas = apportion(num_prompts, dict(settings.domain_weights))
    if len(quotas) > 1:
        text += "\nof each domain: " + ", ".join(f"{domain} {quota}" for domain, quota in quotas.items())
    if config.trainer.num_minibatches > 1:
        text += f"\ntrained in {config.trainer.num_minibatches} updates"
    return text


def _rollout(config: RunConfig, settings: SchedulerSettings) -> str:
    text = _rounds(config, settings)
    if settings.dynamic_sampling is None:
        return text
    at_most = math.floor(settings.dynamic_sampling.max_launch_factor * settings.num_prompts)
    text += (
        "\na prompt whose rewards are all equal is dropped, and another one launched in its place; "
        f"a step launches at most {at_most:,} prompts"
    )
    if settings.dynamic_sampling.max_active_requests is not None:
        text += f", with {settings.dynamic_sampling.max_active_requests:,} responses at a time"
    if config.workload is not None and config.backend.name == "sim":
        share = share_without_variance(
            config.workload.solve_rate, config.workload.solve_rate_rho, settings.num_responses
        )
        text += f"\nexpected: {share:.0%} of the prompts are dropped, at workload.solve_rate and solve_rate_rho" + (
            f"; a batch takes {settings.num_prompts / (1 - share):,.0f} prompts" if share < 1 else ""
        )
    return text


def _rounds(config: RunConfig, settings: SchedulerSettings) -> str:
    num_prompts, num_responses = settings.num_prompts, settings.num_responses
    if settings.asynchronous:
        return _asynchronous(config.system, settings.asynchronous, num_prompts)
    if settings.batching == "plain":
        rewards = "as they finish" if settings.overlap_rewards else "after the last one"
        return f"{config.system.name}: a step waits for every response of its batch; they are scored {rewards}"
    num_launched = scale_up(num_prompts, settings.eta_prompts)
    num_samples = scale_up(num_responses, settings.eta_responses)
    short = (
        f"short rounds launch {num_launched} prompts x {num_samples} responses "
        f"and take the first {num_prompts} x {num_responses}"
    )
    num_deferred = num_launched - num_prompts
    if settings.length_history:
        return _rounds_by_history(config, settings, settings.length_history, short, num_launched)
    if not num_deferred:
        return f"{config.system.name}: {short}; no prompt is deferred, so there are no long rounds"
    ratio = Fraction(num_prompts, num_deferred)
    return (
        f"{config.system.name}: {short}; the {num_deferred} slower prompts are deferred\n"
        f"long rounds run {num_prompts} deferred prompts x {num_responses} responses to their end\n"
        f"expected: {_number(ratio)} short rounds per long round"
    )


def _asynchronous(system: SystemSection, rules: AsyncSettings, num_prompts: int) -> str:
    num_ahead = math.floor(rules.lookahead * num_prompts)
    goes_on = "with its KV cache" if rules.interrupt == "keep" else "from its tokens"
    taken = "in the order of their prompts" if rules.order == "fifo" else "as they complete, those that are due first"
    return (
        f"{system.name}: a step ends with its batch, and what is unfinished goes on under the new weights {goes_on}\n"
        f"{num_prompts + num_ahead} prompts are admitted at first and {num_prompts} in each step: {num_ahead} ahead\n"
        f"a batch takes {num_prompts} of the complete groups, {taken}; nothing is aborted\n"
        f"expected: trained responses began {plural(float(rules.lookahead), 'step')} before their step on average, "
        f"and {rules.max_staleness} at most"
    )


def _rounds_by_history(
    config: RunConfig, settings: SchedulerSettings, history: LengthHistorySettings, short: str, num_launched: int
) -> str:
    num_prompts, num_responses = settings.num_prompts, settings.num_responses
    num_drawn = scale_up(num_launched, 1 / (1 - history.share))
    if history.races_at_first:
        at_first = (
            f"launch {scale_up(num_prompts, history.first_eta_prompts)} prompts x "
            f"{scale_up(num_responses, history.first_eta_responses)} responses"
        )
    else:
        at_first = "wait for every response"
    text = (
        f"{config.system.name}: {short}\n"
        f"{num_drawn} prompts are drawn for one, and the {num_drawn - num_launched} with the longest responses so far "
        "wait for a long round at once\n"
        f"long rounds run {num_prompts} prompts x {num_responses} responses to their end\n"
        f"rounds whose prompts are not all known, as in the first epoch, {at_first} (system.first_epoch)\n"
        f"expected: {_number(Fraction(num_prompts, num_drawn - num_prompts))} short rounds per long round once they are"
    )
    return text + "\nsystem.length_history has no effect in one epoch" if config.run.num_epochs == 1 else text


def _techniques(config: RunConfig, cluster: ClusterSize | ModelledCluster) -> str:
    """What the system does beside batching, and which of it has an effect in this run."""
    system, is_modelled = config.system, config.backend.name == "sim"
    lines = []
    if system.reward == "scheduled":
        has_programs = is_modelled or "sandbox" in config.reward.names
        lines.append(
            "programs that take much longer than correct ones are stopped"
            if has_programs
            else "no limits to adapt: no reward runs programs (reward=sandbox does)"
        )
    if system.planner:
        lines.append(_planner(config, cluster))
    if system.speculative_decoding:
        lines.append(draft_words(config))
    if system.stream:
        lines.append(_stream(config, cluster))
    return "\n".join(lines) or "none"


def _programs(config: RunConfig) -> str:
    """How responses that are programs are run."""
    sandbox = config.reward.sandbox
    isolation = "isolated by bubblewrap" if sandbox.isolation == "bubblewrap" else "NOT isolated (isolation=rlimits)"
    number = (
        "as many at a time as there are cores" if sandbox.num_workers is None else f"{sandbox.num_workers} at a time"
    )
    return f"{isolation}, {number}, each with {sandbox.memory_mb:,} MB and {sandbox.processes} processes"


def draft_words(config: RunConfig) -> str:
    """How draft tokens come, as one line."""
    vllm = config.engine.vllm
    if config.backend.name == "ray" and config.engine.name == "vllm":
        largest = f"batches of up to {vllm.draft_max_sequences}" if vllm.draft_max_sequences else "all batches"
        method = drafter_of(vllm)
        better = "" if vllm.drafter or method == "suffix" else f" (with {ARCTIC} installed, by suffix)"
        return f"vLLM verifies up to {vllm.draft_length} draft tokens by {method}{better} per sequence, in {largest}"
    acceptance = f", accepted with {config.workload.draft_acceptance:g}" if config.workload else ""
    return f"decode passes verify draft tokens{acceptance}: as many as pay at each batch size, or none"


def _planner(config: RunConfig, cluster: ClusterSize | ModelledCluster) -> str:
    """The degrees among which the planner chooses, and what a change does to the engines."""
    configured = config.engine.tensor_parallel
    degrees = cluster.degrees if isinstance(cluster, ModelledCluster) else degrees_of(config)
    others = sorted(set(degrees) - {configured})
    if not others:
        why = "no other degree fits" if isinstance(cluster, ModelledCluster) else "engine.degrees names no other"
        return f"no planning: engines keep tensor parallelism {configured}, since {why}"
    how = {"sleep": "asleep until then", "restart": "restarted at every change"}[config.engine.switch]
    named = " and ".join(map(str, others))
    text = f"rounds that preempt move to engines of more GPUs: from tensor parallelism {configured} to {named}, {how}"
    if isinstance(cluster, ModelledCluster):
        return f"{text}; the model's costs are the first estimate"
    profile = config.engine.profile
    return f"{text}; " + (f"{profile} is the first estimate" if profile else "no first estimate (engine.profile)")


def _stream(config: RunConfig, cluster: ClusterSize | ModelledCluster) -> str:
    """What streaming does in this run."""
    share = config.system.stream_at
    when = "before the rollout ends" if share is None else f"when {share:.0%} of the requests are finished"
    lending = f"up to half of the engines are lent to the trainer {when}: groups train on their GPUs"
    if isinstance(cluster, ModelledCluster):
        return lending if cluster.num_trainer_gpus is None else _OWN_GPUS
    placed = placed_actors(config, cluster)
    parts = trainer_parts(config, placed, cluster.num_gpus)
    sets = [engine_gpus(placed, cluster.num_gpus, degree) for degree in degrees_of(config)]
    if not any(can_stream(config, parts, engines) for engines in sets):
        return f"nothing streams to the trainer: {NOTHING_TO_LEND}"
    return lending if parts else _OWN_GPUS


def _lengths(config: RunConfig, model: ModelFacts) -> str:
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


def _steps(config: RunConfig, resolved: ResolvedRun) -> str:
    num_prompts = sum(resolved.num_prompts_by_domain.values())
    per_epoch = Fraction(num_prompts, config.rollout.num_prompts)
    if config.run.num_epochs is not None:
        by_epochs = math.ceil(per_epoch * config.run.num_epochs)
        limit = "run.num_epochs" if by_epochs < config.run.num_steps else "run.num_steps"
        num_steps = min(by_epochs, config.run.num_steps)
        return f"about {num_steps:,}, limited by {limit}; an epoch is {_number(per_epoch)} steps"
    epochs = Fraction(config.run.num_steps) / per_epoch
    return f"{config.run.num_steps:,}, which is {_number(epochs)} epochs of {_number(per_epoch)} steps"


def _evaluation(config: RunConfig, resolved: ResolvedRun) -> str:
    """What is evaluated, when, and what it costs in responses and, in a modelled run, in time."""
    section, num_steps = config.evaluation, config.run.num_steps
    sizes = {rule.name: (resolved.num_held_out[rule.name], rule.num_samples or 1) for rule in section.rules}
    num_responses = sum(prompts * samples for prompts, samples in sizes.values())
    turns = range(section.every_steps, num_steps + 1, section.every_steps) if section.every_steps else range(0)
    steps = {*turns, *([0] if section.at_start else []), *([num_steps] if section.at_end else [])}
    when = [
        *(["before the first step"] if section.at_start else []),
        *([f"every {section.every_steps} steps"] if section.every_steps else []),
        *(["after the last one"] if section.at_end else []),
    ]
    per_step = config.rollout.num_prompts * config.rollout.num_responses
    listed = ", ".join(f"{name} {prompts:,} x {samples}" for name, (prompts, samples) in sizes.items())
    if not config.trains:
        return f"{listed}: {num_responses:,} responses, once; nothing is trained"
    if not steps:
        return f"{listed}: never, by evaluation.every_steps, at_start and at_end"
    return (
        f"{listed}: {num_responses:,} responses, {' and '.join(when)}\n"
        f"{len(steps):,} evaluations, {len(steps) * num_responses:,} responses in all, where training has "
        f"{num_steps * per_step:,}\n{_cost_of_evaluation(config, resolved.cluster)}"
    )


def _cost_of_evaluation(config: RunConfig, cluster: ClusterSize | ModelledCluster) -> str:
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


def _writes(config: RunConfig) -> str:
    tracker = config.tracker
    named = {"tensorboard": tracker.tensorboard, "wandb": tracker.wandb, "tracker.jsonl": tracker.jsonl}
    trackers = [*(name for name, is_on in named.items() if is_on), *([tracker.plugin] if tracker.plugin else [])]
    text = f"{config.run.dir}/ (metrics, events, checkpoints, logs)"
    return f"{text}; also to {' and '.join(trackers)}" if trackers else text


def _number(value: Fraction) -> str:
    return f"{float(value):,.1f}".removesuffix(".0")


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"
