"""What runs a rank in an image, as words; real images are in tests/slurm/test_container.py."""

# ruff: noqa: S108  (/tmp and /dev/shm are what the words are about)
from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.config.multirun import compose_sweep
from rollpacker.config.sections.cluster import ContainerSection
from rollpacker.core.errors import ConfigError
from rollpacker.launch.batches import batch_script, batches, workers_script
from rollpacker.launch.container import check_container, container_command, paths_to_read
from rollpacker.launch.points import points_of
from tests.launch.commands import put_programs
from tests.launch.golden_scripts import ELASTIC

IMAGE = Path("/shared/rollpacker.sif")
NOT_INSIDE = {"PATH": ""}


def _section(**keys: object) -> ContainerSection:
    return ContainerSection.model_validate({"image": IMAGE, **keys})


def _words(section: ContainerSection, *, has_gpus: bool = False, reads: tuple[Path, ...] = ()) -> tuple[str, ...]:
    """Render the command without its script."""
    words = container_command(
        section, has_gpus=has_gpus, write_paths=[Path("/shared/runs")], read_paths=reads, scratch=["/tmp"]
    )
    assert words[:2] == ("bash", "-c")
    return words[3:]


def test_a_rank_runs_in_the_image_with_the_folders_of_its_run() -> None:
    assert _words(_section(), reads=(Path("/models/qwen"),)) == (
        "container", "apptainer", "/tmp", "--",
        "/dev/shm:/dev/shm", "/models/qwen:/models/qwen:ro", "/shared/runs:/shared/runs", "--",
        "/shared/rollpacker.sif", "env", "TMPDIR=/tmp", "python3",
    )  # fmt: skip


def test_a_job_with_gpus_brings_their_driver_into_the_image() -> None:
    words = _words(_section(options=("--userns",)), has_gpus=True)
    assert words[words.index("--nv") :][:3] == ("--nv", "--userns", str(IMAGE))


def test_a_variable_may_hold_commas_and_wins_over_the_temporary_folder() -> None:
    words = _words(_section(environment={"NCCL_IB_HCA": "mlx5_0,mlx5_1", "TMPDIR": "/scratch"}))
    assert words[words.index("env") :] == ("env", "TMPDIR=/scratch", "NCCL_IB_HCA=mlx5_0,mlx5_1", "python3")


def test_a_folder_that_is_read_and_written_is_writable() -> None:
    words = _words(_section(), reads=(Path("/shared/runs"), Path("/shared")))
    assert words[4:7] == ("/dev/shm:/dev/shm", "/shared:/shared:ro", "/shared/runs:/shared/runs")


def test_further_folders_come_last_and_are_bound_at_their_own_path_where_no_other_is_given() -> None:
    words = _words(_section(binds=("/opt/site", "/a:/b:ro")))
    assert words[6:9] == ("/opt/site:/opt/site", "/a:/b:ro", "--")


@pytest.mark.parametrize("name", ["a:b", "a,b"])
def test_a_path_that_the_runtime_would_read_as_two_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="colons and commas") as error:
        _words(_section(), reads=(Path("/data") / name,))
    assert error.value.remedy == "Rename it."


def test_links_of_a_model_directory_lead_to_folders_that_are_bound_too(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots/main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "123").touch()
    (snapshot / "model.safetensors").symlink_to("../../blobs/123")
    (snapshot / "config.json").touch()
    prompts = tmp_path / "prompts.jsonl"
    prompts.touch()
    link = tmp_path / "model"
    link.symlink_to(snapshot)
    config = compose([f"model.path={link}", f"data.path={prompts}", f"reward.function={tmp_path}/mine.py:score"])
    assert paths_to_read(config) == (link, snapshot, blobs, prompts, tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.loss=FILE:loss"],
        ["environment=gym", "environment.env=FILE:Maze"],
        ["environment=tools", "environment.tools=[FILE:search]"],
        ["environment=loop", "environment.loop=FILE:Guess"],
        ["run.callbacks=[FILE:Notify]"],
        ["tracker.plugin=FILE:Tracker"],
    ],
    ids="".join,
)
def test_files_with_code_of_ones_own_are_there(tmp_path: Path, words: list[str]) -> None:
    given = [f"model.path={tmp_path}/model", f"data.path={tmp_path}/prompts.jsonl"]
    config = compose([*given, *(word.replace("FILE", f"{tmp_path}/code/mine.py") for word in words)])
    assert tmp_path / "code" in paths_to_read(config)


