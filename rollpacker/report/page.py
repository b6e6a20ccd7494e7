"""The page: one self-contained HTML file about a run, or about a run beside another one.

Every number of a modelled run stands under a tag that says so. A section whose data the run does not have says what is
missing, and is never left out silently.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rollpacker import __version__
from rollpacker.report import charts
from rollpacker.report.charts import Line
from rollpacker.report.look import SCRIPT, STAGE_COLORS, STAGE_NAMES, STYLE
from rollpacker.report.story import STAGES
from rollpacker.report.waits import KIND_NAMES
from rollpacker.report.words import count, plural, ratio, seconds, share, tokens
from rollpacker.timeline.stretches import natural_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollpacker.report.story import RunStory

WIDE, HALF = 1120, 546
"""Pixels of a chart that stands alone, and of one beside another, on a page of 1180."""

MOST_TILES_IN_A_ROW = 6

MOST_ENGINES = 48
"""More engines are drawn by an even choice of them."""

NOTHING = "\N{EN DASH}"
"""Stands where a run has no such number."""

_RUN_COLORS = ("run-a", "run-b")
_NUM_DOMAIN_COLORS = 6


def render(stories: Sequence[RunStory]) -> str:
    """Write the page of one run, or of two: the second is what the first is held against."""
    title = " against ".join(_label(story, stories) for story in stories)
    sections = [
        _header(stories),
        _tiles(stories),
        _what_ran(stories),
        _time(stories),
        _picture(stories),
        _engines(stories),
        _waits(stories),
        _lengths(stories),
        _rewards(stories),
        _tokens(stories),
        _footer(stories),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{_e(title)}</title><style>{STYLE}</style></head><body><main>{''.join(sections)}</main>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


# Parts of the page ------------------------------------------------------------------------------------------------


def _header(stories: Sequence[RunStory]) -> str:
    first = stories[0]
    title = _e(_label(first, stories)) + _tag(first)
    if len(stories) > 1:
        title += f' <span class="soft">against</span> {_e(_label(stories[1], stories))}{_tag(stories[1])}'
    lead = " ".join(_standing(story, stories) for story in stories)
    notes = [
        f"{_e(_label(story, stories))}: {_e(note)}" if len(stories) > 1 else _e(note)
        for story in stories
        for note in _missing(story)
    ]
    shown = "".join(f'<p class="note">{note}</p>' for note in notes)
    return f"<button>light / dark</button><h1>{title}</h1><p class='soft'>{lead}</p>{shown}"


def _standing(story: RunStory, stories: Sequence[RunStory]) -> str:
    steps = len(story.steps)
    planned = story.status.num_steps if story.status else None
    state = story.status.state if story.status else "of unknown state"
    words = {
        "finished": "finished",
        "running": "still running, or ended without a word, when this page was written",
        "departed": "left its machines with a checkpoint",
        "failed": "failed",
        "interrupted": "was interrupted",
    }
    name = f"{_label(story, stories)}: " if len(stories) > 1 else ""
    of = f" of {planned:,}" if planned is not None and planned != steps else ""
    attempts = len(story.tables.logged.attempts)
    tries = f" in {plural(attempts, 'attempt')}" if attempts > 1 else ""
    kind = "All times are modelled, none was measured." if story.is_modelled else "All times were measured."
    return _e(f"{name}{plural(steps, 'step')}{of}{tries}, {words.get(state, state)}. {kind}")


def _missing(story: RunStory) -> list[str]:
    notes = list(story.tables.notes)
    if story.config is None:
        notes.append("There is no config.yaml: the run is older than that file, and its settings are not shown.")
    if story.status is not None and story.status.reason:
        notes.append(f"{story.status.state}: {story.status.reason}")
    return notes


def _tiles(stories: Sequence[RunStory]) -> str:
    tiles = [
        (what, [say(story) for story in stories])
        for what, say in (
            ("per step, mean", lambda story: seconds(story.total_s / len(story.steps))),
            ("sum of the step times", lambda story: seconds(story.total_s)),
            ("of the decode slots idle in rollouts", lambda story: share(story.bubble_ratio)),
            ("of the generated tokens wasted", lambda story: share(story.wasted_share)),
            ("mean reward, first to last steps", _reward_change),
            ("engines lost", lambda story: f"{int(story.steps['num_engines_lost'].sum())}"),
        )
    ]
    if len(stories) > 1:
        number = _common_steps(stories)
        mine, theirs = (float(story.steps["step_time_s"].iloc[:number].sum()) for story in stories)
        text = f"{_label(stories[1], stories)} over {_label(stories[0], stories)}: sums of {plural(number, 'step')}"
        tiles.insert(0, (text, [_times((mine, theirs))]))
    if not any(story.steps["num_engines_lost"].any() for story in stories):
        tiles = [tile for tile in tiles if tile[0] != "engines lost"]
    cells = []
    for what, values in tiles:
        beside = f"<em>{_e(_label(stories[1], stories))}: {_e(values[1])}</em>" if len(values) > 1 else ""
        cells.append(f'<div class="tile"><b>{_e(values[0])}</b><span>{_e(what)}{beside}</span></div>')
    columns = len(cells) if len(cells) <= MOST_TILES_IN_A_ROW else 4
    return f'<div class="tiles" style="--columns:{columns}">{"".join(cells)}</div>'


def _reward_change(story: RunStory) -> str:
    rewards = story.steps["reward_mean"]
    edge = max(1, len(rewards) // 10)
    if len(rewards) == 1:
        return f"{rewards.iloc[0]:.3g}"
    return f"{rewards.iloc[:edge].mean():.3g} → {rewards.iloc[-edge:].mean():.3g}"


def _what_ran(stories: Sequence[RunStory]) -> str:
    columns = [_facts(story) for story in stories]
    labels = list(dict.fromkeys(label for facts in columns for label in facts))
    head = ""
    if len(stories) > 1:
        head = "<tr><th></th>" + "".join(f"<th>{_e(_label(story, stories))}</th>" for story in stories) + "</tr>"
    rows = "".join(
        f"<tr><td>{_e(label)}</td>{''.join(f'<td>{_e(facts.get(label, NOTHING))}</td>' for facts in columns)}</tr>"
        for label in labels
    )
    return f'<h2>What ran</h2><table class="facts">{head}{rows}</table>'


def _facts(story: RunStory) -> dict[str, str]:
    steps = story.steps
    kinds = steps["round_kind"].value_counts()
    degrees = sorted(set(steps["tensor_parallel"]))
    facts = {"system": story.tables.system}
    config = story.config or {}
    if config:
        rollout, system, engine, trainer = (config.get(key) or {} for key in ("rollout", "system", "engine", "trainer"))
        model = config.get("model") or {}
        facts["model"] = str(model.get("path") or _shape(model.get("shape") or {}))
        facts["batch"] = (
            f"{rollout.get('num_prompts')} prompts x {rollout.get('num_responses')} responses, "
            f"{_tokens_or_unknown(rollout.get('max_response_tokens'))} at most"
        )
        facts["techniques"] = _techniques(system)
        facts["engines"] = f"{engine.get('num_engines')} x TP {engine.get('tensor_parallel')}{_engine_name(story)}"
        if len(degrees) > 1:
            facts["engines"] += f"; rounds ran with TP {' and '.join(map(str, degrees))}"
        layout = [
            f"{name} {trainer.get(key)}"
            for name, key in (
                ("TP", "tensor_parallel"),
                ("PP", "pipeline_parallel"),
                ("CP", "context_parallel"),
                ("DP", "data_parallel"),
            )
            if trainer.get(key) and trainer.get(key) != 1
        ]
        facts["trainer"] = ", ".join([*([] if story.is_modelled else [str(trainer.get("name"))]), *layout]) or "1 rank"
        facts["reward"] = str((config.get("reward") or {}).get("name"))
        facts["seed"] = str((config.get("run") or {}).get("seed"))
    else:
        facts["engines"] = f"TP {', '.join(map(str, degrees))}"
    facts["rounds"] = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
    lost, replaced = int(steps["num_engines_lost"].sum()), int(steps["num_engines_replaced"].sum())
    facts["engines lost"] = f"{lost}, {replaced} replaced" if lost else "none"
    moved = [f"{story.num_evicted:,} with their tokens"] if story.num_evicted else []
    moved += [f"{story.num_restarted:,} began again after their engine was lost"] if story.num_restarted else []
    facts["moved requests"] = ", ".join(moved) or "none"
    attempts = [attempt for attempt in story.tables.logged.attempts if attempt.first_step is not None]
    if len(attempts) > 1:
        facts["attempts"] = "; ".join(f"{attempt.number} from step {attempt.first_step}" for attempt in attempts)
    return facts


def _shape(shape: dict[str, Any]) -> str:
    if not shape:
        return "unknown"
    return f"{shape.get('num_layers')} layers, hidden size {shape.get('hidden_size')} (only its shape is known)"


def _tokens_or_unknown(value: object) -> str:
    return tokens(value) if isinstance(value, int) else "an unknown number of tokens"


def _engine_name(story: RunStory) -> str:
    config = story.config or {}
    if story.is_modelled:
        hardware = (config.get("hardware") or {}).get("name")
        return f", modelled on {hardware}" if hardware else ", modelled"
    return f", {(config.get('engine') or {}).get('name')}"


def _techniques(system: dict[str, Any]) -> str:
    batching = f"{system.get('batching')} batches"
    if system.get("batching") not in {"plain", None}:
        batching = (
            f"{system.get('batching')} batching (eta {system.get('eta_prompts')} of prompts, "
            f"{system.get('eta_responses')} of responses)"
        )
    parts = [batching, f"{system.get('reward')} rewards"]
    parts += [
        name for key, name in (("planner", "parallelism planner"), ("stream", "stream trainer")) if system.get(key)
    ]
    return ", ".join(parts)


def _time(stories: Sequence[RunStory]) -> str:
    used = [stage for stage in STAGES if any(story.stages[stage].sum() > 0 for story in stories)]
    legend = _legend((STAGE_NAMES[stage], STAGE_COLORS[stage]) for stage in used)
    bars = []
    for story in stories:
        parts = [(STAGE_NAMES[stage], STAGE_COLORS[stage], float(story.stages[stage].sum())) for stage in used]
        whole = seconds(float(story.stages.to_numpy().sum()))
        caption = f"{_caption(story, stories)}all {plural(len(story.steps), 'step')}, {whole}"
        bars.append(_figure(caption, charts.shares(parts, width=WIDE, label="")))
    highest = max(float(story.stages.sum(axis=1).max()) for story in stories)
    columns = [
        _figure(
            f"{_caption(story, stories)}each step",
            charts.stacked_bars(
                story.stages.index.tolist(),
                {stage: story.stages[stage].tolist() for stage in used},
                STAGE_COLORS,
                STAGE_NAMES,
                width=HALF if len(stories) > 1 else WIDE,
                top=highest,
                description="seconds of each step by stage",
                notes=[f"{kind} round" for kind in story.steps["round_kind"]],
            ),
        )
        for story in stories
    ]
    text = (
        "Each second of a step belongs to one stage. Exposed reward is the time in which all was generated and a "
        "reward was still missing; training is what is left of it after the rollout, not what was streamed during it."
    )
    return (
        f"<h2>Where the time went{_tags(stories)}</h2><p>{text}</p>{legend}{''.join(bars)}"
        f"{_columns(columns)}{_stage_table(stories, used)}"
    )


def _stage_table(stories: Sequence[RunStory], used: Sequence[str]) -> str:
    head = "".join(
        f'<th class="n">{_e(_caption(story, stories))}mean per step</th><th class="n">share</th>' for story in stories
    )
    ratio_head = '<th class="n">ratio</th>' if len(stories) > 1 else ""
    rows = []
    for stage in [*used, "whole"]:
        cells, means = [], []
        for story in stories:
            whole = float(story.stages.to_numpy().sum())
            value = whole if stage == "whole" else float(story.stages[stage].sum())
            means.append(value / len(story.steps))
            cells.append(
                f'<td class="n">{seconds(means[-1])}</td><td class="n">{share(value / whole if whole else 0)}</td>'
            )
        if len(stories) > 1:
            cells.append(f'<td class="n">{_times(means)}</td>')
        if stage == "whole":
            name = "<b>step and checkpoint</b>"
        else:
            name = f'<i style="background:var(--{STAGE_COLORS[stage]})"></i>{STAGE_NAMES[stage]}'
        rows.append(f"<tr><td>{name}</td>{''.join(cells)}</tr>")
    return f"<table><tr><th></th>{head}{ratio_head}</tr>{''.join(rows)}</table>"


def _picture(stories: Sequence[RunStory]) -> str:
    figures = []
    for story in stories:
        picture = story.picture
        moves = f", {plural(picture.num_moves, 'migration')}" if picture.num_moves else ""
        some = ""
        if len(picture.engines) > charts.MOST_ENGINE_ROWS:
            some = f", {charts.MOST_ENGINE_ROWS} of {len(picture.engines)} engines"
        caption = (
            f"{_caption(story, stories)}step {picture.step}, a {picture.round_kind} round, "
            f"{seconds(picture.ended_s - picture.began_s)}{moves}{some}"
        )
        figures.append(_figure(caption, charts.timeline(picture, STAGE_COLORS, STAGE_NAMES, width=WIDE)))
    activities = {each[1] for story in stories for each in story.picture.actors}
    activities |= {each[0] for story in stories for row in story.picture.engines for each in row.others}
    shown = [key for key in STAGE_NAMES if key in activities and key not in {"score", "load_weights"}]
    items = [("requests on an engine" if key == "rollout" else STAGE_NAMES[key], STAGE_COLORS[key]) for key in shown]
    if "score" in activities:
        items.append(("rewards", STAGE_COLORS["score"]))
    if not any(key == "rollout" for key in shown):
        items.insert(0, ("requests on an engine", "rollout"))
    text = "The step of median duration, unless another was asked for (step=N)."
    return f"<h2>One step, actor by actor{_tags(stories)}</h2><p>{text}</p>{_legend(items)}{''.join(figures)}"


def _engines(stories: Sequence[RunStory]) -> str:
    parts = (
        ("has requests", "rollout"),
        ("lent to the trainer, asleep", "asleep"),
        ("loads weights", "weight_sync"),
        ("idle while others generate", "idle"),
        ("idle while the trainer learns, and other", "idle_later"),
    )
    columns, used = [], [0.0] * len(parts)
    for story in stories:
        rows = []
        for engine in charts.evenly(sorted(story.engines, key=natural_order), MOST_ENGINES):
            use = story.engines[engine]
            values = (use.generating_s, use.asleep_s, use.loading_s, use.idle_in_rollout_s, use.idle_later_s)
            used = [total + value for total, value in zip(used, values, strict=True)]
            rows.append((engine, [(name, color, value) for (name, color), value in zip(parts, values, strict=True)]))
        width = HALF if len(stories) > 1 else WIDE
        caption = f"{_caption(story, stories)}{plural(len(story.engines), 'engine')}"
        if len(rows) < len(story.engines):
            caption += f", {len(rows)} of them shown"
        columns.append(_figure(caption, charts.engine_use(rows, width=width, description="what engines did")))
    text = (
        "Shares of the steps in which an engine was there. An engine that has one request left counts as busy; how "
        "empty busy engines were is the idle share of the decode slots, "
        + " and ".join(f"{share(story.bubble_ratio)}{_of(story, stories)}" for story in stories)
        + "."
    )
    legend = _legend(part for part, total in zip(parts, used, strict=True) if total > 0)
    return f"<h2>Engines{_tags(stories)}</h2><p>{text}</p>{legend}{_columns(columns)}"


def _waits(stories: Sequence[RunStory]) -> str:
    tables = []
    for story in stories:
        rows = "".join(
            f'<tr><td class="n">{seconds(wait.duration_s)}</td><td>{_e(KIND_NAMES[wait.kind])}</td>'
            f'<td class="n">{wait.step}</td><td>{_e(wait.who)}</td><td class="why">{_e(wait.why)}</td>'
            f'<td class="n">{seconds(wait.sum_alike_s)} in {plural(wait.num_alike, "step")}</td></tr>'
            for wait in story.waits
        )
        body = rows or '<tr><td colspan="6">Nobody waited for anybody.</td></tr>'
        tables.append(
            f"{_subtitle(story, stories)}<table><tr><th class='n'>how long</th><th>for</th><th class='n'>step</th>"
            f"<th>who waited</th><th>why</th><th class='n'>all such waits</th></tr>{body}</table>"
        )
    text = (
        "Time in which somebody had nothing to do because something else was not there yet. Each step counts once per "
        "kind, with its longest wait; training is no wait. Weights, checkpoints and the like have one row for all."
    )
    return f"<h2>The worst waits{_tags(stories)}</h2><p>{text}</p>{''.join(tables)}"


def _lengths(stories: Sequence[RunStory]) -> str:
    lines, rows = [], []
    domains = sorted({domain for story in stories for domain in story.lengths})
    for position, story in enumerate(stories):
        for domain, values in story.lengths.items():
            color = _domain_color(domains, domain)
            name = f"{domain}{_of(story, stories)}"
            lines.append((Line(name=name, color=color, x=(), y=(), is_dashed=position == 1), values))
            p50, p90, p99 = (float(np.quantile(values, q, method="inverted_cdf")) for q in (0.5, 0.9, 0.99))
            cut = story.num_cut.get(domain, 0)
            cells = "".join(
                f'<td class="n">{cell}</td>'
                for cell in (
                    *(count(value) for value in (len(values), values.mean(), p50, p90, p99, values[-1])),
                    f"{cut:,} ({share(cut / len(values))})",
                )
            )
            rows.append(f'<tr><td><i style="background:var(--{color})"></i>{_e(name)}</td>{cells}</tr>')
    limits = [
        int(value)
        for story in stories
        if (value := ((story.config or {}).get("rollout") or {}).get("max_response_tokens")) is not None
    ]
    limit = max(limits) if limits else None
    chart = charts.distributions(lines, width=WIDE, limit=limit, description="response lengths")
    legend = _legend(((line.name, line.color, line.is_dashed) for line, _ in lines), is_stroke=True)
    heads = ("responses", "mean", "median", "P90", "P99", "longest", "cut at the limit")
    head = "".join(f'<th class="n">{name}</th>' for name in heads)
    return (
        f"<h2>Response lengths{_tags(stories)}</h2><p>Share of the trained responses that are at least so long.</p>"
        f"{legend}{_figure('', chart)}<table><tr><th>tokens</th>{head}</tr>{''.join(rows)}</table>"
    )


def _rewards(stories: Sequence[RunStory]) -> str:
    lines = [
        Line(
            name=f"all{_of(story, stories)}",
            color=_RUN_COLORS[position] if len(stories) > 1 else "ink",
            x=story.steps["step"].tolist(),
            y=story.steps["reward_mean"].tolist(),
        )
        for position, story in enumerate(stories)
    ]
    if len(stories) == 1 and stories[0].domains["domain"].nunique() > 1:
        names = sorted(stories[0].domains["domain"].unique())
        for domain in names:
            rows = stories[0].domains[stories[0].domains["domain"] == domain]
            lines.append(
                Line(
                    name=domain,
                    color=_domain_color(names, domain),
                    x=rows["step"].tolist(),
                    y=rows["reward_mean"].tolist(),
                )
            )
    reward = charts.lines(lines, width=HALF, title="step", label=lambda v: f"{v:g}", description="mean reward")
    queue = charts.lines(
        [
            Line(
                name=_label(story, stories),
                color=_RUN_COLORS[position],
                x=story.steps["step"].tolist(),
                y=story.steps["long_queue_length"].tolist(),
            )
            for position, story in enumerate(stories)
        ],
        width=HALF,
        title="step",
        label=charts.count_axis,
        description="prompts in the long-prompt queue",
    )
    legend = _legend(((line.name, line.color) for line in lines), is_stroke=True)
    left = f"<div>{_figure('mean reward of the trained responses', reward)}{legend}</div>"
    right = f"<div>{_figure('long-prompt queue: deferred prompts after each step', queue)}{_run_legend(stories)}</div>"
    return f"<h2>Rewards and the long-prompt queue{_tags(stories)}</h2>{_columns([left, right])}{_learning(stories)}"


_LEARNING = (
    ("loss", "training loss", "{:.3g}"),
    ("grad_norm", "norm of the gradient", "{:.3g}"),
    ("entropy", "entropy per token, nats", "{:.3g}"),
    ("kl_to_reference", "KL to the reference per token", "{:.3g}"),
    ("clip_fraction", "share of tokens clipped", "{:.3g}"),
    ("logprob_mismatch_mean", "mismatch of engine and trainer, mean per token, nats", "{:.2g}"),
)


def _learning(stories: Sequence[RunStory]) -> str:
    """Charts of what only real trainers know."""
    figures = []
    for column, caption, form in _LEARNING:
        series = [
            Line(
                name=_label(story, stories),
                color=_RUN_COLORS[position],
                x=story.steps["step"].tolist(),
                y=[float(value) for value in story.steps[column]],
            )
            for position, story in enumerate(stories)
            if story.steps[column].notna().any()
        ]
        if any(any(line.y) for line in series):
            chart = charts.lines(series, width=HALF, title="step", label=form.format, description=caption)
            figures.append(_figure(caption, chart))
    if not figures:
        return '<p class="soft">A modelled trainer has neither loss nor log-probabilities: they are not shown.</p>'
    rows = [figures[number : number + 2] for number in range(0, len(figures), 2)]
    return f"<h3>Learning</h3>{_run_legend(stories)}" + "".join(
        f'<div class="two">{"".join(row)}</div>' for row in rows
    )


def _tokens(stories: Sequence[RunStory]) -> str:
    names = {"trained": "trained", "aborted": "aborted", "finished": "finished, but not needed"}
    colors = {key: key for key in names}
    highest = max(float(story.waste.sum(axis=1).max()) for story in stories)
    columns, sentences = [], []
    for story in stories:
        columns.append(
            _figure(
                f"{_caption(story, stories)}tokens of each step",
                charts.stacked_bars(
                    story.waste.index.tolist(),
                    {key: story.waste[key].tolist() for key in names},
                    colors,
                    names,
                    width=HALF if len(stories) > 1 else WIDE,
                    top=highest,
                    label=count,
                    description="tokens of each step by what became of them",
                ),
            )
        )
        generated, wasted = story.steps["tokens_generated"].sum(), story.steps["tokens_wasted"].sum()
        streamed = story.steps["tokens_streamed"].sum() / max(1, story.steps["tokens_trained"].sum())
        sentences.append(
            f"{_caption(story, stories)}{tokens(generated)} generated, {count(wasted)} of them "
            f"({share(story.wasted_share)}) wasted; {share(streamed)} of the trained ones reached the trainer while "
            f"the rollout still ran. {_staleness(story)}"
        )
    text = "".join(f"<p>{_e(sentence)}</p>" for sentence in sentences)
    legend = _legend((names[key], key) for key in names)
    return f"<h2>Tokens{_tags(stories)}</h2>{text}{legend}{_columns(columns)}"


def _staleness(story: RunStory) -> str:
    mismatch = story.steps["logprob_mismatch_max"].max()
    known = f" Engine and trainer differ by at most {mismatch:.2g} nats per token." if math.isfinite(mismatch) else ""
    stale = int((story.steps["policy_version"] < story.steps["step"]).sum())
    first = "Every trained token came from the current policy (staleness 0)."
    if stale:
        first = f"In {plural(stale, 'step')} the batch came from an older policy than the newest."
    return first + known


def _footer(stories: Sequence[RunStory]) -> str:
    folders = " and ".join(f"<code>{_e(str(story.tables.run_dir))}</code>" for story in stories)
    return (
        f"<footer>Written by rollpacker {__version__} from the tables and event logs of {folders}. "
        "<code>rollpacker trace</code> writes the same with every request, for ui.perfetto.dev.</footer>"
    )


# Words and small pieces -------------------------------------------------------------------------------------------


def _label(story: RunStory, stories: Sequence[RunStory]) -> str:
    """A run's name: its folder; with its parent where two runs have the same."""
    if sum(other.name == story.name for other in stories) > 1:
        run_dir = story.tables.run_dir.resolve()
        return f"{run_dir.parent.name}/{story.name}"
    return story.name


