"""The embedded engine: continuous batching for any local Hugging Face causal LM, with torch and transformers only.

From the outside in: `engine` (asynchronous, one thread), `decoder` (pure and synchronous: add, abort, step),
`cache` (keys and values of a batch of mixed lengths), `attention` (grouped heads without copies), `sampling` (one
counter-based generator per sample), `sequences` (a request from its queue to its end), `model_files` (a model from its
directory). Draft tokens come from `history`, and `verification` keeps those that would have been drawn anyway. Beside
them `judge`, a judge's model, with `layer_streaming` for one that a GPU has no room for.

transformers has continuous batching of its own, but it draws every sample from one global generator, so that a
sample's tokens depend on what else is in the batch, and on a CPU it packs the batch into one sequence whose mask grows
with the square of the batch. On one thread, a 2x64 Qwen2 and 128 new tokens per request it made 4.5 k and 5.9 k
tokens/s at batch 32 and 128, where `generate` made 19.5 k and 45.0 k and this engine 23.0 k and 54.2 k
(`tests/benchmarks/results/engine_throughput.md`).
"""
