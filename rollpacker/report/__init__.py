"""A run as one page for people: what happened, where the time went, and who waited for whom."""
