"""The configuration: Hydra composes it from `conf/`, and the schema validates the whole before anything starts.

Nothing here imports torch, transformers or ray: an error of the configuration is reported within two seconds.
"""
