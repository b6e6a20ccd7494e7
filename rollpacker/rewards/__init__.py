"""Rewards: each is a pure function from a response to a number and a word that says why.

Only a process can be timed out, so a check that can hang runs in a process that is killed (`judging_process`,
`process_pool`); a check that cannot runs in place. `worker` gives both the protocol's face.
"""
