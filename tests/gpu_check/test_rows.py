"""The rows' own code on a CPU, with GPUs that are not real: all but what a GPU decides."""

import pytest

from tests.gpu_check.test_checking import outcomes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def test_rows_pass_where_a_cpu_can_show_what_they_show(tmp_path):
    names = ("flash-attention", "fsdp", "turns", "weights-nccl", "sequence-cost-megatron", "round-start")
    found = outcomes(tmp_path, *names, num_gpus=2)
    assert {name: found[name][:2] for name in names} == dict.fromkeys(names, ("passed", ""))
    assert 0 < found["fsdp"][2]["float32_furthest"] < 1e-3
    assert found["weights-nccl"][2]["sent_gb"] > 0
    for packing in ("packed", "cp2_by_length"):
        assert found["sequence-cost-megatron"][2][f"{packing}_many_of_few"] > 0
    assert found["round-start"][2]["start_s"] >= found["round-start"][2]["wake_s"] > 0
