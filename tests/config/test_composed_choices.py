"""What is composed from kept choices is what Hydra composes."""

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf

from rollpacker.config.compose import hydra_session
from rollpacker.config.roots import TRAIN

WORDS = [
    [],
    ["system=rollpacker", "reward=math"],
    ["run.seed=3", "system=rollpacker", "trainer.learning_rate=1e-3", "experiment=e2e", "model.path=m"],
    ["data.domain_weights={math: 1}", "+data.domain_weights.code=2", "++data.domain_weights.math=3"],
    ["trainer.adam_betas=[0.9,0.99]", "run.dir='a b-${run.seed}-${hydra:job.num}'"],
    ["reward={timeout_s: 5}", "reward=math"],
    ["hydra/launcher=slurm", "cluster=slurm", "hydra.launcher.detach=true", "run.seed=1"],
    ["run.seed=1", "run.seed=2", "engine={num_engines: 3}", "engine.num_engines=4"],
    ["~reward", "run.seed=1"],
]
WRONG = [["run.sed=1"], ["system=none_such"], ["run.seed.x=1"], ["run.seed=1,2"], ["system=verl,rollpacker"]]


def composed(words):
    """By the session's loader, and by Hydra's own; an error as its class and text."""

    def ask(loader):
        try:
            config = loader.load_configuration(TRAIN.name, list(words), RunMode.RUN)
        except (HydraException, ValueError) as error:
            return type(error), str(error)
        return OmegaConf.to_container(config, resolve=False)

    with hydra_session() as session:
        return ask(session.config_loader), ask(ConfigLoaderImpl(session.config_loader.get_search_path()))


@pytest.mark.parametrize("words", [*WORDS, *WRONG], ids=" ".join)
def test_values_set_in_a_copy_are_what_hydra_composes(words):
    ours, hydras = composed(words)
    assert ours == hydras


def test_a_composition_leaves_no_value_for_the_next_one():
    first, _ = composed(["system=rollpacker", "data.domain_weights={math: 1}", "run.seed=7"])
    again, _ = composed(["system=rollpacker"])
    assert first["run"]["seed"] == 7
    assert again == composed(["system=rollpacker"])[1]


def test_files_are_read_once_for_all_points_that_choose_the_same(monkeypatch):
    words = ["system=tail-prompts", "hydra/launcher=slurm"]
    composed(words)
    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", None)
    with hydra_session() as session:
        seeds = [
            session.config_loader.load_configuration(TRAIN.name, [*words, f"run.seed={n}"], RunMode.RUN) for n in (1, 2)
        ]
    assert [config.run.seed for config in seeds] == [1, 2]
    assert [list(config.hydra.overrides.task)[-1] for config in seeds] == ["run.seed=1", "run.seed=2"]
