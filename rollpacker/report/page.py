"""The page: one self-contained HTML file about a run, or about a run beside another one.

`page.html.jinja` has its words and order; here is what it shows. Every number of a modelled run stands under a tag that
says so. A section whose data a run does not have says what is missing; those of rollout workers, environments and old
tokens are only of runs that have them. Steps count from 1 on the page, and from 0 in the tables.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jinja2
import numpy as np
import pandas as pd

from rollpacker import __version__
from rollpacker.paths import real_path
from rollpacker.report import environments, figures, held_out, workers
from rollpacker.report.curves import ages_of, curves_of
from rollpacker.report.cuts import AT_LIMIT
from rollpacker.report.story import STAGES, TOKEN_USES, Move, RunStory
from rollpacker.report.style import CYCLE_STEPS, OTHER_COLORS, PAGE_COLORS, color_of
from rollpacker.report.style import STAGES as STAGE_STYLES
from rollpacker.report.waits import KIND_NAMES
from rollpacker.report.words import count, digits, plural, ratio, seconds, share, tokens
from rollpacker.terminal import printable

NOTHING = "\N{EN DASH}"
"""Stands where a run has no such number."""

_STATES = {
    "running": "still running, or killed, when this page was written",
    "preempted": "left its machines with a checkpoint",
    "interrupted": "was interrupted",
}


class ShownRun(NamedTuple):
    """A run on the page."""

    story: RunStory
    name: str
    """Its folder; with the parent where two runs have the same."""
    color: str
    is_alone: bool

    @property
    def caption(self) -> str:
        """Before a sentence about it."""
        return "" if self.is_alone else f"{self.name}: "

    @property
    def suffix(self) -> str:
        """After what is said of it."""
        return "" if self.is_alone else f", {self.name}"

    @property
    def css_color(self) -> str:
        return next(f"var(--{name})" for name, (light, _) in PAGE_COLORS.items() if light == self.color)


def render(stories: Sequence[RunStory]) -> str:
    """Write the page of one run, or of two: the second is the one to compare with."""
    runs = _shown(stories)
    compared = _over_shared_steps(runs)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rollpacker.report", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {"seconds": seconds, "share": share, "plural": plural, "standing": _standing}
    page = environment.get_template("page.html.jinja").render(
        runs=runs,
        version=__version__,
        colors=PAGE_COLORS,
        stages=STAGE_STYLES,
        wait_names=KIND_NAMES,
        cycle_steps=CYCLE_STEPS,
        token_sentence=_token_sentence,
        verdict=_verdict(runs, compared) + _other_work(runs) if len(runs) > 1 else "",
        tiles=_tiles(compared or runs),
        facts=_facts_of(runs),
        **_time(runs, compared),
        **_activities(runs),
        **_lengths(runs),
        **held_out.section(runs),
        **environments.section(runs),
        **workers.section(runs),
        **curves_of(runs),
        **ages_of(runs),
        token_uses=[use for use in TOKEN_USES if any(run.story.waste[use].any() for run in runs)],
        tokens=figures.per_step(
            {run.name: run.story.waste for run in runs},
            _round_notes(runs),
            is_time=False,
            description="tokens of each step by what became of them",
        ),
    )
    return printable(page)


def _shown(stories: Sequence[RunStory]) -> list[ShownRun]:
    runs: list[ShownRun] = []
    for position, story in enumerate(stories):
        name = printable(story.name)  # before a figure draws it: no font has half of a surrogate pair
        if sum(printable(other.name) == name for other in stories) > 1:
            name = f"{printable(real_path(story.tables.run_dir).parent.name)}/{name}"
        if any(run.name == name for run in runs):
            name = f"{name} ({position + 1})"
        color = color_of(story.tables.system, position)
        if any(run.color == color for run in runs):
            color = OTHER_COLORS[position]
        runs.append(ShownRun(story, name, color, len(stories) == 1))
    return runs


def _standing(story: RunStory) -> str:
    """How far the run is, how it ended, where and when."""
    number = len(story.steps)
    status = story.status
    of = f" of {status.num_steps:,}" if status and status.num_steps != number else ""
    attempts = len(story.tables.logged.attempts)
    tries = f" in {plural(attempts, 'attempt')}" if attempts > 1 else ""
    state = _STATES.get(status.state, status.state) if status else "of unknown state"
    kind = "All times are modelled, none was measured." if story.is_modelled else "All times were measured."
    return f"{plural(number, 'step')}{of}{tries}, {state}. {kind}"


# What the page shows, section by section ----------------------------------------------------------------------------


def _over_shared_steps(runs: Sequence[ShownRun]) -> list[ShownRun]:
    """Each run as far as its steps, their stages and its evaluations are compared; empty where no step is in all."""
    shared = sorted(set.intersection(*(set(run.story.steps["step"]) for run in runs)))
    return [run._replace(story=_over(run.story, shared)) for run in runs] if shared else []


def _over(story: RunStory, steps: list[int]) -> RunStory:
    alone_s = story.held_out.alone_s
    return replace(
        story,
        steps=story.steps[story.steps["step"].isin(steps)],
        stages=story.stages.loc[steps],
        held_out=story.held_out._replace(alone_s=alone_s[alone_s.index <= steps[-1] + 1]),
    )


def _verdict(runs: Sequence[ShownRun], compared: Sequence[ShownRun]) -> str:
    """Which of two runs is faster, over the steps that both have."""
    if not compared:
        return f"{' and '.join(run.name for run in runs)} have no step in common: no time of them can be compared."
    number, times = len(compared[0].story.steps), {run.name: run.story.total_s for run in compared}
    (fast, fast_s), (slow, slow_s) = sorted(times.items(), key=lambda item: item[1])
    has_more = any(len(run.story.steps) > number for run in runs)
    rest = f" Tiles and means per step are over the {plural(number, 'step')} that both have." if has_more else ""
    if fast_s <= 0 or slow_s / fast_s < 1.005:  # noqa: PLR2004  (would print as 1.00)
        return f"{fast} and {slow} are equally fast: {plural(number, 'step')} took {seconds(fast_s)}.{rest}"
    return (
        f"{fast} is {ratio(slow_s / fast_s).removesuffix(' x')} times as fast as {slow}: {plural(number, 'step')} took "
        f"{seconds(fast_s)} instead of {seconds(slow_s)}.{rest}"
    )


def _other_work(runs: Sequence[ShownRun]) -> str:
    """That two runs are known to do other work, so that their times do not compare; empty otherwise."""
    rows = [(what, values) for what, values in _facts_of(runs) if what in _WORK and len({*values} - {NOTHING}) > 1]
    said = [f"{what} ({' and '.join(values)})" for what, values in rows]
    return f" They do not do the same work: they differ in {', '.join(said)}." if said else ""


def _tiles(runs: Sequence[ShownRun]) -> list[tuple[str, list[str]]]:
    edge = max(1, min(CYCLE_STEPS, *(len(run.story.steps) // 2 for run in runs)))
    tiles: dict[str, Callable[[RunStory], str]] = {
        "step, mean": lambda story: seconds(story.total_s / len(story.steps)),
        "sum of the step times": lambda story: seconds(story.total_s),
        "bubble ratio: idle decode slots": lambda story: share(story.bubble_ratio),
        "of the generated tokens wasted": lambda story: share(story.wasted_share),
        f"mean reward, first to last {plural(edge, 'step').removeprefix('1 ')}": partial(_reward_change, edge=edge),
    }
    if any(run.story.steps["num_engines_lost"].any() for run in runs):
        tiles["engines lost"] = lambda story: f"{int(story.steps['num_engines_lost'].sum())}"
    return [(what, [say(run.story) for run in runs]) for what, say in tiles.items()]


def _reward_change(story: RunStory, edge: int) -> str:
    rewards = story.steps["reward_mean"]
    if len(rewards) == 1:
        return f"{rewards.iloc[0]:.3g}"
    return f"{rewards.iloc[:edge].mean():.3g} → {rewards.iloc[-edge:].mean():.3g}"


def _facts_of(runs: Sequence[ShownRun]) -> list[tuple[str, list[str]]]:
    columns = [_facts(run.story) for run in runs]
    labels = dict.fromkeys(label for facts in columns for label in facts)
    return [(label, [facts.get(label, NOTHING) for facts in columns]) for label in labels]


def _facts(story: RunStory) -> dict[str, str]:
    steps, status = story.steps, story.status
    degrees = " and ".join(map(str, sorted({*steps["tensor_parallel"], *_degrees_at_first(steps)})))
    facts = {"system": story.tables.system}
    facts |= _settings(story, degrees) if story.config else {"engines": f"TP {degrees}"}
    if status:
        facts["host"] = f"{status.host}{f', Slurm job {status.job_id}' if status.job_id else ''}"
        facts["last written"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(status.updated_at))
    ended_s = steps["finished_at_s"]
    whole_s = float(ended_s.iloc[-1] - (ended_s.iloc[0] - steps["step_time_s"].iloc[0]))
    kind = "of modelled time " if story.is_modelled else ""
    facts["duration"] = f"{seconds(whole_s)} {kind}from its first step to its last"
    if status and status.num_gpus:
        hours = sum(ended_s - began_s for began_s, ended_s in story.tables.attempt_spans) / 3600
        facts["cost"] = f"{digits(status.num_gpus * hours)} GPU-hours of {plural(status.num_gpus, 'GPU')}"
        facts["cost"] += ", modelled" if story.is_modelled else ", without starting"
    if status and story.is_modelled:
        computed = "of which the last attempt was computed" if status.attempt else "computed"
        facts["duration"] += f", {computed} in {seconds(status.processor_s)}"
    facts["rounds"] = ", ".join(f"{number:,} {kind}" for kind, number in steps["round_kind"].value_counts().items())
    lost, replaced = int(steps["num_engines_lost"].sum()), int(steps["num_engines_replaced"].sum())
    facts["engines lost"] = f"{lost}, {replaced} replaced" if lost else "none"
    cause = ", over new weights too" if story.tables.is_async else ""
    said: dict[Move, str] = {
        "with its tokens": f"with their tokens{cause}",
        "before its first token": "before their first token",
        "began again": "began again after their engine was lost",
    }
    facts["moved requests"] = (
        ", ".join(f"{story.moves[how]:,} {words}" for how, words in said.items() if story.moves[how]) or "none"
    )
    if steps["num_members_mean"].notna().any():
        facts["rollout workers"] = _workers(steps)
    attempts = [attempt for attempt in story.tables.logged.attempts if attempt.first_step is not None]
    if len(attempts) > 1:
        facts["attempts"] = "; ".join(f"{each.number} from step {each.first_step + 1}" for each in attempts)  # type: ignore[operator]
    return facts


def _workers(steps: pd.DataFrame) -> str:
    """What engines of rollout workers did, and what became of their tokens when they went."""
    of_members, lost = int(steps["tokens_of_members"].sum()), int(steps["num_members_lost"].sum())
    generated = max(1, int(steps["tokens_generated"].sum()))
    said = [
        f"{steps['num_members_mean'].mean():.3g} engines on average",
        f"{share(of_members / generated)} of the generated tokens",
    ]
    if lost:
        said.append(f"{lost:,} went, {int(steps['tokens_saved'].sum()):,} tokens of theirs kept")
    if reclaims := int(steps["num_reclaims"].sum()):
        said.append(f"lent engines taken back {plural(reclaims, 'time')}")
    return ", ".join(said)


def _settings(story: RunStory, degrees: str) -> dict[str, str]:
    config = story.config
    model, rollout, engine, trainer, reward = (
        config.get(key) or {} for key in ("model", "rollout", "engine", "trainer", "reward")
    )
    shape = model.get("shape") or {}
    unknown = f"{shape.get('num_layers')} layers, hidden size {shape.get('hidden_size')} (only its shape is known)"
    limit = rollout.get("max_response_tokens")
    degree = engine.get("tensor_parallel")
    layout = [f"{short} {size}" for short, key in _PARALLEL.items() if (size := trainer.get(key) or 1) != 1]
    hardware = plural(story.status.num_gpus, "GPU") if story.status else NOTHING
    if story.is_modelled:
        hardware = f"modelled {(config.get('hardware') or {}).get('name') or 'hardware'}"
    return {
        "model": str(model.get("path") or model.get("name") or (unknown if shape else "unknown")),
        "batch": f"{rollout.get('num_prompts')} prompts x {rollout.get('num_responses')} responses, "
        f"{tokens(limit) if isinstance(limit, int) else 'an unknown number of tokens'} at most",
        **_techniques(story),
        "hardware": hardware,
        "engines": f"{engine.get('num_engines')} x TP {degree}"
        + ("" if story.is_modelled else f", {engine.get('name')}")
        + ("" if degrees == str(degree) else f"; rounds ran with TP {degrees}"),
        "trainer": ", ".join([*([] if story.is_modelled else [str(trainer.get("name"))]), *layout]) or "1 rank",
        "reward": _scored_by(reward),
        "seed": str((config.get("run") or {}).get("seed")),
    }


def _degrees_at_first(steps: pd.DataFrame) -> pd.Series[int]:
    """The degree of tensor parallelism that each round began with: its tail may have had another."""
    return steps["escalated_from"].fillna(steps["tensor_parallel"]).astype(int)


def _scored_by(reward: Mapping[str, Any]) -> str:
    """The reward of most domains, then those of single ones."""
    own = reward.get("function") or reward.get("url") or " + ".join(reward.get("parts") or ()) or reward.get("name")
    return ", ".join([str(own), *(f"{domain}: {name}" for domain, name in (reward.get("domains") or {}).items())])


_WORK = ("model", "batch", "hardware", "reward")
"""Facts in which runs must be alike for their times to compare."""

_PARALLEL = {
    "TP": "tensor_parallel",
    "PP": "pipeline_parallel",
    "CP": "context_parallel",
    "DP": "data_parallel",
}


def _techniques(story: RunStory) -> dict[str, str]:
    """What the system used in these steps, and what it has and never used."""
    system, steps = story.config.get("system") or {}, story.steps
    batching = system.get("batching")
    used = [f"{batching} batches"]
    if system.get("max_staleness"):
        ages = f"{system.get('lookahead'):g} ahead, {system['max_staleness']} versions old at most"
        kept = ", requests kept over new weights" if system.get("interrupt") == "keep" else ""
        used = [f"asynchronous batches ({ages}{kept})"]
    if batching not in {"plain", None}:
        etas = f"eta {system.get('eta_prompts')} of prompts, {system.get('eta_responses')} of responses"
        used = [f"{batching} batching ({etas})"]
    reward = story.config.get("reward") or {}
    kinds = {reward.get("name"), *(reward.get("domains") or {}).values()}
    if system.get("reward") != "batch":
        used.append("rewards during the rollout")
    unused: list[str] = []
    for name, is_configured, has_acted in (
        ("adaptive limits for programs", system.get("reward") == "scheduled", bool(kinds & {"sandbox", "modelled"})),
        ("length history", system.get("length_history"), (steps["num_prompts_deferred_at_once"] > 0).any()),
        ("parallelism planner", system.get("planner"), _degrees_at_first(steps).nunique() > 1),
        ("draft tokens", system.get("speculative_decoding"), (steps["draft_tokens_accepted"] > 0).any()),
        ("dynamic sampling", system.get("dynamic_sampling"), (steps["num_prompts_dropped"] > 0).any()),
        ("stream trainer", system.get("stream"), (steps["tokens_streamed"] > 0).any()),
    ):
        if is_configured:
            (used if has_acted else unused).append(name)
    return {"techniques": ", ".join(used)} | ({"configured, never acted": ", ".join(unused)} if unused else {})


def _time(runs: Sequence[ShownRun], compared: Sequence[ShownRun]) -> dict[str, Any]:
    """Means over the steps that all runs have, or over each one's own where there are none; and every step."""
    used = [stage for stage in STAGES if any(run.story.stages[stage].sum() > 0 for run in runs)]
    inside = [stage for stage in used if stage != "checkpoint"]
    of_means = compared or runs
    means = {run.name: run.story.stages[used].sum() / len(run.story.steps) for run in of_means}
    whole = {name: float(values[inside].sum()) for name, values in means.items()}
    evaluations = {run.name: float(run.story.held_out.alone_s.sum()) / len(run.story.steps) for run in of_means}
    between = [
        *(["checkpoint"] if "checkpoint" in used else []),
        *(["evaluation"] if any(evaluations.values()) else []),
    ]
    rows = []
    for stage in (*inside, "step", *between):
        by_name = {"step": whole, "evaluation": evaluations}.get(stage)
        values = [by_name[run.name] if by_name else float(means[run.name][stage]) for run in runs]
        shares = [
            "" if stage in between else share(value / whole[run.name] if whole[run.name] else 0.0)
            for run, value in zip(runs, values, strict=True)
        ]
        times = "" if len(runs) == 1 else _times(values) if compared else NOTHING
        rows.append((stage, list(zip(values, shares, strict=True)), times))
    return {
        "used_stages": used,
        "stage_rows": rows,
        "mean_steps": figures.mean_steps(
            {name: {stage: float(values[stage]) for stage in inside} for name, values in means.items()}
        ),
        "each_step": figures.per_step(
            {run.name: run.story.stages[used] for run in runs},
            _round_notes(runs),
            is_time=True,
            description="seconds of each step by stage",
        ),
    }


