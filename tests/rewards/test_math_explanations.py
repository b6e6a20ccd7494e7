import pytest

from tests.rewards.test_math import reason_of


@pytest.mark.parametrize(
    "formula",
    [
        *("15 (3*5)", "15 (3 x 5)", "15 [12 + 3]", "15 (3 * (2+3))", r"15 (3 \cdot 5)", "15% (3*5)", "15 m (3*5)"),
        *("15, i.e. 3*5", "15 (i.e. 3*5)", "15 -> 3*5", "15: 3*5", "15 : 3 x 5", "15 (1.5k)", "15a.m."),
    ],
)
@pytest.mark.parametrize("words", ["Answer: {}", "The answer is {}.", "**Answer:** n = {}", "6 / 2 = 3\n#### {}"])
def test_a_calculation_behind_an_announced_number_is_no_part_of_it(formula, words):
    response = words.replace("{}", formula)
    assert reason_of(response, "15") == "correct"
    for other in ("225", "3", "5", "1", "1.5"):
        assert reason_of(response, other) == "wrong_answer"


@pytest.mark.parametrize("formula", ["2 (n + 1)", r"2 (1 + \sqrt{3})", "2 : 3", "2: 3", "2(3+4)", "2 (3+4)", "3 (2^5)"])
def test_a_factor_or_a_ratio_is_no_explanation(formula):
    assert reason_of(f"The answer is {formula}.", formula) == "correct"
    assert reason_of(f"The answer is {formula}.", "2") == "wrong_answer"


@pytest.mark.parametrize(
    ("formula", "truth"),
    [
        *(("12 (24*0.5)", "12"), ("12 [24*0.5]", "12"), ("20 (200 x 10%)", "20"), (r"20 (200 \times 10\%)", "20")),
        *(("20 (200*0.1)", "20"), ("20 (i.e. 200*0.1)", "20"), ("20 (i.e. 100+50)", "20"), ("75 (100*0.75)", "75")),
        *(("75% (0.75*100)", "75"), ("75% (0.75*100)", "75%"), (r"60 (0.6 \cdot 100)", "60")),
        *(("0.25 (0.5^2)", "0.25"), ("1.5 (3*0.5)", "1.5"), ("0.5 (1*0.5)", "0.5")),
    ],
)
def test_a_calculation_with_a_term_larger_than_the_number_may_explain_it(formula, truth):
    assert reason_of(f"The answer is {formula}.", truth) == "correct"


@pytest.mark.parametrize("sign", ["*", r"\times", r"\cdot"])
def test_a_product_that_cannot_be_the_number_is_a_factor(sign):
    assert reason_of(f"The answer is 3 (2 {sign} 5).", "30") == "correct"
    assert reason_of(f"The answer is 3 (2 {sign} 5).", "3") == "wrong_answer"


def test_the_half_of_the_day_and_a_calculation_are_both_left_out():
    assert reason_of("The answer is 12 a.m. (11+1)", "12") == "correct"


@pytest.mark.parametrize("response", ["12 (3*4) or 13", "12 or 13", "12 (3*4) or 13 (3*4+1)"])
def test_another_answer_behind_a_calculation_is_another_answer(response):
    for truth in ("12", "13"):
        assert reason_of(f"The answer is {response}", truth) == "wrong_answer"
