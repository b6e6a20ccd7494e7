"""What held-out responses say about a policy: scores, their errors, and differences between two policies.

When and how they are generated is decided by `rollpacker.core.evaluation` and done by `rollpacker.runtime`.
"""
