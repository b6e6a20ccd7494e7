"""Ray: the cluster of one run, its actors and their calls. The only room that imports ray.

`backend` opens it for the pipeline; everything else here is reached through the protocols.
"""
