"""The configuration: Hydra composes it from `conf/`, the schema judges the whole before anything starts.

Answers in well under two seconds, so nothing here imports torch, transformers or ray.
"""
