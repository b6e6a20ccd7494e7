from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engines.streamed.models import save_model

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("streamed"))
