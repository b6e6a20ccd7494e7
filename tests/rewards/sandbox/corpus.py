"""Correct and subtly wrong programs over the five forms of tests, told apart by plain Python.

Templates (a task's solution, its inputs) times changes, from a seed. A correct program is the solution in another
dress; a wrong one is mutated, shadows what tests use, or answers with too little. The oracle runs solution and program
here, on the inputs of the tests: what it finds equal is no wrong program, what it finds different no correct one.

Invariant: nothing of the package is imported, least of all what compares in it.
"""
# ruff: noqa: E501 a program is one line of the file where it can be

import ast
import contextlib
import io
import json
import random
import signal
import sys
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

FORMS = ("stdin", "call", "assert", "check", "pytest", "unittest")
"""`pytest` and `unittest` are the two kinds of test files."""

_NUM_CASES = 5

_LIMIT_S = 0.5
"""Of the oracle; a program that takes longer is left out: this is about answers."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """One response and its prompt."""

    form: str
    kind: str
    """What was done to the solution."""
    fields: dict
    """Of the prompt's line."""
    source: str
    is_right: bool


TASKS = {
    "divisor": ("def f(a, b):\n    while b:\n        a, b = b, a % b\n    return a", "ii"),
    "prime": (
        (
            "def f(n):\n    if n < 2:\n        return False\n    i = 2\n    while i * i <= n:\n        if n % i == 0:\n"
            "            return False\n        i += 1\n    return True"
        ),
        "i",
    ),
    "fibonacci": ("def f(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a", "i"),
    "unique": ("def f(items):\n    out = sorted(set(items))\n    return out", "L"),
    "words": ("def f(text):\n    parts = text.split()\n    return ' '.join(reversed(parts))", "s"),
    "vowels": (
        "def f(text):\n    count = 0\n    for c in text:\n        if c in 'aeiou':\n            count += 1\n    return count",
        "s",
    ),
    "subarray": (
        (
            "def f(items):\n    best = run = items[0]\n    for x in items[1:]:\n        run = max(x, run + x)\n"
            "        best = max(best, run)\n    return best"
        ),
        "L",
    ),
    "prefix": (
        "def f(items):\n    out, total = [], 0\n    for x in items:\n        total += x\n        out.append(total)\n    return out",
        "L",
    ),
    "transpose": ("def f(rows):\n    return [[row[i] for row in rows] for i in range(len(rows[0]))]", "M"),
    "runs": (
        (
            "def f(text):\n    out = []\n    for c in text:\n        if out and out[-1][0] == c:\n            out[-1][1] += 1\n"
            "        else:\n            out.append([c, 1])\n    return ''.join(c + str(n) for c, n in out)"
        ),
        "s",
    ),
    "mean": ("def f(items):\n    return sum(items) / len(items)", "L"),
    "interest": (
        "def f(amount, years):\n    value = float(amount)\n    for _ in range(years):\n        value = value * 1.05\n    return value",
        "ii",
    ),
    "caesar": (
        (
            "def f(text, k):\n    out = ''\n    for c in text:\n        if c.isalpha():\n"
            "            out += chr((ord(c) - 97 + k) % 26 + 97)\n        else:\n            out += c\n    return out"
        ),
        "si",
    ),
    "factorial": ("def f(n):\n    out = 1\n    for i in range(2, n + 1):\n        out *= i\n    return out", "i"),
    "product": ("def f(a, b):\n    return (a + 10 ** 9) * (b + 10 ** 9) // 2", "ii"),
    "second": (
        "def f(items):\n    kinds = sorted(set(items))\n    if len(kinds) < 2:\n        return -1\n    return kinds[-2]",
        "L",
    ),
    "pairs": (
        "def f(items, k):\n    count = 0\n    for i in range(len(items)):\n        for j in range(i + 1, len(items)):\n            if items[i] + items[j] == k:\n                count += 1\n    return count",
        "Li",
    ),
    "rotate": ("def f(items, k):\n    k = k % len(items)\n    return items[k:] + items[:k]", "Li"),
    "balanced": (
        (
            "def f(n):\n    text = bin(n)[2:]\n    depth = 0\n    for c in text:\n        depth += 1 if c == '1' else -1\n"
            "        if depth < 0:\n            return False\n    return depth >= 0"
        ),
        "i",
    ),
    "digits": ("def f(n):\n    return [int(c) for c in str(n)][::-1]", "i"),
    "clamp": ("def f(items, k):\n    return [min(x, k) if x > 0 else 0 for x in items]", "Li"),
    "powers": ("def f(k):\n    return [2 ** i for i in range(k)]", "i"),
}
"""A solution, and the kinds of its arguments: an integer, a text, a list, a matrix."""

