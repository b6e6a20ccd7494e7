"""What a person sees: one line per step, or one screen; both fit into 80 columns and never disturb the run."""

from __future__ import annotations

import io
import math
import tracemalloc
from typing import Any

import pytest

from rollpacker.core.errors import Preempted
from rollpacker.metrics.schemas import STEPS
from rollpacker.runtime.run.progress import (
    COLUMNS,
    HEADER_EVERY_LINES,
    SPARKLINE_WIDTH,
    LiveProgress,
    PlainProgress,
    Progress,
    RunHistory,
    format_duration,
    make_progress,
    sparkline,
)
from rollpacker.terminal import Terminal

WIDTH = 80


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make_row(step: int, **changes: object) -> dict[str, Any]:
    row = {
        "step": step,
        "round_kind": "short",
        "reward_mean": 0.1 * step,
        "step_time_s": 10.0,
        "checkpoint_time_s": 0.0,
        "finished_at_s": 10.0 * (step + 1),
        "tokens_per_second": 1234.5,
        "response_length_mean_tokens": 85.25,
        "response_length_max_tokens": 412,
        "decode_slot_steps_busy": 766,
        "decode_slot_steps_idle": 234,
        "long_queue_length": 3,
    } | changes
    assert row.keys() <= {column.name for column in STEPS.columns}
    return row


def make(mode: Any, width: int = WIDTH, **options: Any) -> tuple[Progress, Terminal, Clock]:
    clock = Clock()
    console = Terminal(file=io.StringIO(), width=width, force_terminal=mode == "live", **options)
    return make_progress(mode, console=console, now=clock), console, clock


def written(console: Terminal) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def screen(progress: Progress, width: int = WIDTH) -> str:
    assert isinstance(progress, LiveProgress)
    console = Terminal(file=io.StringIO(), width=width)
    console.print(progress.screen())
    return written(console)


def test_plain_progress_prints_the_start_and_then_one_line_per_step() -> None:
    progress, console, clock = make("plain")
    progress.begin_run("rollpacker in runs/x", 4)
    progress.stage("starting Ray")
    progress.stage("loading model")
    for step in range(2):
        progress.stage("rollout")
        progress.rollout(3, 4)
        clock.now_s += 10
        progress.step_finished(make_row(step))
    progress.note("engine-1 died")
    progress.end_run()
    assert written(console).splitlines() == [
        "rollpacker in runs/x: 4 steps",
        "  starting Ray ...",
        "  loading model ...",
        "  rollout ...",
        " step round  reward    mean tokens/s  length longest idle queue  time s     left",
        "    1 short   0.000   0.000    1,234      85     412  23%     3    10.0     0:30",
        "    2 short   0.100   0.050    1,234      85     412  23%     3    10.0     0:20",
        "note: engine-1 died",
        "2 steps in 0:20, reward 0.000 -> 0.100, idle slots 23%",
    ]


def domain_row(domain: str, reward_mean: float) -> dict[str, Any]:
    return {"domain": domain, "reward_mean": reward_mean, "response_length_mean_tokens": 1234.5}


def test_several_domains_are_shown_after_their_step_and_one_is_not() -> None:
    progress, console, _ = make("plain")
    progress.begin_run("x", 4)
    progress.step_finished(make_row(0), [domain_row("math", 0.25)])
    progress.step_finished(make_row(1), [domain_row("code", 0.5), domain_row("math", 0.25)])
    lines = written(console).splitlines()
    assert len(lines) == 5
    assert lines[-1].strip() == "code 0.500 (1,234 tokens), math 0.250 (1,234 tokens)"


def test_the_live_screen_shows_every_domain_of_the_last_step() -> None:
    progress, _, _ = make("live")
    progress.begin_run("x", 4)
    progress.step_finished(make_row(0), [domain_row("math", 0.25)])
    height = len(screen(progress).splitlines())
    assert "domains" not in screen(progress)
    progress.step_finished(make_row(1), [domain_row(name * 9, 0.5) for name in "abcdef"])
    assert "domains aaaaaaaaa 0.500 (1,234 tokens)" in screen(progress)
    assert all(f"{name * 9} 0.500" in screen(progress) for name in "abcdef")
    assert len(screen(progress).splitlines()) == height + 4  # one step more and the domains, two to a line
    progress.end_run()


def test_plain_lines_fit_into_80_columns_with_large_numbers_too() -> None:
    progress, console, _ = make("plain")
    progress.begin_run("x", 99_999)
    large = make_row(
        99_000,
        reward_mean=-10.5,
        tokens_per_second=999_999.0,
        response_length_mean_tokens=32_768.0,
        response_length_max_tokens=131_072,
        decode_slot_steps_busy=0,
        long_queue_length=12_345,
        step_time_s=9_999.9,
    )
    progress.step_finished(large)
    assert written(console).splitlines()[-1].endswith("115d 12h")
    assert [len(line) for line in written(console).splitlines()[1:]] == [WIDTH, WIDTH]


