"""`check` says how an asynchronous run divides its GPUs, and what must be known to divide them better."""

from __future__ import annotations

from rollpacker.cli.run_words.split import split_words
from rollpacker.config.compose import compose
from rollpacker.runtime.placing.actors import ClusterSize

REAL = ["model.path=m", "data.path=d", "run.dir=r", "system=flash"]


def test_a_real_run_is_told_its_split_and_what_theory_needs():
    config = compose(
        [*REAL, "placement=separate", "engine.num_engines=4", "trainer.name=fsdp", "trainer.data_parallel=4"]
    )
    text = split_words(config, ClusterSize(num_nodes=1, num_cpus=64, num_gpus=8))
    assert text.startswith("4 GPUs generate, 4 train\n")
    assert "rollpacker profile" in text
    assert "backend=sim hardware.profile=P workload.lengths=RUN" in text


def test_without_gpus_both_work_on_cores():
    text = split_words(compose([*REAL, "placement=none"]), ClusterSize(num_nodes=1, num_cpus=64, num_gpus=0))
    assert text.startswith("engines and trainer work on cores, at the same time\n")
