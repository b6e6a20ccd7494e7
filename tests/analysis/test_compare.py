"""`analysis compare`: which runs are one column, its numbers with their errors, and what is said of the rest."""

import json
import math

import pytest

from rollpacker.analysis.compare.numbers import AGAINST, Estimate, Row
from rollpacker.analysis.compare.scores import scores_of
from rollpacker.analysis.compare.table import error_said, tables_of
from rollpacker.cli.main import main
from rollpacker.terminal import Terminal
from tests.analysis.comparisons import SHORT_AND_LONG, compared, write
from tests.analysis.written_runs import forget_steps, write_scores


def printed(capsys, *words):
    """What the command prints, with blanks joined and frames gone; and its notes."""
    assert main(["analysis", "compare", *map(str, words)]) == 0
    out, err = capsys.readouterr()
    return [" ".join(line.replace("│", " ").split()) for line in out.splitlines()], err


def test_speedups_are_ratios_of_sums_over_the_steps_that_both_runs_have(both):
    rows, _ = compared(*both)
    assert rows["rollout speedup"].values == [Estimate(1.0), Estimate(40 / 16)]
    assert rows["step speedup"].values[1].value == pytest.approx(50 / 26)
    assert rows["bubble ratio (idle slots)"].values[1].value == pytest.approx(25)
    assert rows["tokens wasted"].values[1].value == pytest.approx(25)
    assert rows["training reward, first steps"].values[1].value == pytest.approx(0.2)
    assert rows["training reward, last steps"].values[1].value == pytest.approx(0.7)


def test_runs_that_differ_in_their_seed_alone_are_a_column_with_standard_errors(seeds):
    rows, columns = compared(*sorted(seeds.glob("*-?"), reverse=True))
    assert [(column.label(column.system), len(column.runs)) for column in columns] == [("verl", 3), ("rollpacker", 3)]
    assert rows["rollout time"].values[0] == pytest.approx((6.0, 2 / math.sqrt(3)))
    each = [2.0, 3.0, 2.0]
    assert rows["rollout speedup"].values[1] == pytest.approx((sum(each) / 3, math.sqrt(1 / 3) / math.sqrt(3)))
    assert rows["held-out score, step 10"].values[0] == pytest.approx((0.9, 0.1 / math.sqrt(3)))
    first, gain = rows[f"held-out score, {AGAINST}"].values
    assert first is None
    assert gain == pytest.approx((0.02, 0.01 / math.sqrt(3)))


def test_a_folder_of_a_multirun_is_compared_with_its_plain_batches(seeds, tmp_path, capsys):
    lines, notes = printed(capsys, seeds, f"out={tmp_path / 'out'}")
    assert not notes
    assert lines[0] == "10 steps, measured; means per step"
    assert "┃ ┃ verl ┃ rollpacker ┃" in lines
    assert "┃ ┃ 3 runs ┃ 3 runs ┃" in lines
    assert "held-out score, step 10 0.900 +- 0.058 0.920 +- 0.064" in lines
    assert "held-out score, against the first +0.020 +- 0.006" in lines
    assert "+-: standard error over seeds" in lines
    again, notes = printed(capsys, *sorted(seeds.iterdir()), seeds, f"out={tmp_path / 'out'}")
    assert not notes
    assert "┃ ┃ rollpacker ┃ verl ┃" in again  # as the words name them; each once, and without Hydra's file


def test_means_are_compared_where_no_seeds_pair(tmp_path):
    folders = [write(tmp_path / f"verl-{seed}", "verl", [2.0 + seed], seed=seed) for seed in range(2)]
    folders += [write(tmp_path / f"tail-{seed}", "tail", [1.0], seed=seed) for seed in (5, 6)]
    rows, _ = compared(*folders)
    assert rows["rollout speedup"].values[1] == Estimate(2.5)
    assert not any(AGAINST in title for title in rows)


def test_a_speedup_fits_the_times_where_only_some_seeds_pair(tmp_path):
    plain = {0: 11.0, 1: 11.0, 2: 5.0}
    folders = [write(tmp_path / f"verl-{seed}", "verl", [time_s], seed=seed) for seed, time_s in plain.items()]
    folders += [write(tmp_path / f"tail-{seed}", "tail", [5.0], seed=seed) for seed in (2, 3)]
    rows, _ = compared(*folders)
    assert rows["rollout speedup"].values[1] == Estimate(9 / 5)
    rows, _ = compared(*folders[:-1])
    assert rows["rollout speedup"].values[1] == Estimate(9 / 5)


