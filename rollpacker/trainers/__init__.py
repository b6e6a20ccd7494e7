"""Who learns: GRPO on accepted groups, behind the protocol `rollpacker.protocols.trainer.Trainer`.

`grpo` is the objective and its step, over any `policy`: `torch_policy` is the embedded one, which needs nothing beyond
torch and transformers; `fsdp` and `megatron` spread a model over several ranks. Loss and packing are pure functions
(`advantages`, `losses`, `schedules`, `microbatches`, `replicas`).
"""
