"""The command line: `rollpacker train | check | score | replay`.

Invariant: a wrong word, key or file ends with exit code 2, one message and nothing created; torch and ray are loaded
only once a run starts.
"""
