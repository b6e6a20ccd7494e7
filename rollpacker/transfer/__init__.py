"""How a policy's tensors travel from a trainer to engines: cut into buckets, over a process group or shared memory.

Both ends import this package and nothing of each other.
"""
