"""How figures look: legends and titles between the edges, a system's colour everywhere, modelled lines dashed.

Also what they say of themselves: seeds, ranges, and whose numbers they are.
"""

from itertools import pairwise

import matplotlib.pyplot as plt
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from rollpacker.analysis import style
from rollpacker.analysis.exhibits import (
    elastic_lengths,
    elastic_workers,
    flash_lead,
    flash_losses,
    ladder,
    learning,
    length_bias,
    limits,
    table2,
)
from rollpacker.analysis.numbers import OURS, PAPERS, Numbers, Point, Source
from rollpacker.analysis.plots import PAPER_DOT, compare_bars, compare_curves, compare_lines, compare_situations
from rollpacker.analysis.style import FIGURE_WIDTH_INCHES, SYSTEM_COLORS, legend_below, use_style


def point(series="a", *, panel="p", x=1.0, y=1.0, unit="x", source=Source.MODELLED, num_seeds=2):
    spread = {} if source is Source.PAPER else {"y_low": y - 0.1, "y_high": y + 0.1, "num_seeds": num_seeds}
    return Point(panel=panel, series=series, x=x, y=y, unit=unit, source=source, **spread)


def drawn_colors(figure):
    return {to_hex(line.get_color()).upper() for axes in figure.axes for line in axes.lines}


@pytest.mark.parametrize(
    ("names", "num_rows"),
    [
        ("abcdefgh", 1),
        (("spread over engines", "kept together", "Base", "Think"), 2),
        (
            (
                "veRL",
                "roll-flash, best split",
                "roll-flash, in turns",
                "flash, in turns",
                "ratio of the bounds, staleness 2",
            ),
            3,
        ),
        (("W" * 40,) * 4, 6),
        (("long round: tail, data.path=/shared/" + "x" * 200 + ".parquet, learning_rate=1e-06",), 3),
    ],
)
def test_a_legend_ends_within_the_figure_in_as_few_rows_as_that_leaves(names, num_rows):
    use_style()
    figure = plt.figure(figsize=(FIGURE_WIDTH_INCHES, 2))
    others = ("paper", "modelled, mean of 2 seeds and their range")
    legend_below(figure, [Line2D([], [], label=name) for name in (*names, *others)])
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert max(text.get_window_extent().x1 for text in figure.legends[0].get_texts()) < box.x1
    assert len({round(text.get_window_extent().y0) for text in figure.legends[0].get_texts()}) == num_rows
    plt.close(figure)


def test_each_line_of_a_broken_name_takes_the_room_that_there_is():
    folded = style._folded("x" * 250, style._width_points("x" * 100))
    assert [len(line) for line in folded.split("\n")] == [100, 100, 50]


def test_rollout_workers_do_not_have_the_colour_of_the_system_ours(tmp_path):
    for exhibit, series, panel in (
        (elastic_workers.EXHIBIT, elastic_workers.SERIES, elastic_workers.THROUGHPUT),
        (elastic_lengths.EXHIBIT, elastic_workers.SERIES, elastic_lengths.BEST),
    ):
        figure = exhibit.draw(Numbers(points=[point(series, panel=panel)]))
        assert SYSTEM_COLORS["ours"] not in drawn_colors(figure)
        plt.close(figure)


def test_a_series_that_is_a_system_has_its_colour_and_each_rung_of_table_2_one_of_its_own():
    figure = compare_lines(Numbers(points=[point(flash_lead.TAIL)]), xlabel="")
    assert SYSTEM_COLORS["rollpacker"] in drawn_colors(figure)
    assert figure.legends[0].get_texts()[0].get_text() == "RollPacker"
    plt.close(figure)
    assert len({SYSTEM_COLORS[system] for system in table2.LADDER}) == len(table2.LADDER)


def test_the_titles_of_the_ladder_stand_apart():
    points = [
        point("Qwen2.5-7B", panel=panel, x=system)
        for panel in ladder.NEUTRAL
        for systems in ladder.GROUPS.values()
        for system in systems
    ]
    figure = ladder.draw(Numbers(points=points))
    figure.canvas.draw()
    titles = [axes.title if axes.title.get_text() else axes._left_title for axes in figure.axes]
    boxes = [title.get_window_extent() for title in titles]
    assert all(left.x1 + 5 < right.x0 for left, right in pairwise(boxes))
    plt.close(figure)


@pytest.mark.parametrize(
    ("source", "style", "said"), [(Source.MODELLED, "--", "modelled"), (Source.MEASURED, "-", "measured")]
)
def test_what_was_learned_is_drawn_and_named_by_where_it_comes_from(source, style, said):
    panels = (learning.STEPS, learning.TIME, learning.BATCHES)
    points = [point("verl", panel=panel, x=x, source=source) for panel in panels for x in (0.0, 1.0)]
    figure = learning.draw(Numbers(points=points), {"verl": "plain batches"})
    lines = [line for axes in figure.axes for line in axes.lines if len(line.get_xdata())]
    assert {line.get_linestyle() for line in lines} == {style}
    legend = figure.legends[0]
    assert legend.get_title().get_text() == f"Held-out score, {said}, mean of 2 seeds and their range"
    assert {line.get_linestyle() for line in legend.get_lines()} == {style}
    plt.close(figure)