@pytest.mark.parametrize(
    "words",
    [
        ["reward.sandbox.packages=FILE"],
        ["hardware.profile=FILE"],
        ["elastic.modelled.availability=file", "elastic.modelled.counts=FILE"],
        ["workload.lengths=FILE"],
    ],
    ids=" ".join,
)
def test_files_of_sandboxes_and_modelled_runs_are_there(tmp_path: Path, words: list[str]) -> None:
    modelled = ["backend=sim", "model=qwen2.5-7b", "hardware=h800", "workload=math"]
    config = compose([*modelled, *(word.replace("FILE", str(tmp_path)) for word in words)])
    assert paths_to_read(config) == (tmp_path,)


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ("real/sweep/0", "real/sweep"),
        ("link/sweep/0", "link/sweep"),
        ("deep/0", "deep"),
        ("deeper/0", "deeper"),
        ("itself", "itself"),
    ],
)
def test_the_folder_of_a_run_behind_links_is_there_by_the_name_that_was_given(
    tmp_path: Path, given: str, bound: str
) -> None:
    sweep = tmp_path / "real/sweep"
    (sweep / "0").mkdir(parents=True)
    for name, target in (("link", "real"), ("deep", "real/sweep"), ("deeper", "real/sweep/0"), ("itself", "deep/0")):
        (tmp_path / name).symlink_to(tmp_path / target)
    words = ["hydra/launcher=slurm", f"run.dir={tmp_path / given}", "cluster.container.image=/shared/x.sif"]
    composed = compose_sweep([*ELASTIC, *words])
    assert composed.launcher is not None
    (point,) = points_of(composed)
    (batch,) = batches([point])
    for script in (batch_script(batch, composed.launcher, sweep), workers_script(point, "1", sweep)):
        assert {f"{folder}:{folder}" for folder in (sweep, tmp_path / bound)} <= set(script.split())


def test_a_run_without_files_reads_none() -> None:
    config = compose(["backend=sim", "model=qwen2.5-7b", "hardware=h800", "workload=math"])
    assert paths_to_read(config) == ()


def test_no_image_is_no_mistake() -> None:
    assert check_container(ContainerSection(), environment=NOT_INSIDE) == []


@pytest.mark.parametrize(
    ("content", "problem", "remedy"),
    [
        (None, "does not exist", "in a checkout of RollPacker: slurm/build_image.sh 'my image.sif'"),
        (b"", "is no image", "in a checkout of RollPacker: slurm/build_image.sh"),
        (b"hsqs" + bytes(100), "is no image", "slurm/build_image.sh"),
        ("a folder", "is no image", "slurm/build_image.sh"),
    ],
)
def test_what_is_no_image_is_a_mistake_that_says_how_to_build_one(
    tmp_path: Path, content: bytes | str | None, problem: str, remedy: str
) -> None:
    image = tmp_path / "my image.sif"
    if isinstance(content, bytes):
        image.write_bytes(content)
    elif content is not None:
        image.mkdir()
    (mistake,) = check_container(_section(image=image), ("module load apptainer",), NOT_INSIDE)
    assert problem in mistake.problem
    assert remedy in mistake.remedy


def test_a_sif_file_and_an_unpacked_image_are_images(tmp_path: Path) -> None:
    for image in (_sif(tmp_path), _unpacked(tmp_path)):
        assert check_container(_section(image=image), ("module load apptainer",), NOT_INSIDE) == []


def test_a_runtime_that_is_not_here_is_a_mistake_unless_the_nodes_bring_it(tmp_path: Path) -> None:
    section = _section(image=_sif(tmp_path), runtime="singularity")
    (mistake,) = check_container(section, (), NOT_INSIDE)
    assert "cluster.container.runtime=singularity is not on the PATH" in mistake.problem
    (tmp_path / "singularity").touch(mode=0o755)
    assert check_container(section, (), {"PATH": str(tmp_path)}) == []


def test_who_submits_from_inside_an_image_need_see_neither_runtime_nor_image(tmp_path: Path) -> None:
    environment = {**NOT_INSIDE, "APPTAINER_CONTAINER": "/shared/rollpacker.sif"}
    assert check_container(_section(image=tmp_path / "elsewhere.sif"), (), environment) == []


