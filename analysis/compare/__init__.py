"""`rollpacker analysis compare`: is one setting better than another, over the seeds of each?

Which runs are repetitions of one setting (`columns`), which held-out scores can be compared (`scores`), what is
compared and with which errors (`numbers`), how it is shown (`table`, `figure`), and the command that reads and prints
it (`command`).
"""
