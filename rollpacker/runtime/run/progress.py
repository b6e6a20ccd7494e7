"""The display of a run in progress: one screen in a terminal, one line per step elsewhere.

Invariant: progress only shows. It gets the rows that go into the tables `steps` and `domains` and nothing else, and a
run without it makes the same files. A stage is shown when it begins, so that one sees where a run hangs.
"""

from __future__ import annotations

import math
import time
from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from rich.columns import Columns
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollpacker.config.words import counted
from rollpacker.core.errors import Interrupted, Preempted
from rollpacker.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import RenderableType

    Row = Mapping[str, Any]

MOVING_AVERAGE_STEPS = 8
"""Reward and the time of a step are averaged over so many: single batches are noisy, and long rounds differ."""

RECENT_STEPS = 6
"""Steps in the live table, at most `MOVING_AVERAGE_STEPS`; the screen stays below the 24 lines of a small terminal."""

SPARKLINE_WIDTH = 32
"""Characters; with its label and both rewards it fits into 80 columns."""

MAX_WIDTH = 100
"""Columns; wider tables are harder to read."""

HEADER_EVERY_LINES = 20
"""Plain lines between two headers: one is always on the screen."""

REFRESHES_PER_SECOND = 4


class Progress:
    """Shows a run; this one shows nothing. All calls return at once."""

    def begin_run(self, title: str, num_steps: int) -> None: ...

    def stage(self, name: str) -> None:
        """Begin a stage, such as `starting Ray` or `rollout`; the last one is over."""

    def rollout(self, done: int, needed: int) -> None:
        """Show how many prompts of the batch are complete."""

    def resume(self, finished_steps: int) -> None:
        """Note how many steps earlier attempts have finished."""

    def clock_was_set(self) -> None:
        """Count time from now on: the clock of a modelled run was set to the time at which it goes on."""

    def step_finished(self, row: Row, domains: Sequence[Row] = ()) -> None:
        """Show a step: its row of the `steps` table, and those of the `domains` table."""

    def note(self, text: str) -> None:
        """Show a message for the person who follows the run."""

    def end_run(self) -> None:
        """Show that the run is complete."""

    def fail(self, error: BaseException) -> None:
        """Show that the run ends early; the caller explains the error."""


def make_progress(
    mode: Literal["auto", "live", "plain", "none"],
    *,
    console: Terminal | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Progress:
    """Choose how to show a run: `auto` is live in a terminal and plain elsewhere. `now` gives seconds."""
    if mode == "none":
        return Progress()
    console = console or Terminal(force_terminal=True if mode == "live" else None)
    is_live = mode == "live" or (mode == "auto" and console.is_terminal and not console.is_dumb_terminal)
    return LiveProgress(console, now) if is_live else PlainProgress(console, now)


class _ShownProgress(Progress):
    """Keeps the history of the run."""

    def __init__(self, console: Terminal, now: Callable[[], float]) -> None:
        self._console = console
        self._now = now
        self._history = RunHistory(began_at_s=now())

    def begin_run(self, title: str, num_steps: int) -> None:
        self._history = RunHistory(title=title, num_steps=num_steps, began_at_s=self._now())

    def stage(self, name: str) -> None:
        self._history.enter_stage(name, self._now())

    def rollout(self, done: int, needed: int) -> None:
        self._history.rollout = (done, needed)

    def resume(self, finished_steps: int) -> None:
        self._history.num_before = finished_steps

    def clock_was_set(self) -> None:
        self._history.began_at_s = self._now()

    def step_finished(self, row: Row, domains: Sequence[Row] = ()) -> None:
        self._history.finish_step(row, domains, self._now())

    def end_run(self) -> None:
        self._end(self._history.summary(self._now()), "bold green")

    def fail(self, error: BaseException) -> None:
        self._end(self._history.describe_failure(error, self._now()), "bold red")

    def _end(self, outcome: str, style: str) -> None:
        raise NotImplementedError


class PlainProgress(_ShownProgress):
    """Prints one line per step, and the stages until the first step is over."""

    def __init__(self, console: Terminal, now: Callable[[], float]) -> None:
        super().__init__(console, now)
        self._stages_shown: set[str] = set()

    def begin_run(self, title: str, num_steps: int) -> None:
        super().begin_run(title, num_steps)
        self._print(f"{title}: {counted(num_steps, 'step')}" if num_steps else title)

    def stage(self, name: str) -> None:
        super().stage(name)
        if not self._history.rewards and name not in self._stages_shown:
            self._stages_shown.add(name)
            self._print(f"  {name} ...")

    def step_finished(self, row: Row, domains: Sequence[Row] = ()) -> None:
        if len(self._history.rewards) % HEADER_EVERY_LINES == 0:
            names = [f"{column.name:>{column.width}}" for column in COLUMNS]
            self._print(" ".join([*names, "    left"]))
        super().step_finished(row, domains)
        cells = [f"{column.text(self._history, -1):>{column.width}}" for column in COLUMNS]
        self._print(" ".join([*cells, f"{format_duration(self._history.time_left_s(self._now())):>8}"]))
        if len(domains) > 1:
            self._print(f"{'':>11} {', '.join(_domain_in_brief(domain) for domain in domains)}")

    def note(self, text: str) -> None:
        self._print(f"note: {text}")

    def _end(self, outcome: str, style: str) -> None:  # noqa: ARG002  plain lines have no style
        self._print(outcome)

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)


