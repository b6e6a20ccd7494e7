"""The rows' own code on a CPU, with GPUs that are not real: all but what a GPU decides."""

import pytest

from tests.gpu_check.test_checking import outcomes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def test_rows_pass_where_a_cpu_can_show_what_they_show(tmp_path):
    names = ("weights-nccl", "fsdp", "together")
    found = outcomes(tmp_path, *names, num_gpus=2)
    assert {name: found[name][:2] for name in names} == dict.fromkeys(names, ("passed", ""))
    assert found["weights-nccl"][2]["sent_gb"] > 0
    figures = found["together"][2]
    assert 0 < found["fsdp"][2]["float32_furthest"] < 1e-3
    for packing in ("packed", "cp2_by_length"):
        assert figures[f"sequence-cost-megatron.{packing}_many_of_few"] > 0
    assert figures["round-start.start_s"] >= figures["round-start.wake_s"] > 0
