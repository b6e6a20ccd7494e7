"""Launching with an sbatch of our own that counts its calls; a real one is in tests/slurm/test_launcher.py."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from omegaconf import DictConfig
from submitit.core.utils import DelayedSubmission

from rollpacker.config.multirun import compose_sweep, config_of_point
from rollpacker.config.words import replaced
from rollpacker.core.errors import ConfigError, StorageFailed, WorldError
from rollpacker.launch import launcher
from rollpacker.launch.batches import batch_script, batches
from rollpacker.launch.job import PointProcess
from rollpacker.launch.launcher import launch
from rollpacker.launch.points import Point, points_of
from rollpacker.launch.queued_points import points_in_queue
from rollpacker.launch.submissions import read_submission
from rollpacker.runtime.run.status import write_status
from rollpacker.terminal import Terminal
from tests.launch.commands import install_command, put_programs
from tests.launch.golden_scripts import E2E, ELASTIC
from tests.launch.runs import a_status

MODELLED = ["backend=sim", "model=qwen2.5-7b", "cluster=slurm", "hydra/launcher=slurm", "run.dir=sweep/${run.seed}"]
WITH_WORKERS = [*ELASTIC, "hydra/launcher=slurm", "run.dir=sweep/a"]

SEEN: list[DictConfig] = []


def see(config: DictConfig) -> None:
    SEEN.append(config)


def refuse(_: DictConfig) -> None:
    raise ConfigError("wrong")


def lose(_: DictConfig) -> None:
    raise ZeroDivisionError("lost")


def interrupt(_: DictConfig) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An sbatch that numbers its jobs from 1; a file `refuse`, or for workers `refuse-workers`, has it refuse."""
    folder = tmp_path / "bin"
    body = (
        'if [[ -e refuse ]]; then echo "sbatch: error: $(<refuse)" >&2; exit 1; fi\n'
        'if [[ $(<"$2") == *dependency=after* && -e refuse-workers ]]; then echo "invalid qos" >&2; exit 1; fi\n'
        'echo x >>calls; read -r -d "" all <calls; lines=(${all}); echo "${#lines[@]};cluster"'
    )
    put_programs(folder, {"sbatch": body})
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder / "sbatch"


def _launch(*words: str, base: Sequence[str] = MODELLED) -> list[Path]:
    sweep = compose_sweep(replaced(base, words))
    assert sweep.launcher is not None
    launch(points_of(sweep), see, sweep.launcher, sweep.folder)
    return [config.run.dir for config in sweep.configs]


def test_every_element_of_an_array_has_its_own_call(sbatch: Path) -> None:
    dirs = _launch("run.seed=3,4", "system=verl")
    submissions = [read_submission(run_dir) for run_dir in dirs]
    assert [submission and submission.job_id for submission in submissions] == ["1_0", "1_1"]
    assert [submission and submission.cluster for submission in submissions] == ["", ""]
    SEEN.clear()
    for job_id in ("1_0", "1_1"):
        DelayedSubmission.load(f"sweep/.submitit/{job_id}_submitted.pkl").result()
    assert [config_of_point(config).run.seed for config in SEEN] == [3, 4]
    assert (
        config_of_point(SEEN[0])
        == compose_sweep(
            [
                "backend=sim",
                "model=qwen2.5-7b",
                "cluster=slurm",
                "run.dir=sweep/3",
                "run.seed=3",
                "system=verl",
                "run.resume=auto",
            ]
        ).configs[0]
    )


def test_what_sbatch_refuses_leaves_nothing_but_what_was_submitted_before(sbatch: Path) -> None:
    Path("refuse").write_text("invalid account")
    with pytest.raises(WorldError, match="invalid account") as error:
        _launch("run.seed=0")
    assert sorted(path.name for path in Path("sweep").rglob("*")) == [".submitit", "launch.lock"]
    assert error.value.remedy.startswith("Change what `cluster` asks for; launch again")


