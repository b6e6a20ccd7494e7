"""The image of Singularity.def, really built and run. What was not built here: the CUDA base and the CUDA wheels."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.config.sections.cluster import ContainerSection
from rollpacker.demo.inputs import Inputs, make_inputs
from rollpacker.demo.warm_start import make_model
from rollpacker.launch.container import container_command
from rollpacker.launch.submissions import read_submission
from rollpacker.metrics.event_log import attempt_paths
from rollpacker.metrics.tables import read_table
from rollpacker.runtime.run.status import read_status
from slurm.mini_cluster import PREEMPTIBLE_PARTITIONS, MiniCluster
from tests.e2e.launched import num_recorded_steps
from tests.e2e.processes import MARK, Process, all_processes, engines_of
from tests.slurm.images import BUILD, EXEC_OPTIONS, EXTRAS, ROOT, Image, built_image
from tests.slurm.requirement import require_slurm
from tests.slurm.small_runs import PATIENT_START

pytestmark = pytest.mark.timeout(1500)  # the first test that asks for the image waits for its build

NUM_STEPS = 30
"""Long enough to be preempted in the middle."""
MODELLED = [
    "backend=sim", "model=qwen2.5-7b", "hardware=h800", "workload=math", "rollout.num_prompts=8",
    "rollout.num_responses=2", "run.num_steps=2", "run.progress=none",
]  # fmt: skip


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    yield from built_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """A model that has hardly learnt anything, and prompts."""
    made = Inputs(folder=tmp_path_factory.mktemp("walk"))
    make_inputs(made, partial(make_model, num_iterations=3))
    return made


@pytest.fixture
def cluster(image: Image) -> Iterator[MiniCluster]:
    """A cluster whose nodes started after the image was there, so that they see it."""
    require_slurm()
    with MiniCluster() as started:
        yield started


def test_the_image_passes_its_own_test_while_it_is_built(image: Image) -> None:
    assert "Running testscript" in image.log
    assert "the image works" in image.log
    assert f"installing RollPacker with {EXTRAS}" in image.log


def test_the_image_says_what_it_is_and_how_it_is_used(image: Image) -> None:
    labels = json.loads(image.inspect("--json"))["data"]["attributes"]["labels"]
    assert labels["org.opencontainers.image.title"] == "RollPacker"
    assert labels["rollpacker.extras"] == EXTRAS
    assert labels["org.opencontainers.image.revision"] not in {"", "unknown", "{{ REVISION }}"}
    assert "apptainer run --nv rollpacker.sif train --help" in image.inspect("--helpfile")


def test_running_the_image_runs_rollpacker(image: Image) -> None:
    assert image.run("--version").startswith("rollpacker ")


def test_nothing_that_the_building_machine_lent_is_left_in_the_image(image: Image) -> None:
    assert list((image.path / "mnt").iterdir()) == []
    assert not (image.path / "etc/pip.conf").exists()
    assert not (image.path / "root/.config").exists()
    assert not (image.path / "root/.cache").exists()


def test_the_image_has_the_versions_of_the_constraints(image: Image) -> None:
    packages = ("ray", "wandb", "megatron-core")
    script = f"import importlib.metadata as m; print(*(f'{{n}}=={{m.version(n)}}' for n in {packages}))"
    pinned = (ROOT / ".ci/constraints.txt").read_text().splitlines()
    for version in image.execute("python3", "-c", script).split():
        assert version in pinned


def test_another_environments_packages_do_not_reach_the_image(image: Image, tmp_path: Path) -> None:
    (tmp_path / "rollpacker.py").write_text("raise SystemExit('not the image')")
    leaky = {"PYTHONPATH": str(tmp_path), "VIRTUAL_ENV": "/elsewhere", "LD_LIBRARY_PATH": "/elsewhere"}
    script = "import rollpacker; print(rollpacker.__file__)"
    said = image.execute("python3", "-c", script, environment=leaky)
    assert said.startswith("/opt/rollpacker/venv/")


def test_a_modelled_run_in_the_image_is_the_one_outside_byte_for_byte(image: Image, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    scratch = tmp_path / "scratch"
    for folder in (inside, scratch):
        folder.mkdir()
    words = container_command(
        _section(image), has_gpus=False, write_paths=[inside], read_paths=(), scratch=["$NOT_SET_HERE", str(scratch)]
    )
    _run([*words, "-m", "rollpacker.cli", "train", *MODELLED, f"run.dir={inside}"], cwd=ROOT)
    _run([ROOT / ".venv/bin/python", "-m", "rollpacker.cli", "train", *MODELLED, f"run.dir={outside}"], cwd=ROOT)
    events = [sorted((folder / "events").iterdir()) for folder in (inside, outside)]
    assert [file.name for file in events[0]] == [file.name for file in events[1]] != []
    for file, other in zip(*events, strict=True):
        assert file.read_bytes() == other.read_bytes()


def test_ranks_see_the_variables_the_node_scratch_and_the_image_alone(image: Image, tmp_path: Path) -> None:
    reads = tmp_path / "model"
    reads.mkdir()
    section = _section(image)
    words = container_command(
        section, has_gpus=True, write_paths=[tmp_path], read_paths=[reads], scratch=[str(tmp_path)]
    )
    script = f"""
