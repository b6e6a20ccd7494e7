"""What tests may do with objects, errors and iterators that cross between two processes, and what no cheat gains by it."""
# ruff: noqa: E501 a program is one line of the file where it can be

from tests.rewards.sandbox.programs import verdicts_that_differ

TALLY = "class T:\n def __enter__(s): s.n = 1; return s\n def __exit__(s, *a): s.left = a[0]"
MANAGED = """
from contextlib import contextmanager
log = []
@contextmanager
def m(x):
    log.append("in")
    try: yield x
    except KeyError as e: log.append(repr(e))
    finally: log.append("out")
def seen(): return log
"""
MANAGING = """
import pytest
from solution import m, seen
with m(3) as x: assert x == 3
with m(4): raise KeyError("a")
with pytest.raises(ValueError):
    with m(4): raise ValueError("a")
assert seen() == ["in", "out", "in", "KeyError('a')", "out", "in", "out"]
"""
IGNORING = """
class S:
    def __init__(s, k=ValueError): s.k = k
    def __enter__(s): return s
    def __exit__(s, k, e, t): s.e = str(e); return k is not None and issubclass(k, s.k)
"""
ASYNC = "class R:\n async def __aenter__(s): return s\n async def __aexit__(s, k, e, t): return k is ValueError"
WITHS = [
    ("from solution import T\nt = T()\nwith t as s: assert t.n == 1\nassert t.left is None and s is t", TALLY),
    (
        "import pytest\nfrom solution import T\nt = T()\nwith pytest.raises(KeyError):\n with t: {}['a']\nassert t.left is KeyError",
        TALLY,
    ),
    (MANAGING, MANAGED),
    ("from solution import S\ns = S()\nwith s:\n raise ValueError('why')\nassert s.e == 'why'", IGNORING),
    ("from solution import S\ns = S()\nwith s: int('x')\nassert 'invalid' in s.e", IGNORING),
    ("import pytest\nfrom solution import S\nwith pytest.raises(KeyError):\n with S(): {}[1]", IGNORING),
    ("from solution import S\nwith S(ZeroDivisionError) as s: x = 1 / 0\nassert 'zero' in s.e", IGNORING),
    (
        "from solution import S\nlog = []\nwith S():\n log.append(1)\n raise ValueError('why')\nassert log == [1]",
        IGNORING,
    ),
    ("from solution import S\nclass My(ValueError): pass\nwith S(My): raise My\nassert S", IGNORING),
    ("import json\nfrom solution import S\nwith S(json.JSONDecodeError): json.loads('{')\nassert S", IGNORING),
    ("from solution import S\ns = S()\nassert s.__exit__(ValueError, ValueError(), None) and s.e == ''", IGNORING),
    ("from solution import R\nasync def test_a():\n async with R(): raise ValueError\n assert R", ASYNC),
]
YES = (
    "class S:\n def __enter__(s): return s\n def __exit__(s, *a): return True\n def __getattr__(s, n): raise ValueError"
)
SKIPPING = [
    ("from solution import S\ndef test_a():\n ok = True\n with S() as s: ok = s.n == 5\n assert ok", YES),
    (
        "from solution import S\ngot = []\nfor _ in '12':\n with S() as s: got.append(s.n)\nfor g in got: assert g == 1",
        YES,
    ),
    (
        "from solution import S\nres = {}\nwith S() as s: res.update(s.run([1, 2]))\nfor k in res: assert res[k] == k * k",
        YES,
    ),
    (
        "from solution import S\ndef test_a():\n errors = []\n with S() as s: errors.append(s.n) if s.n != 1 else None\n assert not errors",
        YES,
    ),
    (
        "from solution import S\nclass Log:\n out = []\n def run(self):\n  with S() as s: print(s.n, file=self)\nLog().run()\nfor o in Log.out: assert o == 1",
        YES,
    ),
    ("from solution import S\ndef g():\n with S() as s: return s.n != 1\ndef test_a(): assert not g()", YES),
    (
        "import unittest\nfrom solution import S\nclass A(unittest.TestCase):\n def test_a(self):\n  self.s, self.ok = S(), True\n  with self.s: self.ok = self.s.n == 5\n  assert self.ok",
        YES,
    ),
    ("from solution import T\nt = T()\nwith t: assert t.n == 2", TALLY),
    ("from solution import S\nwith S() as s: assert s.n == 1", YES),
    ("from solution import S\ndef test_a():\n with S() as s:\n  x = s.n\n  assert x == 1", YES),
    ("from solution import S\nwith (\n S() as s,\n S() as t,\n):\n assert s.n == 1", YES),
    ("from solution import S\ndef look(s): assert s.n == 1\nwith S() as s: look(s)", YES),
    ("import pytest\nfrom solution import S\nwith S() as s, pytest.raises(KeyError, match='neg'): s.n", YES),
    (
        "from solution import S\ngot = []\nwith S() as s:\n for _ in '12': got.append(s.n)\nfor g in got: assert g == 1",
        YES,
    ),
    ("from solution import S\nfor do in [lambda s: s.n == 1 or 1 / 0]:\n with S() as s: do(s)\nassert S", YES),
    ("from solution import S\nclass L:\n def __init__(self, s): assert s.n == 1\nwith S() as s: L(s)\nassert S", YES),
    ("from solution import S\nwith S() as s:\n if s.n != 1: raise ValueError", YES),
    ("import pytest\nfrom solution import S\nwith S() as s: pytest.fail('x')", YES),
    (
        "from solution import S\nclass TestA:\n def look(self, s): assert s.n == 1\n def test_a(self):\n  with S() as s: self.look(s)",
        YES,
    ),
    (
        "from solution import S\ndef look(s): assert s is None\nlooks = [look]\nwith S() as s: list(map(looks[0], [s]))\nassert S",
        YES,
    ),
    (
        "import unittest\nfrom solution import S\nclass A(unittest.TestCase):\n def test_a(self):\n  with S() as s: self.assertEqual(s.n, 1)",
        YES,
    ),
    (
        "from contextlib import ExitStack\nfrom solution import S\nwith ExitStack() as k:\n s = k.enter_context(S())\n assert s.n == 1",
        YES,
    ),
    (
        "from contextlib import contextmanager\nfrom solution import S\n@contextmanager\ndef opened():\n with S() as s: yield s\nwith opened() as s: assert s.n == 1",
        YES,
    ),
    (
        "from solution import R\nasync def test_a():\n async with R() as r: assert r is None",
        ASYNC.replace("k is ValueError", "True"),
    ),
]
"""A `with` whose end would suppress that a check failed, or that it was not reached."""


