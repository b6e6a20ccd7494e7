"""`rollpacker plan` as a user meets it: one small plan from the words to the files, what it refuses, and its ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from rollpacker.analysis.plan.question import Question, split_arguments
from rollpacker.cli.main import main
from rollpacker.config.words import replaced
from rollpacker.core.errors import ConfigError
from rollpacker.metrics.profiles import write_profile
from tests.cli.inputs import tree_of
from tests.e2e.processes import workers_of
from tests.sim.clusters import SMALL as SMALLEST
from tests.sim.test_profile import profile

SMALL = [
    "model=qwen2.5-7b",
    "gpus=4",
    "workload=math",
    "rollout.num_prompts=4",
    "rollout.num_responses=2",
    "rollout.max_response_tokens=4096",
    "workload.num_prompts=100",
]


@pytest.mark.timeout(300)
def test_a_small_plan_prints_an_answer_and_writes_what_it_is_made_of(workdir, capsys):
    lengths = workdir / "lengths.csv"
    lengths.write_text("\n".join(map(str, ["length_tokens", *range(300, 390), *range(900, 908), 3000, 3000])))
    words = ["plan", *SMALL, f"workload.lengths={lengths}", "workload.domain=null", "seeds=2", "workers=1", "out=plan"]
    assert main([*words, "engine.tensor_parallel=1", "systems=verl,rollpacker"]) == 0
    printed = " ".join(capsys.readouterr().out.split())  # as if lines were not broken
    assert "MODELLED, not measured: Qwen2.5-7B on 4 GPUs (h800), 4 x 2 responses" in printed
    assert "fitted to what the paper reports" in printed
    assert "100 responses, the longest 3,000 tokens" in printed
    assert "So few say little of the tail: its top 1 % is 1 responses." in printed
    assert "give or take" in printed
    assert "rho, of lengths within a prompt, is a guess. Speedup of rollpacker:" in printed
    trials, drawn = (pd.read_parquet(workdir / "plan" / f"{name}.parquet") for name in ("plan", "lengths"))
    assert trials["modelled"].all()
    assert drawn["modelled"].all()
    assert set(trials["eta"].dropna()) == {1.0, 1.125, 1.25, 1.5}
    assert set(trials["num_gpus"]) == {2, 4, 8}
    assert set(trials["rho"]) == {0.0, 0.3, 0.6}
    assert 3000 < drawn["length_tokens"].max() <= 4096
    assert "Beyond 3,000 the tail is extrapolated" in printed
    assert {path.name for path in (workdir / "plan").iterdir()} == {
        "plan.parquet",
        "lengths.parquet",
        "plan.png",
        "plan.pdf",
    }
    assert not [path for path in workdir.iterdir() if path.name.startswith(".tmp-")]


@pytest.mark.timeout(300)
def test_a_plan_by_a_profile_compares_no_other_numbers_of_gpus_and_says_of_which_it_is(workdir, capsys):
    write_profile(workdir / "profile.json", profile())
    words = ["plan", "gpus=4", "hardware=cpu", "hardware.gpus_per_node=4", "hardware.profile=profile.json"]
    words += [f"model.shape.{key}={value}" for key, value in SMALLEST.shape.model_dump().items()]
    words += [word for word in SMALL if not word.startswith(("gpus=", "rollout.max_response_tokens="))]
    words += ["model.dtype=bfloat16", "rollout.max_response_tokens=100", "data.max_prompt_tokens=10"]
    words += ["workload.prompt_tokens=10", "seeds=1", "workers=1", "out=plan", "systems=verl,rollpacker"]
    assert main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "(Fig 7a). Other numbers of GPUs are not compared." in printed
    assert "Engines and trainer have 4 and 4 GPUs, and had 1 and 1 when profile.json was measured" in printed
    assert set(pd.read_parquet(workdir / "plan" / "plan.parquet")["num_gpus"]) == {4}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("are_named", [False, True])
def test_a_system_with_a_length_history_is_modelled_beyond_its_first_epoch_or_that_is_said(workdir, capsys, are_named):
    lengths = workdir / "lengths.csv"
    rows = [(f"p{number}", 300 + 10 * number) for number in range(200)]
    table = pd.DataFrame(rows, columns=["prompt", "length_tokens"])
    (table if are_named else table[["length_tokens"]]).to_csv(lengths, index=False)
    words = ["plan", *SMALL, f"workload.lengths={lengths}", "workload.domain=null", "seeds=1", "workers=1", "out=plan"]
    assert main([*words, "engine.tensor_parallel=1", "systems=verl,ours", "seconds=1"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert ("ours knows prompts by their last epoch, and some runs ended in the first one" in printed) == are_named
    trials = pd.read_parquet(workdir / "plan" / "plan.parquet").query("system == 'ours'")
    assert (trials["deferred_at_once"] > 0).all() == (not are_named)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model=qwen2.5-7b"], "Add gpus=32"),
        (replaced(SMALL, ["gpus=none"]), "`gpus` is an integer of at least 1"),
        ([*SMALL, "gpu=8"], "Write gpus=..."),
        ([*SMALL, "rollout.num_promts=8"], "The nearest legal key is `rollout.num_prompts`"),
        ([*SMALL, "hardware=h80"], "Write hardware=h800"),
        ([*SMALL, "system=rollpacker"], "Write systems=verl,rollpacker"),
        ([*SMALL, "engine.num_engines=8"], "Write gpus=N"),
        ([*SMALL, "hardware.num_nodes=1"], "Write gpus=N"),
        ([*SMALL, "placement=separate"], "Leave it out: engines and trainer take turns on all GPUs"),
        ([*SMALL, "placement.engine=rest", "placement.trainer=4-7"], "`placement.trainer=4-7` with `rollpacker plan`"),
        ([*SMALL, "setup=flash"], "placement.engine=rest and placement.trainer=6-7 with `rollpacker plan`"),
        ([*SMALL, "experiment=elastic-workers"], "Write elastic=none"),
        ([*SMALL, "elastic=sim"], "Write elastic=none"),
        ([*SMALL, "engine.tensor_parallel=3"], "Leave out engine.tensor_parallel, or choose another."),
        ([*SMALL, "systems=verl,rolpacker"], "Write rollpacker"),
        ([*SMALL, "systems=verl"], "compares nothing"),
        ([*SMALL, "systems=rollpacker,verl"], "does not compare plain with tail batching"),
        ([*SMALL, "trainer.context_parallel=3"], "Write gpus=6"),
        ([*SMALL, "trainer.tensor_parallel=8"], "trainer.tensor_parallel=8 does not divide the model's"),
        (
            replaced(SMALL, ["model=qwen2.5-32b", "hardware=h100", "gpus=4"]),
            "gpus=4: with trainer.tensor_parallel=4, weights and gradients take 49 of the 80 GB of each GPU.",
        ),
        ([*SMALL, "workload.lengths=missing.csv"], "missing.csv"),
        ([*SMALL, "out=prompts.jsonl"], "out=prompts.jsonl is a file"),
        ([*SMALL, "out=/proc/x"], "Choose another out"),
        ([*SMALL, "out=a$b"], "out=a$b would be taken literally"),
        ([*SMALL, f"out={'x' * 300}"], "Choose a shorter out"),
        ([*SMALL, "out=a,b {c}", "trainer.tensor_parallel=8"], "trainer.tensor_parallel=8 does not divide the model's"),
        ([*SMALL, "out=a\nb"], "Choose another out"),
        ([*SMALL, "model.path=model"], "model.path=model has another shape than model.name=Qwen2.5-7B: num_layers 2"),
        ([*SMALL, "out=model"], "Choose another out"),
        (["gpus=4"], "Add model=qwen2.5-14b"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_created(workdir, capsys, words, message):
    before = tree_of(workdir)
    assert main(["plan", *words]) == 2
    assert message in capsys.readouterr().err
    assert tree_of(workdir) == before


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "lengths.csv cannot be read: "),
        ("", "lengths.csv cannot be read: "),
        ("length_tokens\n", "lengths.csv has no rows"),
        ("tokens\n5\n", "lengths.csv has the columns tokens"),
        ("length_tokens\n-5\n", "lengths.csv, row 1: length_tokens is `-5`"),
        ("length_tokens\nfive\n", "lengths.csv, row 1: length_tokens is `five`"),
        ("length_tokens\nnan\n", "lengths.csv, row 1: length_tokens is `nan`"),
        ("length_tokens\n0\n", "lengths.csv, row 1: length_tokens is `0`"),
        ("length_tokens\n99999999999999\n", "lengths.csv, row 1: length_tokens is `99999999999999`"),
        ("\0\0", "lengths.csv"),
    ],
)
def test_a_fault_of_the_lengths_is_blamed_on_nothing_else(workdir, capsys, content, fault):
    if content is not None:
        Path("lengths.csv").write_text(content)
    before = tree_of(workdir)
    assert main(["plan", "gpus=8", "model=qwen2.5-7b", "hardware=h800", "workload.lengths=lengths.csv"]) == 2
    text = capsys.readouterr().err
    assert f"workload.lengths={fault}" in text or f"workload.lengths={workdir / fault}" in text
    assert "No engine" not in text
    assert tree_of(workdir) == before


def test_where_no_degree_fits_every_degree_has_its_reason(workdir, capsys):
    words = ["gpus=4", "model=qwen2.5-14b", "hardware=a100-40g", "rollout.max_response_tokens=5000000"]
    assert main(["plan", *words, "trainer.tensor_parallel=1"]) == 2
    text = capsys.readouterr().err
    assert "No engine of system=verl fits on gpus=4." in text
    for degree in (1, 2, 4):
        assert f"TP {degree}: An engine of engine.tensor_parallel={degree} " in text


def test_the_settings_of_the_plan_are_separated_from_the_keys_of_the_runs():
    question, words = split_arguments(["gpus=32", "model=x", "seconds=9", "systems=verl,tail", "run.num_epochs=null"])
    assert words == ["model=x", "run.num_epochs=null"]
    assert question == Question(
        num_gpus=32,
        out=None,
        seconds=9,
        num_seeds=3,
        systems=("verl", "tail"),
        num_workers=len(os.sched_getaffinity(0)),
    )


def test_all_mistakes_are_told_together():
    with pytest.raises(ConfigError) as caught:
        split_arguments(["system=verl", "seeds=0"])
    text = str(caught.value)
    assert "`system=verl`" in text
    assert "seeds=0" in text
    assert "`gpus` is not set" in text


@pytest.mark.parametrize(
    ("number", "last_line"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")]
)
def test_an_interrupted_plan_leaves_no_file_and_no_process(workdir, number, last_line):
    scratch = workdir / "scratch"
    scratch.mkdir()
    out = workdir / "out" / "plan"
    process = subprocess.Popen(
        [sys.executable, "-m", "rollpacker.cli", "plan", *SMALL, "workers=2", "systems=verl,rollpacker", f"out={out}"],
        env=os.environ | {"TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
    )
    workers = workers_of(process, 2)
    assert len(list(scratch.glob("rollpacker-plan-*"))) == 1
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert errors.endswith(f"{last_line}\n")
    assert "Traceback" not in errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert list(scratch.iterdir()) == []
    assert not out.parent.exists()


def test_a_limit_that_nobody_chose_and_that_cuts_the_tail_off_is_refused(workdir, capsys):
    words = [word for word in SMALL if not word.startswith("rollout.max_response_tokens=")]
    assert main(["plan", *words]) == 2
    told = capsys.readouterr().err
    assert "of the responses are longer than rollout.max_response_tokens=256." in told
    assert "Add rollout.max_response_tokens=" in told
