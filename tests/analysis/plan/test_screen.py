"""The tables of a plan at the width of a terminal, and what is said about how sure it is."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from rollpacker.analysis.plan.advice import add_speedups
from rollpacker.analysis.plan.lengths import LengthFacts
from rollpacker.analysis.plan.screen import show
from rollpacker.analysis.plan.search import Space
from rollpacker.config.compose import compose
from rollpacker.metrics.profiles import write_profile
from rollpacker.terminal import Terminal
from tests.analysis.plan.tables import outcomes
from tests.sim.clusters import SMALL as SMALLEST
from tests.sim.test_profile import profile

LENGTHS = LengthFacts(
    source="lengths.csv",
    num_samples=2000,
    longest=4096,
    limit=4096,
    has_groups=False,
    drawn={},
    share_at_limit=0.0,
    is_extrapolated=False,
    notes=("3 of 9 were aborted.",),
)


def shown(
    width: int,
    *trials: pd.DataFrame,
    num_gpus: int = 32,
    hardware: str = "h800",
    left_out: Mapping[str, int] | None = None,
    more_words: Sequence[str] = (),
    lengths: LengthFacts = LENGTHS,
) -> str:
    """What is printed of made-up outcomes."""
    found = add_speedups(pd.concat(trials, ignore_index=True), "verl")
    words = ["backend=sim", "model=qwen2.5-7b", f"hardware={hardware}", "run.dir=x", *more_words]
    space = Space(
        bases={system: compose([*words, f"system={system}"]) for system in found["system"].unique()},
        num_gpus=num_gpus,
        degrees_by_gpus={num_gpus: dict.fromkeys(found["system"].unique(), (2,))},
        rho=0.3,
        varies_rho=True,
        num_seeds=2,
    )
    output = io.StringIO()
    show(Terminal(file=output, width=width), found, lengths, space, left_out=left_out or {})
    return output.getvalue()


WIDEST = (
    outcomes("verl", 1234.5, 1456.7, preemptions=12_345),
    outcomes("tail-reward-planner", 1034.5, 756.7, eta=1.125, preemptions=12_345),
    outcomes("tail-reward-planner", 934.5, eta=1.125, degree=16, preemptions=12_345),
    outcomes("tail-reward-planner", 934.5, eta=1.125, num_gpus=16, preemptions=12_345),
    outcomes("tail-reward-planner", 534.5, eta=1.125, num_gpus=64, preemptions=12_345),
)


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_table_folds_names_and_leaves_columns_out_but_cuts_no_number(width):
    text = shown(width, *WIDEST)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for number in ("1346±157", "1.56±0.52", "11,961", "7,961"):
        assert number in text
    assert "tail-reward-planner  " not in text
    assert "left out, in plan.parquet: preemptions" in text


def test_a_wide_table_has_every_column_and_whole_names():
    text = shown(140, *WIDEST)
    assert " tail-reward-planner " in text
    assert "12,345" in text
    assert "left out" not in text


def test_gpus_of_a_judge_beyond_those_asked_for_are_told():
    verl = outcomes("verl", 200, 210, num_judge_gpus=1)
    text = " ".join(shown(200, verl, outcomes("rollpacker", 100, 105, eta=1.25)).split())
    assert "judge verl: with 1 GPU more, for the judge; GPU·h count it." in text
    assert "for the judge" not in shown(200, outcomes("verl", 200, 210), outcomes("rollpacker", 100, 105, eta=1.25))


def test_a_single_gpu_is_one_gpu():
    trials = (outcomes("verl", 12.5, num_gpus=1), outcomes("rollpacker", 10.5, eta=1.25, num_gpus=1))
    assert "On 1 GPU, per step" in shown(80, *trials, num_gpus=1)


def test_only_what_was_tried_is_said_to_be_tried_and_what_was_left_out_is_named():
    first = (outcomes("verl", 200, 210), outcomes("rollpacker", 100, 105, eta=1.25))
    left_out = {"speculation factors": 3, "half and twice the GPUs": 4}
    text = " ".join(shown(200, *first, left_out=left_out).split())
    assert "were tried at the best TP only" not in text
    told = "7 further runs did not fit into seconds=..., of speculation factors, half and twice the GPUs: give more"
    assert told in text
    more = (outcomes("rollpacker", 95, eta=1.5), outcomes("rollpacker", 55, eta=1.25, num_gpus=64))
    text = " ".join(shown(200, *first, *more[:1]).split())
    assert "From coarse to fine: other values of eta were tried at the best TP only." in text
    text = " ".join(shown(200, *first, *more).split())
    assert "other values of eta and other numbers of GPUs were tried" in text
    assert "further runs" not in text


def test_hardware_without_fitted_overheads_is_not_to_be_compared():
    trials = (outcomes("verl", 200), outcomes("rollpacker", 100, eta=1.25))
    told = "compare neither with those of fitted hardware"
    assert told in " ".join(shown(200, *trials, hardware="h100").split())
    assert told not in " ".join(shown(200, *trials).split())


def test_overheads_that_were_fitted_on_another_gpu_are_said_to_be_of_it():
    trials = (outcomes("verl", 200), outcomes("rollpacker", 100, eta=1.25))
    words = ["hardware.memory_gb=24", "hardware.tflops=165"]
    text = " ".join(shown(200, *trials, more_words=words).split())
    assert "with overheads fitted to what" in text
    assert "runs, but hardware=h800 has other values of memory_gb, tflops: step times" in text
    assert "other values" not in " ".join(shown(200, *trials).split())


def test_by_a_profile_the_gpus_are_those_measured_no_system_lends_engines_and_what_was_not_measured_is_told(
    tmp_path: Path,
):
    trials = (outcomes("verl", 200), outcomes("rollpacker", 100, eta=1.25))
    write_profile(tmp_path / "profile.json", profile(hardware="NVIDIA L4"))
    words = [f"model.shape.{key}={value}" for key, value in SMALLEST.shape.model_dump().items()]
    words += ["model.dtype=bfloat16", f"hardware.profile={tmp_path}/profile.json"]
    text = " ".join(shown(200, *trials, more_words=words).split())
    assert "Qwen2.5-7B on 32 GPUs (NVIDIA L4, measured 2026-11-20), 32 x 8 responses" in text
    assert f"model NVIDIA L4, measured 2026-11-20: computed from the profile {tmp_path}/profile.json," in text
    assert "Rules and LLM judges follow h800; programs that were not measured, the paper (Fig 7a)." in text
    assert "streaming rollpacker: A profile measures the trainer as a whole," in text
    assert "no engines are lent" not in " ".join(shown(200, *trials).split())


def test_what_the_source_of_the_lengths_does_not_tell_is_said_with_what_it_is():
    text = " ".join(shown(200, outcomes("verl", 200), outcomes("rollpacker", 100, eta=1.25)).split())
    assert "0.0% are cut at 4,096. 3 of 9 were aborted." in text
    assert "trainer Whether it fits into the memory of its GPUs is not checked." in text


def test_of_lengths_of_turns_no_share_is_said_to_be_cut_at_the_limit_of_all_turns():
    trials = (outcomes("verl", 200), outcomes("rollpacker", 100, eta=1.25))
    text = " ".join(shown(200, *trials, lengths=replace(LENGTHS, share_at_limit=None)).split())
    assert "2,000 turns, the longest 4,096 tokens of a turn; 4,096 are the limit of all turns of a response" in text
    assert "are cut" not in text
