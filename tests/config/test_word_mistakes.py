"""A word that names nothing is answered with what to write instead where that is known, and otherwise with no guess."""

from __future__ import annotations

import pytest

from rollpacker.config.compose import compose
from rollpacker.config.keys import legal_keys
from rollpacker.config.names_elsewhere import _VALUES_ELSEWHERE
from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.losses import LOSSES
from rollpacker.config.sections.trainer import _ADVANTAGES
from rollpacker.core.errors import ConfigError

RUN = ["model.path=m", "data.path=d", "run.dir=r"]


def mistake_of(word: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        compose([*RUN, word])
    return caught.value


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("cluster.time=30", "cluster.time_limit_min"),
        ("cluster.walltime=30", "cluster.time_limit_min"),
        ("cluster.nodes=4", "cluster.num_nodes"),
        ("cluster.gpus=8", "cluster.gpus_per_node"),
        ("cluster.gres=1", "cluster.gpus_per_node"),
        ("cluster.cpus=8", "cluster.cpus_per_node"),
        ("cluster.cpus_per_task=8", "cluster.cpus_per_node"),
        ("cluster.mem=64", "cluster.memory_gb_per_node"),
        ("cluster.reservation=x", "cluster.sbatch.reservation"),
        ("cluster.mail_user=me", "cluster.sbatch.mail-user"),
        ("cluster={exclude: x}", "cluster.sbatch.exclude"),
        ("time=30", "cluster.time_limit_min"),
        ("nodes=4", "cluster.num_nodes"),
    ],
)
def test_what_slurm_calls_otherwise_is_answered_with_our_key(word: str, key: str) -> None:
    assert mistake_of(word).remedy == f"Write {key}=..."


def test_what_may_be_an_option_of_sbatch_is_answered_with_where_these_are() -> None:
    listed = "`rollpacker train --help cluster` lists its keys."
    assert mistake_of("cluster.wckey=me").remedy == (
        f"Write cluster.sbatch.wckey=... if it is an option of sbatch; {listed}"
    )


def test_an_option_of_sbatch_that_is_set_anyway_is_to_be_left_out() -> None:
    error = mistake_of("cluster.ntasks=4")
    assert (error.allowed, error.remedy) == ("RollPacker sets this option of sbatch itself.", "Leave it out.")


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("reward=my.py:score", "Write reward.function=my.py:score"),
        ("reward=mine.rewards:score", "Write reward.function=mine.rewards:score"),
        ("reward=my.py", "Write reward.function=my.py:NAME"),
        ("reward=http://a:1/b", "Write reward.url=http://a:1/b"),
        ("reward=mth", "Write reward=math."),
        ("hardware=rtx", "Choose one of them."),
        ("model=Qwen/Qwen2.5-7B", "Write model.path=Qwen/Qwen2.5-7B"),
        ("model=qwen2.5", "Write model=qwen2.5-7b."),
        ("data=my.jsonl", "Write data.path=my.jsonl"),
        ("data=jsnl", "Write data=jsonl."),
    ],
)
def test_an_option_that_a_group_does_not_have_is_answered_with_what_it_may_stand_for(word: str, remedy: str) -> None:
    assert mistake_of(word).remedy == remedy


@pytest.mark.parametrize("word", ["{run.seed=1}", "[run.seed=1]", "(run.seed=1)", "'run.seed=1'", '"run.seed=1"'])
def test_what_closes_what_a_word_begins_with_is_no_part_of_its_value(word: str) -> None:
    assert mistake_of(word).remedy == "Write run.seed=1"


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("trainer.advantage=grpo", "Did you mean trainer.advantage=group_std?"),
        ("trainer.advantage=dr_grpo", "Did you mean trainer.advantage=group_mean?"),
        ("trainer.advantage=reinforce_plus_plus", "Did you mean trainer.advantage=reinforce_pp?"),
        ("trainer.loss=grpo", "Did you mean trainer.loss=ppo trainer.loss_normalisation=sequence?"),
        ("trainer.loss=dapo", "Did you mean trainer.loss=ppo trainer.loss_normalisation=token_mean?"),
        ("trainer.loss=bnpo", "Did you mean trainer.loss=ppo trainer.loss_normalisation=token_mean?"),
        ("trainer.loss=dr_grpo", "Did you mean trainer.loss=ppo trainer.loss_normalisation=token_bound?"),
        ("trainer.loss_normalisation=dr_grpo", "Write trainer.loss_normalisation=token_bound."),
        ("trainer.loss=vanilla", "Did you mean trainer.loss=ppo?"),
        ("trainer.loss_normalisation=seq-mean-token-mean", "Write trainer.loss_normalisation=sequence."),
        ("trainer.mismatch=token", "Write trainer.mismatch=token_truncate."),
        ("trainer.kl_estimator=low_var_kl", "Write trainer.kl_estimator=k3."),
        ("run.resume=true", "Write run.resume=auto."),
        ("run.resume=false", "Write run.resume=never."),
    ],
)
def test_a_value_of_another_tool_is_answered_with_ours(word: str, remedy: str) -> None:
    assert mistake_of(word).remedy == remedy


@pytest.mark.parametrize("word", ["trainer.loss=sapo", "trainer.loss=gmpo", "trainer.advantage=gdpo"])
def test_a_value_that_only_other_tools_have_is_not_taken_for_a_similar_one(word: str) -> None:
    assert mistake_of(word).remedy == "Choose one of them."


@pytest.mark.parametrize("word", ["trainer.loss_normalisation=token", "trainer.mismatch=mask"])
def test_a_value_that_is_a_word_of_several_is_answered_with_none_of_them(word: str) -> None:
    assert mistake_of(word).remedy == ""


