"""`rollpacker demo`: creates a small task and model, trains them under two systems, and compares.

Its inputs are files as a user's own would be (a Hugging Face directory, a JSONL file); then it runs the commands that a
user would type. Nothing else in the package imports it.
"""
