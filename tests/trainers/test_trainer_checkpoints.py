from __future__ import annotations

import json
import resource
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollpacker.core.errors import CheckpointError, ModelError, StorageFailed
from rollpacker.trainers.checkpoints import State, read_state, write_state
from rollpacker.trainers.models import load_model

if TYPE_CHECKING:
    from pathlib import Path

REWARDS = [(1, 0, 0, 1), (0, 0, 0, 1), (1, 1, 1, 1), (0.5, 0, 1, 0)]


async def train(trainer: Any, bench: Any, numbers: range) -> list[Any]:
    metrics = []
    for number in numbers:
        groups = bench.groups(REWARDS, version=number, seed=number)
        await trainer.begin_step(bench.shape(groups, step=number, version=number))
        for group in groups:
            await trainer.accumulate([group])
        metrics.append(await trainer.finish_step())
    return metrics


@pytest.mark.parametrize(
    "section",
    [
        {"lr_schedule": "cosine", "warmup_steps": 2},
        {"num_minibatches": 2},
        {"kl_coefficient": 0.1, "loss_normalisation": "token_mean"},
        {"dtype": "bfloat16"},
    ],
)
async def test_a_resumed_trainer_goes_on_bit_for_bit(bench, tmp_path: Path, section: dict[str, Any]):
    unbroken = bench.trainer(**section)
    expected = await train(unbroken, bench, range(5))
    first = bench.trainer(**section)
    await train(first, bench, range(3))
    await first.save(tmp_path)
    await first.close()
    resumed = bench.trainer(**section)
    await resumed.load(tmp_path)
    assert (await resumed.export_weights()).policy_version == 3
    assert await train(resumed, bench, range(3, 5)) == expected[3:]
    assert (await resumed.export_weights()).checksum == (await unbroken.export_weights()).checksum
    for name, parameter in unbroken._policy._parameters.items():
        assert torch.equal(parameter, resumed._policy._parameters[name])
        for key, value in unbroken._policy._optimizer.state[parameter].items():
            assert torch.equal(value, resumed._policy._optimizer.state[resumed._policy._parameters[name]][key]), (
                name,
                key,
            )


async def test_a_checkpoint_before_the_first_step_undoes_every_later_one(bench, tmp_path: Path):
    trainer = bench.trainer()
    await trainer.save(tmp_path)
    expected = await train(trainer, bench, range(2))
    await trainer.load(tmp_path)
    assert await train(trainer, bench, range(2)) == expected


async def test_loading_drops_an_open_step_with_its_gradient(bench, tmp_path: Path):
    trainer = bench.trainer()
    await trainer.save(tmp_path)
    expected = await train(bench.trainer(), bench, range(1))
    groups = bench.groups(REWARDS)
    await trainer.begin_step(bench.shape(groups))
    await trainer.accumulate(groups[:2])
    await trainer.load(tmp_path)
    assert await train(trainer, bench, range(1)) == expected


async def test_the_generator_of_torch_is_restored(bench, tmp_path: Path):
    trainer = bench.trainer()
    torch.manual_seed(17)
    await trainer.save(tmp_path)
    expected = torch.rand(3)
    torch.manual_seed(18)
    await trainer.load(tmp_path)
    assert torch.equal(torch.rand(3), expected)


async def test_the_saved_model_is_a_complete_hugging_face_directory(bench, tmp_path: Path):
    trainer = bench.trainer(learning_rate=0.05, dtype="bfloat16")
    await train(trainer, bench, range(1))
    await trainer.save(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.use_cache
    assert model.config.dtype == torch.float32
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, trainer._policy._parameters[name])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.eos_token_id == 1
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(bench.model_path).chat_template
    original = (bench.model_path / "tokenizer.json").read_bytes()
    assert (tmp_path / "model" / "tokenizer.json").read_bytes() == original


async def test_defaults_of_generation_that_contradict_each_other_do_not_lose_the_checkpoint(bench, tmp_path: Path):
    """Transformers warns when it reads such a file, and refuses to write it."""
    source = tmp_path / "source"
    shutil.copytree(bench.model_path, source)
    (source / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.6, "eos_token_id": [1, 3]}')
    await type(bench)(model_path=source).trainer().save(tmp_path)
    saved = tmp_path / "model" / "generation_config.json"
    assert saved.read_bytes() == (source / "generation_config.json").read_bytes()


async def test_defaults_of_generation_in_an_old_config_do_not_lose_the_checkpoint(bench, tmp_path: Path):
    source = tmp_path / "source"
    shutil.copytree(bench.model_path, source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "temperature": 0.6, "max_length": 33}))
    trainer = type(bench)(model_path=source).trainer()
    await trainer.save(tmp_path)
    await trainer.load(tmp_path)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["eos_token_id"] == 1


