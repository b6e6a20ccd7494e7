"""Who generates: implementations of `protocols.engine.Engine`, one package per backend.

Importing this package imports no backend; each one is imported from its own place by whoever starts it.
"""