def test_a_path_to_resume_from_is_answered_with_how_a_run_goes_on_and_how_one_begins_from_a_step() -> None:
    remedy = mistake_of("run.resume=runs/x/checkpoints/3").remedy
    assert "run.resume=auto run.dir=RUN" in remedy
    assert "`rollpacker export RUN at=STEPS out=DIR`" in remedy


def test_every_value_of_other_tools_stands_for_a_legal_one_and_is_none_itself() -> None:
    keys = legal_keys(RunConfig)
    for key, values in _VALUES_ELSEWHERE.items():
        legal = keys[key].choices or {"trainer.loss": tuple(LOSSES), "trainer.advantage": _ADVANTAGES}[key]
        assert set(values) <= set(legal)
        assert not {other for others in values.values() for other in others.split()} & set(legal)


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("gradient_accumulation_steps=8", "trainer.max_tokens_per_microbatch"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=8", "trainer.num_minibatches"),
        ("warmup_ratio=0.1", "trainer.warmup_steps"),
        ("log_completions=true", "run.samples_per_step"),
        ("actor_rollout_ref.actor.use_kl_loss=true", "trainer.kl_coefficient"),
    ],
)
def test_a_key_of_another_unit_is_not_said_to_be_the_same(word: str, key: str) -> None:
    error = mistake_of(word)
    assert error.allowed.startswith(f"The nearest key here is `{key}`, with other values: ")
    assert error.remedy == f"Write {key}=..."


@pytest.mark.parametrize(
    ("word", "keys"),
    [
        ("epsilon=0.2", "trainer.clip_ratio_low=... and trainer.clip_ratio_high=..."),
        ("actor_rollout_ref.actor.clip_ratio=0.2", "trainer.clip_ratio_low=... and trainer.clip_ratio_high=..."),
        ("eps_clip=0.2", "trainer.clip_ratio_low=... and trainer.clip_ratio_high=..."),
        ("loss_type=cispo", "trainer.loss_normalisation=... and trainer.loss=..."),
    ],
)
def test_a_key_of_another_tool_that_sets_two_of_ours_is_answered_with_both(word: str, keys: str) -> None:
    assert mistake_of(word).remedy == f"Write {keys}"


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("custom_reward_function.path=f.py", "reward.function"),
        ("algorithm.filter_groups.enable=true", "system.dynamic_sampling"),
        ("reward_model.overlong_buffer.len=4096", "reward.overlong_buffer_tokens"),
        ("reward_model.overlong_buffer.penalty_factor=1", "reward.overlong_penalty"),
        ("data.apply_chat_template_kwargs.enable_thinking=false", "data.template_arguments"),
        ("mask_truncated_completions=true", "trainer.mask_truncated"),
    ],
)
def test_a_key_in_another_tools_section_is_answered_with_our_key_for_the_section(word: str, key: str) -> None:
    assert mistake_of(word).remedy == f"Write {key}=..."


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("actor_rollout_ref.model.lora_rank=8", "no LoRA"),
        ("critic.optim.lr=1e-5", "No critic"),
        ("algorithm.gamma=1", "No critic"),
        ("deepspeed=x.json", "no DeepSpeed"),
        ("push_to_hub=true", "Nothing is uploaded"),
        ("model.trust_remote_code=true", "is not run"),
        ("ppo_epochs=4", "trained once"),
        ("engine.max_model_len=4096", "rollout.max_response_tokens"),
        ("rollout.stop=x", "end tokens"),
        ("trainer.n_gpus_per_node=8", "backend.num_gpus"),
        ("nproc_per_node=8", "backend.num_gpus"),
        ("packing=true", "always packed"),
        ("actor_rollout_ref.model.use_remove_padding=true", "always packed"),
        ("sample_packing=true", "always packed"),
        ("trainer.offload=true", "nothing is offloaded"),
        ("actor_rollout_ref.actor.fsdp_config.param_offload=true", "nothing is offloaded"),
        ("cpu_offload=true", "nothing is offloaded"),
        ("actor_rollout_ref.rollout.name=sglang", "no SGLang"),
        ("vllm_mode=colocate", "placement=OPTION"),
        ("logging_steps=1", "Every step is logged"),
    ],
)
def test_what_only_other_tools_have_is_answered_with_why_it_is_not_here(word: str, reason: str) -> None:
    error = mistake_of(word)
    assert reason in error.allowed
    assert error.remedy == "Leave it out."


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("algorithm.adv_estimator=grpo", "trainer.advantage=group_std"),
        ("algorithm.use_kl_in_reward=true", "trainer.kl_in=reward"),
        ("scale_rewards=false", "trainer.advantage=group_mean"),
        ("scale_rewards=group", "trainer.advantage=group_std"),
        ("loss_type=grpo", "trainer.loss_normalisation=sequence"),
        ("bf16=true", "model.dtype=bfloat16"),
        ("resume_from_checkpoint=True", "run.resume=auto"),
    ],
)
def test_a_key_of_another_tool_is_answered_with_our_value_where_it_is_known(word: str, ours: str) -> None:
    assert mistake_of(word).remedy == f"Write {ours}"


@pytest.mark.parametrize("word", ["policy_loss=x", "adv_estimator=x", "epsilon=x", "train_files=x", "kl_penalty=x"])
def test_a_hint_quotes_only_the_beginning_of_a_keys_help(word: str) -> None:
    assert len(mistake_of(word).allowed.split()) < 70


def test_gpus_of_a_node_are_a_key_of_a_job() -> None:
    assert "cluster.gpus_per_node" in mistake_of("cluster.num_gpus_per_node=4").allowed


@pytest.mark.parametrize("word", ["boxing=true", "offloads=true", "trainer.offloads=true"])
def test_a_key_of_another_section_is_proposed_only_where_the_names_are_near(word: str) -> None:
    assert mistake_of(word).allowed == ""
