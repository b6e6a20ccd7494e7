"""What other tools (veRL, TRL, OpenRLHF) call our keys and values, and what only they have, for hints on mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.config.keys import nearest

if TYPE_CHECKING:
    from collections.abc import Collection

_NAMES_ELSEWHERE = {
    "model.path": "model_name_or_path model_path pretrain hf_checkpoint base_model",
    "data.path": "train_files prompt_data dataset_name dataset train_file",
    "data.columns": "prompt_key input_key label_key answer_key query_key response_key",
    "data.split": "train_split dataset_split prompt_split",
    "data.max_prompt_tokens": "max_prompt_length prompt_max_len",
    "data.chat_template": "apply_chat_template",
    "data.template_arguments": "chat_template_kwargs apply_chat_template_kwargs",
    "rollout.num_prompts": "batch_size train_batch_size rollout_batch_size",
    "rollout.num_responses": "num_generations n n_samples_per_prompt n_samples group_size",
    "rollout.max_response_tokens": "max_response_length max_completion_length generate_max_len max_new_tokens "
    "max_tokens",
    "run.dir": "output_dir save_path default_local_dir ckpt_path save_dir",
    "run.num_steps": "steps max_steps total_training_steps num_train_steps num_rollout",
    "run.num_epochs": "num_train_epochs total_epochs epochs",
    "run.checkpoint_every_steps": "save_steps save_freq save_interval",
    "run.keep_checkpoints": "save_total_limit max_ckpt_num max_ckpt_to_keep max_actor_ckpt_to_keep",
    "run.callbacks": "callback_handlers trainer_callbacks",
    "run.resume": "resume_from_checkpoint resume_mode load_checkpoint",
    "evaluation.path": "val_files eval_dataset eval_prompt_data test_files",
    "evaluation.every_steps": "test_freq eval_steps eval_interval val_period eval_every",
    "evaluation.at_start": "val_before_train eval_on_start val_at_start",
    "evaluation.num_samples": "val_kwargs.n",
    "evaluation.temperature": "val_kwargs.temperature",
    "evaluation.top_k": "val_kwargs.top_k",
    "evaluation.top_p": "val_kwargs.top_p",
    "engine.num_engines": "vllm_num_engines rollout_num_engines",
    "engine.max_num_seqs": "vllm_max_num_seqs",
    "engine.tensor_parallel": "tensor_parallel_size tensor_model_parallel_size vllm_tensor_parallel_size "
    "vllm_tensor_parallel rollout_num_gpus_per_engine",
    "engine.vllm.memory_share": "gpu_memory_utilization vllm_gpu_memory_utilization",
    "engine.vllm.prefix_caching": "enable_prefix_caching",
    "trainer.learning_rate": "lr actor_learning_rate actor_lr",
    "trainer.lr_schedule": "lr_scheduler_type lr_scheduler",
    "trainer.warmup_steps": "lr_warmup_steps num_warmup_steps",
    "trainer.max_grad_norm": "grad_clip max_norm clip_grad",
    "trainer.clip_ratio_high": "epsilon_high eps_clip_high",
    "trainer.loss": "policy_loss loss_mode pg_variant",
    "trainer.dual_clip": "clip_ratio_c dual_clip_loss_value eps_clip_c delta",
    "trainer.entropy_coefficient": "entropy_coeff entropy_coef entropy_loss_coef",
    "trainer.kl_estimator": "kl_loss_type kl_penalty",
    "trainer.kl_coefficient": "beta kl_coef kl_loss_coef init_kl_coef",
    "trainer.loss_normalisation": "loss_agg_mode",
    "trainer.mismatch": "rollout_is vllm_importance_sampling_mode truncated_importance_sampling_type",
    "trainer.mismatch_high": "rollout_is_threshold vllm_importance_sampling_cap tis_imp_ratio_cap",
    "trainer.advantage": "adv_estimator advantage_estimator",
    "trainer.turn_discount": "step_reward_gamma",
    "trainer.turn_weight": "step_reward_weight step_advantage_w",
    "trainer.mask_truncated": "mask_truncated_completions",
    "trainer.max_tokens_per_microbatch": "ppo_max_token_len_per_gpu max_tokens_per_gpu",
    "trainer.pipeline_parallel": "pipeline_model_parallel_size",
    "trainer.context_parallel": "context_parallel_size ring_attn_size ulysses_sequence_parallel_size",
    "trainer.context_parallel_above": "dynamic_context_parallel hybrid_context_parallel",
    "trainer.recompute_activations": "gradient_checkpointing enable_gradient_checkpointing",
    "system.dynamic_sampling": "filter_groups dynamic_filtering dynamic_sampling_filter_path",
    "system.max_launch_factor": "max_num_gen_batches",
    "cluster.num_nodes": "nnodes actor_num_nodes",
    "environment.starts_per_minute": "tasks_per_minute",
    "tracker.wandb": "use_wandb",
    "tracker.wandb_name": "run_name experiment_name wandb_run_name",
    "tracker.wandb_project": "project_name",
    "reward.function": "reward_funcs custom_reward_function custom_rm_path reward_fn",
    "reward.url": "remote_rm_url rm_url",
    "reward.parts": "reward_weights",
    "reward.overlong_buffer_tokens": "overlong_buffer overlong_buffer_len",
}
"""Our key, and the last parts of other tools' keys for it."""

