"""What is said before anything is submitted, where nothing of Slurm is there but sbatch."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.config.words import replaced
from rollpacker.launch.submissions import Submission, write_submission
from rollpacker.runtime.run import prompt_look
from tests.cli.inputs import tree_of, write_model, write_prompts
from tests.data.files import write_cached
from tests.launch.commands import install_command, put_programs

E2E = [
    *("hydra/launcher=slurm", "cluster=h800", "cluster.has_shared_files=true", "experiment=e2e"),
    *("model.path=model", "data.path=prompts.jsonl", "run.dir=sweep/${system.name}-${hydra:runtime.choices.model}"),
    "model.shape=null",  # the model of these tests is a small one
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with inputs, and an sbatch that must not be called. Prompts are tokenized in this process."""
    put_programs(tmp_path / "bin", {"sbatch": ">called"})
    heads = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 8}
    write_model(tmp_path / "model", max_position_embeddings=40_000, **heads)
    write_prompts(tmp_path / "prompts.jsonl", ("math",) * 128)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(prompt_look, "_in_other_process", lambda function, config: function(config))
    return tmp_path


def test_the_papers_multirun_is_an_array_per_number_of_nodes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree_of(here)
    words = ["system=verl,rlhfuse,rollpacker", "model=qwen2.5-7b,qwen2.5-32b", "hydra.launcher.dry_run=true"]
    assert main(["train", "-m", *E2E, *words]) == 0
    printed = capsys.readouterr().out
    assert "# One array of 3 jobs of 2 nodes each\n" in printed
    assert "# One array of 3 jobs of 8 nodes each\n" in printed
    assert "# point 5 (system=rollpacker model=qwen2.5-32b) in sweep/rollpacker-qwen2.5-32b\n" in printed
    assert "#   node 0: driver, trainer-0 to trainer-7, reward, engine-0 to engine-7\n" in printed
    assert "#   node 1: trainer-8 to trainer-15, engine-8 to engine-15\n" in printed
    assert "#   node 7: trainer-56 to trainer-63, engine-28 to engine-31\n" in printed
    assert f"{here}/sweep/.submitit" in printed
    assert tree_of(here) == before


