"""Tables and figures from the Parquet files of runs: `python -m analysis list`.

    exhibits/    one file per table or figure: which runs it needs, its numbers, its picture
    sweeps       models the runs that are missing         runs         finds runs and reads them
    numbers      ours beside the paper's, and claims      verdicts     which claims hold, and held before
    plots, rounds, style   what figures look like         writing      files and page

It reads what runs wrote and starts them by their command; of the package it imports how that is read, and errors.
`demo` and `plan` draw for the commands of those names.
"""
