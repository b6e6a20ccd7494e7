"""Checks of `rollpacker doctor`: what would stop a run here, found before it starts.

Each file checks one part of the environment. It gathers facts from the system, and a pure function turns them into
findings, so that every finding is tested without the system. `examination.py` has the order.
"""
