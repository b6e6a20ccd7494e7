"""Megatron-core as a policy: the model cut over tensor, pipeline and context parallel ranks, and replicas of it.

Only this package imports megatron. Everything in it lets torch stand in for Transformer Engine and Apex, so the same
code runs on processors (`cpu_shim`) and on GPUs. What it leaves to Megatron-core: parallel state, layers, the pipeline
schedule, gradient buffers and their reduction, the distributed optimizer, sharded checkpoints.
"""
