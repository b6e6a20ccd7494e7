"""How slices are laid out on lanes, and counted."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollpacker.core.ids import PromptId, RequestId, held_out_prompt
from rollpacker.metrics.tables import read_frame
from rollpacker.timeline.run_tables import open_run
from rollpacker.timeline.stretches import (
    GOES_ON,
    MOVES,
    Lanes,
    concurrency,
    covered,
    request_labels,
    request_names,
    stretches_of,
)
from tests.timeline.runs import modelled_run

SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda span: (span[0], span[0] + span[1])), max_size=40
).map(sorted)


@given(spans=SPANS)
def test_slices_of_one_lane_follow_each_other_and_there_are_no_more_lanes_than_are_busy_at_once(spans):
    began, ended = [first for first, _ in spans], [last for _, last in spans]
    chosen = Lanes().choose(began, ended)
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


def test_in_an_asynchronous_run_each_stretch_is_of_the_step_in_whose_time_it_was(tmp_path):
    pools = ("placement.engine=rest", "placement.trainer=4-7", "hardware.num_nodes=1", "engine.num_engines=null")
    run_dir = modelled_run(tmp_path / "run", "system=flash", "run.num_steps=5", *pools)
    tables = open_run(run_dir)
    found = []
    for part in tables.parts(num_steps=2):
        stretches = stretches_of(part)
        steps = part.steps.set_index("step")
        ended_s = steps["finished_at_s"].loc[stretches["step"]].to_numpy()
        began_s = ended_s - steps["step_time_s"].loc[stretches["step"]].to_numpy()
        assert (stretches["began_s"].to_numpy() >= began_s - 1e-6).all()
        assert (stretches["ended_s"].to_numpy() <= ended_s + 1e-6).all()
        found.append(stretches)
    responses, moves = read_frame(run_dir, "responses"), read_frame(run_dir, "intervals")
    num_moves = int(moves["activity"].isin(MOVES).sum())
    assert num_moves > 0
    assert sum(map(len, found)) == len(responses) + num_moves
    assert (pd.concat(found).groupby("step").size() > 0).all()


def test_a_request_that_engines_keep_over_new_weights_has_a_row_in_each_step_and_only_the_last_has_its_end(tmp_path):
    pools = ("placement.engine=rest", "placement.trainer=4-7", "hardware.num_nodes=1", "engine.num_engines=null")
    run_dir = modelled_run(tmp_path / "run", "system=flash", "system.interrupt=keep", "run.num_steps=5", *pools)
    found = pd.concat(stretches_of(part) for part in open_run(run_dir).parts(num_steps=2))
    responses, steps = read_frame(run_dir, "responses"), read_frame(run_dir, "steps").set_index("step")
    ended_s = steps["finished_at_s"].loc[found["step"]].to_numpy()
    assert (found["ended_s"].to_numpy() <= ended_s + 1e-6).all()
    goes_on = found[found["end"] == GOES_ON]
    assert len(goes_on) > 0
    assert (goes_on["response"] == -1).all()
    assert goes_on["ended_s"].to_numpy() == pytest.approx(steps["finished_at_s"].loc[goes_on["step"]].to_numpy())
    assert len(found) - len(goes_on) == len(responses)
    whole_s = (responses["finished_at_s"] - responses["placed_at_s"]).sum()
    assert (found["ended_s"] - found["began_s"]).sum() == pytest.approx(whole_s, rel=1e-3)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [([], 0), ([(1, 3), (2, 5)], 4), ([(1, 2), (4, 5)], 2), ([(1, 9), (2, 3), (8, 8)], 8), ([(-5, 1), (9, 30)], 2)],
)
def test_overlapping_spans_count_once_and_only_between_two_moments(spans, expected):
    assert covered(np.array(spans, dtype=float), 0.0, 10.0) == expected


@given(st.text(), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
@example("q@0#1", 0, 0, 0)
@example("q\nr0:q@0#1\n", 0, 0, 0)
def test_a_request_is_shown_by_its_prompt_and_sample_without_its_round_and_epoch(key, number, epoch, sample):
    rows = pd.DataFrame({"prompt": [key], "epoch": [epoch], "round": [number], "sample": [sample]})
    name = str(RequestId(number, PromptId(epoch, key), sample))
    held_out = str(RequestId(number, held_out_prompt("new", key), sample))
    assert list(request_names(rows)) == [name]
    assert list(request_labels(pd.Series([name, held_out]))) == [f"{key} #{sample}", f"new/{key} #{sample}"]
