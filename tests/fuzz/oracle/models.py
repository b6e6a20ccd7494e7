"""Which reference model a scheduler is compared with."""

from __future__ import annotations

from rollpacker.core.settings import SchedulerSettings
from tests.fuzz.oracle.asynchronous import AsynchronousModel
from tests.fuzz.oracle.reference_model import ReferenceModel


def model_of(settings: SchedulerSettings) -> ReferenceModel | AsynchronousModel:
    """Make the model of a run with these settings, which has not begun."""
    return AsynchronousModel(settings) if settings.asynchronous else ReferenceModel(settings)
