"""The real world around the machines, in rooms that import downwards only.

    ray | run      Ray actors; one run and its folder
    rollout        the driver of a step
    placing        which actor gets which GPUs
    job            the Slurm job
    waiting        deadlines

Policy has no place here: what to launch, abort, score or defer is decided in `core`.
"""