@pytest.mark.parametrize("option", ["--cleanenv", "-e", "--containall"])
def test_options_that_hide_the_job_from_its_ranks_are_mistakes(tmp_path: Path, option: str) -> None:
    section = _section(image=_sif(tmp_path), options=("--userns", option))
    (mistake,) = check_container(section, ("module load apptainer",), NOT_INSIDE)
    assert f"has {option}." in mistake.problem


class TestOnTheNode:
    """The script, with a runtime that only prints its words."""

    @pytest.fixture
    def run_dir(self, tmp_path: Path) -> Path:
        put_programs(tmp_path / "bin", {"apptainer": 'printf "%s\\n" "$@" >"$SEEN"'})
        return tmp_path / "runs"

    def _run(
        self, run_dir: Path, scratch: list[str], section: ContainerSection | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        run_dir.mkdir(exist_ok=True)
        section = section or _section()
        words = container_command(section, has_gpus=False, write_paths=[run_dir], read_paths=(), scratch=scratch)
        path = f"{run_dir.parent}/bin:{os.environ['PATH']}"
        environment = {"PATH": path, "SEEN": str(run_dir.parent / "seen"), **variables}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    def _binds(self, run_dir: Path) -> list[str]:
        words = (run_dir.parent / "seen").read_text().splitlines()
        assert words[0] == "exec"
        return [following for word, following in itertools.pairwise(words) if word == "--bind"]

    def test_the_first_writable_scratch_folder_is_the_temporary_folder_inside(self, run_dir: Path) -> None:
        local = run_dir.parent / "local"
        local.mkdir()
        done = self._run(
            run_dir, ["$NOT_SET", "$EMPTY/x", "/proc", "${LOCAL}", str(run_dir)], LOCAL=str(local), EMPTY=""
        )
        assert done.stderr == ""
        private = local / f"rollpacker-{os.getuid()}"
        assert self._binds(run_dir)[0] == f"{private}:/tmp"
        assert private.stat().st_mode & 0o777 == 0o700
        assert list(run_dir.iterdir()) == []

    def test_where_no_scratch_folder_is_writable_it_says_which_were_tried(self, run_dir: Path) -> None:
        done = self._run(run_dir, ["$NOT_SET", "/proc"])
        assert done.returncode == 1
        assert "$NOT_SET /proc" in done.stderr
        assert "cluster.scratch=[/tmp]" in done.stderr

    def test_a_scratch_folder_that_is_a_link_to_elsewhere_is_passed_over(self, run_dir: Path) -> None:
        target = run_dir.parent / "target"
        target.mkdir(mode=0o755)
        (run_dir.parent / f"rollpacker-{os.getuid()}").symlink_to(target)
        assert self._run(run_dir, [str(run_dir.parent)]).returncode == 1
        assert target.stat().st_mode & 0o777 == 0o755

    def test_what_is_bound_below_the_temporary_folder_gets_its_place_in_the_new_one(self, run_dir: Path) -> None:
        local, file = run_dir.parent / "local", run_dir.parent / "seed"
        local.mkdir()
        file.touch()
        section = _section(binds=(f"{local}:/tmp/a/folder", f"{file}:/tmp/b/file:ro"))
        self._run(run_dir, [str(local)], section=section)
        private = local / f"rollpacker-{os.getuid()}"
        assert (private / "a/folder").is_dir()
        assert (private / "b/file").is_file()
        assert self._binds(run_dir)[-2:] == list(section.binds)

    def test_words_reach_python_as_they_were_given(self, run_dir: Path) -> None:
        run_dir.mkdir()
        words = container_command(
            _section(environment={"A": "1 2$HOME'\""}), has_gpus=False, write_paths=[run_dir], read_paths=(),
            scratch=[str(run_dir.parent)],
        )  # fmt: skip
        path = f"{run_dir.parent}/bin:{os.environ['PATH']}"
        seen = run_dir.parent / "seen"
        subprocess.run([*words, "-c", "a  b\tc"], env={"PATH": path, "SEEN": str(seen)}, check=True)
        assert seen.read_text().splitlines()[-4:] == ["A=1 2$HOME'\"", "python3", "-c", "a  b\tc"]


def _sif(folder: Path) -> Path:
    file = folder / "image.sif"
    file.write_bytes(b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0" + bytes(100))
    return file


def _unpacked(folder: Path) -> Path:
    (folder / "image/.singularity.d").mkdir(parents=True)
    return folder / "image"
