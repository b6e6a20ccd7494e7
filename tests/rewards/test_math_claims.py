import pytest

from tests.rewards.test_math import reason_of


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{5=6=7}",
        r"\boxed{7=7}",
        r"\boxed{6=7}",
        r"$6=7$",
        "the answer is $x=5=6=7$",
        r"\boxed{x=8=7}",
        r"\boxed{8=x=7}",
        r"\boxed{x=7=8}",
        r"\boxed{2+6=7}",
        r"\boxed{x+8=x+7}",
        r"\boxed{7 \text{ or } 8}",
        r"\boxed{8 or 7}",
        r"\boxed{x=7 \text{ or } x=8}",
        r"\boxed{7, 8, 9}",
        r"\boxed{8;7}",
        r"\boxed{\{7, 8\}}",
        r"\boxed{6 \pm 1}",
        r"\boxed{8}, \boxed{7}",
        r"\boxed{8} or \boxed{7}",
        r"\boxed{8 \to 7}",
        r"\boxed{\lim_{x \to 0} f(x) = 8 \to 7}",
        r"\boxed{8_{\to 7}}",
        r"\boxed{6 \implies 7}",
        r"\boxed{8 \Rightarrow x = 7}",
        r"\boxed{7 \lor 8}",
        r"\boxed{6 < x < 8}",
        r"\boxed{x \le 7}",
        "The answer is 7 or 8.",
        "Answer: 7 or 8.",
        "The answer is 7 or 8 dollars.",
        "I think 9, so the answer is 7, 8.",
        "The answer is either 7 or 8.",
        "The answer is 7, 8 or 9.",
        "The final answer is $7$ or $8$.",
        r"\boxed{nan}",
        r"\boxed{NaN}",
        r"\boxed{\infty}",
        r"\boxed{\infty - \infty}",
        r"\boxed{\frac{0}{0}}",
        r"\boxed{\frac{7}{0}}",
        r"\boxed{1e999}",
    ],
)
def test_an_answer_that_claims_more_than_the_truth_or_no_number_is_wrong(response):
    assert reason_of(response, "7") in {"wrong_answer", "no_answer"}


@pytest.mark.parametrize(
    ("ground_truth", "response"),
    [
        ("7", r"\boxed{2+5=7}"),
        ("7", r"\boxed{x = 2 + 5 = 7}"),
        ("7", r"\boxed{m + n = 7}"),
        ("7", r"\boxed{f(2) = 7}"),
        ("7", r"\boxed{\sqrt{49} = 7}"),
        ("7", r"\boxed{7 \text{ apples}}"),
        ("7", "The answer is 7, because 8 is too much."),
        ("7/8", "The answer is 7/8."),
        ("(4, 1)", "The answer is $(4, 1)$."),
        ("(0, 1)", "The answer is $(0, 1)$."),
        ("x^2+1", r"\boxed{f(x) = x^2 + 1}"),
        ("x = 7", r"\boxed{x = 7}"),
        ("2, 16", r"\boxed{x = 2 \text{ or } x = 16}"),
        ("2, 16", "The answer is $2$ or $16$."),
        ("$2$;$16$", r"\boxed{2; 16}"),
        (r"1.5; $\frac{8}{9}$", r"\boxed{\frac{3}{2}, \frac{8}{9}}"),
        (r"\sqrt{2}", r"\boxed{\sqrt{2} \approx 1.414}"),
        (r"\begin{pmatrix} 7 \\ -2 \end{pmatrix}", r"\boxed{x = \begin{pmatrix} 7 \\ -2 \end{pmatrix}}"),
    ],
)
def test_an_answer_may_say_what_it_is_the_value_of(ground_truth, response):
    assert reason_of(response, ground_truth) == "correct"


@pytest.mark.parametrize(
    "response", [r"\boxed{\{2, 1\}}", r"\boxed{1, 2}", r"$x \in \{1, 2\}$", r"\boxed{1} and \boxed{2}"]
)
@pytest.mark.parametrize("truth", ["1, 2", r"\{1, 2\}", r"x \in \{1, 2\}"])
def test_solutions_may_be_listed_with_and_without_braces(truth, response):
    assert reason_of(response, truth) == "correct"


@pytest.mark.parametrize(
    ("truth", "response"), [("(1, 2)", r"\boxed{1, 2}"), ("1, 2", r"\boxed{(1, 2)}"), (r"\{1\}", r"\boxed{1}")]
)
def test_without_braces_a_list_may_be_a_point(truth, response):
    assert reason_of(response, truth) == "correct"


