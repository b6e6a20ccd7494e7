"""When an output is the expected one."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.rewards.sandbox.comparison import is_one_of, is_same_text

PYRAMID = "  1\n 1 2\n1 2 3\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("9", "9\n"),
        ("9 \r\n10\r\n\n", "9\n10"),
        ("1  2\t3", "1 2 3"),
        ("1 2", " 1 2"),
        ("3", "3.0"),
        ("3.0", "3"),
        ("-0.0", "0.0"),
        ("0.5", ".5"),
        ("5", "5."),
        ("1e9", "1000000000"),
        ("1000000000", "1e9"),
        ("1000000000.0", "1000000000"),
        ("0.3333333", "0.33333333333"),
        ("1e-05", "0.00001"),
        ("123456789.0000001", "123456789.0"),
        ("Case #1: 2.50", "Case #1: 2.5"),
        ("007", "007"),
        ("+5", "+5"),
        ("1_000", "1_000"),
        (PYRAMID, PYRAMID),
        ("  1\n 1  2\n1 2   3", PYRAMID),
        ("٣", "٣"),
        ("nan", "nan"),
    ],
)
def test_an_output_may_be_written_otherwise(given, expected):
    assert is_same_text(given, expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1000000500.0", "1000000007"),
        ("2147483648.0", "2147483647"),
        ("1.23456789e17", "123456789012345678"),
        ("1.2345678901234568e+17", "123456789012345679"),
        ("7.000004", "7"),
        ("6.9999999999", "7"),
        ("8", "7.0"),
        ("3.14", "3.15"),
        ("3.14159", "3.14"),
        ("11", "0011"),
        ("0011", "11"),
        ("5", "05"),
        ("05", "5"),
        ("05.0", "5.0"),
        ("5", "+5"),
        ("+5", "5"),
        ("+5.0", "5.0"),
        ("-0", "0"),
        ("1_000", "1000"),
        ("1000", "1_000"),
        ("12", "1_2"),
        ("1_0.5", "10.5"),
        ("٣", "3"),
        ("\uff13", "3"),
        ("3", "\uff13"),
        ("³", "3"),
        ("1\x0c2", "1\n2"),
        ("1\u20282", "1\n2"),
        ("1\r2", "1\n2"),
        ("1\x852", "1\n2"),
        ("1\xa02", "1 2"),
        ("1\n2", "1 2"),
        ("1\n\n2", "1\n2"),
        ("\n1", "1"),
        ("1\n1 2\n1 2 3", PYRAMID),
        ("  1\n  1 2\n  1 2 3", PYRAMID),
        ("nan", "0.5"),
        ("inf", "1e999"),
        ("1e400", "1e500"),
        ("Infinity", "inf"),
        ("NaN", "nan"),
        ("0x10", "16"),
        ("1e3x", "1000"),
        ("", "0"),
        ("0", ""),
        ("a  b", "a b"),
        ("1" + "0" * 60, "1" + "0" * 59 + "1"),
    ],
)
def test_another_output_is_wrong(given, expected):
    assert not is_same_text(given, expected)


@given(
    number=st.integers(-(10**40), 10**40),
    other=st.integers(-(10**40), 10**40),
    form=st.sampled_from(["{}", "{}.0", "{:e}"]),
)
def test_whole_numbers_are_equal_only_to_themselves(number, other, form):
    for each in (other, number + 1, number - 1):
        if each != number:
            written = form.format(each)
            assert not is_same_text(written, str(number)) or Decimal(written) == number
    assert is_same_text(f"{number}", f"{number}")
    assert is_same_text(f"{number}.0", f"{number}")


@given(number=st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_with_a_fraction_is_equal_however_python_writes_it(number):
    assert is_same_text(repr(number), f"{number:.17e}")


@pytest.mark.parametrize(
    ("given", "accepted", "is_right"),
    [
        ([1, 2], ([1, 2],), True),
        ((1, 2), ([1, 2],), True),
        (1, ([1, 2],), False),
        (float("nan"), (1.0,), False),
        (float("nan"), (float("nan"),), False),
        (10**400, (1.0,), False),
        ("1", (1,), False),
        (1.0000001, (1,), False),
        (1.0000001, (1.0,), True),
        ({1: 2}, ({"1": 2},), True),
        ({None: 1, True: 2, 0.5: 3}, ({"null": 1, "true": 2, "0.5": 3},), True),
        ({10**5000: 1}, ({"": 1},), False),
        ({(1,): 1}, ({"": 1},), False),
    ],
)
def test_values_are_equal_as_in_python_but_for_tuples_and_rounding(given, accepted, is_right):
    assert is_one_of(given, accepted) == is_right
