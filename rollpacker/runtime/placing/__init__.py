"""Places actors on nodes and GPUs, and estimates whether the model fits there: pure, and done before anything starts.

`rollpacker check` uses only this.
"""
