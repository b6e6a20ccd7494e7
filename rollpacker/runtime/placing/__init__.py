"""Which actor gets which node and GPUs, and whether the model fits there: pure, and known before anything starts.

`rollpacker check` answers from this room.
"""
