"""Other processes: programs that run to their end, processes that serve requests, and what ends with whom.

Nothing here knows what they are for: rewards, environments, callbacks and Slurm's commands start theirs by it.
"""
