"""The paper's numbers as they are read, and what is said of numbers that cannot be."""

import io
import shutil
from pathlib import Path

import pandas as pd
import pytest

from rollpacker.analysis.calibration.reference import FILES, MODELS, read_reference
from rollpacker.analysis.calibration.setups import Setup, predict, setups_of
from rollpacker.core.errors import DataError

PAPER = Path(__file__).parents[3] / "analysis" / "paper"


def value(rows, exhibit, model, system, quantity, kind, task="mix"):  # noqa: PLR0917
    [found] = [
        row
        for row in rows
        if (row.exhibit, row.model, row.system, row.quantity, row.kind, row.task)
        == (exhibit, model, system, quantity, kind, task)
    ]
    return found.value


def test_rows_say_what_the_paper_prints():
    rows = read_reference(PAPER)
    assert value(rows, "Table 1", "14B", "verl", "reward_share", "plain", task="code") == 0.13
    assert value(rows, "Table 2", "14B", "rollpacker", "speedup", "all") == 2.22
    assert value(rows, "Fig 9a", "7B", "verl", "step", "all") == pytest.approx(233, abs=1)
    assert value(rows, "Fig 9b", "14B", "rollpacker", "step", "long") == pytest.approx(306, abs=2)
    assert value(rows, "Fig 10c", "14B", "tail-reward-planner", "rollout", "long") == pytest.approx(225, abs=1)
    assert value(rows, "Fig 6a", "8B TP2", "tail-reward", "preemptions", "short") == 4100
    assert len(rows) == 9 + 8 + 4 + 4 + 10 + 16


def test_what_the_model_cannot_know_or_hardly_matters_bends_the_fit_little():
    rows = read_reference(PAPER)
    assert {row.weight for row in rows if row.exhibit.startswith("Fig 6")} == {0}
    tiny = [row for row in rows if row.quantity == "reward" and row.exhibit == "Fig 10c"]
    assert all(row.weight < 0.4 for row in tiny)
    assert all(0 <= row.weight <= 1 for row in rows)


def with_y(y):
    """Every number of a file is this one."""

    def changed(text):
        table = pd.read_csv(io.StringIO(text), dtype=str)
        return table.assign(y=y).to_csv(index=False).encode()

    return changed


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "broken",
    [
        lambda _: b"figure,panel\nx,y\n",
        lambda text: text.encode("utf-16"),
        lambda text: f"{text}{','.join(text.splitlines()[-1].split(',')[:5])}\n".encode(),
        lambda text: f"{text}{'x' * 200_000}\n".encode(),
        *map(with_y, ("0", "-3", "nan", "inf", "many")),
    ],
    ids=["columns", "encoding", "short row", "long field", "0", "negative", "nan", "inf", "no number"],
)
def test_a_broken_file_is_named(tmp_path, name, broken):
    folder = tmp_path / "paper"
    shutil.copytree(PAPER, folder)
    (folder / name).write_bytes(broken((folder / name).read_text()))
    with pytest.raises(DataError, match=rf"{name} does not say what it should: "):
        read_reference(folder)


@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        ("table02.csv", "Qwen2.5-14B", "Qwen2.5-32B", "model 32B is none of 7B, 14B"),
        ("fig06a.csv", "TP=2", "TP=4", "model 8B TP4 is none of 7B, 14B"),
        ("fig06b.csv", "Long Round", "Longest Round", "rounds are short or long, not longest"),
        ("fig10c.csv", "(long round)", "(plain round)", "rounds are short or long, not plain"),
    ],
)
def test_rows_that_no_modelled_run_answers_are_refused_before_the_runs(tmp_path, name, old, new, says):
    folder = tmp_path / "paper"
    shutil.copytree(PAPER, folder)
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
    with pytest.raises(DataError, match=f"{name} does not say what it should: ValueError: {says}"):
        read_reference(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(tmp_path, name):
    folder = tmp_path / "paper"
    shutil.copytree(PAPER, folder)
    (folder / name).unlink()
    with pytest.raises(DataError, match=name):
        read_reference(folder)


def test_every_run_is_wanted_once_and_speedups_bring_their_baseline():
    rows = [row for row in read_reference(PAPER) if row.exhibit == "Table 2"]
    setups = setups_of(rows)
    assert len(setups) == len(set(setups)) == 10
    assert Setup("14B", "verl", "mix") in setups
    assert all(Setup(model, "verl", "mix").words for model in MODELS)


def test_predictions_weigh_rounds_as_they_come():
    packed = pd.DataFrame(
        {"step": [10.0, 60.0], "train": [2.0, 5.0], "weight_sync": [1.0, 1.0], "num_rounds": [4, 1]},
        index=["short", "long"],
    )
    plain = pd.DataFrame({"step": [50.0], "train": [9.0], "weight_sync": [1.0], "num_rounds": [3]}, index=["plain"])
    summaries = {Setup("7B", "verl", "mix"): plain, Setup("7B", "rollpacker", "mix"): packed}
    rows = read_reference(PAPER)
    [speedup] = [row for row in rows if row[:3] == ("Table 2", "7B", "rollpacker")]
    assert predict(speedup, summaries) == 50 / 20
    [train] = [row for row in rows if row.quantity == "train_share" and row.task == "math"]
    assert predict(train, {Setup("14B", "verl", "math"): plain}) == pytest.approx(10 / 50)
