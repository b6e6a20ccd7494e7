import time

import pytest

from rollpacker.rewards import math
from tests.rewards.test_math import reason_of


@pytest.mark.parametrize(
    ("truth", "right", "wrong"),
    [
        (r"2 X^\top X W", r"2X^T X W", "2"),
        (r"\gcd(k, p - 1)", r"\gcd(k,p-1)", "1"),
        ("h''(b)", "h''(b)", "h'(b)"),
        ("-2f'(0)", r"-2f^{\prime}(0)", "-2f(0)"),
        ("f'g + fg'", "fg' + f'g", "2fg"),
        (r"x \equiv 1 \pmod 7", r"x\equiv 1\pmod{7}", "7"),
        ("(1+r)^T", "(r+1)^T", "1+r"),
        (r"2^{\aleph_0}", r"2^{\aleph_0}", "2"),
        (r"\{1,3,5,\ldots\}", r"\{1, 3, 5, \dots\}", r"\{1,3,5\}"),
        (r"2(\frac12,\frac23)", r"2\left(\frac{1}{2},\frac{2}{3}\right)", r"\frac12,\frac23"),
        (r"\ge 5", r"\geq 5", r"\le 5"),
        ("101_2", "101_{2}", "101_3"),
        ("París", r"\text{parís}", "Parma"),
        (r"5 \text{ or more}", r"5 \text{ or more}", "4"),
    ],
)
def test_what_math_verify_would_read_a_part_of_is_compared_whole(truth, right, wrong):
    assert reason_of(rf"\boxed{{{right}}}", truth) == "correct"
    assert reason_of(rf"\boxed{{{wrong}}}", truth) != "correct"
    assert reason_of(rf"\boxed{{{truth}}}", wrong) != "correct"


@pytest.mark.parametrize(
    "bounded",
    [
        r"\{x|-1 < x \le 2\}",
        r"\{ x \mid -1<x\leq 2 \}",
        r"\{x : -1 < x \leqslant \frac{4}{2}\}",
        r"\left\{x\middle|-1 < x \le 2\right\}",
        r"\left\{ x\left| -1 < x \le 2 \right. \right\}",
        r"\{x \in \mathbb{R} \mid -1 < x \le 2\}",
        r"A \cap B = \{x|-1 < x \le 2\}",
    ],
)
def test_a_set_may_be_given_by_the_bounds_of_its_elements(bounded):
    for other in ("(-1, 2]", r"-1 < x \le 2", r"\{x|-1<x\leq2\}"):
        assert reason_of(rf"\boxed{{{bounded}}}", other) == reason_of(rf"\boxed{{{other}}}", bounded) == "correct"
    for other in ("[-1, 2]", "-1 < x < 2", r"\{x|-1<x\le 3\}", "2", r"\{-1, 2\}"):
        assert reason_of(rf"\boxed{{{bounded}}}", other) == reason_of(rf"\boxed{{{other}}}", bounded) == "wrong_answer"


def test_a_set_of_another_condition_equals_itself_alone():
    truth = r"\{x|x=3k,k\in \mathbb{Z}\}"
    assert reason_of(r"\boxed{\{x \mid x=3k, k \in \mathbb{Z}\}}", truth) == "correct"
    for other in ("3", r"\{x|x=3k,k\in \mathbb{N}\}", r"\{x|x=2k,k\in \mathbb{Z}\}"):
        assert reason_of(rf"\boxed{{{other}}}", truth) == "wrong_answer"


@pytest.mark.parametrize("answer", ["f'(2) = 5", r"\gcd(10, 15) = 5", r"x \approx 5"])
def test_what_stands_beside_a_value_is_no_part_of_it(answer):
    assert reason_of(rf"\boxed{{{answer}}}", "5") == "correct"


