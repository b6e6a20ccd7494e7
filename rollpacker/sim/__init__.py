"""The modelled cluster: engines, trainer, reward and weight transfer that take computed time instead of real time.

They implement `rollpacker.protocols` and run on an event loop whose clock jumps, so the driver, the pipeline and the
machines above them are the ones of a real run. Nothing here imports ray or torch, waits, or reads a clock.
"""
