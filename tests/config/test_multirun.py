from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from omegaconf import DictConfig

from rollpacker.config.mistakes import combined
from rollpacker.config.multirun import (
    compose_sweep,
    config_of_point,
    mistakes_of_points,
    notes_of_points,
    run_sweep,
)
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import ConfigError, StorageFailed

INPUTS = ["model.path=model", "data.path=prompts.jsonl"]


@pytest.fixture(autouse=True)
def _workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Recorder:
    """A task that remembers the points it was given, and fails where told."""

    def __init__(self, failing_seeds: tuple[int, ...] = ()) -> None:
        self.configs: list[RunConfig] = []
        self._failing_seeds = failing_seeds

    def __call__(self, composed: DictConfig) -> None:
        config = config_of_point(composed)
        self.configs.append(config)
        if config.run.seed in self._failing_seeds:
            raise StorageFailed(f"seed {config.run.seed}")


@pytest.mark.parametrize(
    "overrides",
    [
        ["system=verl,rollpacker", "run.seed=1,2"],
        ["run.seed=range(0,3)"],
        ["rollout.num_prompts=16", "system=glob(ours*)"],
        ["run.dir=runs/${hydra:job.num}/${system.name}", "system=verl,rollpacker"],
        ["run.dir='a b-${run.seed}'", "run.seed=0,1"],
        ["data.domain_weights={math: 1}", "trainer.adam_betas=[0.9,0.99],[0.8,0.9]"],
        ["experiment=demo"],
        ["+data.domain_weights.math=1,2"],
        ["cluster=slurm", "~cluster.requeue", "run.seed=0,1"],
    ],
    ids=" ".join,
)
def test_the_points_that_were_judged_are_the_points_that_hydra_runs(overrides: list[str]) -> None:
    sweep = compose_sweep([*INPUTS, *overrides])
    task = Recorder()
    run_sweep(sweep, task)
    assert tuple(task.configs) == sweep.configs


@pytest.mark.parametrize(
    "words", [["run.seed=range(0,1000000)"], ["run.seed=range(0,1000000000000)"], ["run.seed=range(0,100)"]]
)
def test_a_sweep_of_more_points_than_anybody_waits_for_is_refused_at_once(words: list[str]) -> None:
    told: list[int] = []
    with pytest.raises(ConfigError, match="points or more") as caught:
        compose_sweep([*INPUTS, *words, "rollout.num_prompts=range(8,100)"], told.append)
    assert "At most 1,000" in caught.value.allowed
    assert not told


def test_a_sweep_is_the_product_of_its_choices_in_order() -> None:
    configs = compose_sweep([*INPUTS, "system=verl,rollpacker", "run.seed=1,2"]).configs
    assert [(config.system.name, config.run.seed) for config in configs] == [
        (system, seed) for system in ("verl", "rollpacker") for seed in (1, 2)
    ]


def test_every_point_gets_a_directory_of_its_own_in_one_dated_folder() -> None:
    configs = compose_sweep([*INPUTS, "run.seed=0,1", "system=verl,rollpacker"]).configs
    assert [config.run.dir.name for config in configs] == ["0-verl", "1-rollpacker", "2-verl", "3-rollpacker"]
    assert len({config.run.dir.parent for config in configs}) == 1
    assert configs[0].run.dir.parent.match("runs/20*")


def test_a_time_in_a_word_is_that_of_the_launch_however_often_a_point_is_composed() -> None:
    sweep = compose_sweep([*INPUTS, "run.dir=runs/${now:%H-%M-%S-%f}/${run.seed}", "run.seed=0,1"])
    assert len({config.run.dir.parent for config in sweep.configs}) == 1
    task = Recorder()
    run_sweep(sweep, task)
    assert tuple(task.configs) == sweep.configs


def test_hydra_writes_nothing_but_its_record_into_the_folder_that_the_points_share() -> None:
    run_sweep(compose_sweep([*INPUTS, "run.dir=sweep/${system.name}", "system=verl,rollpacker"]), Recorder())
    assert sorted(str(path) for path in Path().rglob("*")) == ["sweep", "sweep/multirun.yaml"]


def test_judging_a_sweep_creates_nothing() -> None:
    compose_sweep([*INPUTS, "run.seed=0,1"])
    assert not list(Path().iterdir())


def test_two_points_in_one_directory_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Points 0 and 1 .* run\.dir=x"):
        compose_sweep([*INPUTS, "run.dir=x", "run.seed=0,1"])
    with pytest.raises(ConfigError, match="both write into"):
        compose_sweep([*INPUTS, "run.dir=x,./x"])


