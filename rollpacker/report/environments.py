"""Who waited for environments, and how long: each stretch from a request's reset or turn to the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from rollpacker.report.cuts import AT_LIMIT
from rollpacker.report.words import count, plural, seconds
from rollpacker.timeline.stretches import environment_waits

if TYPE_CHECKING:
    from rollpacker.report.page import ShownRun
    from rollpacker.report.story import RunStory
    from rollpacker.timeline.run_tables import StepTables

NUM_LONGEST = 5
"""Waits that are shown by name."""


@dataclass(slots=True)
class EnvironmentWaits:
    """Of a run; empty where it has no environments."""

    durations_s: dict[str, list[npt.NDArray[np.float64]]] = field(default_factory=dict)
    """By `start`, `reset`, `step`, or why no answer came."""
    longest: list[tuple[float, int, str, str]] = field(default_factory=list)
    """The longest first: how long, the step, the response, and what it waited for."""

    def add(self, part: StepTables) -> None:
        """Add the waits of some steps."""
        waits = environment_waits(part.intervals)
        if waits.empty:
            return
        lasted_s = waits["ended_at_s"] - waits["started_at_s"]
        for activity, of_activity in lasted_s.groupby(waits["activity"]):
            self.durations_s.setdefault(str(activity), []).append(of_activity.to_numpy(dtype=float))
        chosen = lasted_s.nlargest(NUM_LONGEST).index
        rows: pd.DataFrame = waits.loc[chosen]
        names = zip(rows["step"], rows["label"], rows["activity"], strict=True)
        found = [(float(lasted_s[row]), *name) for row, name in zip(chosen, names, strict=True)]
        self.longest = sorted([*self.longest, *found], key=lambda wait: (-wait[0], wait[1:]))[:NUM_LONGEST]


def section(runs: Sequence[ShownRun]) -> dict[str, Any]:
    """What the page shows of them: of the runs that have environments, sentences, kinds of waits, and the longest."""
    shown = [run for run in runs if run.story.environments.durations_s]
    rows = []
    for run in shown:
        for activity, parts in sorted(run.story.environments.durations_s.items()):
            values = np.sort(np.concatenate(parts))
            quantiles = [*np.quantile(values, (0.5, 0.99), method="inverted_cdf"), values[-1], values.sum()]
            rows.append((run, activity.replace("_", " "), [count(len(values)), *map(seconds, quantiles)]))
    return {
        "environment_sentences": [(run, _sentence(run)) for run in shown],
        "environment_rows": rows,
        "environment_waits": [(run, *wait) for run in shown for wait in run.story.environments.longest],
    }


def _sentence(run: ShownRun) -> str:
    steps = run.story.steps
    steps = steps[steps["num_turns_mean"].notna()]
    weights = steps["num_responses"]
    turns, waited_s = (
        float(np.average(steps[name], weights=weights)) for name in ("num_turns_mean", "environment_time_mean_s")
    )
    restarts, given_up = (int(steps[name].sum()) for name in ("num_environment_restarts", "num_episodes_given_up"))
    said = (
        f"A trained response had {plural(turns, 'turn')} and waited {seconds(waited_s)} for its environment, in "
        f"rollouts of {seconds(float(steps['rollout_time_s'].mean()))} on average. Environments failed: "
        f"{plural(restarts, 'time')} the response began again, and {given_up:,} {_were(given_up)} given up."
    )
    return " ".join([said, *_dropped(run.story), *_cut(run.story)])


def _dropped(story: RunStory) -> Iterator[str]:
    """Prompts that left the batches, and how small these became."""
    config, steps = story.config, story.steps
    num_dropped = int(steps["num_prompts_dropped"].sum())
    if not num_dropped or not steps["num_episodes_given_up"].any():
        return
    has_sampling = (config.get("system") or {}).get("dynamic_sampling")
    why = "environments failed or rewards were equal" if has_sampling else "environments failed"
    yield f"{plural(num_dropped, 'prompt')} {_were(num_dropped)} dropped because {why}."
    num_needed = (config.get("rollout") or {}).get("num_prompts") or 0
    if num_smaller := int((steps["num_prompts"] < num_needed).sum()):
        yield (
            f"{num_smaller:,} of {plural(len(steps), 'step')} trained fewer than {plural(num_needed, 'prompt')}, the "
            f"smallest batch {steps['num_prompts'].min():,}."
        )


def _cut(story: RunStory) -> Iterator[str]:
    """Trained responses that were cut, and not by the limit of tokens."""
    cut: Counter[str] = Counter()
    for of_domain in story.num_cut.values():
        cut.update(of_domain)
    if parts := [f"{number:,} {what}" for what, number in cut.most_common() if what != AT_LIMIT]:
        yield f"Trained responses: {', '.join(parts)}."


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
