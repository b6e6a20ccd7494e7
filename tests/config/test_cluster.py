from __future__ import annotations

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError

MODELLED = ["backend=sim", "model=qwen2.5-7b", "cluster=slurm"]


@pytest.mark.parametrize("key", ["cluster.environment", "cluster.container.environment"])
@pytest.mark.parametrize("name", ["MY-VAR", "9X"])
def test_a_variable_that_bash_could_not_export_is_refused(key: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} names no variable by '{name}'"):
        compose([*MODELLED, f"{key}={{OMP_NUM_THREADS: 1, {name}: x}}"])


def test_a_variable_has_letters_digits_and_underscores() -> None:
    cluster = compose([*MODELLED, "cluster.environment={_9x: 1}"]).cluster
    assert cluster is not None
    assert cluster.environment == {"_9x": "1"}
