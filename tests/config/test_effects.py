"""Keys that a user set and that nothing looks at are named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from rollpacker.config.compose import compose
from rollpacker.config.effects import keys_without_effect
from rollpacker.config.keys import section_of
from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.base import OnlyWith

BASE = ["model.path=m", "data.path=p.jsonl", "run.dir=r"]
DRAFTS = ["engine=vllm", "system.speculative_decoding=true"]
SIM = ["backend=sim", "hardware=h800", "workload=math", "reward=modelled", "model=qwen2.5-7b"]

JUDGED = ["reward=judge", "reward.judge.model.path=j"]
MINIBATCHES = ["system=verl", "trainer.num_minibatches=2"]
STALE = ["system=one-step-off"]
TRUNCATED = ["trainer.mismatch=token_truncate"]


def test_a_warm_up_that_ends_with_the_run_has_its_effect() -> None:
    assert keys_without_effect(compose([*BASE, "run.num_steps=5", "trainer.warmup_steps=5"])) == ()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["hardware=h800"], "hardware=h800"),
        (["workload=math"], "workload=math"),
        (
            ["engine.vllm.kv_cache_mb=64", "engine.vllm.memory_share=0.5"],
            "engine.vllm.memory_share=0.5, engine.vllm.kv",
        ),
        (["system=verl", "system.eta_prompts=2"], "system.eta_prompts=2.0"),
        (["system=rollpacker", "system.history_share=0.3"], "system.history_share=0.3"),
        (["system=verl", "system.length_history=true"], "system.length_history=true"),
        (["system=verl", "engine.profile=x.json"], "engine.profile=x.json"),
        (["system.max_launch_factor=3"], "system.max_launch_factor=3.0"),
        (["system.max_active_requests=9"], "system.max_active_requests=9"),
        (["system=tail", "system.stream_at=0.3"], "system.stream_at=0.3"),
        (["trainer.warmup_steps=1000", "run.num_steps=2"], "trainer.warmup_steps=1000"),
        (["trainer.loss=gspo", *MINIBATCHES], "trainer.loss=gspo with trainer.loss_normalisation=token_bound"),
        (["trainer.shard_gradients=true"], "trainer.shard_gradients=true"),
        (["trainer=megatron", "trainer.shard_ranks=3"], "trainer.shard_ranks=3"),
        (["trainer.min_lr_ratio=0.5"], "trainer.min_lr_ratio=0.5"),
        (["trainer.clip_ratio_low=0.3"], "trainer.clip_ratio_low=0.3"),
        (["trainer.clip_ratio_high=0.3", *STALE, "trainer.loss=ppo", *TRUNCATED], "trainer.clip_ratio_high=0.3"),
        (["trainer.loss=reinforce", *MINIBATCHES], "trainer.loss=reinforce with trainer.num_minibatches=2: all"),
        (
            ["trainer.loss=reinforce", *MINIBATCHES, *TRUNCATED],
            "trainer.loss=reinforce with trainer.num_minibatches=2: all",
        ),
        (["trainer.clip_ratio_low=0.3", *MINIBATCHES, "trainer.loss=mine.py:loss"], "trainer.clip_ratio_low=0.3"),
        (["trainer.dual_clip=3"], "trainer.dual_clip=3.0"),
        (["trainer.mismatch_high=3"], "trainer.mismatch_high=3.0"),
        (["trainer.mismatch_high=3", "engine=vllm", "trainer.loss=tis"], "trainer.mismatch_high=3.0"),
        (["trainer.mismatch_high=3", "engine=vllm", "trainer.mismatch=k3_mask"], "trainer.mismatch_high=3.0"),
        (["tracker.wandb_project=mine"], "tracker.wandb_project=mine"),
        (["reward.sandbox.max_case_s=3"], "reward.sandbox.max_case_s=3.0"),
        (["reward.overlong_penalty=3"], "reward.overlong_penalty=3.0"),
        (["weight_sync.transport=object_store", "weight_sync.bucket_mb=9"], "weight_sync.bucket_mb=9"),
        (
            ["elastic.max_workers=2", "weight_sync.transport=handles", "weight_sync.bucket_mb=9"],
            "weight_sync.bucket_mb=9",
        ),
        (["reward.num_cores=2"], "reward.num_cores=2"),
        (["reward.num_rule_workers=2"], "reward.num_rule_workers=2"),
        ([*JUDGED, "reward.judge.template_tokens=9"], "reward.judge.template_tokens=9"),
        ([*SIM, "reward.max_open=9"], "reward.max_open=9"),
        ([*SIM, "reward.judge.threshold=0.9"], "reward.judge.threshold=0.9"),
        ([*SIM, "reward.judge.kv_cache_mb=9"], "reward.judge.kv_cache_mb=9"),
        ([*SIM, "backend.num_cpus=9"], "backend.num_cpus=9"),
        ([*SIM, "engine.num_threads=9"], "engine.num_threads=9"),
        ([*SIM, "weight_sync.timeout_s=9"], "weight_sync.timeout_s=9.0"),
        ([*SIM, "trainer.kl_coefficient=0.1"], "trainer.kl_coefficient=0.1"),
        ([*SIM, "trainer.num_minibatches=2", "system=verl"], "trainer.num_minibatches=2"),
        ([*SIM, "trainer.logits_chunk_tokens=9"], "trainer.logits_chunk_tokens=9"),
        ([*SIM, "trainer=fsdp", "trainer.shard_gradients=true"], "trainer.shard_gradients=true"),
        ([*SIM, "trainer=fsdp", "trainer.shard_ranks=1"], "trainer.shard_ranks=1"),
        ([*SIM, "engine=vllm", "engine.vllm.memory_share=0.5"], "engine.vllm.memory_share=0.5"),
        ([*SIM, "engine=vllm", "engine.vllm.kv_cache_mb=64"], "engine.vllm.kv_cache_mb=64"),
        ([*SIM, "engine=vllm", "engine.vllm.enforce_eager=true"], "engine.vllm.enforce_eager=true"),
        ([*SIM, "engine=vllm", "engine.vllm.max_num_batched_tokens=9"], "engine.vllm.max_num_batched_tokens=9"),
        ([*SIM, *DRAFTS, "engine.vllm.drafter=ngram"], "engine.vllm.drafter=ngram"),
        ([*SIM, *DRAFTS, "engine.vllm.draft_length=2"], "engine.vllm.draft_length=2"),
        ([*SIM, *DRAFTS, "engine.vllm.draft_max_sequences=2"], "engine.vllm.draft_max_sequences=2"),
        ([*SIM, "engine=vllm", "+engine.vllm.arguments.seed=2"], "engine.vllm.arguments={'seed': 2}"),
    ],
)
def test_a_key_that_nothing_looks_at_is_named(words: list[str], named: str) -> None:
    (note,) = keys_without_effect(compose([*BASE, *words]))
    assert note.startswith(named)


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.clip_ratio_low=0.3", "trainer.clip_ratio_high=0.3", "trainer.dual_clip=3", *MINIBATCHES],
        ["trainer.clip_ratio_low=0.3", "trainer.clip_ratio_high=0.3", "trainer.dual_clip=3", *STALE],
        ["trainer.clip_ratio_low=0.3", "trainer.clip_ratio_high=0.3", "trainer.loss=cispo"],
        ["trainer.dual_clip=3", "trainer.loss=gspo", "trainer.loss_normalisation=sequence"],
        ["trainer.loss=reinforce"],
        ["trainer.loss=tis", *MINIBATCHES],
        ["trainer.mismatch_high=3", "engine=vllm"],
        ["trainer.mismatch_high=3", "trainer.loss=mine.py:loss", *TRUNCATED],
        ["trainer.mismatch_high=3", "trainer.mismatch=sequence_mask"],
    ],
)
def test_bounds_that_the_loss_may_reach_are_not_named(words: list[str]) -> None:
    assert keys_without_effect(compose([*BASE, *words])) == ()


def test_a_loss_without_a_ratio_has_neither_bounds_nor_a_correction_of_later_updates() -> None:
    words = ["trainer.loss=reinforce", "trainer.clip_ratio_high=0.3", *MINIBATCHES]
    bound, updates = keys_without_effect(compose([*BASE, *words]))
    assert bound.startswith("trainer.clip_ratio_high=0.3: without effect")
    assert "all updates of a step but the first learn from tokens of an older policy" in updates


def test_a_modelled_run_whose_updates_are_one_has_no_later_ones() -> None:
    (note,) = keys_without_effect(compose([*BASE, *SIM, "trainer.loss=reinforce", *MINIBATCHES]))
    assert note.startswith("trainer.num_minibatches=2: without effect")


def test_the_keys_of_vllm_and_of_the_trainer_that_a_modelled_run_follows_are_not_named() -> None:
    agents = [*SIM, "workload=agents", "engine=vllm", "engine.vllm.prefix_caching=false"]
    assert keys_without_effect(compose([*BASE, *agents, "trainer.max_tokens_per_microbatch=9000"])) == ()


def test_an_experiment_that_a_modelled_run_follows_in_part_is_modelled() -> None:
    (note,) = keys_without_effect(compose([*BASE, *SIM, "experiment=dapo"]))
    assert note.startswith("trainer.num_minibatches=16: without effect: only a run with backend.name=ray")


def test_a_note_on_what_has_no_effect_names_keys_that_there_are() -> None:
    (note,) = keys_without_effect(compose([*BASE, "reward.sandbox.max_case_s=3"]))
    assert "reward.names" not in note
    assert "only a run with sandbox among reward, reward.parts and reward.domains uses it" in note


def test_a_section_of_defaults_that_has_no_effect_is_named_itself() -> None:
    words = ["elastic=slurm", "elastic.max_workers=0"]
    assert any(note.startswith("elastic.job: without") for note in keys_without_effect(compose([*BASE, *words])))


def _conditions(schema: type[BaseModel], inside: str = "") -> Iterator[OnlyWith]:
    """All but those about another key of the same section, which is there where they are asked."""
    for name, field in schema.model_fields.items():
        found = (each for each in field.metadata if isinstance(each, OnlyWith))
        yield from (each for each in found if each.key.rpartition(".")[0] != inside)
        if (section := section_of(field)) is not None:
            yield from _conditions(section, f"{inside}.{name}".lstrip("."))


@pytest.fixture(scope="module")
def plain() -> RunConfig:
    return compose(BASE)


@pytest.mark.parametrize("condition", dict.fromkeys(_conditions(RunConfig)), ids=str)
def test_every_condition_is_about_something_that_every_run_has(condition: OnlyWith, plain: RunConfig) -> None:
    value: object = plain
    for part in condition.key.split("."):
        value = getattr(value, part)
