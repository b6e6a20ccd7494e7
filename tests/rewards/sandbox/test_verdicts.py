"""What responses are worth, in real sandboxes."""

import json
from pathlib import Path

import numpy as np
import pytest

from rollpacker.config.sections.data import PromptFile
from rollpacker.config.sections.reward import RewardSection
from rollpacker.rewards.scoring import score_file
from tests.rewards.sandbox.programs import Pool, fenced, reasons_of, request_of, write_prompts

MIXED = Path(__file__).parents[2] / "data" / "mixed.jsonl"

SQUARE = {"id": "square", "test_cases": [{"input": "3\n", "output": "9\n"}, {"input": "-4\n", "output": "16\n"}]}
TRIANGLE = {"id": "triangle", "test_cases": [{"input": "", "output": " *\n***\n"}]}
ADD = {
    "id": "add",
    "entry_point": "add",
    "test_cases": [{"args": [1, 2], "expected": 3}, {"args": [[1], [2]], "expected": [1, 2]}],
}
ROOTS = {"id": "roots", "entry_point": "roots", "test_cases": [{"args": [2], "expected": {"2": [1.4142135, True]}}]}
ASSERTED = {
    "id": "asserted",
    "test": """
import pytest
from solution import Stack, Empty, order, apply, firsts

@pytest.fixture
def stack():
    return Stack([1, 2])

def test_objects_live_where_the_program_is(stack):
    stack.push(3)
    assert len(stack) == 3 and list(stack) == [1, 2, 3] and stack.items == [1, 2, 3]
    assert stack == Stack([1, 2, 3]) and stack != [1, 2, 3]
    assert isinstance(stack, Stack)

def test_errors_come_back():
    with pytest.raises(Empty, match="nothing"):
        Stack([]).pop()
    with pytest.raises(ValueError):
        order(None)

def test_arguments_are_changed_in_place():
    values = [3, 1, 2]
    assert order(values) is None
    assert values == [1, 2, 3]

@pytest.mark.parametrize("number, expected", [(1, 2), (5, 10)])
def test_functions_are_called_back(number, expected):
    assert apply(lambda each: each * 2, number) == expected

def test_generators_and_fractions():
    assert list(firsts(3)) == [0, 1, 2]
    assert next(firsts(1)) == 0
    assert apply(lambda each: each / 3, 1) == pytest.approx(0.3333333)
""",
}
STACK = """
class Empty(LookupError): pass
class Stack:
    def __init__(self, items): self.items = list(items)
    def push(self, item): self.items.append(item)
    def pop(self):
        if not self.items: raise Empty("nothing is there")
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __eq__(self, other): return isinstance(other, Stack) and self.items == other.items
def order(values):
    if values is None: raise ValueError("nothing to order")
    values.sort()
def apply(function, value): return function(value)
def firsts(count): yield from range(count)
"""
UNITTEST = {
    "id": "unittest",
    "test": "import unittest\nfrom solution import f\n"
    "class T(unittest.TestCase):\n    def test_f(self): self.assertEqual(f(1), [2])\n",
}
MEMORY = {"id": "memory", "test_cases": [{"input": "", "output": "ok", "memory_limit_mb": 100}]}
TYPES = {"id": "types", "entry_point": "f", "test_cases": [{"args": [0], "expected": [[1, 2], None, "a", 0.5]}]}

DEEP = """
import sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(2**28)
def depth(n): return 0 if not n else 1 + depth(n - 1)
def main():
    depth(20000)
    print(int(input()) ** 2)
thread = threading.Thread(target=main)
thread.start()
thread.join()
"""

VERDICTS = [
    (SQUARE, "print(int(input()) ** 2)", "correct"),
    (SQUARE, "import sys\nfor line in sys.stdin: print(' ', int(line) ** 2, '')", "correct"),
    (TRIANGLE, "print(' *\\n***')", "correct"),
    (TRIANGLE, "print('*\\n***')", "wrong_answer"),
    (SQUARE, "n = int(input())\nprint(n * n, end=' \\n\\n')", "correct"),
    (SQUARE, "n = int(input())\nprint(f'{n * n:.3f}')", "correct"),
    (SQUARE, "print(9)", "wrong_answer"),
    (SQUARE, "print(int(input()) ** 2)\nraise SystemExit", "correct"),
    (SQUARE, "print(int(input()) ** 2)\nimport os, sys; sys.stdout.flush(); os._exit(0)", "correct"),
    (SQUARE, "print(int(input()) ** 2)\nexit(3)", "error"),
    (SQUARE, "print(int(input()) ** 2", "error"),
    (SQUARE, "import atexit\natexit.register(lambda: print(int(input()) ** 2))", "correct"),
    (SQUARE, "import threading\nthreading.Thread(target=lambda: print(int(input()) ** 2)).start()", "correct"),
    (
        SQUARE,
        DEEP,
        "correct",
    ),
    (SQUARE, "if __name__ == '__main__':\n    print(int(input()) ** 2)", "correct"),
    (
        SQUARE,
        "open('/tmp/a', 'w').write('x'); print(int(input()) ** 2, len(open('/tmp/a').read()) - 1)",
        "wrong_answer",
    ),
    (ADD, "def add(a, b): return a + b", "correct"),
    (ADD, "class Solution:\n    def add(self, a: List[int], b: Optional[int]): return a + b", "correct"),
    (ADD, "def add(a, b): return 3 if a == 1 else (1, 2)", "correct"),
    (ADD, "def add(a, b): return 3.0 if a == 1 else deque([1, 2])", "wrong_answer"),
    (ADD, "def add(a, b): return str(a + b)", "wrong_answer"),
    (ADD, "def add(a, b): raise KeyError(a)", "error"),
    (ADD, "def plus(a, b): return a + b", "error"),
    (ADD, "print('hello')\ndef add(a, b):\n    print(a)\n    return a + b", "correct"),
    (ROOTS, "def roots(n): return {n: (math.sqrt(n), True)}", "correct"),
    (ROOTS, "def roots(n): return {n: (1.5, True)}", "wrong_answer"),
    (TYPES, "def f(x): return [range(1, 3), None, 'a', Fraction(1, 2)]", "error"),
    (TYPES, "def f(x): return ((1, 2), None, 'a', 1 / 2)", "correct"),
    (TYPES, "def f(x): return [{1, 2}, None, 'a', 0.5]", "wrong_answer"),
    (ASSERTED, STACK, "correct"),
    (ASSERTED, STACK.replace("values.sort()", "pass"), "wrong_answer"),
    (ASSERTED, STACK.replace("raise Empty", "raise TypeError"), "error"),
    (UNITTEST, "def f(x): return [x + 1]", "correct"),
    (UNITTEST, "def f(x): return [x]", "wrong_answer"),
    (MEMORY, "print('ok')", "correct"),
    (MEMORY, "b = bytearray(300 << 20); print('ok')", "memory"),
]


