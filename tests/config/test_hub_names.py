from pathlib import Path

import pytest

from rollpacker.config.hub_names import parse_hub_name
from rollpacker.config.sections.data import PromptFile
from rollpacker.config.sections.model import ModelSection
from tests.data.files import write_cached


@pytest.mark.parametrize(
    ("path", "kind", "parts"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "model", ("Qwen/Qwen2.5-7B-Instruct", None, "")),
        ("Qwen/Qwen2.5-7B-Instruct@main", "model", ("Qwen/Qwen2.5-7B-Instruct", "main", "")),
        ("hf:/openai/gsm8k", "dataset", ("openai/gsm8k", None, "")),
        ("hf:/openai/gsm8k@abc/main/train.parquet", "dataset", ("openai/gsm8k", "abc", "main/train.parquet")),
        ("hf:/datasets/openai/gsm8k/main", "dataset", ("openai/gsm8k", None, "main")),
        ("hf:/o/d@refs/convert/parquet/main/x", "dataset", ("o/d", "refs/convert/parquet", "main/x")),
        ("hf:/o/d@refs/pr/12", "dataset", ("o/d", "refs/pr/12", "")),
        ("o/m@refs/pr/12", "model", ("o/m", "refs/pr/12", "")),
    ],
)
def test_a_name_has_a_repository_and_perhaps_a_revision_and_a_part(path, kind, parts):
    name = parse_hub_name(Path(path), kind)
    assert (name.repository, name.revision, name.inside) == parts


@pytest.mark.parametrize("path", ["model", "/models/qwen", "../a/b", "a/b/c", "a b/c", "-a/b", "a/b@"])
def test_other_paths_are_no_names_of_models(path):
    assert parse_hub_name(Path(path), "model") is None


def test_a_path_that_is_here_is_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ModelSection(path="Qwen/Qwen3-8B").hub_name is not None
    Path("Qwen").mkdir()
    assert ModelSection(path="Qwen/Qwen3-8B").hub_name is None  # Qwen3-8B is missing in this folder


def test_a_name_leads_to_the_snapshot_of_its_revision(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = write_cached(tmp_path, "dataset", "openai/gsm8k", {"main/train.parquet": ""})
    for path in ("hf://openai/gsm8k/main", f"hf://openai/gsm8k@{snapshot.name}/main"):
        assert PromptFile(path=path).location == snapshot / "main"
        assert PromptFile(path=path).written == path
    assert PromptFile(path="hf://openai/gsm8k@other").location == Path("hf:/openai/gsm8k@other")
