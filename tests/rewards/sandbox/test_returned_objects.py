"""What tests may do with objects that a response returns, and that none passes for plain data."""
# ruff: noqa: E501 a program is one line of the file where it can be

from tests.rewards.sandbox.programs import verdicts_that_differ

RETURNED = [
    (
        "assert f() == {1} and f() == {1: 2}.keys() and list(g()) == [2]",
        "def f(): return {1: 2}.keys()\ndef g(): return {1: 2}.values()",
    ),
    (
        "d = f()\nd.append(3)\nassert list(d) == [2, 3] and f().maxlen == 2",
        "from collections import deque\ndef f(): return deque([1, 2], 2)",
    ),
    (
        (
            "from solution import S\ns = S()\nassert type(s).__name__ == s.__class__.__name__ == 'S'\nassert vars(s) == s.__dict__ == {'items': [1], '_n': 2}\n"
            "del s.items\nassert not hasattr(s, 'items') and '_n' in dir(s) and 'go' in dir(s) and s._n == 2"
        ),
        "class S:\n def __init__(s): s.items, s._n = [1], 2\n def go(s): 0",
    ),
    (
        "from solution import A, B\nassert B.__bases__ == (A,) and A in B.__mro__ and type(B()) is type(B()) and type(A()) is not type(B())",
        "class A: pass\nclass B(A): pass",
    ),
    (
        "assert f.__annotations__ == {'x': int, 'return': str} and f.__defaults__ == (1,)",
        "def f(x: int = 1) -> str: return 'a'",
    ),
    (
        "s = f(8)\nassert s.n == 8 and s >> 1 == 4",
        "class f:\n def __init__(s, n): s.n = n\n def __rshift__(s, o): return s.n >> o",
    ),
    ("import pytest\n@pytest.fixture\ndef g(): return f()\ndef test_a(g): assert list(g) == [1]", "def f(): yield 1"),
    (
        "import inspect, typing\nfrom collections.abc import Generator\ng = f()\nassert isinstance(g, Generator) and isinstance(g, typing.Generator) and inspect.isgenerator(g) and next(g) == 1",
        "def f(): yield 1",
    ),
    (
        "import enum\nfrom solution import A, B\nassert issubclass(A, enum.Enum) and isinstance(A.R, enum.Enum) and isinstance(A.R, A) and A.R.__class__.__name__ == 'A'\nassert issubclass(B, enum.IntEnum) and isinstance(B.R, B) and B.R == 1",
        "import enum\nclass A(enum.Enum): R = 1\nclass B(enum.IntEnum): R = 1",
    ),
    (
        "import abc\nfrom collections.abc import Mapping\nfrom solution import A, B\nassert isinstance(B(), abc.ABC) and isinstance(B(), A) and isinstance(f(), Mapping)\nassert isinstance(A.n, property)",
        "import abc, collections\nclass A(abc.ABC): n = property(id)\nclass B(A): pass\nclass f(collections.UserDict): pass",
    ),
    (
        "from collections.abc import Iterable\nassert isinstance(f(), Iterable)",
        "class L:\n def __iter__(s): return iter(())\ndef f(): return L()",
    ),
]
LRU = """
from collections import OrderedDict
class LRUCache(OrderedDict):
    def __init__(s, n):
        super().__init__()
        s.n = n
    def get(s, k):
        if k not in s: return -1
        s.move_to_end(k)
        return s[k]
    def put(s, k, v):
        s[k] = v
        s.move_to_end(k)
        if len(s) > s.n: s.popitem(last=False)
"""
CACHING = """
from collections import OrderedDict
from solution import LRUCache
c = LRUCache(2)
c.put(1, 1)
c.put(2, 2)
assert c.get(1) == 1 and isinstance(c, OrderedDict) and isinstance(c, LRUCache) and len(c) == 2
c.put(3, 3)
assert c.get(2) == -1 and c == {1: 1, 3: 3} and 3 in c and dict(c) == {**c} == {1: 1, 3: 3}
"""
STACK = "class Stack(list):\n def push(s, x): s.append(x)\n def top(s): return s[-1]"
STACKING = """
import unittest
from solution import Stack
s = Stack([1])
s.push(2)
s += [3]
assert s == [1, 2, 3] == s and s.top() == 3 and s[1:] == [2, 3] and s > [1] and 2 in s and [0] + s == [0, *s]
assert type(s).__name__ == s.__class__.__name__ == "Stack" and Stack([1]) == Stack([1]) and f"{s}" == "[1, 2, 3]"
class TestIt(unittest.TestCase):
    def test_it(self):
        self.assertListEqual(s, [1, 2, 3])
        self.assertCountEqual(s, [3, 2, 1])
"""
TAGS = "class Tags(set):\n def most(s): return max(s)"
TAGGING = """
from solution import Tags
t = Tags([1])
t.add(2)
assert t == {1, 2} and t.most() == 2 and t | {3} == {1, 2, 3} and t - {1} == {2} and {0} | t == {0, 1, 2} and set(t) == {1, 2}
u = t
u |= {3}
u -= {1}
u &= {2, 3, 4}
assert u == {2, 3} == t and len(u) == 2 and u.most() == 3 and u.issubset({2, 3}) and u.union([5]) == {2, 3, 5}
"""
SUBCLASSES = [
    (CACHING, LRU),
    (STACKING, STACK),
    (TAGGING, TAGS),
    (
        "from solution import D\nd = D()\nd['A'] = 1\nd.b = 2\nassert d['a'] == d.a == 1 and d == {'a': 1, 'b': 2}",
        "class D(dict):\n def __setitem__(s, k, v): super().__setitem__(k.lower(), v)\n def __getitem__(s, k): return super().__getitem__(k.lower())\n __getattr__, __setattr__ = __getitem__, __setitem__",
    ),
    ("assert 'A' not in f() and f()['PATH']", "from os import environ\ndef f(): return environ"),
    ("assert f().count() == 3", "class f:\n def count(s): return 3"),
    ("n = f()\nn['own'] = n\nassert n['own']['own'] is n", "class f(dict): pass"),
    (
        "from solution import P\nassert (P.R & 4) == 0 and P.R | P.W == 3 and (P.R | 2) == 3 and P.W & 3 and not P.W & P.R and int(P.W | 1) == 3",
        "import enum\nclass P(enum.IntFlag): R = 1; W = 2",
    ),
]
"""Classes that inherit from a container and have methods of their own, and what is none."""
NEAR = """
class F(float):
    def __sub__(s, o): return F(float(s) - o)
    __rsub__ = __sub__
    def __abs__(s): return 0.0
    def __round__(s, n=0): return 0.0
    def __bool__(s): return False
def f(x): return F(0)
"""
LYING = [
    (
        "assert f(2) == [4] or 4 in f(2)",
        "class f(list):\n def __init__(s, x): s.append(9)\n def __eq__(s, o): return True\n __contains__ = __eq__",
    ),
    (
        "r = f(2)\nassert not hasattr(r, 'tolist') and r == [4]",
        "class f(list):\n def __init__(s, x): 0\n def __eq__(s, o): return True",
    ),
    (
        "assert f(2) - {4} == set()",
        "class f(set):\n def __init__(s, x): super().__init__([9])\n def __sub__(s, o): return f(0).clear() or set.__and__(f(0), set())",
    ),
    (
        "x = f(2)\nx -= {4}\nassert x == set() or 4 in x or len(x) == 0",
        "class f(set):\n def __init__(s, x): s.add(9)\n def __isub__(s, o): s.clear(); return s\n def __contains__(s, o): return True",
    ),
    (
        "import math\nd = f(2) - 4\nassert abs(d) < 1 or d == 0 or math.isclose(d, 0)",
        "class f(float):\n def __new__(c, x): return float.__new__(c, 99)\n def __sub__(s, o): return float.__new__(f, 0)\n __abs__ = __round__ = lambda s: 0\n __lt__ = __eq__ = lambda s, o: True",
    ),
    ("assert abs(f(3) - 9) < 1e-6", NEAR),
    ("assert max(abs(a - b) for a, b in zip([f(3)], [9.0])) < 1e-6", NEAR),
    ("assert not (f(3) - 9) or round(f(3) - 9, 5) == 0", NEAR),
    (
        "import unittest\nclass T(unittest.TestCase):\n def test_a(self): self.assertAlmostEqual(f(3), 9.0)",
        NEAR,
    ),
    (
        "r = f()\nassert isinstance(r, str) and (r.startswith('Hello') or r.count('a') == 1)",
        "class S(str):\n def startswith(s, p): return True\n def count(s, p): return 1\ndef f(): return S('zzz')",
    ),
    (
        "r = f()\nassert isinstance(r, list) and r.count(1) == r.count(2) == 1 and len(r) == 2",
        "class f(list):\n def count(s, x): return 1\n def __len__(s): return 2",
    ),
    (
        "r = f()\nassert not r.symmetric_difference({1}) or (r.issuperset({1}) and r.issubset({1}))",
        "class f(set):\n def issubset(s, x): return True\n issuperset = issubset\n def symmetric_difference(s, x): return set()",
    ),
    (
        "x = y = f()\nx += [4]\nassert x == [1, 4] or y == [1, 4]",
        "class f(list):\n def __iadd__(s, o): s[:] = [1, *o]; return s",
    ),
    (
        "assert f(2) + 1 == 5",
        "class f(int):\n def __new__(c, x): return int.__new__(c, 9)\n def __add__(s, o): return int.__new__(f, 4 + o)",
    ),
    (
        "import pytest\nassert f(2) == pytest.approx(4) or {f(2)} == {4}",
        "class f(int):\n def __new__(c, x): return int.__new__(c, 9)\n def __eq__(s, o): return True\n def __hash__(s): return 4",
    ),
    ("assert type(f(2)).__name__ == 'int'", "class int: pass\ndef f(x): return int()"),
    ("assert isinstance(f(2), int)", "class C: __class__ = int\ndef f(x): return C()"),
    (
        "from pathlib import PurePosixPath as Path\nassert f('a') == Path('a/b')",
        "class PurePosixPath:\n def __eq__(s, o): return True\nPurePosixPath.__module__ = 'pathlib'\ndef f(x): return PurePosixPath()",
    ),
    (
        "from datetime import datetime, timezone\nassert f() == datetime(2020, 1, 1, tzinfo=timezone.utc)",
        (
            "import datetime as dt\nclass timezone(dt.tzinfo):\n def utcoffset(s, d): return dt.timedelta(0)\nclass datetime(dt.datetime):\n def __eq__(s, o): return True\n"
            "for each in (timezone, datetime): each.__module__ = 'datetime'\ndef f(): return datetime(2021, 1, 1, tzinfo=timezone())"
        ),
    ),
    (
        "assert f() == {1}",
        "class dict_keys:\n def __eq__(s, o): return True\n def __iter__(s): return iter(())\ndef f(): return dict_keys()",
    ),
    ("i = iter([4])\nassert f(i) == 4 and list(i) == [4]", "def f(i): return next(i)"),
]


async def test_what_the_response_returns_can_be_looked_at(tmp_path):
    assert await verdicts_that_differ(tmp_path, RETURNED, is_right=True) == []


async def test_a_class_that_inherits_from_plain_data_has_its_own_methods(tmp_path):
    assert await verdicts_that_differ(tmp_path, SUBCLASSES, is_right=True) == []


async def test_nothing_that_a_response_says_of_its_objects_makes_them_data(tmp_path):
    assert await verdicts_that_differ(tmp_path, LYING, is_right=False) == []
