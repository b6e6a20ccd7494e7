"""What a run leaves behind for readers: Parquet tables, the event log, and the atomic file writing under both.

Nothing here decides anything or knows where a number comes from; it only promises that what lies on disk is whole.
"""
