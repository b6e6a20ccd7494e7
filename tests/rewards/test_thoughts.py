import pytest

from rollpacker.rewards.thoughts import without_thoughts


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ("No thoughts.", "No thoughts."),
        ("<think>It is 3.</think>\nIt is 4.", "\nIt is 4."),
        ("<think>\nIt is 3.\n</think>It is 4.", "It is 4."),
        ("<think>It is 3.</think> It is 4.", " It is 4."),
        ("It is 3.\n</think>\n\nIt is 4.", "\n\nIt is 4."),
        ("It is 3.</think>\r\nIt is 4.", "\nIt is 4."),
        ("<think>1</think>\n2\n<think>3</think>\n4", "\n4"),
        ("Sure.\n<think>1</think> 2", " 2"),
        ("It is 4, as my </think> part says.", "It is 4, as my </think> part says."),
        ("It is 4, as my <think> part says.", "It is 4, as my <think> part says."),
    ],
)
def test_what_stands_behind_the_thoughts_is_said(response, said):
    assert without_thoughts(response) == said


@pytest.mark.parametrize("response", ["<think>It is 3.", "\n <think>\nIt is 3.", "<think>1</think>\n2\n<think>\n3"])
def test_where_thoughts_do_not_end_nothing_is_said(response):
    assert without_thoughts(response) == ""
