"""How an asynchronous run divides its GPUs, in words, beside what theory suggests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.config.gpu_map import map_text
from rollpacker.config.modelled_gpus import modelled_gpus
from rollpacker.protocols.backend import ModelledCluster
from rollpacker.report.words import digits, plural
from rollpacker.runtime.placing.planning import placed_actors
from rollpacker.runtime.placing.pools import last_gpus
from rollpacker.sim.split import suggested_gpus, theory_of

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.runtime.placing.actors import ClusterSize

_HOW_TO_KNOW = (
    "theory's split is not known: it takes what engines and trainer cost here (`rollpacker profile ... out=P`) and how "
    "long responses are (RUN, a recorded run);\n"
    "rollpacker check backend=sim hardware.profile=P workload.lengths=RUN, with this model, batch and system, prints it"
)


def split_words(config: RunConfig, cluster: ClusterSize | ModelledCluster) -> str:
    """Say it in a line or more, of a run with `system.max_staleness`."""
    if isinstance(cluster, ModelledCluster):
        return _modelled_split(config)
    placed = placed_actors(config, cluster)
    gpus = {
        role: {(actor.node, gpu) for actor in placed if actor.role == role for gpu in actor.gpus} for role in _ROLES
    }
    if not gpus["engine"]:
        return f"engines and trainer work on cores, at the same time\n{_HOW_TO_KNOW}"
    if gpus["engine"] & gpus["trainer"]:
        return _IN_TURNS
    engines, trainer = (len(gpus[role]) for role in _ROLES)
    return f"{plural(engines, 'GPU')} generate, {trainer} train\n{_HOW_TO_KNOW}"


_ROLES = ("engine", "trainer")

_IN_TURNS = (
    "engines and trainer take turns on the same GPUs: what is unfinished waits while the trainer learns "
    "(partial rollouts)"
)


def _modelled_split(config: RunConfig) -> str:
    gpus = modelled_gpus(config)
    if not gpus.has_pools:
        return _IN_TURNS
    if config.modelled_environment:
        used = len(gpus.of_trainer)
        return f"{used} of {plural(gpus.number, 'GPU')} train; theory has no term for what environments take"
    theory, bound = theory_of(config), config.system.max_staleness
    used = len(gpus.of_trainer)
    in_use = (
        f"{used} of {plural(gpus.number, 'GPU')} train ({used / gpus.number:.0%}): a step takes at most "
        f"{digits(theory.split_s(used / gpus.number, bound))} s; synchronous, in turns on all GPUs, "
        f"{digits(theory.synchronous_s)} s"
    )
    lines = [in_use]
    for formula, share in (
        ("ROLL Flash's formula", theory.trainer_share(bound)),
        ("the tighter bound", theory.tighter_trainer_share(bound)),
    ):
        number = suggested_gpus(config, gpus.number, share)
        if number is None:
            lines.append(f"{formula}: {share:.0%} of the GPUs train, and the model fits on no such split")
            continue
        lines.append(
            f"{formula}: {share:.0%} of the GPUs train; {number} of them hold the model: at most "
            f"{digits(theory.split_s(number / gpus.number, bound))} s{_words(config, number)}"
        )
    lines.append(
        f"by N = {theory.num_samples:,} responses a step, mu_g = {digits(theory.generation_s)} and mu_t = "
        f"{digits(theory.training_s)} GPU-seconds for each, L = {digits(theory.longest_s)} s for the longest; upper "
        "bounds, without weight transfer and rewards"
    )
    if config.system.lookahead < bound:
        lines.append(
            f"theory is of a lead equal to the bound; with system.lookahead={config.system.lookahead:g} engines may "
            "run out of prompts while the trainer works, and a step may take longer"
        )
    return "\n".join(lines)


def _words(config: RunConfig, num_trainer_gpus: int) -> str:
    """The keys that choose a split, where it is not the one in use."""
    assert config.hardware is not None
    gpus, per_node = modelled_gpus(config), config.hardware.gpus_per_node
    if num_trainer_gpus == len(gpus.of_trainer) or gpus.number != gpus.num_nodes * per_node:
        return ""
    text = map_text(last_gpus(num_trainer_gpus, gpus.num_nodes, per_node))
    quoted = f"'{text}'" if "," in text or " " in text else text
    keys = f"hardware.num_nodes={gpus.num_nodes} engine.num_engines=null placement.engine=rest"
    return f", by {keys} placement.trainer={quoted}"