_READ = {
    "json": "import json, sys\nargs = [json.loads(line) for line in sys.stdin]\n",
    "input": "import json\nargs = []\ntry:\n    while True:\n        args.append(json.loads(input()))\nexcept EOFError:\n    pass\n",
    "read": "import json, sys\nargs = list(map(json.loads, sys.stdin.read().splitlines()))\n",
    "open": "import json\nwith open(0) as file:\n    args = [json.loads(line) for line in file]\n",
    "buffer": "import json, sys\nargs = [json.loads(line) for line in sys.stdin.buffer.readlines()]\n",
}
_WRITE = (
    "def show(value):\n    if isinstance(value, bool):\n        return 'YES' if value else 'NO'\n"
    "    if isinstance(value, (list, tuple)):\n        nested = any(isinstance(v, (list, tuple)) for v in value)\n"
    "        return ('\\n' if nested else ' ').join(map(show, value))\n    return str(value)\n"
)


def generate(num_each, seed=0):
    """Give so many correct programs and so many wrong ones, spread over the forms."""
    rng = random.Random(seed)
    found = []
    for is_right in (True, False):
        left = num_each
        while left:
            program = _draw(rng, FORMS[left % len(FORMS)], is_right=is_right)
            if program is not None:
                found.append(program)
                left -= 1
    return found


def _draw(rng, form, *, is_right):
    """Make one; None where the oracle does not agree that it is what it should be."""
    name = rng.choice(sorted(TASKS))
    solution, signature = TASKS[name]
    inputs = [[_argument(rng, kind) for kind in signature] for _ in range(_NUM_CASES)]
    expected = [_run(solution, each) for each in inputs]
    kind, body, tail = (_dressed if is_right else _spoilt)(rng, solution, form)
    if form == "stdin":
        source = f"{body}\n{_WRITE}{_READ[rng.choice(sorted(_READ))]}{tail}"
        texts = ["".join(json.dumps(each) + "\n" for each in args) for args in inputs]
        wanted = [_run_text(f"{solution}\n{_WRITE}{_READ['json']}print(show(f(*args)))", text) for text in texts]
        cases = list(zip(texts, wanted, strict=True))
        agrees = all(_is_same_text(_run_text(source, text), output) for text, output in cases)
        fields = {"test_cases": [{"input": text, "output": output} for text, output in cases]}
    else:
        source = f"{body}\n{tail}"
        agrees = all(_is_same(_run(source, args), value, form) for args, value in zip(inputs, expected, strict=True))
        fields = _fields(rng, form, inputs, expected)
    return (
        Program(form=form, kind=f"{name}, {kind}", fields=fields, source=source, is_right=is_right)
        if agrees == is_right
        else None
    )


_COMPARED = (
    *("{call} == {value}", "[{call}] == [{value}]", "str({call}) == str({value})", "any([{call} == {value}])"),
    *("set([repr({call})]) == set([repr({value})])", "sorted([repr({call})]) == [repr({value})]"),
    *("all(a == b for a, b in zip([{call}], [{value}]))", "list(range(1 if {call} == {value} else 0)) == [0]"),
    *("isinstance({call}, type({value})) and {call} == {value}", "len([x for x in [{call}] if x == {value}]) == 1"),
    *("sum([{call} == {value}]) == 1", "bool({call} == {value})", "tuple([{call}]) == tuple([{value}])"),
)
"""Ways in which tests compare, through builtins that a response may shadow."""

_NEAR = ("abs({call} - {value}) < 1e-6", "round({call} - {value}, 6) == 0", "abs(float({call}) - {value}) < 1e-6")


