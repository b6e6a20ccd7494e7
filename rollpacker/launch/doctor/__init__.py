"""What would stop a run here, found before it starts.

Each file looks at one part of the world: it gathers facts, which needs the world, and judges them, which is pure and
tested with bad worlds. `examination.py` says in which order.
"""
