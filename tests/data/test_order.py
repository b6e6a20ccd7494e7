import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.core.errors import CheckpointError, ImpossibleEvent
from rollpacker.core.ids import Domain, PromptId
from rollpacker.data.order import PromptOrder

MATH, CODE = Domain("math"), Domain("code")
sizes = st.integers(1, 12)
draws = st.lists(st.tuples(st.sampled_from([MATH, CODE]), st.integers(0, 15)), max_size=12)


def order_of(num_math=5, num_code=3, seed=0, shuffle=True, num_epochs=None):
    keys = {MATH: [f"m{i}" for i in range(num_math)], CODE: [f"c{i}" for i in range(num_code)]}
    return PromptOrder(keys, seed, shuffle, num_epochs)


def keys_of(drawn):
    return [prompt.key for prompt in drawn.prompts]


@given(num_keys=sizes, seed=st.integers(0, 2**40), counts=st.lists(st.integers(0, 15), max_size=10))
def test_every_epoch_draws_each_prompt_once_however_it_is_cut_into_draws(num_keys, seed, counts):
    order = order_of(num_math=num_keys, seed=seed)
    drawn = [prompt for count in counts for prompt in order.draw(MATH, count).prompts]
    assert len(drawn) == sum(counts)
    assert [prompt.epoch for prompt in drawn] == [index // num_keys for index in range(len(drawn))]
    whole_epochs = drawn[: len(drawn) // num_keys * num_keys]
    assert set(Counter(whole_epochs).values()) <= {1}
    assert len(set(drawn)) == len(drawn)


@given(seed=st.integers(0, 1000), before=draws, after=draws, shuffle=st.booleans())
def test_a_restored_order_continues_as_if_nothing_had_happened(seed, before, after, shuffle):
    order = order_of(seed=seed, shuffle=shuffle, num_epochs=4)
    for draw in before:
        order.draw(*draw)
    restored = order_of(seed=seed, shuffle=shuffle, num_epochs=4)
    restored.restore(json.loads(json.dumps(order.snapshot())))
    for draw in after:
        assert restored.draw(*draw) == order.draw(*draw)
    assert restored.snapshot() == order.snapshot()


@given(interleaved=draws)
def test_what_a_domain_draws_does_not_depend_on_the_other_domains(interleaved):
    together, alone = order_of(), order_of()
    drawn = [prompt for draw in interleaved for prompt in together.draw(*draw).prompts if prompt.key[0] == "m"]
    assert drawn == list(alone.draw(MATH, len(drawn)).prompts)


def test_the_order_is_this_one_on_every_python():
    order = order_of(num_math=8, seed=42)
    assert keys_of(order.draw(MATH, 16)) == (
        ["m6", "m7", "m4", "m0", "m5", "m1", "m3", "m2", "m2", "m0", "m6", "m4", "m5", "m3", "m1", "m7"]
    )


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_the_order_does_not_depend_on_the_hash_seed(hash_seed):
    program = (
        "from rollpacker.data.order import PromptOrder\n"
        "order = PromptOrder({'math': [f'm{i}' for i in range(8)]}, 42, True, None)\n"
        "print(*(p.key for p in order.draw('math', 8).prompts), order.snapshot()['fingerprint'])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    here = PromptOrder({MATH: [f"m{i}" for i in range(8)]}, 42, True, None)
    assert done.stdout.split() == [*keys_of(here.draw(MATH, 8)), here.snapshot()["fingerprint"]]


def test_epochs_and_seeds_and_domains_have_orders_of_their_own():
    keys = [f"m{i}" for i in range(50)]

    def draw(seed, domain=MATH):
        return [p.key for p in PromptOrder({domain: keys}, seed, True, None).draw(domain, 100).prompts]

    assert draw(1)[:50] != draw(1)[50:]
    assert draw(1) != draw(2)
    assert draw(1) != draw(1, CODE)


def test_without_shuffling_every_epoch_has_the_order_of_the_file():
    assert keys_of(order_of(num_math=3, shuffle=False).draw(MATH, 6)) == ["m0", "m1", "m2"] * 2


def test_the_last_epoch_ends_with_fewer_prompts_than_asked_for():
    order = order_of(num_math=3, shuffle=False, num_epochs=2)
    first = order.draw(MATH, 4)
    assert (len(first.prompts), first.is_exhausted) == (4, False)
    last = order.draw(MATH, 4)
    assert last.prompts == (PromptId(1, "m1"), PromptId(1, "m2"))
    assert last.is_exhausted
    assert order.draw(MATH, 1).prompts == ()
    assert order.draw(MATH, 1).is_exhausted


def test_taking_exactly_the_last_prompt_says_that_it_was_the_last():
    order = order_of(num_math=3, num_epochs=1)
    assert not order.draw(MATH, 2).is_exhausted
    assert order.draw(MATH, 1).is_exhausted


def test_a_snapshot_does_not_grow_with_the_data():
    assert len(json.dumps(order_of(num_math=5000).snapshot())) == len(json.dumps(order_of(num_math=5).snapshot()))


def test_an_added_renamed_or_moved_prompt_is_another_order():
    snapshot = PromptOrder({MATH: ["a", "b"]}, 0, True, None).snapshot()
    added, renamed, moved, of_others = ["a", "b", "c"], ["a", "c"], ["b", "a"], {MATH: ["a"], CODE: ["b"]}
    for keys in ({MATH: added}, {MATH: renamed}, {MATH: moved}, {CODE: ["a", "b"]}, of_others):
        with pytest.raises(CheckpointError, match=r"data\.path"):
            PromptOrder(keys, 0, True, None).restore(snapshot)


def test_an_unknown_domain_is_our_bug():
    with pytest.raises(ImpossibleEvent, match="art"):
        order_of().draw(Domain("art"), 1)


def test_domains_whose_prompts_were_edited_under_the_same_ids_are_named():
    def order(**contents):
        return PromptOrder({MATH: ["a"], CODE: ["b"]}, 0, True, None, contents)

    snapshot = json.loads(json.dumps(order(math=1, code=2).snapshot()))
    assert order(math=1, code=2).edited_since(snapshot) == []
    assert order(math=1, code=3).edited_since(snapshot) == [CODE]
