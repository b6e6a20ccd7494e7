"""No answer hangs, crashes or fills the supervisor, whatever a program says in a runner's place."""

import json
import random
import select
from pathlib import Path

import pytest

from rollpacker.rewards.sandbox import comparison_process
from rollpacker.rewards.sandbox.comparison import is_one_of
from rollpacker.rewards.sandbox.values import MAX_DEPTH, decode, encode
from tests.rewards.sandbox.programs import Pool, reasons_of, request_of, write_prompts

LONG_S = 60.0
HASH_MODULUS = (1 << 61) - 1
"""Integers that differ by multiples of it have one hash."""

CALL = {"id": "call", "entry_point": "f", "test_cases": [{"args": [1], "expected": [1.5]}]}
STDIN = {"id": "stdin", "test_cases": [{"input": "1\n", "output": "expected"}]}
ASSERTED = {"id": "asserted", "test_cases": ["assert f(1) == 'expected'"]}

SAY = """
import os
def say(letter, body):
    for file in range(3, 12):
        try: os.write(file, letter + len(body).to_bytes(4, 'big') + body)
        except OSError: pass
"""
FRACTION = """
class Fraction:
    def __str__(s): return '1e1000000000'
Fraction.__module__ = 'fractions'
def f(x): return Fraction()
"""
DECIMAL = "import decimal\ndef f(x): return [decimal.Decimal('1e999999999')]"

LETTERS = (*(bytes([letter]) for letter in b"BEJKMRVX0"), b"\x00", b"\xff", b"\n")
BODIES = (
    *(b"", b"x", b"0", b"00", b"-", b"-9", b" 1", b"1_0", b"9" * 5000, b"\xff\xfe", b"\x00", "²".encode()),
    *(b"null", b"[", b'{"t":', b"[" * 5000 + b"]" * 5000, b'{"i":"z"}', b'{"n":["Fraction","1/0"]}', b'{"r":[0,1]}'),
    *(b'{"n":["Decimal","x"]}', b'{"d":[[[],1]]}', b'{"s":[[1]]}', b'{"b":"0"}', b'{"c":["1"]}', b'{"l":3}'),
    *(b'["value",1,null]', b'["raise",[],[]]', b'["call",0,[],{}]', b'["ready"]', b'["end"]', b"{}", b'{"o":9}'),
    *(b"MemoryError", b'{"n":3}'),
)


async def test_no_frame_of_any_letter_and_body_crashes_the_supervisor_or_passes(tmp_path):
    rng = random.Random(5)
    references = write_prompts(tmp_path, [CALL, STDIN, ASSERTED])
    programs = []
    for reference in references.values():
        for letter in LETTERS:
            said = [(letter, body) for body in rng.sample(BODIES, 8)]
            loop = f"for letter, body in {said!r}: say(letter, body)\n"
            programs.append((reference, f"{SAY}{loop}def f(x): pass"))
            programs.append((reference, f"{SAY}def f(x):\n    {loop}f(1)"))
    async with Pool(num_workers=2) as pool:
        supervisors = pool.worker.pids
        verdicts = await pool.score(*(request_of(index, *each, limits_s=(0.5,)) for index, each in enumerate(programs)))
        assert {verdict.reward for verdict in verdicts} == {0.0}
        assert "checker_crashed" not in {verdict.reason for verdict in verdicts}
        assert pool.worker.pids == supervisors, "a supervisor was lost"


async def test_what_takes_long_to_decode_or_much_memory_to_compare_holds_up_nobody(tmp_path):
    references = write_prompts(tmp_path, [CALL, STDIN])
    async with Pool(num_workers=1) as pool:
        (supervisor,) = pool.worker.pids
        verdicts = await pool.score(
            request_of(0, references["call"], FRACTION),
            request_of(1, references["call"], DECIMAL),
            request_of(2, references["stdin"], "print('ab\\n' * 5_000_000)"),
            request_of(3, references["stdin"], "print('expected')"),
        )
        assert [verdict.reason for verdict in verdicts] == ["wrong_answer"] * 3 + ["correct"]
        assert pool.worker.pids == [supervisor]
        assert most_memory_mb(supervisor) < 150


