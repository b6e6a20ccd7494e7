"""The section of the page about rollout workers."""

import re
import shutil

import pytest

from rollpacker.cli.main import main
from rollpacker.launch.accounts import accounts_of
from rollpacker.metrics.tables import read_frame
from rollpacker.report.cuts import Cuts
from rollpacker.report.page import render
from rollpacker.report.presence import Presence
from rollpacker.report.story import read_story
from rollpacker.report.waits import Waits
from rollpacker.timeline.run_tables import open_run
from rollpacker.timeline.stretches import stretches_of
from tests.timeline.runs import modelled_run
from tests.timeline.test_worker_lives import WORDS


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return modelled_run(tmp_path_factory.mktemp("page") / "run", *WORDS)


@pytest.fixture(scope="module")
def page(run_dir):
    return render([read_story(run_dir)])


def test_the_page_names_every_worker_why_it_went_and_where_the_hours_come_from(page):
    section = page.partition("Rollout workers<")[2].partition("The worst waits<")[0]
    assert set(re.findall(r"<td>(e0_\d-r\d)</td>", section)) == {"e0_0-r0", "e0_1-r0", "e0_0-r1"}
    assert "it was gone without notice" in section
    assert "at 2.5 an hour (the user&#39;s price); from the run&#39;s own files" in section
    assert "not known without prices: cluster.price_per_gpu_hour" in section, "the run's own has none"


def test_an_engine_of_a_worker_is_drawn_once_with_its_requests_and_what_else_it_did(run_dir):
    story = read_story(run_dir, step=1)
    picture = story.picture
    assert not [actor for actor, *_ in picture.actors if "." in actor]
    (row,) = (row for row in picture.engines if row.engine == "e0_1-r0.0")
    assert len(row.times_s)
    assert [activity for activity, *_ in row.others] == ["catching_up"]
    assert "e0_1-r0.0, a worker fetching the policy: 2.8 s" in render([story])


def test_an_engine_of_a_worker_is_there_while_it_serves_and_its_fetches_are_not_idle_time(run_dir):
    story = read_story(run_dir)
    until_s = float(story.steps["finished_at_s"].iloc[-1])
    assert story.accounts.workers
    for life in story.accounts.workers:
        use = story.engines[f"{life['worker']}.0"]
        left_s = min(life["left_at_s"], until_s)
        pulls = read_frame(run_dir, "intervals").query("activity == 'catching_up' and actor == @life['worker'] + '.0'")
        fetched_s = (pulls["ended_at_s"].clip(upper=left_s) - pulls["started_at_s"]).sum()
        assert use.fetching_s == pytest.approx(fetched_s)
        assert fetched_s > 0
        assert use.present_s == pytest.approx(left_s - pulls["started_at_s"].min(), abs=0.1)
        assert sum(use.parts.values()) == pytest.approx(use.present_s, rel=0.02)


def test_an_engine_of_a_worker_that_had_no_request_in_a_step_is_idle_in_its_tail(run_dir):
    tables = open_run(run_dir)
    (part,) = tables.parts()
    stretches, waits = stretches_of(part), Waits(Presence(tables.logged, accounts_of(tables)), Cuts({}))
    last = part.responses.query("step == 3").sort_values("finished_at_s")["engine"].iloc[-1]
    (other,) = {"e0_0-r1.0", "e0_1-r0.0"} - {last}
    waits.add(part, stretches[stretches["engine"] != other])
    (why,) = (wait.why for wait in waits.worst(1.0) if wait.kind == "tail" and wait.step == 3)
    assert f"on {last}: " in why
    assert "1 of 2 engines were idle then" in why


def test_a_run_without_workers_has_no_such_section(tmp_path):
    assert "Rollout workers" not in render([read_story(modelled_run(tmp_path / "run", "run.num_steps=1"))])


def test_tables_that_the_files_of_a_run_gave_are_left_alone_where_these_are_gone(run_dir, tmp_path):
    copy = shutil.copytree(run_dir, tmp_path / "run")
    assert main(["report", str(copy)]) == 0
    workers = read_frame(copy, "workers")
    assert len(workers) == 3
    shutil.rmtree(copy / "events")
    assert main(["report", str(copy)]) == 0
    assert read_frame(copy, "workers").equals(workers)
    assert "of a worker" not in (copy / "report.html").read_text()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "is missing, or another version wrote it"),
        ("run: {of_another_version: 1}", "is missing, or another version wrote it"),
        ("run: 5", "is broken: run is not a section"),
    ],
)
def test_where_the_settings_of_a_run_with_workers_cannot_be_read_the_page_says_what_it_lacks(
    run_dir, tmp_path, content, problem
):
    copy = shutil.copytree(run_dir, tmp_path / "run")
    (copy / "config.yaml").unlink()
    if content is not None:
        (copy / "config.yaml").write_text(content)
    story = read_story(copy)
    assert story.accounts is None
    assert f"Rollout workers are not shown: {copy}/config.yaml {problem}." in render([story])
