"""The offline phase of the paper (section 4.2): what a run's own workers take, measured before the run."""
