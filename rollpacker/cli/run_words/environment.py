"""What answers the turns of a run, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.report.words import plural

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.config.sections.modelled_environment import ModelledEnvironmentSection


def environment_words(config: RunConfig) -> str:
    """Say what answers the turns, and within which limits."""
    if config.modelled_environment:
        return _modelled_environment(config.modelled_environment)
    environment = config.environment
    assert environment is not None
    named = environment.env or environment.loop or f"{environment.name} ({', '.join(environment.tools)})"
    where = ", on all nodes" if environment.nodes == "all" else ""
    where = ", on nodes of their own" if config.num_environment_nodes else where
    isolation = (
        f"isolated by bubblewrap with{'' if environment.network else 'out'} network"
        if environment.isolation == "bubblewrap"
        else "not isolated (isolation=rlimits)"
    )
    return (
        f"{named} answers up to {plural(environment.max_turns, 'turn')} of a response; what it says is "
        "context, and never trained\n"
        f"{environment.max_open} at a time, each in a process of its own{where}, {isolation}; a reset may take "
        f"{environment.reset_timeout_s:g} s, a turn {environment.turn_timeout_s:g} s, all turns "
        f"{environment.episode_timeout_s:g} s; what fails begins again up to {environment.max_restarts} times"
    )


def _modelled_environment(section: ModelledEnvironmentSection) -> str:
    shape = "log-normal" if section.latency == "log_normal" else "normal, not below 0"
    failures = [
        f"{share:.3g} of them {what}"
        for share, what in (
            (section.fail_slow_share, f"stall once for {section.fail_slow_s:g} s more"),
            (section.fail_stop_share, "never answer again from some turn on"),
        )
        if share
    ]
    what = (
        f"MODELLED {section.name}: {_spread(section.turns_mean, section.turns_std)} turns, each answered with "
        f"{plural(section.observation_tokens, 'token')} after "
        f"{_spread(section.latency_mean_s, section.latency_std_s)} s ({shape})"
    )
    limits = f"a turn may take {section.turn_timeout_s:g} s, or begins again, up to {section.max_restarts} times"
    together = "all trajectories wait for the environments of all after each turn"
    return "; ".join([what, *failures, limits, *([together] if section.pace == "batch" else [])])


def _spread(mean: float, deviation: float) -> str:
    return f"{mean:g} ± {deviation:g}" if deviation else f"{mean:g}"
