"""The exhibits of single parts: stream trainer, planner on larger models, reward scheduler; and the one of nothing."""

import pytest

from rollpacker.analysis.exhibits import fig07a, fig11, fig12, fig13, larger_models, table3
from rollpacker.analysis.numbers import Source, Value, over
from rollpacker.analysis.runs import find_runs, read_runs
from tests.analysis.written_runs import forget_steps, numbers_of, runs_below, write_run

PAPER = {"setup": "paper"}


def shown(numbers, panel):
    return {point.x: point.y for point in numbers.points if point.panel == panel}


def test_runs_below_a_folder_that_is_called_checkpoints_are_found(tmp_path):
    write_run(tmp_path / "checkpoints" / "runs" / "a", "verl", [1.0])
    write_run(tmp_path / "checkpoints" / "runs" / "a" / "checkpoints" / "step-1", "verl", [1.0])
    folder = tmp_path / "checkpoints" / "runs"
    assert list(find_runs(folder)) == [folder / "a"]


def test_a_run_that_is_a_link_is_found_and_one_whose_job_waits_is_not(tmp_path):
    write_run(tmp_path / "scratch" / "a", "verl", [1.0])
    (tmp_path / "runs" / "waiting").mkdir(parents=True)
    (tmp_path / "runs" / "waiting" / "job.json").write_text("{}")
    (tmp_path / "runs" / "a").symlink_to(tmp_path / "scratch" / "a")
    assert list(find_runs(tmp_path / "runs")) == [tmp_path / "runs" / "a"]
    assert list(find_runs(tmp_path / "nowhere")) == []


def test_a_number_is_over_that_of_the_base_with_its_seed_unless_that_is_zero(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"run-{seed}", "tail", [1.0], seed=seed)
    first, second, third = runs_below(tmp_path).runs
    found = over([Value(first, 6.0), Value(second, 1.0), Value(third, 1.0)], [Value(second, 0.0), Value(first, 4.0)])
    assert [(run.seed, y) for run, y in found] == [(0, 1.5)]


def test_a_run_has_the_gpus_that_it_began_with_although_its_first_round_ended_on_larger_engines(tmp_path):
    degrees = {"tensor_parallel": [8, 2], "escalated_from": [2, None]}
    write_run(tmp_path / "x", "ours", [10, 10], config={"engine": {"num_engines": 4}}, **degrees)
    (run,), _ = read_runs(list(find_runs(tmp_path)))
    assert (run.tensor_parallel, run.num_gpus) == (2, 8)
    assert run.within(1, 2).tensor_parallel == 2


def test_rounds_are_told_by_the_share_at_which_engines_were_lent(tmp_path):
    for share, long_step_s in (("0.2", 30.0), ("None", 20.0)):
        times = [5.0, 5.0, 5.0, 5.0, long_step_s]
        config = {"run": PAPER | {"study": f"stream-at-{share}"}}
        write_run(tmp_path / share, "rollpacker", times, config=config, lent_at_share=0.25)
    without = {"run": PAPER | {"study": "stream-never"}}
    write_run(tmp_path / "without", "tail-reward-planner", [5.0] * 4 + [60.0], config=without)
    write_run(tmp_path / "end-to-end", "rollpacker", [99.0] * 5, config={"run": PAPER})
    numbers = numbers_of(table3.EXHIBIT, tmp_path)
    ours = {point.x: point.y for point in numbers.points if point.panel == table3.STEP and point.series == "ours"}
    assert ours == {"without": 60.0, "20 %": 30.0, "adaptive": 20.0}
    assert shown(numbers, "short rounds: rollout (s)") == {"without": 4.0, "20 %": 4.0, "adaptive": 4.0}
    assert shown(numbers, "long rounds: lent at (% of the requests)") == {"20 %": 25.0, "adaptive": 25.0}
    speedups = {claim.text.split(":")[0]: claim.ours.y for claim in numbers.claims if claim.ours}
    assert speedups["lending, adaptive against without"] == 3.0
    assert speedups["lending, adaptive against 20 %"] == 1.5
    assert "no run with model Qwen2.5-7B, study stream-at-0.3, system rollpacker" in numbers.missing
    fetched = [(point.x, point.y, str(point.source)) for point in numbers.points if point.panel == table3.FETCH]
    assert fetched[:2] == [("streaming", 115.2, "paper"), ("20 %", 128.6, "paper")]
    assert [point for point in fetched if point[2] != "paper"] == [("streaming", 20.0, "measured")]


