"""Trainers: policy gradients on accepted groups, behind the protocol `rollpacker.protocols.trainer.Trainer`.

`grpo` is the objective and its step, over any `policy`: `torch_policy` is the embedded one, which needs nothing beyond
torch and transformers; `fsdp` and `megatron` spread a model over several ranks. Loss and packing are pure functions
(`advantages`, `losses`, `policy_losses`, `schedules`, `microbatches`, `replicas`); a loss or an advantage of the user's
is one of theirs (`own_functions`).

`fsdp` shards parameters and optimizer across `trainer.data_parallel` ranks (FSDP2), gradients too with
`trainer.shard_gradients`. `megatron` takes dense Qwen2/2.5, Qwen3 and Llama models over tensor, pipeline and context
parallel ranks with data-parallel replicas, a distributed optimizer and packed sequences, without Transformer Engine;
each rank reads only its part of the Hugging Face files. All train the same objective in fp32 main weights, with bf16
passes by `model.dtype=bfloat16`; gradients that are not sharded add up without communication until one reduction per
update. A checkpoint holds a complete Hugging Face model and resumes under any layout of ranks of its trainer. A loss,
gradient or weight that is not finite ends the run before it reaches an engine or a checkpoint.
"""
