"""The Slurm job of a run: its allocation, and `preemption`, made of signals, a deadline and attempts."""