def raising(kind, call="f()", more="True"):
    module = kind.rpartition(".")[0]
    head = f"import {module}, pytest" if module else "import pytest"
    return f"{head}\ndef test_a():\n with pytest.raises({kind}) as e: {call}\n assert {more}"


FROZEN = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass P:\n x: int\ndef f(): P(1).x = 2"
GROUP = "def f(): raise ExceptionGroup('all', [ValueError(1), KeyError('a')])"
MY = "import pytest\nclass My(Exception): pass\ndef call(): raise My('x', 3)\n"
RETRY = """
log = []
def call_often():
    log.append(1)
    if len(log) < 3: raise My
    return 7
def test_a():
    assert retry(call_often, (My,)) == 7 and len(log) == 3
    with pytest.raises(KeyError): retry(lambda: {}[1], My)
"""
RETRYING = "def retry(f, kinds):\n for _ in range(5):\n  try: return f()\n  except kinds: pass"
CATCHING = (
    "class BadError(Exception): pass\ndef f(c):\n try: c()\n except BadError as e: return type(e).__name__, str(e)"
)
OWN = """
import json
class Own(json.JSONDecodeError):
    def __init__(s, n):
        super().__init__("m", "d", n)
        s.code = n + 2
    def __str__(s): return f"own {s.pos}"
def f(): raise Own(3)
"""
ERRORS = [
    (
        raising("json.JSONDecodeError", "f('{')", "e.value.pos == 1 and 'Expecting' in str(e.value)"),
        "from json import loads as f",
    ),
    (raising("dataclasses.FrozenInstanceError"), FROZEN),
    (raising("ValueError", "f('{')"), "from json import loads as f"),
    (raising("statistics.StatisticsError", "f([])"), "from statistics import mean as f"),
    (raising("queue.Empty"), "import queue\ndef f(): queue.Queue().get_nowait()"),
    (raising("decimal.InvalidOperation", "f('x')"), "from decimal import Decimal as f"),
    (
        raising(
            "json.JSONDecodeError", more="e.value.code == 5 and str(e.value) == 'own 3' and e.type.__name__ == 'Own'"
        ),
        OWN,
    ),
    (raising("ExceptionGroup", more="[type(x) for x in e.value.exceptions] == [ValueError, KeyError]"), GROUP),
    (
        "seen = []\ntry: f()\nexcept* ValueError: seen.append(1)\nexcept* KeyError: seen.append(2)\nassert seen == [1, 2]",
        GROUP,
    ),
    (
        f"{MY}def test_a():\n with pytest.raises(My) as e: f(call)\n assert e.value.args == ('x', 3)",
        "def f(c): return c()",
    ),
    (MY + RETRY, RETRYING),
    (
        "from solution import BadError, f\ndef call(): raise BadError('x')\nassert f(call) == ('BadError', 'x')",
        CATCHING,
    ),
    (
        "from solution import BadError, f\nclass Worse(BadError): pass\ndef call(): raise Worse('x')\nassert f(call) == ('Worse', 'x')",
        CATCHING,
    ),
    (
        "import pytest\nfrom solution import S\ndef test_a():\n with pytest.raises(S.Empty): S().pop()\n assert issubclass(S.Empty, IndexError)",
        "class S:\n class Empty(IndexError): pass\n def pop(s): raise S.Empty('no')",
    ),
    ("e = ValueError('x')\nassert f(e) is e", "def f(x): return x"),
    (
        raising("ValueError", more="isinstance(e.value.__cause__, KeyError) and e.value.__notes__ == ['seen']"),
        "def f():\n try: {}[1]\n except KeyError as e:\n  w = ValueError(2)\n  w.add_note('seen')\n  raise w from e",
    ),
]
TWO = "import unittest\nclass A(unittest.TestCase):\n def test_a(self): self.assertEqual(f(1), 2)\n def test_b(self): self.assertEqual(1, 1)"
MEANING = [
    (TWO, "import unittest\ndef f(x): raise unittest.SkipTest"),
    (TWO, "import unittest\ndef f(x): raise ExceptionGroup('a', [unittest.SkipTest()])"),
    (TWO, "class E(Exception): pass\nE.__module__, E.__name__ = 'unittest.case', 'SkipTest'\ndef f(x): raise E"),
    (TWO, "class E(Exception): pass\nE.__module__, E.__name__ = 'unittest.case', '_ShouldStop'\ndef f(x): raise E"),
    (
        "import pytest\ndef test_a(): assert f(1) == 2\ndef test_b(): assert True",
        "class E(Exception): pass\nE.__module__, E.__name__ = 'rollpacker.rewards.sandbox.mini_pytest', '_Skipped'\ndef f(x): raise E",
    ),
    (
        "import pytest\nfrom solution import f\n@pytest.mark.parametrize('x', [f(1)])\ndef test_a(x): assert x == 1\ndef test_b(): assert True",
        "class E: is_skipped_test = True\ndef f(x): return E()",
    ),
    (
        f"{MY}def test_a():\n with pytest.raises(My): f()",
        "class My(Exception): pass\nMy.__module__ = 'test_solution'\ndef f(): raise My",
    ),
    (
        raising("AssertionError"),
        "class E(Exception): pass\nE.__module__, E.__name__ = 'builtins', 'KeyError'\ndef f(): raise E",
    ),
]
"""Errors and marks that would end or skip a test of a wrong program, or be what they are not."""

