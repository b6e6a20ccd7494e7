"""Tests of prompts in a sandbox: what a response can and cannot put in their way, and what of pytest they may use."""
# ruff: noqa: E501 a program is one line of the file where it can be

from tests.rewards.sandbox.programs import reasons_of

SHADOWS = {
    "set": ("assert set(f(2)) == set((4,))", "()"),
    "abs": ("assert abs(f(2) - 4) < 1e-9", "0"),
    "sorted": ("assert sorted(f(2)) == [4]", "()"),
    "round": ("assert round(f(2), 2) == 4.0", "0"),
    "str": ("assert str(f(2)) == '4'", "0"),
    "len": ("assert len(f(2)) == 4", "()"),
    "tuple": ("assert tuple(f(2)) == (4,)", "()"),
    "list": ("assert list(f(2)) == [4]", "()"),
    "dict": ("assert dict(f(2)) == {4: 4}", "()"),
    "isinstance": ("assert isinstance(f(2), float)", "0"),
    "all": ("assert all(each == 4 for each in f(2))", "(0,)"),
    "any": ("assert any(each == 4 for each in f(2))", "(0,)"),
    "zip": ("for one, other in zip(f(2), [4]): assert one == other", "(0,)"),
    "range": ("for each in range(1, 3): assert f(each) == 2 * each", "0"),
    "enumerate": ("for index, each in enumerate(f(2)): assert index == each", "(4,)"),
    "AssertionError": ("if f(2) != 4: raise AssertionError", "0"),
    "math": ("assert math.isclose(f(2), 4)", "0"),
    "unittest": (
        "import unittest\nclass T(unittest.TestCase):\n def test_a(self):\n  for x in range(1, 2): self.assertEqual(f(x), 4)",
        "0",
    ),
    "assertEqual": ("def assertEqual(one, other): assert one == other\nassertEqual(f(2), 4)", "0"),
    "check": ("def check(given): assert given(2) == 4\ncheck(f)", "0"),
    "inputs": ("inputs, results = [2], [4]\nfor x, y in zip(inputs, results): assert f(x) == y", "0"),
    "pytest": ("import pytest\ndef test_a():\n assert f(2) == pytest.approx(4)", "0"),
    "approx": ("from pytest import approx\ndef test_a():\n assert f(2) == approx(4)", "0"),
    "deepcopy": ("from copy import deepcopy\nassert deepcopy(f(2)) == 4", "0"),
    "__eq__": ("assert f(2) == 4", "0"),
    "__name__": ("assert f(2) == 4", "0"),
    "print": ("print(f(2))\nassert f(2) == 4", "0"),
    "test_a": ("def test_a(): assert f(2) == 4", "0"),
    "TestA": ("class TestA:\n def test_a(self): assert f(2) == 4", "0"),
    "METADATA": ("METADATA = {'y': 4}\nassert f(2) == METADATA['y']", "0"),
}
"""A name that tests use for what is not the response's, and what a wrong function returns."""

ALWAYS = (
    "class Yes:\n def __call__(s, *a, **k): return s\n def __getattr__(s, n): return s\n def __eq__(s, o): return True\n"
    " def __iter__(s): return iter(())\n def __len__(s): return 5\n def __bool__(s): return True\n __hash__ = None\n"
    " def __lt__(s, o): return True\n __gt__ = __le__ = __ge__ = __contains__ = __lt__\n def __abs__(s): return 0\n"
    " def __sub__(s, o): return s\n __rsub__ = __add__ = __mod__ = __round__ = __sub__\n"
    " def __float__(s): return 0.0\n def __int__(s): return 0\n def __enter__(s): return s\n def __exit__(s, *a): return True\n"
)
MODULES = (
    "import builtins, math, sys, unittest\nfor each in (builtins, math): vars(each).update(isclose=lambda *a, **k: True)\n"
    "builtins.sorted = builtins.set = builtins.abs = builtins.round = lambda *a, **k: 0\n"
    "unittest.TestCase.assertEqual = lambda *a: None\nsys.modules['pytest'] = sys.modules['math'] = math\n"
)


VACUOUS = ("all", "zip", "enumerate")
"""Tests that look at what they are given only: a function that gives nothing passes them under pytest too."""


