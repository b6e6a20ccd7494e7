import subprocess
import sys
import time

import pytest

from rollpacker.rewards import math


def reason_of(response, ground_truth, is_truncated=False):
    score = math.score(response, ground_truth, is_truncated)
    assert score.reward == (1.0 if score.reason == "correct" else 0.0)
    return score.reason


@pytest.mark.parametrize(
    ("ground_truth", "response"),
    [
        ("11/16", r"So the answer is \boxed{\dfrac{11}{16}}."),
        (r"\dfrac{11}{16}", r"\boxed{0.6875}"),
        (r"\dfrac{11}{16}", "the answer is 11/16"),
        (r"$\frac{11}{16}$", r"We get $\frac{22}{32}$."),
        (r"\boxed{\frac{11}{16}}", r"\boxed{11/16}"),
        ("42", "Adding up, we get 42"),
        ("42", r"\boxed{42.0}"),
        ("42", r"\boxed{x = 42}"),
        ("42", r"First \boxed{7}, no, that is wrong. After a long time: \boxed{42}"),
        ("42", r"\boxed{\boxed{42}}"),
        ("42", r"\boxed{42}, or is it \boxed{4"),
        ("2, 16", r"The roots are $\boxed{2}$ and $\boxed{16}$."),
        ("2, 3, 5", r"\boxed{2}, \boxed{3}, and \boxed{5}"),
        ("-8", r"\(-8\)"),
        (r"362,\!880", "362880"),
        ("6290000", r"\boxed{6.29 \times 10^6}"),
        (r"\$187.12", r"\boxed{187.12}"),
        ("187.12", r"It costs \$187.12."),
        ("50\\%", r"\boxed{50\%}"),
        (r"\sqrt{2}", r"\boxed{\frac{2}{\sqrt{2}}}"),
        (r"\dfrac{\pi}{2}", r"\boxed{\pi/2}"),
        ("x^2 + x + 1", r"\boxed{1 + x + x^2}"),
        ("(x+1)^2", r"\boxed{x^2 + 2x + 1}"),
        (r"\infty", r"\boxed{\infty}"),
        ("2-6i", r"\boxed{-6i + 2}"),
        ("[0, 1)", r"\boxed{[0, 1)}"),
        (r"(-\infty, 2) \cup (3, \infty)", r"\boxed{(-\infty, 2) \cup (3, \infty)}"),
        (r"\{1, 2, 3\}", r"\boxed{\{3, 2, 1\}}"),
        ("2, 16", r"\boxed{16, 2}"),
        ("(91, 60)", r"\boxed{(91, 60)}"),
        (r"\begin{pmatrix} 7 \\ -2 \end{pmatrix}", r"\boxed{\begin{pmatrix} 7 \\ -2 \end{pmatrix}}"),
        ("Yes", r"\boxed{\text{Yes}}"),
        ("Yes", r"\boxed{yes}"),
        ("Yes", "The answer is Yes."),
        ("True", r"\boxed{\textbf{True}}"),
        ("B", r"\boxed{\text{(B)}}"),
        (r"\text{(B)}", "The answer is B."),
        (r"\text{odd}", r"\boxed{Odd}"),
        ("e", r"\boxed{e}"),
        ("B", "The answer is (B)."),
        ("B", "The correct answer is (B)"),
        ("B", "Answer: (B)"),
        ("42", r"\boxed{42.}"),
        ("42", r"\[\boxed{42.}\]"),
        ("5", r"\boxed{5,}"),
        ("5", r"\boxed{5 \text{ units}.}"),
        ("5", r"\boxed{5^\circ.}"),
        ("5", r"\boxed{5\,}"),
        ("1", r"\boxed{\lim_{x \to 0} \frac{\sin x}{x} = 1}"),
        ("0", r"\boxed{\lim\limits_{x \rightarrow \infty} \frac{1}{x} = 0}"),
        ("3", r"\boxed{\underset{x \to 0^{+}}{\lim} f(x) = 3}"),
        ("2", r"$a_{n \to \infty} = 2$"),
    ],
)
def test_right_answers_in_many_forms_are_correct(ground_truth, response):
    assert reason_of(response, ground_truth) == "correct"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>maybe 14 apples.</think><answer>15</answer>", "15"),
        ("<think>14.</think>\n<answer>\n15\n</answer>", "15"),
        ("<answer>It is 15 apples.</answer> Not 14.", "15"),
        (r"<answer>$\frac{30}{2}$</answer>", "15"),
        (r"\boxed{14} <answer>\boxed{15}</answer>", "15"),
        (r"<answer>14</answer> No: \boxed{15}", "15"),
        ("<answer>14</answer> Wait. <answer>15</answer>", "15"),
        ("It is 14.\nAnswer: `15`", "15"),
        ("First 14, then **15**", "15"),
        ("First 14, then **15 apples**.", "15"),
        ("First 14, then _15_.", "15"),
        ("14 it is not. The answer is (15).", "15"),
        ('14 it is not. The answer is "15".', "15"),
        ("14 + 1\n####15", "15"),
        ("14 + 1. Answer:15", "15"),
        ("It is 14 + 1.\n(15)", "15"),
        ("Not 14. So the sum is (15).", "15"),
        ("Not 14.\nx = (15)", "15"),
        ("<answer>A</answer>", "A"),
        ("<answer>(B)</answer>", "B"),
        ("<answer>Yes</answer>", "Yes"),
        (r"<answer>x^2 + 1</answer>", "x^2+1"),
    ],
)
def test_marks_around_an_answer_do_not_hide_it(text, value):
    assert reason_of(text, value) == "correct"
    assert reason_of(text, "14" if value == "15" else "17") == "wrong_answer"


