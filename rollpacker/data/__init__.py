"""Prompts: read and checked from the user's file, put in a resumable order, turned into tokens.

Nothing here imports torch. transformers is imported only when a tokenizer is loaded, so that `rollpacker check` can
check the prompt file and the model directory in a moment.
"""