@pytest.mark.parametrize(
    ("answer", "truth", "other"),
    [
        (r"12\,000", "12000", "0"),
        (r"12\ 345\ 678", "12345678", "0"),
        ("12 000", "12000", "0"),
        (r"0.\overline{3}", "1/3", "0"),
        (r"-0.1\overline{6}", "-1/6", "0.1"),
        (r"3.\dot{3}", "10/3", "3"),
        (r"0.\dot{1}4285\dot{7}", "1/7", "0"),
        ("√2", r"\sqrt{2}", "2"),
        ("3√12", r"3\sqrt{12}", "3"),
        ("-∞", r"-\infty", r"\infty"),
        ("2½", "5/2", "2"),
        ("x² + x⁻¹", "x^2 + 1/x", "x"),
        ("90°", "90", "9"),
        (r"5~\text{m}", "5", "50"),
        ("2·3", "6", "2"),
        ("\u22123", "-3", "3"),
        ("\u20133", "-3", "3"),
        ("\u20113", "-3", "3"),
        ("f\u2032(x)", "f'(x)", "f(x)"),
        ("x₁₂", "x_{12}", "x"),
        ("⅛", "1/8", "8"),
        ("3⅕", "16/5", "3"),
        ("∛2", r"\sqrt[3]{2}", "2"),
        ("√(2(3))", r"\sqrt{6}", r"\sqrt{5}"),
        ("√x", r"\sqrt{x}", "x"),
        ("2(3)", "6", "5"),
        ("a·b", "ab", "a"),
        ("2x·3y", "6xy", "2x"),
        ("≈5", "5", "4"),
        ("5 ± 1", r"5 \pm 1", "5"),
        (r"0.123\,456", "0.123456", "0.123"),
        (r"3\,141\,592.653\,589", "3141592.653589", "3"),
        ("0.(3)", "1/3", "0"),
        (r"90\degree", "90", "9"),
        (r"90^{\degree}", r"90^\degree", "9"),
        ("(2516)_8", "2516_8", "2516_9"),
    ],
)
def test_numbers_are_read_as_they_are_printed(answer, truth, other):
    assert reason_of(rf"\boxed{{{answer}}}", truth) == "correct"
    assert reason_of(rf"\boxed{{{answer}}}", other) == "wrong_answer"
    assert reason_of(rf"\boxed{{{truth}}}", answer) == "correct"


@pytest.mark.parametrize(
    ("response", "truth", "other"),
    [
        ("The answer is \u22123.", "-3", "3"),
        (r"The answer is \sqrt{2}.", r"\sqrt{2}", "2"),
        (r"The answer is x = 2\pi.", r"2\pi", "2"),
        ("The answer is √2.", r"\sqrt{2}", "2"),
        ("The answer is x > 5.", "x > 5", "5"),
        (r"The answer is \textbf{(C)}", "C", "B"),
        (r"The answer is \text{C}.", "C", "B"),
        (r"The answer is \gcd(a,b) = 5.", "5", "1"),
        ("The answer is 15 N·m.", "15", "1"),
        ("The answer is 77°F.", "77", "7"),
        (r"The answer is 2\pi, which equals 6.28.", r"2\pi", "6.28"),
        (r"The answer is \frac{1}{2}, as required.", "1/2", "2"),
    ],
)
def test_an_announced_answer_needs_no_delimiters(response, truth, other):
    assert reason_of(response, truth) == "correct"
    assert reason_of(response, other) == "wrong_answer"


@pytest.mark.parametrize("words", [r"\boxed{%s}", "$%s$", "The answer is %s.", "It is %s", "6 / 2 = 3\n#### %s"])
@pytest.mark.parametrize(
    ("mixed", "truth"),
    [("2 1/2", "5/2"), (r"2\ 1/2", "2.5"), ("-2 1/2", "-5/2"), ("12 3/4", "12 3/4")],
)
def test_a_whole_number_and_a_fraction_are_a_mixed_number(mixed, truth, words):
    response = words.replace("%s", mixed)
    assert reason_of(response, truth) == "correct"
    for other in ("3/2", "1", "1/2", "21/2", "9"):
        assert reason_of(response, other) == "wrong_answer"


def test_numbers_beside_a_fraction_may_be_no_mixed_number():
    assert reason_of(r"\boxed{2^3 1/2}", "4") == "correct"
    assert reason_of(r"\boxed{12 345/5}", "2469") == "correct"


