"""The names of our keys in other tools (veRL, TRL, OpenRLHF), for hints on unknown keys."""

from __future__ import annotations

_NAMES_ELSEWHERE = {
    "model.path": "model_name_or_path model_path pretrain hf_checkpoint base_model",
    "data.path": "train_files prompt_data dataset_name dataset train_file",
    "data.columns": "prompt_key input_key label_key answer_key query_key response_key",
    "data.split": "train_split dataset_split prompt_split",
    "data.max_prompt_tokens": "max_prompt_length prompt_max_len",
    "data.chat_template": "apply_chat_template",
    "rollout.num_prompts": "batch_size train_batch_size rollout_batch_size per_device_train_batch_size",
    "rollout.num_responses": "num_generations n n_samples_per_prompt n_samples group_size",
    "rollout.max_response_tokens": "max_response_length max_completion_length generate_max_len max_new_tokens "
    "max_tokens",
    "run.dir": "output_dir save_path default_local_dir ckpt_path save_dir",
    "run.num_steps": "max_steps total_training_steps num_train_steps num_rollout",
    "run.num_epochs": "num_train_epochs total_epochs epochs",
    "run.checkpoint_every_steps": "save_steps save_freq save_interval",
    "run.keep_checkpoints": "save_total_limit max_ckpt_num max_ckpt_to_keep max_actor_ckpt_to_keep",
    "run.callbacks": "callback_handlers trainer_callbacks",
    "run.resume": "resume_from_checkpoint resume_mode load_checkpoint",
    "evaluation.path": "val_files eval_dataset eval_prompt_data test_files",
    "evaluation.every_steps": "test_freq eval_steps eval_interval val_period eval_every",
    "evaluation.at_start": "val_before_train eval_on_start val_at_start",
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
    "trainer.clip_ratio_low": "epsilon eps_clip cliprange clip_ratio",
    "trainer.clip_ratio_high": "epsilon_high eps_clip_high",
    "trainer.loss": "loss_type policy_loss loss_mode pg_variant",
    "trainer.dual_clip": "clip_ratio_c dual_clip_loss_value eps_clip_c delta",
    "trainer.entropy_coefficient": "entropy_coeff entropy_coef entropy_loss_coef",
    "trainer.kl_estimator": "kl_loss_type kl_penalty",
    "trainer.kl_in": "use_kl_in_reward",
    "trainer.kl_coefficient": "beta kl_coef kl_loss_coef init_kl_coef",
    "trainer.loss_normalisation": "loss_agg_mode",
    "trainer.mismatch": "rollout_is use_tis vllm_importance_sampling_mode vllm_importance_sampling_correction "
    "truncated_importance_sampling_type",
    "trainer.mismatch_high": "rollout_is_threshold vllm_importance_sampling_cap tis_imp_ratio_cap",
    "trainer.advantage": "adv_estimator advantage_estimator",
    "trainer.turn_discount": "step_reward_gamma",
    "trainer.turn_weight": "step_reward_weight step_advantage_w",
    "trainer.num_minibatches": "ppo_mini_batch_size mini_batch_size",
    "trainer.max_tokens_per_microbatch": "ppo_max_token_len_per_gpu micro_train_batch_size micro_batch_size "
    "ppo_micro_batch_size_per_gpu max_tokens_per_gpu gradient_accumulation_steps",
    "trainer.pipeline_parallel": "pipeline_model_parallel_size",
    "trainer.context_parallel": "context_parallel_size ring_attn_size ulysses_sequence_parallel_size",
    "trainer.context_parallel_above": "dynamic_context_parallel hybrid_context_parallel",
    "trainer.recompute_activations": "gradient_checkpointing enable_gradient_checkpointing",
    "system.dynamic_sampling": "filter_groups dynamic_filtering dynamic_sampling_filter_path",
    "cluster.num_nodes": "nnodes actor_num_nodes",
    "cluster.gpus_per_node": "n_gpus_per_node num_gpus_per_node actor_num_gpus_per_node",
    "environment.starts_per_minute": "tasks_per_minute",
    "tracker.wandb": "use_wandb report_to logger",
    "tracker.wandb_project": "project_name",
    "reward.function": "reward_funcs custom_reward_function custom_rm_path reward_fn",
    "reward.url": "remote_rm_url rm_url",
    "reward.parts": "reward_weights",
    "reward.overlong_buffer_tokens": "overlong_buffer overlong_buffer_len",
}
"""Our key, and the last parts of other tools' keys for it."""

_KEY_OF = {name: key for key, names in _NAMES_ELSEWHERE.items() for name in names.split()}


def key_for(name: str) -> str | None:
    """Our key for a name of another tool, by the part after its last dot; None when no tool has that name."""
    return _KEY_OF.get(name.rpartition(".")[2].lower().replace("-", "_"))
