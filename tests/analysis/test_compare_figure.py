"""The figure of `analysis compare`: which lines it has, in which colours and styles, and how they are named."""

from itertools import pairwise

import pytest

from rollpacker.analysis.compare import figure
from rollpacker.analysis.compare.figure import draw
from rollpacker.analysis.compare.scores import scores_of
from rollpacker.analysis.runs import shared_steps
from rollpacker.analysis.style import OTHER_COLORS, SYSTEM_COLORS
from tests.analysis.comparisons import compared, write
from tests.analysis.written_runs import write_scores


@pytest.fixture
def drawn(monkeypatch):
    """The panels of the figure that is drawn."""
    shown = []
    monkeypatch.setattr(figure, "save_figure", lambda drawn, stem: shown.extend(drawn.axes) or (stem, stem))
    return shown


def draw_all(folders, stem):
    rows, columns = compared(*folders)
    shared = shared_steps(run for column in columns for run in column.runs)
    draw(columns, scores_of(columns), rows["rollout time"], shared, stem)


def test_the_figure_has_a_line_of_means_over_seeds_for_each_column(seeds, tmp_path, drawn):
    draw_all(sorted(seeds.glob("*-?")), tmp_path / "compare")
    times, rewards = drawn
    means = [line.get_ydata()[0] for line in times.lines if len(line.get_xdata()) == 10]
    assert means == pytest.approx([8 / 3, 6.0])
    scores = [line.get_ydata().tolist() for line in rewards.lines if line.get_color() in SYSTEM_COLORS.values()]
    assert scores == [pytest.approx([0.5, 0.92]), pytest.approx([0.5, 0.9])]
    assert rewards.get_xlabel() == "training step; bands: standard error over seeds"


def test_the_figure_has_scores_where_all_seeds_and_all_sets_have_one(seeds, tmp_path, drawn):
    write_scores(write(tmp_path / "verl-9", "verl", [4.0] * 5, seed=9), {0: {"unseen": 0.5, "other": 0.1}, 5: {}})
    draw_all([*sorted(seeds.glob("verl-?")), tmp_path / "verl-9"], tmp_path / "compare")
    scores = [line.get_xdata().tolist() for line in drawn[1].lines if line.get_color() in SYSTEM_COLORS.values()]
    assert scores == [[0]]


def test_means_of_runs_of_different_length_end_with_the_shared_steps(tmp_path, drawn):
    draw_all([write(tmp_path / "verl", "verl", [4.0] * 8), write(tmp_path / "tail", "tail", [3.0] * 4)], tmp_path)
    dashed = [line for line in drawn[0].collections if line.get_linestyle()[0][1]]
    assert [line.get_segments()[0][:, 0].tolist() for line in dashed] == [[0.5, 4.5]] * 2


def test_training_rewards_have_the_columns_pale_colours_beside_any_held_out_score(both, tmp_path, drawn):
    write_scores(both[1], {0: 0.5, 10: 0.9})
    draw_all(both, tmp_path / "compare")
    *rewards, score = drawn[1].lines
    assert [line.get_color() for line in rewards] == [
        figure._pale(SYSTEM_COLORS[name]) for name in ("verl", "rollpacker")
    ]
    assert (score.get_xdata().tolist(), score.get_ydata().tolist()) == ([0, 10], [0.5, 0.9])
    assert score.get_color() == SYSTEM_COLORS["rollpacker"]
    assert drawn[1].get_title(loc="left") == "Held-out score; pale: training reward over 5 steps"


def test_each_of_several_held_out_sets_has_a_line_of_its_own_that_the_legend_names(both, tmp_path, drawn):
    for folder in both:
        write_scores(folder, {0: {"math": 0.5, "code": 0.2}, 10: {"math": 0.9, "code": 0.3}})
    draw_all(both, tmp_path / "compare")
    [legend] = drawn[0].figure.legends
    styles = {
        text.get_text(): line.get_linestyle() for text, line in zip(legend.texts, legend.legend_handles, strict=True)
    }
    shown = [line for line in drawn[1].lines if line.get_color() in SYSTEM_COLORS.values()]
    assert [line.get_ydata()[0] for line in shown] == [0.5, 0.2] * 2
    assert [line.get_linestyle() for line in shown] == [styles["set math"], styles["set code"]] * 2 == ["-", "--"] * 2


