"""The embedded engine: continuous batching for any local Hugging Face causal LM, with torch and transformers only.

From the outside in: `engine` (asynchronous, one thread), `decoder` (pure and synchronous: add, abort, step),
`cache` (keys and values of a batch of mixed lengths), `attention` (grouped heads without copies), `sampling` (one
counter-based generator per sample), `model_files` (a model from its directory).

transformers has continuous batching of its own. It draws every sample from one global generator, so that a sample's
tokens depend on what else is in the batch; and with 128 new tokens per request on a 2x64 Qwen2 on one CPU thread it
made 2.0 k to 4.6 k tokens/s at batch 32 and 128 where `generate` made 10 k to 48 k (it packs the whole batch into one
sequence and masks all other requests away).
"""
