"""Tables and event logs of a run -> who did what at which moment, and the same as a trace for a viewer.

Reads what `rollpacker.metrics` wrote and nothing else, so that it works on a copied folder, on any machine.
"""