async def test_programs_get_what_they_are_worth(tmp_path):
    reasons = await reasons_of(tmp_path, [(line, program) for line, program, _ in VERDICTS])
    found = [(line["id"], *rest, reason) for (line, *rest), reason in zip(VERDICTS, reasons, strict=True)]
    assert [each for each in found if each[-1] != each[-2]] == []


async def test_annotations_are_what_python_makes_of_them(tmp_path):
    printed = {"test_cases": [{"input": "", "output": "<class 'int'>"}]}
    programs = ("def f(x: int): pass\nprint(f.__annotations__['x'])", "def f(x: Unknown): pass\nprint(int)")
    assert await reasons_of(tmp_path, [(printed, each) for each in programs]) == ["correct", "error"]


async def test_numbers_of_numpy_are_numbers(tmp_path):
    called = {"entry_point": "f", "test_cases": [{"args": [2], "expected": [4, True, 0.5]}]}
    asserted = {"test_list": ["assert f(2) == [4, True, 0.5] and f(2)[0] < 5"]}
    program = "import numpy as np\ndef f(x): return [np.int64(2 * x), np.int64(x) > 1, np.float32(x) / 4]"
    cases = [(called, program), (asserted, program)]
    pool = {"packages": Path(np.__file__).parents[1], "memory_mb": 2048}
    assert await reasons_of(tmp_path, cases, limits_s=(10.0,), **pool) == ["correct", "correct"]


async def test_runs_of_cases_come_back_up_to_the_first_that_failed(tmp_path):
    references = write_prompts(tmp_path, [SQUARE])
    async with Pool(num_workers=1) as pool:
        right, wrong, none, cut = await pool.score(
            request_of(0, references["square"], fenced("sum(range(2_000_000))\nprint(int(input()) ** 2)")),
            request_of(1, references["square"], "print(-int(input()))"),
            request_of(2, references["square"], " \n"),
            request_of(3, references["square"], "```python\nprint(int(inp", is_truncated=True),
        )
    assert [(run.case, run.is_passed) for run in right.case_runs] == [(0, True), (1, True)]
    assert all(run.time_s > 0 for run in right.case_runs)
    assert [(run.case, run.is_passed) for run in wrong.case_runs] == [(0, False)]
    assert [(verdict.reward, verdict.reason, verdict.case_runs) for verdict in (none, cut)] == [
        (0.0, "no_code", ()),
        (0.0, "truncated", ()),
    ]


@pytest.mark.parametrize(
    "sleeper", ["\n    while True: pass", "import time; time.sleep(1000)", "import os; os.read(os.pipe()[0], 1)"]
)
async def test_each_case_has_the_limit_it_is_given_whether_it_loops_or_sleeps(sleeper, tmp_path):
    references = write_prompts(tmp_path, [SQUARE])
    program = "number = int(input())\nprint(number * number, flush=True)\nif number < 0:\n    " + sleeper
    async with Pool(num_workers=1) as pool:
        (verdict,) = await pool.score(request_of(0, references["square"], program, limits_s=(60.0, 0.2)))
    assert (verdict.reward, verdict.reason) == (0.0, "timeout")
    first, second = verdict.case_runs
    assert (first.is_passed, second.is_passed) == (True, False)
    assert second.time_s > 0.2


def test_every_form_of_test_cases_is_scored_from_a_file(tmp_path):
    """All code prompts of the readers' own example, each with a right and a wrong answer, by `rollpacker score`."""
    right = {
        "stdin-1": "print(int(input()) ** 2)",
        "call-1": "def add(a, b): return a + b",
        "assert-1": "def square(n): return n * n",
        "taco-1": "print(sum(map(int, input().split())))",
        "taco-2": "def total(numbers): return sum(numbers)",
        "lcb-1": "class Solution:\n    def twice(self, word: str, n: int) -> str: return word * n",
        "mbpp-1": "def first(items): return items[0]",
        "kodcode-1": "def double(n): return 2 * n",
    }
    answers = list(right.items()) + [(key, "def f(): pass") for key in right]
    responses = tmp_path / "answers.jsonl"
    responses.write_text("".join(f"{json.dumps({'id': key, 'response': fenced(text)})}\n" for key, text in answers))
    reward = RewardSection(name="math", domains={"code": "sandbox"}, timeout_s=20)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(line for line in MIXED.read_text().splitlines(keepends=True) if '"code"' in line))
    score_file(reward, [PromptFile(path=prompts)], responses, tmp_path / "scores.jsonl")
    scores = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert [score["reward"] for score in scores] == [1.0] * len(right) + [0.0] * len(right)
