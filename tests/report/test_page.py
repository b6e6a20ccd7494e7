"""The page: whole, self-contained, and honest about what was modelled and what is missing."""

import functools
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollpacker.metrics.event_log import attempt_path
from rollpacker.metrics.tables import read_frame
from rollpacker.report import figures
from rollpacker.report.page import render
from rollpacker.report.story import read_story
from rollpacker.report.style import STAGES as STAGE_STYLES
from rollpacker.report.words import count, digits, plural, ratio, seconds, share, size
from tests.analysis.written_runs import forget_steps
from tests.timeline.runs import modelled_run, run_with_lost_engines

VOID = {"meta"}
SECTIONS = ("What ran", "Where the time went", "One step, actor by actor", "Engines", "The worst waits")
SECTIONS += ("Response lengths", "Held-out scores", "Texts", "Rewards and the long-prompt queue", "Tokens")


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


@pytest.fixture(scope="module")
def again(runs, tmp_path_factory):
    """A run of the name that another has, in another folder."""
    return shutil.copytree(runs["verl"], tmp_path_factory.mktemp("again") / "verl")


@functools.cache
def page_of(*run_dirs):
    return render([read_story(run_dir) for run_dir in run_dirs])


@pytest.mark.parametrize("name", ["rollpacker", "verl", "single", "broken"])
def test_a_page_is_whole_needs_no_network_and_says_that_it_is_modelled(runs, name):
    page = page_of(runs[name])
    read = Reader(page)
    for section in SECTIONS:
        assert section in read.text
    assert read.links == []
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    assert read.text.count("modelled") >= len(SECTIONS)
    assert not re.search(r"[ \"]-?(nan|inf)[ \"]", page), "a figure has a coordinate that is no number"
    assert "nan" not in read.text.lower().replace("finance", "")


def test_the_page_says_what_the_run_cost(runs):
    story = read_story(runs["verl"])
    num_gpus = story.config["engine"]["num_engines"] * story.config["engine"]["tensor_parallel"] + 1  # of its judge
    hours = num_gpus * float(story.steps["finished_at_s"].iloc[-1]) / 3600
    assert f"{digits(hours)} GPU-hours of {num_gpus} GPU" in Reader(page_of(runs["verl"])).text


def test_what_a_measured_run_took_and_cost_is_said_to_be_without_starting(runs):
    story = read_story(runs["verl"])
    assert "without starting" not in Reader(page_of(runs["verl"])).text
    story.tables.steps["modelled"] = False
    text = Reader(render([story])).text
    assert re.search(r"GPU-hours of \d+ GPUs?, without starting", text)


def test_the_duration_begins_with_the_first_step_and_not_with_an_evaluation_before_it(tmp_path):
    run_dir = modelled_run(tmp_path / "run", *held_out_words(tmp_path), "system=verl", "run.num_steps=4")
    steps = read_frame(run_dir, "steps")
    ended_s = steps["finished_at_s"].iloc[-1]
    duration_s = ended_s - steps["finished_at_s"].iloc[0] + steps["step_time_s"].iloc[0]
    assert seconds(duration_s) != seconds(ended_s)
    said = f"duration {seconds(duration_s)} of modelled time from its first step to its last"
    assert said in Reader(page_of(run_dir)).text


def test_hours_whose_work_a_later_attempt_did_again_are_part_of_the_cost(runs, tmp_path):
    copy = shutil.copytree(runs["verl"], tmp_path / "copy")
    shutil.copy(attempt_path(copy, 0), attempt_path(copy, 1))
    story = read_story(copy)
    (began_s, ended_s), (_, until_s) = story.tables.attempt_spans
    assert began_s < ended_s <= until_s == story.steps["finished_at_s"].iloc[-1]
    hours = story.status.num_gpus * (ended_s + until_s) / 3600
    assert f"{digits(hours)} GPU-hours of {story.status.num_gpus} GPU" in Reader(render([story])).text


def test_the_time_of_a_resumed_runs_last_attempt_is_not_given_as_that_of_the_whole_run(runs):
    story = read_story(runs["verl"])
    assert ", computed in " in Reader(render([story])).text
    story.status = replace(story.status, attempt=2)
    text = Reader(render([story])).text
    assert "of which the last attempt was computed in " in text
    assert ", computed in " not in text


