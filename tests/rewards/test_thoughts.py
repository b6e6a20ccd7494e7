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
        ("Sure.\n<think>1</think> 2", "Sure.\n 2"),
        ("<think>1</think>\n2</think>", "\n2"),
        ("</think>\nIt is 4.\n</think>\n \n", "\nIt is 4.\n"),
        ("<think>1</think>\n2\n<think>\n3", "\n2\n"),
        ("<think>1</think>\n2\n<think>3</think>\n", "\n2\n"),
        ("<think>1</think>\n2\n</think>\n<think>3", "\n2\n"),
        ("```python\nprint(4)\n```\n<think>ok ", "```python\nprint(4)\n```\n"),
        ("```python\ns = '''\n<think>'''\n```\n", "```python\ns = '''\n<think>'''\n```\n"),
        ("Here: ```py\nprint(4)\n```\n<think>\n```\n5\n```\n", "Here: ```py\nprint(4)\n```\n"),
        ("Input: ```\n3\n```\n<think>\n```\n5\n```\n", "Input: ```\n3\n```\n"),
        ("```py\r\nprint(4)```\r\n<think>\n```\n5\n```\n", "```py\r\nprint(4)```\r\n"),
        ("~~~py\ns = '''\n<think>'''\n~~~\n<think> ok", "~~~py\ns = '''\n<think>'''\n~~~\n"),
        ("Here: ```py\ns = '''\n<think>'''\n```\n", "Here: ```py\ns = '''\n<think>'''\n```\n"),
        ("```py\ns = '''\n<think>'''\n", "```py\ns = '''\n<think>'''\n"),
        ("It is ```4```\n<think>5\n```\n6\n```\n", "It is ```4```\n"),
        ("4\n<think>It is ```py\nprint(5)\n```\n", "4\n"),
        ("It is 4, as my </think> part says.", "It is 4, as my </think> part says."),
        ("It is 4, as my <think> part says.", "It is 4, as my <think> part says."),
    ],
)
def test_what_stands_behind_the_thoughts_is_said(response, said):
    assert without_thoughts(response) == said


@pytest.mark.parametrize(
    "response", ["<think>It is 3.", "\n <think>\nIt is 3.", "<think>3</think>\n<think>\n3", "3</think>"]
)
def test_where_thoughts_begin_a_response_and_do_not_end_nothing_is_said(response):
    assert without_thoughts(response) == ""


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "line",
    [
        "```",
        "```;",
        "x ```",
        "x ```\ny:",
        "x ```py",
        "x ```y`",
        "x ~~~y",
        "~~~\n```",
        " <think>",
        "x</think>",
        "</think> x",
        "```\n<think>",
        "\n",
    ],
)
def test_many_marks_are_read_in_time_that_grows_with_their_number(line):
    without_thoughts(f"{line}\n" * 50_000)
