"""The pinned scripts: what they say, and that bash and shellcheck have nothing against them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.launch import sbatch_script
from rollpacker.launch.sbatch_script import memory_mb, sbatch_text
from rollpacker.launch.shape import job_shape
from tests.launch.commands import put_programs
from tests.launch.golden_scripts import FOLDER, golden_scripts
from tests.slurm.requirement import cannot_run

SCRIPTS = golden_scripts()
MODELLED = ["backend=sim", "model=qwen2.5-7b", "cluster=slurm"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_the_pinned_one(name: str) -> None:
    # Read the difference; if it is meant: python -m tests.launch.golden_scripts
    assert SCRIPTS[name] == (FOLDER / name).read_text()


def test_every_pinned_file_is_a_script_that_is_made() -> None:
    assert {file.name for file in FOLDER.glob("*.sh")} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_reads_the_script(name: str) -> None:
    assert subprocess.run(["bash", "-n"], input=SCRIPTS[name], capture_output=True, text=True, check=False).stderr == ""


@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_finds_nothing(name: str) -> None:
    if shutil.which("shellcheck") is None:
        cannot_run("This machine has no shellcheck. It reads every script. Install it: make slurm")
    command = ["shellcheck", "--exclude=SC2016", "-"]  # what srun is given is quoted so that only the node expands it
    found = subprocess.run(command, input=SCRIPTS[name], capture_output=True, text=True, check=False)
    assert found.stdout == ""


def test_what_the_user_leaves_to_slurm_is_not_mentioned() -> None:
    text = _text(*MODELLED)
    for option in ("time", "partition", "account", "qos", "constraint", "mem", "gpus", "exclusive", "wckey", "array"):
        assert f"#SBATCH --{option}" not in text


def test_memory_is_asked_for_in_slurms_megabytes() -> None:
    """Slurm's M is 2^20 bytes, the configuration's GB 10^9."""
    cluster = compose([*MODELLED, "cluster.memory_gb_per_node=2"]).cluster
    assert cluster is not None
    assert memory_mb(cluster) == 1907
    assert "#SBATCH --mem=1907M\n" in _text(*MODELLED, "cluster.memory_gb_per_node=2")
    assert "#SBATCH --mem=0\n" in _text(*MODELLED, "cluster.memory_gb_per_node=0")
    assert "#SBATCH --mem=1M\n" in _text(*MODELLED, "cluster.memory_gb_per_node=0.001"), "not all of a node's"


def test_words_with_blanks_and_quotes_reach_the_ranks_whole(tmp_path: Path) -> None:
    """The script is run by bash, with programs of our own in the place of Slurm's."""
    srun = 'printf "%s\\n" "${@: -7}"; env'
    put_programs(tmp_path, {"squeue": "echo 1234", "scontrol": "echo GraceTime=60", "srun": srun})
    folder = tmp_path / "it's a folder"
    text = sbatch_text(
        job_shape(compose([*MODELLED, 'cluster.environment={GREETING: "it\'s $HOME"}'])),
        name="x",
        folder=folder,
        python=["/a b/python", "$HOME"],
    )
    done = subprocess.run(
        ["bash"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "main"},
    )
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert lines[:7] == ["/a b/python", "$HOME", "-P", "-u", "-m", "submitit.core._submit", str(folder)]
    assert "GREETING=it's $HOME" in lines
    assert "ROLLPACKER_JOB_END=1234" in lines
    assert "ROLLPACKER_GRACE_S=60" in lines
    assert f"ROLLPACKER_REQUEUE_FILE={folder}/7.requeue" in lines


@pytest.mark.parametrize(
    ("rank_code", "asks", "state", "is_requeued"),
    [
        (75, True, "RUNNING", True),
        (75, True, "CANCELLED", False),
        (1, False, "RUNNING", False),
        (0, False, "RUNNING", False),
    ],
)
def test_a_job_is_requeued_when_its_run_asks_and_nobody_cancelled_it(
    rank_code: int, asks: bool, state: str, is_requeued: bool, tmp_path: Path
) -> None:
    requeued = _end_of_job(tmp_path, rank_code, asks=asks, squeue=f"echo {state}", scontrol="true")
    assert requeued == (["requeue 7_1"] if is_requeued else [])


_AWAY = "echo 'Unable to contact slurm controller' >&2; exit 1"


def test_a_slurmctld_that_is_away_for_a_moment_is_asked_again_to_requeue_the_job(tmp_path: Path) -> None:
    scontrol = f"(($(wc --lines <requeued) >= 3)) || {{ {_AWAY}; }}"
    assert _end_of_job(tmp_path, 75, asks=True, squeue=_AWAY, scontrol=scontrol) == ["requeue 7_1"] * 3


def test_a_job_that_was_cancelled_while_slurmctld_was_away_is_not_requeued(tmp_path: Path) -> None:
    squeue = f"[[ -e requeued ]] && echo COMPLETING || {{ {_AWAY}; }}"
    assert _end_of_job(tmp_path, 75, asks=True, squeue=squeue, scontrol=_AWAY) == ["requeue 7_1"]


def test_a_slurmctld_that_stays_away_is_not_asked_for_ever(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbatch_script, "_REQUEUE_FOR_S", 0)
    assert _end_of_job(tmp_path, 75, asks=True, squeue=_AWAY, scontrol=_AWAY) == ["requeue 7_1"]
    assert capfd.readouterr().out == "Slurm has not requeued job 7_1: Unable to contact slurm controller\n"


