from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from rollpacker import __version__
from rollpacker.cli.main import main
from rollpacker.core.events import EngineJoined, StepStarted
from rollpacker.core.ids import Domain, EngineId
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import SchedulerSettings
from rollpacker.metrics.event_log import EventLogWriter
from tests.cli.conftest import run
from tests.cli.inputs import NUM_PARAMETERS, tree_of, write_checkpoint, write_model, write_prompts
from tests.runtime.placing.test_host import driver_with

RUN = ["model.path=model", "data.path=prompts.jsonl"]
ROOT = Path(__file__).parents[2]


def test_the_version_is_the_packages(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"], capsys) == f"rollpacker {__version__}"


def test_check_says_which_sequences_context_parallel_ranks_do_not_split(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("check", "backend=sim", "setup=paper", "model=qwen2.5-14b", "run.dir=x")
    for above, said in (("null", "up to 8,704 tokens stays whole on one of 2 context-parallel ranks"), ("0", "")):
        text = run([*words, f"trainer.context_parallel_above={above}"], capsys)
        assert said in text
        assert ("stays whole" in text) == bool(said)


def test_check_says_what_tail_batching_will_do(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree_of(workdir)
    text = run(["check", *RUN, "rollout.num_prompts=16", "run.num_steps=10", "run.dir=runs/x"], capsys)
    assert f"Qwen2ForCausalLM, {NUM_PARAMETERS:,} parameters" in text
    assert "40 in prompts.jsonl: math 40" in text
    assert "16 prompts x 8 responses = 128 responses per step" in text
    assert "launch 20 prompts x 10 responses and take the first 16 x 8; the 4 slower prompts are deferred" in text
    assert "4 short rounds per long round" in text
    assert "10, which is 4 epochs of 2.5 steps" in text
    assert "2 engines x 1 CPU, 1 trainer x 1 CPU, 1 reward x 0.5 CPUs" in text
    assert "runs/x/" in text
    assert "from the beginning" in text
    assert "rollout.num_prompts 16 " in text
    assert "max_response_tokens" not in text  # as it is by default
    assert tree_of(workdir) == before


def test_check_says_what_a_length_history_will_do(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["system=ours", "system.first_epoch=race"]
    text = run(["check", *RUN, *words, "rollout.num_prompts=16", "run.dir=runs/x"], capsys)
    assert "short rounds launch 18 prompts x 8 responses and take the first 16 x 8" in text
    assert "23 prompts are drawn for one, and the 5 with the longest responses so far wait for a long round" in text
    assert "as in the first epoch, launch 20 prompts x 10 responses (system.first_epoch)" in text
    assert "2.3 short rounds per long round" in text
    words = ["system=ours", "run.num_epochs=1"]
    text = run(["check", *RUN, *words, "rollout.num_prompts=16", "run.dir=runs/x"], capsys)
    assert "as in the first epoch, wait for every response" in text
    assert "system.length_history has no effect in one epoch" in text


def test_check_on_gpus_prints_what_was_chosen_for_them_and_why(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_with(workdir / "driver", *["NVIDIA A100-SXM4-40GB"] * 2)
    monkeypatch.setattr("rollpacker.runtime.placing.host.DRIVER_GPUS", driver)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("rollpacker.runtime.placing.gpus.is_vllm_for_gpus_installed", lambda: False)
    text = run(["check", *RUN, "run.dir=runs/x"], capsys)
    assert "placement.engine=all 2 GPUs of 40 GB: engines and trainer take turns on them" in text
    assert "trainer=fsdp parameters, gradients and optimizer are shared out" in text
    assert "Taking turns: engines sleep while the trainer works" in text
    assert "2 engines x 1 CPU + 1 GPU, 2 trainers x 1 CPU + 1 GPU" in text
    text = run(["check", *RUN, "run.dir=runs/x", "placement=none"], capsys)
    assert "Chosen" not in text
    assert "2 engines x 1 CPU, 1 trainer x 1 CPU" in text
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "Chosen" not in run(["check", *RUN, "run.dir=runs/x"], capsys)


def test_check_full_prints_every_key(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(["check", "full", *RUN, "rollout.num_prompts=16"], capsys)
    assert "num_prompts: 16 num_responses: 8 max_response_tokens: 256" in text


def test_check_says_what_plain_batching_will_do(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(["check", *RUN, "system=verl", "run.num_epochs=2"], capsys)
    assert "verl: a step waits for every response of its batch; they are scored after the last one" in text
    assert "rounds launch" not in text
    assert "about 3, limited by run.num_epochs" in text
    assert "learning rate" not in text


def test_check_says_where_epochs_end_before_the_schedule_of_the_learning_rate(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*schedule: str) -> str:
        return " ".join(run(["check", *RUN, "system=verl", "run.num_epochs=2", *schedule], capsys).split())

    decays = "the learning rate decays over run.num_steps=100; set it to 3 to have it decay over the epochs"
    ends_before = "the run ends before its learning rate is trainer.learning_rate=1e-06: trainer.warmup_steps=20"
    assert decays in said("trainer.lr_schedule=cosine")
    text = said("trainer.warmup_steps=20")
    assert ends_before in text
    assert "decays" not in text
    text = said("trainer.warmup_steps=20", "trainer.lr_schedule=linear")
    assert ends_before in text
    assert decays in text
    for schedule in (("trainer.warmup_steps=3",), ("trainer.lr_schedule=cosine", "run.num_steps=3")):
        assert "learning rate" not in said(*schedule)


def test_check_counts_evaluations_by_the_steps_that_an_epoch_gives(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"prompt": f"{number} + 0 =", "domain": "math", "ground_truth": number} for number in range(40, 60)]
    (workdir / "test.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ["run.num_epochs=2", "run.num_steps=100", "evaluation.path=test.jsonl", "evaluation.every_steps=2"]
    text = run(["check", *RUN, "system=verl", *words], capsys)
    assert "3 evaluations, 60 responses in all, where training has 768" in text


def test_the_demo_refuses_what_it_sets_itself_before_anything_is_made(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for word in ("system=verl,tail", "run.dir=x"):
        assert main(["demo", "mixed", word]) == 2
        assert f"`{word}` with `rollpacker demo`" in capsys.readouterr().err
    assert not (workdir / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollout.num_promts=8"], "`rollout.num_prompts`"),
        (["mixed", "rollout.num_prompts=0"], "at least 1"),
        (["mixde"], "Write mixed."),
    ],
)
def test_the_demo_refuses_a_mistake_before_anything_is_made(
    words: list[str], said: str, workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollpacker.demo.three_commands._prepare", lambda *_: pytest.fail("began"))
    assert main(["demo", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (workdir / "runs").exists()


def test_the_demo_refuses_a_folder_that_it_cannot_write_to_and_asks_for_another_one(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollpacker.demo.three_commands._prepare", lambda *_: pytest.fail("began"))
    (workdir / "runs").write_text("a file")
    assert main(["demo"]) == 2
    refusal = capsys.readouterr().err
    assert "runs is a file" in refusal
    assert refusal.endswith("Give it in another folder.\n")


def test_check_shows_quotas_that_add_up_to_the_batch(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_prompts(workdir / "prompts.jsonl", ["math"] * 30 + ["code"] * 20)
    text = run(["check", *RUN, "rollout.num_prompts=16"], capsys)
    assert "math 30, code 20" in text
    assert "of each domain: math 10, code 6" in text
    text = run(["check", *RUN, "rollout.num_prompts=16", "data.domain_weights={math: 1, code: 3}"], capsys)
    assert "of each domain: math 4, code 12" in text


def test_check_says_who_works_on_which_gpus_and_what_it_takes_there(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    sizes = {
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
    }
    write_model(workdir / "model", tie_word_embeddings=False, **sizes)
    trainer = ["trainer.name=megatron", "trainer.tensor_parallel=2", "trainer.data_parallel=2"]
    engines = ["engine.name=vllm", "engine.tensor_parallel=2", "engine.num_engines=4", "placement=overlapping"]
    nodes = ["backend.num_gpus=8", "backend.num_cpus=9", "cluster=h800"]
    words = ["check", *RUN, "model.dtype=bfloat16", *engines, *trainer, *nodes]
    text = run(words, capsys)
    assert "0 0-3 engine-0 to engine-1 engine 72.0 GB: weights 7.6 GB, KV cache 64.4 GB" in text
    assert "4-7 engine-2 to engine-3, trainer-0 to trainer-3, taking turns" in text
    assert "trainer 51.5 GB: weights 7.6 GB, gradients 15.2 GB, optimizer 22.8 GB" in text
    assert "none reward A GPU has 80.0 GB." in text
    assert "reserving 8.5 CPUs + 8 GPUs of 9 CPUs + 8 GPUs" in text
    nodes = ["backend.num_gpus=8", "backend.num_cpus=16", "cluster=h800"]
    torch_engines = ["engine.num_engines=8", "placement=overlapping", "model.dtype=bfloat16", *trainer, *nodes]
    text = run(["check", *RUN, *torch_engines, "engine.max_num_seqs=2048"], capsys)
    assert "weights 15.2 GB, KV cache up to 300.6 GB, more than there is: lower engine.max_num_seqs" in text
    text = run(["check", *RUN, *torch_engines, "rollout.max_response_tokens=1024", "engine.max_num_seqs=32"], capsys)
    assert "KV cache up to 7.5 GB" in text
    assert "more than there is" not in text
    assert main([*words, "cluster.gpu_memory_gb=40"]) == 2
    assert "A rank of trainer=megatron needs 45.7 GB of its GPU by an estimate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "groups train as they are accepted: the trainer shares no GPU"),
        (
            ["placement=colocated", "trainer=megatron", "trainer.data_parallel=2"],
            "up to half of the engines are lent to the trainer before the rollout ends",
        ),
        (
            ["placement=colocated", "trainer=megatron", "trainer.data_parallel=2", "system.stream_at=0.3"],
            "up to half of the engines are lent to the trainer when 30% of the requests are finished",
        ),
        (
            ["placement=colocated", "trainer=fsdp", "trainer.data_parallel=2"],
            "nothing streams to the trainer: it shares GPUs with engines, and no half of them",
        ),
        (
            ["placement.engine=0-1", "placement.trainer=1", "trainer=fsdp"],
            "up to half of the engines are lent to the trainer before the rollout ends",
        ),
    ],
    ids=["apart", "megatron", "megatron at a share", "fsdp", "one of two"],
)
def test_check_says_what_the_stream_trainer_can_do(
    workdir: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    two = ["engine.num_engines=2", "backend.num_gpus=2", "backend.num_cpus=8"]
    text = " ".join(run(["check", *RUN, "system=rlhfuse", *two, *words], capsys).split())
    assert expected in text


def test_check_reads_several_files_and_says_who_judges_each_domain(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"id": "w", "prompt": "3 5 :", "ground_truth": "3 5"}
    (workdir / "walks.jsonl").write_text("".join(f"{json.dumps(line | {'id': f'w{n}'})}\n" for n in range(20)))
    files = "data.path=[prompts.jsonl,{path:walks.jsonl,domain:walk}]"
    words = ["reward.domains.walk=walk", "rollout.num_prompts=9", "data.domain_weights={math:2,walk:1}"]
    text = run(["check", "model.path=model", files, *words, "data.long_prompts=truncate_left"], capsys)
    assert "60 in prompts.jsonl, walks.jsonl: math 40, walk 20 rewards: math by math, walk by walk" in text
    assert "of each domain: math 6, walk 3" in text
    assert "(longer ones lose their beginning)" in text


def test_check_says_what_ends_before_its_epochs_and_that_wandb_uploads_nothing_by_itself(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", *RUN, "rollout.num_prompts=10", "run.num_epochs=3", "tracker.wandb=true"]
    said = "run.num_epochs=3 would take about 12 steps: the run ends before, at run.num_steps=11."
    text = run([*words, "run.num_steps=11"], capsys)
    assert said in text
    assert "also to wandb (offline: `wandb sync` uploads it)" in text
    assert "the run ends before" not in run([*words, "run.num_steps=12"], capsys)


def test_check_says_where_a_resumed_run_goes_on(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (10, 20):
        write_checkpoint(workdir / "run", RUN, step)
    assert "start after step 20" in run(["check", *RUN, "run.dir=run", "run.resume=auto", "tracker.wandb=true"], capsys)


def test_check_names_an_option_that_was_chosen_instead_of_what_it_sets(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["backend=sim", "model=qwen2.5-7b", "hardware=h800", "workload=math", "hardware.tflops=500"]
    configuration, _, _ = run(["check", *words], capsys).partition("What it will do")
    assert "model qwen2.5-7b hardware h800 workload math" in configuration
    assert "hardware.tflops 500.0" in configuration
    assert "hidden_size" not in configuration
    assert "hardware.memory_gb" not in configuration
    whole, _, _ = run(["check", "full", *words], capsys).partition("What it will do")
    assert "hidden_size: 3584" in whole


def test_a_share_of_an_epoch_that_rounds_to_none_is_not_called_none(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run(["check", *RUN, "rollout.num_prompts=1", "run.num_steps=1"], capsys)
    assert "1, which is less than 0.1 epochs of 40 steps" in text


def test_all_keys_of_a_multirun_are_refused(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "full", "-m", *RUN, "run.seed=0,1"]) == 2
    assert "`full` with -m" in capsys.readouterr().err


def test_check_of_a_multirun_shows_what_the_points_share_once(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    text = run(["check", "-m", *RUN, "system=verl,rollpacker", "run.seed=0,1"], capsys)
    assert text.count("40 in prompts.jsonl") == 1
    assert text.count("chosen placement.engine=all, placement.trainer=all, ") == 1
    for number, words in enumerate(
        ["system=verl run.seed=0", "system=verl run.seed=1", "system=rollpacker run.seed=0"]
    ):
        assert f"Point {number} {words}" in text
    assert not (workdir / "runs").exists()


def test_score_prints_a_summary_and_writes_a_line_per_response(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    responses = [{"id": "p0", "response": r"\boxed{1}"}, {"id": "p1", "response": r"\boxed{1}"}]
    (workdir / "answers.jsonl").write_text("\n".join(map(json.dumps, responses)))
    text = run(["score", "data.path=prompts.jsonl", "responses=answers.jsonl", "out=scores.jsonl"], capsys)
    assert "responses 2" in text
    assert "mean reward 0.5" in text
    assert "correct 1 (50.0%)" in text
    scores = [json.loads(line) for line in (workdir / "scores.jsonl").read_text().splitlines()]
    assert [(score["id"], score["reward"]) for score in scores] == [("p0", 1.0), ("p1", 0.0)]


@pytest.mark.parametrize(
    "argv",
    [
        ["score", "data.path=prompts.jsonl", "responses=answers.jsonl", "out=s"],
        ["train", *RUN, "run.dir=s", "run.progress=none"],
        ["train", "-m", *RUN, "run.dir=s/${system.name}", "run.progress=none"],
    ],
    ids=" ".join,
)
def test_a_full_disk_is_the_worlds_failure_and_exits_1(argv: list[str], workdir: Path) -> None:
    (workdir / "answers.jsonl").write_text(json.dumps({"id": "p0", "response": r"\boxed{1}"}))
    done = subprocess.run(
        [sys.executable, "-m", "rollpacker.cli", *argv],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8)),
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("failed:\n")
    assert "Traceback" not in done.stderr
    assert not any(path.is_file() and path.stat().st_size > 8 for path in workdir.glob("s/**/*"))


def _write_log(run_dir: Path, *, is_honest: bool) -> None:
    settings = SchedulerSettings(
        batching="plain",
        num_prompts=1,
        num_responses=1,
        eta_prompts=Fraction(1),
        eta_responses=Fraction(1),
        overlap_rewards=True,
        domain_weights=((Domain("math"), Fraction(1)),),
    )
    scheduler = Scheduler(settings)
    writer = EventLogWriter(run_dir / "events" / "attempt-000.jsonl", settings, None)
    for event in (EngineJoined(engine=EngineId("engine-0"), policy_version=0), StepStarted(step=0, policy_version=0)):
        commands = scheduler.handle(event, 0.0)
        writer.append(event, 0.0, commands if is_honest else ())
    writer.close()


def test_replay_says_what_it_verified(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write_log(workdir / "run", is_honest=True)
    assert "1 attempt, 2 events replayed; all 1 commands are the same" in run(["replay", "run"], capsys)


def test_a_run_that_ended_before_its_log_began_is_no_wrong_path(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "run").mkdir()
    (workdir / "run" / "run.json").write_text("{}")
    assert main(["replay", "run"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "run is a run without a finished step yet" in said
    assert "`rollpacker jobs run` says whether it runs, or why it ended" in said


def test_a_replay_that_diverges_is_our_bug_and_exits_70(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write_log(workdir / "run", is_honest=False)
    assert main(["replay", "run"]) == 70
    assert "a bug in rollpacker" in capsys.readouterr().err


def test_help_check_and_errors_load_neither_torch_nor_ray_nor_transformers(workdir: Path) -> None:
    program = """
import sys
from rollpacker.cli.main import main
for argv in (["--help"], ["train", "--help"], ["score", "--help"], ["check", *sys.argv[1:]],
             ["check", "-m", *sys.argv[1:], "system=verl,rollpacker"], ["train", "run.sed=1"]):
    main(argv)
    heavy = {"torch", "ray", "transformers", "pyarrow", "pandas"} & sys.modules.keys()
    assert not heavy, (argv, heavy)
print("nothing heavy")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, *RUN],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.endswith("nothing heavy\n"), done.stderr


def test_a_sign_that_the_output_cannot_encode_is_a_question_mark(workdir: Path) -> None:
    words = ("check", "backend=sim", "model=qwen2.5-7b", "workload=agents", "run.dir=x")
    done = subprocess.run(
        [sys.executable, "-m", "rollpacker.cli", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "10 ? 10 s" in done.stdout


def test_an_error_in_the_wake_of_ctrl_c_is_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(argv: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise AttributeError("of a library that cleans up")

    monkeypatch.setattr("rollpacker.cli.main._dispatch", interrupted)
    assert main(["check"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_who_leaves_early_is_no_error(workdir: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "rollpacker.cli", "train", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert program.stdout is not None
    program.stdout.close()
    assert program.stderr is not None
    assert program.stderr.read() == ""
    assert program.wait() == 0