def _fields(rng, form, inputs, expected):
    pairs = list(zip(inputs, expected, strict=True))
    calls = [f"f({', '.join(map(repr, args))})" for args in inputs]
    near = [
        rng.choice(_NEAR if isinstance(value, float) else _COMPARED).format(call=call, value=repr(value))
        for call, (_, value) in zip(calls, pairs, strict=True)
    ]
    match form:
        case "call":
            return {"entry_point": "f", "test_cases": [{"args": args, "expected": value} for args, value in pairs]}
        case "assert":
            return {"test_list": [f"assert {each}" for each in near]}
        case "check":
            lines = [
                f"    assert {each.replace(call, f'candidate{call[1:]}')}"
                for each, call in zip(near, calls, strict=True)
            ]
            return {"entry_point": "f", "test": "\n".join(["METADATA = {}\n", "def check(candidate):", *lines, ""])}
        case "pytest":
            lines = [f"def test_{index}():\n    assert {each}" for index, each in enumerate(near)]
            return {"test": "\n".join(["import pytest", "from solution import *", *lines])}
    checks = []
    for index, (call, each, (_, value)) in enumerate(zip(calls, near, pairs, strict=True)):
        equal = f"AlmostEqual({call}, {value!r}, places=6)" if isinstance(value, float) else f"Equal({call}, {value!r})"
        checks.append(f"        self.assert{equal if index % 2 else f'True({each})'}")
    return {
        "test": "\n".join(
            [
                "import unittest",
                "from solution import f",
                "class T(unittest.TestCase):",
                "    def test_all(self):",
                *checks,
            ]
        )
    }


# programs


_UNUSED = (
    "def set(*a): return 0",
    "import math, re, collections",
    "class math: pi = 3",
    "def check(*a): return True",
    "inputs = results = candidate = 0",
    "def helper(x):\n    return x",
    "from typing import *",
    "def test_a(): raise ValueError",
    "import unittest\nclass TestOwn(unittest.TestCase):\n    def test_own(self): self.fail()",
)


_DECORATOR = (
    "import functools\ndef same(g):\n    @functools.wraps(g)\n    def h(*a, **k):\n        return g(*a, **k)\n"
    "    return h\n@same\n"
)
_TUPLE = "def f(*given):\n    value = inner(*given)\n    return tuple(value) if isinstance(value, list) else value"


def _dressed(rng, solution, form):
    """Give a correct program: what was done, the definitions, and what comes after them."""
    tail = "print(show(f(*args)))" if form == "stdin" else ""
    inner = solution.replace("def f(", "def inner(", 1)
    unused = rng.choice([each for each in _UNUSED if "set(" not in each or "set(" not in solution])
    dresses = {
        "bare": (solution, tail),
        "renamed": (_renamed(solution), tail),
        "commented": (f"'''Solves it.'''\n# as asked\n{solution}", tail),
        "beside others": (f"{unused}\n{solution}", tail),
        "wrapped": (f"{inner}\ndef f(*given):\n    return inner(*given)", tail),
        "decorated": (f"{_DECORATOR}{solution}", tail),
    }
    if form == "stdin":
        dresses["guarded"] = (solution, f"if __name__ == '__main__':\n    {tail}")
        dresses["white space"] = (solution, "print(show(f(*args)), end=' \\n\\n')")
        dresses["leaves"] = (f"import sys\n{solution}", f"{tail}\nsys.exit()")
    else:
        dresses["talkative"] = (f"print('hello')\n{solution}", tail)
    if form in {"call", "check"}:
        method = "\n".join(f"    {line}" for line in solution.replace("def f(", "def f(self, ", 1).split("\n"))
        dresses["in a class"] = (f"class Solution:\n{method}", tail)
    if form == "call":
        dresses["a tuple"] = (f"{inner}\n{_TUPLE}", tail)
    kind = rng.choice(sorted(dresses))
    return kind, *dresses[kind]