def test_a_slurm_that_refuses_for_good_is_asked_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    refusal = "Requested operation is presently disabled for job 7"
    scontrol = f"echo '{refusal}' >&2; exit 1"
    assert _end_of_job(tmp_path, 75, asks=True, squeue="echo RUNNING", scontrol=scontrol) == ["requeue 7_1"]
    assert capfd.readouterr().out == f"Slurm has not requeued job 7_1: {refusal}\n"


def _end_of_job(folder: Path, rank_code: int, *, asks: bool, squeue: str, scontrol: str) -> list[str]:
    """Run the script of an array's element to its end; gives which requeues it asks for.

    Args:
        folder: Takes its programs.
        rank_code: How srun ends.
        asks: Whether the run asks for a requeue.
        squeue: The answer on the job's state, in bash.
        scontrol: The answer to a requeue, in bash.
    """
    asking = 'touch "$ROLLPACKER_REQUEUE_FILE";' if asks else ""
    programs = {
        "squeue": f'[[ "$*" == *%T* ]] || {{ echo N/A; exit; }}\n{squeue}',
        "scontrol": f'[[ "$1" == requeue ]] || exit 0\necho "$@" >>requeued\n{scontrol}',
        "sleep": "true",
        "srun": f"{asking} exit {rank_code}",
    }
    put_programs(folder, programs)
    strict = "cluster.setup=['set -euo pipefail']"  # of the user's own lines, not of those behind
    text = _text(*MODELLED, strict, folder=folder, num_jobs=2)
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_JOB_PARTITION": "main",
    }
    done = subprocess.run(["bash"], input=text, cwd=folder, env=environment, text=True, check=False)
    assert done.returncode == rank_code
    requeued = folder / "requeued"
    return requeued.read_text().splitlines() if requeued.exists() else []


@pytest.mark.parametrize(
    ("answer", "grace_s"),
    [
        ("echo 00:01:08", "68"),
        ("echo 1-01:01:01", "90061"),
        ("echo 00:00:00", "0"),
        ("printf '%s\\n' 00:01:08 00:00:30", ""),  # of several QOS
        ("echo 'slurmdbd is down' >&2; exit 1", ""),
    ],
)
def test_where_the_qos_decides_on_preemption_the_grace_time_is_that_of_the_qos(
    answer: str, grace_s: str, tmp_path: Path
) -> None:
    programs = {
        "squeue": "echo N/A",
        "scontrol": '[[ "$2" == config ]] && echo "PreemptType = preempt/qos" || echo GraceTime=15',
        "sacctmgr": f'[[ "$*" == *name=spot* ]] || exit 1; {answer}',
        "srun": 'echo "grace: $ROLLPACKER_GRACE_S"',
    }
    put_programs(tmp_path, programs)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_PARTITION": "main",
        "SLURM_JOB_QOS": "spot",
    }
    text = _text(*MODELLED, folder=tmp_path)
    done = subprocess.run(["bash"], input=text, capture_output=True, env=environment, text=True, check=False)
    assert done.stdout == f"grace: {grace_s}\n"


@pytest.mark.parametrize("name", ["one-node.sh", "elastic-workers.sh"])
@pytest.mark.parametrize(
    "variables",
    [
        {},
        {
            "SQUEUE_STATES": "PENDING",
            "SQUEUE_FORMAT2": "JobID",
            "SCANCEL_INTERACTIVE": "true",
            "SRUN_EXPORT_ENV": "NONE",
            "SRUN_CONTAINER": "bundle",
        },
    ],
)
def test_what_the_submitting_shell_tells_slurms_commands_is_nothing_to_a_job(
    name: str, variables: dict[str, str], tmp_path: Path
) -> None:
    put_programs(tmp_path, {"squeue": "env >>seen", "scontrol": "true", "srun": "env >>seen; exit 1"})
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "main"}
    script = f"set -u; SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=1\n{SCRIPTS[name]}"
    done = subprocess.run(
        ["bash"], input=script, cwd=tmp_path, env=environment | variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines())
    assert seen.keys().isdisjoint(variables)
    assert seen["SLURM_EXPORT_ENV"] == "ALL"


@pytest.mark.parametrize("name", ["one-node.sh", "elastic-workers.sh"])
def test_the_login_by_which_a_job_was_submitted_is_not_that_of_its_commands_and_ranks(
    name: str, tmp_path: Path
) -> None:
    note = 'echo "${0##*/} ${SLURM_JWT-}" >>seen'
    put_programs(tmp_path, {"squeue": note, "scontrol": note, "srun": f"{note}; exit 1"})
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JWT": "token"}
    subprocess.run(["bash"], input=SCRIPTS[name], cwd=tmp_path, env=environment, text=True, check=False)
    seen = (tmp_path / "seen").read_text()
    assert "srun" in seen
    assert "token" not in seen


def test_a_percent_sign_in_a_folder_is_none_of_slurms_patterns() -> None:
    text = _text(*MODELLED, folder=Path("/runs/a%b"))
    assert "#SBATCH --output=/runs/a%%b/%j_0_log.out" in text
    assert "submitit.core._submit /runs/a%b\n" in text, "elsewhere it is as it is"


def _text(*overrides: str, folder: Path = Path("/shared/.submitit"), num_jobs: int = 1) -> str:
    shape = job_shape(compose(list(overrides)))
    return sbatch_text(shape, name="x", folder=folder, python=["python"], num_jobs=num_jobs)