@pytest.mark.parametrize("answer", [r"\emptyset", r"\varnothing", "\u00d8", "\u2205"])
@pytest.mark.parametrize("truth", [r"\emptyset", r"\varnothing"])
def test_the_empty_set_has_several_signs(answer, truth):
    assert reason_of(rf"\boxed{{{answer}}}", truth) == "correct"
    assert reason_of(rf"\boxed{{{answer}}}", r"\{0\}") == "wrong_answer"


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        (r"\text{Area: } 12", "12"),
        (r"\textbf{Area: }\frac{24}{2}\text{ cm}", "12"),
        (r"\text{Max: } 3, \text{Min: } 4", "3, 4"),
        (r"\text{Quotient: } 3,\ \text{Remainder: } 4", "3, 4"),
        (r"\text{Vector: } \begin{pmatrix} 14/2 \\ -2 \end{pmatrix}", r"\begin{pmatrix} 7 \\ -2 \end{pmatrix}"),
        (r"\text{n = 7}", "7"),
        (r"\text{(1, 2)}", "(1, 2)"),
        (r"\text{June 5}", "June 5"),
        ("June 5", r"\text{June 5}"),
        (r"\text{A, B}", "A, B"),
        (r"\text{3:00 PM}", "3:00 PM"),
    ],
)
def test_text_around_a_value_or_in_front_of_it_does_not_hide_it(answer, truth):
    assert reason_of(rf"\boxed{{{answer}}}", truth) == "correct"
    for other in ("5", "1", "June 6", "A, C", "3:30 PM"):
        assert reason_of(rf"\boxed{{{answer}}}", other) == "wrong_answer"


@pytest.mark.parametrize(
    "answer",
    [
        r"\text{Quotient: } 5 \\ \text{Remainder: } 7",
        r"\text{Quotient: } 5 \\ 7",
        r"5 \text{Remainder: } 7",
        r"5 \\ 7",
    ],
)
def test_of_values_with_labels_or_on_lines_none_alone_is_the_answer(answer):
    assert reason_of(rf"\boxed{{{answer}}}", answer) == "correct"
    for value in ("5", "7", "12"):
        assert reason_of(rf"\boxed{{{answer}}}", value) == "wrong_answer"


def test_a_calculation_may_go_over_several_lines():
    assert reason_of(r"\boxed{2 + 5 \\ = 7}", "7") == "correct"


@pytest.mark.parametrize("label", ["not: ", "Wrong: ", "It is not: ", "An incorrect value: "])
def test_a_label_that_denies_a_value_is_kept(label):
    assert reason_of(rf"\boxed{{\text{{{label}}}5}}", "5") == "wrong_answer"


@pytest.mark.parametrize(
    "bound",
    [
        *(rf"{sign} 5" for sign in ("<", ">", "<=", r"\le", r"\geq", r"\geqslant", r"\ne", "≥", r"\geqq", r"\gtrsim")),
        *(rf"{sign} 5" for sign in (r"\gg", r"\ll", r"\nless", r"\not=", r"\not<", r"\neg", r"\,\ge", r"\quad\ge")),
        r"{\ge} 5",
        r"(\ge 5)",
        r"\displaystyle \ge 5",
        r"5 \ge",
        r"5 \pm 1",
        r"5 \text{ or more}",
    ],
)
def test_a_bound_or_a_denial_in_a_box_is_no_value(bound):
    assert reason_of(rf"\boxed{{{bound}}}", "5") == "wrong_answer"


@pytest.mark.parametrize(
    "claim",
    [
        *("is 5 or more", "is 5 at least", "is at most 5", "is no more than 5", "is greater than or equal to 5"),
        *("is not 5", "is not equal to $5$", "is **not** 5", "is not **5**", "is not exactly 5", "is definitely not 5"),
        *(
            "isn't 5",
            "isn\u2019t 5",
            "cannot be 5",
            "can't be 5",
            "is never 5",
            "is anything but 5",
            "is neither 4 nor 5",
        ),
        *("is between 4 and 5", "is over 5", "is up to 5", "is more than 5", "is strictly greater than 5"),
        *(r"is $\ge 5$", "is > 5", "is >= 5", "is 5 ± 1"),
    ],
)
def test_a_bound_or_a_denial_in_words_is_no_value(claim):
    assert math.score(f"The answer {claim}.", "5", is_truncated=False).reward == 0.0
    assert math.score(f"So $x = 5$. The answer {claim}.", "5", is_truncated=False).reward == 0.0


