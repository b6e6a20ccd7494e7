"""Which files of a folder are read, and which folders are refused."""

import errno
import os
from pathlib import Path

import pytest

from rollpacker.config.sections.data import PromptFile
from rollpacker.core.errors import DataError
from rollpacker.data.file_listing import data_files
from rollpacker.data.prompts import load_prompts

HASHES = ("0123456789abcdef", "fedcba9876543210")


@pytest.fixture
def folder(tmp_path):
    def write(*names):
        for name in names:
            file = tmp_path / "set" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        return tmp_path / "set"

    return write


def names_of(folder, split=None):
    return [str(file.relative_to(folder)) for file in data_files(PromptFile(path=folder, split=split))]


def error_of(folder, split=None):
    with pytest.raises(DataError) as caught:
        names_of(folder, split)
    return str(caught.value)


@pytest.mark.parametrize(
    "names",
    [
        ["test.jsonl", "test2.jsonl", "test6.jsonl"],
        ["part-1.csv", "part-2.csv", "part3.csv"],
        ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"],
        [f"train-00001-of-00002-{HASHES[0]}.csv", f"train-00002-of-00002-{HASHES[1]}.csv"],
        ["math00000-of-00002.parquet", "math00001-of-00002.parquet"],
        ["train/0000.parquet", "train/0001.parquet"],
        ["0.jsonl", "1.jsonl"],
        ["aime24.jsonl"],
        ["part-0.json", "part-1.json"],
        ["TRAIN-0.CSV", "TRAIN-1.csv"],
        ["math_1.jsonl", "math_2.jsonl"],
        ["math-500-00000-of-00001.parquet"],
        ["test_2024.jsonl", "test_2025.jsonl"],
        ["aime_2024.jsonl"],
    ],
    ids=lambda names: names[0],
)
def test_files_of_one_split_are_read_in_the_order_of_their_names(folder, names):
    assert names_of(folder(*names, "README.md", ".cache/x.jsonl")) == names


def test_numbers_behind_a_name_of_its_own_are_part_of_it(folder):
    path = folder("aime24.jsonl", "aime25.jsonl", "math.jsonl", "math500.jsonl")
    assert "Its splits: aime24, aime25, math, math500\n" in error_of(path)
    assert names_of(path, "math") == ["math.jsonl"]


@pytest.mark.parametrize(
    "splits",
    [
        ["math", "math-500"],
        ["aime_2024", "aime_2025"],
        ["deepscaler-1.0", "deepscaler-1.1"],
        ["math-0", "math-2"],
        ["best-of-4", "best-of-8"],
        ["math", "math-1", "math-2"],
    ],
    ids=" ".join,
)
def test_files_of_a_name_that_are_not_numbered_as_parts_are_splits_of_their_own(folder, splits):
    path = folder(*(f"{split}.jsonl" for split in splits))
    assert f"Its splits: {', '.join(splits)}\n" in error_of(path)
    assert names_of(path, splits[1]) == [f"{splits[1]}.jsonl"]


@pytest.mark.parametrize(
    ("names", "may_be_parts"),
    [
        (["gsm8k-00000", "gsm8k-00002"], True),
        (["gsm8k-2", "gsm8k-3"], True),
        (["test-2024-06", "test-2024-07", "train"], True),
        (["test", "train"], False),
        (["deepscaler-1.0", "deepscaler-1.1"], False),
    ],
)
def test_splits_that_differ_by_a_number_may_be_parts_and_the_error_says_how_all_are_read(folder, names, may_be_parts):
    path = folder(*(f"{name}.jsonl" for name in names))
    all_of_them = "; to read all, list them in place of the folder, or number the files from 0 or 1 without a gap"
    for split in (None, "gsm8k"):
        assert error_of(path, split).endswith(f"Write data.split={names[0]}{all_of_them if may_be_parts else ''}")


def test_numbered_files_beside_a_named_one_are_a_split_called_as_their_folder(folder):
    path = folder("0000.jsonl", "1.jsonl", "more.jsonl")
    assert "Its splits: more, set\n" in error_of(path)
    assert names_of(path, "set") == ["0000.jsonl", "1.jsonl"]


def test_numbered_files_beside_a_folder_are_a_data_set_of_their_own(folder):
    path = folder("0000.jsonl", "a/train.jsonl")
    message = error_of(path)
    assert "holds several data sets: ., a\n" in message
    assert f"Name its folder: {path}/a" in message


def test_a_packed_file_is_of_a_split_and_refused_with_it(folder):
    path = folder("train.jsonl.gz", "test.jsonl")
    assert "Its splits: test, train\n" in error_of(path)
    assert names_of(path, "test") == ["test.jsonl"]
    assert "train.jsonl.gz is packed" in error_of(path, "train")
    assert "train.jsonl.gz is packed" in error_of(folder("train-2.jsonl"), "train")


