"""Random worlds that break while they run: every invariant is checked after every event, and a failure is shrunk.

The pipeline, the driver, the machines, the checkpoints, the event log and the tables are those of every run; the
workers are modelled and wrapped in faults. A world is plain data, drawn from a seed, so a failure is a number that
anybody can type. `python -m tests.fuzz --help` says how to run worlds.
"""
