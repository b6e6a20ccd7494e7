"""From a configuration to a Slurm job and back: what a job asks for, its script, its ranks, its requeueing.

The only room that imports submitit and Hydra's plugin API. What a job does once Ray spans its nodes is the pipeline's.
"""
