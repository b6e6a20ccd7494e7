"""One run and its folder: checkpoints, records, status, progress, and the attempt that the pipeline works with."""
