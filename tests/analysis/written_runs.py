"""Writes runs that never were: what a run's folder holds, with numbers of the test's choosing."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import yaml

from rollpacker.analysis.numbers import Source
from rollpacker.analysis.runs import Runs, find_runs, read_runs
from rollpacker.metrics.columns import VERSION_KEY
from rollpacker.metrics.evaluation_schemas import EVALUATION_TABLES, EVALUATIONS
from rollpacker.metrics.schemas import DOMAINS, INTERVALS, RESPONSES, STEPS
from rollpacker.metrics.table_writer import MetricsWriter

ZEROS = {"int": 0, "float": 0.0, "bool": False, "text": ""}


def row_of(table, **values):
    """A row of zeros but for some columns."""
    row = {column.name: None if column.is_nullable else ZEROS[column.type] for column in table.columns}
    return row | values


def write_run(
    folder,
    system,
    step_times,
    *,
    model="Qwen2.5-7B",
    task="mix",
    seed=0,
    num_steps=None,
    config=None,
    responses=(),
    intervals=(),
    **values,
):
    """A run with these step times, which has a second of training in each step; `num_steps` it was to have.

    Sections of `config` add to what its config.yaml says. Every step has the same `responses`, given by what is not
    zero in their rows, but for those that name their step; `intervals` all do. Of `values`, a list has one for each
    step.
    """
    writer = MetricsWriter(folder / "metrics")
    domains = ["math", "code"] if task == "mix" else [task]
    for step, step_time in enumerate(step_times):
        kind = "plain" if system in {"verl", "rlhfuse"} else "long" if step % 5 == 4 else "short"
        times = {"step_time_s": step_time, "rollout_time_s": step_time - 1, "train_time_s": 1.0}
        of_step = {name: value[step] if isinstance(value, list) else value for name, value in values.items()}
        row = row_of(STEPS, step=step, round=step, system=system, **{"round_kind": kind} | times | of_step)
        of_domains = [row_of(DOMAINS, step=step, domain=domain) for domain in domains]
        told = [
            row_of(RESPONSES, **{"step": step, "round": step, "sample": sample} | own)
            for sample, own in enumerate(responses)
            if own.get("step", step) == step
        ]
        shown = [row_of(INTERVALS, **own) for own in intervals if own["step"] == step]
        writer.write_step(step, {"steps": [row], "domains": of_domains, "responses": told, "intervals": shown})
    writer.close()
    run = {"seed": seed, "num_steps": num_steps or len(step_times)}
    record = {"model": {"name": model}, "run": run}
    for section, keys in (config or {}).items():
        record[section] = record.get(section, {}) | keys
    (folder / "config.yaml").write_text(yaml.safe_dump(record))
    (folder / "run.json").write_text(json.dumps({}))
    return folder


def runs_below(folder):
    """The runs below a folder, all of which can be read."""
    runs, problems = read_runs(list(find_runs(folder)))
    assert not problems
    return Runs(runs=runs)


def numbers_of(exhibit, folder):
    """What an exhibit shows of the runs below a folder."""
    return exhibit.numbers(runs_below(folder))


def write_scores(folder, scores, error=0.01):
    """Held-out scores of a run by its finished steps: of one set, or of several by their names, each with an error."""
    writer = MetricsWriter(folder / "evaluation", EVALUATION_TABLES)
    for step, score in scores.items():
        of_sets = score if isinstance(score, dict) else {"unseen": score}
        rows = [
            row_of(EVALUATIONS, step=step, set=name, reward_mean=each, se_over_prompts=error)
            for name, each in of_sets.items()
        ]
        writer.write_step(step, {"evaluations": rows, "pass_at_k": [], "evaluation_responses": []})
    writer.close()


def series(numbers, panel):
    """x and y of every series of a panel."""
    shown = {}
    for point in numbers.points:
        if point.panel == panel:
            shown.setdefault(point.series, []).append((point.x, point.y))
    return shown


def ours(numbers, panel):
    """Our numbers of a panel by series and x."""
    return {
        (point.series, point.x): point.y
        for point in numbers.points
        if point.panel == panel and point.source is not Source.PAPER
    }


def forget_steps(folder, lost):
    """Make a run look as if it had been resumed after the files of some steps were lost, each in one of its own."""
    manifest = folder / "metrics" / "manifest.json"
    plain = json.loads(manifest.read_text())
    kept = [[first, last] for first, last in plain["parts"] if first not in lost]
    manifest.write_text(json.dumps(plain | {"parts": kept}))


def make_older(folder):
    """Make a run look as if an older version had written its `steps`."""
    for part in (folder / "metrics" / "steps").glob("*.parquet"):
        pq.write_table(pq.ParquetFile(part).read().replace_schema_metadata({VERSION_KEY: b"1"}), part)
