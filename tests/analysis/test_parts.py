"""The exhibits of single parts: stream trainer, planner on larger models, reward scheduler; and the one of nothing."""

from rollpacker.analysis.exhibits import fig12, fig13, table3
from rollpacker.analysis.runs import Runs, find_runs, read_runs
from tests.analysis.written_runs import write_run

PAPER = {"setup": "paper"}


def numbers_of(exhibit, folder):
    runs, problems = read_runs(list(find_runs(folder)))
    assert not problems
    return exhibit.gather(Runs(runs=runs))


def shown(numbers, panel):
    return {point.x: point.y for point in numbers.points if point.panel == panel}


def test_rounds_are_told_by_the_share_at_which_engines_were_lent(tmp_path):
    for share, long_step_s in (("0.2", 30.0), ("None", 20.0)):
        times = [5.0, 5.0, 5.0, 5.0, long_step_s]
        config = {"run": PAPER | {"study": f"stream-at-{share}"}}
        write_run(tmp_path / share, "rollpacker", times, config=config, lent_at_share=0.25)
    without = {"run": PAPER | {"study": "stream-never"}}
    write_run(tmp_path / "without", "tail-reward-planner", [5.0] * 4 + [60.0], config=without)
    write_run(tmp_path / "end-to-end", "rollpacker", [99.0] * 5, config={"run": PAPER})
    numbers = numbers_of(table3, tmp_path)
    ours = {point.x: point.y for point in numbers.points if point.panel == table3.STEP and point.series == "ours"}
    assert ours == {"without": 60.0, "20 %": 30.0, "adaptive": 20.0}
    assert shown(numbers, "short rounds: rollout (s)") == {"without": 4.0, "20 %": 4.0, "adaptive": 4.0}
    assert shown(numbers, "long rounds: lent at share") == {"20 %": 0.25, "adaptive": 0.25}
    speedups = {claim.text.split(":")[0]: claim.ours.y for claim in numbers.claims if claim.ours}
    assert speedups["lending, adaptive against without"] == 3.0
    assert speedups["lending, adaptive against 20 %"] == 1.5
    assert "no run with study stream-at-0.3, system rollpacker" in numbers.missing


def test_a_model_is_compared_over_the_steps_that_all_of_its_runs_have(tmp_path):
    study = {"run": PAPER | {"study": "fig12"}}
    of = {"model": "Qwen2.5-32B"}
    write_run(tmp_path / "2", "tail-reward", [11.0, 21.0], config=study, tensor_parallel=2, **of)
    write_run(tmp_path / "8", "tail-reward", [5.0, 7.0, 999.0], config=study, tensor_parallel=8, **of)
    write_run(tmp_path / "planner", "tail-reward-planner", [3.0, 3.0], config=study, tensor_parallel=2, **of)
    write_run(tmp_path / "14b", "tail-reward", [9.0] * 5, model="Qwen2.5-14B", config={"run": PAPER})
    numbers = numbers_of(fig12, tmp_path)
    assert shown(numbers, "32B, short:\nrollout (s)") == {"TP 2": 15.0, "TP 8": 5.0, "planner": 2.0}
    assert shown(numbers, "14B, long:\nrollout (s)") == {"TP 2": 8.0}


def test_rewards_are_told_by_when_they_are_given_by_length_and_by_timeout(tmp_path):
    for system, reward_s in (("tail", 9.0), ("tail-reward", 1.0)):
        write_run(tmp_path / system, system, [5.0] * 5, config={"run": PAPER}, exposed_reward_time_s=reward_s)
    lengths = ((100, 1.0), (200, 3.0), (4000, 5.0), (5000, 0.0))  # the last one was never judged
    judged = [{"length_tokens": length, "reward_time_s": seconds} for length, seconds in lengths]
    for variant in ("pipeline", "nopipeline", "adpt_timeout"):
        study = {"run": PAPER | {"study": f"fig13-{variant}"}}
        write_run(tmp_path / variant, "tail-reward", [7.0] * 5, config=study, responses=judged)
    numbers = numbers_of(fig13, tmp_path)
    exposed = shown(numbers, "a: exposed reward, Qwen2.5-7B (s)")
    assert exposed == {"short,\nbatch": 9.0, "long,\nbatch": 9.0, "short,\nper sample": 1.0, "long,\nper sample": 1.0}
    judging = shown(numbers, "b: judge, by tokens (s)")
    assert judging == {"<512,\npiped": 2.0, "<512,\nnot": 2.0, "longer,\npiped": 5.0, "longer,\nnot": 5.0}
    assert shown(numbers, "c: step, code (s)") == {"short,\nadaptive": 7.0, "long,\nadaptive": 7.0}
    assert "no run with study fig13-adpt_notimeout" in numbers.missing