def test_the_change_of_the_reward_names_the_steps_that_it_is_of(runs, tmp_path):
    assert "first to last 2 steps" in Reader(page_of(runs["verl"])).text
    assert "mean reward, first to last step " in Reader(page_of(runs["verl"], runs["single"])).text
    story = read_story(modelled_run(tmp_path / "run", "system=verl", "run.num_steps=10"))
    rewards = story.steps["reward_mean"]
    text = Reader(render([story])).text
    assert f"{rewards[:5].mean():.3g} → {rewards[5:].mean():.3g} mean reward, first to last 5 steps" in text


def test_of_two_runs_the_page_says_which_is_faster_by_the_ratio_of_the_sums_of_their_step_times(runs):
    mine, other = read_story(runs["rollpacker"]), read_story(runs["verl"])
    text = Reader(page_of(runs["rollpacker"], runs["verl"])).text
    times = f"{other.total_s / mine.total_s:.2f} times as fast as verl: 5 steps took {seconds(mine.total_s)} instead"
    assert f"rollpacker is {times} of {seconds(other.total_s)}" in text
    assert f"rollpacker is {times}" in Reader(page_of(runs["verl"], runs["rollpacker"])).text
    assert "rollpacker: mean per step" in text
    assert "verl: mean per step" in text


def test_of_two_runs_that_do_other_work_the_page_says_so_beside_the_ratio(runs, tmp_path):
    small = modelled_run(tmp_path / "small", "system=verl", "rollout.num_prompts=4")
    said = r"They do not do the same work: they differ in batch \(\d+ prompts x .* and 4 prompts x .* at most\)\."
    assert re.search(said, Reader(page_of(runs["verl"], small)).text)
    assert "the same work" not in Reader(page_of(runs["rollpacker"], runs["verl"])).text


def test_measured_runs_on_other_numbers_of_gpus_do_other_work_and_unknown_is_not_other(runs):
    story = replace(read_story(runs["verl"]), steps=read_frame(runs["verl"], "steps").assign(modelled=False))
    story.tables.steps["modelled"] = False

    def verdict(**changes):
        return Reader(render([story, replace(story, **changes)])).text

    with_gpus = [replace(story.status, num_gpus=number, host="other") for number in (8, story.status.num_gpus)]
    assert "they differ in hardware (5 GPUs and 8 GPUs)." in verdict(status=with_gpus[0])
    for changes in ({"status": with_gpus[1]}, {"status": None}, {"config": {}}):
        assert "the same work" not in verdict(**changes)


def test_runs_of_different_length_are_compared_over_the_steps_that_both_have(runs, tmp_path):
    long = modelled_run(tmp_path / "long", *held_out_words(tmp_path), "system=verl", "run.num_steps=6")
    first, second = (read_story(run_dir) for run_dir in (long, runs["verl"]))
    shared_s = first.steps.loc[first.steps["step"] < 5, "step_time_s"].sum()
    times = ratio(second.total_s / shared_s)
    assert times != ratio((second.total_s / 5) / (first.total_s / 6))
    text = Reader(render([first, second])).text
    assert f"long is {times.removesuffix(' x')} times as fast as verl: 5 steps took {seconds(shared_s)} instead" in text
    assert "Tiles and means per step are over the 5 steps that both have." in text
    assert f"{seconds(shared_s / 5)} step, mean verl: {seconds(second.total_s / 5)} " in text
    assert f" step {seconds(shared_s / 5)} 100 % {seconds(second.total_s / 5)} 100 % {times} " in text
    alone_s = read_frame(long, "evaluations").query("mode == 'alone' and step <= 5")["time_s"].sum()
    assert f"evaluations, between steps {seconds(alone_s / 5)} {seconds(0.0)} " in text
    assert "verl: Nothing was held out: " in text
    assert "long: Nothing was held out: " not in text
    assert "long: No text was kept: " in text
    assert "verl: No text was kept: " in text
    assert "that both have" not in Reader(page_of(runs["rollpacker"], runs["verl"])).text


@pytest.fixture
def gappy(runs, tmp_path):
    """A run that lost the row of its second step."""
    copy = shutil.copytree(runs["verl"], tmp_path / "gappy")
    forget_steps(copy, {1})
    return copy


