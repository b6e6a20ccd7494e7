"""Rewards: each is a pure function from a response to a reward and its reason.

Only a process can be timed out, so a check that can hang runs in a process that is killed (`scoring_process`,
`rollpacker.processes.server_process`); a check that cannot runs in place. `worker` implements the protocol for both.
"""
