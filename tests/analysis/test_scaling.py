"""The exhibits that add GPUs, with a batch that grows with them: the paper's, and ours up to 8,192."""

import json

import pytest

from rollpacker.analysis.exhibits import fig14, scaling
from rollpacker.analysis.numbers import Source
from rollpacker.config.compose import compose
from tests.analysis.written_runs import numbers_of, ours, series, write_run


def write_scaled(folder, system, times, *, num_engines, study="", processor_s=None, num_prompts=128, **values):
    rollout = {"num_prompts": num_prompts, "num_responses": 8}
    config = {"run": {"study": study}, "engine": {"num_engines": num_engines}, "rollout": rollout}
    write_run(folder, system, times, config=config, **values)
    if processor_s is not None:
        status = {"state": "finished", "attempt": 0, "finished_steps": len(times), "num_steps": len(times)}
        status |= {"reason": "", "job_id": None, "host": "here", "updated_at": 0.0, "processor_s": processor_s}
        status["num_gpus"] = 0
        (folder / "status.json").write_text(json.dumps(status))


def test_a_batch_that_grows_with_the_gpus_is_compared_over_the_steps_of_the_shortest_run(tmp_path):
    common = {"model": fig14.MODEL, "tensor_parallel": 2}
    larger = {"num_engines": 64, "study": "fig14", "num_prompts": 512} | common
    later = [9999.0] * 30
    write_scaled(tmp_path / "v32", "verl", [400.0] * 10 + later, num_engines=16, **common)
    write_scaled(tmp_path / "r32", "rollpacker", [200.0] * 10 + later, num_engines=16, **common)
    write_scaled(tmp_path / "v128", "verl", [800.0] * 10, **larger)
    write_scaled(tmp_path / "r128", "rollpacker", [320.0] * 10, **larger)
    write_scaled(tmp_path / "same_batch", "verl", [100.0] * 10, **larger | {"num_prompts": 128})
    numbers = numbers_of(fig14.EXHIBIT, tmp_path)
    assert ours(numbers, fig14.THROUGHPUT) == {
        ("verl", 32.0): 2.56,
        ("rollpacker", 32.0): 5.12,
        ("verl", 128.0): 5.12,
        ("rollpacker", 128.0): 12.8,
    }
    assert ours(numbers, fig14.SPEEDUP) == {("rollpacker", 32.0): 2.0, ("rollpacker", 128.0): 2.5}
    grown = {claim.text.split(":")[0]: claim.ours.y for claim in numbers.claims if "samples per second" in claim.text}
    assert grown == {"Qwen2.5-14B, verl": 2.0, "Qwen2.5-14B, rollpacker": 2.5}
    missed = "no run with system verl, model Qwen2.5-14B, task mix, study fig14, num_gpus 64, num_prompts 256"
    assert missed in numbers.missing


def test_the_papers_step_times_are_those_that_its_batches_take_at_its_samples_per_second(tmp_path):
    write_scaled(tmp_path / "v32", "verl", [374.6] * 10, num_engines=16, model=fig14.MODEL, tensor_parallel=2)
    frame = numbers_of(fig14.EXHIBIT, tmp_path).frame()
    steps = frame[(frame["panel"] == fig14.STEP_TIME) & (frame["series"] == "verl")]
    assert steps[steps["source"] == Source.PAPER]["y"].round().tolist() == [375, 529, 687]
    [own] = steps[steps["source"] != Source.PAPER].to_dict("records")
    assert abs(own["relative_error"]) < 0.001
    assert own["paper"] == steps["y"].iloc[0]


def test_a_cycle_is_compared_where_a_run_has_one_and_processor_time_is_per_step(tmp_path):
    def write(name, system, times, num_engines, **values):
        values |= {"study": "scaling", "tensor_parallel": 4, "modelled": True}
        write_scaled(tmp_path / name, system, times, num_engines=num_engines, **values)

    write("v16", "verl", [10.0] * 5, 4, processor_s=1.0)
    write("r16", "rollpacker", [3.0, 3.0, 3.0, 5.0, 11.0], 4)  # without a status
    write("v8192", "verl", [10.0], 2048, processor_s=8.0)
    write("r8192", "rollpacker", [4.0], 2048, processor_s=9.0)
    numbers = numbers_of(scaling.EXHIBIT, tmp_path)
    assert series(numbers, scaling.STEP_TIME) == {
        "verl": [(16.0, 10.0), (8192.0, 10.0)],
        "rollpacker": [(16.0, 5.0)],
        scaling.SHORT: [(16.0, 3.5), (8192.0, 4.0)],
    }
    assert series(numbers, scaling.SPEEDUP) == {"rollpacker": [(16.0, 2.0)]}
    assert series(numbers, scaling.COST) == {"verl": [(16.0, 0.2), (8192.0, 8.0)], "rollpacker": [(8192.0, 9.0)]}


@pytest.mark.parametrize(("variant", "num_gpus"), [("fig14-64", 64), ("fig14-128", 128)])
def test_on_real_gpus_too_the_trainer_of_fig14_has_all_that_the_engines_have(variant, num_gpus):
    config = compose(["backend=sim", "experiment=fig14", f"variant={variant}"])
    assert config.engine.num_engines * config.engine.tensor_parallel == config.trainer.num_ranks == num_gpus
