"""The machines that make every scheduling decision: pure Python, no clock, no I/O, no randomness, no logging.

A machine has one method, `handle(event, now) -> tuple[Command, ...]`, plus `snapshot`, `restore` and `check`.
Nothing in this package imports anything that touches the world, so the code that schedules 128 GPUs is the
code that a property test runs a hundred thousand times a second.
"""