def test_runs_that_differ_in_what_they_keep_and_report_are_repetitions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    configs = [
        {"tracker": {"wandb_name": "a"}, "model": {"path": "model"}, "trainer": {"kl_in": "loss"}},
        {"tracker": {"wandb_name": "b"}, "model": {"path": str(tmp_path / "model")}, "data": {"solve_rates": None}},
        {"run": {"keep_checkpoints": 9, "checkpoint_every_steps": 1, "num_steps": 99}, "model": {"path": "./model"}},
    ]
    folders = [write(tmp_path / str(at), "tail", [1.0], seed=at, config=own) for at, own in enumerate(configs)]
    assert [len(column.runs) for column in compared(*folders)[1]] == [3]
    record = tmp_path / "2" / "config.yaml"
    record.write_text(f'# Relative paths begin in "{tmp_path / "0"}"\n{record.read_text()}')
    assert [len(column.runs) for column in compared(*folders)[1]] == [2, 1]


def test_evaluations_tell_runs_apart_that_fill_rounds_or_sample_otherwise(tmp_path):
    configs = [{}, {"path": "a.jsonl", "num_samples": 4}, {"path": "b.jsonl", "every_steps": 5, "at_start": False}]
    configs += [{"path": "a.jsonl", "when": "fill"}, {"path": "a.jsonl", "when": "fill", "num_samples": 4}]
    configs += [{"path": "a.jsonl", "temperature": 0}]
    folders = [
        write(tmp_path / str(at), "tail", [1.0], seed=at, config={"evaluation": own}) for at, own in enumerate(configs)
    ]
    assert [[run.seed for run in column.runs] for column in compared(*folders)[1]] == [[0, 1, 2], [3], [4], [5]]


def test_the_number_of_steps_tells_runs_apart_whose_learning_rate_spans_them(tmp_path):
    configs = [{"run": {"num_steps": number}, "trainer": {"lr_schedule": "cosine"}} for number in (10, 20)]
    folders = [write(tmp_path / str(at), "tail", [1.0], seed=at, config=own) for at, own in enumerate(configs)]
    assert [column.detail for column in compared(*folders)[1]] == ["num_steps=10", "num_steps=20"]


