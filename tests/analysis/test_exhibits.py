"""The exhibits' numbers, their files, and what is said when runs are missing, unfinished or broken."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollpacker.analysis import command, writing
from rollpacker.analysis.exhibit import ALL_SETUPS
from rollpacker.analysis.exhibits import ARTIFACT, EXHIBITS, fig09, fig10, learning, table1, table2
from rollpacker.analysis.numbers import Claim, Numbers, Place, Point, Source, Standing, Value, paper_rows, speedups
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.runs import Runs, read_runs
from rollpacker.analysis.settings import differing, settings_of, task_of
from rollpacker.analysis.sweeps import Asked, points_of
from rollpacker.cli.main import main
from rollpacker.runtime.run.status import RunStatus, write_status
from tests.analysis.written_runs import forget_steps, make_older, numbers_of, runs_below, write_run, write_scores


def own(numbers, **wanted):
    return [
        point
        for point in numbers.points
        if point.source is not Source.PAPER and all(getattr(point, name) == value for name, value in wanted.items())
    ]


def test_table2_has_the_ratio_of_sums_per_seed_with_its_spread_and_names_what_is_missing(tmp_path):
    for seed, tail in ((0, [5.0, 5.0]), (1, [2.0, 3.0])):
        write_run(tmp_path / f"verl-{seed}", "verl", [12.0, 8.0], seed=seed, modelled=True)
        write_run(tmp_path / f"tail-{seed}", "tail", tail, seed=seed, modelled=True)
    write_run(tmp_path / "tail-2", "tail", [1.0, 1.0], seed=2, modelled=True)  # without a baseline of its seed
    numbers = numbers_of(table2.EXHIBIT, tmp_path)
    [point] = own(numbers, x="+ tail")
    assert (point.y, point.y_low, point.y_high, point.num_seeds) == (3.0, 2.0, 4.0, 2)
    assert point.source is Source.MODELLED
    assert "no run with model Qwen2.5-7B, system tail-reward, task mix" in numbers.missing
    standings = {claim.text: claim.standing for claim in numbers.claims}
    assert standings["Qwen2.5-7B: veRL + tail, over veRL"] is Standing.DIRECTION
    assert standings["Qwen2.5-14B: veRL + tail, over veRL"] is Standing.UNKNOWN


def test_an_unfinished_run_is_compared_over_the_steps_that_both_have_and_named(tmp_path):
    write_run(tmp_path / "verl", "verl", [10.0, 10.0, 1000.0])
    write_run(tmp_path / "tail", "tail", [5.0, 5.0], num_steps=3)
    numbers = numbers_of(table2.EXHIBIT, tmp_path)
    [point] = own(numbers, x="+ tail")
    assert point.y == 2.0
    assert [missing for missing in numbers.missing if "only 2 steps" in missing]


def test_runs_of_a_study_are_drawn_only_by_what_asks_for_the_study(tmp_path):
    write_run(tmp_path / "plain", "verl", [10.0])
    scaling = {"run": {"study": "scaling"}, "engine": {"num_engines": 8}, "rollout": {"num_prompts": 64}}
    write_run(tmp_path / "scaled", "verl", [5.0], config=scaling, tensor_parallel=2)
    runs = runs_below(tmp_path)
    [plain] = runs.of(system="verl")
    [scaled] = runs.of(system="verl", study="scaling", num_gpus=16)
    assert (plain.folder.name, scaled.folder.name, scaled.num_prompts) == ("plain", "scaled", 64)
    assert runs.missing == []


def test_table1_takes_runs_of_one_task_and_counts_the_weight_sync_as_training(tmp_path):
    write_run(tmp_path / "math", "verl", [4.0, 6.0], model="Qwen2.5-14B", task="math", weight_sync_time_s=1.0)
    write_run(tmp_path / "mix", "verl", [100.0], model="Qwen2.5-14B")
    numbers = numbers_of(table1.EXHIBIT, tmp_path)
    assert {point.x: point.y for point in own(numbers, panel="math")} == {"rollout": 80, "reward": 0, "training": 40}
    assert not own(numbers, panel="code")


def test_stages_are_means_over_the_rounds_of_a_kind(tmp_path):
    times = [3.0, 5.0, 3.0, 5.0, 21.0]
    write_run(tmp_path / "run", "tail-reward-planner", times, model="Qwen2.5-14B")
    numbers = numbers_of(fig10.FIG10C, tmp_path)
    of_kind = {point.panel: point.y for point in own(numbers, x="rollout")}
    assert of_kind == {"Qwen2.5-14B, short rounds": 3.0, "Qwen2.5-14B, long rounds": 20.0}


def test_what_the_papers_text_says_is_held_against_the_runs_of_every_model(tmp_path):
    for model, faster in (("Qwen2.5-7B", 5.0), ("Qwen2.5-32B", 4.0)):
        write_run(tmp_path / model / "base", "rlhfuse", [10.0] * 10, model=model)
        write_run(tmp_path / model / "own", "rollpacker", [faster] * 10, model=model)
    claims = {claim.text: claim for claim in numbers_of(fig09.EXHIBIT, tmp_path).claims}
    most = claims["the most that rollpacker gains over rlhfuse with any model"]
    assert most.standing is Standing.UNKNOWN  # 14B may gain more
    assert claims["Qwen2.5-7B: short rounds per long round"].ours.y == 4.0
    assert claims["Qwen2.5-14B: short rounds per long round"].standing is Standing.UNKNOWN
    assert claims["Qwen2.5-32B: rollpacker over verl, as the text has it"].standing is Standing.UNKNOWN
    write_run(tmp_path / "14b" / "base", "rlhfuse", [10.0] * 10, model="Qwen2.5-14B")
    write_run(tmp_path / "14b" / "own", "rollpacker", [8.0] * 10, model="Qwen2.5-14B")
    claims = {claim.text: claim for claim in numbers_of(fig09.EXHIBIT, tmp_path).claims}
    most = claims["the most that rollpacker gains over rlhfuse with any model"]
    assert (most.ours.y, most.standing) == (2.5, Standing.DIRECTION)


def test_finished_runs_that_are_shorter_than_the_papers_are_named_at_its_size_alone(tmp_path):
    write_run(tmp_path / "short", "verl", [4.0] * 10)
    write_run(tmp_path / "whole", "rollpacker", [4.0] * 40)
    numbers = numbers_of(fig09.EXHIBIT, tmp_path)
    said = f"{tmp_path}/short has 10 steps, the paper's have 40"
    assert [sentence for sentence in numbers.missing if "the paper's" in sentence] == [said]
    write_run(tmp_path / "tiny", "verl", [4.0], config={"run": {"setup": "tiny"}})
    tiny = fig09.EXHIBIT.numbers(Runs(runs=runs_below(tmp_path).runs, setup="tiny"))
    assert not [sentence for sentence in tiny.missing if "the paper's" in sentence]


def test_the_papers_speedup_is_of_the_steps_that_the_runs_have(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"base{seed}", "verl", [10.0] * 3, model="Qwen2.5-7B", seed=seed)
        write_run(tmp_path / f"own{seed}", "rollpacker", [5.0] * (2 + seed), model="Qwen2.5-7B", seed=seed)
    of_paper = {
        system: [row.y for row in paper_rows("fig09a") if row.series == name and float(row.x) <= 2]
        for system, name in (("verl", "veRL"), ("rollpacker", "Flexes"))
    }
    claims = {claim.text: claim for claim in numbers_of(fig09.EXHIBIT, tmp_path).claims}
    claim = claims["Qwen2.5-7B: rollpacker over verl, ratio of the sums of 2 steps"]
    assert claim.paper == pytest.approx(sum(of_paper["verl"]) / sum(of_paper["rollpacker"]))


def test_a_figure_of_steps_has_a_point_per_step_and_the_papers_forty(tmp_path):
    write_run(tmp_path / "run", "rollpacker", [3.0, 4.0])
    numbers = numbers_of(fig09.EXHIBIT, tmp_path)
    assert [(point.x, point.y) for point in own(numbers)] == [(1.0, 3.0), (2.0, 4.0)]
    of_paper = [point for point in numbers.points if point.panel == "Qwen2.5-7B" and point.source is Source.PAPER]
    assert len(of_paper) == 3 * 40


def test_the_mean_of_equal_numbers_is_that_number_and_within_their_range(tmp_path):
    write_run(tmp_path / "run", "tail", [1.0], modelled=True)
    [run] = runs_below(tmp_path).runs
    for number in (0.1, 0.7):  # sums of three are off by a bit
        point = Place(panel="", x="", unit="x").ours([Value(run, number)] * 3)
        assert (point.y_low, point.y, point.y_high) == (number, number, number)


def test_each_of_our_points_has_the_papers_number_of_the_same_quantity_and_its_relative_error(tmp_path):
    write_run(tmp_path / "run", "tail", [1.0], modelled=True)
    [run] = runs_below(tmp_path).runs
    step, share = Place(panel="steps", x=1.0, unit="s", series="verl"), Place(panel="shares", x="a", unit="%")
    other = [
        replace(step, series="tail"),
        replace(step, x=2.0),
        replace(step, panel="others"),
        replace(share, unit="s"),
    ]
    points = [step.paper(10.0), share.paper(50.0), *(place.ours([Value(run, 12.0)]) for place in (step, share, *other))]
    numbers = Numbers(points=points)
    told = numbers.frame()[["paper", "relative_error"]].astype(float).round(6)
    assert told.fillna(-1).values.tolist() == [[-1, -1]] * 2 + [[10, 0.2], [50, -0.76]] + [[-1, -1]] * 4
    text = writing.summary(EXHIBITS["fig09"], numbers)
    assert "  steps, verl: 1 point, mean +20%, without sign 20%, largest 20%" in text
    assert "  shares: 1 point, mean -76%" in text


@pytest.mark.parametrize(
    ("paper", "ours", "neutral", "standing"),
    [
        (2.0, 2.19, 1.0, Standing.REPRODUCED),
        (2.0, 1.2, 1.0, Standing.DIRECTION),
        (2.0, 1.09, 1.0, Standing.NOT),
        (2.0, 0.9, 1.0, Standing.NOT),
        (1.08, 1.01, 1.0, Standing.DIRECTION),  # within a tenth, and nearer to no effect
        (1.08, 1.0, 1.0, Standing.NOT),
        (0.5, 0.9, 1.0, Standing.DIRECTION),
        (30.0, 20.0, None, Standing.NOT),
        (2.0, None, 1.0, Standing.UNKNOWN),
    ],
)
def test_a_claim_is_reproduced_within_a_tenth_and_else_has_its_direction_or_not(paper, ours, neutral, standing):
    point = None if ours is None else Place(panel="", x="", unit="x").paper(ours)
    assert Claim(text="", paper=paper, ours=point, unit="x", neutral=neutral).standing is standing


def test_a_speedup_is_over_the_steps_that_both_runs_have_by_their_numbers(tmp_path):
    write_run(tmp_path / "plain", "verl", [40.0, 10.0, 10.0])
    forget_steps(write_run(tmp_path / "tail", "tail", [8.0, 5.0, 5.0, 5.0]), {0})
    plain, tail = read_runs([tmp_path / "plain", tmp_path / "tail"])[0]
    [(_, faster)] = speedups([plain], [tail])
    assert faster == 2
    assert [run.first(2).steps["step"].tolist() for run in (plain, tail)] == [[0, 1], [1]]
    assert [run.within(1, 3).steps["step"].tolist() for run in (plain, tail)] == [[1, 2], [1, 2]]
    assert speedups([plain.first(1)], [tail]) == []


def test_a_bar_is_hatched_if_its_own_number_is_modelled():
    sources = {"a": Source.MEASURED, "b": Source.MODELLED, "c": Source.PAPER}
    points = [
        Point(panel="p", series=series, x=x, y=1.0, unit="s", source=sources[x], num_seeds=1)
        for x, series in (("a", "ours"), ("b", "ours"), ("c", "paper"))
    ]
    bars = compare_bars(Numbers(points=points)).axes[0].patches
    assert [bar.get_hatch() or "" for bar in bars] == ["", "", "////"]  # the paper's comes first


def test_everything_is_written_with_a_page_and_a_run_that_cannot_be_read_is_left_out(tmp_path, capsys):
    for system, times in (("verl", [9.0, 9.0]), ("tail", [6.0, 6.0])):
        write_run(tmp_path / "runs" / system, system, times, modelled=True)
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{}")
    assert main(["analysis", "all", f"runs={tmp_path}/runs", f"out={tmp_path}/out"]) == 0
    assert "broken" in capsys.readouterr().err
    for name in EXHIBITS:
        has_numbers = len((tmp_path / "out" / f"{name}.csv").read_text().splitlines()) > 1
        assert (tmp_path / "out" / f"{name}.png").exists() == has_numbers
    with (tmp_path / "out" / "table2.csv").open() as lines:
        sources = {row["series"]: row["source"] for row in csv.DictReader(lines)}
    assert sources == {"paper": "paper", "ours": "modelled"}
    assert "MODELLED" in (tmp_path / "out" / "table2.txt").read_text()
    assert "(modelled)" in (tmp_path / "out" / "index.html").read_text()


def test_a_misspelt_exhibit_and_a_folder_without_runs_are_answered_with_what_to_do(tmp_path, capsys):
    assert main(["analysis", "tabel2"]) == 2
    assert "Did you mean table2?" in capsys.readouterr().err
    assert main(["analysis", "table2", f"out={tmp_path}"]) == 2
    assert "backend=sim" in capsys.readouterr().err


@pytest.mark.parametrize(
    "experiment",
    sorted({name for exhibit in EXHIBITS.values() for name in exhibit.experiments if "walks" not in exhibit.setups}),
)
def test_the_multirun_behind_an_exhibit_has_a_folder_per_point_and_systems_that_differ_in_what_is_theirs(
    experiment, tmp_path
):
    configs = points_of(experiment, Asked(folder=tmp_path, num_seeds=1))
    folders = [config.run.dir for config in configs]
    assert len(set(folders)) == len(folders)
    assert {folder.name for folder in folders} == {"seed-0"}
    assert all(config.backend.name == "sim" and config.model.name for config in configs)
    of_places: dict[Path, list[dict[str, Any]]] = {}
    for config in configs:
        settings = settings_of(config.model_dump(mode="json"))
        of_places.setdefault(config.run.dir.parents[1], []).append(task_of(settings))
    assert not [key for settings in of_places.values() for key in differing(settings)]


def test_held_out_scores_are_compared_at_steps_and_times_that_every_seed_has(tmp_path):
    walks = {"run": {"setup": "walks", "study": "fig08"}}
    write_run(tmp_path / "seed-0", "tail", [2.0] * 7, config=walks, reward_mean=0.5)
    write_scores(tmp_path / "seed-0", {0: 0.1, 3: 0.4, 6: 0.9, 7: 0.95})
    write_run(tmp_path / "seed-1", "tail", [4.0] * 6, seed=1, num_steps=7, config=walks, reward_mean=0.7)
    write_scores(tmp_path / "seed-1", {0: 0.1, 3: 0.6, 6: 0.8})
    write_run(tmp_path / "seed-2", "tail", [4.0] * 7, seed=2, config=walks)  # never evaluated
    numbers = learning.FIG08.numbers(Runs(runs=runs_below(tmp_path).runs, setup="walks"))
    over_steps = own(numbers, panel=learning.STEPS)
    assert [(point.x, round(point.y, 3), point.num_seeds) for point in over_steps] == [
        (0.0, 0.1, 2),
        (3.0, 0.5, 2),
        (6.0, 0.85, 2),
    ]
    over_time = own(numbers, panel=learning.TIME)
    assert (over_time[0].x, over_time[-1].x) == (0.0, 14.0)  # until the faster seed ends
    half_way = 0.6 + 0.2 * (14 - 12) / (24 - 12)
    assert over_time[-1].y == pytest.approx((0.95 + half_way) / 2)
    batches = own(numbers, panel=learning.BATCHES)
    assert [(point.x, round(point.y, 3)) for point in batches] == [(5.0, 0.6), (6.0, 0.6)]
    assert any("seed-1 has only 6 steps" in sentence for sentence in numbers.missing)
    assert "no run with study fig08, system verl" in numbers.missing


def test_runs_of_another_size_are_drawn_alone_and_without_the_papers_numbers(tmp_path):
    for system, times in (("verl", [9.0, 9.0]), ("rollpacker", [6.0, 6.0])):
        write_run(tmp_path / "runs" / "paper" / system, system, times)
        tiny = {"run": {"setup": "tiny"}}
        write_run(tmp_path / "runs" / "tiny" / system, system, [time / 9 for time in times], model="tiny", config=tiny)
    folders = [f"runs={tmp_path}/runs", f"out={tmp_path}/out"]
    assert main(["analysis", "e2e_performance", "scale=tiny", *folders]) == 0
    with (tmp_path / "out" / "tiny" / "fig09.csv").open() as lines:
        assert {(row["panel"], row["source"]) for row in csv.DictReader(lines)} == {("tiny", "measured")}
    assert main(["analysis", "fig09", *folders]) == 0
    with (tmp_path / "out" / "fig09.csv").open() as lines:
        assert {row["panel"] for row in csv.DictReader(lines)} == {"Qwen2.5-7B", "Qwen2.5-14B"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fig06", "scale=tiny"], "Write scale=paper"),
        (["fig08", "backend=sim"], "makes no run of fig08"),
        (["fig09", "backend=ray"], "makes no run of fig09"),
        (["e2e_performanse"], "Did you mean e2e_performance?"),
        (["comapre", "runs/x"], "Did you mean compare?"),
        (["list", "x"], "`rollpacker analysis` was given list x."),
        (["table2", "runs=nowhere"], "no run with a finished step below nowhere"),
        (["table2", "accept=true"], "accept=true would do nothing in `rollpacker analysis table2`."),
        (["table2", "seeds=7", "jobs=2"], "seeds=7 and jobs=2 would do nothing"),
        (["table2", "backend=ray", "jobs=2"], "jobs=2 would do nothing"),
        (["list", "backend=sim"], "list takes no setting."),
    ],
)
def test_what_cannot_be_drawn_or_brought_is_refused_with_what_to_do(words, said, tmp_path, capsys):
    assert main(["analysis", *words, f"out={tmp_path}"]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_runs_of_ones_own_are_no_exhibit_and_leave_no_empty_figure(tmp_path, capsys):
    write_run(tmp_path / "runs" / "own", "verl", [4.0], model="Qwen2.5-0.5B")
    assert main(["analysis", "learning", f"runs={tmp_path}/runs", f"out={tmp_path}/out"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "runs is of learning." in said
    assert "`rollpacker analysis compare RUN RUN`" in said
    assert not (tmp_path / "out").exists()


def test_runs_of_another_scale_than_the_asked_one_are_told_by_their_scale_after_what_was_left_out(tmp_path, capsys):
    for system in ("verl", "tail"):
        write_run(tmp_path / "runs" / system, system, [4.0], config={"run": {"setup": "8gpus"}})
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{}")
    assert main(["analysis", "table2", f"runs={tmp_path}/runs", f"out={tmp_path}/out"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith("They are of scale=8gpus. Write scale=8gpus.")
    assert f"Left out: {broken} has no metrics" in said


def test_a_seed_that_only_some_systems_have_is_named(tmp_path):
    write_run(tmp_path / "a", "verl", [4.0])
    write_run(tmp_path / "b", "verl", [4.0], seed=1)
    write_run(tmp_path / "c", "tail", [2.0])
    runs = runs_below(tmp_path)
    assert len(runs.of(model="Qwen2.5-7B", system="tail")) == 1
    assert runs.missing == ["no run with model Qwen2.5-7B, system tail, seed 1"]


def test_runs_that_are_broken_or_old_are_named_and_the_rest_is_drawn(tmp_path, capsys):
    for system in ("verl", "tail"):
        write_run(tmp_path / "runs" / system, system, [4.0, 4.0], modelled=True)
    empty = write_run(tmp_path / "runs" / "empty", "tail-reward", [4.0])
    for part in (empty / "metrics").rglob("*.parquet"):
        part.write_bytes(b"")
    write_run(tmp_path / "runs" / "nothing", "tail-reward", [])
    write_run(tmp_path / "runs" / "older", "rollpacker", [2.0, 2.0], modelled=True)
    make_older(tmp_path / "runs" / "older")
    no_config = write_run(tmp_path / "runs" / "no_config", "verl", [1.0])
    (no_config / "config.yaml").write_text("[")
    assert main(["analysis", "table2", f"runs={tmp_path}/runs", f"out={tmp_path}/out"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"Left out: {empty}/metrics/" in said
    assert f"Left out: {tmp_path}/runs/nothing" in said
    assert re.search(f"Left out: {tmp_path}/runs/older/\\S+ was written with schema version 1", said)
    with (tmp_path / "out" / "table2.csv").open() as lines:
        drawn = {row["x"]: float(row["y"]) for row in csv.DictReader(lines) if row["series"] == "ours"}
    assert drawn == {"veRL": 1.0, "+ tail": 1.0}


def test_every_experiment_of_the_artifact_has_exhibits_that_are_drawn_at_its_three_scales():
    for drawn in ARTIFACT.values():
        assert all(EXHIBITS[name].setups == ALL_SETUPS for name in drawn)


def drawn_text(exhibit, numbers, out, monkeypatch):
    """What a figure says, with what lies beside it as text."""
    said = []
    monkeypatch.setattr(writing, "save_figure", lambda figure, _: said.append(figure.get_suptitle()) or ())
    writing.write_exhibit(exhibit, numbers, out)
    return said[0], (out / f"{exhibit.name}.txt").read_text()


def test_a_figure_of_runs_that_are_not_complete_says_so_and_its_text_says_which(tmp_path, monkeypatch):
    write_run(tmp_path / "verl", "verl", [10.0, 10.0, 10.0])
    write_run(tmp_path / "tail", "tail", [5.0, 5.0], num_steps=3)
    title, text = drawn_text(EXHIBITS["table2"], numbers_of(table2.EXHIBIT, tmp_path), tmp_path / "out", monkeypatch)
    assert title.splitlines() == [
        "INCOMPLETE: runs or steps are missing, see table2.txt",
        "What each technique adds over plain batches (Table 2): measured",
    ]
    assert f"{tmp_path}/tail has only 2 steps so far" in text


def test_a_run_whose_epochs_ended_is_complete(tmp_path):
    write_run(tmp_path / "run", "verl", [10.0, 10.0], num_steps=1000)
    status = {"attempt": 0, "finished_steps": 2, "num_steps": 2, "reason": "", "job_id": None, "host": "here"}
    for state, is_complete in (("running", False), ("finished", True)):
        write_status(tmp_path / "run", RunStatus(state=state, updated_at=0.0, processor_s=0.0, num_gpus=0, **status))
        runs = runs_below(tmp_path)
        [run] = runs.of(system="verl")
        assert run.is_finished is is_complete
        assert bool(runs.missing) is not is_complete


def test_a_figure_of_complete_runs_says_what_it_shows_and_where_it_comes_from_alone(tmp_path, monkeypatch):
    write_run(tmp_path / "verl", "verl", [10.0, 10.0])
    numbers = numbers_of(table2.EXHIBIT, tmp_path)
    title, text = drawn_text(table2.EXHIBIT, replace(numbers, missing=()), tmp_path / "out", monkeypatch)
    assert title == "What each technique adds over plain batches (Table 2): measured"
    assert "Missing" not in text


def test_where_every_modelled_run_failed_that_is_the_error(tmp_path, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "paper").write_text("a file where the runs belong")
    assert main(["analysis", "table1", "backend=sim", "seeds=1", "jobs=1", f"out={tmp_path}"]) == 1
    said = capsys.readouterr().err
    assert "table1: 0 runs modelled, 3 failed; 1 of 1 experiments" in said
    assert "failed:\n3 runs failed, and what needs a failed run is incomplete.\n" in said
    assert "There is no run" not in said


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["table1", "out=file/x", "backend=sim"], "out"),
        (["table1", "runs=file/x", "backend=sim"], "runs"),
        (["compare", "verl", "out=file/x"], "out"),
    ],
)
def test_folders_that_cannot_be_written_are_refused_before_anything_is_modelled_or_printed(
    words, key, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    write_run(tmp_path / "verl", "verl", [10.0])
    assert main(["analysis", *words]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"error:\n{key}=file/x cannot be created")


def test_a_run_that_failed_marks_the_exhibits_that_needed_it_and_no_other(tmp_path):
    write_run(tmp_path / "verl", "verl", [10.0, 10.0])
    failed = {EXHIBITS["table2"].experiments[0]: ["runs/x failed: Another process is running in run.dir=runs/x."]}
    exhibits = list(EXHIBITS.values())
    question = command._parse("all", {**command._defaults(), "runs": str(tmp_path)})
    numbers = command._gather(exhibits, question, failed)
    assert "runs/x failed: Another process is running in run.dir=runs/x." in numbers["table2"].missing
    marked = {name for name, own in numbers.items() if any("runs/x failed" in sentence for sentence in own.missing)}
    assert marked == {exhibit.name for exhibit in exhibits if set(failed) & set(exhibit.experiments)}
    assert marked < set(numbers)
