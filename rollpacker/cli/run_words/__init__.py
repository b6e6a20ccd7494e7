"""What `rollpacker check` says of a run: a file for each part, put together in `summary`.

    inputs        the model, the prompts and the lengths
    rollout       batch, rounds and steps
    techniques    what the system does beside batching
    environment   what answers the turns
    workers       rollout workers that come and go
    split         an asynchronous run's GPUs, beside what theory suggests
    loss          how tokens are weighted and corrected
    evaluation    of what, when, and what it costs
    actors        what is started, and what Slurm is asked for
    placement     who is on which GPU: a table

A modelled number is preceded by MODELLED.
"""