def test_the_plain_header_comes_back_so_that_one_is_on_the_screen() -> None:
    progress, console, _ = make("plain")
    progress.begin_run("x", 100)
    for step in range(HEADER_EVERY_LINES + 1):
        progress.step_finished(make_row(step))
    lines = written(console).splitlines()
    headers = [number for number, line in enumerate(lines) if line.startswith(" step")]
    assert headers == [1, HEADER_EVERY_LINES + 2]


def test_the_live_screen_shows_stage_batch_steps_and_time_left_in_80_columns() -> None:
    progress, _, clock = make("live")
    progress.begin_run("rollpacker in " + "runs/" * 30, 40)
    assert "step 0/40" in screen(progress)
    assert "left -:--" in screen(progress)
    for step in range(9):
        progress.step_finished(make_row(step, round_kind="long" if step == 8 else "short"))
    progress.stage("rollout")
    progress.rollout(11, 16)
    clock.now_s = 65
    shown = screen(progress)
    for text in ("step 9/40", "elapsed 1:05", "rollout", "11/16 prompts", "mean of 8: 0.450", "▁", "█"):
        assert text in shown
    for column in COLUMNS:
        assert column.name in shown
    steps = [line.split()[1:3] for line in shown.splitlines() if "short" in line or "long " in line]
    assert [kind for step, kind in steps if step.isdigit()] == ["short"] * 5 + ["long"]
    assert len(shown.splitlines()) < 24
    assert {len(line) for line in shown.splitlines()} == {WIDTH}
    progress.end_run()


def test_the_live_screen_draws_in_place_and_ends_with_the_outcome() -> None:
    progress, console, clock = make("live")
    progress.begin_run("x", 2)
    progress.note("engine-1 died")
    progress.step_finished(make_row(0))
    clock.now_s = 10
    progress.end_run()
    text = written(console)
    assert "note: engine-1 died" in text
    assert "1 step in 0:10" in text
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize("mode", ["live", "plain"])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("x"), "failed during training"),
        (KeyboardInterrupt(), "interrupted during"),
        (Preempted("asked"), "left during"),
    ],
)
def test_an_early_end_says_where_the_run_stood(mode: str, error: BaseException, said: str) -> None:
    progress, console, clock = make(mode)
    progress.begin_run("x", 40)
    progress.step_finished(make_row(11))
    progress.stage("training")
    clock.now_s = 200
    progress.fail(error)
    assert said in written(console)
    assert "after 12 of 40 steps and 3:20" in written(console)


def test_before_its_first_stage_the_live_screen_counts_from_the_start() -> None:
    progress, _, clock = make("live")
    clock.now_s = 25_000.0
    progress.begin_run("a run", 3)
    clock.now_s += 4
    assert "starting  0:04" in screen(progress)


@pytest.mark.parametrize("mode", ["live", "plain", "none"])
def test_an_error_before_the_run_began_is_no_second_error(mode: str) -> None:
    progress, _, _ = make(mode)
    progress.note("early")
    progress.fail(ValueError("x"))


@pytest.mark.parametrize("mode", ["live", "plain"])
def test_a_run_with_nothing_left_to_do_says_so(mode: str) -> None:
    progress, console, _ = make(mode)
    progress.begin_run("x", 40)
    progress.end_run()
    assert "no step was left to do" in written(console)


def test_time_left_follows_the_last_steps_and_counts_down_within_one() -> None:
    progress, _, clock = make("live")
    progress.begin_run("x", 20)
    for step in range(8):
        progress.step_finished(make_row(step, step_time_s=100.0, finished_at_s=100.0 * (step + 1)))
    for step in range(8, 16):
        times = {"step_time_s": 8.0, "checkpoint_time_s": 2.0, "finished_at_s": 10.0 * (step - 7) + 800.0}
        progress.step_finished(make_row(step, **times))
    assert "left 0:40" in screen(progress)
    clock.now_s = 4
    assert "left 0:36" in screen(progress)
    clock.now_s = 1000  # a step that takes longer than expected still leaves the others
    assert "left 0:30" in screen(progress)
    progress.step_finished(make_row(19))
    assert "left 0:00" in screen(progress)
    progress.end_run()


def test_time_left_counts_evaluations_between_steps_by_their_share_of_all_steps() -> None:
    progress, _, _ = make("live")
    progress.begin_run("x", 31)
    for step in range(21):
        num_evaluations = 1 + step // 10  # of 50 s, ahead of steps 0, 10 and 20
        progress.step_finished(make_row(step, finished_at_s=10.0 * (step + 1) + 50.0 * num_evaluations))
    assert "left 2:30" in screen(progress)  # 10 steps of 10 s, and 5 s a step for evaluations
    progress.end_run()


