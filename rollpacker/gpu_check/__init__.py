"""`rollpacker gpu-check`: runs on real GPUs what a machine without any cannot show, and says what passed.

    table      which rows there are: what each needs, how long it may take, which function does it
    checking   runs rows, each in a process of its own with a deadline, and keeps each result as soon as it is there
    __main__   that process: does one row and writes its result
    workers    processes with an engine or a trainer's rank, as a run has them, without Ray
    inputs     models made on the spot, configurations, requests, batches
    engines, weights, trainers, judges, runs   what the rows do

A row drives the package's own engines, trainers, transfers and runs, and returns what it measured; a figure is judged
only against what the same machine just measured. Nothing but `runs` needs Ray.

    missing something -> not possible       child: figures -> passed | an error, a signal, the deadline -> failed

Invariants: a row cannot take another one with it. A result counts for the same GPUs, model and source code; a row that
has passed with these is not run again.
"""
