"""How a policy's tensors travel from a trainer to engines: cut into buckets, over a process group or shared memory.

After every update the trainer's ranks gather the policy tensor by tensor, and its first rank sends it to every engine
in buckets, tied tensors once, in the model's dtype; each worker takes its shard, so any layout of the trainer meets any
layout of the engines. `weight_sync.transport` is `handles` (workers on the trainer's node open the buckets in place:
CUDA IPC, else shared memory), `broadcast` (a process group of its own: NCCL, else gloo), `object_store` (a snapshot) or
`auto`. Both ends compute a checksum. An engine that dies, or takes longer than `weight_sync.timeout_s`, is replaced.
The table `steps` has bytes, seconds and GB/s of every sync, and `logprob_mismatch_max`.

A run that trains nothing has no trainer: its engines read the model's files (`model_files`).

Both ends import this package and nothing of each other.
"""