def test_check_says_what_slurm_would_be_asked_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=qwen2.5-7b,qwen2.5-14b", "cluster.partition=gpu", "cluster.time_limit_min=60"]
    assert main(["check", "-m", *E2E, *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 nodes x 96 CPUs + 8 GPUs and all memory, exclusively in gpu, for 60 minutes; requeued" in printed
    assert "reserving 48.5 CPUs + 32 GPUs of 4 nodes x 96 CPUs + 8 GPUs in Ray" in printed


def test_what_a_job_has_no_use_for_is_said_before_it_waits_in_the_queue(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["model=qwen2.5-7b", "run.dir=sweep/${run.num_steps}", "run.num_steps=1,3", "trainer.warmup_steps=2"]
    assert main(["train", "-m", *replaced(E2E, words), "hydra.launcher.dry_run=true"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in told] == ["note"] * len(told)
    late = [line for line in told if "trainer.warmup_steps" in line]
    assert len(late) == 1
    assert late[0].startswith("note: point 0: trainer.warmup_steps=2 with run.num_steps=1")


def test_the_script_of_rollout_workers_is_shown_and_options_that_it_sets_itself_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*E2E, "system=verl", "elastic=slurm", "elastic.job.partition=spare"]
    assert main(["train", "-m", *words, "hydra.launcher.dry_run=true"]) == 0
    printed = capsys.readouterr().out
    assert "# The array of rollout workers of point 0" in printed
    assert "#SBATCH --dependency=after:JOB\n" in printed
    assert "#SBATCH --partition=spare\n" in printed
    assert main(["train", "-m", *words, "elastic.job.sbatch={time-min: 10, nice: 5}"]) == 2
    told = capsys.readouterr().err
    assert "elastic.job.sbatch names --time-min, which RollPacker sets itself." in told
    assert "nice" not in told


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("gpus: 4", "Write cluster.gpus_per_node=..."),
        ("nodes: 4", "Write cluster.num_nodes=..."),
        ("gpus-per-task: 4", "Write cluster.gpus_per_node=..."),
        ("gpus-per-socket: 4", "Write cluster.gpus_per_node=..."),
        ("tres-per-task: 'gres/gpu:4'", "Write cluster.gpus_per_node=..."),
        ("mem-per-cpu: 1G", "Write cluster.memory_gb_per_node=..."),
        ("mem-per-gpu: 1G", "Write cluster.memory_gb_per_node=..."),
        ("cpus-per-gpu: 4", "Write cluster.cpus_per_node=..."),
        ("ntasks-per-gpu: 1", "Leave out cluster.sbatch.ntasks-per-gpu"),
        ("tasks-per-node: 2", "Leave out cluster.sbatch.tasks-per-node"),
        ("wait: ''", "Leave out cluster.sbatch.wait"),
        ("test-only: ''", "Leave out cluster.sbatch.test-only"),
        ("chdir: /scratch", "Leave out cluster.sbatch.chdir"),
        ("output: log", "Leave out cluster.sbatch.output"),
    ],
)
def test_an_option_that_says_in_another_way_what_the_script_says_is_refused(
    option: str, remedy: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["system=verl", "hydra.launcher.dry_run=true", f"cluster.sbatch={{{option}}}"]
    assert main(["train", "-m", *E2E, *words]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"cluster.sbatch names --{option.partition(':')[0]}, which RollPacker sets itself." in told
    assert remedy in told


@pytest.mark.parametrize(("gres", "kind"), [("gpu:8", "null"), ("gpu:h800:8", "null"), ("lustre:1,gpu:h800:8", "h800")])
def test_gpus_are_asked_for_by_gres_where_it_names_those_of_the_run(
    gres: str, kind: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["system=verl", "hydra.launcher.dry_run=true", f"cluster.gpu_type={kind}"]
    assert main(["train", "-m", *E2E, *words, f"cluster.sbatch={{gres: '{gres}'}}"]) == 0
    printed = capsys.readouterr().out
    assert f"#SBATCH --gres={gres}\n" in printed.replace("'", "")
    assert "--gpus-per-node" not in printed


@pytest.mark.parametrize(
    ("gres", "word", "problem"),
    [
        ("gpu:4", "cluster.gpu_type=null", "the run has 8 GPUs on each of these nodes."),
        ("gpu", "cluster.gpu_type=null", "the run has 8 GPUs on each of these nodes."),
        ("gres:gpu:8", "cluster.gpu_type=null", "the run has 8 GPUs on each of these nodes."),
        ("gpu:4,gpu:a100:4", "cluster.gpu_type=null", "the run has 8 GPUs on each of these nodes."),
        ("gpu:8", "cluster.gpu_type=h800", "the run has 8 GPUs on each of these nodes of the type h800."),
        ("gpu:4", "cluster.gpus_per_node=0", "the run has no GPUs on each of these nodes."),
    ],
)
def test_other_gpus_than_those_of_the_run_are_refused_in_gres(
    gres: str, word: str, problem: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["system=verl", "hydra.launcher.dry_run=true", word, f"cluster.sbatch={{gres: '{gres}'}}"]
    assert main(["train", "-m", *E2E, *words]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"cluster.sbatch.gres={gres}, and {problem}" in told
    assert "Set cluster.gpus_per_node to their number" in told


def test_nodes_of_environments_have_no_gpus_by_gres_either(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gym = ["environment=gym", "environment.env=my_env.py:Maze", "reward=environment", "reward.function=null"]
    words = ["system=verl", *gym, "cluster.environment_nodes.num_nodes=1", "hydra.launcher.dry_run=true"]
    assert main(["train", "-m", *E2E, *words, "cluster.environment_nodes.sbatch={gres: 'gpu:1'}"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "cluster.environment_nodes.sbatch.gres=gpu:1, and the run has no GPUs on each of these nodes." in told
    assert "Leave GPUs out of cluster.environment_nodes.sbatch.gres" in told


def test_gpus_in_the_gres_of_rollout_workers_are_those_that_a_worker_takes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*E2E, "system=verl", "model=qwen2.5-7b", "elastic=slurm", "hydra.launcher.dry_run=true"]
    assert main(["train", "-m", *words, "elastic.job.sbatch={gres: 'gpu:3'}"]) == 2
    assert "Leave GPUs out of elastic.job.sbatch.gres" in capsys.readouterr().err
    assert main(["train", "-m", *words, "elastic.job.sbatch={gres: 'gpu:1'}"]) == 0
    _, _, workers = capsys.readouterr().out.partition("# The array of rollout workers")
    assert "--gres=gpu:1" in workers
    assert "--gpus-per-node" not in workers


@pytest.mark.parametrize(
    ("backend", "num_workers", "has_any"), [("ray", 1, True), ("sim", 1, False), ("ray", 0, False)]
)
def test_only_a_real_run_that_may_take_workers_submits_and_looks_for_some(
    backend: str, num_workers: int, has_any: bool, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["system=verl", "elastic=slurm", f"elastic.max_workers={num_workers}", f"backend={backend}"]
    assert main(["train", "-m", *E2E, "model=qwen2.5-7b", *words, "hydra.launcher.dry_run=true"]) == 0
    printed = capsys.readouterr().out
    assert ["# The array of rollout workers" in printed, "porter=$!" in printed] == [has_any] * 2


@pytest.mark.parametrize(
    ("name", "is_legal"), [("%j", False), ("a%t", False), ("%A", False), ("x%a", False), ("\\b", False), ("a%b", True)]
)
def test_a_folder_that_would_be_another_one_in_the_job_is_refused(
    name: str, is_legal: bool, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["model=qwen2.5-7b", "hydra.launcher.dry_run=true", f"run.dir={name}/${{system.name}}"]
    assert main(["train", "-m", *replaced(E2E, words)]) == (0 if is_legal else 2)
    told = " ".join(capsys.readouterr().err.split())
    assert (f"The path of {here}/{name} has " in told) != is_legal


def test_a_cluster_that_only_sbatch_is_told_of_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*E2E, "system=verl", "hydra.launcher.dry_run=true"]
    assert main(["train", "-m", *words, "cluster.sbatch={clusters: cm4}"]) == 2
    told = capsys.readouterr().err
    assert "cluster.sbatch names --clusters." in told
    assert "export SLURM_CLUSTERS=..." in told
    monkeypatch.setenv("SBATCH_CLUSTERS", "cm4")
    assert main(["train", "-m", *words]) == 2
    assert "export SLURM_CLUSTERS=cm4" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_CLUSTERS", "cm4")
    assert main(["train", "-m", *words]) == 0


@pytest.mark.parametrize("clusters", ["cm4,inter", "all"])
def test_several_clusters_are_refused_before_anything_is_submitted(
    clusters: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("scontrol", "squeue"):  # scontrol takes one cluster, and says so in its own words
        install_command(here, name, "echo 'Only one cluster can be used at a time' >&2; exit 1", monkeypatch)
    monkeypatch.setenv("SLURM_CLUSTERS", clusters)
    assert main(["train", "-m", *E2E, "system=verl", "hydra.launcher.dry_run=true"]) == 2
    assert f"SLURM_CLUSTERS={clusters} names several clusters." in capsys.readouterr().err


def test_a_model_that_the_paper_does_not_have_must_say_how_many_engines(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "-m", *E2E, "model=huggingface"]) == 2
    assert "engine.num_engines=null is not legal" in capsys.readouterr().err


def test_points_that_were_submitted_are_not_submitted_where_slurm_cannot_be_asked(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submission = Submission(job_id="7_0", folder=here / "sweep/.submitit", num_nodes=2, submitted_at=0.0)
    write_submission(here / "sweep/verl-qwen2.5-7b", submission)
    assert main(["train", "-m", *E2E, "system=verl"]) == 1
    told = capsys.readouterr().err
    assert "Slurm does not say whether they still run" in told
    assert "squeue" in told
    assert not (here / "called").exists()


def test_a_job_in_the_queue_trains_the_model_that_the_dry_run_of_its_command_names_on_the_hub(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(here / "hub"))
    write_cached(here / "hub", "model", "Some/Model", {file.name: file for file in (here / "model").iterdir()})
    install_command(here / "bin", "sbatch", "echo 7", monkeypatch)
    words = replaced(E2E, ["system=verl", "model=qwen2.5-7b", "model.path=Some/Model"])
    assert main(["train", "-m", *words, "hydra.launcher.detach=true"]) == 0
    install_command(here / "bin", "squeue", "echo '7|7|PENDING|Priority|0|1||N/A|0|'", monkeypatch)
    capsys.readouterr()
    assert main(["train", "-m", *words, "hydra.launcher.dry_run=true"]) == 0
    assert "point 0 is waiting as job 7: it would not be submitted again\n" in capsys.readouterr().out


def test_without_sbatch_nothing_is_launched_unless_here(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "bin/sbatch").unlink()
    before = tree_of(here)
    assert main(["train", "-m", *E2E, "system=verl,rollpacker"]) == 2
    assert capsys.readouterr().err.count("There is no command `sbatch` here.") == 1
    words = ["hydra/launcher=slurm", "hydra.launcher.executor=local", "hydra.launcher.dry_run=true"]
    assert main(["train", "-m", *words, "backend=sim", "model=qwen2.5-7b", "system=verl,rollpacker"]) == 0
    assert "point 1 (system=rollpacker) would run in processes of this machine" in capsys.readouterr().out
    assert tree_of(here) == before


@pytest.mark.parametrize("has_commands", [False, True])
def test_a_dry_run_without_a_cluster_prints_the_scripts_and_says_what_was_not_checked(
    has_commands: bool, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "sbatch, scontrol and squeue are not all here."
    if has_commands:
        for name in ("scontrol", "squeue"):
            install_command(here / "bin", name, "echo 'Unable to contact slurm controller' >&2; exit 1", monkeypatch)
        reason = "`scontrol show config` failed: Unable to contact slurm controller"
    else:
        (here / "bin/sbatch").unlink()
    words = [word for word in E2E if not word.startswith("cluster.has_shared_files")]
    assert main(["train", "-m", *words, "system=verl", "hydra.launcher.dry_run=true"]) == 0
    printed = capsys.readouterr()
    assert "#SBATCH --nodes=" in printed.out
    assert printed.err.count("not checked against a cluster (partitions, their limits and nodes, and whether") == 1
    assert reason in printed.err


def test_without_a_controller_the_error_says_that_a_dry_run_goes_on(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("scontrol", "squeue"):
        install_command(here / "bin", name, "echo 'Unable to contact slurm controller' >&2; exit 1", monkeypatch)
    assert main(["check", "-m", *E2E, "system=verl"]) == 1
    assert "hydra.launcher.dry_run=true goes on without it" in " ".join(capsys.readouterr().err.split())
    assert main(["check", "-m", *E2E, "system=verl", "hydra.launcher.dry_run=true"]) == 0


def test_a_dry_run_of_submitted_points_without_a_cluster_says_that_they_may_be_in_the_queue(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submission = Submission(job_id="7", folder=here / "sweep/.submitit", num_nodes=2, submitted_at=0.0)
    write_submission(here / "sweep/verl-qwen2.5-7b", submission)
    assert main(["train", "-m", *E2E, "system=verl", "model=qwen2.5-7b", "hydra.launcher.dry_run=true"]) == 0
    first, _, scripts = capsys.readouterr().out.partition("\n")
    assert "submitted before, and Slurm does not say whether they still run" in first
    assert "#SBATCH --nodes=" in scripts


@pytest.mark.parametrize(
    "launcher", [["hydra/launcher=slurm", "cluster=h800", "cluster.has_shared_files=true"], []], ids=["jobs", "here"]
)
def test_what_is_wrong_with_some_points_names_them_and_says_the_rest_once(
    launcher: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["model.path=model", "data.path=prompts.jsonl", "run.dir=sweep/${rollout.num_prompts}", *launcher]
    assert main(["check", "-m", *words, "rollout.num_prompts=64,256,512"]) == 2
    assert capsys.readouterr().err.splitlines()[1:4] == [
        "point 1: prompts.jsonl has 128 prompts, fewer than rollout.num_prompts=256.",
        "point 2: prompts.jsonl has 128 prompts, fewer than rollout.num_prompts=512.",
        "A prompt is in a batch once per epoch, so the data fills at least one batch.",
    ]


def test_who_launches_from_inside_an_image_must_name_it_for_the_nodes(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["system=verl,rollpacker", "hydra.launcher.dry_run=true"]
    for image, shown in (("/shared/rollpacker.sif", "/shared/rollpacker.sif"), ("/my image.sif", "'/my image.sif'")):
        monkeypatch.setenv("APPTAINER_CONTAINER", image)
        assert main(["train", "-m", *E2E, *words]) == 2
        (remedy,) = re.findall("Write (.*)", capsys.readouterr().err)
        assert main(["train", "-m", *E2E, *words, *shlex.split(remedy)]) == 0
        assert f" {shown} env " in capsys.readouterr().out