def test_times_of_programs_are_those_of_responses_whose_program_ran(tmp_path):
    scored = {"correct": 3.0, "truncated": 0.1}
    responses = [{"reward_time_s": time_s, "reward_reason": reason} for reason, time_s in scored.items()]
    write_run(tmp_path, "verl", [9.0], model="Qwen2.5-14B", task="code", responses=responses)
    times_s = {point.y for point in numbers_of(fig07a.EXHIBIT, tmp_path).points if point.source is not Source.PAPER}
    assert times_s == {3.0}


def test_a_model_is_compared_over_the_steps_that_all_of_its_runs_have(tmp_path):
    study = {"run": PAPER | {"study": "fig12"}}
    of = {"model": "Qwen2.5-32B"}
    write_run(tmp_path / "2", "tail-reward", [11.0, 21.0], config=study, tensor_parallel=2, **of)
    write_run(tmp_path / "8", "tail-reward", [5.0, 7.0, 999.0], config=study, tensor_parallel=8, **of)
    write_run(tmp_path / "planner", "tail-reward-planner", [3.0, 3.0], config=study, tensor_parallel=2, **of)
    write_run(tmp_path / "14b", "tail-reward", [9.0] * 5, model="Qwen2.5-14B", config={"run": PAPER})
    numbers = numbers_of(larger_models.EXHIBIT, tmp_path)
    assert shown(numbers, "32B, short:\nrollout (s)") == {"TP 2": 15.0, "TP 8": 5.0, "planner": 2.0}
    assert shown(numbers, "14B, long:\nrollout (s)") == {"TP 2": 8.0}


def test_steps_that_one_run_of_a_model_lost_are_left_out_of_all_of_its_runs(tmp_path):
    study = {"config": {"run": PAPER | {"study": "fig12"}}, "model": "Qwen2.5-32B"}
    write_run(tmp_path / "2", "tail-reward", [11.0, 21.0, 31.0], tensor_parallel=2, **study)
    forget_steps(write_run(tmp_path / "8", "tail-reward", [5.0, 999.0, 7.0], tensor_parallel=8, **study), {1})
    assert shown(numbers_of(larger_models.EXHIBIT, tmp_path), "32B, short:\nrollout (s)") == {"TP 2": 20.0, "TP 8": 5.0}


def test_each_step_under_the_planner_is_a_share_of_that_without_beside_the_papers(tmp_path):
    study = {"config": {"run": PAPER | {"study": "fig06"}}, "model": "Qwen3-8B", "tensor_parallel": 1}
    preemptions = [100, 100, 100, 100, 50, 100, 999]
    write_run(tmp_path / "fixed", "tail-reward", [11.0] * 7, num_preemptions=preemptions, **study)
    planned = [100, 80, 80, 80, 50, 60, 999]
    write_run(tmp_path / "planner", "tail-reward-planner", [9.0] * 7, num_preemptions=planned, **study)
    numbers = numbers_of(fig12.EXHIBIT, tmp_path)
    rows = numbers.frame().query("source != 'paper'")
    shares = dict(zip(zip(rows["panel"].str[0], rows["x"], strict=True), rows["y"], strict=True))
    assert {x: y for (panel, x), y in shares.items() if panel == "b"} == {
        "1": 100,
        "2": 80,
        "3": 80,
        "4": 80,
        "5\nlong": 100,
        "6": 60,
    }
    assert shares["c", "1"] == 80
    assert rows["paper"].notna().all()
    changes = {claim.text.partition(", six")[0]: claim for claim in numbers.claims}
    short = changes["the planner changes the preemptions of short rounds"]
    assert (round(short.paper, 1), round(short.ours.y, 6)) == (-13.8, -20.0)
    growing = [point for point in numbers.points if point.panel == fig12.GROWING]
    assert {point.source for point in growing} == {Source.PAPER}


