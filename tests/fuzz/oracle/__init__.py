"""The oracle: what a scheduler has to decide, computed from the paper's rules and by none of the scheduler's code.

Invariant: of the package it imports events, commands, ids and settings, which hold data; `test_independence` checks it.
"""
