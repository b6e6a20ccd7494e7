"""Waits: every one has a deadline, and none delays Ctrl-C.

The lowest part of `runtime`: it does not depend on runs, jobs or actors.
"""
