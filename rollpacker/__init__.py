"""RL post-training for shared Slurm clusters that packs long-tail rollouts (RollPacker, NSDI '26).

Read `pipeline.py` first: it is the whole RL loop on one screen.
"""

__version__ = "0.1.0"