def _times(means: Sequence[float]) -> str:
    """How often the first run's mean fits into the second's."""
    return ratio(means[1] / means[0]) if means[0] > 0 and means[1] > 0 else NOTHING


def _caption(story: RunStory, stories: Sequence[RunStory]) -> str:
    return f"{_label(story, stories)}: " if len(stories) > 1 else ""


def _of(story: RunStory, stories: Sequence[RunStory]) -> str:
    return f", {_label(story, stories)}" if len(stories) > 1 else ""


def _subtitle(story: RunStory, stories: Sequence[RunStory]) -> str:
    return f"<h3>{_e(_label(story, stories))}</h3>" if len(stories) > 1 else ""


def _tag(story: RunStory) -> str:
    return '<span class="tag">modelled</span>' if story.is_modelled else '<span class="tag measured">measured</span>'


def _tags(stories: Sequence[RunStory]) -> str:
    """The tag of a section: of both runs when they agree, else of each by name."""
    modelled = [story for story in stories if story.is_modelled]
    if not modelled:
        return ""
    if len(modelled) == len(stories):
        return _tag(modelled[0])
    return "".join(f'<span class="tag">{_e(_label(story, stories))}: modelled</span>' for story in modelled)


def _common_steps(stories: Sequence[RunStory]) -> int:
    return min(len(story.steps) for story in stories)


