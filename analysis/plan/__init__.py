"""What would happen if: many modelled runs around one question, and what follows from them.

Everything here is computed by the modelled cluster; nothing is measured, and every row says so. A run is the real
pipeline in virtual time, so what a policy would save is decided by the machines that would decide it on the cluster.
"""
