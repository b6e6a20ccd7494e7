"""The real world around the machines: the driver, Ray actors and their placement, records, checkpoints, deadlines.

The only room that imports ray. Policy has no place here: what to launch, abort, score or defer is decided in `core`.
"""
