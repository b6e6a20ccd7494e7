"""Probes: each times one kind of call of a run, and notes it among the points."""
