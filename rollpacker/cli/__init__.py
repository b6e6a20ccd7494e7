"""The command line: `rollpacker COMMAND`, with the commands of `main.COMMANDS`.

    train check score                a run, or what it would do, or its reward on given responses
    jobs doctor                      the runs of a cluster, and its state
    trace report replay              a finished run
    plan profile calibrate           modelled clusters
    analysis demo                    the paper's tables and figures, and a small comparison on this machine

Invariant: a wrong argument, key or file ends with exit code 2, one message, and creates nothing; torch and ray are
loaded only when a run starts.
"""