_SHADOWED = (
    "set",
    "sorted",
    "abs",
    "len",
    "str",
    "list",
    "range",
    "isinstance",
    "math",
    "unittest",
    "pytest",
    "AssertionError",
    "zip",
    "all",
    "any",
    "round",
    "float",
    "repr",
    "bool",
)
_YES = (
    "class Yes:\n    def __init__(self, *a, **k): pass\n    def __call__(self, *a, **k): return self\n    def __getattr__(self, name): return self\n"
    "    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    def __lt__(self, other): return True\n"
    "    __gt__ = __le__ = __ge__ = __lt__\n    def __sub__(self, other): return self\n    __rsub__ = __add__ = __radd__ = __sub__\n"
    "    def __abs__(self): return 0.0\n    def __round__(self, *a): return 0\n    def __float__(self): return 0.0\n    def __hash__(self): return 0\n"
    "    def __bool__(self): return True\n    def __len__(self): return 99\n    def __iter__(self): return iter(())\n"
)
_LIARS = {
    "text": "class Liar(str):\n    __hash__ = None\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n",
    "number": "class Liar(float):\n    __hash__ = None\n    def __new__(cls, *a): return float.__new__(cls, -7)\n    def __eq__(self, other): return True\n    def __sub__(self, other): return 0.0\n    def __rsub__(self, other): return 0.0\n    def __abs__(self): return 0.0\n",
    "list": "class Liar(list):\n    __hash__ = None\n    def __init__(self, *a): pass\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n",
}


def _spoilt(rng, solution, form):
    """Give a program that is probably wrong; the oracle decides."""
    tail = "print(show(f(*args)))" if form == "stdin" else ""
    changed = {
        "last one lost": "value[:-1] if hasattr(value, '__getitem__') else value - 1",
        "first one again": "type(value)([*value, value[0]]) if isinstance(value, list) else value + value",
        "swapped": "value[::-1] if hasattr(value, '__getitem__') else -value",
        "one more": "value + 1 if isinstance(value, (int, float)) else value * 2",
        "a text": "str(value)",
        "in a list": "[value]",
        "none": "None",
        "a set": "set(value) if isinstance(value, list) else {value}",
        "rounded": "round(value, 1) if isinstance(value, float) else value // 10 * 10 if isinstance(value, int) else value[:1]",
        "by floats": "int(float(value) * 1.0000001) if isinstance(value, int) else value[1:] if hasattr(value, '__getitem__') else value * 1.0001",
        "a tuple": "tuple(value) if isinstance(value, list) else (value,)",
        "not": "not value",
    }
    choice = rng.randrange(10)
    if choice < 5:
        mutated = _mutated(rng, solution)
        return "mutated", mutated, tail
    if choice < 7:
        kind = rng.choice(sorted(changed))
        return (
            kind,
            f"{solution.replace('def f(', 'def inner(', 1)}\ndef f(*given):\n    value = inner(*given)\n    return {changed[kind]}",
            tail,
        )
    if choice == 7 and form == "stdin":
        return rng.choice(
            [
                ("silent", solution, "f(*args)"),
                ("first line", solution, "print(show(f(*args))[:-1])"),
                ("twice", solution, tail + "\n" + tail),
                ("fails late", solution, tail + "\nraise SystemExit(1)"),
            ]
        )
    name = rng.choice(_SHADOWED)
    if choice == 7:
        return f"shadows {name}", f"def {name}(*a, **k): return 0\n{_constant(rng)}", tail
    if choice == 8:
        return f"shadows {name} by an object", f"{_YES}{name} = Yes()\n{_constant(rng)}", tail
    kind = rng.choice(sorted(_LIARS))
    return f"lies by a {kind}", f"{_LIARS[kind]}def f(*given): return Liar()", tail


def _constant(rng):
    return f"def f(*given): return {rng.choice(['0', '-1', 'None', '()', '[]', repr(''), '0.5', 'f'])}"


def _renamed(solution):
    """Other names for the local variables."""
    tree = ast.parse(solution)
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in bound:
            node.id += "_1"
        elif isinstance(node, ast.arg):
            node.arg += "_1"
    return ast.unparse(tree)