def test_a_run_that_lost_a_step_is_drawn_and_compared_at_the_numbers_of_its_own_steps(runs, gappy):
    page = page_of(gappy)
    titles = re.findall(r"<title>step (\d+), plain round: ", page)
    assert titles == [*"1345"] * 4  # times and tokens, wide and narrow
    whole = read_story(runs["rollpacker"]).steps.set_index("step")["step_time_s"]
    text = Reader(page_of(runs["rollpacker"], gappy)).text
    assert f"times as fast as gappy: 4 steps took {seconds(whole.drop(1).sum())} instead" in text
    forget_steps(gappy, {0})
    text = Reader(render([read_story(runs["single"]), read_story(gappy)])).text
    assert "single and gappy have no step in common: no time of them can be compared." in text
    assert not re.search(r"\d x ", text[text.index("Where the time went") : text.index("One step, actor by actor")])


def test_runs_of_one_name_are_told_apart_by_their_parents(runs, again):
    text = Reader(page_of(runs["verl"], again)).text
    assert f"{again.parent.name}/verl" in text


def test_what_an_unfinished_run_or_a_stripped_copy_lacks_is_said(runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs["single"], copy)
    shutil.rmtree(copy / "events")
    (copy / "config.yaml").unlink()
    status = json.loads((copy / "status.json").read_text())
    (copy / "status.json").write_text(json.dumps(status | {"state": "running", "num_steps": 9}))
    text = Reader(page_of(copy)).text
    assert "1 step of 9, still running" in text
    assert "There is no config.yaml" in text
    assert "There is no event log" in text
    (copy / "status.json").unlink()
    assert "of unknown state" in Reader(render([read_story(copy)])).text


def held_out_words(folder):
    """Two steps, evaluated before and after, on a set of four prompts."""
    path = folder / "new.jsonl"
    line = {"id": "q", "domain": "math", "prompt": "New?", "ground_truth": "1"}
    path.write_text("".join(json.dumps(line | {"id": f"q{number}"}) + "\n" for number in range(4)))
    return [f"evaluation.path={path}", "evaluation.every_steps=2", "evaluation.num_samples=2", "run.num_steps=2"]


def test_held_out_scores_are_drawn_with_the_training_reward_in_grey_and_listed(tmp_path):
    story = read_story(modelled_run(tmp_path / "run", "system=verl", *held_out_words(tmp_path)))
    page = render([story])
    text = Reader(page).text
    scores = story.held_out.scores
    assert "held-out score, new" in text
    assert f"new 0 4 x 2 {scores['reward_mean'].iloc[0]:.3f}" in text
    assert f"new {scores['step'].iloc[-1]} 4 x 2 {scores['reward_mean'].iloc[-1]:.3f}" in text
    assert "run, training reward: " in page
    assert "No text was kept" in text


def test_held_out_responses_whose_environments_failed_are_not_among_the_cut_ones(tmp_path):
    story = read_story(modelled_run(tmp_path / "run", "system=verl", *held_out_words(tmp_path)))
    path = next((tmp_path / "run" / "evaluation" / "evaluation_responses").glob("*.parquet"))
    table = pq.read_table(path)
    for name, values in (
        ("finish_reason", ["length", "length", "length", *["stop"] * 5]),
        ("reward_reason", ["environment_crashed", "limit", "environment_over", *["ok"] * 5]),
    ):
        field = table.schema.field(name)
        table = table.set_column(table.column_names.index(name), field, pa.array(values, field.type))
    pq.write_table(table, path)
    assert story.held_out.ends != read_story(tmp_path / "run").held_out.ends
    assert "25 %, 12 % failed" in Reader(page_of(tmp_path / "run")).text


