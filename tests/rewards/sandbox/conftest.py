import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def for_anybody():
    """A folder that `nobody` reaches too, unlike pytest's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
