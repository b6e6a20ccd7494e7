"""What is no file on a disk is named for what it is, and not opened: a pipe would wait for ever."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rollpacker.config.sections.data import PromptFile
from rollpacker.core.errors import DataError, ModelError
from rollpacker.data import jsonl
from rollpacker.data.jsonl import read_json_lines
from rollpacker.data.model_files import check_model_files
from rollpacker.data.prompts import load_prompts
from rollpacker.metrics.profiles import read_profile
from rollpacker.paths import nearest_beside, real_path, special_kind
from rollpacker.sim.lengths import read_lengths

READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "prompts": ("pipe.jsonl", lambda path: list(read_json_lines(path, kind="prompt file"))),
    "lengths": ("pipe.csv", read_lengths),
    "profile": ("pipe.parquet", read_profile),
    "model": ("pipe.safetensors", lambda path: check_model_files(path.parent)),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_is_refused_by_every_reader_without_waiting_for_it(reader: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    os.mkfifo(tmp_path / name)
    with pytest.raises((DataError, ModelError)) as caught:
        read(tmp_path / name)
    assert name in caught.value.problem


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/dev/zero", "a device"),
        ("/proc/self/environ", "a file of this process alone"),
        ("{folder}/pipe", "a pipe"),
        ("{folder}/socket", "a socket"),
        ("{folder}/link", "a pipe"),
        ("{folder}/file", ""),
        ("{folder}", ""),
        ("{folder}/none", ""),
    ],
)
def test_what_is_no_file_is_called_what_it_is(
    path: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's address is short
    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    Path("file").write_text("")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        assert special_kind(Path(path.replace("{folder}", str(tmp_path)))) == kind


def test_a_line_without_end_is_refused_before_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"id": 1}\n' + b"x" * (3 << 20))
    with pytest.raises(DataError, match="line 2: the line is longer than 1 MB"):
        list(read_json_lines(path, kind="prompt file"))


@pytest.mark.parametrize("name", ["a\\nb", "\\u0000", "\\u001b[31m", "\\u2028", "x" * 10_000])
@pytest.mark.parametrize("field", ["id", "domain"])
def test_a_name_that_nothing_could_show_is_refused_with_its_line(field: str, name: str, tmp_path: Path) -> None:
    fields = {"id": "a", "domain": "math", "prompt": "1", "ground_truth": "1"} | {field: name}
    path = tmp_path / "p.jsonl"
    path.write_text("{" + ", ".join(f'"{key}": "{value}"' for key, value in fields.items()) + "}")
    with pytest.raises(DataError, match="line 1: ") as caught:
        load_prompts([PromptFile(path=path)])
    assert f"`{field}`" in caught.value.problem
    assert len(caught.value.problem) < 500


def test_links_that_lead_in_a_circle_are_followed_as_far_as_they_go(tmp_path: Path) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    (tmp_path / "link").symlink_to(tmp_path / "circle" / ".." / "file")
    assert real_path(circle / "x").name == "x"
    assert real_path(tmp_path / "link").is_absolute()


@pytest.mark.parametrize(
    ("missing", "beside", "meant"),
    [
        ("nope.jsonl", ["t.jsonl"], None),
        ("promts.jsonl", ["prompts.jsonl", "t.jsonl"], "prompts.jsonl"),
        ("train.jsonl", ["train.json", "test.jsonl"], "train.json"),
        ("trian.jsonl", ["train.csv", "train.jsonl", "train.parquet"], "train.jsonl"),
        ("train", ["train.csv"], "train.csv"),
        ("Qwen2.5-7B", ["Qwen2.5-7b/", "Qwen2/", "qwen2.sh"], "Qwen2.5-7b"),
        ("math_train", ["math-train/", "math-training.md"], "math-train"),
        ("train", ["train.csv", "trainer/"], "train.csv"),
        ("modle", ["model/"], "model"),
    ],
)
def test_the_path_that_was_meant_is_found_by_its_name_without_the_ending(
    missing: str, beside: list[str], meant: str | None, tmp_path: Path
) -> None:
    for name in beside:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    assert nearest_beside(tmp_path / missing) == (meant and tmp_path / meant)


def test_a_missing_path_in_a_folder_that_cannot_be_listed_is_refused_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(ModelError, match="does not exist"):
        check_model_files(tmp_path / "model")
    with pytest.raises(DataError, match="does not exist"):
        list(read_json_lines(tmp_path / "prompts.jsonl", kind="prompt file"))