@pytest.mark.parametrize("complaint", ["Invalid job array specification", "Job violates policy (job submit limit)"])
def test_of_too_many_jobs_fewer_are_to_be_submitted(complaint: str, sbatch: Path) -> None:
    Path("refuse").write_text(complaint)
    with pytest.raises(WorldError, match="or give fewer points at once"):
        _launch("run.seed=0,1")


def _put_in_queue(job: str, sbatch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = f"{job}|{job}|PENDING|Priority|0|1||N/A|0|"
    install_command(sbatch.parent, "squeue", f"echo '{row}'", monkeypatch)


def test_a_command_corrected_while_its_job_waits_is_refused_and_settings_that_change_no_result_are_told(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run.seed=0", "rollout.num_prompts=8", "run.num_steps=2"]
    _launch(*words)
    _put_in_queue("1", sbatch, monkeypatch)
    with pytest.raises(
        ConfigError, match=r"^point 0 is waiting as job 1, .* rollout.num_prompts=8 \(here 16\)"
    ) as error:
        _launch(*replaced(words, ["rollout.num_prompts=16"]))
    assert error.value.remedy.startswith("scancel 1, then launch again;")
    capsys.readouterr()
    _launch(*words)
    assert "point 0 is waiting as job 1: not submitted again\n" in capsys.readouterr().out
    _launch(*replaced(words, ["run.num_steps=3", "cluster.cpus_per_node=7"]))
    said = capsys.readouterr().out
    assert "job 1, which keeps run.num_steps=2, cluster.cpus_per_node=1: not submitted again\n" in said
    assert len(Path("calls").read_text().split()) == 1


def _end_slowly(job: str, after: str, sbatch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have squeue list the job as COMPLETING when it is asked for the first time, and then print `after`."""
    row = f"{job}|{job}|COMPLETING|None|0|1|gpu01|1795267612|0|"
    squeue = f"if [[ -e asked ]]; then {after}; else echo '{row}'; fi; echo x >>asked"
    install_command(sbatch.parent, "squeue", squeue, monkeypatch)
    install_command(sbatch.parent, "sacct", "", monkeypatch)


@pytest.mark.parametrize("after", [":", "[[ -e failed ]] || { echo x >failed; exit 1; }"], ids=["over", "unreachable"])
def test_a_point_whose_job_is_ending_is_submitted_after_the_others_when_that_job_is_over(
    after: str, sbatch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["hydra.launcher.detach=true", "hydra.launcher.poll_interval_s=0.01"]
    _launch("run.seed=0", *words)
    _end_slowly("1", after, sbatch, monkeypatch)
    capsys.readouterr()
    _launch("run.seed=0,1", *words)
    assert capsys.readouterr().out.startswith(
        "point 1 (run.seed=1) is job 2, submitted for 1 node\n"
        "Waiting until jobs that are ending have left the queue: 1\n"
        "point 0 (run.seed=0) is job 3, submitted for 1 node\n"
    )


def test_a_run_that_finishes_while_its_job_is_ending_is_not_submitted_again(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run.seed=0", "hydra.launcher.detach=true", "hydra.launcher.poll_interval_s=0.01"]
    _launch(*words)
    write_status(Path("later"), a_status("finished"))
    _end_slowly("1", 'echo "$(<later/status.json)" >sweep/0/status.json', sbatch, monkeypatch)
    _launch(*words)
    assert "have left the queue: 1\npoint 0 has finished: skipped\n" in capsys.readouterr().out
    assert len(Path("calls").read_text().split()) == 1


def test_a_job_that_slurm_requeues_after_its_end_is_not_submitted_again(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run.seed=0", "hydra.launcher.detach=true", "hydra.launcher.poll_interval_s=0.01"]
    _launch(*words)
    _end_slowly("1", "echo '1|1|PENDING|BeginTime|0|1||N/A|1|'", sbatch, monkeypatch)
    _launch(*words)
    assert "point 0 is requeued as job 1: not submitted again\n" in capsys.readouterr().out
    assert len(Path("calls").read_text().split()) == 1


def test_a_launch_does_not_wait_without_end_for_a_job_that_is_ending(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _launch("run.seed=0")
    monkeypatch.setattr(launcher, "_END_WAIT_S", 0.0)
    for seeds, has_others in (("0", False), ("0,1", True)):
        _end_slowly("1", ":", sbatch, monkeypatch)
        Path("asked").unlink(missing_ok=True)
        capsys.readouterr()
        with pytest.raises(WorldError, match=r"^Jobs are still ending: 1\.") as error:
            _launch(f"run.seed={seeds}", "hydra.launcher.detach=true")
        assert error.value.remedy == "Launch again when `squeue --jobs=1` lists none."
        assert ("the other points are submitted" in error.value.allowed) == has_others
        assert ("Cancel them:  scancel 2\n" in capsys.readouterr().out) == has_others
    assert len(Path("calls").read_text().split()) == 2  # the other point's job is the second


@pytest.mark.parametrize(("seeds", "is_told"), [("0", False), ("0,1", True)])
def test_ctrl_c_while_jobs_are_ending_tells_of_those_that_were_submitted(
    seeds: str, is_told: bool, sbatch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _launch("run.seed=0")
    _end_slowly("1", "kill -INT $PPID", sbatch, monkeypatch)
    capsys.readouterr()
    with pytest.raises(KeyboardInterrupt):
        _launch(f"run.seed={seeds}", "hydra.launcher.poll_interval_s=0.01")
    said = capsys.readouterr().out
    assert ("the jobs stay" in said) == ("Cancel them:  scancel 2\n" in said) == is_told


def test_a_run_that_has_finished_is_not_submitted_again_while_its_job_is_ending(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_dir,) = _launch("run.seed=0")
    _end_slowly("1", ":", sbatch, monkeypatch)
    write_status(run_dir, a_status("finished", updated_at=time.time()))
    words = ["backend=sim", "model=qwen2.5-7b", "cluster=slurm", f"run.dir={run_dir}", "run.resume=auto"]
    config = compose_sweep(words).configs[0]
    assert points_in_queue([Point(number=0, name="", config=config)]) == ({0: "ending as job 1"}, {})


def test_of_the_settings_that_a_job_keeps_nothing_secret_is_told_and_the_end_of_long_values(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secrets = ["cluster.environment={TOKEN: secret}", "cluster.setup=['export TOKEN=secret']"]
    _launch("run.seed=0", *secrets, f"cluster.sbatch={{comment: {'x' * 90}}}")
    _put_in_queue("1", sbatch, monkeypatch)
    _launch("run.seed=0")
    said = capsys.readouterr().out
    assert "secret" not in said
    assert f"cluster.sbatch=...{'x' * 58}'}}" in said
    assert "its own cluster.setup, its own cluster.environment" in said


def test_a_launch_that_ends_while_runs_are_told_of_their_jobs_leaves_none_that_trains(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("sweep").mkdir()
    Path("sweep/4").touch()  # where the second run wants its folder
    with pytest.raises(StorageFailed, match=r"sweep/4 could not be written") as error:
        _launch("run.seed=3,4")
    assert re.fullmatch(r"scancel 1\. .*; then launch again", error.value.remedy)
    assert not list(Path("sweep/.submitit").rglob("*.pkl"))
    _put_in_queue("1_0", sbatch, monkeypatch)
    with pytest.raises(ConfigError, match="point 0 is waiting as job 1_0, which has no settings: its launch was inter"):
        _launch("run.seed=3")


def test_on_a_full_disk_nothing_is_submitted_and_the_folder_is_named(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(DelayedSubmission, "dump", fail)
    with pytest.raises(StorageFailed, match=r"sweep/\.submitit could not be written: the disk is full"):
        _launch("run.seed=0")
    assert not Path("calls").exists()


def test_commands_to_copy_are_right_for_a_folder_with_blanks(sbatch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _launch("run.dir='my runs/${run.seed}'", "run.seed=3")
    assert "See them:     rollpacker jobs 'my runs'\nCancel them:  scancel 1\n" in capsys.readouterr().out


def test_workers_that_are_held_when_their_runs_job_has_ended_are_cancelled_by_the_next_launch(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _launch(base=WITH_WORKERS)
    assert "\nCancel them:  scancel 1 2\n" in capsys.readouterr().out
    assert "\n#SBATCH --job-name=workers-a\n" in Path("sweep/.submitit/2_submission.sh").read_text()
    for name, script in (("squeue", ""), ("sacct", ""), ("scancel", "echo $* >>cancelled")):
        install_command(sbatch.parent, name, script, monkeypatch)
    _launch(base=WITH_WORKERS)
    assert Path("cancelled").read_text() == "--name=workers-a 2\n"
    assert "\nCancel them:  scancel 3 4\n" in capsys.readouterr().out


def test_workers_that_sbatch_refused_are_added_to_the_job_in_the_queue_by_the_next_launch(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("refuse-workers").touch()
    with pytest.raises(WorldError, match="invalid qos") as error:
        _launch(base=WITH_WORKERS)
    assert "`elastic.job`" in error.value.remedy
    Path("refuse-workers").unlink()
    monkeypatch.setattr(launcher, "points_in_queue", lambda points: ({points[0].number: "PENDING as job 1"}, {}))
    _launch(base=WITH_WORKERS)
    assert "not submitted again\nits rollout workers are array 2\n" in capsys.readouterr().out
    array, _ = Path("sweep/.submitit/1.elastic").read_text().splitlines()
    assert array == "2"
    _launch(base=WITH_WORKERS)
    assert "array" not in capsys.readouterr().out
    assert len(Path("calls").read_text().split()) == 2


def test_an_array_of_workers_that_no_file_can_tell_of_is_named(sbatch: Path) -> None:
    Path("sweep/.submitit/1.elastic").mkdir(parents=True)
    with pytest.raises(StorageFailed, match=r"1\.elastic could not be written") as error:
        _launch(base=WITH_WORKERS)
    assert error.value.allowed.startswith("Job 2 was submitted before that")
    assert re.fullmatch(r"scancel 2\. .*; then launch again", error.value.remedy)


def test_a_job_whose_workers_are_submitted_now_is_not_said_to_keep_their_settings(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("refuse-workers").touch()
    with pytest.raises(WorldError, match="invalid qos"):
        _launch("elastic.job.qos=low", base=WITH_WORKERS)
    Path("refuse-workers").unlink()
    _put_in_queue("1", sbatch, monkeypatch)
    for qos, told in (("high", ": not"), ("other", ", which keeps elastic.job.qos=low: not")):
        capsys.readouterr()
        _launch(f"elastic.job.qos={qos}", base=WITH_WORKERS)
        assert f"is waiting as job 1{told} submitted again\n" in capsys.readouterr().out
    assert "#SBATCH --qos=high\n" in Path("sweep/.submitit/2_submission.sh").read_text()


@pytest.mark.parametrize(("has_workers", "asked"), [(False, {"slept"}), (True, {"slept", "squeue", "scontrol"})])
def test_points_with_and_without_workers_share_an_array_and_only_porters_of_the_former_ask_slurm(
    has_workers: bool, asked: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["hydra/launcher=slurm", f"run.dir={tmp_path}/sweep/${{run.seed}}"]
    plain, elastic = compose_sweep([*E2E, *given, "run.seed=0,1"]), compose_sweep([*ELASTIC, *given, "run.seed=2"])
    assert plain.launcher is not None
    [batch] = batches([*points_of(plain), *points_of(elastic)])
    setup, _, _ = batch_script(batch, plain.launcher, plain.folder).partition("porter=$!")
    porter = setup[setup.index("\nelastic=") :]
    if has_workers:
        (plain.folder / ".submitit").mkdir(parents=True)
        (plain.folder / ".submitit" / "1_2.elastic").write_text(f"2\n{tmp_path}\n")
    install_command(tmp_path, "sleep", "echo slept >>asked; [[ $(wc -l <asked) -lt 3 ]]", monkeypatch)
    for name in ("squeue", "scontrol"):
        install_command(tmp_path, name, f"echo {name} >>asked", monkeypatch)
    environment = {"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "2", "PATH": os.environ["PATH"]}
    subprocess.run(["bash", "-c", f"{porter}\nwait"], cwd=tmp_path, env=environment, timeout=60, check=True)
    assert set((tmp_path / "asked").read_text().split()) == asked


def test_while_accounting_does_not_answer_only_what_squeue_has_forgotten_is_submitted_again(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _launch("run.seed=3,4")
    squeue = "[[ -e unreachable ]] && exit 1; echo '1_0|2|RUNNING|None|0|1|gpu01|1795267612|0|'"
    install_command(sbatch.parent, "squeue", squeue, monkeypatch)
    install_command(sbatch.parent, "sacct", "echo 'Connection refused' >&2; exit 1", monkeypatch)
    capsys.readouterr()

    _launch("run.seed=3,4")

    said = capsys.readouterr().out
    assert "point 0 (run.seed=3) is starting as job 1_0: not submitted again\n" in said
    assert "point 1 (run.seed=4) is job 2, submitted for 1 node\n" in said

    Path("unreachable").touch()
    with pytest.raises(WorldError, match="Slurm does not say whether they still run"):
        _launch("run.seed=3,4")
    assert len(Path("calls").read_text().split()) == 2


def test_two_launches_do_not_submit_at_the_same_time(sbatch: Path) -> None:
    Path("sweep/.submitit").mkdir(parents=True)
    with Path("sweep/.submitit/launch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(WorldError, match="Another launch is submitting points of sweep"):
            _launch("run.seed=0")
    assert not Path("calls").exists()


def test_ctrl_c_in_the_middle_of_a_line_still_tells_that_the_jobs_stay(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt_a_print(points: Sequence[Point], poll_interval_s: float, console: Terminal) -> None:
        console.__enter__()  # where rich left it as the signal came
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher, "has_slurm", lambda: True)
    monkeypatch.setattr(launcher, "wait_for", interrupt_a_print)
    with pytest.raises(KeyboardInterrupt):
        _launch("run.seed=3")
    assert "the jobs stay" in capsys.readouterr().out


@pytest.mark.parametrize(("task", "exit_code"), [(refuse, 2), (lose, 70), (interrupt, 130)])
def test_a_job_ends_with_the_command_lines_exit_code(task: object, exit_code: int, sbatch: Path) -> None:
    config = compose_sweep(["backend=sim", "model=qwen2.5-7b"]).configs[0]
    with pytest.raises(SystemExit) as caught:
        PointProcess(task, config)()  # type: ignore[arg-type]
    assert caught.value.code == exit_code


def test_a_jobs_number_is_found_behind_what_a_sites_own_sbatch_prints(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "echo '** 512 GPU hours are left **'; echo 2024; exec ./real-sbatch \"$@\""
    sbatch.rename("real-sbatch")
    install_command(sbatch.parent, "sbatch", said, monkeypatch)
    (run_dir,) = _launch("run.seed=0")
    submission = read_submission(run_dir)
    assert submission is not None
    assert submission.job_id == "1"


def test_an_sbatch_that_prints_no_number_is_quoted_and_a_person_is_told_to_look(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_command(sbatch.parent, "sbatch", "echo 'Submitted batch job 7'", monkeypatch)
    with pytest.raises(WorldError, match="printed no job's number: Submitted batch job 7") as error:
        _launch("run.seed=0")
    assert "squeue --me" in error.value.remedy
    assert sorted(path.name for path in Path("sweep").rglob("*")) == [".submitit", "launch.lock"]