@pytest.mark.parametrize(
    ("bounds", "truth"),
    [
        (r"x \le 3", r"(-\infty, 3]"),
        (r"3 \ge x", r"(-\infty, 3]"),
        ("3 < x < 5", "(3, 5)"),
        (r"-\infty < x < \sqrt{2}", r"(-\infty, \sqrt{2})"),
        (r"0 \le \theta \le 2\pi", r"[0, 2\pi]"),
        (r"(-\infty, 3]", r"x \le 3"),
        ("1 < f(x) < 3", "(1, 3)"),
        (r"f(x) \ge -4", r"[-4, \infty)"),
        (r"-3 \le x < 7", r"x \in [-3, 7)"),
    ],
)
@pytest.mark.parametrize("words", [r"\boxed{%s}", "The answer is $%s$.", "<answer>%s</answer>"])
def test_an_interval_may_be_given_by_its_bounds(bounds, truth, words):
    response = words.replace("%s", bounds)
    assert reason_of(response, truth) == "correct"
    for other in (r"(-\infty, 3)", "(3, 5]", "3, 5", r"\{3, 5\}", "3", "5", "[-2, 2]"):
        assert reason_of(response, other) == "wrong_answer"


@pytest.mark.parametrize(
    ("unsolved", "truth"),
    [
        ("x^2+5x+6<0", "(-3, -2)"),
        ("|x| < 2", "(-2, 2)"),
        ("2x < 6", r"(-\infty, 3)"),
        ("2^x > 8", r"(3, \infty)"),
        (r"\log_2(x-1) < 3", "(1, 9)"),
        (r"\sqrt{x+3} > 2", r"(1, \infty)"),
        ("x > -x", r"(0, \infty)"),
        ("x^2 > 9", r"(-\infty, -3) \cup (3, \infty)"),
        (r"\frac{x-1}{x+2} \ge 0", r"(-\infty, -2) \cup [1, \infty)"),
        (r"x \ne 3", r"(-\infty, 3) \cup (3, \infty)"),
    ],
)
@pytest.mark.parametrize("words", [r"\boxed{%s}", "The answer is $%s$.", "<answer>%s</answer>"])
def test_an_inequality_is_not_solved_for_the_response(unsolved, truth, words, monkeypatch):
    solved = []
    monkeypatch.setattr(
        "sympy.solvers.inequalities.solve_univariate_inequality", lambda *each, **_: solved.append(each)
    )
    assert reason_of(words.replace("%s", unsolved), truth) == "wrong_answer"
    assert not solved


@pytest.mark.parametrize(
    ("truth", "others"),
    [
        (r"x^2-4x+13=0", ("x^2-4x+14=0", r"\sin x=5", "x^2+y^2+1=0", "5=5")),
        (r"\log_6 36 = 2", (r"\log_6 36 = 3", "5=5")),
        ("x^2+y^2=1", ("x^2+y^2=2", "x^2+1=0")),
    ],
)
def test_equations_without_roots_are_not_all_the_same(truth, others):
    assert reason_of(rf"\boxed{{{truth}}}", truth) == "correct"
    for other in others:
        assert reason_of(rf"\boxed{{{other}}}", truth) == "wrong_answer"


def test_an_equation_may_be_multiplied():
    assert reason_of(r"\boxed{-2x^2-2=0}", "x^2+1=0") == reason_of(r"\boxed{2x^2+2y^2=2}", "x^2+y^2=1") == "correct"


@pytest.mark.parametrize("dropped", ["1, 2", "1, 2, 2", "2", r"\{1, 2\}", r"1 \text{ and } 2"])
def test_a_value_that_the_truth_lists_twice_is_listed_twice(dropped):
    for right in ("1, 1, 2", "1, 2, 1", "x = 2, 1, 1"):
        assert reason_of(rf"\boxed{{{right}}}", "1, 1, 2") == "correct"
    assert reason_of(rf"\boxed{{{dropped}}}", "1, 1, 2") == "wrong_answer"
    assert reason_of(r"\boxed{1, 2}", r"\{1, 1, 2\}") == "correct"


def test_announced_bounds_need_no_delimiters():
    assert reason_of("The answer is 3 < x < 5.", "(3, 5)") == "correct"
    assert reason_of("The answer is 3 < x < 5.", "3") == "wrong_answer"