class LiveProgress(_ShownProgress):
    """Redraws one screen."""

    def __init__(self, console: Terminal, now: Callable[[], float]) -> None:
        super().__init__(console, now)
        self._outcome: Text | None = None
        self._live: Live | None = None

    def begin_run(self, title: str, num_steps: int) -> None:
        super().begin_run(title, num_steps)
        self._live = Live(
            console=self._console,
            get_renderable=self.screen,
            refresh_per_second=REFRESHES_PER_SECOND,
            vertical_overflow="crop",
        )
        self._live.start()

    def note(self, text: str) -> None:
        self._console.print(Text(f"note: {text}", style="yellow"))

    def _end(self, outcome: str, style: str) -> None:
        self._outcome = Text(outcome, style=style)
        if self._live is None:
            self._console.print(self._outcome)
        else:
            self._live.stop()
            self._live = None

    def screen(self) -> RenderableType:
        """Draw the run as it stands."""
        history = self._history
        parts: list[RenderableType] = [self._run_line(), self._outcome or self._stage_line()]
        if history.rewards:
            parts += [Text(), self._reward_line(), *self._domain_lines(), Text(), self._recent_steps()]
        width = min(self._console.width, MAX_WIDTH)
        title = Text(history.title, style="bold")
        return Panel(Group(*parts), title=title, title_align="left", width=width, border_style="dim")

    def _run_line(self) -> RenderableType:
        history = self._history
        elapsed = format_duration(self._now() - history.began_at_s)
        line = Table.grid(padding=(0, 2), expand=True)
        for ratio in (None, 1, None, None):
            line.add_column(ratio=ratio, no_wrap=True)
        line.add_row(
            Text(f"step {history.num_finished}/{history.num_steps}", style="bold"),
            ProgressBar(
                total=max(history.num_steps, 1),
                completed=history.num_finished,
                complete_style="green",
                finished_style="green",
            ),
            Text(f"elapsed {elapsed}"),
            Text(f"left {format_duration(history.time_left_s(self._now()))}", style="bold"),
        )
        return line

    def _stage_line(self) -> RenderableType:
        history = self._history
        waited = Text(format_duration(self._now() - history.stage_began_at_s), style="dim")
        name = Text(history.stage or "starting", style="cyan")
        line = Table.grid(padding=(0, 2), expand=True)
        if history.rollout is None:
            for ratio in (None, 1):
                line.add_column(ratio=ratio, no_wrap=True)
            line.add_row(name, waited)
            return line
        done, needed = history.rollout
        for ratio in (None, 1, None, None):
            line.add_column(ratio=ratio, no_wrap=True)
        bar = ProgressBar(total=max(needed, 1), completed=done, complete_style="cyan", finished_style="cyan")
        line.add_row(name, bar, Text(f"{done}/{needed} prompts"), waited)
        return line

    def _reward_line(self) -> RenderableType:
        rewards = self._history.rewards
        can_draw = self._console.encoding.lower().startswith("utf")
        return Text.assemble(
            ("reward  ", "bold"),
            f"{rewards[0]:.3f} ",
            (sparkline(rewards, SPARKLINE_WIDTH) if can_draw else "...", "green"),
            f" {rewards[-1]:.3f}",
            (f"   mean of {min(len(rewards), MOVING_AVERAGE_STEPS)}: ", "dim"),
            (f"{self._history.reward_average(-1):.3f}", "bold green"),
        )

    def _domain_lines(self) -> list[RenderableType]:
        """The domains of the last step, when there are several."""
        domains = self._history.domains
        if len(domains) < 2:  # noqa: PLR2004 the line above shows a single domain
            return []
        line = Table.grid(padding=(0, 1))
        line.add_row(Text("domains", style="bold"), Columns([_domain_in_brief(domain) for domain in domains]))
        return [line]

    def _recent_steps(self) -> RenderableType:
        history = self._history
        table = Table(box=None, padding=(0, 1), expand=True, header_style="dim", pad_edge=False)
        for column in COLUMNS:
            table.add_column(column.name, justify="right", no_wrap=True)
        num_shown = min(len(history.recent), RECENT_STEPS)
        for index in range(-num_shown, 0):
            style = _ROUND_STYLES.get(str(history.recent[index]["round_kind"]), "")
            cells = [column.text(history, index) for column in COLUMNS]
            table.add_row(*(Text(cell, style=style if cell in _ROUND_STYLES else "") for cell in cells))
        return table