def test_texts_stand_on_the_page_and_neither_they_nor_names_from_the_prompt_file_can_break_it(runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs["single"], copy)
    for path in (copy / "metrics" / "responses").glob("*.parquet"):
        table = pq.read_table(path)
        said = {
            "prompt": [f"<script>{name}</td>" for name in table["prompt"].to_pylist()],
            "prompt_text": ["What is <b>1</b>?"] * len(table),
            "response_text": ["</pre><script>" + "x" * 9_000] * len(table),
            "response_turns": [None, ["open it", "The <door> is open."], *[None] * (len(table) - 2)],
        }
        for name, values in said.items():
            field = table.schema.field(name)
            table = table.set_column(table.column_names.index(name), field, pa.array(values, field.type))
        pq.write_table(table, path)
    page = page_of(copy)
    assert "What is <b>1</b>?" in Reader(page).text
    assert page.count("&lt;script&gt;") > 1
    assert "characters ..." in page
    assert page.count("<script>") == 1
    assert '<pre>open it</pre><pre class="soft">The &lt;door&gt; is open.</pre>' in page


def test_a_technique_that_never_acted_is_not_listed_as_used(runs):
    text = Reader(page_of(runs["rollpacker"])).text
    assert re.search(r"techniques tail batching .* stream trainer", text)
    copied = read_story(runs["rollpacker"])
    copied.steps["tokens_streamed"] = 0
    text = Reader(render([copied])).text
    assert "configured, never acted stream trainer" in text


def test_dynamic_sampling_acted_where_prompts_were_dropped_and_kept_requests_are_named(runs):
    story = read_story(runs["verl"])
    system = {**story.config["system"], "dynamic_sampling": True, "max_staleness": 2, "interrupt": "keep"}
    for num_dropped, said in ((3, ", dynamic sampling"), (0, " configured, never acted dynamic sampling")):
        steps = story.steps.assign(num_prompts_dropped=num_dropped)
        text = Reader(render([replace(story, steps=steps, config={**story.config, "system": system})])).text
        assert f"2 versions old at most, requests kept over new weights){said}" in text


def test_a_planner_acted_where_rounds_began_with_several_degrees_not_where_all_ended_with_one(runs):
    story = read_story(runs["rollpacker"])
    config = {**story.config, "system": {**story.config["system"], "planner": True}}
    for began, acted in (([1, 2, 2, 2, 2], True), ([1, 1, 1, 1, 1], False)):
        steps = story.steps.assign(tensor_parallel=2, escalated_from=[1.0 if each == 1 else None for each in began])
        text = Reader(render([replace(story, steps=steps, config=config)])).text
        assert ("configured, never acted parallelism planner" not in text) == acted
        assert "rounds ran with TP 1 and 2" in text


def test_evaluations_in_rounds_of_their_own_have_a_row_where_the_time_went(tmp_path):
    found = set()
    for when in ("alone", "fill"):
        words = ("system=verl", f"evaluation.when={when}", "run.num_steps=4")
        run_dir = modelled_run(tmp_path / when, *held_out_words(tmp_path), *words)
        steps, scores = read_frame(run_dir, "steps"), read_frame(run_dir, "evaluations")
        found |= set(scores["mode"])
        alone_s = scores.loc[scores["mode"] == "alone", "time_s"].sum()
        assert f"evaluations, between steps {seconds(alone_s / len(steps))} " in Reader(page_of(run_dir)).text
    assert found == {"alone", "fill"}


def test_a_run_that_is_never_evaluated_has_no_row_of_evaluations(runs):
    assert "evaluations, between steps" not in page_of(runs["verl"])


def test_the_legend_of_one_step_names_only_what_is_drawn(runs):
    story = read_story(runs["verl"])
    picture = story.picture
    at_once = ("driver", "quiesce", picture.began_s, picture.began_s)
    took = ("driver", "quiesce", picture.began_s, picture.began_s + 1.0)
    for span, is_drawn in ((at_once, False), (took, True)):
        page = render([replace(story, picture=replace(picture, actors=(*picture.actors, span)))])
        legend = page.partition("One step, actor by actor")[2].partition("<svg")[0]
        assert (STAGE_STYLES["suspend"][0] in legend) == is_drawn


def test_two_runs_have_the_colours_of_their_systems_and_never_the_same_one(runs, again):
    page = page_of(runs["rollpacker"], runs["verl"])
    assert "stroke: var(--rollpacker)" in page
    assert "stroke: var(--verl)" in page
    both = page_of(runs["verl"], again)
    assert "stroke: var(--verl)" in both
    assert "stroke: var(--other-1)" in both


