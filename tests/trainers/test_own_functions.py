"""A loss and an advantage of the user's: tried before anything starts, and called as our own."""

from __future__ import annotations

import contextlib
import io
import json
import textwrap

import numpy as np
import pytest
import torch

from rollpacker.config.sections.losses import resolved
from rollpacker.config.sections.trainer import TrainerSection
from rollpacker.core.errors import ConfigError
from rollpacker.trainers import own_functions, trial
from rollpacker.trainers.own_functions import own_advantage
from rollpacker.trainers.policy_losses import make_policy_loss
from rollpacker.trainers.tokens import Tokens
from rollpacker.trainers.trial import try_own_functions
from tests.trainers.test_objectives import naive_gradients, require_close
from tests.trainers.test_torch_trainer import gradients

MODULE = """
    import os
    import torch

    def ppo(current, behaviour, advantages):
        ratio = (current - behaviour).exp()
        bounded = ratio.clamp(0.8, 1.28)
        return -torch.minimum(ratio * advantages, bounded * advantages), bounded * advantages < ratio * advantages

    def plain(current, advantages, num_tokens, scale=2.0):
        assert sum(num_tokens) == len(current)
        return -scale * advantages * current

    def imitating(current, advantages):
        return -advantages * current - 0.1 * current

    def stranger(current, rewards):
        return current

    def without_gradient(current, advantages):
        return advantages

    def of_numbers_of_its_own(current, advantages):
        return -advantages * torch.ones_like(current, requires_grad=True)

    def with_ratios(current, advantages):
        return -advantages * current, current.exp()

    def a_mean(current, advantages):
        return (current * advantages).mean()

    def raises(current):
        return current + current.no_such_thing

    def infinite(current):
        return current / 0

    def by_sign(current, advantages):
        return -advantages / advantages.abs() * current

    def ends(current):
        print("bye")
        raise SystemExit(3)

    def ends_with_a_number(current, advantages):
        print(len(current), flush=True)
        os._exit(0)

    def ends_with_an_object(current, advantages):
        print({}, flush=True)
        os._exit(0)

    def ends_with_no_utf_8(current, advantages):
        os.write(2, b"\\xff")
        os._exit(1)

    def of_the_batch(current, advantages):
        return -(advantages - advantages.mean()) * current

    def scaled_back(current, advantages):
        scale = current.sum()
        return -advantages * current * (scale / scale.detach())

    def writing(current, advantages):
        return -advantages.mul_(2) * current

    def writing_into_what_is_trained(current, advantages):
        current.detach().clamp_(min=-1)
        return -advantages * current

    def bounding(current, advantages):
        return -advantages.clamp_(-5, 5) * current

    def writing_past_autograd(current, advantages):
        current.data.mul_(2)
        return -advantages * current

    def in_rows(current, advantages, num_tokens):
        rows = current.view(len(num_tokens), -1)
        return (-advantages.view(rows.shape) * rows).reshape(-1)

    def dropping(current, advantages):
        return -advantages * current * torch.rand_like(current)

    def silent(current, advantages):
        return -advantages * current if advantages.any() else torch.zeros_like(current)

    def of_either_precision(current, advantages):
        losses = -advantages * current
        return losses if len(current) > 2 else losses.double()

    def with_rest(current, advantages, **rest):
        return -advantages * current

    def best_of_group(rewards):
        return [reward == max(rewards) for reward in rewards]

    def too_few(rewards):
        return rewards[1:]

    def jittered(rewards):
        return [reward + torch.rand(()).item() for reward in rewards]

    def of_a_spread_group(rewards):
        return [(reward - 1) / (max(rewards) - min(rewards)) for reward in rewards]
"""


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(textwrap.dedent(MODULE))
    return lambda name: f"{file}:{name}"


@pytest.fixture
def in_this_process(monkeypatch):
    """Trials take place here: a process of their own would load torch once more."""

    def answer(words):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            own_functions.main(words)
        return json.loads(printed.getvalue().splitlines()[-1])

    monkeypatch.setattr(trial, "_answer", answer)


def tokens() -> Tokens:
    generator = torch.Generator().manual_seed(0)
    current_N, behaviour_N, advantages_N = (torch.randn(5, generator=generator) for _ in range(3))
    return Tokens(
        current_N=current_N.requires_grad_(),
        proximal_N=current_N.detach(),
        behaviour_N=behaviour_N,
        advantages_N=advantages_N,
        num_tokens_B=(2, 3),
    )


