"""How figures look: legends and titles between the edges, a system's colour everywhere, modelled lines dashed."""

from itertools import pairwise

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from rollpacker.analysis.exhibits import elastic_lengths, elastic_workers, flash_lead, ladder, learning, table2
from rollpacker.analysis.numbers import Numbers, Point, Source
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.style import FIGURE_WIDTH_INCHES, SYSTEM_COLORS, legend_below, use_style


def point(series="a", *, panel="p", x=1.0, y=1.0, unit="x", source=Source.MODELLED):
    spread = {} if source is Source.PAPER else {"y_low": y, "y_high": y, "num_seeds": 2}
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
