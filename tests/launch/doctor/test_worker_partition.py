"""What doctor says of the partition of rollout workers."""

from dataclasses import replace

import pytest

from rollpacker.config.compose import compose
from rollpacker.config.sections.elastic import ElasticSection
from rollpacker.config.sections.elastic_job import ElasticJobSection
from rollpacker.launch.doctor import examination
from rollpacker.launch.doctor.worker_partition import check_workers
from tests.launch.doctor.test_slurm import PARTITION, _job, _site


def elastic(**job) -> ElasticSection:
    return ElasticSection(name="slurm", max_workers=4, job=ElasticJobSection(**{"partition": "gpu", **job}))


def test_of_a_partition_that_is_good_for_workers_every_line_is_ok_and_says_what_happens_to_them():
    findings = {each.subject: each for each in check_workers(_site(), _job(), elastic(), {})}
    assert {each.level for each in findings.values()} == {"ok"}
    assert findings["workers"].text == "gpu is UP, 2 of 2 nodes in service; 16 elements"
    assert findings["workers: loss"].text == "gpu preempts (REQUEUE), 300 s after SIGURG"
    assert "queues again after 120 s at least" in findings["workers: queue"].text


@pytest.mark.parametrize(
    ("site", "job", "subject", "level", "words"),
    [
        (_site(), {"partition": "gpus"}, "workers", "problem", "elastic.job.partition=gpus is not a partition"),
        (_site(replace(PARTITION, state="DOWN")), {}, "workers", "problem", "no worker starts"),
        (_site(), {"num_elements": 1002}, "workers", "problem", "at most 1001"),
        (_site(), {"time_limit_min": 1441}, "workers", "problem", "1440 at most"),
        (_site(replace(PARTITION, grace_time_s=0)), {}, "workers: loss", "warning", "lost at once"),
        (_site(replace(PARTITION, preempt_mode="SUSPEND")), {}, "workers: loss", "warning", "in place"),
        (_site(AccountingStorageType="accounting_storage/none"), {}, "workers: accounts", "warning", "run's own files"),
    ],
)
def test_each_thing_that_is_wrong_is_found_and_nothing_else(site, job, subject, level, words):
    section = ElasticSection(name="slurm", max_workers=4, job=ElasticJobSection(**{"partition": "gpu", **job}))
    (found,) = (each for each in check_workers(site, _job(), section, {}) if each.level != "ok")
    assert (found.subject, found.level) == (subject, level)
    assert words in found.text
    assert found.remedy


def test_a_qos_may_lift_the_time_limit_of_a_partition():
    job = ElasticJobSection(partition="gpu", time_limit_min=1441, qos="long")
    section = ElasticSection(name="slurm", max_workers=4, job=job)
    assert {each.level for each in check_workers(_site(), _job(), section, {})} == {"ok"}


def test_of_several_partitions_one_that_takes_workers_is_enough_and_each_is_told():
    section = ElasticSection(name="slurm", max_workers=4, job=ElasticJobSection(partition="urgent,gpu"))
    findings = list(check_workers(_site(replace(PARTITION, state="DOWN")), _job(), section, {}))
    assert {each.level for each in findings} == {"ok"}
    texts = [each.text for each in findings]
    assert "urgent is UP, 2 of 2 nodes in service; gpu is DOWN, 2 of 2 nodes in service; 16 elements" in texts
    assert "urgent does not preempt; they end with their time limit" in texts
    assert "gpu preempts (REQUEUE), 300 s after SIGURG" in texts


def test_workers_without_a_partition_take_that_of_the_run_under_its_name():
    job, section = replace(_job(partition="gpux"), keys={"partition": "SBATCH_PARTITION"}), elastic(partition=None)
    (found,) = check_workers(_site(), job, section, {})
    assert found.text.startswith("SBATCH_PARTITION=gpux is not a partition")
    assert found.remedy == "Write SBATCH_PARTITION=gpu"
    losses = [
        each.text
        for each in check_workers(_site(JobSubmitPlugins="lua"), _job(), section, {})
        if each.subject == "workers: loss"
    ]
    assert losses == ["gpu preempts (REQUEUE), 300 s after SIGURG"]


def test_where_preemption_cancels_the_next_element_takes_the_place():
    site = _site(replace(PARTITION, preempt_mode="CANCEL"))
    assert (
        "the next one of the array"
        in {e.subject: e.text for e in check_workers(site, _job(), elastic(), {})}["workers: queue"]
    )


def test_a_run_that_submits_no_workers_has_no_line_of_them():
    assert list(check_workers(_site(), _job(), ElasticSection(), {})) == []


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