async def test_without_defaults_of_generation_none_are_made_up(bench, tmp_path: Path):
    source = tmp_path / "source"
    shutil.copytree(bench.model_path, source)
    (source / "generation_config.json").unlink()
    await type(bench)(model_path=source).trainer().save(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").generation_config.eos_token_id == 1


async def test_hyperparameters_come_from_the_configuration_not_from_the_checkpoint(bench, tmp_path: Path):
    trainer = bench.trainer(adam_betas=(0.9, 0.999), weight_decay=0.0)
    await train(trainer, bench, range(1))
    await trainer.save(tmp_path)
    changed = bench.trainer(adam_betas=(0.8, 0.9), weight_decay=0.1)
    await changed.load(tmp_path)
    (group,) = changed._policy._optimizer.param_groups
    assert (group["betas"], group["weight_decay"]) == ((0.8, 0.9), 0.1)


@pytest.mark.parametrize("broken", ["trainer.pt", "model/model.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"garbage" * 100])
async def test_a_torn_checkpoint_is_named_and_changes_nothing(
    bench, tmp_path: Path, broken: str, content: bytes | None
):
    trainer = bench.trainer()
    await trainer.save(tmp_path)
    await train(trainer, bench, range(1))
    before = await trainer.export_weights()
    if content is None:
        (tmp_path / broken).unlink()
    else:
        (tmp_path / broken).write_bytes(content)
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        await trainer.load(tmp_path)
    after = await trainer.export_weights()
    assert (after.policy_version, after.checksum) == (before.policy_version, before.checksum)


@pytest.mark.parametrize("content", [{"policy_version": 3}, [3]], ids=str)
def test_a_file_without_a_field_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "trainer.pt")
    with pytest.raises(CheckpointError, match=r"trainer\.pt cannot be read"):
        read_state(State, tmp_path / "trainer.pt")


async def test_a_checkpoint_of_another_model_is_refused(bench, other_model_path: Path, tmp_path: Path):
    await type(bench)(model_path=other_model_path).trainer().save(tmp_path)
    with pytest.raises(CheckpointError, match="other tensors"):
        await bench.trainer().load(tmp_path)


async def test_a_checkpoint_of_another_reference_is_refused(bench, tmp_path: Path):
    trainer = bench.trainer(kl_coefficient=0.1, learning_rate=0.05)
    await train(trainer, bench, range(1))
    await trainer.save(tmp_path)
    moved = type(bench)(model_path=tmp_path / "model")
    with pytest.raises(CheckpointError, match="another reference policy"):
        await moved.trainer(kl_coefficient=0.1).load(tmp_path)
    await moved.trainer().load(tmp_path)


async def test_a_checkpoint_names_the_reference_as_it_was_loaded_without_reading_it_again(bench, tmp_path: Path):
    trainer = bench.trainer(kl_coefficient=0.1)
    with torch.no_grad():
        for parameter in trainer._policy._reference.parameters():
            parameter.zero_()
    await trainer.save(tmp_path)
    await bench.trainer(kl_coefficient=0.1).load(tmp_path)


@pytest.mark.parametrize("torn", ["model/model.safetensors", "trainer.pt"])
async def test_a_disk_that_takes_no_more_says_so(bench, tmp_path: Path, torn: str):
    trainer = bench.trainer()
    await train(trainer, bench, range(1))
    (tmp_path / "whole").mkdir()
    await trainer.save(tmp_path / "whole")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "whole" / torn).stat().st_size - 1, before[1]))
    try:
        with pytest.raises(StorageFailed, match=r"(?s)file is larger.*EFBIG"):
            await trainer.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "model" / "model.safetensors").exists() == (torn == "trainer.pt")


def test_a_disk_that_is_full_in_the_midst_of_a_tensor_says_so(tmp_path: Path) -> None:
    state = State(policy_version=0, generators=(torch.zeros(1 << 20), torch.zeros(100)), reference_checksum=None)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(StorageFailed, match=r"(?s)file is larger.*EFBIG"):
            write_state(state, tmp_path / "trainer.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_file_with_any_byte_changed_is_read_or_named(tmp_path: Path) -> None:
    file = tmp_path / "trainer.pt"
    write_state(State(policy_version=3, generators=(torch.zeros(2),), reference_checksum="abc"), file)
    whole = file.read_bytes()
    num_named = 0
    for place, byte in enumerate(whole):
        file.write_bytes(whole[:place] + bytes([byte ^ 1]) + whole[place + 1 :])
        try:
            read_state(State, file)
        except CheckpointError as error:
            assert str(file) in error.problem  # noqa: PT017  (one that does not raise is as good)
            num_named += 1
    assert 0 < num_named < len(whole)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "model_type"),
        ({"config.json": "{"}, "JSON"),
        ({"config.json": '{"model_type": "unheard-of"}'}, "unheard-of"),
        ({"config.json": '{"model_type": "qwen2", "hidden_size": 16, "num_hidden_layers": 1}'}, "model.safetensors"),
    ],
)
def test_a_directory_that_holds_no_model_is_a_users_mistake(bench, tmp_path: Path, files: dict[str, str], says: str):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelError, match=says) as raised:
        type(bench)(model_path=tmp_path).trainer()
    assert raised.value.allowed
    assert raised.value.remedy


def test_a_missing_directory_is_a_users_mistake(bench, tmp_path: Path):
    with pytest.raises(ModelError, match="nowhere"):
        type(bench)(model_path=tmp_path / "nowhere").trainer()


def test_a_missing_weight_is_not_filled_with_random_numbers(bench, other_model_path: Path, tmp_path: Path):
    """Weights of a one-layer model under the configuration of a two-layer one."""
    (tmp_path / "config.json").write_bytes((bench.model_path / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((other_model_path / "model.safetensors").read_bytes())
    with pytest.raises(ModelError, match=r"are missing, such as model\.layers\.1"):
        type(bench)(model_path=tmp_path).trainer()


@pytest.mark.parametrize(
    ("changes", "number", "words"),
    [
        ({"num_hidden_layers": 1, "layer_types": None}, 0.0, "model.layers.1"),
        ({"layer_types": ["odd", "odd"]}, 0.0, "layer_types"),
        ({}, float("nan"), "model.norm.weight .* NaN or infinite"),
    ],
    ids=["fewer layers", "odd layer types", "no numbers"],
)
def test_a_model_that_was_spoilt_after_the_check_is_the_users_mistake_too(
    bench, tmp_path: Path, changes, number, words
):
    shutil.copytree(bench.model_path, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | changes))
    state = load_file(tmp_path / "model" / "model.safetensors")
    state["model.norm.weight"][0] = number
    save_file(state, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=words):
        load_model(tmp_path / "model")
