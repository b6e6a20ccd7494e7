"""The demo's table and figure: the numbers, and what happens when a run is missing or unfinished."""

import io
from itertools import pairwise

import pytest

from rollpacker.analysis import demo
from rollpacker.analysis.runs import read_runs
from rollpacker.cli.main import main
from rollpacker.metrics.schemas import STEPS
from rollpacker.metrics.table_writer import MetricsWriter
from rollpacker.terminal import Terminal
from tests.analysis.written_runs import forget_steps, write_scores

ZEROS = {"int": 0, "float": 0.0, "bool": False, "text": ""}


def step_row(step, **values):
    row = {column.name: None if column.is_nullable else ZEROS[column.type] for column in STEPS.columns}
    return row | {"step": step, "round": step} | values


def write_run(folder, system, rollout_times, **values):
    writer = MetricsWriter(folder / "metrics")
    for step, rollout_time in enumerate(rollout_times):
        kind = "plain" if system == "verl" else "long" if step % 5 == 4 else "short"
        times = {"rollout_time_s": rollout_time, "step_time_s": rollout_time + 1}
        row = step_row(step, system=system, round_kind=kind, reward_mean=step / 10, **times, **values)
        writer.write_step(step, {"steps": [row], "domains": [], "responses": [], "intervals": []})
    writer.close()
    return folder


@pytest.fixture
def both(tmp_path):
    idle = {"decode_slot_steps_idle": 30, "decode_slot_steps_busy": 10}
    tail = {"decode_slot_steps_idle": 10, "decode_slot_steps_busy": 30, "tokens_generated": 100, "tokens_wasted": 25}
    return [
        write_run(tmp_path / "verl", "verl", [4.0] * 10, **idle),
        write_run(tmp_path / "rollpacker", "rollpacker", [1.0, 1.0, 1.0, 1.0, 4.0] * 2, **tail),
    ]


def test_speedups_are_ratios_of_sums_over_the_steps_that_both_runs_have(both):
    runs, problems = read_runs(both)
    assert problems == []
    summary = demo.summarise(runs[1], baseline=runs[0], shared=[*range(10)])
    assert summary["rollout_speedup"] == pytest.approx(40 / 16)
    assert summary["step_speedup"] == pytest.approx(50 / 26)
    assert summary["bubble_ratio"] == pytest.approx(0.25)
    assert summary["wasted_share"] == pytest.approx(0.25)
    assert summary["reward_first"] == pytest.approx(0.2)
    assert summary["reward_last"] == pytest.approx(0.7)
    assert demo.summarise(runs[0], baseline=runs[0], shared=[*range(10)])["rollout_speedup"] == 1