@pytest.mark.parametrize(
    ("configs", "details"),
    [
        (
            [{"trainer": {"learning_rate": 0.001}}, {"trainer": {"learning_rate": 0.1}}],
            ["learning_rate=0.001", "learning_rate=0.1"],
        ),
        (
            [{"data": {"path": "a"}, "model": {"path": "x"}}, {"data": {"path": "b"}, "model": {"path": "y"}}],
            ["model.path=x, data.path=a", "model.path=y, data.path=b"],
        ),
        (
            [{"trainer": {}}, {"trainer": {"a": 1, "b": 2, "c": 3, "d": 4}}],
            ["a=null, b=null, c=null and 1 more key", "a=1, b=2, c=3 and 1 more key"],
        ),
        ([{"data": {"path": "a"}}, {"data": {"path": "b"}}], ["data.path=a", "data.path=b"]),
        ([{}, {"run": {"resume": "auto"}}], ["old/seed", "new/seed"]),
    ],
)
def test_columns_of_one_system_are_named_by_the_keys_that_differ_or_by_their_folders(
    configs, details, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folders = [
        write(type(tmp_path)(name) / f"seed-{seed}", "tail", [1.0], seed=seed, config=config)
        for name, config in zip(("old", "new"), configs, strict=True)
        for seed in range(2)
    ]
    _, columns = compared(*folders)
    assert [column.detail for column in columns] == details
    assert [len(column.runs) for column in columns] == [2, 2]


def test_columns_of_several_systems_that_differ_in_other_keys_say_so(tmp_path, capsys):
    sizes = [{"num_prompts": 12, "max_response_tokens": 2048}, {"num_prompts": 16, "max_response_tokens": 256}]
    folders = [
        write(tmp_path / system, system, [1.0], config={"rollout": size, "system": {"batching": system}})
        for system, size in zip(("plain", "tail"), sizes, strict=True)
    ]
    lines, _ = printed(capsys, *folders, f"out={tmp_path / 'out'}")
    said = "rollout.num_prompts (12, 16), rollout.max_response_tokens (2048, 256)"
    assert f"The columns differ in more than their systems: {said}." in lines
    seeds = [write(tmp_path / f"{name}-1", name, [1.0], seed=1) for name in ("plain", "tail")]
    lines, _ = printed(capsys, *seeds, f"out={tmp_path / 'out'}")
    assert not any("differ" in line for line in lines)


def test_an_asynchronous_column_has_no_rollout_speedup(both, tmp_path, capsys):
    flash = write(tmp_path / "flash", "flash", [1.0] * 10, round_kind="async")
    lines, _ = printed(capsys, *both, flash, f"out={tmp_path / 'out'}")
    assert "rollout speedup 1.00 x 2.50 x" in lines
    assert "step speedup 1.00 x 1.92 x 2.50 x" in lines
    assert any(line.startswith("The rollout time of an asynchronous column is what a step waits") for line in lines)
    lines, _ = printed(capsys, flash, *both, f"out={tmp_path / 'out'}")
    assert not any(line.startswith("rollout speedup") for line in lines)


def test_many_columns_fold_into_tables_that_fit(tmp_path):
    rates = [{"trainer": {"learning_rate": rate}} for rate in (0.0001, 0.0002, 0.0003, 0.0004)]
    folders = [
        write(tmp_path / f"{at}-{seed}", "tail", [1.0 + seed] * 4, config=config, seed=seed)
        for at, config in enumerate(rates)
        for seed in range(2)
    ]
    rows, columns = compared(*folders)
    tables = list(tables_of(columns, list(rows.values()), 4, 80))
    assert [len(table.columns) - 1 for table in tables] == [2, 2]
    console = Terminal(width=500)
    assert all(console.measure(table).maximum <= 80 for table in tables)
    assert [table.title for table in tables] == ["4 steps, measured; means per step", None]


def test_of_several_tables_each_has_the_rows_that_its_own_columns_have(both):
    rows, columns = compared(*both)
    of_one = Row("a score", "", [Estimate(0.5), None], 3)
    first, second = tables_of(columns, [*rows.values(), of_one], 4, 40)
    assert [first.row_count, second.row_count] == [len(rows) + 1, len(rows)]


def test_measured_and_modelled_runs_say_so_and_have_no_speedup_over_each_other(both, tmp_path, capsys):
    modelled = write(tmp_path / "modelled", "verl", [2.0] * 10, modelled=True)
    other = write(tmp_path / "other", "verl", [2.0] * 10, modelled=True, seed=1)
    tail = write(tmp_path / "tail-1", "rollpacker", SHORT_AND_LONG, seed=1)
    folders = [modelled, other, both[1], tail]
    for folder in folders:
        write_scores(folder, {0: 0.5, 10: 0.9})
    lines, _ = printed(capsys, *folders, f"out={tmp_path}")
    assert lines[0] == "10 steps, measured and modelled; means per step"
    assert "┃ ┃ modelled ┃ measured ┃" in lines
    assert "rollout speedup 1.00 x" in lines
    assert any(line.startswith("Measured and modelled times are not compared") for line in lines)
    assert not any(AGAINST in line for line in lines)


def test_the_score_of_a_single_run_has_its_error_over_the_prompts(both, tmp_path, capsys):
    for folder, last in zip(both, (0.94, 0.915), strict=True):
        write_scores(folder, {0: 0.5, 5: 0.7, 10: last})
    lines, _ = printed(capsys, *both, f"out={tmp_path}")
    assert "held-out score, step 10 0.940 +- 0.010 0.915 +- 0.010" in lines
    assert "+-: standard error over the held-out prompts" in lines
    assert not any("against the first" in line or "runs" in line for line in lines)


def test_of_several_held_out_sets_the_mean_is_called_one_and_each_has_a_row(both, tmp_path, capsys):
    write_scores(both[0], {10: {"math": 0.8, "code": 0.2}})
    write_scores(both[1], {10: {"math": 0.9, "code": 0.3}})
    lines, _ = printed(capsys, *both, f"out={tmp_path}")
    assert [line for line in lines if line.startswith("held-out ")] == [
        "held-out mean of 2 sets, step 10 0.500 +- 0.007 0.600 +- 0.007",
        "held-out score, math, step 10 0.800 +- 0.010 0.900 +- 0.010",
        "held-out score, code, step 10 0.200 +- 0.010 0.300 +- 0.010",
    ]


def test_seeds_without_a_difference_have_an_error_of_zero(tmp_path, capsys):
    folders = [write(tmp_path / str(seed), "verl", [4.0] * 10, seed=seed) for seed in range(2)]
    lines, _ = printed(capsys, *folders, f"out={tmp_path}")
    assert "rollout time 4.00 +- 0.00 s" in lines


def test_a_held_out_set_that_a_run_lacks_is_in_no_mean(both, tmp_path, capsys):
    write_scores(both[0], {0: {"math": 0.8, "code": 0.2}, 10: {"math": 0.8, "code": 0.2}})
    write_scores(both[1], {0: {"math": 0.8}, 10: {"math": 0.9}})
    lines, _ = printed(capsys, *both, f"out={tmp_path}")
    assert "held-out score, step 10 0.800 +- 0.010 0.900 +- 0.010" in lines
    assert f"The held-out set code is left out: {both[1]} has no score of it." in lines


def record_sets(folder, **sets):
    """Write since which evaluation a run's held-out sets have their prompts, a number for each kind."""
    entries = {name: {"checksums": {"math": kind}, "since_step": since} for name, (kind, since) in sets.items()}
    (folder / "evaluation" / "sets.json").write_text(json.dumps(entries))


def test_that_a_held_out_set_has_other_prompts_in_another_run_is_said(both, tmp_path, capsys):
    for number, folder in enumerate(both):
        write_scores(folder, {10: {"math": 0.8, "code": 0.2}})
        record_sets(folder, math=(7, 0), code=(number, 0))
    said = f"The held-out set code has other prompts in {both[1]} than in {both[0]}."
    assert [line for line in printed(capsys, *both, f"out={tmp_path}")[0] if "other prompts" in line] == [said]
    (both[0] / "evaluation" / "sets.json").unlink()
    assert said not in printed(capsys, *both, f"out={tmp_path}")[0]


def test_prompts_that_a_modelled_run_makes_up_are_not_compared(tmp_path, capsys):
    folders = [
        write(tmp_path / "measured", "verl", [4.0] * 10),
        write(tmp_path / "modelled", "tail", [4.0] * 10, modelled=True),
    ]
    for number, folder in enumerate(folders):
        write_scores(folder, {10: 0.8})
        record_sets(folder, unseen=(number, 0))
    lines, _ = printed(capsys, *folders, f"out={tmp_path}")
    assert not any("other prompts" in line for line in lines)


def test_scores_of_prompts_that_were_edited_since_are_in_no_mean(both, tmp_path, capsys):
    for folder, alone in zip(both, ("logic", "games"), strict=True):
        write_scores(folder, {step: {"math": 0.8, "code": step / 10, alone: 0.5} for step in (0, 5, 10)})
    record_sets(both[0], math=(7, 0), code=(7, 0), logic=(7, 10))
    record_sets(both[1], math=(7, 5), code=(7, 0))
    lines, _ = printed(capsys, *both, f"out={tmp_path}")
    assert [line for line in lines if line.startswith("held-out score, code")] == [
        f"held-out score, code, step {step} {step / 10:.3f} +- 0.010 {step / 10:.3f} +- 0.010" for step in (5, 10)
    ]
    said = f"Held-out prompts of {both[1]} were edited before its evaluation at step 5:"
    assert f"{said} its earlier scores are in no mean." in lines
    assert not any("has no held-out score" in line for line in lines)


def test_without_a_set_that_all_have_no_scores_are_compared(both, tmp_path, capsys):
    for folder, name in zip(both, ("math", "code"), strict=True):
        write_scores(folder, {10: {name: 0.8}})
    lines, _ = printed(capsys, *both, f"out={tmp_path}")
    assert not any(line.startswith("held-out ") for line in lines)
    assert f"The held-out set code is left out: {both[0]} has no score of it." in lines


def test_an_evaluation_in_which_a_set_has_no_score_is_not_compared(both, tmp_path, capsys):
    write_scores(both[0], {0: {"math": 0.8, "code": 0.2}, 10: {"math": 0.8, "code": 0.2}})
    write_scores(both[1], {0: {"math": 0.8, "code": 0.2}, 10: {"math": 0.8, "code": None}})
    lines, _ = printed(capsys, *both, f"out={tmp_path}")
    assert [line for line in lines if line.startswith("held-out ")] == [
        "held-out mean of 2 sets, step 0 0.500 +- 0.007 0.500 +- 0.007",
        "held-out score, math, step 0 0.800 +- 0.010 0.800 +- 0.010",
        "held-out score, code, step 0 0.200 +- 0.010 0.200 +- 0.010",
    ]
    assert f"{both[1]} has no held-out score of code at step 10: no mean has this step of it." in lines


def test_scores_without_a_step_in_common_are_named(both, tmp_path, capsys):
    write_scores(both[0], {10: 0.8})
    write_scores(both[1], {5: 0.8, 20: 0.9})
    lines, _ = printed(capsys, *both, f"out={tmp_path}")
    assert not any(line.startswith("held-out ") for line in lines)
    assert "No step up to 10 has a held-out score of every run that has scores: none is compared." in lines


def test_what_an_error_is_over_is_said_of_both_kinds(seeds, both):
    folders = [*sorted(seeds.glob("verl-?")), both[1]]
    _, columns = compared(*folders)
    assert error_said(columns, scores_of(columns)) == "standard error over seeds"
    write_scores(both[1], {0: 0.5, 10: 0.9})
    _, columns = compared(*folders)
    said = "standard error over seeds; of a single run, over the held-out prompts"
    assert error_said(columns, scores_of(columns)) == said


def test_a_score_without_an_error_is_shown_alone_and_no_error_is_promised(both, tmp_path, capsys):
    write_scores(both[1], {10: {"math": 0.8, "code": 0.2}}, error=None)
    lines, _ = printed(capsys, *both, f"out={tmp_path}")
    assert "held-out mean of 2 sets, step 10 0.500" in lines
    assert not any("standard error" in line for line in lines)
    _, columns = compared(*both)
    assert error_said(columns, scores_of(columns)) == ""


def test_a_run_that_went_on_is_compared_over_the_steps_that_both_have(both, tmp_path, capsys):
    longer = write(tmp_path / "longer", "verl", [4.0] * 10 + [40.0] * 10)
    write_scores(longer, {0: 0.5, 10: 0.8, 20: 0.9})
    lines, _ = printed(capsys, longer, both[1], f"out={tmp_path / 'out'}")
    assert f"The runs have 10 to 20 steps, {both[1]} the fewest: all means are over the 10 that all have." in lines
    assert "10 steps, measured; means per step" in lines
    assert "rollout time 4.00 s 1.60 s" in lines
    assert "held-out score, step 10 0.800 +- 0.010" in lines


def test_a_step_that_one_run_has_lost_is_left_out_of_the_other_too(tmp_path, capsys):
    times = [1.0, 1.0, 50.0, 1.0, 1.0]
    verl = write(tmp_path / "verl", "verl", times)
    tail = write(tmp_path / "tail", "tail", times)
    forget_steps(tail, {0})
    lines, _ = printed(capsys, verl, tail, f"out={tmp_path / 'out'}")
    assert "4 steps, measured; means per step" in lines
    assert "rollout time 13.2 s 13.2 s" in lines
    assert "rollout speedup 1.00 x 1.00 x" in lines
    forget_steps(verl, {1, 2, 3, 4})
    assert main(["analysis", "compare", str(verl), str(tail), f"out={tmp_path / 'none'}"]) == 2
    assert "There is no step that all runs have in" in capsys.readouterr().err


def test_one_step_is_called_one(tmp_path, capsys):
    lines, _ = printed(capsys, write(tmp_path, "verl", [1.0]), f"out={tmp_path}")
    assert "1 step, measured; means per step" in lines


def test_the_command_prints_the_table_and_writes_png_and_pdf(both, tmp_path, capsys):
    lines, _ = printed(capsys, *both, f"out={tmp_path / 'out'}")
    assert "rollout speedup 1.00 x 2.50 x" in lines
    assert (tmp_path / "out" / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "compare.pdf").read_bytes().startswith(b"%PDF")


def test_a_run_without_tables_is_named_and_the_rest_is_drawn(both, tmp_path, capsys):
    unreadable = tmp_path / "broken"
    unreadable.mkdir()
    (unreadable / "run.json").write_text("{}")
    _, notes = printed(capsys, tmp_path, f"out={tmp_path / 'out'}")
    assert notes.startswith(f"Left out: {unreadable} has no metrics\n")


def test_a_path_that_does_not_exist_is_refused_and_nothing_is_drawn(both, tmp_path, capsys):
    assert main(["analysis", "compare", str(both[0]), str(tmp_path / "nowhere"), f"out={tmp_path / 'out'}"]) == 2
    assert f"{tmp_path / 'nowhere'} does not exist." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_that_is_shown_is_not_called_left_out(both, tmp_path, capsys):
    (tmp_path / "verl" / "evaluation").mkdir()
    (tmp_path / "verl" / "evaluation" / "manifest.json").write_text("{")
    _, notes = printed(capsys, *both, f"out={tmp_path / 'out'}")
    assert notes.startswith(f"the evaluations of {both[0]} are left out: {both[0]}/evaluation/manifest.json is not")


def test_a_comparison_takes_no_setting_of_an_exhibit(both, tmp_path, capsys):
    assert main(["analysis", "compare", *map(str, both), "backend=sim", f"out={tmp_path / 'out'}"]) == 2
    assert "It takes out=..." in capsys.readouterr().err


def test_without_any_run_nothing_is_drawn_and_the_exit_code_is_2(tmp_path, capsys):
    assert main(["analysis", "compare", str(tmp_path / "nowhere"), f"out={tmp_path / 'out'}"]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["analysis", "compare"]) == 2
    assert "There is no run with a finished step in what was given." in capsys.readouterr().err
