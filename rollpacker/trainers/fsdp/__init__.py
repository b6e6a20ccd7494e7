"""FSDP2: every rank holds a part of each parameter, and all ranks pass their own samples through the whole model."""