def _times(means: Sequence[float]) -> str:
    """How often the first run's mean fits into the second's."""
    return ratio(means[1] / means[0]) if means[0] > 0 and means[1] > 0 else NOTHING


def _round_notes(runs: Sequence[ShownRun]) -> dict[str, dict[int, str]]:
    """What kind of round each step was."""
    steps = {run.name: run.story.steps for run in runs}
    return {
        name: {step: f"{kind} round" for step, kind in zip(frame["step"], frame["round_kind"], strict=True)}
        for name, frame in steps.items()
    }


def _activities(runs: Sequence[ShownRun]) -> dict[str, Any]:
    pictures = {run.name: run.story.picture for run in runs}
    uses = {run.name: run.story.engines for run in runs}
    drawn = {
        figures.stage_of(activity)
        for picture in pictures.values()
        for spans in (
            *(spans for _, spans in figures.actor_rows(picture)),
            *(row.others for row in figures.evenly(picture.engines, figures.MOST_ENGINES)),
        )
        for activity, _, _ in spans
    }
    did = {stage for of_run in uses.values() for use in of_run.values() for stage, value in use.parts.items() if value}
    return {
        "drawn_stages": [stage for stage in STAGE_STYLES if stage in drawn | {"requests"}],
        "one_step": figures.one_step(pictures),
        "engine_stages": [stage for stage in STAGE_STYLES if stage in did],
        "engines": figures.engine_use(uses),
    }


