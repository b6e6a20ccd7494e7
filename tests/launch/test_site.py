from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker.core.errors import WorldError
from rollpacker.launch.site import Node, Site, parse_minutes, parse_nodes, parse_partitions, parse_settings, read_site
from tests.launch.commands import install_command

RECORDED = Path(__file__).parent / "recorded"


def _site(version: str) -> Site:
    texts = {name: (RECORDED / f"{name}-{version}.txt").read_text() for name in ("config", "partition", "node")}
    settings = parse_settings(texts["config"])
    return Site(
        version=settings["SLURM_VERSION"],
        settings=settings,
        partitions=parse_partitions(texts["partition"]),
        nodes=parse_nodes(texts["node"]),
    )


def test_a_recorded_cluster_of_22_05_is_read_whole() -> None:
    site = _site("22.05")

    assert (site.name, site.version, site.has_accounting) == ("mini", "22.05.8", True)
    assert site.requeue_delay_s == 5
    assert site.signals_before_preempting
    assert [partition.name for partition in site.partitions] == ["main", "low", "lowcancel"]
    low = site.partition("lowcancel")
    assert low is not None
    assert (low.grace_time_s, low.preempt_mode, low.max_time_min, low.max_nodes) == (15, "CANCEL", None, None)
    assert site.nodes_of(low) == site.nodes
    assert low.allowed_qos is None
    assert [site.may_preempt(partition) for partition in site.partitions] == [False, True, True]
    assert site.nodes[0] == Node(
        name="node1",
        num_cpus=8,
        memory_mb=16000,
        gpus_by_type={"": 4},
        state="IDLE",
        features=(),
        partitions=("main", "low", "lowcancel"),
    )


def test_a_partition_of_higher_priority_preempts_no_job_on_nodes_that_it_does_not_have() -> None:
    site = _site("22.05")
    first, second = site.nodes
    apart = replace(
        site, nodes=(replace(first, partitions=("main",)), replace(second, partitions=("low", "lowcancel")))
    )

    assert not any(apart.may_preempt(partition) for partition in apart.partitions)


def test_a_cluster_of_24_11_with_types_limits_and_broken_nodes_is_read_whole() -> None:
    site = _site("24.11")

    assert site.requeue_delay_s == 120
    assert site.signals_before_preempting
    assert site.settings["AuthInfo"] == ""
    gpu, spot = site.partitions
    assert site.default_partition == gpu
    assert (gpu.max_time_min, gpu.default_time_min, gpu.max_nodes) == (2 * 24 * 60, 60, 16)
    assert gpu.allowed_qos == ("normal", "high")
    assert (spot.state, spot.allowed_qos) == ("DOWN", None)
    assert not site.may_preempt(gpu), "its PreemptMode is OFF"
    assert site.may_preempt(spot), "by QOS, of which the partitions tell nothing"
    first, drained, down = site.nodes
    assert (first.num_cpus, first.memory_mb) == (188, 2000000 - 32000)
    assert first.gpus_by_type == {"h800": 8}
    assert first.features == ("h800", "ib", "rack=3")
    assert (first.is_available, drained.is_available, down.is_available) == (True, False, False)
    assert (down.gpus_by_type, down.num_gpus) == ({"a100": 2, "v100": 4}, 6)
    assert site.nodes_of(gpu) == (first, drained)
    assert site.nodes_of(spot) == site.nodes


@pytest.mark.parametrize(
    ("state", "is_available"),
    [
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("IDLE+CLOUD+POWERING_DOWN", True),
        ("ALLOCATED+POWER_DOWN", True),
        ("MIXED+PLANNED", True),
        ("DOWN+CLOUD+POWERED_DOWN", False),
        ("DOWN*", False),
        ("IDLE+DRAIN", False),
    ],
)
def test_a_node_that_slurm_has_powered_down_is_started_for_a_job(state: str, is_available: bool) -> None:
    (node,) = parse_nodes(f"NodeName=n1 CPUTot=8 State={state} ThreadsPerCore=1")
    assert node.is_available == is_available


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:4", {"": 4}),
        ("gpu:a100:4(S:0-1),shard:a100:8(S:0)", {"a100": 4}),
        ("gpu:h100:no_consume:4(S:0-1)", {"h100": 4}),
        ("gpu:no_consume:2", {"": 2}),
        ("tmpdisk:100,gpu", {"": 1}),
        ("gpu:h100", {"h100": 1}),
        ("mps:400", {}),
    ],
)
def test_gpus_are_read_from_a_nodes_resources(gres: str, gpus: dict[str, int]) -> None:
    (node,) = parse_nodes(f"NodeName=n1 CPUTot=8 Gres={gres} State=IDLE")
    assert node.gpus_by_type == gpus


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("UNLIMITED", None),
        ("15", 15),
        ("30:00", 30),
        ("01:30:00", 90),
        ("1:00:01", 61),
        ("7-00:00:00", 7 * 24 * 60),
        ("2-12", 60 * 60),
    ],
)
def test_times_are_read_as_slurm_writes_them(text: str, minutes: int | None) -> None:
    assert parse_minutes(text) == minutes


def test_a_machine_without_slurm_is_told_where_slurm_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(WorldError) as error:
        read_site()

    assert error.value.problem == "There is no command `scontrol` here."
    assert "seldom inside a container" in error.value.allowed
    assert "login node" in error.value.remedy


def test_a_controller_that_is_down_is_reported_in_slurms_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)"
    install_command(tmp_path, "scontrol", f"echo '{said}' >&2; exit 1", monkeypatch)

    with pytest.raises(WorldError) as error:
        read_site()

    assert error.value.problem == f"`scontrol show config` failed: {said}"
    assert "scontrol ping" in error.value.remedy


def test_a_cluster_that_shows_its_nodes_to_operators_alone_is_read_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = "[[ $* == *node* ]] && { echo 'slurm_load_node error: Access/permission denied' >&2; exit 1; }"
    install_command(tmp_path, "scontrol", f"{denied}; echo PartitionName=gpu State=UP", monkeypatch)

    site = read_site()

    assert site.nodes == ()
    assert [partition.name for partition in site.partitions] == ["gpu"]


def test_a_controller_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_command(tmp_path, "scontrol", "exec sleep 60", monkeypatch)
    monkeypatch.setattr("rollpacker.launch.slurm_commands.DEADLINE_S", 0.2)

    with pytest.raises(WorldError, match="did not answer within"):
        read_site()


def test_what_the_user_tells_slurms_commands_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ("SQUEUE_FORMAT", "SACCT_FORMAT", "SINFO_FORMAT", "SCANCEL_INTERACTIVE", "SCONTROL_FUTURE")
    script = f'echo "A = {"".join(f"${{{name}-}}" for name in told)}"; echo "B = $SLURM_TIME_FORMAT"'
    install_command(tmp_path, "scontrol", script, monkeypatch)
    for name in told:
        monkeypatch.setenv(name, "%i")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")

    assert read_site().settings == {"A": "", "B": "%s"}