@pytest.mark.parametrize(
    ("response", "truth"),
    [
        ("It is not 4.\n\n(3, 4)", "(3, 4)"),
        ("They meet at (3, 4).", "(3, 4)"),
        ("The answer is (3, 4). Done.", "(3, 4)"),
        ("Answer: (3,4)", "(3, 4)"),
        ("So it is **(0.5, -1/2, 3)**", "(1/2, -1/2, 3)"),
        ("The range is [0, 1).", "[0, 1)"),
    ],
)
def test_a_bare_point_or_interval_that_is_announced_or_ends_a_response_is_read_as_one(response, truth):
    assert reason_of(response, truth) == "correct"
    assert reason_of(response, "4") == "wrong_answer"


@pytest.mark.parametrize(
    ("response", "truth"),
    [
        ("So x = 3, by (2).", "3"),
        ("The answer is 3.\nCheck: f(3) = (3, 4)", "3"),
        ("The answer is (1,234).", "1234"),
    ],
)
def test_other_brackets_at_the_end_are_no_answer(response, truth):
    assert reason_of(response, truth) == "correct"


@pytest.mark.parametrize("response", ["It is (1, 2) or (3, 4).", "The answer is (1, 2) or (3, 4)."])
def test_of_several_bare_points_none_is_the_answer(response):
    assert reason_of(response, "(1, 2)") == reason_of(response, "(3, 4)") == "wrong_answer"


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        (r"\begin{pmatrix} 7 \\ -2 \end{pmatrix}", r"\begin{pmatrix} 7 \\ -2 \end{pmatrix}"),
        (r"\begin{cases} x & x > 0 \\ 1 & x \le 0 \end{cases}", r"\begin{cases} x & x > 0 \\ 1 & x \le 0 \end{cases}"),
        ("ab+1", "ab + 1"),
        ("x^2 + xy + 1", "1 + xy + x^2"),
        ("abc + 1", "1 + abc"),
        ("3xy", "3yx"),
        (r"\frac{ab}{2}", r"\frac{ab}{2}"),
        (r"5\sqrt{ab}", r"5\sqrt{ab}"),
        ("y = mx + 2", "mx + 2"),
        ("sqrt(2)", r"\sqrt{2}"),
        (r"\operatorname{lcm}(2,3)", "6"),
        ("no solution", "No solution"),
        ("Does not exist.", r"\text{does not exist}"),
        ("It is -15.", "-15"),
        ("**Answer:** 15", "15"),
        ("It's 15", "15"),
        ("15 cm", "15"),
        ("15 cm^2", "15"),
        ("The answer is yes", "Yes"),
    ],
)
def test_in_its_tag_a_formula_is_no_prose_and_prose_no_formula(answer, truth):
    assert reason_of(f"<answer>{answer}</answer>", truth) == "correct"


