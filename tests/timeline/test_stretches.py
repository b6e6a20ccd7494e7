"""How slices are laid out on lanes, and counted."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rollpacker.timeline.stretches import concurrency, lanes

SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda span: (span[0], span[0] + span[1])), max_size=40
).map(sorted)


@given(spans=SPANS)
def test_slices_of_one_lane_follow_each_other_and_there_are_no_more_lanes_than_are_busy_at_once(spans):
    began, ended = [first for first, _ in spans], [last for _, last in spans]
    chosen = lanes(began, ended)
    for lane in set(chosen):
        mine = [span for span, number in zip(spans, chosen, strict=True) if number == lane]
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(mine))
    # what ends is gone before what begins at the same time, but a span without length is still there
    busiest = max((sum(a < first < b or a == first for a, b in spans) for first, _ in spans), default=0)
    assert len(set(chosen)) <= busiest


@given(spans=SPANS)
def test_as_many_are_counted_as_are_open(spans):
    times, counts = concurrency([first for first, _ in spans], [last for _, last in spans])
    for at, count in zip(times.tolist(), counts.tolist(), strict=True):
        assert count == sum(first <= at < last for first, last in spans)
