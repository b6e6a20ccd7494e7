"""A run as one HTML page: what ran, where the time went, and what waited for what."""
