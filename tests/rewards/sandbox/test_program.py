"""Which part of a response is its program, however its fence is written."""

import pytest

from rollpacker.rewards.sandbox.program import find_program, is_cut_off

PROGRAM = """n = int(input())
for k in range(n):
    print(k)

print(n)
"""


def indented(text, by):
    return "".join(by + line if line.strip() else line for line in text.splitlines(keepends=True))


OUTPUT = "It prints\n```\n0\n1\n```\n"

WRITTEN = {
    "a fence": f"Here it is.\n```python\n{PROGRAM}```\nDone.",
    "no fence": PROGRAM,
    "no mark": f"```\n{PROGRAM}```",
    "tildes": f"~~~~ py\n{PROGRAM}~~~~",
    "a longer fence at the end": f"```python\n{PROGRAM}`````  ",
    "no end": f"```python\n{PROGRAM}",
    "lines of Windows": f"Here.\n```python\n{PROGRAM}```\nDone.".replace("\n", "\r\n"),
    "a list": "1. Write\n\n" + indented(f"```python\n{PROGRAM}```\n", "   ") + "2. Run",
    "a list with tabs": "1. Write\n\n" + indented(f"```python\n{PROGRAM}```\n", "\t"),
    "a fence that is indented alone": f"      ```python\n{PROGRAM}      ```",
    "a fence that is indented more": "    ```python\n" + indented(PROGRAM, "  ") + "    ```",
    "a blank line before it": "  ```python\n" + indented(f"\n{PROGRAM}", "  ") + "  ```",
    "output behind it": f"```python\n{PROGRAM}```\n{OUTPUT}",
    "a session behind it": f"```Python3\n{PROGRAM}```\n```pycon\n>>> f(1)\n1\n```\n```pytb\nValueError\n```",
    "an earlier program": f"```python\nprint(1)\n```\nBetter:\n```python\n{PROGRAM}```\n{OUTPUT}",
    "another block before it": f"{OUTPUT}```\n{PROGRAM}```",
    "a blank block behind it": f"```python\n{PROGRAM}```\n```python\n\n```",
    "thoughts with a block that never ends": f"<think>\n```python\nprint(1)\n</think>\n```python\n{PROGRAM}```",
    "an explanation that speaks of thoughts": f"```python\n{PROGRAM}```\nIn my </think> part I checked it.",
    "thoughts before no fence": f"```python\nprint(1)\n```\n</think>{PROGRAM}",
    "a block before it that never ends": f"```python\nprint(1)\nNo, better:\n```python\n{PROGRAM}```\n{OUTPUT}",
    "a mark of Pandoc": f"```{{.python}}\n{PROGRAM}```\n{OUTPUT}",
    "another mark of Pandoc": f"``` {{ .python .numberLines}}\n{PROGRAM}```\n{OUTPUT}",
    "a session behind it that is marked so": f"```{{python}}\n{PROGRAM}```\n```{{.pycon}}\n>>> f(1)\n1\n```",
    "a closing fence behind its last line": f"```python\n{PROGRAM.rstrip()}```\nDone.",
    "a mark at the end": f"```python\n{PROGRAM}```<|im_end|>",
    "marks behind its last line": f"<answer>\n```python\n{PROGRAM.rstrip()}``` </answer></s>\n",
    "words before it": f"Here: ```python\n{PROGRAM}```\n{OUTPUT}",
    "words in bold before it": f"**Solution**:```Python3\n{PROGRAM}```\n{OUTPUT}",
    "a tag before it": f"<answer>```py \n{PROGRAM}```</answer>",
    "code in a line before it": f"With `range` and ```len```: ````python\n{PROGRAM}````\nIt is ```O(n)```\n",
    "a number before it": "1. ```python\n" + indented(PROGRAM, "   ") + "   ```\n2. Run",
    "a number alone before it": f"1. ```python\n{PROGRAM}```\n",
    "a blank block that is marked": f"```python\n```\n```\n{PROGRAM}```",
    "a call behind it": f"```python\n{PROGRAM}```\nTest it with ```python\nprint(f(1))\n```\n",
    "a call behind it that never ends": f"Here: ```python\n{PROGRAM}```\nTest it with ```python\nprint(f(1))\n",
    "numbers before it and another program": f"1. ```python\nprint(1)\n```\n2. ```python\n{PROGRAM}```\n",
    "a command before it and words": f"Install:\n```bash\npip install x\n```\n**Solution**:```python\n{PROGRAM}```\n",
    "an example before it and a tag": f"Input:\n```\n3 4\n```\n<answer>```python\n{PROGRAM}```</answer>",
    "a blank block before it and words": f"```python\n```\nHere: ```python\n{PROGRAM}```\n",
    "a command behind words before it": f"1. ```bash\n   pip install x\n   ```\n2. ```python\n{PROGRAM}```\n",
    "an example behind words before it": f"Input: ```\n3 4\n```\nSolution: ```python\n{PROGRAM}```\n",
    "a command behind words behind it": f"```\n{PROGRAM}```\nRun it: ```bash\npython a.py\n```\n",
    "a closing fence behind a blank": f"```python\n{PROGRAM.rstrip()} ```\nDone.",
    "output behind its closing fence, behind its last line": f"```python\n{PROGRAM.rstrip()}```\n{OUTPUT}",
    "output behind its closing fence, behind a blank": f"```py\n{PROGRAM.rstrip()} ```\nOutput:\n```\n0\n```\n",
    "output in bold behind its closing fence": f"```py\n{PROGRAM.rstrip()} ```\n**Output**\n\n```\n0\n```\n",
    "words on a fence before it": f"Between lines of ```\nas shown above. Solution:\n\n```\n{PROGRAM}```\n",
    "words on a fence before it and words behind it": f"It is in ```\nSolution:\n```\n{PROGRAM}```\nDone.",
    "words on a fence and bold words before it": f"It is in ```\n**Solution**\n```\n{PROGRAM}```\n",
    "a dash before it": f"- ```\n{PROGRAM}```\nDone.",
    "a call before it": f"Here it is! ```\n{PROGRAM}```\nDone.",
    "a colon of full width before it": f"代码如下\uff1a```\n{PROGRAM}```\nDone.",
    "code in two lines before it": f"`a` is ```3 4\n5 6```\n\nSolution:\n```\n{PROGRAM}```\nIt works.",
    "code in two lines and a heading before it": f"It is ```3 4\n5 6```\n# Solution\n```\n{PROGRAM}```\nIt works.",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_program_is_found_however_it_is_written(name):
    program = find_program(WRITTEN[name])
    assert program is not None
    assert program.strip("\n") == PROGRAM.strip("\n")


@pytest.mark.parametrize("comment", ["# in place of ```len```", "# print it in ```"])
def test_a_fence_within_a_comment_of_a_program_does_not_end_it(comment):
    program = f"{comment}\n{PROGRAM}"
    assert find_program(f"```python\n{program}```\nDone.") == program


@pytest.mark.timeout(10)
@pytest.mark.parametrize(("beginning", "sign"), [("", "`"), ("", "~"), ("", "`~"), ("```", " ")])
def test_a_line_of_many_fences_or_blanks_is_read_in_time_that_grows_with_its_length(beginning, sign):
    response = beginning + sign * 200_000 + "x"
    assert find_program(response) == response


@pytest.mark.parametrize(
    "response",
    [
        *("", " \n", "```python\n```", "```\n \n```\nNothing."),
        "<think>\nFirst:\n```python\nprint(1)\n```\nNo, that",
        "<think>\n```python\nprint(1)\n```\n</think>\n",
    ],
)
def test_what_holds_no_program_has_none(response):
    assert find_program(response) is None


@pytest.mark.parametrize(
    ("response", "is_cut"),
    [
        ("First, I think", True),
        ("```python\nprint(int(inp", True),
        ("```python\r\nprint(1)\r\n", True),
        ("```python\nprint(1)\n```\nBetter:\n```python\n", True),
        ("```python\nprint(1)\n```\nIt pri", False),
        ("```python\r\nprint(1)\r\n```\r\nIt pri", False),
        ("```python\nprint(1)\n```\nIt prints\n```\n1\n", False),
        ("```\nprint(1)\n```\nBetter:\n```\nprint(", True),
        ("```python\nprint(1)\n```\n</think>\nThe", True),
        ("<think>\n```python\nprint(1)\n</think>\n```python\nprint(1)\n```\n", False),
        ("```python\nprint(1)\nBetter:\n```python\nprint(", True),
        ("```python\nprint(1)```\nIt pri", False),
        ("Here: ```python\nprint(1", True),
        ("```python\nprint(1) ```\nIt pri", False),
        ("- ```\n  print(1)\n  ```\nIt pri", False),
        ("1. ```\n   print(1)", True),
        ("For the input: ```\n1 2\n```\nthe answer is 3. So I fi", True),
        ("The input is in ```\nSolution:\n```\nprint(1)\n```\nIt pri", False),
        ("```\nprint(1)\n```\nRun it: ```bash\npython", False),
        ("```python\nprint(1)\n```\nIt needs no ```python\nIt pri", False),
        ("<think>\n```python\nprint(1)\n```\nNo, tha", True),
    ],
)
def test_a_response_is_cut_off_where_its_program_does_not_end(response, is_cut):
    assert is_cut_off(response) == is_cut
