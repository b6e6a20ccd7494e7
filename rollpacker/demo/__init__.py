"""The first thing that a newcomer runs: makes a small task and model, trains them under two systems, and compares.

What it makes are files as a user's own would be (a Hugging Face directory, a JSONL file); from there on it types the
commands that a user would type. Nothing else in the package knows of it.
"""