def test_an_answer_in_its_tag_counts_in_a_truncated_response():
    assert reason_of("<answer>15</answer> Let me", "15", is_truncated=True) == "correct"
    assert reason_of("<answer>15", "15", is_truncated=True) == "truncated"


@pytest.mark.parametrize(
    ("ground_truth", "response", "expected"),
    [
        ("1e-05", r"\boxed{0.00001}", "correct"),
        ("1e-05", r"\boxed{e-5}", "wrong_answer"),
        ("1e+16", r"\boxed{10^{16}}", "correct"),
        ("1.6e-19", r"\boxed{1.6\times 10^{-19}}", "correct"),
        (r"1.6 \times 10^{-19}", r"\boxed{1.6e-19}", "correct"),
        (r"1.6 \times 10^{-19}", r"\boxed{9.1\times 10^{-31}}", "wrong_answer"),
        (r"6.62 \times 10^{-34}", r"\boxed{6.63 \times 10^{-34}}", "wrong_answer"),
        ("0.0000016", r"\boxed{0.0000017}", "wrong_answer"),
        ("0", r"\boxed{0.00000001}", "wrong_answer"),
        ("0.00123", r"\boxed{1.23 \times 10^{-3}}", "correct"),
        ("1/3", r"\boxed{0.333333}", "correct"),
    ],
)
def test_small_and_large_numbers_are_read_as_programs_write_them_and_compared_by_their_size(
    ground_truth, response, expected
):
    assert reason_of(response, ground_truth) == expected


@pytest.mark.parametrize(
    "formula",
    ["3x + 1", "3+4i", "2n", "2^n", "n^2", "n(n+1)/2", "2:3", "10 - 3x", r"5\sqrt{2}", "1, 2", "{1, 2}", "12", "n/2"],
)
@pytest.mark.parametrize("words", ["Answer: {}", "The answer is {}.", "**Answer:** {}", "6 / 2 = 3\n#### {}"])
def test_an_announced_formula_is_read_whole(formula, words):
    response = words.replace("{}", formula)
    assert reason_of(response, formula) == "correct"
    for part in ("2", "3", "5", "10", "1", "n"):
        assert reason_of(response, part) == "wrong_answer"


@pytest.mark.parametrize(
    "response", ["The answer is A or B.I think so", "The answer is A or B. I think so", "#### A or B.x"]
)
def test_a_second_choice_counts_also_without_a_blank_behind_it(response):
    for truth in "AB":
        assert reason_of(response, truth) == "wrong_answer"


@pytest.mark.parametrize(
    "response", ["#### Step 2\n5 + 3 = 8", "#### Step 2: 5 + 4 = 9\nThe answer is 8.", "#### Answer: 8\n", "####8"]
)
def test_a_heading_is_no_answer_and_the_last_line_may_be(response):
    assert reason_of(response, "8") == "correct"


@pytest.mark.parametrize("letter", "ABCDEFGHIJ")
def test_choices_go_to_j(letter):
    other = "B" if letter == "A" else "A"
    for response in (f"Answer: {letter}", f"The answer is ({letter}).", f"#### {letter}", rf"\boxed{{{letter}}}"):
        assert reason_of(response, letter) == "correct"
        assert reason_of(response, other) == "wrong_answer"
    assert reason_of("Answer: I think it is none of them", "I") != "correct"


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{\textbf{(C)}\ 12}",
        r"\boxed{\text{(C) } 12}",
        r"\boxed{\textbf{(C) }12}",
        r"\boxed{\mathrm{(C)}\ 12}",
        r"\boxed{(C) 12}",
        r"\boxed{C) 12}",
        "Answer: C) 12",
        "The answer is (C) 12.",
    ],
)
def test_of_an_option_its_letter_or_what_it_says_is_the_answer(response):
    assert reason_of(response, "C") == reason_of(response, "12") == "correct"
    assert reason_of(response, "D") == reason_of(response, "13") == "wrong_answer"


