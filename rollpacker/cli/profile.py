"""`rollpacker profile`: measures engines, trainer, reward and weight transfer, and writes a profile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.cli.arguments import OVERWRITE, Arguments, is_overwriting
from rollpacker.cli.command_help import INPUTS, KEYS_OF_TRAIN, CommandHelp
from rollpacker.cli.temporary_folder import temporary_folder
from rollpacker.core.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from rollpacker.config.schema import RunConfig
    from rollpacker.metrics.profiles import Point, Profile, ProfileFacts

DEFAULTS = {"out": "", "overwrite": ""}

LEAST_SLOTS = 3
"""Of an engine, for a sequence whose passes are timed and the two short requests that they lie between."""

ROWS_SHOWN = 3
"""Of each measurement: the smallest, one in the middle, the largest."""


HELP = CommandHelp(
    purpose=(
        "Measure what engines, trainer, reward and weight transfer take on this machine, one node, by the calls that "
        "a run makes, and write it to one JSON file. A modelled run reads it: backend=sim hardware.profile=FILE."
    ),
    usage="out=FILE [overwrite=true] [key=value | group=option] ...",
    arguments=(
        ("out", "The JSON file to write."),
        OVERWRITE,
        KEYS_OF_TRAIN,
    ),
    examples=(f"rollpacker profile {INPUTS} \\\n    reward=math out=profile.json",),
)


def run(arguments: Arguments) -> None:
    """Validate everything, measure, write, and show."""
    from rollpacker.cli.run_facts import run_facts_of
    from rollpacker.cli.settings import parse_settings
    from rollpacker.config.compose import compose
    from rollpacker.profiling.workload import LEAST_TOKENS
    from rollpacker.runtime.placing.automatic import complete
    from rollpacker.runtime.run.preflight import validate

    keys, settings = parse_settings("profile", arguments.words, DEFAULTS, example="out=p.json", takes_keys=True)
    if not settings["out"]:
        raise ConfigError("`out` is not set.", "It is the JSON file to write.", "Add out=profile.json.")
    out, can_replace = Path(settings["out"]), is_overwriting(settings)
    _check_one_node(os.environ)
    config = compose(keys, complete)
    if config.backend.name != "ray":
        raise ConfigError(
            f"backend.name={config.backend.name} with `rollpacker profile`.",
            "A profile is measured on real engines.",
            "Leave out backend=sim; give the profile to a modelled run by hardware.profile.",
        )
    if config.engine.max_num_seqs < LEAST_SLOTS:
        raise ConfigError(
            f"engine.max_num_seqs={config.engine.max_num_seqs} with `rollpacker profile`.",
            "Decoding is timed of a sequence between two short ones.",
            f"Set engine.max_num_seqs={LEAST_SLOTS} or more.",
        )
    prompt, response = config.data.max_prompt_tokens, config.rollout.max_response_tokens
    if prompt + response < LEAST_TOKENS:
        raise ConfigError(
            f"data.max_prompt_tokens={prompt} and rollout.max_response_tokens={response} with `rollpacker profile`.",
            f"Decoding is timed over a window of passes: together they are at least {LEAST_TOKENS}.",
            f"Set rollout.max_response_tokens={LEAST_TOKENS - prompt} or more.",
        )
    _check_out(out, can_replace=can_replace)
    validate(config, run_facts_of)
    profile = _measure(config)

    from rollpacker.metrics.profiles import write_profile

    write_profile(out, profile)
    _show(profile, out)


def _check_one_node(environment: Mapping[str, str]) -> None:
    """Refuse a job of several nodes, whose GPUs would be counted and not used."""
    from rollpacker.runtime.job.allocation import current_allocation

    allocation = current_allocation(environment)
    if allocation and len(allocation.node_names) > 1:
        raise ConfigError(
            f"`rollpacker profile` in a Slurm step of {len(allocation.node_names)} nodes.",
            "It measures what one node has.",
            "Start it by `srun --nodes=1 --ntasks=1`.",
        )


def _check_out(out: Path, *, can_replace: bool) -> None:
    """Refuse, before anything starts, a file that could not or should not be written."""
    from rollpacker.metrics.outputs import check_output
    from rollpacker.runtime.run.folder_checks import check_creatable

    check_output(out, can_replace=can_replace)
    if out.suffix != ".json":
        raise ConfigError(f"out={out} does not end in .json.", "A profile is a JSON file.", "Rename it.")
    check_creatable("out", out)


def _measure(config: RunConfig) -> Profile:
    import asyncio
    import signal

    from rollpacker.cli.screen import profile_progress
    from rollpacker.profiling.profiler import measure
    from rollpacker.runtime.ray.backend import RayBackend

    facts = _facts(config)

    heard: list[signal.Signals] = []

    def leave(number: signal.Signals) -> None:
        """End as after Ctrl-C, which `asyncio.run` handles."""
        heard.append(number)
        signal.raise_signal(signal.SIGINT)

    async def measured(logs: Path) -> Profile:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` has it
                asyncio.get_running_loop().add_signal_handler(number, leave, number)
        with profile_progress() as progress:
            return await measure(
                config,
                RayBackend(config, allocation=None),
                facts,
                logs=logs,
                on_progress=progress.points,
                on_note=progress.note,
            )

    with temporary_folder("profile") as logs:
        try:
            return asyncio.run(measured(logs))
        except KeyboardInterrupt:
            if not heard:
                raise
            name, number = heard[0].name, heard[0].value
            raise Interrupted(f"{name} ended the measurement.", "Nothing is kept.", "Give it again.", number) from None


def _facts(config: RunConfig) -> ProfileFacts:
    from datetime import datetime

    from rollpacker import __version__
    from rollpacker.data.shapes import transformer_of
    from rollpacker.metrics.profiles import ProfileFacts
    from rollpacker.runtime.placing.actors import have_engines_gpus, planned_actors
    from rollpacker.runtime.placing.host import hardware_name
    from rollpacker.runtime.ray.actors import COLLECT_INTERVAL_S

    model = transformer_of(config.model)
    ranks = [actor for actor in planned_actors(config) if actor.role == "trainer"]
    return ProfileFacts(
        hardware=hardware_name(has_gpus=have_engines_gpus(config)),
        model=model.shape.model_dump_json(),
        dtype=config.model.dtype,
        num_parameters=model.num_parameters,
        num_weight_bytes=model.num_weight_bytes,
        engine=config.engine.name,
        trainer=config.trainer.name,
        num_engines=config.engine.num_engines,
        engine_threads=config.engine.num_threads,
        trainer_threads=config.trainer.num_threads,
        collect_interval_s=COLLECT_INTERVAL_S,
        measured_on=datetime.now().astimezone().date().isoformat(),
        rollpacker_version=__version__,
        num_trainer_gpus=sum(rank.resources.num_gpus > 0 for rank in ranks) or None,
    )


def _show(profile: Profile, out: Path) -> None:
    from rollpacker.cli.screen import facts, heading, output
    from rollpacker.sim.profile import note_on_endings

    rows = []
    for kv in profile.of("kv_cache"):
        label = f"KV cache, TP {kv.tensor_parallel}" if _has_degrees(profile, "kv_cache") else "KV cache"
        rows.append((label, f"{kv.num_tokens:,.0f} tokens of {kv.num_bytes:,} bytes per engine"))
    if note := note_on_endings(profile):
        rows.append(("note", note))
    rows.append(("written to", f"{out}   (give it to a modelled run: hardware.profile={out})"))
    console = output()
    console.print(heading(f"Measured on {profile.facts.hardware}, {profile.facts.measured_on}"))
    console.print(_table(profile))
    console.print(facts(rows))


def _has_degrees(profile: Profile, measurement: str) -> bool:
    """True where several degrees of tensor parallelism were measured."""
    return len({point.tensor_parallel for point in profile.of(measurement)}) > 1


def _table(profile: Profile) -> Table:
    """Some points of each measurement, of each degree of tensor parallelism where there are several."""
    from rich import box
    from rich.table import Table

    from rollpacker.metrics.profiles import MEASUREMENTS

    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("")
    several = [measurement for measurement in MEASUREMENTS if _has_degrees(profile, measurement)]
    for title in (*(["TP"] if several else []), "items", "tokens", "median", "10 %", "90 %"):
        table.add_column(title, justify="right")
    for measurement, label in MEASUREMENTS.items():
        if not label:
            continue
        for degree in sorted({point.tensor_parallel for point in profile.of(measurement)}):
            own = [str(degree) if measurement in several else ""] if several else []
            for index, point in enumerate(_chosen(profile.of(measurement, degree))):
                times = (f"{1000 * value:.2f} ms" for value in (point.seconds, point.seconds_low, point.seconds_high))
                numbers = (f"{number:,.0f}" if number else "" for number in (point.num_items, point.num_tokens))
                table.add_row("" if index else label, *own, *numbers, *times)
    return table


def _chosen(points: Sequence[Point]) -> Sequence[Point]:
    """The smallest, one in the middle, the largest."""
    ordered = sorted(points, key=lambda point: (point.num_items, point.num_tokens))
    return ordered if len(ordered) <= ROWS_SHOWN else [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
