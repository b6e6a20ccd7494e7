"""Waits: every one has a deadline, and none keeps Ctrl-C waiting.

The lowest room of `runtime`: it knows nothing of runs, jobs or actors.
"""
