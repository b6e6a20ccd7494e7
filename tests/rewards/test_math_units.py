import pytest

from tests.rewards.test_math import reason_of


@pytest.mark.parametrize(
    ("truth", "right", "wrong"),
    [
        ("20+15h", "15h+20", "35"),
        ("2s + 4t", "4t+2s", "2s+4"),
        ("3x + 2m", "2m+3x", "3x+2"),
        ("3 - 2ab", "-2ba+3", "1"),
        ("x + 2am", "2am+x", "x+2"),
        (r"\cos 2t", r"\cos(2t)", r"\cos 2"),
        (r"\sin t", r"\sin(t)", r"\sin s"),
        (r"\omega t", r"t\omega", r"\omega"),
        ("a > b > c", "a>b>c", "a>b>d"),
        ("2t, 3t", "3t, 2t", "3, 2t"),
        ("f(x) = c", "f(x)=c", "f(x) = h"),
        (r"1-5\mathrm{i}", "-5i+1", "-4"),
        ("1-5i", "1-5 i", "1-5"),
        (r"4-\mathrm{i}", r"-\text{i}+4", "4"),
        (r"2\mathrm{e}", "2e", "2"),
        (r"-\frac{1}{\mathrm{e}}", "-e^{-1}", "-1"),
        (r"\mathrm{e}^2", "e^2", "2"),
        (r"2\mathbf{i} + 3\mathbf{j}", r"3\mathbf{j} + 2\mathbf{i}", "2"),
        (r"\frac{1}{3} E_{1}+\frac{2}{3} E_{2}", r"\frac{E_1 + 2E_2}{3}", "1"),
    ],
)
@pytest.mark.parametrize("words", [r"\boxed{%s}", "The answer is $%s$.", r"So \[%s\]"])
def test_letters_are_no_units_beside_others_or_in_upright_type(truth, right, wrong, words):
    assert reason_of(words.replace("%s", right), truth) == reason_of(words.replace("%s", truth), right) == "correct"
    assert (
        reason_of(words.replace("%s", wrong), truth) == reason_of(words.replace("%s", truth), wrong) == "wrong_answer"
    )


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        ("5", "5 m"),
        ("5", "5m"),
        ("5", "t = 5 s"),
        ("5", r"\frac{10}{2} h"),
        ("5", r"0.5 \times 10^{1} m"),
        ("5", r"500 \cdot 10^{-2} g"),
        ("-5", "-5 m"),
    ],
)
def test_a_letter_behind_a_number_alone_may_be_a_unit(number, answer):
    assert reason_of(rf"\boxed{{{answer}}}", number) == "correct"
    assert reason_of(rf"\boxed{{{number}}}", answer) == "correct"


@pytest.mark.parametrize(
    ("several", "others"),
    [
        (r"2 \text{ hours } 30 \text{ minutes}", ("2", r"2 \text{ hours } 40 \text{ minutes}")),
        (r"2 \text{ hours and } 30 \text{ minutes}", ("2",)),
        (r"15 \text{ nickels}, 20 \text{ dimes}", ("15", r"15 \text{ nickels}, 25 \text{ dimes}")),
        (r"15 \mathrm{~cm} \times 20 \mathrm{~cm}", ("15", "20")),
        (r"3 \text{ cm} + \frac{1}{2}", ("3", r"3 \text{ cm} + \frac{1}{3}")),
        (r"3 \text{ if } x = \frac{1}{2}", ("3", r"3 \text{ if } x = \frac{1}{3}")),
        (
            r"\begin{cases} a & \text{if } x>b \\ b & \text{otherwise} \end{cases}",
            (r"\begin{cases} a & \text{if } x>b \\ c & \text{otherwise} \end{cases}",),
        ),
    ],
)
def test_what_stands_behind_a_unit_is_no_part_of_it(several, others):
    assert reason_of(rf"\boxed{{{several}}}", several) == "correct"
    for other in others:
        assert reason_of(rf"\boxed{{{several}}}", other) == "wrong_answer"
        assert reason_of(rf"\boxed{{{other}}}", several) == "wrong_answer"


@pytest.mark.parametrize(
    "unit",
    [
        r"\mathrm{~km} / \mathrm{h}",
        r"\text{ m}/\text{s}^2",
        r"\mbox{ cm}^2",
        r"\text{ kg} \cdot \text{m}^{2} \text{s}^{-1}",
    ],
)
def test_a_unit_may_have_several_parts_and_powers(unit):
    assert reason_of(rf"\boxed{{12{unit}}}", "12") == reason_of(r"\boxed{12}", f"12{unit}") == "correct"


@pytest.mark.parametrize("counted", ["eggs", "people", "square feet", "years old", "dollars per day", r"cups of tea"])
def test_words_behind_a_number_say_what_it_counts(counted):
    for blank in (" ", r"\ "):
        assert reason_of(rf"\boxed{{18{blank}{counted}}}", "18") == "correct"
    assert reason_of(rf"\boxed{{n = 18 {counted}}}", "18") == "correct"
    for truth in (f"18 {counted}", f"18 ({counted})"):
        assert reason_of(r"\boxed{18}", truth) == reason_of(rf"\boxed{{18 {counted}}}", truth) == "correct"
    assert reason_of(rf"\boxed{{19 {counted}}}", f"18 {counted}") == "wrong_answer"


@pytest.mark.parametrize(
    "answer",
    [
        "18 million",
        "18 hundredths",
        "18 fifths",
        "18 quarters",
        "18 root three",
        "18 choose two",
        "18 less than zero",
        "18 squared",
        "18 xyz",
        "18 abcd",
        "18 sinx",
        "18 or more",
        "18 eggs and 3 more",
        "2^18 bcde",
    ],
)
def test_other_letters_behind_a_number_belong_to_it(answer):
    assert reason_of(rf"\boxed{{{answer}}}", "18") == "wrong_answer"


@pytest.mark.parametrize(
    "time", ["7 p.m.", r"7\text{ p.m.}", "7 PM", "7:00 pm", r"7{:}00~\text{p.m.}", r"\text{7 PM}", "7 p. m."]
)
@pytest.mark.parametrize("words", [r"\boxed{%s}", "The answer is $%s$.", "The answer is %s"])
def test_a_time_may_name_its_half_of_the_day_but_not_the_other(time, words):
    response = words.replace("%s", time)
    for truth in ("7 p.m.", "7:00", "7"):
        assert reason_of(response, truth) == "correct"
    for truth in ("7 a.m.", r"8\text{ p.m.}", "7:30 pm"):
        assert reason_of(response, truth) == "wrong_answer"


def test_minutes_of_a_time_count():
    assert reason_of(r"\boxed{7:30 \text{ p.m.}}", "7:30 pm") == reason_of(r"\boxed{7:30}", "7:30pm") == "correct"
    assert reason_of(r"\boxed{7:30 am}", "7:30 pm") == reason_of(r"\boxed{7:31 pm}", "7:30 pm") == "wrong_answer"
