"""The driver of one step: it feeds facts to the scheduler and carries its commands out, and decides nothing.

Time and actors are given to it, so that a modelled cluster drives the same code.
"""
