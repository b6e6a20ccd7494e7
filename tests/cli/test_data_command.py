import json
import shlex
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.config.compose import compose
from tests.data.files import write_cached, write_parquet

ROWS = [{"question": f"What is {number} x 7?", "answer": f"#### {number * 7}"} for number in range(40)]


@pytest.fixture
def gsm8k(workdir):
    write_parquet(workdir / "set/main/train-00000-of-00001.parquet", ROWS)
    write_parquet(workdir / "set/main/test-00000-of-00001.parquet", ROWS[:3])
    return workdir


def test_a_data_set_is_converted_and_says_what_came_of_it(gsm8k, capsys):
    assert main(["data", "gsm8k", "from=set", "split=train", "out=gsm8k.jsonl"]) == 0
    printed = capsys.readouterr().out
    for words in ("rows", "40", "reward=math", "data.path=gsm8k.jsonl"):
        assert words in printed
    assert json.loads(Path("gsm8k.jsonl").read_text().splitlines()[1])["ground_truth"] == "7"


def test_the_next_command_is_one_that_a_shell_and_the_configuration_read(gsm8k, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["data", "gsm8k", "from=set", "split=train", "out=my rows, all.jsonl"]) == 0
    following = capsys.readouterr().out.partition("next")[2].strip()
    words = [word for word in shlex.split(following) if word.startswith("data.path")]
    config = compose(["model.path=model", *words])
    assert config.data.path[0].path == Path("my rows, all.jsonl")


def test_rows_of_any_table_name_no_next_command_since_their_reward_is_not_known(gsm8k, capsys):
    assert main(["data", "rows", "from=set/main", "split=test", "out=rows.jsonl"]) == 0
    assert "rollpacker check" not in capsys.readouterr().out


def test_what_a_stream_carried_is_no_file_to_go_on_with(gsm8k, capsys):
    assert main(["data", "gsm8k", "from=set", "split=train", "out=-"]) == 0
    said = capsys.readouterr().err
    assert "rows" in said
    assert "written to" not in said
    assert "rollpacker check" not in said


def test_list_names_every_set_with_its_repository(capsys):
    assert main(["data", "list"]) == 0
    printed = capsys.readouterr().out
    for word in ("gsm8k", "openai/gsm8k", "livecodebench", "reward=sandbox"):
        assert word in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no data set"),
        (["gsm9k", "from=set", "out=x"], "rollpacker data gsm8k"),
        (["gsm8k", "out=x"], "`from` is not set"),
        (["gsm8k", "from=set"], "`out` is not set"),
        (["gsm8k", "from=nowhere", "out=x"], "nowhere does not exist"),
        (["gsm8k", "from=nowhere", "out=x", "split=train"], "nowhere does not exist"),
        (["gsm8k", "from=set", "out=x"], "several splits, and none is chosen Its splits: test, train Write split=test"),
        (["gsm8k", "from=set", "out=x", "split=dev"], "no split dev Its splits: test, train Write split=test"),
        (["gsm8k", "from=set", "split=test", "out=set"], "out=set is also read"),
        (["gsm8k", "from=set", "split=test", "out=x.parquet"], "what is written is JSON lines"),
        (
            ["gsm8k", "from=set", "split=test", "out=set/main/test-00000-of-00001.parquet", "overwrite=true"],
            "out=set/main/test-00000-of-00001.parquet is also read",
        ),
        (["gsm8k", "from=set", "out=x", "splits=dev"], "split"),
    ],
)
def test_a_wrong_argument_writes_nothing(gsm8k, capsys, words, said):
    assert main(["data", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not Path("x").exists()


def test_a_data_set_that_is_not_in_the_cache_is_refused_with_the_command_that_downloads_it(gsm8k, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(gsm8k / "hub"))
    Path("answers.jsonl").write_text('{"id": "q", "response": "7"}\n')
    named = "from=hf://openai/gsm8k"
    for words in (
        ["data", "gsm8k", named, "out=x"],
        ["data", "gsm8k", named, "split=train", "out=x"],
        ["score", "reward=math", "data.path=hf://openai/gsm8k", "responses=answers.jsonl", "out=x"],
    ):
        assert main(words) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "hf://openai/gsm8k: the Hugging Face cache in" in said
        assert "hf download openai/gsm8k --repo-type dataset" in said


def test_a_data_set_of_the_cache_is_named_as_it_was_written(gsm8k, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(gsm8k / "hub"))
    parquet = Path("set/main/train-00000-of-00001.parquet")
    write_cached(gsm8k / "hub", "dataset", "openai/gsm8k", {f"main/{parquet.name}": parquet})
    assert main(["data", "gsm8k", "from=hf://openai/gsm8k", "out=gsm8k.jsonl"]) == 0
    assert "from hf://openai/gsm8k" in capsys.readouterr().out


def test_check_reads_a_parquet_of_the_hub_by_name_and_says_the_commit(gsm8k, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(gsm8k / "hub"))
    monkeypatch.setenv("HF_HUB_CACHE", str(gsm8k / "hub"))  # of the process that tokenizes
    monkeypatch.setenv("COLUMNS", "400")
    write_cached(gsm8k / "hub", "model", "tiny/model", {path.name: path for path in Path("model").iterdir()}, "a" * 40)
    parquet = Path("set/main/train-00000-of-00001.parquet")
    write_cached(gsm8k / "hub", "dataset", "openai/gsm8k", {f"main/{parquet.name}": parquet}, "b" * 40)
    words = [
        "model.path=tiny/model",
        "data.path=hf://openai/gsm8k/main",
        "data.columns={prompt:question,ground_truth:answer}",
    ]
    settings = ["data.answer_after='####'", "data.domain=math", "run.dir=runs/x"]
    assert main(["check", *words, *settings]) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert f"tiny/model@{'a' * 40}" in printed
    assert f"40 in hf://openai/gsm8k@{'b' * 40}/main: math 40" in printed
