from __future__ import annotations

import pytest
from pydantic import ValidationError

from rollpacker.config.compose import compose
from rollpacker.config.sections.cluster import ContainerSection
from rollpacker.core.errors import ConfigError

MODELLED = ["backend=sim", "model=qwen2.5-7b", "cluster=slurm"]


@pytest.mark.parametrize("name", ["MY-VAR", "9X"])
def test_a_variable_that_bash_could_not_export_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"cluster.environment names no variable by '{name}'"):
        compose([*MODELLED, f"cluster.environment={{OMP_NUM_THREADS: 1, {name}: x}}"])


def test_a_variable_has_letters_digits_and_underscores() -> None:
    cluster = compose([*MODELLED, "cluster.environment={_9x: 1}"]).cluster
    assert cluster is not None
    assert cluster.environment == {"_9x": "1"}


def test_inside_an_image_a_variable_may_have_any_name_that_env_takes() -> None:
    cluster = compose([*MODELLED, "cluster.container.environment={MY-VAR: 1, 9X: 2}"]).cluster
    assert cluster is not None
    environment = cluster.container.environment
    assert (environment["MY-VAR"], environment["9X"]) == ("1", "2")


@pytest.mark.parametrize("name", ["", "A=B", "-u"])
def test_inside_an_image_a_name_that_env_would_read_otherwise_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=f"cluster.container.environment names no variable by '{name}'"):
        ContainerSection(environment={name: "x"})


@pytest.mark.parametrize(("lead_s", "is_legal"), [(65535, True), (65536, False)])
def test_a_signals_lead_is_one_that_sbatch_takes(lead_s: int, is_legal: bool) -> None:
    words = [*MODELLED, f"cluster.signal_lead_s={lead_s}"]
    if is_legal:
        compose(words)
    else:
        with pytest.raises(ConfigError, match=r"cluster\.signal_lead_s"):
            compose(words)