def shadowing():
    """Give the key, the test and the wrong response of each case."""
    heads = ("", "from solution import *\n", "from solution import f\n")
    for index, (name, (test, wrong)) in enumerate(SHADOWS.items()):
        text = heads[index % 3] + test
        function = f"def f(x): return {wrong}\n"
        yield f"{name}: a function", text, f"def {name}(*a, **k): return 0\n{function}"
        if name not in VACUOUS:
            yield f"{name}: an object", text, f"{ALWAYS}{name} = Yes()\n{function}"
        if index % 3 == 0:
            yield f"{name}: in its modules", text, MODULES + function
        elif name not in VACUOUS:
            yield f"{name}: what it returns", text, f"{ALWAYS}def f(x): return Yes()"


async def test_no_name_of_a_response_takes_the_place_of_one_that_its_tests_compare_with(tmp_path):
    cases = list(shadowing())
    reasons = await reasons_of(tmp_path, [({"test": test}, program) for _, test, program in cases])
    assert [key for (key, _, _), reason in zip(cases, reasons, strict=True) if reason == "correct"] == []


async def test_a_right_response_may_define_what_it_likes(tmp_path):
    names = [name for name in SHADOWS if name not in {"len", "sorted", "tuple", "list", "all", "any"}]
    values = {
        "set": "(4,)",
        "dict": "[(4, 4)]",
        "zip": "[4]",
        "range": "2 * x",
        "enumerate": "[0]",
        "unittest": "4 * x",
    }
    values["isinstance"] = "4.0"
    cases = [
        ({"test": SHADOWS[name][0]}, f"def {name}(*a, **k): return 0\ndef f(x): return {values.get(name, '4')}")
        for name in names
    ]
    reasons = await reasons_of(tmp_path, cases)
    assert [name for name, reason in zip(names, reasons, strict=True) if reason != "correct"] == []


