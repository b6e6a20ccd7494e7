"""`check` says how tokens count, what corrects the engines, and who tests them; defaults follow the engine."""

from __future__ import annotations

import pytest

from rollpacker.cli.run_words.loss import _advantage_words, loss_words
from rollpacker.config.compose import compose
from rollpacker.config.sections.losses import BATCH_ADVANTAGES, STREAMED_ADVANTAGES
from rollpacker.config.sections.trainer import TrainerSection

REAL = ["model.path=m", "data.path=d", "run.dir=r", "placement=none"]


def words_of(*words: str) -> str:
    return loss_words(compose([*REAL, *words]))


def test_every_token_counts_the_same_by_default():
    text = words_of()
    assert text.startswith("every token counts the same, in batches of long responses as in those of short ones")
    assert "(loss_normalisation=token_bound)" in text
    assert "a warning beyond 6 standard deviations, a stop beyond 12 standard deviations" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "not corrected (mismatch=none, by default with engine=torch)"),
        (["engine=vllm"], "at most 2 (mismatch=token_truncate, by default with engine=vllm)"),
        (["engine=vllm", "trainer.mismatch=none"], "not corrected (mismatch=none)"),
        (["trainer.mismatch=token_mask", "trainer.mismatch_high=5"], "by 0 outside of 0.5 to 5 (mismatch=token_mask)"),
        (["trainer.mismatch=sequence_mask"], "the geometric mean of its response's ratios, by 0 outside of 0.5 to 2"),
        (["trainer.mismatch=sequence_truncate"], "the product of its response's ratios, at most 2"),
        (["trainer.mismatch=k3_mask"], "further than 0.01 nats per token"),
        (["engine=vllm", "trainer.loss=tis"], "left to the loss (mismatch=none, by default with loss=tis)"),
        (["engine=vllm", "trainer.loss=own.py:f"], "left to the loss (mismatch=none, by default with loss=own.py:f)"),
    ],
)
def test_the_correction_follows_the_engine_unless_it_is_named(words, said):
    assert said in words_of(*words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "first update, which with num_minibatches=1 is 1: nothing is clipped (loss=ppo, by default)"),
        (["trainer.num_minibatches=2"], "first update, 0.8 to 1.28 (loss=ppo, by default)"),
        (["system=one-step-off"], "the policy that sampled the token, 0.8 to 1.28 (loss=ppo_behaviour, by default)"),
        (["trainer.loss=reinforce"], "log-probability times advantage (loss=reinforce)"),
        (
            ["trainer.loss=tis"],
            "weighted by the bounded ratio to the policy that sampled the token, at most 1 (loss=tis)",
        ),
        (
            ["trainer.loss=cispo"],
            "weighted by the bounded ratio to the policy that sampled the token, at most 1.28 (loss=cispo)",
        ),
        (["trainer.loss=cispo", "trainer.clip_ratio_low=0.4"], "sampled the token, 0.6 to 1.28 (loss=cispo)"),
        (["trainer.loss=mine.py:loss"], "a function of your own (loss=mine.py:loss)"),
    ],
)
def test_it_says_which_loss_it_is_and_what_that_does(words, said):
    assert said in words_of("system=verl", *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["trainer.kl_coefficient=0.01"],
            "is added to a token's loss (kl_coefficient=0.01, kl_in=loss, kl_estimator=k3)",
        ),
        (
            ["trainer.kl_coefficient=0.01", "trainer.kl_in=reward"],
            "is taken off a token's reward (kl_coefficient=0.01, kl_in=reward, kl_estimator=k1)",
        ),
        (
            ["trainer.entropy_coefficient=0.001"],
            "entropy bonus: 0.001 times the entropy is taken off a token's loss (entropy_coefficient=0.001)",
        ),
        (
            ["trainer.loss=ppo_behaviour", "trainer.dual_clip=3"],
            "where the advantage is negative, the ratio counts at most 3 (dual_clip=3)",
        ),
        (
            ["trainer.loss=topr", "trainer.topr_weights=[0.5,2]"],
            "0.5 times with a positive advantage, 2 times with a negative one (topr_weights=[0.5,2])",
        ),
        (["trainer.mask_truncated=true"], "responses that were cut are left out of the loss (mask_truncated=true)"),
    ],
)
def test_what_is_beside_the_policy_loss_has_a_line_where_it_is_set(words, said):
    loss = [word for word in words if word.startswith("trainer.loss=")]
    (line,) = set(words_of(*words).splitlines()) - set(words_of(*loss).splitlines())
    assert said in line


