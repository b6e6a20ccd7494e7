"""`rollpacker plan`: a sweep of modelled runs around one question, and the advice that follows from it.

All numbers come from the modelled cluster and are marked as modelled. A run is the real pipeline in virtual time: the
scheduler of the model is the one of the cluster.
"""