@pytest.mark.parametrize(
    "truth", [r"\textbf{(C)}\ 12", r"\textbf{(C) }12", "(C) 12", r"$\mathrm{(C)}\ 12$", r"\boxed{\text{(C)} 12}"]
)
def test_a_truth_may_be_an_option_with_what_it_says(truth):
    for response in (r"\boxed{\textbf{(C)}\ 12}", r"\boxed{C}", r"\boxed{12}", "The answer is (C)."):
        assert reason_of(response, truth) == "correct"
    for response in (r"\boxed{\textbf{(D)}\ 12}", r"\boxed{D}", r"\boxed{13}", "The answer is (D)."):
        assert reason_of(response, truth) == "wrong_answer"


@pytest.mark.parametrize("truth", ["$5$;$10$", "5;$10$"])
def test_of_several_formulas_one_alone_is_not_the_answer(truth):
    assert reason_of(r"\boxed{5}", truth) == reason_of(r"\boxed{10}", truth) == "wrong_answer"


@pytest.mark.parametrize("response", [r"\boxed{(C) 12 or (D) 13}", "Answer: (C) 12 or (D) 13"])
def test_of_two_options_none_is_the_answer(response):
    assert reason_of(response, "C") == reason_of(response, "D") == "wrong_answer"


@pytest.mark.parametrize("ground_truth", ["50", "50%", r"50\%", r"\boxed{50\%}", r"$50\%$"])
def test_a_sign_of_per_cent_may_be_left_out(ground_truth):
    for response in (r"\boxed{50}", r"\boxed{50\%}", r"\boxed{50%}", r"So $50\%$.", "The answer is 50%."):
        assert reason_of(response, ground_truth) == "correct", response
    assert reason_of(r"\boxed{0.5}", ground_truth) == ("correct" if "%" in ground_truth else "wrong_answer")
    assert reason_of(r"\boxed{51\%}", ground_truth) == "wrong_answer"


@pytest.mark.parametrize(
    "response",
    [
        "Hmm, the answer is either 5 or 6. Checking, 5 fails. The final answer is 6.",
        "The answer is 5 or 6? Let me check. 5 fails. So the answer is 6.",
        "The answer is 6, 3 more than 3.",
        "The answer is 6 and 3 of them are red.",
    ],
)
def test_what_is_said_beside_an_announced_answer_is_no_second_one(response):
    assert reason_of(response, "6") == "correct"


@pytest.mark.parametrize(
    ("ground_truth", "response"),
    [
        ("11/16", r"\boxed{\frac{11}{17}}"),
        (r"\frac{1}{3}", r"\boxed{0.333}"),
        ("42", r"\boxed{43}"),
        ("42", r"I first thought 42, but it is \boxed{7}"),
        ("x^2 + 1", r"\boxed{x^2 - 1}"),
        ("[0, 1)", r"\boxed{[0, 1]}"),
        ("(1, 2)", r"\boxed{(2, 1)}"),
        (r"\{1, 2\}", r"\boxed{\{1, 3\}}"),
        ("Yes", r"\boxed{No}"),
        ("No", r"\boxed{on}"),
        ("A", r"\boxed{B}"),
        ("A", "The answer is B."),
        ("(1, 2)", r"\boxed{\{1, 2\}}"),
        (r"\{1, 2\}", r"\boxed{(1, 2)}"),
        ("(1, 2, 3)", r"\boxed{S = \left\{1, 2, 3\right\}}"),
        (r"x \in \{1, 2\}", r"\boxed{(1, 2)}"),
        (r"\{(1, 2), (3, 4)\}", r"\boxed{\{\{1, 2\}, \{3, 4\}\}}"),
        ("3", r"\boxed{\frac{}{}}"),
        ("3", r"\boxed{3x}"),
        ("n", r"\boxed{n!}"),
    ],
)
def test_wrong_answers_are_wrong(ground_truth, response):
    assert reason_of(response, ground_truth) == "wrong_answer"