def _lengths(runs: Sequence[ShownRun]) -> dict[str, Any]:
    domains = sorted({domain for run in runs for domain in run.story.lengths})
    rows = []
    for domain in domains:
        for run in [run for run in runs if domain in run.story.lengths]:
            values, cut = run.story.lengths[domain], run.story.num_cut[domain][AT_LIMIT]
            quantiles = np.quantile(values, (0.5, 0.9, 0.99), method="inverted_cdf")
            cells = [count(value) for value in (len(values), values.mean(), *quantiles, values[-1])]
            rows.append((run, domain, [*cells, f"{cut:,} ({share(cut / len(values))})"]))
    limits = [(run.story.config.get("rollout") or {}).get("max_response_tokens") for run in runs]
    drawn = {name: {run.name: run.story.lengths[name] for run in runs if name in run.story.lengths} for name in domains}
    return {
        "length_titles": ("responses", "mean", "median", "P90", "P99", "longest", AT_LIMIT),
        "length_rows": rows,
        "lengths": figures.lengths(
            drawn, {run.name: run.color for run in runs}, max(filter(None, limits), default=None)
        )
        if domains
        else "",
    }


def _token_sentence(story: RunStory) -> str:
    steps = story.steps
    streamed = steps["tokens_streamed"].sum() / max(1, steps["tokens_trained"].sum())
    mismatch = steps["logprob_mismatch_max"].max()
    written = ", those that environments wrote too" if steps["num_turns_mean"].notna().any() else ""
    said = (
        f"{tokens(steps['tokens_generated'].sum())} generated{written}, {count(steps['tokens_wasted'].sum())} of them "
        f"({share(story.wasted_share)}) wasted; {share(streamed)} of the trained ones reached the trainer while the "
        "rollout still ran. "
    )
    if oldest := int(steps["staleness_max"].max()):
        mean = (steps["staleness_mean"] * steps["tokens_trained"]).sum() / max(1, steps["tokens_trained"].sum())
        said += f"A trained token was {digits(mean)} policy versions old in the mean, and {oldest} at most."
    else:
        said += "Every trained token came from the current policy (staleness 0)."
    if math.isfinite(mismatch):
        said += f" Engine and trainer differ by at most {mismatch:.2g} nats per token."
    return said
