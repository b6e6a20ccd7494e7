"""The exhibits that add GPUs: the same batch on more of them, and a batch that grows with them."""

import json

from rollpacker.analysis.exhibits import fig14, scaling
from rollpacker.analysis.numbers import Standing
from tests.analysis.written_runs import numbers_of, series, write_run


def write_scaled(folder, system, times, *, num_engines, study="", processor_s=None, **values):
    config = {"run": {"study": study}, "engine": {"num_engines": num_engines}}
    write_run(folder, system, times, config=config, **values)
    if processor_s is not None:
        status = {"state": "finished", "attempt": 0, "finished_steps": len(times), "num_steps": len(times)}
        status |= {"reason": "", "job_id": None, "host": "here", "updated_at": 0.0, "processor_s": processor_s}
        (folder / "status.json").write_text(json.dumps(status))


def test_a_batch_on_more_gpus_is_compared_over_the_steps_of_the_shortest_run(tmp_path):
    common = {"model": fig14.MODEL, "tensor_parallel": 2, "tokens_trained": 600}
    later = [999.0] * 30
    write_scaled(tmp_path / "v32", "verl", [12.0] * 10 + later, num_engines=16, **common)
    write_scaled(tmp_path / "r32", "rollpacker", [6.0] * 10 + later, num_engines=16, **common)
    write_scaled(tmp_path / "v128", "verl", [10.0] * 10, num_engines=64, study="fig14", **common)
    write_scaled(tmp_path / "r128", "rollpacker", [4.0] * 10, num_engines=64, study="fig14", **common)
    numbers = numbers_of(fig14, tmp_path)
    assert series(numbers, fig14.STEP_TIME) == {"verl": [(32, 12), (128, 10)], "rollpacker": [(32, 6), (128, 4)]}
    assert series(numbers, fig14.THROUGHPUT) == {"verl": [(32, 50), (128, 60)], "rollpacker": [(32, 100), (128, 150)]}
    assert series(numbers, fig14.SPEEDUP) == {"rollpacker": [(32.0, 2.0), (128.0, 2.5)]}
    standings = {claim.ours.y: claim.standing for claim in numbers.claims}
    assert standings == {2.0: Standing.REPRODUCED, 2.5: Standing.REPRODUCED}
    assert "no run with model Qwen2.5-14B, system verl, task mix, study fig14, num_gpus 64" in numbers.missing


def test_a_cycle_is_compared_where_a_run_has_one_and_processor_time_is_per_step(tmp_path):
    def write(name, system, times, num_engines, **values):
        values |= {"study": "scaling", "tensor_parallel": 4, "modelled": True}
        write_scaled(tmp_path / name, system, times, num_engines=num_engines, **values)

    write("v16", "verl", [10.0] * 5, 4, processor_s=1.0)
    write("r16", "rollpacker", [3.0, 3.0, 3.0, 5.0, 11.0], 4)  # an older version wrote its status
    write("v8192", "verl", [10.0], 2048, processor_s=8.0)
    write("r8192", "rollpacker", [4.0], 2048, processor_s=9.0)
    numbers = numbers_of(scaling, tmp_path)
    assert series(numbers, scaling.STEP_TIME) == {
        "verl": [(16.0, 10.0), (8192.0, 10.0)],
        "rollpacker": [(16.0, 5.0)],
        scaling.SHORT: [(16.0, 3.5), (8192.0, 4.0)],
    }
    assert series(numbers, scaling.SPEEDUP) == {"rollpacker": [(16.0, 2.0)]}
    assert series(numbers, scaling.COST) == {"verl": [(16.0, 0.2), (8192.0, 8.0)], "rollpacker": [(8192.0, 9.0)]}