def test_steps_count_from_1_on_the_page(runs):
    story = read_story(runs["verl"], step=4)
    page = render([story])
    assert "step 5, a plain round" in page
    assert "step 0," not in page
    assert len(re.findall(r"<title>step 5, plain round: ", page)) == 4  # times and tokens, wide and narrow


def test_many_steps_share_bars_and_keep_their_mean():
    frame = pd.DataFrame({"train": [2.0] * 1000})
    notes = {"a": dict.fromkeys(range(1000), "plain round")}
    drawn = figures.per_step({"a": frame}, notes, is_time=True, description="many")
    assert 200 <= drawn.count("<title>") <= 2 * figures.MOST_BARS
    assert "<title>steps 1 to 9, mean: 2.0 s\ntraining: 2.0 s</title>" in drawn
    lost = figures.per_step({"a": frame.drop(range(5, 19))}, notes, is_time=True, description="some lost")
    assert "<title>steps 1 to 9, mean: 2.0 s\ntraining: 2.0 s</title>" in lost
    assert "<title>steps 10 to 18, " not in lost
    assert lost.count("<title>") == drawn.count("<title>") - 2


def test_a_name_that_looks_like_a_colour_or_an_attribute_is_left_as_it_is():
    name = '#b04fc4 x="1.25"'
    drawn = figures.mean_steps({name: {"train": 1.0}, '1 id="a_1"': {"train": 1.0}})
    texts = Reader(f"<p>{drawn}</p>").texts
    assert any(text.startswith(f"{name}, training: ") for text in texts)
    assert '#b04fc4 x="1.…' in texts
    assert '1 id="a_1"' in texts
    assert "fill: var(--trained)" in drawn


@pytest.mark.parametrize("highest", [1e-5, 0.004, 0.7, 3.3, 59, 100, 200, 900, 5000, 90_000])
def test_an_axis_of_durations_has_few_round_marks_of_one_unit(highest):
    drawn = figures.mean_steps({"a": {"train": highest}})
    marks = re.findall(r">([\d.e-]+) (ms|s|min|h)</text>", drawn)[: drawn.count("</text>") // 2]
    numbers = sorted({float(number) for number, unit in marks if unit == marks[0][1]})
    assert 3 <= len(numbers) <= 9
    assert numbers[0] == 0


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
        (digits(1_104.4), "1,104"),
        (digits(999.7), "1,000"),
        (digits(0.04123), "0.0412"),
        (count(12_345), "12,345"),
        (count(3_400_000), "3.4 M"),
        (count(43_512_345), "43.5 M"),
        (count(1.5e9), "1.5 G"),
        (count(2e13), "20 T"),
        (share(0.0004), "0.04 %"),
        (share(0.121), "12 %"),
        (size(65.5e9), "65.5 GB"),
        (size(547_000), "547 kB"),
        (size(999.6e6), "1,000 MB"),
        (size(1.3e12), "1.3 TB"),
        (plural(1.0, "step"), "1 step"),
        (plural(0.5, "step"), "0.5 steps"),
        (plural(1_200, "GPU"), "1,200 GPUs"),
    ],
)
def test_numbers_have_three_digits_and_a_unit(said, expected):
    assert said == expected


def test_an_asynchronous_run_says_how_old_its_tokens_were_over_steps_by_domain_and_by_age(tmp_path):
    run_dir = modelled_run(tmp_path / "run", "system=flash", "run.num_steps=6")
    story = read_story(run_dir)
    shares = story.share_by_age(3)
    assert sum(shares) == pytest.approx(1)
    mean = (story.steps["staleness_mean"] * story.steps["tokens_trained"]).sum() / story.steps["tokens_trained"].sum()
    assert shares[1] + 2 * shares[2] == pytest.approx(mean)
    text = Reader(render([story])).text
    assert f"A trained token was {digits(mean)} policy versions old in the mean, and 2 at most" in text
    assert f"0 1 2 run {' '.join(map(share, shares))}" in text
    for title in ("age of trained tokens: mean, versions", "mean age, math", "mean age, code"):
        assert title in text


def test_a_run_of_the_current_policy_alone_has_no_ages(runs):
    text = Reader(page_of(runs["verl"])).text
    assert "staleness 0" in text
    assert "by age" not in text
