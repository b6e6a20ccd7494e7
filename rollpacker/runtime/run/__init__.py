"""One run and its folder.

    opening        starts an attempt and everything that it needs; `attempt` is what it finds in the folder
    training_run   a verb for each stage of a step; `handover`, `saving` and `outputs` are its parts
    preflight      validates a run before anything starts, with `folder_checks` and `prompt_look`

Other files keep one thing in the folder or show it: checkpoints, status, startup, recorder, trackers, progress.
"""