@dataclass(slots=True, kw_only=True)
class RunHistory:
    """A run so far, in few bytes per step. Sequences never shrink: the drawing thread may read them at any time."""

    title: str = ""
    num_steps: int = 0
    """Of the complete run."""
    num_before: int = 0
    """Steps of earlier attempts."""
    began_at_s: float
    rewards: array[float] = field(default_factory=lambda: array("d"))
    """`reward_mean` of each step since the run was last resumed."""
    num_slots_busy: int = 0
    """Over these steps and their forward passes, as `decode_slot_steps_busy`."""
    num_slots_idle: int = 0
    recent: Sequence[Row] = ()
    """Rows of the `steps` table, of the last `MOVING_AVERAGE_STEPS` of them."""
    domains: Sequence[Row] = ()
    """Rows of the `domains` table, of the last step."""
    between_s: float = 0.0
    """Time between the steps since the run was last resumed: mostly evaluations."""
    last_finished_at_s: float = 0.0
    stage: str = ""
    stage_began_at_s: float = field(init=False)
    rollout: tuple[int, int] | None = None
    """Prompts complete and needed, during a rollout."""

    def __post_init__(self) -> None:
        self.stage_began_at_s = self.began_at_s

    @property
    def num_finished(self) -> int:
        """Steps of the run, including earlier attempts."""
        return self.recent[-1]["step"] + 1 if self.recent else self.num_before

    def finish_step(self, row: Row, domains: Sequence[Row], now: float) -> None:
        self.rewards.append(row["reward_mean"])
        self.num_slots_busy += row["decode_slot_steps_busy"]
        self.num_slots_idle += row["decode_slot_steps_idle"]
        if self.recent:
            self.between_s += row["finished_at_s"] - self.recent[-1]["finished_at_s"] - _step_time_s(row)
        self.recent = (*self.recent, row)[-MOVING_AVERAGE_STEPS:]
        self.domains = domains
        self.last_finished_at_s = now

    def enter_stage(self, name: str, now: float) -> None:
        self.stage, self.stage_began_at_s = name, now
        self.rollout = None

    def reward_average(self, index: int) -> float:
        """Mean reward of the last steps up to the one at `index`, counted from the end."""
        end = len(self.rewards) + index + 1
        return _mean(self.rewards[max(0, end - MOVING_AVERAGE_STEPS) : end])

    def time_left_s(self, now: float) -> float:
        """Steps that are left times the mean duration of the last ones; NaN before the first.

        To each belongs the mean time between two steps, of all since the run was last resumed: evaluations are rare.
        It counts down within a step, by no more than the step was expected to take.
        """
        between_s = self.between_s / max(1, len(self.rewards) - 1)
        step_s = _mean([_step_time_s(row) for row in self.recent]) + between_s
        num_left = max(0, self.num_steps - self.num_finished)
        return num_left * step_s - min(now - self.last_finished_at_s, step_s) if num_left else 0.0

    def summary(self, now: float) -> str:
        """What the run did, in one line."""
        elapsed = format_duration(now - self.began_at_s)
        if not self.rewards:
            return f"done in {elapsed}{', no step was left to do' if self.num_steps else ''}"
        num_steps = len(self.rewards)
        num_averaged = min(MOVING_AVERAGE_STEPS // 2, num_steps // 2)  # no step is among the first and the last ones
        ends = [self.rewards[:num_averaged], self.rewards[-num_averaged:]] if num_averaged else [self.rewards]
        reward = " -> ".join(f"{_mean(rewards):.3f}" for rewards in ends)
        idle = _idle_share(self.num_slots_busy, self.num_slots_idle)
        return f"{counted(num_steps, 'step')} in {elapsed}, reward {reward}, idle slots {idle}"

    def describe_failure(self, error: BaseException, now: float) -> str:
        """Say in one line where the run ended early."""
        match error:
            case Preempted():
                cause = "left"
            case Interrupted():
                cause = "interrupted"
            case Exception():
                cause = "failed"
            case _:
                cause = "interrupted"
        where = f" during {self.stage}" if self.stage else ""
        elapsed = format_duration(now - self.began_at_s)
        steps = f"{self.num_finished} of {self.num_steps} steps and " if self.num_steps else ""
        return f"{cause}{where}, after {steps}{elapsed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One column of the step tables."""

    name: str
    width: int
    """Of a plain line; all of them with one space between and the time left fit into 80 columns."""
    text: Callable[[RunHistory, int], str]
    """Takes the history and the step's index, counted from the end."""


def _step_time_s(row: Row) -> float:
    """With the checkpoint before it."""
    time_s: float = row["step_time_s"] + row["checkpoint_time_s"]
    return time_s


def _shown(name: str, width: int, key: str, form: str) -> _Column:
    return _Column(name=name, width=width, text=lambda history, index: format(history.recent[index][key], form))


def _idle_of(row: Row) -> str:
    return _idle_share(row["decode_slot_steps_busy"], row["decode_slot_steps_idle"])


def _idle_share(busy: int, idle: int) -> str:
    """Idle share of decode slots; a dash where no engine decoded."""
    return f"{idle / (busy + idle):.0%}" if busy + idle else "-"


COLUMNS: Sequence[_Column] = (
    _Column(name="step", width=5, text=lambda history, index: str(history.recent[index]["step"] + 1)),
    _shown("round", 5, "round_kind", ""),
    _shown("reward", 7, "reward_mean", ".3f"),
    _Column(name="mean", width=7, text=lambda history, index: f"{history.reward_average(index):.3f}"),
    _shown("tokens/s", 8, "tokens_per_second", ",.0f"),
    _shown("length", 7, "response_length_mean_tokens", ",.0f"),
    _shown("longest", 7, "response_length_max_tokens", ",d"),
    _Column(name="idle", width=4, text=lambda history, index: _idle_of(history.recent[index])),
    _shown("queue", 5, "long_queue_length", "d"),
    _shown("time s", 7, "step_time_s", ",.1f"),
)


def _domain_in_brief(row: Row) -> str:
    """Mean reward and mean length of a domain in one step."""
    return f"{row['domain']} {row['reward_mean']:.3f} ({row['response_length_mean_tokens']:,.0f} tokens)"


_ROUND_STYLES = {"plain": "blue", "short": "cyan", "long": "magenta"}

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as blocks from the lowest to the highest; many values are averaged into `width` blocks."""
    num_blocks = min(width, len(values))
    edges = [len(values) * index // num_blocks for index in range(num_blocks + 1)] if num_blocks else []
    means = [_mean(values[begin:end]) for begin, end in pairwise(edges)]
    finite = [mean for mean in means if math.isfinite(mean)]
    if not finite:
        return " " * len(means)
    lowest, spread = min(finite), max(finite) - min(finite)
    heights = [(mean - lowest) / spread if spread else 0.5 for mean in means]
    return "".join(_BLOCKS[round(height * (len(_BLOCKS) - 1))] if math.isfinite(height) else " " for height in heights)


def format_duration(duration_s: float) -> str:
    """Write seconds as m:ss, h:mm:ss or, from 100 hours on, 4d 04h; unknown is `-:--`."""
    if not math.isfinite(duration_s):
        return "-:--"
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 100:  # noqa: PLR2004 the first that would not fit into its column
        return f"{hours // 24}d {hours % 24:02d}h"
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