POINT = """
class P:
    def __init__(self, x): self.x = x
    def __str__(self): return f"P{self.x}"
    def __repr__(self): return f"P({self.x})"
    def __eq__(self, other): return isinstance(other, P) and self.x == other.x
    def __hash__(self): return hash(self.x)
    def __mul__(self, k): return P(self.x * k)
    __rmul__ = __mul__
    def __contains__(self, x): return x == self.x
    def scaled(self, k): return self * k
"""
ERRORS = """
import sys
class Base(ValueError):
    def __init__(self, n):
        super().__init__(n)
        self.code = n + 2
    def __str__(self): return f"own {self.args[0]}"
class Low(Base): pass
def buy(n): raise Low(n)
def leave(): sys.exit(3)
"""
PYTEST = """
import pytest
log = []
@pytest.fixture
def two():
    log.append("up")
    yield 2
    log.append("down")
@pytest.fixture(autouse=True)
def always(): log.append("auto")
@pytest.mark.parametrize("x, y", [(1, 2), pytest.param(3, 6, id="a")])
class TestA:
    @classmethod
    def setup_class(cls): cls.k = 1
    def setup_method(self, method): self.m = method.__name__
    def teardown_method(self): log.append("torn")
    @pytest.fixture
    def three(self): return 3
    def test_a(self, x, y, two, three):
        assert f(x) == y
        assert (two, three, self.m, self.k) == (2, 3, "test_a", 1)
class Base:
    def test_b(self): assert f(self.v) == 8
class TestB(Base):
    v = 4
    class TestC:
        def test_c(self): assert f(1) == 2
def test_log():
    assert [log.count(w) for w in ("up", "down", "torn", "auto")] == [2, 2, 2, 5]
"""
SKIPS = """
import pytest
@pytest.mark.skipif(True, reason="x")
def test_a(): assert f(1) == 0
def test_b():
    if f(1) == 2: pytest.skip("x")
@pytest.mark.parametrize("x", [pytest.param(1), pytest.param(2, marks=pytest.mark.skip)])
def test_c(x): assert f(x) == 2 and x == 1
"""
OF_SKIPS = """
import unittest, pytest
class TestA:
    pytestmark = [pytest.mark.skipif(True, reason="x"), pytest.mark.slow]
    def test_a(self): assert f(1) == 0
class A(unittest.TestCase):
    @pytest.mark.skip
    def test_a(self): self.assertEqual(f(1), 0)
    def test_b(self): self.assertEqual(f(1), 2)
    def test_c(self):
        for x in range(2):
            with self.subTest(x): self.skipTest("x")
def helper(): assert f(1) == 0
test_helper = helper
test_helper.__test__ = False
def test_d(): pytest.importorskip("no_such_package")
"""
SKIPPED_WHOLE = """
import unittest
class A(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest
    def test_a(self): self.assertEqual(f(1), 2)
"""
MARKED = """
import pytest
pytestmark = [pytest.mark.skipif(False, reason="x"), pytest.mark.asyncio]
def test_a(): assert f(0) == 0
@pytest.mark.xfail(False, reason="x")
def test_b(): assert f(1) == 2
"""
CLASSES = """
import pytest
class TestA:
    def setup_class(cls): cls.k = 2
    def teardown_class(cls): assert cls.k == 2
    def test_a(self):
        assert f(1) == self.k
        with pytest.raises(expected_exception=TypeError) as e: f()
        assert "missing 1" in str(e) and e.typename == "TypeError" and e.exconly().startswith("TypeError: ")
"""
UNITTEST = """
import unittest
class Base(unittest.TestCase):
    def setUp(self): self.two = 2
    def test_a(self): self.assertEqual(f(1), self.two)
class More(Base):
    def test_b(self): self.assertAlmostEqual(f(0.5), 1.0)
"""
RAISES = """
import pytest
from solution import Base, Low, buy, leave
def test_a():
    with pytest.raises(Base, match="own") as e: buy(5)
    assert e.value.code == 7 and e.type is Low
    with pytest.raises(SystemExit) as e: leave()
    assert e.value.code == 3 and issubclass(Low, Base)
"""
AWAITS = """
import asyncio
async def test_a(): assert await f(2) == 4 and await asyncio.gather(f(1), f(3)) == [2, 6]
def test_b(): assert asyncio.run(f(1)) == 2
"""
NODES = """
class Node:
    def __init__(self, v, n=None): self.val, self.next = v, n
h, out = f(Node(1, Node(2))), []
while h: out.append(h.val); h = h.next
assert out == [2, 1]
"""
THREADS = """
import threading
from solution import Tally
c = Tally()
ts = [threading.Thread(target=c.up) for _ in range(4)]
for t in ts: t.start()
for t in ts: t.join()
assert c.n == 4
"""
SEQUENCE = """
class L:
    def __init__(self, *v): self.v = v
    def __getitem__(self, i): return self.v[i]
    def __iadd__(self, x): self.v += (x,); return self
    def __mul__(self, k): return L(*[x * k for x in self.v])
    def __iter__(self): return iter(self.v)
    def __len__(self): return len(self.v)
def f(x): return x
"""
OPERATORS = """
class N:
    def __init__(self, x): self.x = x
    def __lshift__(self, k): return N(self.x << k)
    def __sub__(self, k): return N(self.x - k)
    def __or__(self, k): return N(self.x | k)
    def __invert__(self): return N(~self.x)
    def __pos__(self): return N(abs(self.x))
    def __format__(self, spec): return spec
    def __bytes__(self): return bytes([self.x])
"""
ASYNC = """
import pytest
from solution import R, count
async def test_a():
    async with R() as r:
        assert await r.get() == 3
    assert r.is_closed and [x async for x in count(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        async for x in count(0): pass
"""
ASYNC_PROGRAM = """
class R:
    is_closed = False
    async def __aenter__(self): return self
    async def __aexit__(self, *error): self.is_closed = True
    async def get(self): return 3
async def count(n):
    1 / n
    for x in range(n): yield x
"""
MEMBERS = """
from http import HTTPStatus
from solution import Level, Color, next_of, is_red
assert Level.LOW == 1 and Level.LOW < Level.HIGH and Level.LOW + 1 == 2 and [Level.LOW] == [1]
assert next_of(Level.LOW) is Level.HIGH and next_of(1).name == "HIGH" and isinstance(next_of(1), Level)
assert Color.RED == "red" and Color.RED.value == "red" and Color("red") is Color.RED and repr(Color.RED) == "<Color.RED: 'red'>"
assert Color.RED.upper() == "RED" and {Color.RED: 1}["red"] == 1 and is_red(Color.RED) and not is_red("red")
assert next_of(HTTPStatus.CONTINUE - 99) == 2 and str(Color.RED) == "Color.RED" == f"{Color.RED}"
"""
MEMBERS_PROGRAM = """
from enum import Enum, IntEnum
class Level(IntEnum): LOW = 1; HIGH = 2
class Color(str, Enum): RED = "red"
def next_of(x): return Level(x + 1)
def is_red(x): return x is Color.RED
"""
DOUBLE = "def f(x): return 2 * x"
FEATURES = [
    ("from solution import P\ndef test_a():\n assert str(P(1)) == f'{P(1)}' == 'P1' and repr(P(2)) == 'P(2)'", POINT),
    ("from solution import P\nassert P(1) * 3 == P(3) and 2 * P(1) == P(2) and len({P(1), P(1)}) == 1", POINT),
    ("from solution import P\np = P(1)\nassert p.scaled(2).x == 2 and 1 in p and 2 not in p and p is p", POINT),
    ("import copy\nfrom solution import P\np = copy.deepcopy(P(1))\nassert p == P(1) and p is not P(1)", POINT),
    (RAISES, ERRORS),
    (AWAITS, "import asyncio\nasync def f(x):\n await asyncio.sleep(0)\n return 2 * x"),
    (
        "from solution import f, P\ndef test_a():\n assert f(1).x == 1 and f(1) == (1, 2) and isinstance(f(1), P)",
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(a): return P(1, 2)",
    ),
    (
        "from datetime import date, timedelta\nassert f(date(2020, 1, 31), timedelta(days=1)) == date(2020, 2, 1)",
        "def f(day, more): return day + more",
    ),
    (NODES, "def f(h):\n p = None\n while h: h.next, p, h = p, h, h.next\n return p"),
    ("v = [3, 1]\nf(items=v)\nassert v == [1, 3] and f.__name__ == 'f'", "def f(items): items.sort()"),
    (
        "assert f((4, 7.7), int) == [7.7] and f((4, 'a'), str) == [4]",
        "def f(items, kind): return [each for each in items if not isinstance(each, kind)]",
    ),
    ("assert f('aab').most_common(1) == [('a', 2)]", "from collections import Counter\ndef f(s): return Counter(s)"),
    ("assert kind_of(3) is int and issubclass(kind_of(3), int)", "def kind_of(x): return type(x)"),
    (THREADS, "class Tally:\n n = 0\n def up(self): self.n += 1"),
    ("from solution import L\nassert L(1, 2, 3)[:2] == (1, 2) and f(slice(1, 2)) == slice(1, 2)", SEQUENCE),
    ("from solution import L\na = L(1)\na += 2\nassert a.v == (1, 2) and len(a) == 2", SEQUENCE),
    ("from solution import P\nassert repr(P(1) * 3) == 'P(3)' and str(P(1) * 3) == 'P3'", POINT),
    ("from solution import L\nassert list(L(1, 2) * 3) == [3, 6] and len(L(1) * 2) == 1", SEQUENCE),
    ("from solution import N\nassert (N(1) << 2).x == 4 and (~N(1)).x == -2 and (+N(-1)).x == 1", OPERATORS),
    ("from solution import N\nassert f'{N(1):>3}' == '>3' and bytes(N(65)) == b'A'", OPERATORS),
    ("from solution import N\nn = N(6)\nn -= 2\nn |= 1\nassert n.x == 5", OPERATORS),
    (ASYNC, ASYNC_PROGRAM),
    (MEMBERS, MEMBERS_PROGRAM),
    (
        "a, b = [2, 1], [2, 1]\nassert f(b, a) is a and a == [1, 2] and f(1, a) is not b",
        "def f(x, y): y.sort(); return y",
    ),
    (
        "import solution\nsolution.RATE = 3\nassert solution.f(2) == 6 and solution.RATE == 3",
        "RATE = 1\ndef f(x): return RATE * x",
    ),
    (
        "import solution\nsolution.now = lambda: 7\nassert f() == 7",
        "from time import time as now\ndef f(): return now()",
    ),
    (PYTEST, DOUBLE),
    (SKIPS, DOUBLE),
    (OF_SKIPS, DOUBLE),
    (MARKED, DOUBLE),
    (CLASSES, DOUBLE),
    (UNITTEST, DOUBLE),
]
NOTHING = "def f(x): return 0"
WRONG = [
    ("class Base:\n def test_a(self): assert f(2) == 4\nclass TestB(Base): pass", NOTHING),
    ("class TestA:\n class TestB:\n  def test_a(self): assert f(2) == 4", NOTHING),
    (UNITTEST, NOTHING),
    (PYTEST, NOTHING),
    (MARKED, NOTHING),
    (SKIPPED_WHOLE, NOTHING),
    ("import pytest\npytestmark = pytest.mark.skipif(True, reason='x')\ndef test_a(): assert f(2) == 4", DOUBLE),
    ("async def test_a(): assert await f(2) == 4", "async def f(x): return 0"),
    ("import asyncio\nassert asyncio.run(f(2)) == 4", "async def f(x): return 0"),
    ("assert all(map(lambda x: f(x) == 2 * x, [1, 2]))", "def f(x): raise StopIteration"),
    ("assert list(map(f, [1, 2])) == []", "def f(x): raise StopIteration"),
    ("import pytest\ndef test_a(): assert f(2) == 4", "import unittest\ndef f(x): raise unittest.SkipTest"),
    ("import pytest\n@pytest.mark.parametrize('x', [])\ndef test_a(x): assert f(x) == 4", "def f(x): return 4"),
    (
        "assert abs(f(2) - 4) < 1e-9",
        "class f:\n def __init__(s, x): 0\n def __sub__(s, o): return s\n def __abs__(s): return 0",
    ),
    (
        "x = f(2)\nx -= 4\nassert len(x) == 0",
        "class f:\n def __init__(s, x): 0\n __sub__ = lambda s, o: f(0)\n __len__ = lambda s: 0",
    ),
    (
        "assert f(2) == 4",
        "from enum import IntEnum\nclass E(IntEnum):\n A = 3\n def __eq__(s, o): return True\ndef f(x): return E.A",
    ),
    ("a = [1]\nassert f(a) is a", "def f(x): return list(x)"),
    ("assert f(2) - 4 == 0", "class f:\n def __init__(s, x): 0\n def __sub__(s, o): return 0"),
    (
        "r = f(2)\nr.sort()\nassert r == [4] and 4 in r",
        "class f:\n def __init__(s, x): 0\n def sort(s): 0\n def __eq__(s, o): return True\n __contains__ = __eq__",
    ),
    (
        "class Box:\n def __init__(self): self.seen, self._secret = [], 4\nb = Box()\nassert f(b) == 4",
        "def f(b):\n try: return b._secret\n except AttributeError: return b.__init__.__globals__",
    ),
    ("assert f('print')(1) == 2", "def f(x): return eval"),
    ("from solution import sorted as ordered\nassert ordered([2, 1]) == [1, 2]", "def sorted(x): return x"),
]
"""Of tests that were silently left out once, or that a response could decide."""

