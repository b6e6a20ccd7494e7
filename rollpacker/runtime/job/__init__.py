"""The Slurm job that a run is in: what it was given, what its signals mean, when to leave, and its attempts."""