DECORATING = "import functools\ndef deco(f):\n @functools.wraps(f)\n def h(*a): return f(*a)\n return h"
MEMO = "import functools\ndef memo(f):\n c = {}\n @functools.wraps(f)\n def h(*a):\n  if a not in c: c[a] = f(*a)\n  return c[a]\n return h"
SLICE = "import itertools\ndef f(x, n): return list(itertools.islice(x, n))"
PASSED = [
    (
        "from solution import memo\nclass A:\n n = 0\n @memo\n def sq(self, x): self.n += 1; return x * x\na = A()\nassert a.sq(3) == a.sq(3) == 9 and a.n == 1 and A.sq(a, 3) == 9",
        MEMO,
    ),
    (
        "from collections import OrderedDict\nassert f(OrderedDict, OrderedDict(a=1))",
        "def f(k, x): return type(x) is k",
    ),
    ("def g():\n 'Doc.'\n return 3\nd = deco(g)\nassert (d.__name__, d.__doc__, d()) == ('g', 'Doc.', 3)", DECORATING),
    ("import functools\nassert deco(functools.partial(int, '3'))() == 3 and deco(lambda: 4)() == 4", DECORATING),
    ("assert f(x for x in [1, 2]) == 3 and f(iter([1, 2])) == 3 and f(map(int, '12')) == 3", "def f(x): return sum(x)"),
    (
        "import itertools\nassert f(itertools.count(1), 3) == [1, 2, 3]\ni = iter([1, 2, 3])\nassert f(i, 2) == [1, 2] and next(i) == 3 and f(x=i, n=1) == []",
        SLICE,
    ),
    ("i = iter([1, 2])\nassert f(i) is i and list(i) == [1, 2]", "def f(x): return x"),
    (raising("KeyError", "f(1 / {}[x] for x in [1])"), "def f(x): return list(x)"),
    (
        "d = {3: 1, 2: 1}\nassert f(d.keys()) == [2, 3] and f(d.values()) == [1, 1] and f(d.items()) == [(2, 1), (3, 1)]",
        "f = sorted",
    ),
    ("from pathlib import PurePosixPath as P\nassert f(P('a')) == P('a/b')", "def f(x): return x / 'b'"),
    (
        "from uuid import UUID\nassert f(UUID(int=3)) == UUID(int=4)",
        "from uuid import UUID\ndef f(x): return UUID(int=x.int + 1)",
    ),
    (
        "from collections import deque\nd = deque([1, 2], maxlen=2)\nassert f(d) is d and d == deque([2, 3])",
        "def f(x):\n x.append(3)\n return x",
    ),
    (
        (
            "from datetime import datetime, timedelta, timezone\nday = datetime(2020, 1, 1, tzinfo=timezone.utc)\n"
            "assert f(day) == day + timedelta(hours=1) and f(day).tzinfo == timezone.utc"
        ),
        "from datetime import timedelta\ndef f(day): return day + timedelta(hours=1)",
    ),
]
COUNT = "class Count:\n n = 2\n def next(s):\n  s.n -= 1\n  if s.n < 0: raise StopIteration\n  return s.n\ndef f(*a): raise StopIteration"
CATCHES = """
import pytest, unittest
from solution import Count, f
def test_a():
    with pytest.raises(StopIteration): f(1)
    pytest.raises(StopIteration, f, 1)
    with pytest.raises(StopIteration):
        c = Count()
        for _ in range(9): c.next()
    c, out = Count(), []
    while True:
        try: out.append(c.next())
        except StopIteration: break
    assert out == [1, 0]
class TestB(unittest.TestCase):
    def test_b(self):
        with self.assertRaises(StopIteration): f()
        self.assertRaises(StopIteration, f, 1)
"""
ENDING = [(CATCHES, COUNT)]
WITHIN = "import pytest\nwith pytest.raises(StopIteration):\n assert all(map({}, [1]))\n next(iter([]))"
CUTTING = [
    (WITHIN.format("f"), COUNT),
    (WITHIN.format("lambda x: f(x) == 1"), COUNT),
    ("try: assert list(map(f, [1])) == []\nexcept StopIteration: pass", COUNT),
    ("def g(x): return f(x) == 1\nassert all(map(g, [1]))", COUNT),
    ("assert [f(x) for x in [1]] == []", COUNT),
]
"""A `map` that a `StopIteration` of the response would end before it has a wrong value."""


async def test_an_object_of_the_response_may_be_used_in_a_with(tmp_path):
    assert await verdicts_that_differ(tmp_path, WITHS, is_right=True) == []


async def test_the_end_of_a_with_skips_no_check(tmp_path):
    assert await verdicts_that_differ(tmp_path, SKIPPING, is_right=False) == []


async def test_errors_are_of_the_same_class_in_both_processes(tmp_path):
    assert await verdicts_that_differ(tmp_path, ERRORS, is_right=True) == []


async def test_no_error_of_a_response_has_a_meaning_to_the_tests_runner(tmp_path):
    assert await verdicts_that_differ(tmp_path, MEANING, is_right=False) == []


async def test_functions_iterators_and_data_of_the_tests_are_what_they_are_in_the_response(tmp_path):
    assert await verdicts_that_differ(tmp_path, PASSED, is_right=True) == []


async def test_the_end_of_an_iteration_is_caught_where_the_tests_call(tmp_path):
    assert await verdicts_that_differ(tmp_path, ENDING, is_right=True) == []


async def test_the_end_of_an_iteration_ends_no_loop_of_the_tests(tmp_path):
    assert await verdicts_that_differ(tmp_path, CUTTING, is_right=False) == []
