"""What the scheduler is told of a run."""

from fractions import Fraction

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.commands import FailRun
from rollpacker.core.errors import ConfigError
from rollpacker.core.ids import Domain
from rollpacker.core.settings import LengthHistorySettings
from rollpacker.runtime.rollout.scheduling import all_dropped, scheduler_settings, too_few_left

REAL = ("reward=sandbox", "model.path=m", "data.path=d")
MODELLED = ("backend=sim", "model=qwen2.5-7b")


@pytest.mark.parametrize(
    ("words", "limits_s"),
    [
        (REAL, (2, 30)),
        ((*REAL, "reward.sandbox.max_case_s=6"), (2, 6)),
        ((*REAL, "reward.sandbox.max_case_s=1"), (1, 1)),
        (MODELLED, (2, 30)),
        ((*MODELLED, "reward.timeout_s=10"), (2, 10)),
    ],
)
def test_no_adaptive_limit_is_above_what_the_run_gives_a_test_case(words, limits_s):
    config = compose(["system=reward", "run.dir=r", *words])
    budget = scheduler_settings(config, {Domain("code"): 8}).reward_budget
    assert budget is not None
    assert (budget.min_limit_s, budget.max_limit_s) == limits_s


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("system.reward=batch", "system=dapo-rollpacker"), "A race of responses is over"),
        (("system=dapo-rollpacker", "system.max_active_requests=9"), "It is at least 10"),
        (("system=dapo", "system.max_active_requests=7"), "It is at least 8"),
        (("system=dapo-rollpacker", "system.max_launch_factor=1.1"), "max_launch_factor=1.1 with system.eta_prompts"),
    ],
)
def test_dynamic_sampling_that_cannot_launch_a_round_is_refused(words, message):
    with pytest.raises(ConfigError) as refusal:
        compose(["run.dir=r", *MODELLED, *words])
    assert message in str(refusal.value)


def test_long_prompts_are_not_routed_while_dynamic_sampling_draws_in_the_middle_of_a_round():
    refusal = r"system\.length_history=true with system\.dynamic_sampling=true\.\s+Which prompts are long is decided"
    with pytest.raises(ConfigError, match=refusal):
        compose(["run.dir=r", *MODELLED, "system=ours", "system.dynamic_sampling=true"])


@pytest.mark.parametrize(("first_epoch", "factor"), [("race", Fraction(5, 4)), ("exact", Fraction(1))])
def test_a_first_epoch_has_the_papers_factors_or_waits_for_all(first_epoch, factor):
    config = compose(["run.dir=r", *MODELLED, "system=ours", f"system.first_epoch={first_epoch}"])
    settings = scheduler_settings(config, {Domain("math"): 999})
    assert (settings.eta_prompts, settings.eta_responses) == (Fraction(9, 8), 1)
    assert settings.length_history == LengthHistorySettings(
        share=Fraction(1, 5), first_eta_prompts=factor, first_eta_responses=factor
    )


def test_what_a_round_launches_at_most_counts_its_first_epoch():
    def factors(*words):
        return compose(["run.dir=r", *MODELLED, *words]).system.largest_factors

    assert factors("system=ours") == (1.125, 1.0)
    assert factors("system=ours", "system.first_epoch=race") == factors("system=ours-fast") == (1.25, 1.25)
    assert factors("system=ours-exact") == (1.0, 1.0)


def test_a_domain_that_has_no_place_in_a_batch_is_refused():
    config = compose(["run.dir=r", *MODELLED, "rollout.num_prompts=4"])
    with pytest.raises(
        ConfigError, match=r"Domain 'code' gets no place in a batch of rollout.num_prompts=4: its share is 1"
    ):
        scheduler_settings(config, {Domain("math"): 99, Domain("code"): 1})


def test_a_run_of_no_steps_makes_no_batch_in_which_a_domain_could_have_no_place():
    config = compose(["run.dir=r", *REAL, "rollout.num_prompts=4", "run.num_steps=0", "evaluation.path=e"])
    settings = scheduler_settings(config, {Domain("math"): 99, Domain("code"): 1}, held_out={"e": ["m1", "c1"]})
    assert dict(settings.domain_weights) == {"math": 1, "code": 1}
    assert settings.evaluation is not None


def test_a_run_of_no_steps_without_evaluation_has_nothing_to_do():
    for words in ((), ("evaluation.path=e", "evaluation.at_end=false")):
        with pytest.raises(ConfigError, match=r"run\.num_steps=0, and nothing is evaluated"):
            compose(["run.dir=r", *REAL, "run.num_steps=0", *words])


def test_equal_rewards_are_named_with_what_drops_their_prompts_and_failures_with_where_they_are_told():
    command = FailRun(round=0, num_prompts_launched=4, num_prompts_dropped=4, num_prompts_needed=4)
    error = too_few_left(command, has_environments=True)
    assert "failed too often, or, with system.dynamic_sampling, all their rewards were equal." in error.problem
    assert "`The environment of ... failed`" in error.remedy
    assert "the first observations fill rollout.max_response_tokens" in error.remedy
    for remedy in (error.remedy, all_dropped(has_environments=True).remedy):
        assert "take prompts that the model solves sometimes, or raise rollout.num_responses or" in remedy
