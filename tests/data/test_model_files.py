import json

import pytest

from rollpacker.core.errors import ModelError
from rollpacker.data.model_files import check_model_files


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def error_of(path):
    with pytest.raises(ModelError) as caught:
        check_model_files(path)
    assert caught.value.problem
    assert caught.value.allowed
    assert caught.value.remedy
    return str(caught.value)


def test_a_whole_model_passes(model):
    check_model_files(model)


def test_bin_weights_pass_too(model):
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    check_model_files(model)


def test_a_missing_directory_is_refused_with_the_nearest_one(model):
    assert "Did you mean" in (message := error_of(model.parent / "tiny-modle"))
    assert "tiny-model?" in message


def test_a_name_of_the_hub_is_refused_with_how_to_download_it(tmp_path):
    assert "hf download" in error_of(tmp_path / "Qwen" / "Qwen2.5-0.5B")


def test_a_file_is_refused_with_its_directory(model):
    assert "Name the directory" in error_of(model / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "words"),
    [("config.json", "no config.json"), ("model.safetensors", "no weights"), ("tokenizer.json", "no tokenizer")],
)
def test_a_missing_part_is_named(model, name, words):
    (model / name).unlink()
    assert words in error_of(model)


@pytest.mark.parametrize("content", ["{broken", "[]", '{"architectures": []}'])
def test_a_config_that_is_none_is_refused(model, content):
    (model / "config.json").write_text(content)
    assert "config.json" in error_of(model)


def test_a_missing_shard_is_named(model):
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert "1 of 2 weight files" in (message := error_of(model))
    assert "model-00002-of-00002.safetensors" in message


def test_weights_that_git_lfs_did_not_fetch_are_refused(model):
    (model / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "git lfs pull" in error_of(model)
