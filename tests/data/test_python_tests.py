"""Which Python tests of prompts are read, how they are completed, and which are refused with their line."""

import json

import pytest

from rollpacker.config.sections.data import PromptFile
from rollpacker.core.errors import DataError
from rollpacker.data.prompts import load_prompts
from rollpacker.data.test_cases import load_test_cases

CHECK = "def check(candidate):\n    assert candidate(2) == 4\n"


def read(tmp_path, **fields):
    """Give the sources as they run, of a file whose second line has these fields."""
    path = tmp_path / "p.jsonl"
    lines = [
        {"id": "first", "ground_truth": "1"},
        {"id": "code", **({"test": fields.pop("test")} if "test" in fields else {}), **fields},
    ]
    path.write_text("".join(f"{json.dumps({'domain': 'code', 'prompt': 'Write f.', **line})}\n" for line in lines))
    reference = load_prompts([PromptFile(path=path)])[1].reference
    return [case.source for case in load_test_cases(reference)]


@pytest.mark.parametrize(
    ("texts", "head"),
    [
        (["assert set(pairs(3)) == set()"], "from solution import pairs"),
        (["assert sum(10, 15) == 6"], "from solution import sum"),
        (["assert math.isclose(root(2), 1.4)"], "import math\nfrom solution import root"),
        (["assert gcd(4, 6) == 2"], "from solution import gcd"),
        (["assert gcd(4, 6) == 2", "assert lcm(4, 6) == 12"], "from solution import gcd\nfrom solution import lcm"),
        (["assert copy([1]) == [1]"], "from solution import copy"),
        (["inputs = [1]\nassert [f(each) for each in inputs] == [2]"], "from solution import f"),
        (["from math import *\nassert isclose(f(2), pi)"], "from solution import f"),
        (["from solution import *\nimport math\nassert math.floor(f(2)) == 1"], "from solution import f"),
        (["class A:\n    g = f\nassert A.g(2) == 1"], "from solution import f"),
        (["def h():\n    global k\n    k = f(1)\nh()\nassert k == 1"], "from solution import f"),
        (["from solution import f\nassert f(1) == round(1.2)"], None),
        (["import solution\nassert solution.f(1)"], None),
    ],
)
def test_tests_take_from_the_response_what_nothing_else_could_be_meant_by(tmp_path, texts, head):
    expected = [text if head is None else f"{head}\n{text}" for text in texts]
    assert read(tmp_path, test_list=texts) == expected


def test_an_entry_point_says_whose_a_name_is(tmp_path):
    text = "assert isclose(sum(1, 2), 3)"
    assert read(tmp_path, test_list=[text], entry_point="sum") == [
        f"from math import isclose\nfrom solution import sum\n{text}"
    ]


def test_imports_come_after_those_of_the_future(tmp_path):
    text = "'Tests.'\nfrom __future__ import annotations\nassert f(1)"
    assert read(tmp_path, test=text) == [text.replace("assert", "from solution import f\nassert")]


def test_the_setup_of_mbpp_comes_before_each_of_its_tests(tmp_path):
    fields = {"test_imports": ["import math"], "test_setup_code": "two = 2"}
    [first, second] = read(tmp_path, test_list=["assert f(two) == math.pi", "assert f(1)"], **fields)
    assert first == "from solution import f\nimport math\ntwo = 2\nassert f(two) == math.pi"
    assert second.endswith("two = 2\nassert f(1)")


def test_check_of_humaneval_is_called_with_the_entry_point(tmp_path):
    assert read(tmp_path, test=CHECK, entry_point="f") == [f"from solution import f\n{CHECK}\n\ncheck(f)\n"]
    guarded = CHECK + "if __name__ == '__main__':\n    check(f)\n"
    assert read(tmp_path, test=guarded, entry_point="f")[0].endswith("\n\ncheck(f)\n")
    called = CHECK + "check(f)\n"
    assert read(tmp_path, test=called, entry_point="f")[0].count("check(f)") == 1


def test_a_function_that_a_prompt_of_humaneval_defines_is_not_taken_from_the_response(tmp_path):
    prompt = "import math\n\ndef poly(x):\n    return x * x\n\ndef root(x):\n    '''A root of poly.'''\n"
    check = "def check(candidate):\n    assert abs(poly(candidate(4)) - 4) < 1e-6\n"
    [source] = read(tmp_path, prompt=prompt, test=check, entry_point="root")
    assert "def poly" in source
    assert "import poly" not in source


