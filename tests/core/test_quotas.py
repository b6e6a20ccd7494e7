from __future__ import annotations

from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from rollpacker.core.ids import Domain
from rollpacker.core.quotas import apportion, interleave, scale_up, with_speculation

MATH, CODE, JUDGE = Domain("math"), Domain("code"), Domain("judge")

weights = st.dictionaries(
    st.sampled_from([Domain(name) for name in "abcdef"]),
    st.fractions(min_value=Fraction(1, 100), max_value=100),
    min_size=1,
)
factors = st.fractions(min_value=1, max_value=4)


def test_fifty_prompts_by_one_point_one_are_fifty_five() -> None:
    assert scale_up(50, Fraction("1.1")) == 55
    assert scale_up(50, Fraction(1.1)) == 56, "which is what the double nearest to 1.1 would launch"


def test_what_is_left_goes_to_the_largest_remainder_and_ties_to_the_first_domain() -> None:
    assert apportion(10, {MATH: Fraction(34), CODE: Fraction(33), JUDGE: Fraction(33)}) == {MATH: 4, CODE: 3, JUDGE: 3}
    assert apportion(5, {MATH: 1, CODE: 1, JUDGE: 1}) == {MATH: 2, CODE: 2, JUDGE: 1}
    assert apportion(3, {MATH: Fraction(1, 2), CODE: Fraction("0.3"), JUDGE: Fraction("0.2")}) == {
        MATH: 1,
        CODE: 1,
        JUDGE: 1,
    }


@given(st.integers(0, 5000), weights)
def test_quotas_add_up_and_each_is_within_one_of_its_exact_share(total: int, weights: dict[Domain, Fraction]) -> None:
    quotas = apportion(total, weights)
    assert sum(quotas.values()) == total
    for domain, quota in quotas.items():
        assert abs(quota - total * weights[domain] / sum(weights.values())) < 1


@given(st.integers(1, 5000), weights, factors)
def test_launches_add_up_to_the_scaled_batch_and_cover_each_quota(
    total: int, weights: dict[Domain, Fraction], factor: Fraction
) -> None:
    quotas = apportion(total, weights)
    launches = with_speculation(quotas, factor)
    assert sum(launches.values()) == scale_up(total, factor)
    assert all(launches[domain] >= quotas[domain] for domain in quotas)
    assert all(not launches[domain] for domain in quotas if not quotas[domain]), "nobody races for no place"


def test_interleaving_spreads_the_rare_among_the_many() -> None:
    assert "".join(interleave(["aaaaaa", "bb"])) == "aabaaaba"


@given(st.lists(st.integers(0, 20), max_size=4), st.integers(1, 4))
def test_interleaving_keeps_each_order_and_gives_every_cut_its_share(lengths: list[int], num_cuts: int) -> None:
    columns = [[(order, index) for index in range(length)] for order, length in enumerate(lengths)]
    mixed = interleave(columns)
    for order, column in enumerate(columns):
        assert [item for item in mixed if item[0] == order] == column
    for cut in range(num_cuts + 1):
        head = mixed[: len(mixed) * cut // num_cuts]
        came = Counter(order for order, _ in head)
        assert all(abs(came[order] - length * cut / num_cuts) <= len(lengths) for order, length in enumerate(lengths))