def test_a_loss_of_ones_own_is_called_with_what_its_parameters_name(source):
    given = tokens()
    own = make_policy_loss(resolved(TrainerSection(loss=source("ppo"))))(given)
    ours = make_policy_loss(resolved(TrainerSection(loss="ppo_behaviour")))(given)
    assert all(torch.equal(one, other) for one, other in zip(own, ours, strict=True))
    loss_N, is_clipped_N = make_policy_loss(resolved(TrainerSection(loss=source("plain"))))(given)
    assert torch.equal(loss_N, -2 * given.advantages_N * given.current_N)
    assert not is_clipped_N.any()


@pytest.mark.parametrize("rewards", [(1, 1, 1, 1), (0, 0.5, 1)], ids=["equal", "of advantage 0"])
async def test_a_term_of_ones_own_loss_without_the_advantage_trains_responses_that_have_none(bench, source, rewards):
    groups = bench.groups([rewards])
    expected = naive_gradients(bench, groups, lambda current, _, advantage, __: -advantage * current - 0.1 * current)
    trainer = bench.trainer(loss=source("imitating"), max_grad_norm=1e9)
    require_close(await gradients(trainer, bench, groups), expected)


def test_an_advantage_of_ones_own_gets_the_rewards_of_a_group(source):
    assert own_advantage(source("best_of_group"))((0.5, 1.0, 1.0)).tolist() == [0.0, 1.0, 1.0]
    with pytest.raises(ConfigError, match=r"too_few.*returned"):
        own_advantage(source("too_few"))(np.array([1.0, 2.0]))


def test_functions_that_can_be_used_are_found_so(source):
    section = TrainerSection(loss=source("ppo"), advantage=source("best_of_group"))
    assert try_own_functions(resolved(section, max_staleness=2), 2) == ("current", "behaviour", "advantages")
    assert try_own_functions(resolved(TrainerSection()), 0) is None


@pytest.mark.usefixtures("in_this_process")
def test_the_precision_of_a_loss_may_depend_on_what_it_gets(source):
    section = resolved(TrainerSection(loss=source("of_either_precision")))
    assert try_own_functions(section, 0) == ("current", "advantages")


@pytest.mark.usefixtures("in_this_process")
def test_what_a_loss_takes_without_naming_it_is_not_what_it_reads(source):
    section = TrainerSection(loss=source("with_rest"))
    corrected = resolved(section.model_copy(update={"mismatch": "token_truncate"}), max_staleness=1)
    assert try_own_functions(corrected, 1) == ("current", "advantages")
    with pytest.raises(ConfigError, match=r"has no parameter `behaviour`, with trainer\.mismatch=none"):
        try_own_functions(resolved(section, max_staleness=1), 1)


