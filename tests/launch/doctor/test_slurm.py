from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollpacker.config.sections.cluster import ClusterSection, ContainerSection, EnvironmentNodesSection
from rollpacker.launch.doctor.slurm import check_slurm
from rollpacker.launch.shape import JobShape
from rollpacker.launch.site import Node, Partition, Site

PARTITION = Partition(
    name="gpu",
    is_default=True,
    state="UP",
    max_time_min=1440,
    default_time_min=60,
    max_nodes=None,
    grace_time_s=300,
    preempt_mode="REQUEUE",
    priority_tier=1,
    allowed_qos=None,
)
URGENT = replace(PARTITION, name="urgent", is_default=False, priority_tier=10)
SETTINGS = {
    "ClusterName": "h800",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "ProctrackType": "proctrack/cgroup",
    "MaxArraySize": "1001",
    "KillWait": "30 sec",
    "PreemptType": "preempt/partition_prio",
    "SlurmctldParameters": "preempt_send_user_signal",
}


def _site(partition: Partition = PARTITION, *, version: str = "24.11.5", state: str = "IDLE", **settings: str) -> Site:
    nodes = tuple(
        Node(
            name=name,
            num_cpus=96,
            memory_mb=1_000_000,
            gpus_by_type={"h800": 8},
            state=state,
            features=(),
            partitions=("gpu", "urgent"),
        )
        for name in ("n1", "n2")
    )
    return Site(version=version, settings=SETTINGS | settings, partitions=(partition, URGENT), nodes=nodes)


def _job(**fields: Any) -> JobShape:
    cluster = ClusterSection(name="h800", **{"gpus_per_node": 8, "cpus_per_node": 96, **fields})
    return JobShape(num_nodes=cluster.num_nodes or 1, cluster=cluster)


def _levels(site: Site, job: JobShape) -> dict[str, str]:
    return {finding.subject: finding.level for finding in check_slurm(site, job, {})}


def test_of_a_well_kept_cluster_there_is_nothing_to_say() -> None:
    findings = list(check_slurm(_site(), _job(), {}))

    assert {finding.level for finding in findings} == {"ok"}
    assert all(not finding.remedy for finding in findings)
    assert len({finding.subject for finding in findings}) == len(findings)


@pytest.mark.parametrize(
    ("site", "job", "subject", "level", "words"),
    [
        (_site(version="20.11.9"), _job(), "Slurm", "warning", "20.11.9"),
        (_site(AccountingStorageType="accounting_storage/none"), _job(), "accounting", "warning", "is off"),
        (_site(ProctrackType="proctrack/linuxproc"), _job(), "processes", "warning", "proctrack/linuxproc"),
        (_site(MaxArraySize="0"), _job(), "arrays", "warning", "not allowed"),
        (_site(KillWait="5 sec"), _job(), "time limit", "warning", "5 s"),
        (
            _site(),
            _job(partition="gpus"),
            "partition",
            "problem",
            "cluster.partition=gpus is not a partition of this Slurm. The partitions are gpu, urgent",
        ),
        (_site(replace(PARTITION, is_default=False)), _job(), "partition", "problem", "no default partition"),
        (_site(replace(PARTITION, state="DOWN")), _job(), "partition", "problem", "no job starts"),
        (_site(replace(PARTITION, state="DRAIN")), _job(), "partition", "problem", "accepts no jobs"),
        (_site(state="DOWN*"), _job(), "partition", "problem", "0 of 2 nodes"),
        (_site(), _job(gpus_per_node=9), "job", "problem", "cluster.gpus_per_node=9 is more"),
        (_site(), _job(gpu_type="a100"), "job", "problem", "cluster.gpu_type=a100 is on no node"),
        (_site(), _job(cpus_per_node=97), "job", "problem", "cluster.cpus_per_node=97 is more"),
        (_site(), _job(memory_gb_per_node=1100), "job", "problem", "1100 (1049041 MiB) is more"),
        (_site(), _job(num_nodes=3), "job", "problem", "asks for 3 nodes"),
        (
            _site(),
            _job(environment_nodes=EnvironmentNodesSection(num_nodes=2, partition="cpu")),
            "job",
            "problem",
            "cluster.environment_nodes.partition=cpu is not a partition",
        ),
        (_site(), _job(time_limit_min=1441), "job", "problem", "It allows 1440 minutes"),
        (_site(replace(PARTITION, grace_time_s=0)), _job(), "preemption", "warning", "too short"),
        (_site(replace(PARTITION, preempt_mode="SUSPEND")), _job(), "preemption", "warning", "stopped in place"),
        (
            _site(SlurmctldParameters=""),
            _job(container=ContainerSection(image=Path("image.sif"))),
            "preemption",
            "warning",
            "300 s after SIGTERM, which ends the mount",
        ),
    ],
)
def test_each_thing_that_is_wrong_is_found_and_nothing_else(
    site: Site, job: JobShape, subject: str, level: str, words: str
) -> None:
    (found,) = (finding for finding in check_slurm(site, job, {}) if finding.level != "ok")

    assert (found.subject, found.level) == (subject, level)
    assert words in found.text
    assert found.remedy