def _domain_color(domains: Sequence[str], domain: str) -> str:
    return f"domain-{list(domains).index(domain) % _NUM_DOMAIN_COLORS}"


def _figure(caption: str, chart: str) -> str:
    shown = f"<figcaption>{_e(caption)}</figcaption>" if caption else ""
    return f"<figure>{shown}{chart}</figure>"


def _columns(columns: Sequence[str]) -> str:
    return f'<div class="{"two" if len(columns) > 1 else "one"}">{"".join(columns)}</div>'


def _legend(items: Iterable[tuple[Any, ...]], *, is_stroke: bool = False) -> str:
    """Entries of (name, colour) or (name, colour, is dashed)."""
    entries = []
    for name, color, *rest in items:
        kind = ("stroke dashed" if rest and rest[0] else "stroke") if is_stroke else ""
        style = f"--c:var(--{color});background:var(--{color})"
        entries.append(f'<li><i class="{kind}" style="{style}"></i>{_e(name)}</li>')
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _run_legend(stories: Sequence[RunStory]) -> str:
    if len(stories) == 1:
        return ""
    return _legend(
        ((_label(story, stories), _RUN_COLORS[position]) for position, story in enumerate(stories)), is_stroke=True
    )


def _e(text: str) -> str:
    return html.escape(text, quote=False)
