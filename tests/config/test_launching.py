from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.config.multirun import compose_sweep
from rollpacker.core.errors import ConfigError

MODELLED = ["backend=sim", "model=qwen2.5-7b", "cluster=slurm", "run.seed=0,1"]
OURS = [*MODELLED, "hydra/launcher=slurm"]


@pytest.fixture(autouse=True)
def _workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_other_launchers_have_no_settings_of_ours() -> None:
    sweep = compose_sweep(MODELLED)
    assert sweep.launcher is None
    assert [config.run.resume for config in sweep.configs] == [None, None]


def test_the_settings_are_judged_with_the_sweep() -> None:
    settings = compose_sweep([*OURS, "hydra.launcher.array_parallelism=3", "hydra.launcher.detach=true"]).launcher
    assert settings is not None
    assert (settings.executor, settings.array_parallelism, settings.detach) == ("slurm", 3, True)
    assert not settings.dry_run


def test_submitted_points_go_on_where_they_were_unless_told_otherwise() -> None:
    assert [config.run.resume for config in compose_sweep(OURS).configs] == ["auto", "auto"]
    assert [config.run.resume for config in compose_sweep([*OURS, "run.resume=never"]).configs] == ["never", "never"]


def test_the_launchers_container_is_every_points() -> None:
    sweep = compose_sweep([*OURS, "hydra.launcher.container=some image.sif"])
    assert [config.cluster and config.cluster.container.image for config in sweep.configs] == [
        Path("some image.sif")
    ] * 2


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("hydra.launcher.partition=main", "Write cluster.partition=..."),
        ("hydra.launcher.gpus_per_node=8", "Write cluster.gpus_per_node=..."),
        ("hydra.launcher.timeout_min=60", "Write cluster.time_limit_min=..."),
        ("hydra.launcher.mem_gb=60", "Write cluster.memory_gb_per_node=..."),
        ("hydra.launcher.nodes=2", "Write cluster.num_nodes=..."),
        ("+hydra.launcher.additional_parameters.nice=1", "Write cluster.sbatch=..."),
        ("hydra.launcher.detached=true", "Write hydra.launcher.detach=..."),
        ("hydra.launcher.xyzzy=1", "Leave it out."),
        ("hydra.launcher.detach=true,false", "Launch once per value."),
        ("hydra.launcher.array_parallelism=0", "hydra.launcher.array_parallelism=0 is not legal"),
        ("hydra.launcher.poll_interval_s=soon", "It is a number, at least 0.001"),
        ("hydra.launcher.executor=pbs", "one of slurm, local, debug"),
    ],
)
def test_what_is_no_key_or_no_value_of_the_launcher_is_refused(word: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_sweep([*OURS, word])
    assert told in str(caught.value)


@pytest.mark.parametrize("executor", ["local", "debug"])
def test_an_image_is_refused_where_the_points_do_not_run_in_it(executor: str) -> None:
    with pytest.raises(ConfigError, match=f"container=x.sif with hydra.launcher.executor={executor}"):
        compose_sweep([*OURS, "hydra.launcher.container=x.sif", f"hydra.launcher.executor={executor}"])


def test_all_mistakes_of_the_launcher_are_said_together() -> None:
    with pytest.raises(ConfigError, match="2 mistakes") as caught:
        compose_sweep([*OURS, "hydra.launcher.partition=x", "hydra.launcher.qos=y"])
    assert "cluster.qos" in str(caught.value)


def test_a_single_run_is_not_started_here_by_mistake() -> None:
    with pytest.raises(ConfigError, match="Add -m"):
        compose(["backend=sim", "model=qwen2.5-7b", "hydra/launcher=slurm"])
