"""The page: whole, self-contained, and honest about what was modelled and what is missing."""

import itertools
import json
import re
import shutil
from html.parser import HTMLParser

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollpacker.report import charts
from rollpacker.report.page import render
from rollpacker.report.story import tell
from rollpacker.report.words import count, seconds, share, size
from tests.timeline.runs import modelled_run, run_with_lost_engines

VOID = {"meta"}
SECTIONS = ("What ran", "Where the time went", "One step, actor by actor", "Engines", "The worst waits")
SECTIONS += ("Response lengths", "Rewards and the long-prompt queue", "Tokens")


class Reader(HTMLParser):
    """Collects texts and links, and notices what is not closed."""

    def __init__(self, page):
        super().__init__()
        self.open, self.texts, self.links = [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in {"src", "href", "action"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "rollpacker": modelled_run(folder / "rollpacker", "system=rollpacker", "system.planner=false"),
        "verl": modelled_run(folder / "verl", "system=verl"),
        "single": modelled_run(folder / "single", "system=tail", "run.num_steps=1"),
        "broken": run_with_lost_engines(folder),
    }


def page_of(*run_dirs):
    return render([tell(run_dir) for run_dir in run_dirs])


@pytest.mark.parametrize("name", ["rollpacker", "verl", "single", "broken"])
def test_a_page_is_whole_needs_no_network_and_says_that_it_is_modelled(runs, name):
    page = page_of(runs[name])
    read = Reader(page)
    for section in SECTIONS:
        assert section in read.text
    assert read.links == []
    assert not re.search(r"https?://|@import|url\(", page)
    assert read.text.count("modelled") >= len(SECTIONS)
    for number in re.findall(r'="(-?[a-z]*nan|-?inf)', page):
        pytest.fail(f"a chart has the coordinate {number}")
    assert "nan" not in read.text.lower().replace("finance", "")


def test_two_runs_stand_side_by_side_with_the_ratio_of_the_sums_of_their_step_times(runs):
    mine, other = tell(runs["rollpacker"]), tell(runs["verl"])
    text = Reader(render([mine, other])).text
    assert f"{other.total_s / mine.total_s:.2f} x verl over rollpacker: sums of 5 steps" in text
    assert "rollpacker: mean per step" in text
    assert "verl: mean per step" in text


def test_runs_of_different_length_are_compared_over_the_steps_that_both_have(runs):
    assert "sums of 1 step " in Reader(page_of(runs["single"], runs["verl"])).text


def test_runs_of_one_name_are_told_apart_by_their_parents(runs, tmp_path):
    shutil.copytree(runs["verl"], tmp_path / "again" / "verl")
    text = Reader(page_of(runs["verl"], tmp_path / "again" / "verl")).text
    assert "again/verl" in text


def test_what_an_unfinished_run_or_a_stripped_copy_lacks_is_said(runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs["verl"], copy)
    shutil.rmtree(copy / "events")
    (copy / "config.yaml").unlink()
    status = json.loads((copy / "status.json").read_text())
    (copy / "status.json").write_text(json.dumps(status | {"state": "running", "num_steps": 9}))
    text = Reader(page_of(copy)).text
    assert "5 steps of 9, still running" in text
    assert "There is no config.yaml" in text
    assert "There is no event log" in text
    (copy / "status.json").unlink()
    assert "of unknown state" in Reader(page_of(copy)).text


def test_a_run_of_an_older_version_is_shown_without_what_it_lacks(runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs["rollpacker"], copy)
    for path in (copy / "metrics").glob("*/*.parquet"):
        table = pq.read_table(path)
        absent = [name for name in ("placed_at_s", "subject") if name in table.column_names]
        old = table.schema.metadata | {b"rollpacker.schema_version": b"3"}
        table = (
            table.filter(pa.array([row not in {"evicted", "lost"} for row in table["activity"].to_pylist()]))
            if ("activity" in table.column_names)
            else table
        )
        pq.write_table(table.drop_columns(absent).replace_schema_metadata(old), path)
    text = Reader(page_of(copy)).text
    assert "responses was written with schema version 3, before there were the columns placed_at_s" in text
    for section in SECTIONS:
        assert section in text


def test_names_from_the_prompt_file_cannot_break_the_page(runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs["single"], copy)
    for path in (copy / "metrics" / "responses").glob("*.parquet"):
        table = pq.read_table(path)
        column = table.column_names.index("prompt")
        field = table.schema.field("prompt")
        names = pa.array([f"<script>{name}</td>" for name in table["prompt"].to_pylist()])
        pq.write_table(table.set_column(column, field, names), path)
    page = page_of(copy)
    Reader(page)
    assert page.count("<script>") == 1


@pytest.mark.parametrize("number", [1e-5, 0.004, 0.7, 3.3, 59, 100, 200, 900, 5000, 90_000])
def test_axes_have_few_round_marks(number):
    for marks in (charts.ticks(0, number), charts.duration_ticks(0, number)):
        assert 2 <= len(marks) <= 7
        assert marks[0] == 0
        assert marks[-1] <= number * 1.001
        steps = [after - before for before, after in itertools.pairwise(marks)]
        assert max(steps) == pytest.approx(min(steps))


def test_many_steps_share_bars_and_keep_their_mean():
    steps = list(range(1000))
    chart = charts.stacked_bars(
        steps, {"a": [2.0] * 1000}, {"a": "train"}, {"a": "training"}, width=800, description="many"
    )
    assert 100 <= chart.count("<rect") <= charts.MOST_BARS
    assert "steps 0 to 8, mean: 2.0 s" in chart


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (seconds(0), "0 s"),
        (seconds(0.00004), "40 µs"),
        (seconds(0.0042), "4.2 ms"),
        (seconds(0.9996), "1.0 s"),
        (seconds(9.97), "10 s"),
        (seconds(125.2), "2 min 5 s"),
        (seconds(3600 * 2 + 13 * 60), "2 h 13 min"),
        (count(12_345), "12,345"),
        (count(43_512_345), "43.5 M"),
        (share(0.0004), "0.04 %"),
        (share(0.121), "12 %"),
        (size(65.5e9), "65.5 GB"),
        (size(547_000), "547 kB"),
    ],
)
def test_numbers_have_three_digits_and_a_unit(said, expected):
    assert said == expected