def test_the_held_out_scores_stand_above_the_training_rewards(both, tmp_path, capsys):
    for folder, last in zip(both, (0.94, 0.915), strict=True):
        write_scores(folder, {0: 0.5, 5: 0.7, 10: last})
    summary = demo.summarise(read_runs(both)[0][1], baseline=read_runs(both)[0][0], shared=[*range(10)])
    assert (summary["held_out_first"], summary["held_out_last"]) == (0.5, 0.915)
    assert main(["analysis", "demo", *map(str, both), f"out={tmp_path / 'out'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (held_out,) = (number for number, line in enumerate(lines) if "held-out score after" in line)
    assert [word for word in lines[held_out].split() if word.startswith("0.")] == ["0.940", "0.915"]
    assert "training reward" in lines[held_out + 2]


def test_a_run_that_went_on_is_compared_over_the_steps_that_both_have(both, tmp_path, capsys):
    longer = write_run(tmp_path / "longer", "verl", [4.0] * 10 + [40.0] * 10)
    write_scores(longer, {0: 0.5, 10: 0.8, 20: 0.9})
    assert main(["analysis", "demo", str(longer), str(both[1]), f"out={tmp_path / 'out'}"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "The runs have 10, 20 steps; all means are over the 10 that all of them have." in lines
    assert "10 steps, measured on this machine; means per step" in lines
    assert any("rollout time │ 4.0 s │ 1.6 s" in line for line in lines)
    assert any("held-out score after │ 0.800" in line for line in lines)


def test_a_step_that_one_run_has_lost_is_left_out_of_the_other_too(tmp_path, capsys):
    times = [1.0, 1.0, 50.0, 1.0, 1.0]
    verl = write_run(tmp_path / "verl", "verl", times)
    tail = write_run(tmp_path / "tail", "tail", times)
    forget_steps(tail, {0})
    summary = demo.summarise(*reversed(read_runs([verl, tail])[0]), shared=[1, 2, 3, 4])
    assert (summary["rollout_speedup"], summary["rollout_time_s"]) == (1, 53 / 4)
    assert main(["analysis", "demo", str(verl), str(tail), f"out={tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr().out
    assert "4 steps, measured on this machine; means per step" in printed
    assert "The runs have 4, 5 steps; all means are over the 4 that all of them have." in printed
    forget_steps(verl, {1, 2, 3, 4})
    assert main(["analysis", "demo", str(verl), str(tail), f"out={tmp_path / 'none'}"]) == 2
    assert "There is no step that all runs have in" in capsys.readouterr().err


def test_the_figure_draws_the_held_out_score_and_the_training_reward_in_grey(both, tmp_path, monkeypatch):
    write_scores(both[1], {0: 0.5, 10: 0.9})
    shown = []
    monkeypatch.setattr(demo, "save_figure", lambda figure, stem: shown.extend(figure.axes[1].lines) or (stem, stem))
    demo.draw(read_runs(both[1:])[0], [*range(10)], tmp_path / "demo")
    grey, score = shown
    assert grey.get_color() == "0.75"
    assert (score.get_xdata().tolist(), score.get_ydata().tolist()) == ([0, 10], [0.5, 0.9])


def test_the_means_of_the_figure_are_those_of_the_table_and_stand_apart_in_their_order(tmp_path, monkeypatch):
    times = {"verl": [4.0] * 4 + [40.0] * 4, "tail": [3.9] * 4, "rollpacker": [1.0] * 4, "tail-reward": [1.1] * 4}
    folders = [write_run(tmp_path / system, system, own) for system, own in times.items()]
    shown = []

    def catch(figure, stem):
        shown.extend((text.get_text(), text.xy[1]) for text in figure.axes[0].texts)
        return stem, stem

    monkeypatch.setattr(demo, "save_figure", catch)
    demo.show(folders, tmp_path)
    assert [text for text, _ in shown] == ["mean\n4.0 s", "mean\n3.9 s", "mean\n1.0 s", "mean\n1.1 s"]
    means = sorted(place for _, place in shown)
    assert [place for _, place in shown] == [means[3], means[2], means[0], means[1]]
    assert all(above - below > 0.149 for below, above in pairwise(means))
    assert 0 < means[0] < means[-1] < 1


def test_an_unfinished_run_is_compared_over_its_own_steps(both, tmp_path):
    shorter = write_run(tmp_path / "short", "rollpacker", [2.0] * 4)
    runs, _ = read_runs([both[0], shorter])
    assert str(demo.table_of(runs).title).startswith("4 steps")
    assert demo.summarise(runs[1], baseline=runs[0], shared=[*range(4)])["rollout_speedup"] == pytest.approx(2)


def test_the_figure_shows_every_step_of_both_systems_with_long_rounds_marked(both, tmp_path, monkeypatch):
    shown = {}

    def catch(figure, stem):
        times = figure.axes[0]
        shown.update({group.get_label(): group.get_offsets().data.tolist() for group in times.collections})
        return stem, stem

    monkeypatch.setattr(demo, "save_figure", catch)
    demo.draw(read_runs(both)[0], [*range(10)], tmp_path / "demo")
    assert [len(points) for points in shown.values()] == [10, 8, 2]
    assert shown["tail batching, long round"] == [[5.0, 4.0], [10.0, 4.0]]


def test_the_command_prints_the_table_and_writes_png_and_pdf(both, tmp_path, capsys):
    assert main(["analysis", "demo", *map(str, both), f"out={tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr().out
    assert "measured on this machine" in printed
    assert "2.50 x" in printed
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "demo.pdf").read_bytes().startswith(b"%PDF")


def test_a_missing_run_is_named_and_the_rest_is_drawn(both, tmp_path, capsys):
    code = main(["analysis", "demo", str(both[0]), str(tmp_path / "nowhere"), f"out={tmp_path / 'out'}"])
    assert code == 0
    assert "nowhere" in capsys.readouterr().err


def test_without_any_run_nothing_is_drawn_and_the_exit_code_is_2(tmp_path, capsys):
    assert main(["analysis", "demo", str(tmp_path / "nowhere"), f"out={tmp_path / 'out'}"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_modelled_numbers_are_called_modelled(tmp_path):
    run = write_run(tmp_path / "modelled", "verl", [1.0] * 3, modelled=True)
    console = Terminal(width=100, file=io.StringIO())
    console.print(demo.table_of(read_runs([run])[0]))
    assert "modelled" in console.file.getvalue()