def test_bars_of_several_seeds_have_their_range_beside_one_of_a_single_seed():
    points = [point(OURS, x="a"), point(OURS, x="b", num_seeds=1), point(PAPERS, x="b", source=Source.PAPER)]
    figure = compare_bars(Numbers(points=points))
    ranges = [bars.lines[2][0] for bars in figure.axes[0].containers if hasattr(bars, "has_yerr")]
    [((x, low), (_, high))] = [segment for each in ranges for segment in each.get_segments()]
    assert (round(x), low, high) == (0, pytest.approx(0.9), pytest.approx(1.1))
    assert figure.legends[0].get_texts()[1].get_text() == "modelled, mean of up to 2 seeds and their range"
    plt.close(figure)


def test_a_bar_below_zero_and_its_number_are_within_the_panel():
    figure = compare_bars(Numbers(points=[point(OURS, x="a", y=20.0), point(OURS, x="b", y=-5.0)]))
    figure.canvas.draw()
    [axes] = figure.axes
    number = next(text for text in axes.texts if text.get_text() == "-5.0")
    assert (
        axes.bbox.y0
        < number.get_window_extent().y0
        < number.get_window_extent().y1
        < axes.transData.transform((0, -5))[1]
    )
    assert [0, 0] in [list(line.get_ydata()) for line in axes.lines]
    plt.close(figure)


def test_the_papers_points_over_a_line_have_a_grey_edge_and_are_not_pale():
    points = [point(x=1.0), point(x=2.0), point(x=1.0, y=3.0, source=Source.PAPER)]
    figure = compare_lines(Numbers(points=points), xlabel="")
    [dots] = [each for each in figure.axes[0].collections if isinstance(each, PathCollection)]
    assert {to_hex(color, keep_alpha=True).upper() for color in dots.get_edgecolor()} == {f"{PAPER_DOT}FF"}
    assert dots.get_facecolor()[0][3] == 1
    [mark] = [line for line in figure.legends[0].get_lines() if line.get_label() == "paper"]
    assert mark.get_markeredgecolor() == PAPER_DOT
    plt.close(figure)


def test_a_range_is_named_only_where_it_is_drawn():
    situations = Numbers(points=[point(x="a"), point(x="b")])
    table = compare_situations(situations, panel="p", told={}, caption="", model="M")
    cases = limits.draw(Numbers(points=[point("step", panel=limits.STAGES, x="as usual")]))
    for figure in (table, cases):
        assert "mean of 2 seeds" in figure.get_supxlabel()
        assert "range" not in figure.get_supxlabel()
        plt.close(figure)
    curves = compare_curves(Numbers(points=[point(x=10.0), point(x=20.0)]), xlabel="", ylabel="")
    assert curves.legends[0].get_texts()[0].get_text().endswith("and their range")
    assert curves.axes[0].collections[-1].get_paths()[0].get_extents().width == pytest.approx(0.2)
    plt.close(curves)


@pytest.mark.parametrize(("source", "style", "hatch"), [(Source.MODELLED, "--", "////"), (Source.MEASURED, "-", None)])
def test_the_bias_of_a_race_is_drawn_by_where_it_comes_from(source, style, hatch):
    of_race = [
        point(series, panel=length_bias.RACE, x=x, source=source) for series, x in (("trained", 1.0), ("plain", 0.0))
    ]
    points = [
        *of_race,
        point(length_bias.EVERY, panel=length_bias.ROUNDS, x="math", source=source),
        point("1", panel=length_bias.FACTOR_MAP, x="1", source=source),
        *(point("plain", panel=panel, source=source) for panel in (length_bias.SURVIVAL, length_bias.REWARD)),
    ]
    figure = length_bias.draw(Numbers(points=points))
    race, rounds, survival, *_, key = figure.axes
    styles = [line.get_linestyle() for axes in (race, survival, key) for line in axes.lines if len(line.get_xdata())]
    assert set(styles) == {style}
    assert {line.get_linestyle() for line in key.get_legend().get_lines()} == {style}
    assert {bar.get_hatch() or None for bar in rounds.patches} == {hatch}
    assert key.texts[0].get_text().startswith(source)
    plt.close(figure)


def test_bars_of_limits_stand_in_the_order_of_their_legend_and_their_numbers_beside_the_line_of_no_gain():
    points = [point(series, panel=limits.STAGES, x="cap 512", y=y) for series, y in (("step", 1.03), ("rollout", 0.98))]
    figure = limits.draw(Numbers(points=points))
    axes = figure.axes[1]
    figure.canvas.draw()
    step, rollout = (bars[0].get_window_extent().y0 for bars in axes.containers)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["step", "rollout"]
    assert step > rollout
    line_x = axes.transData.transform((1, 0))[0]
    assert all(text.get_window_extent().x0 > line_x + 1 for text in axes.texts)
    plt.close(figure)


def test_the_legend_of_losses_names_the_colour_of_every_bar():
    points = [point(OURS, x=x, source=Source.MEASURED) for x in (flash_losses.SYNCHRONOUS, *flash_losses.LOSSES)]
    figure = flash_losses.EXHIBIT.draw(Numbers(points=points))
    [patch] = figure.legends[0].get_patches()
    assert {bar.get_facecolor() for bar in figure.axes[0].patches} == {patch.get_facecolor()}
    plt.close(figure)