NO_TEST = "no test in it would run and check something"


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (CHECK, [NO_TEST, "nothing calls the function `check`"]),
        ("class CheckIt:\n    def test_a(self): assert f(2) == 4", [NO_TEST, "the class `CheckIt`"]),
        ("class TestIt:\n    def __init__(self): pass\n    def test_a(self): assert f(2) == 4", ["a constructor"]),
        ("class Base:\n    def test_a(self): assert f(2)\nclass Other(Base): pass", [NO_TEST, "`Base`"]),
        ("if __name__ == '__main__':\n    assert f(2) == 4", [NO_TEST, "`if __name__ == '__main__'` is false"]),
        ("test_a = lambda: f(2) == 4", [NO_TEST]),
        ("def doc():\n    '''\n    >>> f(2)\n    4\n    '''\nf(2)", [NO_TEST, "no assertion"]),
        ("def test_a():\n    return f(2) == 4", [NO_TEST]),
        ("def test_a():\n    assert (f(2) == 4, 'wrong')", [NO_TEST]),
        ("def test_a():\n    f(2)\n    assert True", [NO_TEST]),
        (
            "def test_a():\n    try:\n        assert f(2) == 4\n    except AssertionError:\n        print('no')",
            [NO_TEST],
        ),
        ("try:\n    assert f(2) == 4\nexcept Exception:\n    pass", [NO_TEST]),
        ("import contextlib\nwith contextlib.suppress(Exception):\n    assert f(2) == 4", [NO_TEST]),
        ("if False:\n    def test_a(): assert f(2) == 4", [NO_TEST]),
        ("def test_a():\n    return\n    assert f(2) == 4", [NO_TEST]),
        ("def test_a():\n    for x, y in []:\n        assert f(x) == y", [NO_TEST]),
        ("import pytest\n@pytest.mark.skip\ndef test_a():\n    assert f(2) == 4", [NO_TEST]),
        ("import pytest\n@pytest.mark.xfail(reason='x')\ndef test_a():\n    assert f(2) == 4", [NO_TEST]),
        ("import unittest\nclass T(unittest.TestCase):\n    def check_a(self): self.assertTrue(f(2))", [NO_TEST]),
        (
            "def test_a():\n    for x in 1, 2:\n        yield lambda: f(x)\n        assert f(x)",
            ["`test_a` is a generator"],
        ),
        (
            "import unittest\nclass T(unittest.TestCase):\n    async def test_a(self): assert f(2)",
            ["`test_a` is a coroutine"],
        ),
        ("def test_a():\n    assert 1 + 1 == 2", ["tests nothing of the response"]),
        ("assert set((1, 2)) == sorted((1, 2))", ["`set`, which may be the response's or Python's own"]),
        ("assert isclose(f(2), 1)", ["`isclose`, which may be the response's or Python's own"]),
        ("def test_a(capsys):\n    f(2)\n    assert capsys.readouterr().out == '4'", ["the argument `capsys`"]),
        ("def test_a(monkeypatch):\n    assert f(2)", ["`monkeypatch`"]),
        ("class TestA:\n    def test_a(self, tmp_path):\n        assert f(tmp_path)", ["`tmp_path`"]),
        (
            "import pytest\n@pytest.fixture\ndef two(request):\n    return 2\ndef test_a(two):\n    assert f(two)",
            ["`two` takes the argument `request`"],
        ),
        (
            "from unittest.mock import patch\ndef test_a():\n    with patch('builtins.input'):\n        assert f()",
            ["patch"],
        ),
        ("from unittest import mock\n@mock.patch('a')\ndef test_a(m):\n    assert f()", ["`patch`"]),
        (
            "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as o:\n    f()\nassert o",
            ["redirect"],
        ),
        ("import sys, io\nsys.stdin = io.StringIO('3')\nassert f() == 3", ["`sys.stdin = ...`"]),
        ("import inspect\nassert 'for' not in inspect.getsource(f)", ["`getsource`"]),
        ("import types\nassert isinstance(f, types.FunctionType)", ["`FunctionType`"]),
        ("import inspect\nassert inspect.isgeneratorfunction(f)", ["`isgeneratorfunction`"]),
        ("import asyncio, pytest\nwith pytest.raises(asyncio.CancelledError): f()", ["`CancelledError`"]),
        ("import pytest\nwith pytest.raises(ValueError) as e: f()\nassert e.value.__context__", ["`__context__`"]),
        ("import abc\nfrom solution import Shape\nassert issubclass(Shape, abc.ABC)", ["`issubclass(Shape, abc.ABC)`"]),
        ("from solution import P\nmatch f():\n    case P(x=1): pass\n    case _: assert False", ["`P(x=1)`"]),
        ("async def work(): return 3\nasync def test_a(): assert await f(work) == 3", ["`f(work)`", "coroutine"]),
        ("async def work(): return 3\nasync def test_a(): assert await f([work()], n=2)", ["`f([work()], n=2)`"]),
        (
            "from solution import Bus\nasync def on(x): pass\nbus = Bus()\nbus.add('a', on)\nassert bus.n == 1",
            ["`bus.add('a', on)`"],
        ),
        ("from solution import retry\n@retry(3)\nasync def work(): pass\nassert work", ["`work`"]),
        (
            (
                "import asyncio, pytest\nasync def test_a():\n"
                "    with pytest.raises(asyncio.TimeoutError): await asyncio.wait_for(f(), 0.01)"
            ),
            ["`asyncio.wait_for(f(), 0.01)`", "timeout"],
        ),
        ("from inspect import isfunction\nassert isfunction(f)", ["`isfunction`"]),
        ("import io\nassert f(io.StringIO('a')) == 'a'", ["`f(StringIO(...))`"]),
        ("open('/tmp/a', 'w').write('x')\nassert f('/tmp/a') == 'x'", ["`open(..., 'w')`"]),
        ("from pathlib import Path\nPath('/tmp/a').write_text('x')\nassert f('/tmp/a') == 'x'", ["`write_text`"]),
        ("from solution import Stack\ns = Stack()\nassert type(s) is Stack", ["`type(s) is Stack`", "isinstance"]),
        ("from solution import Stack\nassert type(Stack()) in (Stack, int)", ["`type(Stack()) in (Stack, int)`"]),
        ("import solution\ns = solution.Stack()\nassert s.__class__ == solution.Stack", ["`s.__class__ =="]),
        ("from solution import A\nassert isinstance(A, type)", ["`isinstance(A, type)`"]),
        (
            (
                "import unittest\nfrom solution import A\nclass T(unittest.TestCase):\n"
                "    def test_a(self): self.assertIs(type(A()), A)"
            ),
            ["`self.assertIs(type(A()), A)`"],
        ),
        ("import dataclasses\nfrom solution import P\nassert dataclasses.asdict(P(1)) == {'x': 1}", ["`asdict`"]),
        ("from dataclasses import fields\nfrom solution import P\nassert len(fields(P)) == 1", ["`fields`"]),
        (
            "import pickle\nfrom solution import P\np = P(1)\nassert pickle.loads(pickle.dumps(p)) == p",
            ["pickle.dumps(p)"],
        ),
        ("from solution import f\nassert f.__code__.co_argcount == 2", ["`f.__code__`"]),
        ("import os\ndef test_f():\n os.environ['A'] = '5'\n assert f() == 5", ["`os.environ[...] = ...`"]),
        ("import os\ndef test_f():\n os.environ.update(A='5')\n assert f() == 5", ["`os.environ.update`"]),
        ("import warnings\nwith warnings.catch_warnings(record=True) as w:\n    f()\nassert w", ["`catch_warnings("]),
        (
            (
                "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n"
                "        with self.assertWarns(UserWarning): f()"
            ),
            ["`assertWarns`"],
        ),
        ("import pytest\nwith pytest.warns(UserWarning):\n    f(2)", ["`pytest.warns`", "raises"]),
        (
            "import pytest\n@pytest.mark.parametrize('x', [1], indirect=True)\ndef test_a(x):\n    assert f(x)",
            ["`parametrize(indirect=...)`"],
        ),
        (
            (
                "import pytest, unittest\nclass A(unittest.TestCase):\n    @pytest.fixture(autouse=True)\n"
                "    def two(self): self.two = 2\n    def test_a(self): self.assertEqual(f(1), self.two)"
            ),
            ["`fixture in A`"],
        ),
        (
            "import pytest\n@pytest.mark.skipif('f(2) == 0', reason='x')\ndef test_a():\n    assert f(2)",
            ["`pytest.mark.skipif('f(2) == 0', reason='x')`", "a text"],
        ),
        (
            "import pytest\ndef test_a(): assert f(2)\n@pytest.mark.xfail(condition='1')\ndef test_b(): assert f(2)",
            ["`pytest.mark.xfail(condition='1')`"],
        ),
        ("from solution import Stack\nclass Own(Stack): pass\nassert Own().pop() == 1", ["inherits from", "`Stack`"]),
        ("def test_a(:\n    assert f(2)", ["is not Python: line 1"]),
        ("return f(2)", ["is not Python", "outside function"]),
    ],
)
def test_tests_that_could_not_fail_or_not_pass_are_refused_with_their_line(tmp_path, test, words):
    with pytest.raises(DataError) as caught:
        read(tmp_path, test=test)
    assert caught.value.allowed
    assert caught.value.remedy
    for word in ["p.jsonl, line 2: `test`", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "test",
    [
        "assert f(2) == 4",
        "for x in range(3):\n    assert f(x) == 2 * x",
        "def test_a():\n    assert f(2) == 4",
        "async def test_a():\n    assert await f(2) == 4",
        "class Base:\n    def test_a(self): assert f(2)\nclass TestOther(Base): pass",
        "class TestA:\n    class TestB:\n        def test_a(self): assert f(2)",
        "def helper(x): assert f(x) == 4\ndef test_a(): helper(2)",
        "def helper(x): assert f(x) == 4\nfor each in [helper]: each(2)",
        "import pytest\ndef test_a():\n    with pytest.raises(ValueError):\n        f(2)",
        "def test_a():\n    try:\n        f(2)\n    except ValueError:\n        pass\n    else:\n        assert False",
        "from unittest import TestCase as T, TestCase\nclass A(TestCase):\n    def test_a(self): self.assertTrue(f(2))",
        "import unittest\nclass A(unittest.IsolatedAsyncioTestCase):\n    async def test_a(self): assert await f(2)",
        "try:\n    assert f(2) == 4\nexcept AssertionError:\n    raise SystemExit(1)",
        "try:\n    from solution import f\nexcept ImportError:\n    from main import f\nassert f(2)",
        "def test_a():\n    try:\n        assert f(2) == 4\n    except Exception as e:\n        assert False, e",
        "import pytest\n@pytest.fixture(name='two')\ndef made(): return 2\ndef test_a(two): assert f(two)",
        "import pytest as p\n@p.mark.parametrize(('x', 'y'), [(1, 2)])\nclass TestA:\n def test(s, x, y): f.fail()",
        "class TestA:\n    def test_a(self): assert f(2)\nclass CheckB:\n    def test_b(self): assert f(3)",
        "from solution import Bad\nclass Worse(Exception): pass\ndef test_a(times=2): assert f(times)",
        "import random\nrandom.seed(5)\nx = random.random()\nassert f(x) == 2 * x",
        "import numpy as np\nnp.random.seed(5)\nx = np.random.rand(2).tolist()\nassert f(x) == x",
        "from random import Random, seed\nseed(1)\nassert f(Random(3).random())",
        "from solution import Stack\ns = Stack()\nassert type(s).__name__ == 'Stack' and type(s) is type(Stack())",
        "from solution import Bad, f\ntry:\n    f()\nexcept Bad as e:\n    assert type(e) is Bad",
        "from solution import LIMIT, f\nassert type(f(2)) is int and type(LIMIT) == type(2) and LIMIT is f(2)",
        "import pickle\nassert f(pickle.dumps([1])) == [1]",
        "import types\nassert isinstance(f(2), types.GeneratorType)",
        "import enum\nfrom solution import Color\nassert issubclass(Color, enum.Enum)",
        "import asyncio\nasync def work(): return 3\nasync def main(): assert f(await work())\nasyncio.run(main())",
        "import asyncio\nasync def test_a(): assert await asyncio.wait_for(f(2), 5) == 4",
        (
            "import asyncio, pytest\nasync def test_a():\n    try: await asyncio.wait_for(f(2), 5)\n"
            "    except asyncio.TimeoutError: pytest.fail('slow')"
        ),
        "from dataclasses import dataclass, asdict\n@dataclass\nclass P:\n    x: int\nassert f(asdict(P(1))) == 1",
        "import random\nrandom.seed(0)\nassert sorted(f([3, 1, 2])) == [1, 2, 3]",
        "import os\nos.environ.setdefault('OMP_NUM_THREADS', '1')\nassert f(1) == 1",
        "def test_f():\n environ = {}\n environ['PATH_INFO'] = '/x'\n assert f(environ) == 1",
        "from solution import Time\ntime = Time(1, 2)\ntime.hour = 5\nassert time.hour == 5",
        "import pytest\nfrom solution import Bad\nwith pytest.raises(Exception) as e: f()\nassert type(e.value) is Bad",
        "import os\nos.environ['OPENBLAS_NUM_THREADS'] = '1'\nimport numpy\nassert f(numpy.zeros(1)) == 1",
        "import os, warnings\nwarnings.simplefilter('ignore')\nassert f(os.environ.get('HOME')) == 1",
    ],
)
def test_what_pytest_would_run_is_read(tmp_path, test):
    assert test in read(tmp_path, test=test)[0]
