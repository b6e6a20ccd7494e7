from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from rollpacker.config.compose import compose
from rollpacker.config.words import replaced
from rollpacker.core.errors import CheckpointError, ConfigError, DataError, ModelError, UserError, WorldError
from rollpacker.core.ids import Domain
from rollpacker.data import model_files, skeleton
from rollpacker.runtime.run import prompt_look
from rollpacker.runtime.run.folder_checks import check_creatable
from rollpacker.runtime.run.preflight import validate
from tests.cli.inputs import (
    CONFIG,
    NUM_PARAMETERS,
    tensors_of,
    tree_of,
    write_checkpoint,
    write_model,
    write_prompts,
    write_shards,
)
from tests.runtime.allocations import enter_step


@pytest.fixture
def inputs(tmp_path: Path) -> list[str]:
    write_model(tmp_path / "model")
    write_prompts(tmp_path / "prompts.jsonl", ["math"] * 30 + ["code"] * 10)
    return [f"model.path={tmp_path}/model", f"data.path={tmp_path}/prompts.jsonl", f"run.dir={tmp_path}/run"]


def test_a_legal_run_is_described_and_nothing_is_created(inputs: list[str], tmp_path: Path) -> None:
    before = tree_of(tmp_path)
    resolved = validate(compose(inputs))
    assert resolved.model.architecture == "Qwen2ForCausalLM"
    assert resolved.model.num_parameters == NUM_PARAMETERS
    assert resolved.model.max_positions == 2048
    assert resolved.num_prompts_by_domain == {Domain("math"): 30, Domain("code"): 10}
    assert resolved.finished_steps == 0
    assert tree_of(tmp_path) == before


