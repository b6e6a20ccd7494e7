"""A tiny random model, in memory and as a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.engines.tiny import make_model

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model() -> Any:
    return make_model()


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(folder)
    return folder