@pytest.mark.parametrize(
    ("key", "name", "says"),
    [
        ("loss", "ppoo", "has no `ppoo`; it has `ppo`"),
        ("loss", "stranger", "its parameter `rewards` is none of current, proximal"),
        ("loss", "without_gradient", "has no gradient with respect to `current`"),
        ("loss", "of_numbers_of_its_own", r"for the advantages \[1.0, .*\] has no gradient with respect to `current`"),
        ("loss", "with_ratios", "the second of the pair is not true or false for each token"),
        ("loss", "a_mean", "no tensor with a number for each token"),
        ("loss", "raises", "it raised AttributeError.*mine.py, line 33"),
        ("loss", "infinite", "its losses are"),
        ("loss", "by_sign", "its losses are .*nan.*responses of advantage 0 may be among"),
        ("loss", "of_the_batch", r"losses of a response are \[.*\] alone and \[.*\] beside two others"),
        ("loss", "scaled_back", "or their gradients differ"),
        ("loss", "writing", "it writes into advantages"),
        ("loss", "writing_into_what_is_trained", "it writes into current"),
        ("loss", "bounding", "it writes into advantages"),
        ("loss", "writing_past_autograd", "it writes into current"),
        ("loss", "in_rows", "it raised RuntimeError"),
        ("loss", "dropping", "other numbers when it is called again"),
        ("loss", "silent", r"for the advantages \[0.0, 0.0\] has no gradient"),
        ("advantage", "too_few", "it returned"),
        ("advantage", "of_a_spread_group", "it raised ZeroDivisionError"),
        ("advantage", "jittered", "other numbers when it is called again"),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_a_function_that_cannot_be_used_is_a_mistake_that_says_why(source, key, name, says):
    with pytest.raises(ConfigError, match=rf"(?s)trainer.{key}=.*mine.py:{name}.*{says}"):
        try_own_functions(resolved(TrainerSection(**{key: source(name)})), 0)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ends", ""),
        ("ends_with_a_number", ""),
        ("ends_with_an_object", ""),
        ("ends_with_no_utf_8", ": \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_loss_that_ends_its_process_is_a_mistake_that_says_so(source, name, says):
    with pytest.raises(ConfigError, match=rf"trainer.loss=.*mine.py:{name} cannot be used: its process ended{says}"):
        try_own_functions(resolved(TrainerSection(loss=source(name))), 0)


def test_of_two_functions_that_are_tried_together_the_one_that_is_wrong_is_named(source):
    with pytest.raises(ConfigError, match=r"^trainer.advantage=\S*too_few cannot be used: it returned"):
        try_own_functions(resolved(TrainerSection(loss=source("ppo"), advantage=source("too_few"))), 0)
    with pytest.raises(ConfigError, match=r"^trainer.loss=\S*ends or trainer.advantage=\S*too_few cannot be used"):
        try_own_functions(resolved(TrainerSection(loss=source("ends"), advantage=source("too_few"))), 0)


def test_two_functions_are_tried_by_one_process_whatever_their_module_prints_at_its_end(tmp_path):
    file, log = tmp_path / "mine.py", tmp_path / "processes"
    text = f"""
        import atexit
        import os
        atexit.register(print, "bye")
        with open({str(log)!r}, "a") as opened:
            print(os.getpid(), file=opened)

        def loss(current, advantages):
            return -advantages * current

        def advantage(rewards):
            return rewards
    """
    file.write_text(textwrap.dedent(text))
    section = TrainerSection(loss=f"{file}:loss", advantage=f"{file}:advantage")
    assert try_own_functions(resolved(section), 0) == ("current", "advantages")
    assert len(set(log.read_text().split())) == 1


def test_a_trial_that_takes_too_long_names_the_slow_disk_as_a_cause(source, monkeypatch):
    monkeypatch.setattr(trial, "_LIMIT_S", 0.01)
    with pytest.raises(ConfigError, match=r"took longer than 0.01 s. It hangs; or torch, .* slow disk"):
        try_own_functions(resolved(TrainerSection(loss=source("ppo"))), 0)


@pytest.mark.usefixtures("in_this_process")
def test_an_advantage_need_not_take_equal_rewards_where_no_group_has_them(source):
    section = resolved(TrainerSection(advantage=source("of_a_spread_group")))
    assert try_own_functions(section, 0, has_equal_groups=False) is None
    with pytest.raises(ConfigError, match="it returned"):
        try_own_functions(resolved(TrainerSection(advantage=source("too_few"))), 0, has_equal_groups=False)


@pytest.mark.usefixtures("in_this_process")
def test_a_loss_that_does_not_read_what_sampled_stale_tokens_needs_a_correction(source):
    section = TrainerSection(loss=source("plain"))
    with pytest.raises(ConfigError, match="Take `behaviour` as a parameter"):
        try_own_functions(resolved(section), 1)
    try_own_functions(resolved(section.model_copy(update={"mismatch": "token_truncate"})), 1)


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.usefixtures("in_this_process")
def test_a_loss_that_reads_what_sampled_the_tokens_is_not_corrected_for_it_once_more(source, max_staleness):
    section = TrainerSection(loss=source("ppo"), mismatch="token_truncate")
    with pytest.raises(
        ConfigError,
        match=r"(?s)=token_truncate with .*once more.*Leave out.*cannot be resumed in this version",
    ):
        try_own_functions(resolved(section, max_staleness=max_staleness), max_staleness)


@pytest.mark.usefixtures("in_this_process")
def test_far_responses_may_be_left_out_of_a_loss_that_reads_what_sampled_the_tokens(source):
    section = TrainerSection(loss=source("ppo"), mismatch="k3_mask")
    assert try_own_functions(resolved(section, max_staleness=1), 1) == ("current", "behaviour", "advantages")