@pytest.mark.parametrize(("response", "truth"), [("<answer>not 5</answer>", "5"), ("The answer is not true.", "True")])
def test_a_denial_is_no_answer(response, truth):
    assert reason_of(response, truth) == "no_answer"


@pytest.mark.parametrize(
    "response",
    [
        "The answer is not obvious at first; it is 5.",
        "The answer is 5, not 6.",
        "The answer is below: $5$",
        "Below $100$ there are $5$ such primes.",
        "Between $1$ and $10$ there are $5$ of them.",
        "The answer is $5$ or more precisely 5.",
        "It is at least 5. In fact the answer is 5.",
        "The final answer is 5. Note that the answer is not 6.",
        "**Answer: 5**\n\nNote: the answer is not 25, a common mistake.",
        "The answer is at least 5, and we can reach 5.",
        "The answer is not $4$; it's 5.",
        "The answer cannot be 4, so it is 5.",
        r"\boxed{n = 5 \ (x>0)}",
        r"\boxed{X \sim 5}",
        r"\boxed{A) 5}",
        r"\boxed{A. 5}",
    ],
)
def test_words_about_other_things_deny_nothing(response):
    assert reason_of(response, "5") == "correct"


@pytest.mark.parametrize("modulo", [r"\mod", r"\bmod", r"\pmod"])
def test_a_remainder_that_is_not_computed_equals_itself_alone(modulo):
    assert reason_of(rf"\boxed{{2^{{100}} {modulo} 13}}", rf"2^{{100}} {modulo} 13") == "correct"
    assert reason_of(rf"\boxed{{x = 2^{{100}} {modulo} 13}}", "3") == "wrong_answer"
    assert reason_of(rf"The answer is $100! {modulo} 101$.", "100") == "wrong_answer"
    assert reason_of(rf"\boxed{{248^{{156454638}} {modulo} 250}}", "4") == "wrong_answer"
    assert reason_of(rf"\boxed{{x = 248^{{156454638}} {modulo} 250 = 4}}", "4") == "correct"


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        (r"y = \gcd(k, p - 1)", r"\gcd(k, p-1)"),
        (r"\gcd(b, a)", r"\gcd(a, b)"),
        (r"\max(|c|, 1)", r"\max\{1, |c|\}"),
        (r"f(x) = 2^{\aleph_0}", r"2^{\aleph_0}"),
    ],
)
def test_a_text_may_name_what_it_is_the_value_of_and_order_what_has_no_order(answer, truth):
    assert reason_of(rf"\boxed{{{answer}}}", truth) == reason_of(rf"\boxed{{{truth}}}", answer) == "correct"


@pytest.mark.parametrize("truth", [r"5 \pmod 7", r"1+2+\dots+n", r"\{x \in \mathbb R \mid x>0\}", r"2^{\aleph_0}"])
def test_another_answer_than_a_text_is_wrong_and_does_not_blame_the_truth(truth):
    assert reason_of(r"\boxed{6}", truth) == "wrong_answer"


@pytest.mark.parametrize(
    "response",
    [
        "The answer is " + " " * 50_000 + "5",
        r"The answer is \alpha" + " " * 50_000 + "or so",
        rf"\boxed{{-({',' * 50_000})}}",
        "f'" * 50_000,
        "answer is " * 20_000,
        "answer:" * 20_000,
        "answer is not" + " " * 50_000 + "?",
        "The answer is not 5" + " $" * 20_001,
        "√((" * 20_000,
        "The answer is 15 (" + "3*" * 20_000,
    ],
)
def test_long_repetitions_take_no_time(response):
    started_s = time.monotonic()
    math.score(response, "5", is_truncated=False)
    assert time.monotonic() - started_s < 5.0


