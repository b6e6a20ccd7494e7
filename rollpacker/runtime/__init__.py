"""Runs the scheduler's machines in the real world; packages import downwards only.

    ray | run      Ray actors; one run and its folder
    rollout        the driver of a step
    placing        the nodes and GPUs of each actor
    job            the Slurm job, and preemption
    waiting        deadlines

No policy is decided here: `core` decides what to launch, abort, score or defer.
"""