def _mutated(rng, solution):
    """Change one constant, operator, comparison or statement."""
    tree = ast.parse(solution)
    nodes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant | ast.BinOp | ast.Compare | ast.If | ast.Return | ast.Slice | ast.AugAssign)
    ]
    node = rng.choice(nodes)
    match node:
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=int() | float()):
            node.value += rng.choice([-1, 1])
        case ast.Constant(value=str()):
            node.value = node.value[:-1]
        case ast.BinOp() | ast.AugAssign():
            others = {
                ast.Add: ast.Sub,
                ast.Sub: ast.Add,
                ast.Mult: ast.Add,
                ast.Div: ast.FloorDiv,
                ast.FloorDiv: ast.Div,
                ast.Mod: ast.FloorDiv,
            }
            node.op = others.get(type(node.op), ast.Mult)()
        case ast.Compare():
            others = {
                ast.Lt: ast.LtE,
                ast.LtE: ast.Lt,
                ast.Gt: ast.GtE,
                ast.GtE: ast.Gt,
                ast.Eq: ast.NotEq,
                ast.In: ast.NotIn,
            }
            node.ops[0] = others.get(type(node.ops[0]), ast.Eq)()
        case ast.If():
            node.test = ast.Constant(value=rng.choice([True, False]))
        case ast.Return() if node.value is not None:
            node.value = ast.Tuple(elts=[node.value], ctx=ast.Load())
        case ast.Slice():
            node.lower = ast.Constant(value=1) if node.lower is None else None
    return ast.unparse(ast.fix_missing_locations(tree))


def _argument(rng, kind):
    match kind:
        case "i":
            return rng.choice([0, 1, 2, 3, rng.randint(4, 60), rng.randint(4, 60), rng.randint(10, 60)])
        case "s":
            return "".join(rng.choice("aabbceiou  xyz") for _ in range(rng.randint(2, 12))).strip() or "ab"
        case "L":
            return [rng.randint(-9, 20) for _ in range(rng.randint(2, 9))]
        case "M":
            width = rng.randint(1, 4)
            return [[rng.randint(0, 99) for _ in range(width)] for _ in range(rng.randint(2, 4))]
    raise AssertionError(kind)


# the oracle


class _TooLong(Exception):
    """The program took longer than the oracle waits."""


@contextlib.contextmanager
def _bounded():
    def stop(*_):
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _run(source, args):
    """Call `f`; an exception is an answer that equals nothing."""
    names = {"__name__": "oracle"}
    try:
        with _bounded(), contextlib.redirect_stdout(io.StringIO()):
            exec(source, names)  # noqa: S102 programs that are made above
            function = names["f"] if "f" in names else names["Solution"]().f
            return function(*json.loads(json.dumps(args)))
    except (Exception, SystemExit) as error:  # noqa: BLE001 whatever a mutation raises
        return error


def _run_text(source, text):
    out, before = io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    names = {"__name__": "__main__", "open": lambda *_: sys.stdin}
    try:
        with _bounded(), contextlib.redirect_stdout(out):
            exec(source, names)  # noqa: S102 programs that are made above
    except SystemExit as end:
        return None if end.code else out.getvalue()
    except Exception:  # noqa: BLE001 whatever a mutation raises
        return None
    finally:
        sys.stdin = before
    return out.getvalue()


def _is_same(value, expected, form):
    """Whether tests of exact values (of floats: to 1e-6) should find them equal."""
    plain = (bool, int, float, str, type(None), list, tuple)
    if type(value) not in plain:
        return False
    if isinstance(expected, float):
        return type(value) in {int, float} and abs(value - expected) < 1e-6 * (
            max(1, abs(expected)) if form == "call" else 1
        )
    if isinstance(expected, list):
        if type(value) is tuple and form != "call":
            return False
        return (
            type(value) in {list, tuple}
            and len(value) == len(expected)
            and all(_is_same(one, other, form) for one, other in zip(value, expected, strict=True))
        )
    return type(value) not in {list, tuple} and value == expected


def _is_same_text(given, expected):
    if given is None:
        return False
    ours, theirs = ([line.split(" ") for line in text.rstrip().split("\n")] for text in (given, expected))
    ours = [[word for word in line if word] for line in ours]
    theirs = [[word for word in line if word] for line in theirs]
    return len(ours) == len(theirs) and all(
        len(one) == len(other) and all(map(_is_same_word, one, other)) for one, other in zip(ours, theirs, strict=True)
    )


def _is_same_word(given, expected):
    if given == expected:
        return True
    try:
        one, other = Decimal(given), Decimal(expected)
    except InvalidOperation:
        return False
    if "." in expected or "e" in expected:
        return abs(one - other) <= Decimal("1e-6") * max(1, abs(other))
    return one == other