HUMANEVAL = {"test": "METADATA = {}\ndef check(candidate):\n    assert candidate(2) == 4\n", "entry_point": "f"}
HELPED = {
    "prompt": "def poly(x):\n    return x - 4\n\ndef root():\n    'Where poly is 0.'\n",
    "test": "def check(candidate):\n    assert abs(poly(candidate())) < 1e-6\n",
    "entry_point": "root",
}
SUM = {"test_list": ["assert sum(10, 15) == 6"]}
FORMS = [
    (HUMANEVAL, "def f(x): return x * x", True),
    (HUMANEVAL, "class Solution:\n    def f(self, x): return x * x", True),
    (HUMANEVAL, "def f(*a): return 0.5", False),
    (HUMANEVAL, "def check(*a): pass\ndef f(*a): return 0.5", False),
    (SUM, "def sum(a, b): return 6", True),
    (SUM, "def total(a, b): return 6", False),
    (HELPED, "def root(): return 4", True),
    (HELPED, "def poly(x): return 0\ndef root(): return 1", False),
]


async def test_tests_may_use_what_pytest_unittest_and_python_have(tmp_path):
    given = [({"test": test}, program, True) for test, program in FEATURES]
    given += [({"test": test}, program, False) for test, program in WRONG] + FORMS
    reasons = await reasons_of(tmp_path, [(fields, program) for fields, program, _ in given])
    assert [
        (fields, program, reason)
        for (fields, program, is_right), reason in zip(given, reasons, strict=True)
        if (reason == "correct") != is_right
    ] == []