@pytest.mark.parametrize("prefix", ["", "++"])
def test_a_value_that_is_listed_twice_makes_equal_points_which_are_refused_by_its_name(prefix: str) -> None:
    words = [*INPUTS, "run.dir=runs/${system.name}-${run.seed}", "system=verl,rollpacker", f"{prefix}run.seed=0,1,1"]
    with pytest.raises(ConfigError, match=r"Points 1 and 2 .* are the same: it lists \+*run\.seed=1 twice"):
        compose_sweep(words)


@pytest.mark.parametrize("run_dir", ["runs", "runs/${system.name}"])
@pytest.mark.parametrize("seeds", ["0,1", "1,1"])
def test_the_directories_that_are_offered_to_points_which_share_one_keep_their_pattern(
    run_dir: str, seeds: str
) -> None:
    words = [*INPUTS, "system=verl,rollpacker", f"run.seed={seeds}"]
    with pytest.raises(ConfigError, match=r"^Points 0 and 1") as caught:
        compose_sweep([*words, f"run.dir={run_dir}"])
    offered = shlex.split(caught.value.remedy)[-1]
    assert offered.startswith(f"run.dir={run_dir}")
    assert len({config.run.dir for config in compose_sweep([*words, offered]).configs}) == 4


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("run.num_steps=1,-1,-1", "run.num_steps=-1 is out of bounds"),
        ("system=verl,rolpacker", "`rolpacker` is not an option"),
        ("run.seeds=1,2", "`run.seeds` is not a key"),
        ("run.seed=interval(0,1)", "no countable values"),
        ("run.seed=range(0,3,0)", "no countable values"),
        ("system=range(0,3,0)", "no countable values"),
        ("run.seed=range(3,0)", "`run.seed=range(3,0)` has no value"),
        ("system=glob(nosuch*)", "`system=glob(nosuch*)` has no value"),
        ("run.seed=glob(*)", "`run.seed=glob(*)` has no value"),
    ],
)
def test_one_bad_point_refuses_the_sweep_and_is_said_once(override: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_sweep([*INPUTS, override])
    assert str(caught.value).count(problem) == 1


def test_mistakes_of_some_points_that_differ_in_their_first_lines_share_the_others() -> None:
    def mistake(folder: str) -> ConfigError:
        return ConfigError(f"run.dir={folder} holds another run:\n  run.seed: 1 here", "Allowed.", "Do.")

    of_all = ConfigError("No model.", "Allowed.", "Do.")
    points = [[combined([of_all, mistake("x")])], [of_all], [mistake("y"), of_all], [combined([of_all, mistake("x")])]]
    shared, own = mistakes_of_points(points)
    assert shared is of_all
    assert str(own).splitlines() == [
        "points 0, 3: run.dir=x holds another run:",
        "point 2: run.dir=y holds another run:",
        "  run.seed: 1 here",
        "Allowed.",
        "Do.",
    ]


MODELLED = ["backend=sim", "model=qwen2.5-7b", "workload=math"]


def test_a_multirun_over_options_with_sweeps_of_their_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="`experiment=table2` has a sweep of its own: model="):
        compose_sweep(["backend=sim", "experiment=table2,fig04"])
    one = compose_sweep(["backend=sim", "workload=math", "experiment=table2", "setup=8gpus"])
    assert len({config.system.name for config in one.configs}) > 1
    assert len(compose_sweep([*MODELLED, "system=verl,tail"]).configs) == 2


def test_a_word_wins_over_the_sweep_of_an_option_and_loses_nothing() -> None:
    swept = ["backend=sim", "model=qwen2.5-7b", "run.num_steps=2", "experiment=e2e,table1"]
    workloads = [config.workload for config in compose_sweep([*swept, "workload=math"]).configs]
    assert [workload.name for workload in workloads if workload] == ["math", "math"]
    with pytest.raises(ConfigError, match="`experiment=table1` has a sweep of its own: workload="):
        compose_sweep(swept)


def test_a_word_with_a_prefix_of_hydra_says_how_points_of_jobs_resume() -> None:
    jobs = [*MODELLED, "hydra/launcher=slurm", "cluster=slurm", "run.seed=0,1"]
    assert {config.run.resume for config in compose_sweep(jobs).configs} == {"auto"}
    assert {config.run.resume for config in compose_sweep([*jobs, "++run.resume=never"]).configs} == {"never"}


def test_a_failing_point_does_not_stop_the_others_and_is_raised_in_the_end() -> None:
    task = Recorder(failing_seeds=(0, 1))
    with pytest.raises(StorageFailed, match="seed 0"):
        run_sweep(compose_sweep([*INPUTS, "run.seed=0,1,2"]), task)
    assert [config.run.seed for config in task.configs] == [0, 1, 2]


def test_a_note_of_all_points_is_said_once_and_one_of_some_with_their_numbers() -> None:
    notes = [("of all", "of two"), ("of all",), ("of two", "of all", "of one")]
    assert notes_of_points(notes) == ["of all", "points 0, 2: of two", "point 2: of one"]
