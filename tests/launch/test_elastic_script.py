"""What the script of a worker's job does about the exit codes of its program, with programs of our own as Slurm's."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.launch.elastic_script import elastic_script, porter
from tests.launch.commands import put_programs
from tests.launch.golden_scripts import ELASTIC

NO_RUN, RUN_LEFT, NOT_JOINED, MAY_RETURN = "75", "76", "77", "10"
ALIVE, GONE = "RUNNING", ""
UNKNOWN, NO_ANSWER = "slurm_load_jobs error: Invalid job id specified", "slurm_load_jobs error: Socket timed out"
"""What squeue complains of."""


def asked_of_slurm(folder, exit_codes: list[str], state: str, scontrol: str = "true") -> list[str]:
    """Run the script, whose program ends with these codes; gives what it asks of Slurm, and how often it waits."""
    strict = "cluster.setup=['set -euo pipefail']"  # of the user's own lines, not of those behind
    config = compose([*ELASTIC, f"run.dir={folder}", "elastic.job.patience_min=5", strict])
    programs = {
        "srun": 'code=$(head -n 1 codes); sed -i 1d codes; exit "$code"',
        "squeue": f'echo "{state}" >&2; exit 1'
        if "error" in state
        else f'[[ "$*" == *4711* ]] && echo "{state}"; exit 0',
        "scontrol": f'[[ "$1" == show ]] && exit\necho "scontrol $*" >> asked\n{scontrol}',
        "scancel": 'echo "scancel $*" >> asked',
        "sleep": 'echo "sleep" >> asked',
    }
    put_programs(folder, programs)
    (folder / "codes").write_text("\n".join([*exit_codes, "99", ""]))
    (folder / "asked").touch()
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_ARRAY_JOB_ID": "4712",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_JOB_PARTITION": "spare",
    }
    script = elastic_script(config, job_id="4711", name="workers", folder=folder, python=["python"])
    done = subprocess.run(
        ["bash"], input=script, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    left = (folder / "codes").read_text().split()
    assert left == ["99"] or done.returncode == 99, "it ended before its program had, or goes on after that"
    return (folder / "asked").read_text().splitlines()


def test_a_worker_waits_on_as_long_as_its_runs_job_is_alive_and_then_gives_its_node_back(tmp_path):
    asked = asked_of_slurm(tmp_path, [NO_RUN] * 3, ALIVE)
    assert asked == ["sleep", "sleep", "scontrol requeuehold 4712_3", "sleep"]


def test_the_patience_begins_anew_when_a_run_has_taken_the_worker(tmp_path):
    asked = asked_of_slurm(tmp_path, [NO_RUN, NO_RUN, RUN_LEFT, NO_RUN, NO_RUN, NO_RUN], ALIVE)
    assert asked == [*["sleep"] * 5, "scontrol requeuehold 4712_3", "sleep"]


def test_a_worker_whose_ray_does_not_join_is_begun_again_and_after_three_times_gives_its_node_back(tmp_path):
    asked = asked_of_slurm(tmp_path, [NOT_JOINED, NO_RUN, NOT_JOINED, RUN_LEFT, *[NOT_JOINED] * 3], ALIVE)
    assert asked == [*["sleep"] * 6, "scontrol requeuehold 4712_3", "sleep"]


@pytest.mark.parametrize(
    "state",
    [
        *("PENDING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"),
        *("REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"),
    ],
)
def test_a_job_that_leaves_its_nodes_or_is_held_may_run_again_and_keeps_its_workers(tmp_path, state):
    assert asked_of_slurm(tmp_path, [NO_RUN, MAY_RETURN], state) == ["sleep", "scontrol requeue 4712_3", "sleep"]


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL"])
def test_the_array_ends_when_its_runs_job_is_over(tmp_path, state):
    assert asked_of_slurm(tmp_path, [NO_RUN], state) == ["scancel 4712"]


@pytest.mark.parametrize("state", [GONE, UNKNOWN])
@pytest.mark.parametrize("code", [NO_RUN, RUN_LEFT, NOT_JOINED, MAY_RETURN])
def test_the_array_ends_when_its_runs_job_is_gone(tmp_path, code, state):
    assert asked_of_slurm(tmp_path, [code], state) == ["scancel 4712"]


def test_a_slurm_that_does_not_answer_has_not_said_that_the_run_is_gone(tmp_path):
    assert asked_of_slurm(tmp_path, [NO_RUN, MAY_RETURN], NO_ANSWER) == ["sleep", "scontrol requeue 4712_3", "sleep"]


def test_a_worker_that_was_told_so_queues_again_at_once_and_is_not_held(tmp_path):
    assert asked_of_slurm(tmp_path, [MAY_RETURN], ALIVE) == ["scontrol requeue 4712_3", "sleep"]


@pytest.mark.parametrize(
    ("codes", "command"), [([MAY_RETURN], "requeue"), ([NOT_JOINED] * 3, "requeuehold")], ids=["requeue", "requeuehold"]
)
def test_a_slurm_that_does_not_answer_is_asked_again_to_requeue_the_worker(tmp_path, codes, command):
    is_third = f"(($(grep --count {command} asked) >= 3))"
    asked = asked_of_slurm(tmp_path, codes, NO_ANSWER, scontrol=is_third)
    asks = f"scontrol {command} 4712_3"
    assert asked == ["sleep"] * (len(codes) - 1) + [asks, "sleep"] * 3


def test_those_that_are_held_are_released_until_the_next_attempt_has_wished_for_them(tmp_path):
    place = tmp_path / "it's run #1" / "elastic"
    place.mkdir(parents=True)
    wish = place / "wish.json"
    wish.write_text('{"num_workers": 2}')  # the last attempt's
    (tmp_path / "4711.elastic").write_text(f"4712\n{place}\n")
    (tmp_path / "turn").write_text("0")
    programs = {
        "sleep": 'turn=$(< turn); echo $((turn + 1)) > turn; [[ $turn != 2 ]] || echo 3 > "$WISH"; ((turn < 4))',
        "scontrol": 'echo "$*" >> asked',
        "squeue": "echo '4712_0|RUNNING|None|1'",
    }
    put_programs(tmp_path, programs)
    subprocess.run(
        ["bash"],
        input="\n".join([*porter(tmp_path, "4711", 30), 'wait "$porter"', ""]),
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "WISH": str(wish)},
        text=True,
        timeout=60,
        check=False,
    )
    throttle = "update JobId=4712 ArrayTaskThrottle=3"
    assert (tmp_path / "asked").read_text().splitlines() == [*["release 4712"] * 3, throttle]
    assert (place / "slurm.txt").read_text() == "4712\n4712_0|RUNNING|None|1\n"


def test_a_folder_with_blanks_quotes_and_a_hash_reaches_slurm_whole():
    folder = Path("/shared/it's run #1")
    script = elastic_script(compose(ELASTIC), job_id="4711", name="workers", folder=folder, python=["python"])
    (option,) = [line.removeprefix("#SBATCH ") for line in script.splitlines() if "--output" in line]
    assert shlex.split(option, comments=True) == [f"--output={folder}/%A_%a_worker.out"]


def test_a_worker_shares_its_node_and_is_requeued_whatever_the_runs_own_job_does():
    config = compose([*ELASTIC, "cluster.exclusive=true", "cluster.requeue=false"])
    script = elastic_script(config, job_id="4711", name="workers", folder=Path("/shared"), python=["python"])
    options = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    assert "requeue" in options
    assert not {"no-requeue", "exclusive"} & set(options)
