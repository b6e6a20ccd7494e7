"""Inference engines: implementations of `protocols.engine.Engine`, one package per backend.

`torch` needs nothing beyond torch. `vllm` is vLLM's AsyncLLM: one request per sample with a seed of its own, partial
responses kept when a request is aborted, log-probabilities of the distribution that was sampled from, new weights in
place; anything that vLLM takes and `engine.vllm` does not name goes into `engine.vllm.arguments`. An engine that dies
is replaced while the round goes on: its requests move to the other engines or wait, a fresh process starts under a name
of its own (`engine-0-r1`, with its own log), takes the newest weights, proves them by a checksum, and joins.
`engine.max_restarts` bounds this; a failure that a fresh engine repeats ends the run.

Importing this package imports no backend; `engines.factory` imports the one that is started.
"""