import json, os, rollpacker, tempfile
open("/tmp/mark", "w").close()
access = [os.access(path, os.W_OK) for path in ("/dev/shm", {str(reads)!r}, {str(tmp_path)!r})]
print(json.dumps([dict(os.environ), tempfile.gettempdir(), rollpacker.__file__, *access]))
"""
    variables, temporary, package, *access = json.loads(_run([*words, "-c", script], cwd=ROOT).stdout)
    assert section.environment.items() <= {**dict.fromkeys(section.environment, ""), **variables}.items()
    assert temporary == "/tmp"  # noqa: S108
    assert (tmp_path / "rollpacker-0/mark").exists()
    assert package.startswith("/opt/rollpacker/venv/"), "the current folder has a rollpacker too"
    assert access == [True, False, True]


@pytest.mark.e2e
def test_a_multirun_trains_on_two_nodes_inside_the_image_and_what_is_preempted_there_is_requeued_and_goes_on(
    image: Image, cluster: MiniCluster, inputs: Inputs, tmp_path: Path
) -> None:
    mark, sweep = os.urandom(8).hex(), tmp_path / "sweep"
    launch = subprocess.Popen(
        [
            *(sys.executable, "-m", "rollpacker.cli", "train", "-m", "hydra/launcher=slurm", "cluster=mini"),
            *(f"hydra.launcher.container={image.path}", f"cluster.container.options=[{','.join(EXEC_OPTIONS)}]"),
            "cluster.container.python=/opt/rollpacker/venv/bin/python3",  # this machine has none there
            *("hydra.launcher.array_parallelism=1", "hydra.launcher.poll_interval_s=1", "system=verl"),
            *("experiment=demo", f"model.path={inputs.model}", f"data.path={inputs.prompts}", "engine.num_engines=2"),
            *("rollout.num_prompts=4", "rollout.max_response_tokens=32", f"run.num_steps={NUM_STEPS},1", PATIENT_START),
            f"cluster.partition={PREEMPTIBLE_PARTITIONS['CANCEL']}",
            "run.checkpoint_every_steps=0",  # what a run goes on from is what it wrote when it was told to leave
            f"run.dir={sweep}/${{run.num_steps}}",
        ],
        env={**cluster.environment, MARK: mark, "COLUMNS": "200"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seen: set[tuple[str, str]] = set()
    preempting = ""
    while launch.poll() is None:
        engines = {pid: each for run in sweep.glob("*") for pid, each in _engines(run, mark).items()}
        seen |= {(each.variable("SLURMD_NODENAME"), each.variable("APPTAINER_CONTAINER")) for each in engines.values()}
        if not preempting and num_recorded_steps(sweep / f"{NUM_STEPS}") >= 2:
            for pid in engines:
                os.kill(pid, signal.SIGSTOP)  # until Slurm's signal, with which SIGCONT comes
            preempting = cluster.submit("-N2", "--exclusive", "-p", "main", "-o", "/dev/null", script="sleep 1")
        time.sleep(0.5)
    assert launch.stdout is not None
    screen = launch.stdout.read()
    for num_steps, num_attempts, told in ((NUM_STEPS, 2, "SIGURG came, with 15 s to leave"), (1, 1, "1 step in")):
        run_dir = sweep / f"{num_steps}"
        status, submission = read_status(run_dir), read_submission(run_dir)
        assert submission is not None, screen
        logged = "".join(log.read_text() for log in submission.logs if log.exists())
        said = screen + logged
        assert status is not None, said
        assert status.state == "finished", said
        assert read_table(run_dir, "steps")["step"].to_pylist() == list(range(num_steps))
        assert len(attempt_paths(run_dir)) == num_attempts, said
        assert told in logged
    assert launch.returncode == 0, screen
    assert seen == {("node1", str(image.path)), ("node2", str(image.path))}
    cluster.wait_until_idle()
    assert [cluster.processes_on(node) for node in ("node1", "node2")] == [[], []]
    left = [path.name for node in ("node1", "node2") for path in cluster.scratch(node).glob("rollpacker-*/rp-*")]
    assert left == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "no image is named"),
        (["{existing}"], "is already there"),
        (["new", "--bass", "cuda"], "there is no option --bass"),
        (["new", "--extras"], "--extras has no value"),
        (["new", "--base", "{existing}"], "is no unpacked root file system"),
    ],
)
def test_a_build_that_cannot_work_is_refused_before_it_starts(tmp_path: Path, words: list[str], complaint: str) -> None:
    done = subprocess.run(
        [BUILD, *(word.format(existing=tmp_path) for word in words)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert complaint in done.stderr
    assert list(tmp_path.iterdir()) == []


def _engines(run_dir: Path, mark: str) -> dict[int, Process]:
    """By pid, the processes of the engines of a run that belongs to a launch."""
    own = {pid: process for pid, process in all_processes().items() if process.variable(MARK) == mark}
    return engines_of(run_dir, own)


def _section(image: Image) -> ContainerSection:
    config = compose([*MODELLED, "cluster=slurm", f"cluster.container.image={image.path}"])
    assert config.cluster is not None
    return config.cluster.container.model_copy(update={"options": EXEC_OPTIONS})


def _run(words: list[str | Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
