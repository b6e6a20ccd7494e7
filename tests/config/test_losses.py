"""What the nulls of an objective stand for, and what is refused of it."""

from __future__ import annotations

import pytest

from rollpacker.config.compose import compose
from rollpacker.config.effects import keys_without_effect
from rollpacker.config.fingerprint import config_fingerprint
from rollpacker.config.sections.losses import LOSSES, check_stale_tokens, resolved
from rollpacker.config.sections.trainer import TrainerSection

RUN = ["model.path=/m", "data.path=/p.jsonl", "run.dir=x"]


@pytest.mark.parametrize(
    ("given", "engine", "max_staleness", "loss", "mismatch"),
    [
        ({}, "torch", 0, "ppo", "none"),
        ({}, "vllm", 0, "ppo", "token_truncate"),
        ({}, "torch", 1, "ppo_behaviour", "none"),
        ({}, "vllm", 1, "ppo_behaviour", "none"),
        ({"loss": "cispo"}, "vllm", 0, "cispo", "none"),
        ({"loss": "reinforce"}, "vllm", 0, "reinforce", "token_truncate"),
        ({"loss": "ppo"}, "vllm", 2, "ppo", "token_truncate"),
        ({"loss": "my.py:loss"}, "vllm", 2, "my.py:loss", "none"),
        ({"mismatch": "token_mask"}, "torch", 0, "ppo", "token_mask"),
    ],
    ids=str,
)
def test_loss_and_correction_follow_staleness_and_engine_unless_they_are_named(
    given, engine, max_staleness, loss, mismatch
):
    found = resolved(TrainerSection(**given), engine_name=engine, max_staleness=max_staleness)
    assert (found.loss, found.mismatch) == (loss, mismatch)
    assert resolved(found) == found
    check_stale_tokens(found, max_staleness)


def test_bounds_are_those_of_the_loss_unless_they_are_named():
    gspo = resolved(TrainerSection(loss="gspo", clip_ratio_high=0.1))
    assert (gspo.clip_ratio_low, gspo.clip_ratio_high) == (3e-4, 0.1)
    assert resolved(TrainerSection()).clip_ratio_high == 0.28


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("mismatch", ["none", "token_truncate", "token_mask", "sequence_mask", "k3_mask"])
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_what_sampled_a_stale_token_is_read_exactly_once(loss, mismatch, max_staleness):
    """A fresh one may be trained without: the two policies are one then, but for rounding. k3_mask has no ratio."""
    num_readers = (LOSSES[loss].anchor == "behaviour") + (mismatch != "none")
    section = resolved(TrainerSection(loss=loss, mismatch=mismatch), max_staleness=max_staleness)
    if num_readers == 1 or (num_readers == 0 and not max_staleness) or mismatch == "k3_mask":
        check_stale_tokens(section, max_staleness)
    else:
        with pytest.raises(ValueError, match=r"trainer\.mismatch"):
            check_stale_tokens(section, max_staleness)


def test_a_correction_that_was_meant_for_ppo_is_refused_where_staleness_changes_the_loss():
    section = TrainerSection(mismatch="token_truncate")
    with pytest.raises(ValueError, match=r"(?s)trainer.loss=ppo_behaviour.*trainer.loss=ppo: .*decoupled PPO"):
        check_stale_tokens(resolved(section, max_staleness=1), 1)


def test_what_a_null_stands_for_defines_the_same_run_as_its_name():
    def fingerprint(*words: str) -> str:
        return config_fingerprint(compose([*RUN, *words]))

    assert fingerprint("trainer.loss=ppo", "trainer.clip_ratio_high=0.28") == fingerprint()
    assert fingerprint("trainer.loss=tis", "trainer.clip_ratio_high=0") == fingerprint("trainer.loss=tis")
    assert fingerprint("trainer.loss=tis") != fingerprint()
    assert fingerprint("trainer.entropy_coefficient=0.01") != fingerprint()
    kl = "trainer.kl_coefficient=0.1"
    assert fingerprint(kl, "trainer.kl_estimator=k3") == fingerprint(kl) != fingerprint(kl, "trainer.kl_in=reward")


def test_settings_of_another_loss_are_told_to_be_without_effect():
    config = compose([*RUN, "trainer.topr_weights=[1,2]", "trainer.mismatch_k3=0.1"])
    told = " ".join(keys_without_effect(config))
    assert "only a run with trainer.loss=topr uses it" in told
    assert "only a run with trainer.mismatch=k3_mask uses it" in told