def test_a_penalty_in_the_loss_whose_gradient_has_the_mean_0_is_named():
    words = ["trainer.kl_coefficient=0.01", "trainer.kl_estimator=k1"]
    assert "k1 in the loss restrains nothing: its gradient has the mean 0" in words_of(*words)
    for other in (["trainer.kl_coefficient=0.01"], [*words, "trainer.kl_in=reward"]):
        assert "restrains nothing" not in words_of(*other)


def test_a_dual_clip_that_no_ratio_reaches_has_no_line():
    assert words_of("system=verl", "trainer.dual_clip=3") == words_of("system=verl")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "advantage: the reward less its group's mean, over the group's standard deviation (advantage=group_std)"),
        (["trainer.advantage=rloo"], "advantage: the reward less the mean of the others in its group (advantage=rloo)"),
        (["trainer.advantage=mine.py:adv"], "advantage: a function of your own (advantage=mine.py:adv)"),
        (
            ["trainer.advantage=gigpo", "trainer.turn_discount=0.9", "environment=gym", "environment.env=my.py:Maze"],
            "advantage: each turn has its own, from returns that are discounted by 0.9 per turn (advantage=gigpo)",
        ),
    ],
)
def test_it_says_which_advantage_it_is_and_what_that_is_made_of(words, said):
    assert said in words_of(*words).splitlines()


def test_every_advantage_has_words_of_its_own():
    words = {_advantage_words(TrainerSection(advantage=name)) for name in (*STREAMED_ADVANTAGES, *BATCH_ADVANTAGES)}
    assert len(words) == len(STREAMED_ADVANTAGES) + len(BATCH_ADVANTAGES)
    assert _advantage_words(TrainerSection(advantage="mine.py:adv")) not in words


def test_it_says_where_sampling_is_not_tested():
    assert "reported only, since dynamic sampling selects responses" in words_of("system=dapo")
    assert "in long rounds; short ones select responses" in words_of("system=tail")
    assert "in long rounds" not in words_of("system=verl")


def test_a_test_that_is_turned_off_is_not_promised():
    assert "surprisal" not in words_of("trainer.surprisal_warn_z=null", "trainer.surprisal_stop_z=null")


@pytest.mark.parametrize(
    ("words", "normalisation", "mismatch"),
    [
        (["setup=paper"], "sequence", "none"),
        (["setup=8gpus"], "sequence", "none"),
        (["experiment=dapo"], "token_mean", "none"),
        (["experiment=dapo-math", "engine=vllm"], "token_bound", "token_truncate"),
        (["experiment=gsm8k", "engine=vllm"], "token_bound", "token_truncate"),
        (["experiment=demo"], "token_bound", "none"),
    ],
)
def test_the_papers_setups_name_their_objective_and_recipes_take_the_defaults(words, normalisation, mismatch):
    config = compose([*REAL, *words])
    assert (config.trainer.loss_normalisation, config.objective.mismatch) == (normalisation, mismatch)


@pytest.mark.parametrize(
    ("words", "is_said"),
    [
        (["system.max_staleness=8", "system.lookahead=8"], True),
        (["system.max_staleness=2"], False),
        (["system.max_staleness=8", "system.lookahead=8", "trainer.loss=cispo"], False),
    ],
)
def test_a_loss_that_was_seen_to_lose_with_old_tokens_is_named_with_the_one_that_did_not(words, is_said):
    assert ("cispo held the score" in words_of("system=flash", *words)) is is_said
