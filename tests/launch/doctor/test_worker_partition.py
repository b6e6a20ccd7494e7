"""What doctor says of the partition of rollout workers."""

from dataclasses import replace

import pytest

from rollpacker.config.compose import compose
from rollpacker.config.sections.elastic_job import ElasticJobSection
from rollpacker.config.words import replaced
from rollpacker.launch.doctor import examination
from rollpacker.launch.doctor.worker_partition import check_workers
from rollpacker.launch.shape import workers_shape
from rollpacker.launch.submission_environment import as_submitted
from tests.launch.doctor.test_slurm import PARTITION, _site
from tests.launch.golden_scripts import ELASTIC

IN_GPU = replaced(ELASTIC, ["elastic.max_workers=4", "elastic.job.partition=gpu", "elastic.job.least_time_min=null"])


def findings_on(site, *words, qos=None, environment=None):
    """What is found on the workers of a run, of which a shell with these variables would submit the array."""
    config = compose(replaced(IN_GPU, words))
    shape = workers_shape(config)
    assert shape is not None
    return list(check_workers(site, as_submitted(shape, environment or {}), config.elastic, qos or {}))


def texts_on(site, *words, **options):
    return {each.subject: each.text for each in findings_on(site, *words, **options)}


def test_of_a_partition_that_is_good_for_workers_every_line_is_ok_and_says_what_happens_to_them():
    findings = {each.subject: each for each in findings_on(_site())}
    assert {each.level for each in findings.values()} == {"ok"}
    assert findings["workers"].text == "gpu is UP, 2 of 2 nodes in service; 16 elements"
    assert findings["workers: job"].text == "its nodes exist; 240 minutes for each attempt"
    assert findings["workers: loss"].text == "jobs of gpu lose their nodes (REQUEUE) 300 s after SIGURG"
    assert "queues again after 120 s at least" in findings["workers: queue"].text


@pytest.mark.parametrize(
    ("site", "word", "subject", "level", "words"),
    [
        (_site(), "partition=gpus", "workers", "problem", "elastic.job.partition=gpus is not a partition"),
        (_site(replace(PARTITION, state="DOWN")), "", "workers", "problem", "no worker starts"),
        (_site(replace(PARTITION, state="DRAIN")), "", "workers", "problem", "no worker starts"),
        (_site(), "num_elements=1002", "workers", "problem", "at most 1001"),
        (_site(), "time_limit_min=1441", "workers: job", "problem", "It allows 1440 minutes"),
        (_site(), "cpus_per_worker=97", "workers: job", "problem", "elastic.job.cpus_per_worker=97 is more"),
        (_site(), "memory_gb_per_worker=1100", "workers: job", "problem", "1100 (1049041 MiB) is more"),
        (_site(), "gpu_type=a100", "workers: job", "problem", "elastic.job.gpu_type=a100 is on no node"),
        (_site(), "constraint=ib", "workers: job", "problem", "elastic.job.constraint=ib names `ib`"),
        (
            _site(replace(PARTITION, allowed_qos=("normal",))),
            "qos=low",
            "workers: job",
            "problem",
            "elastic.job.qos=low may not use partition `gpu`",
        ),
        (_site(replace(PARTITION, grace_time_s=0)), "", "workers: loss", "warning", "lost at once"),
        (_site(replace(PARTITION, preempt_mode="SUSPEND")), "", "workers: loss", "warning", "stopped in place"),
        (_site(AccountingStorageType="accounting_storage/none"), "", "workers: accounts", "warning", "run's own files"),
    ],
)
def test_each_thing_that_is_wrong_is_found_and_nothing_else(site, word, subject, level, words):
    found_all = findings_on(site, *([f"elastic.job.{word}"] if word else []))
    (found,) = (each for each in found_all if each.level != "ok")
    assert (found.subject, found.level) == (subject, level)
    assert words in found.text
    assert found.remedy


def test_a_qos_may_lift_the_time_limit_of_a_partition():
    found = findings_on(_site(), "elastic.job.time_limit_min=1441", "elastic.job.qos=long")
    assert {each.level for each in found} == {"ok"}


def test_of_several_partitions_one_that_takes_workers_is_enough_and_each_is_told():
    findings = findings_on(_site(replace(PARTITION, state="DOWN")), "elastic.job.partition='urgent,gpu'")
    assert {each.level for each in findings} == {"ok"}
    texts = [each.text for each in findings]
    assert "urgent is UP, 2 of 2 nodes in service; gpu is DOWN, 2 of 2 nodes in service; 16 elements" in texts
    assert "jobs of urgent keep their nodes until their time limit" in texts
    assert "jobs of gpu lose their nodes (REQUEUE) 300 s after SIGURG" in texts


def test_workers_without_a_partition_take_that_of_the_run_under_its_name():
    own, environment = "elastic.job.partition=null", {"SBATCH_PARTITION": "gpux"}
    (found,) = findings_on(_site(), own, environment=environment)
    assert found.text.startswith("SBATCH_PARTITION=gpux is not a partition")
    assert found.remedy == "Write SBATCH_PARTITION=gpu"
    losses = [each.text for each in findings_on(_site(JobSubmitPlugins="lua"), own) if each.subject == "workers: loss"]
    assert losses == ["jobs of gpu lose their nodes (REQUEUE) 300 s after SIGURG"]


def test_where_preemption_cancels_the_next_element_takes_the_place():
    site = _site(replace(PARTITION, preempt_mode="CANCEL"))
    assert "the next one of the array" in texts_on(site)["workers: queue"]


def test_a_partition_is_not_asked_for_workers_that_a_modelled_run_does_not_submit(monkeypatch, tmp_path):
    monkeypatch.setattr(examination, "read_site", _site)
    words = ["model=qwen2.5-7b", "workload=math", "cluster=slurm", "cluster.partition=gpu", f"run.dir={tmp_path}"]
    config = compose([*words, "backend=sim", "elastic=slurm", "elastic.job.partition=nope"])
    assert not [each.subject for each in examination.examine(config, {}) if each.subject.startswith("workers")]
    job = ElasticJobSection(partition="nope", time_limit_min=240)
    real = config.model_copy(
        update={
            "backend": config.backend.model_copy(update={"name": "ray"}),
            "elastic": config.elastic.model_copy(update={"job": job}),
        }
    )
    assert [each.level for each in examination.examine(real, {}) if each.subject == "workers"] == ["problem"]