def test_two_formats_of_one_split_are_refused_since_their_rows_may_be_the_same(folder):
    path = folder("train.csv", "train.jsonl", "test.jsonl")
    assert "train.csv and train.jsonl are one split in two formats" in error_of(path, "train")
    assert names_of(path, "test") == ["test.jsonl"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["train-00000-of-00003.csv", "train-00002-of-00003.csv"], "is one of 3 parts, of which 2 are there"),
        (["train/00001-of-00002.csv"], "is one of 2 parts, of which 1 are there"),
        (["train-00000-of-00001.csv", "train.csv"], "and train.csv are one split, and may have the same rows"),
        (["train-0-of-2.csv", "train-0-of-1.csv", "train-1-of-2.csv"], "and train-0-of-2.csv are one split"),
        ([f"train-0-of-1-{HASHES[0]}.csv", "train-0-of-1.csv"], "and train-0-of-1.csv are one split"),
        ([f"train-0-of-1-{each}.csv" for each in HASHES], f"and train-0-of-1-{HASHES[1]}.csv are one split"),
        (["train-0-of-2.csv", "train-2-of-2.csv"], "and train-2-of-2.csv are one split"),
        (["train-0-of-2.csv", "train-1-of-2.csv", "train-2-of-2.csv"], "and train-2-of-2.csv are one split"),
    ],
)
def test_some_parts_of_a_split_parts_beside_the_whole_and_parts_that_are_there_twice_are_refused(folder, names, words):
    path = folder(*names, "test.csv")
    assert f"{path}/{min(names)} {words}" in error_of(path, "train")
    assert names_of(path, "test") == ["test.csv"]


def test_folders_that_are_links_are_read_once_each(folder, tmp_path):
    path, elsewhere = folder("b/train-0.jsonl"), tmp_path / "elsewhere"
    (elsewhere / "train").mkdir(parents=True)
    (elsewhere / "train" / "0.jsonl").touch()
    for link, to in (("a", path / "b"), ("b/again", path), (".hidden", elsewhere)):
        (path / link).symlink_to(to)
    assert names_of(path) == ["b/train-0.jsonl"]
    (path / "b" / "linked").symlink_to(elsewhere)
    message = error_of(path)
    assert "holds several data sets: b, b/linked\n" in message
    assert names_of(path / "b" / "linked") == ["train/0.jsonl"]


def test_folders_with_links_to_each_other_are_named_without_links(folder):
    path = folder("a/train.jsonl", "b/train.jsonl")
    for link, to in (("a/b", "b"), ("b/a", "a"), ("0", "b")):
        (path / link).symlink_to(path / to)
    assert "holds several data sets: a, b\n" in error_of(path)


def test_a_folder_that_cannot_be_read_is_refused_unless_it_is_hidden(folder, monkeypatch):
    path, scanned = folder("train-0.jsonl", "more/train-1.jsonl", ".cache/x.jsonl"), os.scandir

    def scan_or_fail(path):
        if Path(path).name in {"more", ".cache"}:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scanned(path)

    monkeypatch.setattr(os, "scandir", scan_or_fail)
    assert f"The folder {path}/more cannot be read: Permission denied" in error_of(path)
    (path / "more").rename(path / ".more")
    assert names_of(path) == ["train-0.jsonl"]


def test_a_link_to_nothing_is_of_a_split_and_refused_with_it(folder, tmp_path):
    path = folder("test.jsonl")
    (path / "train.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=rf"train\.jsonl does not exist\n.*\nIt is a link to {tmp_path}/gone, which is"):
        load_prompts([PromptFile(path=path, split="train", domain="d")])
    assert names_of(path, "test") == ["test.jsonl"]


def test_json_that_is_called_as_a_split_or_as_another_file_is_of_data_and_what_describes_data_is_not(folder):
    path = folder("train.jsonl", "test.json", "math-0.jsonl", "math-1.json", "dataset_infos.json", "math-infos.json")
    assert "Its splits: math, test, train\n" in error_of(path)
    assert names_of(path, "test") == ["test.json"]
    assert "math-0.jsonl and math-1.json are one split in two formats" in error_of(path, "math")
    assert "val.json.gz is packed" in error_of(folder("val.json.gz"), "val")


def test_a_split_is_one_however_its_name_is_written(folder):
    assert names_of(folder("Train.JSON")) == ["Train.JSON"]
    path = folder("Train2.jsonl", "TEST.JSON")
    assert "Its splits: TEST, Train\n" in error_of(path)
    assert names_of(path, "TEST") == ["TEST.JSON"]


@pytest.mark.parametrize("path", ["hf://gsm8k", "hf://datasets/gsm8k", "hf://openai/../gsm8k"])
def test_what_is_no_name_of_the_hub_is_not_taken_for_a_folder(path):
    with pytest.raises(DataError, match=f"{path} is no name of a data set of the Hub\nAllowed: hf://ORG/NAME"):
        data_files(PromptFile(path=path))


def test_values_between_tabs_are_of_a_split_and_refused_with_it(folder):
    path = folder("train.jsonl", "test.tsv")
    assert "Its splits: test, train\n" in error_of(path)
    assert names_of(path, "train") == ["train.jsonl"]
    assert "test.tsv has tabs between its values" in error_of(path, "test")
    for name, mistake in (("test.tsv", "has tabs between its values"), ("gone.tsv", "does not exist")):
        with pytest.raises(DataError, match=mistake):
            load_prompts([PromptFile(path=path / name)])