def test_a_long_run_is_shown_from_its_first_step_on() -> None:
    progress, console, clock = make("live")
    progress.begin_run("x", 1000)
    rewards = [math.sin(step / 50) for step in range(300)]
    for step, reward in enumerate(rewards):
        slots = {"decode_slot_steps_busy": 4 - step % 4, "decode_slot_steps_idle": step % 4}
        progress.step_finished(make_row(step, reward_mean=reward, **slots))
    shown = screen(progress)
    curve = f"{rewards[0]:.3f} {sparkline(rewards, SPARKLINE_WIDTH)} {rewards[-1]:.3f}"
    assert f"reward  {curve}   mean of 8: {sum(rewards[-8:]) / 8:.3f}" in shown
    last = [line.split()[1:5] for line in shown.splitlines() if "short" in line]
    assert last == [
        [str(step + 1), "short", f"{rewards[step]:.3f}", f"{sum(rewards[step - 7 : step + 1]) / 8:.3f}"]
        for step in range(294, 300)
    ]
    clock.now_s = 60
    progress.end_run()
    first, newest = sum(rewards[:4]) / 4, sum(rewards[-4:]) / 4
    assert f"300 steps in 1:00, reward {first:.3f} -> {newest:.3f}, idle slots 38%" in written(console)


@pytest.mark.parametrize(
    ("num_steps", "said"),
    [(1, "reward 0.000, "), (3, "reward 0.000 -> 0.200, "), (5, "reward 0.050 -> 0.350, ")],
)
def test_first_and_last_reward_of_a_short_run_are_of_different_steps(num_steps: int, said: str) -> None:
    progress, console, _ = make("plain")
    for step in range(num_steps):
        progress.step_finished(make_row(step, reward_mean=step / 10))
    progress.end_run()
    assert said in written(console).splitlines()[-1]


def test_idle_slots_of_a_run_are_those_of_all_its_forward_passes_and_a_step_without_any_has_none() -> None:
    progress, console, _ = make("plain")
    progress.begin_run("x", 3)
    for step, (busy, idle) in enumerate(((900, 100), (0, 0), (0, 1000))):
        progress.step_finished(make_row(step, decode_slot_steps_busy=busy, decode_slot_steps_idle=idle))
    progress.end_run()
    *_, first, second, third, outcome = written(console).splitlines()
    assert [line.split()[7] for line in (first, second, third)] == ["10%", "-", "100%"]
    assert outcome.endswith("idle slots 55%")


def test_a_run_that_decoded_nothing_has_no_idle_share() -> None:
    progress, console, _ = make("plain")
    progress.begin_run("x", 1)
    progress.step_finished(make_row(0, decode_slot_steps_busy=0, decode_slot_steps_idle=0))
    progress.end_run()
    assert written(console).splitlines()[-1].endswith("idle slots -")


def test_a_step_that_is_shown_stays_in_memory_as_a_few_bytes() -> None:
    history = RunHistory(began_at_s=0.0)
    num_steps = 2000
    tracemalloc.start()
    for step in range(num_steps):
        history.finish_step(make_row(step), (), 0.0)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_bytes / num_steps < 20


def test_an_attempt_that_ends_in_its_first_step_counts_the_steps_before_it() -> None:
    progress, console, _ = make("plain")
    progress.begin_run("x", 100)
    progress.resume(40)
    progress.stage("rollout")
    progress.fail(RuntimeError())
    assert "failed during rollout, after 40 of 100 steps" in written(console)


def test_a_reward_that_is_not_a_number_is_shown_and_does_not_break_the_screen() -> None:
    progress, _, _ = make("live")
    progress.begin_run("x", 3)
    progress.step_finished(make_row(0, reward_mean=math.nan))
    progress.step_finished(make_row(1))
    assert "nan" in screen(progress)
    progress.end_run()


def test_auto_is_live_in_a_terminal_and_plain_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal(file=io.StringIO(), force_terminal=True)
    assert isinstance(make_progress("auto", console=terminal), LiveProgress)
    assert isinstance(make_progress("auto", console=Terminal(file=io.StringIO())), PlainProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_progress("auto", console=terminal), PlainProgress)
    assert type(make_progress("none")) is Progress


def test_markup_in_names_is_shown_as_it_is() -> None:
    progress, console, _ = make("plain")
    progress.begin_run("runs/[bold]x", 1)
    progress.note("[/nothing]")
    assert "runs/[bold]x" in written(console)
    assert "[/nothing]" in written(console)
    live, _, _ = make("live")
    live.begin_run("runs/[bold]x", 1)
    assert "runs/[bold]x" in screen(live)
    live.end_run()


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([], ""),
        ([1.0], "▅"),
        ([0.0, 1.0], "▁█"),
        ([0.0, 0.0, 1.0, 1.0, 0.5, 0.5, 1.0, 1.0], "▁█▅█"),
        ([math.nan, 0.0, 1.0], " ▁█"),
        ([math.nan], " "),
    ],
)
def test_a_sparkline_goes_from_the_lowest_to_the_highest(values: list[float], drawn: str) -> None:
    assert sparkline(values, 4) == drawn


def test_durations_are_written_as_people_write_them() -> None:
    assert [format_duration(value) for value in (0, 59.6, 61, 3600, 100_000, 360_000, math.nan, math.inf)] == [
        "0:00",
        "1:00",
        "1:01",
        "1:00:00",
        "27:46:40",
        "4d 04h",
        "-:--",
        "-:--",
    ]