@pytest.mark.parametrize("num_steps", [1, 3])
def test_the_steps_of_short_runs_have_whole_ticks(num_steps, tmp_path, drawn):
    draw_all([write(tmp_path / "verl", "verl", [4.0] * num_steps)], tmp_path / "compare")
    assert all(float(tick).is_integer() for tick in drawn[1].get_xticks())


def test_without_any_score_training_rewards_have_the_colours(both, tmp_path, drawn):
    draw_all(both, tmp_path / "compare")
    assert [line.get_color() for line in drawn[1].lines] == [SYSTEM_COLORS["verl"], SYSTEM_COLORS["rollpacker"]]
    assert drawn[1].get_title(loc="left") == "Training reward over 5 steps"


def test_many_columns_have_one_line_and_one_colour_each(tmp_path, drawn):
    rates = [{"trainer": {"learning_rate": rate}} for rate in (0.1, 0.2, 0.3)]
    folders = [write(tmp_path / str(at), "tail", [1.0] * 6, config=config) for at, config in enumerate(rates)]
    draw_all(folders, tmp_path / "compare")
    handles, labels = drawn[0].get_legend_handles_labels()
    assert labels == [f"tail, learning_rate={rate}" for rate in (0.1, 0.2, 0.3)]
    assert [line.get_color() for line in handles] == [SYSTEM_COLORS["tail"], *OTHER_COLORS[:2]]
    assert [text.get_text() for text in drawn[0].texts] == ["1.00 s"] * 3


def test_a_label_with_signs_of_mathematics_is_drawn_as_it_is(tmp_path):
    prompts = [r"Answer in $\boxed{}$ please", "$1$" * 60]
    folders = [
        write(tmp_path / str(at), "tail", [1.0] * 6, config={"data": {"system_prompt": prompt}})
        for at, prompt in enumerate(prompts)
    ]
    draw_all(folders, tmp_path / "compare")
    assert (tmp_path / "compare.pdf").exists()


@pytest.mark.parametrize("num_measured", [1, 2])
def test_measured_and_modelled_columns_are_named_so_where_both_are_shown(num_measured, tmp_path, drawn):
    folders = [write(tmp_path / name, name, [4.0] * 4) for name in ("verl", "rlhfuse")[:num_measured]]
    draw_all(folders, tmp_path)
    assert not any("measured" in label for label in drawn[0].get_legend_handles_labels()[1])
    drawn.clear()
    draw_all([*folders, write(tmp_path / "modelled", "dapo", [2.0] * 4, modelled=True)], tmp_path)
    labels = drawn[0].get_legend_handles_labels()[1]
    assert labels[0] == "plain batches, measured"
    assert labels[-1].endswith("dapo, modelled")


def test_the_means_of_the_figure_are_those_of_the_table_and_stand_apart_in_their_order(tmp_path, drawn):
    times = {"verl": [4.0] * 4 + [40.0] * 4, "tail": [3.9] * 4}
    draw_all([write(tmp_path / system, system, own) for system, own in times.items()], tmp_path)
    shown = [(text.get_text(), text.xy[1]) for text in drawn[0].texts]
    assert [text for text, _ in shown] == ["mean\n4.00 s", "mean\n3.90 s"]
    means = sorted(place for _, place in shown)
    assert [place for _, place in shown] == [means[1], means[0]]
    assert all(above - below > 0.149 for below, above in pairwise(means))
    assert 0 < means[0] < means[-1] < 1


def test_the_figure_shows_every_step_of_both_systems_with_long_rounds_marked(both, tmp_path, drawn):
    draw_all(both, tmp_path / "compare")
    handles, labels = drawn[0].get_legend_handles_labels()
    shown = dict(zip(labels, (group.get_offsets().data.tolist() for group in handles), strict=True))
    assert [len(points) for points in shown.values()] == [10, 8, 2]
    assert shown["long round: tail batching"] == [[5.0, 4.0], [10.0, 4.0]]
