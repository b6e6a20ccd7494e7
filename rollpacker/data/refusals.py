"""What transformers raises for a model directory that it cannot load."""

from __future__ import annotations

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

REFUSALS = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, ImportError),
    SafetensorError,
    StrictDataclassError,
)
"""For files that are missing or broken, and for configurations that are unknown, contradict themselves or do not fit.
The last one, of configurations, cannot be unpickled: it does not come over from an actor."""
