"""The command line: `rollpacker COMMAND`, with the commands of `main.COMMANDS`, each in the module of its name.

    main           finds the command, and turns its result into an exit code
    arguments      reads its words; `settings` those of commands that take key=value of their own
    help           the pages of `--help`, from the `HELP` of each command
    screen         what tables, headings, facts and errors look like
    run_words      what `check` says of a run; `scores` the table that `evaluate` prints

`plan`, `calibrate` and `analysis` are in `rollpacker.analysis`.

Invariant: a wrong argument, key or file ends with exit code 2, one message, and creates nothing; torch and ray are
loaded only when a run starts.
"""