def most_memory_mb(pid):
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) >> 10


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        ({"s": [number * HASH_MODULUS for number in range(100_000)]}, [[1] * 100_000]),
        ({"d": [[number * HASH_MODULUS, 0] for number in range(100_000)]}, [[1] * 100_000]),
    ],
    ids=["a set whose numbers collide", "a dict whose keys collide"],
)
def test_a_comparison_ends_at_its_limit_of_time(given, accepted, monkeypatch):
    monkeypatch.setattr(comparison_process, "_CPU_S", 1)
    assert result_of({"kind": "call", "accepted": accepted}, json.dumps(given).encode()) is None


def test_a_comparison_ends_at_its_limit_of_memory(monkeypatch):
    monkeypatch.setattr(comparison_process, "_MEMORY_BYTES", 1 << 20)
    num_lines = 12_000_000  # a text above 32 MiB is never put into memory that this process has and does not use
    case = {"kind": "stdin", "output": "a\n" * num_lines}
    assert result_of(case, b"a \n" * num_lines) is None


@pytest.mark.parametrize(
    ("case", "given", "result"),
    [
        ({"kind": "stdin", "output": "1.5\n"}, b"1.50", True),
        ({"kind": "stdin", "output": "1.5\n"}, b"1.6", False),
        ({"kind": "call", "accepted": [1, [1]]}, b'{"t":[1]}', True),
        ({"kind": "call", "accepted": [1, [1]]}, b"[2]", False),
        ({"kind": "call", "accepted": [1]}, b"[", False),
    ],
)
def test_a_comparison_in_its_process_says_what_is_right(case, given, result):
    assert comparison_process.result_at_once(case, given) is None
    assert result_of(case, given) is result


def test_an_answer_written_as_the_expected_one_or_far_longer_needs_no_process():
    text, value = {"kind": "stdin", "output": "1.5\n"}, {"kind": "call", "accepted": [{"a": [1, None]}]}
    assert comparison_process.result_at_once(text, b"1.5 \n\n") is True
    assert comparison_process.result_at_once(value, b'{"d":[["a",[1,null]]]}') is True
    assert comparison_process.result_at_once(text, b"1" * 100_000) is False
    assert comparison_process.result_at_once(value, b"1" * 100_000) is False


def test_what_is_nested_too_deeply_to_be_compared_is_equal_to_nothing():
    value = [1]
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    case = {"kind": "call", "accepted": [value]}
    given = encode(value).encode()
    assert comparison_process.result_at_once(case, given) is None
    assert not is_one_of(decode(json.loads(given)), case["accepted"])


def result_of(case, given):
    comparison = comparison_process.Comparison(case, given)
    assert select.select([comparison], [], [], LONG_S)[0]
    return comparison.close()


async def test_a_program_that_always_says_something_is_held_to_its_limits_none_the_less(tmp_path):
    chatter = f"{SAY}\nimport time\ndef f(x):\n  while True:\n    say(b'<letter>', b'')\n    time.sleep(0.005)"
    cases = [(CALL, chatter.replace("<letter>", each)) for each in "VB"]
    assert await reasons_of(tmp_path, cases, limits_s=(0.3,)) == ["timeout"] * 2


async def test_the_end_of_a_runner_is_noticed_behind_a_part_of_a_frame(tmp_path):
    killer = (
        "import os, signal, time\ndef f(x):\n  for file in range(3, 12):\n"
        "    try: os.write(file, b'V\\0\\0\\xff\\xffabc')\n    except OSError: pass\n"
        "  os.kill(os.getppid(), signal.SIGKILL)\n  time.sleep(1000)"
    )
    assert await reasons_of(tmp_path, [(CALL, killer)], limits_s=(LONG_S,)) == ["error"]
