import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.rewards import walk

TASK = "3 20"
RIGHT = "+4 7 +4 11 +1 12 +4 16 +4 20"


@pytest.mark.parametrize(
    ("response", "reward", "reason"),
    [
        (RIGHT, 1.0, "correct"),
        ("  +4 7\n+4\t11 +1 12 +4 16   +4 20 \n", 1.0, "correct"),
        ("+4 7 +4 11 +4 15 +4 19 +1 20", 1.0, "correct"),
        ("+4 007 +4 11 +1 12 +4 16 +4 20", 1.0, "correct"),
        ("+4 7 +4 12", 0.0, "wrong_sum"),
        ("+4 8 +4 11 +1 12 +4 16 +4 20", 0.0, "wrong_sum"),
        ("+4 7 +4 11", 0.0, "missed_target"),
        (RIGHT + " +1 21", 0.0, "missed_target"),
        ("", 0.0, "missed_target"),
        (RIGHT + " +1", 0.0, "malformed"),
        ("+5 8 +4 12", 0.0, "malformed"),
        ("+0 3", 0.0, "malformed"),
        ("-1 2", 0.0, "malformed"),
        ("4 7", 0.0, "malformed"),
        ("+4 7 : +4 11", 0.0, "malformed"),
        ("+4 seven", 0.0, "malformed"),
        ("+4 ²", 0.0, "malformed"),
        ("+4 " + "9" * 10_000, 0.0, "malformed"),
        ("hello", 0.0, "malformed"),
    ],
)
def test_a_walk_is_right_when_every_sum_is_and_it_ends_on_the_target(response, reward, reason):
    assert walk.score(response, is_truncated=False, ground_truth=TASK) == (reward, reason)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("+4 7 +4 11", "truncated"),
        ("+4 7 +4", "truncated"),
        (RIGHT, "truncated"),
        ("+4 9 +4 11", "wrong_sum"),
        ("+4 7 nonsense", "malformed"),
    ],
)
def test_a_truncated_walk_earns_nothing_and_says_its_first_mistake(response, reason):
    assert walk.score(response, is_truncated=True, ground_truth=TASK) == (0.0, reason)


@pytest.mark.parametrize("ground_truth", ["", "3", "3 20 21", "three 20", "-3 20"])
def test_a_ground_truth_that_is_no_task_is_named(ground_truth):
    assert walk.score(RIGHT, is_truncated=False, ground_truth=ground_truth).reason == "unparsable_ground_truth"


steps_taken = st.lists(st.integers(1, 4), min_size=1, max_size=30)


def words_of(start, steps):
    words, position = [], start
    for step in steps:
        position += step
        words += [f"+{step}", str(position)]
    return words


@given(start=st.integers(0, 99), steps=steps_taken)
def test_every_true_walk_is_correct(start, steps):
    response = " ".join(words_of(start, steps))
    score = walk.score(response, is_truncated=False, ground_truth=f"{start} {start + sum(steps)}")
    assert score == (1.0, "correct")


@given(start=st.integers(0, 99), steps=steps_taken, data=st.data())
def test_no_walk_with_one_other_word_is_correct(start, steps, data):
    words = words_of(start, steps)
    index = data.draw(st.integers(0, len(words) - 1))
    others = ["+1", "+2", "+3", "+4", "+5", "x", str(start), str(start + 1), str(start + sum(steps))]
    other = data.draw(st.sampled_from([word for word in others if word != words[index]]))
    words[index] = other
    score = walk.score(" ".join(words), is_truncated=False, ground_truth=f"{start} {start + sum(steps)}")
    assert score.reward == 0.0


@given(response=st.text(alphabet="+-0123456789 \n:ax", max_size=60), is_truncated=st.booleans())
def test_any_text_gets_a_score(response, is_truncated):
    reasons = {"correct", "wrong_sum", "missed_target", "malformed", "truncated"}
    assert walk.score(response, TASK, is_truncated).reason in reasons