_SET_OTHERWISE = {
    "model.dtype": "bf16",
    "reward.overlong_penalty": "penalty_factor",
    "rollout.num_prompts": "per_device_train_batch_size",
    "run.samples_per_step": "log_completions",
    "tracker.wandb": "report_to logger",
    "trainer.advantage": "scale_rewards",
    "trainer.clip_ratio_low": "epsilon eps_clip cliprange clip_ratio",
    "trainer.kl_coefficient": "use_kl_loss",
    "trainer.kl_in": "use_kl_in_reward",
    "trainer.max_tokens_per_microbatch": "micro_train_batch_size micro_batch_size ppo_micro_batch_size_per_gpu "
    "gradient_accumulation_steps",
    "trainer.loss_normalisation": "loss_type",
    "trainer.mismatch": "use_tis vllm_importance_sampling_correction",
    "trainer.num_minibatches": "ppo_mini_batch_size mini_batch_size",
    "trainer.warmup_steps": "warmup_ratio lr_warmup_steps_ratio",
}
"""Our key, and those of other tools for the same whose values have another unit or another type, or set two of ours."""

_BESIDE = {"trainer.clip_ratio_low": "trainer.clip_ratio_high", "trainer.loss_normalisation": "trainer.loss"}
"""Our key that is set otherwise, and a second one that other tools set by the same key."""

_NOT_HERE = {
    "All weights of the model are trained; there is no LoRA.": "lora lora_rank lora_alpha lora_dropout lora_r use_lora "
    "use_peft peft_config",
    "No critic is trained: trainer.advantage has no GAE, and tokens are not discounted.": "critic gamma lam lambd "
    "gae_lambda value_clip vf_coef cliprange_value critic_pretrain critic_learning_rate",
    "There is no DeepSpeed; with trainer=fsdp ranks share parameters and optimizer, with trainer.shard_gradients "
    "gradients, too.": "deepspeed zero_stage",
    "Nothing is uploaded; a run writes its last model to run.dir/model.": "push_to_hub hub_model_id",
    "Models are those that transformers itself has; code in a model's folder is not run.": "trust_remote_code",
    "Each batch is trained once, in trainer.num_minibatches updates; run.num_epochs counts passes over the data.": (
        "ppo_epochs num_ppo_epochs max_epochs num_iterations"
    ),
    "A response ends at the end tokens that the model's own files name.": "stop stop_strings stop_token_ids "
    "eos_token_id",
    "The longest sequence is data.max_prompt_tokens and rollout.max_response_tokens together.": "max_model_len",
    "All GPUs of a machine are used, or those that backend.num_gpus or CUDA_VISIBLE_DEVICES leave; in a Slurm job "
    "those of cluster.gpus_per_node.": "n_gpus_per_node num_gpus_per_node actor_num_gpus_per_node nproc_per_node "
    "nproc_per_machine",
    "Responses are always packed into micro-batches of trainer.max_tokens_per_microbatch tokens; trainer=megatron "
    "drops the padding.": "packing sample_packing packing_samples use_remove_padding remove_padding padding_free "
    "use_dynamic_bsz",
    "The engine is chosen by engine=vllm or engine=torch; there is no SGLang.": "rollout.name rollout_backend use_vllm "
    "sglang",
    "Whether engines and trainer take turns on GPUs or have GPUs of their own is chosen by placement=OPTION; engines "
    "are always processes of the run.": "vllm_mode",
    "Every step is logged: a row in the tables, and one for each tracker.": "logging_steps",
    "Where engines and trainer take turns on GPUs, the trainer's state is in host memory while the engines generate; "
    "while it trains, nothing is offloaded.": "offload param_offload grad_offload optimizer_offload cpu_offload "
    "adam_offload offload_policy ref_param_offload offload_params",
}
"""Why there is no such key, and the parts of other tools' keys of which that is true."""

