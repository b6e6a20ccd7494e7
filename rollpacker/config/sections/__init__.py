"""Every key of the configuration, its unit, its bounds and its default; one file per part.

Defaults live here and only here: the files in `conf/` set what differs.
"""
