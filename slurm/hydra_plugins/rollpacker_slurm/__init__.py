"""RollPacker's plugin for Hydra, which looks for plugins in the namespace `hydra_plugins`.

Hydra loads it when it starts, whatever it is started for: nothing heavy may be imported here.
"""