_VALUES_ELSEWHERE = {
    "run.resume": {"auto": "true", "never": "false disable"},
    "trainer.advantage": {
        "group_std": "grpo group_norm",
        "group_mean": "dr_grpo",
        "reinforce_pp": "reinforce reinforce_plus_plus",
        "reinforce_pp_baseline": "reinforce_baseline reinforce_plus_plus_baseline",
    },
    "trainer.kl_estimator": {"k1": "kl", "k2": "mse", "k3": "low_var_kl"},
    "trainer.kl_in": {"reward": "true", "loss": "false"},
    "trainer.loss": {"ppo": "vanilla"},
    "trainer.loss_normalisation": {
        "sequence": "seq_mean_token_mean grpo",
        "token_bound": "seq_mean_token_sum_norm dr_grpo",
        "token_mean": "dapo bnpo",
    },
    "trainer.mismatch": {"token_truncate": "token", "sequence_truncate": "sequence"},
}
"""Our key, its values, and those of other tools for each."""

_VALUES_BY_NAME = {
    "bf16": {"bfloat16": "true", "float32": "false"},
    "scale_rewards": {"group_std": "true group", "group_mean": "false none", "batch_std": "batch"},
}
"""Another tool's key whose values say nothing without it, values of ours, and its own for each."""

_VALUES_OF_ANOTHER_KEY = {"trainer.loss": "trainer.loss_normalisation"}
"""Our key, and the one that some values of other tools' key for it stand for: TRL's loss_type is both."""

_VALUES_NOT_HERE = {
    "trainer.advantage": "gdpo",
    "trainer.loss": "sapo gmpo luspo vespo clip_cov dppo_tv dppo_kl papo",
}
"""Our key, and values of other tools that none of its own stands for, though one has a similar name."""

_KEY_OF = {
    name: key for table in (_NAMES_ELSEWHERE, _SET_OTHERWISE) for key, names in table.items() for name in names.split()
}
_REASON_OF = {name: reason for reason, names in _NOT_HERE.items() for name in names.split()}
_VALUE_OF = {
    (key, other): value
    for key, values in (_VALUES_ELSEWHERE | _VALUES_BY_NAME).items()
    for value, others in values.items()
    for other in others.split()
}


def key_for(name: str) -> str | None:
    """Our key for a name of another tool, by its last two parts or one of its parts; None when no tool has that name.

    Of several parts the last one counts: in `reward_model.overlong_buffer.len` the section says what it is.
    """
    return _KEY_OF.get(_known_part(name))


def is_set_otherwise(name: str) -> bool:
    """Whether `key_for` gives the name a key whose values have another unit or another type, or that is one of two."""
    return _known_part(name) in " ".join(_SET_OTHERWISE.values()).split()


def key_beside(name: str) -> str | None:
    """The second key that another tool sets by the name, beside that of `key_for`; None where it sets one alone."""
    return _BESIDE.get(key_for(name) or "") if is_set_otherwise(name) else None


def value_set_by(name: str, given: str) -> str | None:
    """The value of the key of `key_for` for what another tool's key is set to; None where it is not known."""
    part, text = _known_part(name), _plain(given)
    return _VALUE_OF.get((part, text)) or _VALUE_OF.get((_KEY_OF.get(part, ""), text))


def _known_part(name: str) -> str:
    """What of a name `key_for` knows; empty when it knows nothing of it."""
    parts = _plain(name).split(".")
    return next((part for part in (".".join(parts[-2:]), *reversed(parts)) if part in _KEY_OF), "")


def why_absent(name: str) -> str | None:
    """Why there is no key for a name of another tool; None when there is one, or no tool has that name."""
    parts = _plain(name).split(".")
    return next((_REASON_OF[part] for part in (*parts, ".".join(parts[-2:])) if part in _REASON_OF), None)


def word_for(key: str, given: str, legal: Collection[str]) -> str | None:
    """The word KEY=VALUE that another tool's value, or a misspelt one, stands for; None as of `value_for`."""
    other = _VALUES_OF_ANOTHER_KEY.get(key, "")
    if value := _VALUE_OF.get((other, _plain(given))):
        return f"{key}=ppo {other}={value}"
    value = value_for(key, given, legal)
    return f"{key}={value}" if value else None


def value_for(key: str, given: str, legal: Collection[str]) -> str | None:
    """The legal value of a key that another tool's value, or a misspelt one, stands for.

    None where there is none, and for a word that is part of several.
    """
    text = _plain(given)
    if (key, text) in _VALUE_OF:
        return _VALUE_OF[key, text]
    if text in _VALUES_NOT_HERE.get(key, "").split():
        return None
    if sum(text in value.split("_") for value in legal) > 1:
        return None
    return next(iter(nearest(given, legal)), None)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