def test_a_misspelt_partition_is_answered_with_the_nearest_one() -> None:
    found = [finding for finding in check_slurm(_site(), _job(partition="urgnt"), {}) if finding.level == "problem"]

    assert found[0].remedy == "Write cluster.partition=urgent"


def test_of_several_partitions_one_that_takes_the_job_is_enough_and_each_is_told() -> None:
    site = _site(replace(PARTITION, state="DOWN"))
    findings = list(check_slurm(site, _job(partition="gpu,urgent"), {}))

    texts = [finding.text for finding in findings]
    assert {finding.level for finding in findings} == {"ok"}
    assert "gpu is DOWN, 2 of 2 nodes in service; urgent is UP, 2 of 2 nodes in service" in texts
    assert "jobs of gpu lose their nodes (REQUEUE) 300 s after SIGURG" in texts
    assert "jobs of urgent keep their nodes" in texts


def test_jobs_of_the_highest_partition_keep_their_nodes() -> None:
    texts = {finding.subject: finding.text for finding in check_slurm(_site(), _job(partition="urgent"), {})}

    assert texts["preemption"] == "jobs of urgent keep their nodes"


@pytest.mark.parametrize(
    ("is_default", "partitions"), [(True, ["gpu"]), (False, ["gpu", "urgent"])], ids=["default", "no default"]
)
def test_where_slurms_plugins_may_choose_the_partition_preemption_is_that_of_the_default_one(
    is_default: bool, partitions: list[str]
) -> None:
    site = _site(replace(PARTITION, is_default=is_default), JobSubmitPlugins="lua")
    texts = [finding.text for finding in check_slurm(site, _job(), {}) if finding.subject == "preemption"]

    assert [name for name in ("gpu", "urgent") if any(f"jobs of {name} " in text for text in texts)] == partitions
    assert any("leaves the choice to Slurm's JobSubmitPlugins=lua" in text for text in texts) == is_default
    assert len(list(check_slurm(site, _job(partition="gpu"), {}))) == len(list(check_slurm(_site(), _job(), {})))


def test_where_slurm_shows_no_nodes_nothing_is_said_of_them() -> None:
    hidden = replace(_site(), nodes=())
    findings = {finding.subject: finding for finding in check_slurm(hidden, _job(), {})}

    assert {finding.level for finding in findings.values()} == {"ok"}
    assert "nodes that only operators see (PrivateData)" in findings["Slurm"].text
    assert findings["partition"].text == "gpu is UP"
    assert findings["job"].text.startswith("whether its nodes exist is not known; 60 minutes")
    assert "lose their nodes" in findings["preemption"].text, "a partition of higher priority may share them"


def test_without_a_cluster_only_slurm_itself_is_checked() -> None:
    assert [finding.subject for finding in check_slurm(_site(), None, {})] == [
        "Slurm",
        "accounting",
        "processes",
        "arrays",
        "time limit",
    ]


def test_a_requeued_job_waits_as_long_as_its_credential_lives() -> None:
    texts = [finding.text for finding in check_slurm(_site(AuthInfo="cred_expire=300"), _job(), {})]

    assert "a requeued job waits for at least 300 s (cred_expire)" in texts
    assert _levels(_site(), _job(requeue=False))["requeue"] == "ok"


def test_an_array_has_as_many_points_as_slurm_allows_elements() -> None:
    texts = [finding.text for finding in check_slurm(_site(MaxArraySize="1001"), _job(), {})]

    assert "of up to 1001 points (MaxArraySize)" in texts
