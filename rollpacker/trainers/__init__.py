"""Who learns: GRPO on accepted groups, behind the protocol `rollpacker.protocols.trainer.Trainer`.

`torch_trainer` is the embedded one, which needs nothing beyond torch and transformers. Objective and packing are pure
functions beside it (`advantages`, `losses`, `schedules`, `microbatches`), so that other trainers share them.
"""