@pytest.mark.parametrize("blank", [" ", "\n", "\t\n", "~", "\\ ", "\\quad "])
@pytest.mark.parametrize(
    ("begin", "end"),
    [(r"\boxed{(C)", "x"), ("The answer is (C) ", ""), (r"\boxed{5", "}"), (r"\boxed{5\%", "x}"), ("#### a", "\nx y")],
)
@pytest.mark.parametrize("truth", ["5", "C"])
def test_four_times_the_blanks_do_not_take_eight_times_the_time(begin, blank, end, truth):
    times_s = []
    for num_blanks in (2_500, 10_000):
        began_s = time.process_time()
        math.score(begin + blank * num_blanks + end, truth, is_truncated=False)
        times_s.append(time.process_time() - began_s)
    assert times_s[1] < 8 * times_s[0] + 0.2


@pytest.mark.parametrize("before", ["", "So x = 2. ", "It's f' = 2, don't you see. "])
@pytest.mark.parametrize("truth", [r"L^2([-\pi, \pi])", r"\mathbb{R}[x] + \mathbb{R}[y]", r"2^{\aleph_1}"])
def test_what_is_compared_as_text_is_the_same_whatever_stands_before_it(truth, before):
    assert math.score(f"{before}The answer is ${truth}$", truth, False).reward == 1.0
    assert math.score(rf"{before}\[ {truth} \]", truth, False).reward == 1.0


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        (r"\boxed{x \equiv 3 \pmod{7}}", "3"),
        (r"The answer is $x \equiv 3 \pmod 7$.", "3"),
        (r"\boxed{3}", r"x \equiv 3 \pmod{7}"),
        *(
            (rf"\boxed{{{residue}}}", r"x \equiv 3 \pmod 7")
            for residue in (r"x\equiv3\mod 7", r"x \equiv 3 (\text{mod } 7)", r"n \equiv 3 \; (\mathrm{mod}\ 7)")
        ),
        *((rf"\boxed{{{residue}}}", r"x \equiv 3 \pmod 7") for residue in (r"3 \pmod{7}", r"x = -4 \bmod 7")),
        (r"\boxed{x \equiv 10 \pmod 7}", r"x \equiv 3 \pmod 7"),
        (r"\boxed{x \equiv 8, 3 \pmod 7}", r"x \equiv 3, 1 \pmod 7"),
        (r"\boxed{2^{10} \equiv 1024 \equiv 2 \pmod 7}", "2"),
        ("The answer is not 3. Wait. I computed again, $x = 5$.", "5"),
        ("<answer>not 3 but 5</answer>", "5"),
    ],
)
def test_a_residue_needs_no_modulus_and_a_denial_may_be_followed_by_the_answer(answer, truth):
    assert reason_of(answer, truth) == "correct"


def test_of_a_residue_the_modulus_is_not_the_answer():
    assert reason_of(r"\boxed{7}", r"x \equiv 3 \pmod{7}") == "wrong_answer"
    for other in (r"x \equiv 3 \pmod{5}", r"x \equiv 4 \pmod 7", r"x \not\equiv 3 \pmod 7", r"2x \equiv 3 \pmod 7"):
        assert reason_of(rf"\boxed{{{other}}}", r"x \equiv 3 \pmod{7}") == "wrong_answer"
    assert reason_of(r"\boxed{x^{10} \pmod 7}", r"x^3 \pmod 7") == "wrong_answer"
    assert reason_of(r"\boxed{3 \pmod 7, 4 \pmod 7}", "3") == "wrong_answer"


@pytest.mark.parametrize(
    "answer",
    [
        "5 m/s",
        "5 km/h",
        "5 m/s^2",
        "5 m/s²",
        r"\text{5 km}",
        r"\text{005}",
        "€5",
        "£5",
        "5€",
        "5 percent",
    ],
)
def test_units_and_currencies_are_no_part_of_a_number(answer):
    assert reason_of(rf"\boxed{{{answer}}}", "5") == "correct"
    assert reason_of(rf"\boxed{{{answer}}}", "25") == "wrong_answer"


@pytest.mark.parametrize("answer", [r"x_\text{5}", r"\text{5 or more}", r"\text{5 or 6}", "5/s"])
def test_what_is_more_than_a_number_in_text_is_not_read_as_one(answer):
    assert reason_of(rf"\boxed{{{answer}}}", "5") != "correct"