def test_rewards_are_told_by_where_the_judge_runs_by_model_and_by_timeout(tmp_path):
    def write(variant, *lengths, model="Qwen2.5-7B", **values):
        judged = [{"length_tokens": length, "reward_time_s": seconds} for length, seconds in lengths]
        study = {"run": PAPER | {"study": f"fig13-{variant}"}}
        write_run(
            tmp_path / variant / model, "tail-reward", [7.0] * 5, model=model, config=study, responses=judged, **values
        )

    write("mps")
    write_run(tmp_path / "nomps", "tail-reward", [10.0] * 5, config={"run": PAPER | {"study": "fig13-nomps"}})
    write("pipeline", (100, 1.0), (200, 3.0), (4000, 5.0), (5000, 0.0))  # the last one was never judged
    write("nopipeline", (100, 4.0), (200, 4.0), (4000, 4.0))
    write("pipeline", (100, 1.0), model="Qwen2.5-14B")
    write("nopipeline", (100, 2.0), model="Qwen2.5-14B")
    write("adpt_timeout", exposed_reward_time_s=[0.0, 1.0, 2.0, 3.0, 4.0])
    numbers = numbers_of(fig13.EXHIBIT, tmp_path)
    ours = numbers.frame().query("source != 'paper'")
    by_panel = {panel: dict(zip(rows["x"], rows["y"], strict=True)) for panel, rows in ours.groupby("panel")}
    assert by_panel[fig13.BESIDE] == {"1": 70, "2": 70, "3": 70, "4": 70, "5\nlong": 70}
    assert by_panel[fig13.PIPED] == {"7B/8k": 75, "14B/16k": 50}
    assert by_panel[fig13.BY_LENGTH] == {"<512,\npiped": 2, "<512,\nnot": 4, "longer,\npiped": 5, "longer,\nnot": 4}
    assert by_panel[fig13.TIMED] == {1.0: 6, 2.0: 7, 3.0: 8, 4.0: 9, 5.0: 10}
    assert ours[ours["panel"] != fig13.BY_LENGTH]["paper"].notna().all()
    claims = {claim.text: claim for claim in numbers.claims}
    short = claims["rollout and reward of short rounds of code, adaptive timeouts (s)"]
    assert (round(short.paper, 1), short.ours.y) == (31.9, 7.5)
    gained = claims["adaptive timeouts: rollout and reward of short rounds of code over those with the fixed one"]
    assert gained.ours is None
    assert "no run with model Qwen2.5-7B, study fig13-adpt_notimeout" in numbers.missing


def test_a_judge_beside_the_engines_is_compared_over_the_first_six_steps_that_both_runs_have(tmp_path):
    for variant, times in (("mps", [30.0, *[7.0] * 5, 500.0]), ("nomps", [10.0] * 6)):
        write_run(tmp_path / variant, "tail-reward", times, config={"run": PAPER | {"study": f"fig13-{variant}"}})
    forget_steps(tmp_path / "mps", {2})
    assert numbers_of(fig13.EXHIBIT, tmp_path).claims[0].ours.y == pytest.approx(100 * (30 + 4 * 7) / 50)
    forget_steps(tmp_path / "nomps", {0})
    assert numbers_of(fig13.EXHIBIT, tmp_path).claims[0].ours.y == pytest.approx(70)


def test_what_a_race_saves_stands_beside_the_papers_share(tmp_path):
    for prompts, responses, rollout_s in ((1, 1, 100.0), (1, 1.5, 60.0), (1.125, 1, 90.0), (1.25, 1.25, 50.0)):
        system = fig11.system_name(prompts, responses)
        write_run(tmp_path / system, system, [rollout_s + 1.0] * 2, config={"run": PAPER})
    numbers = numbers_of(fig11.EXHIBIT, tmp_path)
    rows = numbers.frame().query("source != 'paper' and unit.str.startswith('%') and series != '1'", engine="python")
    shares = {(row["panel"], row["x"]): (row["y"], row["paper"]) for row in rows.to_dict("records") if row["paper"] > 0}
    assert shares[fig11.RESPONSES, 1.0] == (100, 100)
    assert shares[fig11.RESPONSES, 1.5] == (60, 65.864)
    assert shares[fig11.PROMPTS, 1.125] == (90, 94.8923)
    assert shares[fig11.BOTH, "8k"] == (50, 58.2939)
    assert [(claim.paper, claim.ours.y) for claim in numbers.claims] == [(82.0, 100.0), (58.2939, 50.0)]