@pytest.mark.parametrize("response", [r"\boxed{east}", r"\boxed{\text{east}}", "<answer>East</answer>"])
def test_words_of_the_same_letters_are_not_the_same(response):
    assert reason_of(response, "east") == "correct"
    assert reason_of(response, "seat") == "wrong_answer"


@pytest.mark.parametrize(("product", "truth"), [("yx", "xy"), ("lwh", "hlw"), ("yzx", "xyz"), ("TSR", "RST")])
def test_factors_have_no_order(product, truth):
    assert reason_of(rf"\boxed{{{product}}}", truth) == "correct"


@pytest.mark.parametrize("truth", ["Yes", "A"])
def test_of_several_announced_words_none_is_the_answer(truth):
    assert reason_of("The answer is Yes or No.", truth) == "wrong_answer"
    assert reason_of("The answer is A, B, or C.", truth) == "wrong_answer"


@pytest.mark.parametrize("response", ["", "   \n", "I do not know.", r"\boxed{}", "?!*"])
def test_a_response_without_an_answer_says_so(response):
    assert reason_of(response, "42") == "no_answer"
    assert reason_of(response, "42", is_truncated=True) == "truncated"


@pytest.mark.parametrize(
    "thoughts",
    [r"<think>18? \boxed{18}. No.</think>", "so \\boxed{18}\n</think>", "<think>\n<answer>18</answer></think> "],
)
def test_an_answer_in_thoughts_does_not_count(thoughts):
    assert reason_of(f"{thoughts}\nIt cannot be determined.", "18") == "no_answer"
    assert reason_of(f"{thoughts}\nThe answer is 3.", "3") == "correct"


@pytest.mark.parametrize(("is_truncated", "reason"), [(True, "truncated"), (False, "no_answer")])
def test_a_response_whose_thoughts_do_not_end_has_no_answer(is_truncated, reason):
    assert reason_of("<think>So it is \\boxed{18}. But", "18", is_truncated) == reason


def test_of_a_truncated_response_only_an_announced_answer_counts():
    assert reason_of("We have x = 42 and then", "42", is_truncated=True) == "truncated"
    assert reason_of(r"\boxed{42}. Let me check that", "42", is_truncated=True) == "correct"
    assert reason_of("The final answer is $42$. Let me", "42", is_truncated=True) == "correct"
    assert reason_of(r"\boxed{41}. Let me check that", "42", is_truncated=True) == "wrong_answer"


@pytest.mark.parametrize("ground_truth", ["", "  ", "?", r"\frac{"])
def test_a_ground_truth_that_cannot_be_read_is_named(ground_truth):
    assert reason_of(r"\boxed{42}", ground_truth) == "unparsable_ground_truth"


@pytest.mark.parametrize(
    ("begin", "end"),
    [("a_{", "}"), ("2^{", "}"), ("{", "}"), (r"\{", r"\}"), ("(", ")"), (r"\ln(", ")"), ("a_", ""), (r"\sin ", "")],
)
def test_what_is_nested_too_deep_is_no_answer_and_takes_no_time(begin, end):
    deep = begin * 1000 + "1" + end * 1000
    started_s = time.monotonic()
    assert reason_of(rf"\boxed{{{deep}}}", "42") == "no_answer"
    assert reason_of(rf"So ${deep}$.", "42") == "no_answer"
    assert reason_of(r"\boxed{" + begin * 1000 + "\n\nSo $42$.", "42") == "correct"
    assert time.monotonic() - started_s < 5.0


def test_a_continued_fraction_is_not_too_deep():
    assert reason_of(r"\boxed{" + r"\frac{1}{1+" * 5 + "1" + "}" * 5 + "}", "8/13") == "correct"


def test_a_box_counts_after_any_number_that_never_close():
    assert reason_of(r"\boxed{" * 20_000 + r"\boxed{42}", "42") == "correct"


def test_scoring_math_needs_no_torch():
    program = (
        "import sys, rollpacker.rewards.math as math, rollpacker.rewards.scoring_process\n"
        "math.prepare_scoring()\n"
        "print(sorted({'torch', 'transformers', 'ray', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