def test_where_there_is_no_model_nothing_is_said_of_its_chat_template(inputs: list[str], tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(
        json.dumps({"domain": "math", "messages": [{"role": "user", "content": "1"}], "ground_truth": "1"})
    )
    words = [*inputs, "rollout.num_prompts=1"]
    with pytest.raises(ModelError, match="has no chat template"):
        validate(compose(words))
    with pytest.raises(ModelError, match="does not exist") as caught:
        validate(compose([*words, f"model.path={tmp_path}/models"]))
    assert "template" not in str(caught.value)


def test_weights_in_several_files_are_counted_together(inputs: list[str], tmp_path: Path) -> None:
    write_shards(tmp_path / "model")
    assert validate(compose(inputs)).model.num_parameters == NUM_PARAMETERS


def test_weights_of_torchs_own_format_leave_the_size_open(
    inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "ask_transformers", skeleton.compare)  # in this process, which has torch already
    (tmp_path / "model" / "model.safetensors").unlink()
    state = {name: torch.zeros(shape) for name, shape in tensors_of(CONFIG).items()}
    torch.save(state, tmp_path / "model" / "pytorch_model.bin")
    model = validate(compose(inputs)).model
    assert model.num_parameters is None
    assert model.num_weight_bytes > 4 * NUM_PARAMETERS


def test_a_model_that_does_not_name_its_positions_is_taken_at_any_length(inputs: list[str], tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "max_position_embeddings"}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    resolved = validate(compose([*inputs, "rollout.max_response_tokens=100000"]))
    assert resolved.model.max_positions is None


def test_lengths_may_fill_the_models_positions_exactly(inputs: list[str]) -> None:
    assert validate(compose([*inputs, "rollout.max_response_tokens=1024"]))
    with pytest.raises(ConfigError, match="add up to 2049"):
        validate(compose([*inputs, "rollout.max_response_tokens=1025"]))


@pytest.mark.parametrize(
    "lengths",
    [
        ["rollout.max_response_tokens=1500"],
        ["rollout.max_response_tokens=4096"],
        ["data.max_prompt_tokens=64", "rollout.max_response_tokens=2048"],
        ["rollout.max_response_tokens=3000", "evaluation.max_response_tokens=4096"],
        ["evaluation.max_response_tokens=4096"],
    ],
    ids=" ".join,
)
def test_lengths_that_the_model_has_no_positions_for_are_refused_with_some_that_fit(
    inputs: list[str], tmp_path: Path, lengths: list[str]
) -> None:
    words = [*inputs, held_out(tmp_path, "Never trained?"), *lengths]
    with pytest.raises(ConfigError, match="add up to") as caught:
        validate(compose(words))
    fitting = re.findall(r"[a-z_.]+_tokens=\d+", caught.value.remedy)
    assert validate(compose(replaced(words, fitting)))


def test_every_domain_of_the_file_needs_a_weight_or_none_has_one(inputs: list[str]) -> None:
    with pytest.raises(ConfigError, match="no weight for code"):
        validate(compose([*inputs, "data.domain_weights.math=1"]))


def test_a_weight_that_is_missing_is_advised_in_quotes_where_the_domain_needs_them(
    inputs: list[str], tmp_path: Path
) -> None:
    row = {"prompt": "1 + 1 =", "ground_truth": "2"}
    lines = [json.dumps({**row, "domain": domain}) for domain in ("math", "A & B")]
    (tmp_path / "two.jsonl").write_text("\n".join(lines))
    words = replaced(inputs, [f"data.path={tmp_path / 'two.jsonl'}", "rollout.num_prompts=2"])
    with pytest.raises(ConfigError, match=r"""Add 'data\.domain_weights\."A & B"=\.\.\.'"""):
        validate(compose([*words, "data.domain_weights.math=1"]))


def test_a_domain_has_enough_prompts_for_its_places_in_a_batch(inputs: list[str]) -> None:
    weights = "data.domain_weights={math: 1, code: 1}"
    assert validate(compose([*inputs, weights, "rollout.num_prompts=20"]))
    with pytest.raises(ConfigError, match="`code` has 10 prompts, but fills 11 places"):
        validate(compose([*inputs, weights, "rollout.num_prompts=22"]))


def test_a_file_with_exactly_one_batch_is_enough(inputs: list[str]) -> None:
    assert validate(compose([*inputs, "rollout.num_prompts=40"]))
    with pytest.raises(DataError, match="40 prompts, fewer than"):
        validate(compose([*inputs, "rollout.num_prompts=41"]))


def test_a_run_is_not_resumed_with_other_prompts(inputs: list[str], tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "run", inputs, 10)
    assert validate(compose([*inputs, "run.resume=auto"])).finished_steps == 10
    lines = (tmp_path / "prompts.jsonl").read_text().splitlines(keepends=True)
    for others in ([*lines[1:], lines[0]], lines[1:], [line.replace('"p3"', '"q3"') for line in lines]):
        (tmp_path / "prompts.jsonl").write_text("".join(others))
        with pytest.raises(CheckpointError, match=r"data\.path, or their order, are not those of the checkpoint"):
            validate(compose([*inputs, "run.resume=auto"]))


def test_a_run_is_resumed_whose_checkpoint_is_without_prompts_that_are_too_long(
    inputs: list[str], tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "run", inputs, 10)
    line = {"id": "long", "domain": "math", "prompt": "1 " * 200, "ground_truth": "1"}
    with (tmp_path / "prompts.jsonl").open("a") as file:
        file.write(json.dumps(line))
    for limit, is_resumed in ((199, True), (200, False)):
        words = [*inputs, "run.resume=auto", f"data.max_prompt_tokens={limit}"]
        write_checkpoint(tmp_path / f"run-{limit}", [*inputs, f"data.max_prompt_tokens={limit}"], 10)
        order = tmp_path / "run" / "checkpoints" / "step-000010" / "order.json"
        shutil.copy(order, tmp_path / f"run-{limit}" / "checkpoints" / "step-000010")
        with nullcontext() if is_resumed else pytest.raises(CheckpointError, match="not those of the checkpoint"):
            validate(compose([*words, f"run.dir={tmp_path}/run-{limit}"]))


def test_prompts_that_the_points_of_a_sweep_share_are_tokenized_once(
    inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    original = prompt_look._in_other_process

    def count(function: Callable[..., object], *arguments: object) -> object:
        calls.append(function.__name__)
        return original(function, *arguments)

    monkeypatch.setattr(prompt_look, "_in_other_process", count)
    points = [[*inputs, f"run.dir={tmp_path}/run-{seed}", f"run.seed={seed}"] for seed in range(2)]
    for seed, words in enumerate(points):
        write_checkpoint(tmp_path / f"run-{seed}", words, 10)
    line = {"id": "long", "domain": "math", "prompt": "1 " * 3000, "ground_truth": "1"}
    with (tmp_path / "prompts.jsonl").open("a") as file:
        file.write(json.dumps(line))
    resolved = [validate(compose([*words, "run.resume=auto"])) for words in points]
    assert [each.finished_steps for each in resolved] == [10, 10]
    assert len(calls) == 1


def test_prompts_are_tokenized_in_a_process_that_waits_for_no_lock_of_this_one(
    inputs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Lock()
    held.acquire()
    monkeypatch.setattr(prompt_look, "make_tokenizer", lambda _: held.acquire())  # as libraries do in a fork
    assert prompt_look.notes_of_tokens(compose(inputs)) == []


def test_tokens_that_take_too_long_are_not_counted(inputs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_look, "LOOK_S", 0.01)
    (note,) = prompt_look.notes_of_tokens(compose(inputs))
    assert note == "The prompts' tokens were not counted: that takes longer than 0.01 s."


def test_a_process_whose_parent_has_ended_does_not_tokenize() -> None:
    words = [sys.executable, "-m", "rollpacker.runtime.run.prompt_look", "1"]
    process = subprocess.run(words, input=b"", capture_output=True, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (1, b"", b"")


def test_a_process_that_dies_over_the_prompts_is_told(inputs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorldError, match="tokenizes the prompts ended with code 1"):
        prompt_look.notes_of_tokens(compose(inputs))


def test_a_safetensors_file_with_a_torn_header_is_a_model_error(inputs: list[str], tmp_path: Path) -> None:
    shard = tmp_path / "model" / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:40])
    with pytest.raises(ModelError, match="not a safetensors file"):
        validate(compose(inputs))


def test_a_run_without_megatron_core_is_refused_unless_an_image_has_it(
    inputs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    validate(compose([*inputs, "trainer=megatron"]))
    monkeypatch.setitem(sys.modules, "megatron.core", None)  # as Python marks a module that is not to be found
    validate(compose(inputs))
    validate(compose([*inputs, "trainer=megatron", "cluster=slurm", "cluster.container.image=rollpacker.sif"]))
    with pytest.raises(UserError, match="Megatron-core is not installed") as error:
        validate(compose([*inputs, "trainer=megatron"]))
    assert "rollpacker[megatron]" in error.value.allowed


def test_what_an_image_has_is_looked_at_by_the_rank_that_runs_in_it(
    inputs: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("def loss(current, advantages):\n    return advantages\n")
    image = ["cluster=slurm", "cluster.container.image=rollpacker.sif"]
    config = compose([*inputs, f"trainer.loss={tmp_path}/mine.py:loss", *image])
    validate(config)
    monkeypatch.setenv("APPTAINER_CONTAINER", "rollpacker.sif")
    validate(config)
    enter_step(monkeypatch)
    with pytest.raises(UserError, match="has no gradient with respect to `current`"):
        validate(config)


def test_a_cluster_without_the_launcher_is_noted_where_no_job_has_it(
    inputs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (note,) = validate(compose([*inputs, "cluster=slurm"])).notes
    assert note == "cluster=slurm: the run starts on this machine all the same; -m hydra/launcher=slurm submits it."
    assert not validate(compose(inputs)).notes
    enter_step(monkeypatch)
    assert not validate(compose([*inputs, "cluster=slurm"])).notes


@pytest.mark.parametrize(
    ("parameters", "words", "is_noted"),
    [
        ("current, advantages", ["engine=vllm"], True),
        ("current, advantages", ["engine=vllm", "trainer.mismatch=none"], False),
        ("current, advantages", [], False),
        ("current, advantages, behaviour", ["engine=vllm"], False),
    ],
    ids=["uncorrected", "as was chosen", "engine as the trainer", "corrects itself"],
)
def test_a_loss_of_ones_own_that_leaves_the_gap_to_vllm_uncorrected_is_noted(
    inputs: list[str], monkeypatch: pytest.MonkeyPatch, parameters: str, words: list[str], is_noted: bool
) -> None:
    folder = Path(inputs[0].removeprefix("model.path=")).parent
    monkeypatch.setattr("rollpacker.runtime.run.preflight.check_vllm", lambda _: None)
    (folder / "mine.py").write_text(f"def loss({parameters}):\n    return -current * advantages\n")
    notes = validate(compose([*inputs, f"trainer.loss={folder}/mine.py:loss", *words])).notes
    assert ["trainer.mismatch=token_truncate" in note for note in notes] == [True] * is_noted


@pytest.mark.parametrize(
    ("parameters", "num_updates", "is_noted"),
    [
        ("current, advantages", 2, True),
        ("current, advantages", 1, False),
        ("current, proximal, advantages", 2, False),
        ("current, behaviour, advantages", 2, False),
    ],
)
def test_a_loss_of_ones_own_that_takes_later_updates_for_the_first_is_noted(
    inputs: list[str], parameters: str, num_updates: int, is_noted: bool
) -> None:
    folder = Path(inputs[0].removeprefix("model.path=")).parent
    (folder / "mine.py").write_text(f"def loss({parameters}):\n    return -current * advantages\n")
    words = ["system=verl", f"trainer.num_minibatches={num_updates}", f"trainer.loss={folder}/mine.py:loss"]
    notes = validate(compose([*inputs, *words])).notes
    assert ["all updates of a step but the first" in note for note in notes] == [True] * is_noted


def test_an_advantage_of_ones_own_gets_equal_rewards_where_such_groups_are_trained(inputs: list[str]) -> None:
    folder = Path(inputs[0].removeprefix("model.path=")).parent
    (folder / "mine.py").write_text(
        "def spread(rewards):\n    return [r / (max(rewards) - min(rewards)) for r in rewards]"
    )
    words = [*inputs, f"trainer.advantage={folder}/mine.py:spread"]
    validate(compose([*words, "system=dapo"]))
    for trained in (["system=verl"], ["system=dapo", "reward.overlong_buffer_tokens=16"]):  # shaped after sampling
        with pytest.raises(ConfigError, match="it raised ZeroDivisionError"):
            validate(compose([*words, *trained]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lend this process another user's rights")
def test_a_folder_of_another_user_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        os.seteuid(65534)
        try:
            with pytest.raises(ConfigError, match="cannot be written"):
                check_creatable("run.dir", folder / "runs" / "x")
        finally:
            os.seteuid(0)
        check_creatable("run.dir", folder / "runs" / "x")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lend this process another user's rights")
def test_a_file_that_may_be_written_cannot_be_replaced_in_a_folder_that_may_not() -> None:
    with tempfile.TemporaryDirectory() as name:
        file, link = Path(name) / "locked" / "out.parquet", Path(name) / "link.parquet"
        file.parent.mkdir()
        file.write_text("")
        link.symlink_to(file)
        file.chmod(0o666)
        Path(name).chmod(0o777)
        os.seteuid(65534)
        try:
            for path in (file, link):
                with pytest.raises(ConfigError, match="locked does not let you"):
                    check_creatable("out", path)
        finally:
            os.seteuid(0)
        check_creatable("out", link)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_locked_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(ConfigError, match="cannot be written"):
        check_creatable("run.dir", tmp_path / "locked" / "x")


def held_out(folder: Path, *questions: str, domain: str = "math") -> str:
    lines = [
        {"id": f"q{number}", "domain": domain, "prompt": question, "ground_truth": "1"}
        for number, question in enumerate(questions)
    ]
    (folder / "new.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"evaluation.path={folder}/new.jsonl"


def test_held_out_sets_are_counted(inputs: list[str], tmp_path: Path) -> None:
    resolved = validate(compose([*inputs, held_out(tmp_path, "New?", "And?")]))
    assert resolved.num_held_out == {"new": 2}


def test_a_domain_that_only_a_held_out_set_has_gets_a_reward_of_its_own(inputs: list[str], tmp_path: Path) -> None:
    words = [*inputs, held_out(tmp_path, "New?", domain="science"), "reward=math", "reward.domains.science=math"]
    assert validate(compose(words)).num_held_out == {"new": 1}
    mistake = r"(?s)`sience`, which no prompt in .*prompts\.jsonl or .*new\.jsonl has .*Write reward\.domains\.science"
    with pytest.raises(ConfigError, match=mistake):
        validate(compose([*words, "reward.domains.sience=math"]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluation.path=nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["EVALUATION", "evaluation.max_response_tokens=1025"], "evaluation.max_response_tokens=1025 add up to 2049"),
        (["EVALUATION", "evaluation.num_samples=1000000"], "An evaluation has 2,000,000 responses"),
        (["TRAINED"], "both read"),
    ],
)
def test_held_out_sets_that_cannot_be_evaluated_are_refused_before_the_start(
    inputs: list[str], tmp_path: Path, words: list[str], message: str
) -> None:
    places = {"EVALUATION": held_out(tmp_path, "New?", "And?"), "TRAINED": f"evaluation.path={tmp_path}/prompts.jsonl"}
    named = [places.get(word, word) for word in words]
    with pytest.raises(UserError, match=message):
        validate(compose([*inputs, *named]))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run.keep_best=true"], "run.keep_best=true without evaluation.path"),
        (["evaluation.path=new.jsonl", "run.keep_best=true", "run.best_by=old"], "run.best_by=old is no held-out set"),
        (["evaluation.path=new.jsonl", "evaluation.temperature=5", "engine=vllm"], "evaluation.temperature of new=5"),
        (["evaluation.path=new.jsonl", "evaluation.when=fill", "run.keep_best=true"], "fill with run.keep_best=true"),
        (["evaluation.path=new.jsonl", "evaluation.when=fill", "system=dapo"], "fill with system.dynamic_sampling"),
        (["evaluation.path=new.jsonl", "evaluation.when=fill", "system=flash"], "fill with system.max_staleness=2"),
        (
            ["evaluation.path=new.jsonl", "evaluation.when=fill", "system=tail", "system.eta_prompts=1"],
            "fill with system.eta_responses",
        ),
    ],
)
def test_settings_of_evaluation_that_contradict_others_are_refused(
    inputs: list[str], words: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        compose([*inputs, *words])
