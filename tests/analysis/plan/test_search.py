"""The search asks for few trials, at the best that it has found, and says beforehand how many."""

from dataclasses import replace

import pytest

from rollpacker.analysis.plan.search import Space, Stage, StepTimes, count_trials, nearest_degree, search
from rollpacker.analysis.plan.trials import Setting, Trial, config_of, steps_of, trainer_degree, with_short_epochs
from rollpacker.config.compose import compose

WORDS = ["backend=sim", "model=qwen2.5-7b", "run.dir=x", "rollout.num_prompts=128"]


@pytest.fixture(scope="module")
def space() -> Space:
    systems = ("verl", "rollpacker")
    return Space(
        bases={system: compose([*WORDS, f"system={system}"]) for system in systems},
        num_gpus=16,
        degrees_by_gpus={
            num_gpus: dict.fromkeys(systems, degrees)
            for num_gpus, degrees in {16: (1, 2, 4), 8: (1, 2), 32: (1, 2, 4)}.items()
        },
        rho=0.3,
        varies_rho=True,
        num_seeds=3,
    )


def step_time_s(trial: Trial) -> float:
    """TP 4 and eta 1.5 are best, plain batching prefers TP 1."""
    setting = trial.setting
    if setting.system == "verl":
        return 200 + setting.tensor_parallel
    assert setting.eta is not None
    return 150 - 10 * setting.eta - setting.tensor_parallel


def stages_of(space: Space) -> list[Stage]:
    stages: list[Stage] = []

    def model(stage: Stage) -> StepTimes:
        stages.append(stage)
        return {trial: step_time_s(trial) for trial in stage.trials}

    search(space, model)
    return stages


def test_each_stage_builds_on_the_best_of_the_stage_before(space):
    degrees, eta, gpus, seeds, rho = stages_of(space)
    assert {(trial.setting.system, trial.setting.tensor_parallel) for trial in degrees.trials} == {
        (system, degree) for system in ("verl", "rollpacker") for degree in (1, 2, 4)
    }
    assert {trial.setting.eta for trial in eta.trials} == {1.0, 1.125, 1.5}
    assert {trial.setting.tensor_parallel for trial in eta.trials} == {4}
    assert {(t.setting.system, t.setting.num_gpus, t.setting.tensor_parallel, t.setting.eta) for t in gpus.trials} == {
        ("verl", 8, 1, None),
        ("verl", 32, 1, None),
        ("rollpacker", 8, 2, 1.5),  # TP 4 does not fit there
        ("rollpacker", 32, 4, 1.5),
    }
    assert {trial.seed for trial in seeds.trials} == {1, 2}
    assert seeds.trials[0].setting[:3] == ("verl", None, 1)
    assert seeds.trials[1].setting.eta == 1.5
    assert {trial.setting.rho for trial in rho.trials} == {0.0, 0.6}


@pytest.mark.parametrize("last", ["rlhfuse", "tail"])
def test_gpus_and_rho_are_varied_with_the_fastest_system_that_races_wherever_it_stands(space, last):
    """Of which the advice is: rlhfuse is faster and does not race, tail races and is slower."""
    more = replace(
        space,
        bases={**space.bases, last: compose([*WORDS, f"system={last}"])},
        degrees_by_gpus={number: {**each, last: each["verl"]} for number, each in space.degrees_by_gpus.items()},
    )
    stages: dict[str, Stage] = {}

    def model(stage: Stage) -> StepTimes:
        stages[stage.name] = stage
        times = {"verl": 200.0, "rollpacker": 100.0, "rlhfuse": 50.0, "tail": 150.0}
        return {trial: times[trial.setting.system] for trial in stage.trials}

    search(more, model)
    for name in ("gpus", "rho"):
        assert {trial.setting.system for trial in stages[name].trials} == {"verl", "rollpacker"}


def test_degrees_begin_with_the_largest_of_each_system_also_where_fewer_fit_one(space):
    fewer = replace(space, degrees_by_gpus={16: {"verl": (1, 2, 4), "rollpacker": (2,)}})
    tried = [(trial.setting.system, trial.setting.tensor_parallel) for trial in stages_of(fewer)[0].trials]
    assert tried == [("verl", 4), ("rollpacker", 2), ("verl", 2), ("verl", 1)]


def test_no_trial_is_asked_for_twice_and_their_number_is_known_beforehand(space):
    for one in (space, replace(space, varies_rho=False), replace(space, rho=0.5), replace(space, num_seeds=1)):
        trials = [trial for stage in stages_of(one) for trial in stage.trials]
        assert len(trials) == len(set(trials)) == count_trials(one)


def test_a_search_that_is_cut_short_after_its_first_stage_still_ends(space):
    names: list[str] = []

    def model(stage: Stage) -> StepTimes:
        names.append(stage.name)
        return {} if len(names) > 1 else {trial: step_time_s(trial) for trial in stage.trials}

    search(space, model)
    assert names == ["degrees", "eta", "gpus", "seeds", "rho"]


def test_a_trial_is_long_enough_for_a_long_round(space):
    config = space.bases["rollpacker"]
    assert [steps_of(config, eta) for eta in (None, 1.0, 1.125, 1.25, 1.5)] == [4, 4, 10, 6, 4]


def test_a_trial_of_a_length_history_goes_beyond_its_first_epoch_and_races_what_its_system_races(space):
    config = compose([*WORDS, "system=ours"])
    assert [steps_of(config, eta) for eta in (1.0, 1.125, 1.25, 1.5)] == [10, 9, 8, 8]
    assert with_short_epochs(config, 4).workload.num_prompts == 4 * 128 / 4
    assert with_short_epochs(compose([*WORDS, "workload.num_prompts=9"]), 4).workload.num_prompts == 9
    for base, factors in ((config, (1.5, 1.0)), (space.bases["rollpacker"], (1.5, 1.5))):
        system = config_of(base, Setting(base.system.name, 1.5, 2, 16, 0.3)).system
        assert (system.eta_prompts, system.eta_responses) == factors


def test_the_trainers_own_degree_is_one_that_the_model_divides_by_however_small_the_gpus_are():
    degrees = [trainer_degree(compose([*WORDS, f"hardware.memory_gb={gb}"]), 32) for gb in (100, 50, 30, 10)]
    assert degrees == [1, 2, 4, 4]  # it has four key-value heads


def test_the_trainers_own_degree_is_one_that_nodes_divide_by():
    config = compose([*WORDS, "hardware.memory_gb=10", "hardware.gpus_per_node=10"])
    assert trainer_degree(config, 20) == 2


def test_the_nearest_degree_is_the_fewest_doublings_away():
    assert nearest_degree((1, 2), 8) == 2
    assert nearest_degree((2, 8), 4) == 8
    assert nearest_degree((1, 2, 4), 2) == 2
