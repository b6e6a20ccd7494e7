"""What holds of every trace, held against the tables of the run."""

import gzip
import itertools
import json
import shutil
from collections import Counter, defaultdict

import numpy as np
import pandas as pd
import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.metrics.tables import Manifest, read_frame
from rollpacker.timeline.chrome_trace import save_trace
from rollpacker.timeline.run_tables import STEPS_AT_A_TIME, open_run
from rollpacker.timeline.stretches import GOES_ON, MOVES, stretches_of
from tests.sim.test_environment import RUN
from tests.timeline.runs import modelled_run, run_with_lost_engines
from tests.timeline.test_worker_lives import WORDS

NS = 1000

SPLIT_POOLS = ("placement.engine=rest", "placement.trainer=4-7", "hardware.num_nodes=1", "engine.num_engines=null")


def trace_of(run_dir, out, steps=None):
    summary = save_trace(open_run(run_dir, steps), out)
    opened = gzip.open if out.suffix == ".gz" else open
    with opened(out, "rb") as file:
        return json.load(file), summary


def slices_by_thread(trace):
    threads = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            began = round(event["ts"] * NS)
            threads[event["pid"], event["tid"]].append((began, began + round(event["dur"] * NS), event))
    return threads


def check(trace):
    """The format's rules, and ours."""
    threads = slices_by_thread(trace)
    named = {(event["pid"], event["tid"]) for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert set(threads) <= named
    for slices in threads.values():
        assert all(began >= 0 and ended >= began for began, ended, _ in slices)
        open_until = []
        for began, ended, event in sorted(slices, key=lambda item: (item[0], -item[1])):
            while open_until and open_until[-1] <= began:
                open_until.pop()
            assert not open_until or ended <= open_until[-1], f"{event} overlaps what it does not lie in"
            open_until.append(ended)
    flows = defaultdict(dict)
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            assert event["ph"] not in flows[event["id"]], "a flow has two ends of a kind"
            flows[event["id"]][event["ph"]] = event
            at = round(event["ts"] * NS)
            around = threads[event["pid"], event["tid"]]
            assert any(began <= at <= ended for began, ended, _ in around), f"{event} lies in no slice"
    for ends in flows.values():
        assert ends.keys() == {"s", "f"}
        assert ends["s"]["ts"] <= ends["f"]["ts"]
    return threads, flows


@pytest.fixture(scope="module")
def streamed(tmp_path_factory):
    return modelled_run(tmp_path_factory.mktemp("streamed"), "system=rollpacker", "system.planner=false")


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return run_with_lost_engines(tmp_path_factory.mktemp("broken"))


def test_every_response_is_a_slice_on_its_engine_and_every_migration_an_arrow(streamed, tmp_path):
    trace, summary = trace_of(streamed, tmp_path / "trace.json.gz")
    threads, flows = check(trace)
    processes = {
        event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"
    }
    responses, intervals = read_frame(streamed, "responses"), read_frame(streamed, "intervals")
    found = Counter(
        (processes[pid].partition(",")[0].partition(" ")[0], event["name"], event["args"]["end"])
        for (pid, _), slices in threads.items()
        for _, _, event in slices
        if event["cat"] == "request" and event["args"]["end"] != "moves on"
    )
    expected = Counter((row.engine, f"{row.prompt} #{row.sample}", row.finish_reason) for row in responses.itertuples())
    assert found == expected
    assert len(flows) == summary.num_migrations == (intervals["activity"] == "evicted").sum() > 0
    assert summary.num_slices == sum(map(len, threads.values()))


@pytest.mark.parametrize("when", ["alone", "fill"])
def test_every_held_out_response_is_a_slice_on_a_lane_of_its_engine_and_counted(tmp_path, when):
    lines = [{"id": f"q{n}", "domain": "math", "prompt": f"{n}?", "ground_truth": "1"} for n in range(20)]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = (f"evaluation.path={tmp_path / 'new.jsonl'}", "evaluation.every_steps=1", f"evaluation.when={when}")
    run = modelled_run(tmp_path / "run", "system=verl", *words)
    trace, _ = trace_of(run, tmp_path / "trace.json")
    threads, _ = check(trace)
    lanes = {
        (event["pid"], event["tid"]): event["args"]["name"].partition(",")[0]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    responses = read_frame(run, "evaluation_responses")
    assert (read_frame(run, "evaluations")["mode"] == "fill").any() == (when == "fill")
    drawn = [
        (lanes[place], event["name"], began, ended)
        for place, slices in threads.items()
        for began, ended, event in slices
        if event["cat"] == "evaluation"
    ]
    assert sorted(drawn) == sorted(
        (row.engine, f"new: {row.prompt} #{row.sample}", round(row.launched_at_s * 1e9), round(row.finished_at_s * 1e9))
        for row in responses.itertuples()
    )
    most: Counter[str] = Counter()
    for event in trace["traceEvents"]:
        name = event["name"].removeprefix("requests of ")
        if name != event["name"]:
            most[name] = max(most[name], event["args"]["requests"])
    assert most.keys() == set(responses["engine"])
    assert all(0 < number <= len(lines) for number in most.values())


def test_of_some_steps_only_the_evaluations_beside_them_are_written(tmp_path):
    line = {"id": "q", "domain": "math", "prompt": "?", "ground_truth": "1"}
    (tmp_path / "new.jsonl").write_text(json.dumps(line) + "\n")
    words = (f"evaluation.path={tmp_path / 'new.jsonl'}", "evaluation.every_steps=1")
    run = modelled_run(tmp_path / "run", "system=verl", *words)
    held_out = [set(frame["step"]) for frame in open_run(run, (1, 1)).held_out()]
    assert held_out == [{1}, {2}]
    (run / "evaluation" / "manifest.json").write_bytes(Manifest().to_json())
    assert not list(open_run(run).held_out()), "a run whose first evaluation is not over"


def test_only_checkpoints_that_were_written_are_drawn(tmp_path):
    words = ("system=verl", "run.checkpoint_every_steps=1", "workload.solve_rate=1", "run.resume=auto")
    modelled_run(tmp_path / "run", *words, "run.num_steps=3")
    line = {"id": "q", "domain": "math", "prompt": "?", "ground_truth": "1"}
    (tmp_path / "new.jsonl").write_text(json.dumps(line) + "\n")
    held_out = (f"evaluation.path={tmp_path / 'new.jsonl'}", "evaluation.every_steps=1", "run.keep_best=true")
    run = modelled_run(tmp_path / "run", *words, *held_out, "run.num_steps=5")
    assert (run / "checkpoints" / "best").readlink().name == "step-000003", "no later score is better"
    assert read_frame(run, "intervals").query("activity == 'checkpoint'")["step"].tolist() == [1, 2, 4]
    trace, _ = trace_of(run, tmp_path / "trace.json")
    check(trace)
    assert kinds(trace, "i")["checkpoint written"] == 3


def test_a_modelled_run_says_so_in_every_name(streamed, tmp_path):
    trace, _ = trace_of(streamed, tmp_path / "trace.json")
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert all(name.endswith("(modelled)") for name in names)
    assert trace["otherData"]["modelled"] is True


def test_steps_rounds_stages_and_the_trainer_are_where_the_tables_say(streamed, tmp_path):
    threads, _ = check(trace_of(streamed, tmp_path / "trace.json")[0])
    by_category = defaultdict(list)
    for slices in threads.values():
        for began, ended, event in slices:
            by_category[event["cat"]].append((began / 1e9, ended / 1e9, event["name"]))
    steps = read_frame(streamed, "steps")
    ends = [ended for _, ended, _ in sorted(by_category["step"])]
    assert [name for _, _, name in sorted(by_category["step"])] == [f"step {n + 1} (modelled)" for n in steps["step"]]
    assert ends == pytest.approx(steps["finished_at_s"].tolist())
    assert [name for _, _, name in sorted(by_category["round"]) if "round" in name] == [
        f"round {row.round + 1}, {row.round_kind}" for row in steps.itertuples()
    ]
    trained = [ended - began for began, ended, name in sorted(by_category["trainer"]) if name == "train"]
    assert trained == pytest.approx(steps["train_time_s"].tolist())
    assert any(name == "stream" for _, _, name in by_category["trainer"])


def test_counters_of_running_requests_begin_and_end_with_none_and_stay_below_the_number_of_requests(streamed, tmp_path):
    trace, _ = trace_of(streamed, tmp_path / "trace.json")
    counters = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "C":
            counters[event["pid"], event["name"]].append((event["ts"], *event["args"].values()))
    running = [points for (_, name), points in counters.items() if name == "requests running"]
    assert len(running) == 4
    for points in running:
        values = [value for _, value in sorted(points)]
        assert values[-1] == 0
        assert 0 < max(values) <= 16 * 4 * 2
        assert min(values) >= 0


def test_only_the_steps_that_were_asked_for_are_written(streamed, tmp_path):
    trace, summary = trace_of(streamed, tmp_path / "trace.json", steps=(1, 2))
    threads, _ = check(trace)
    steps = read_frame(streamed, "steps").set_index("step")
    assert summary.num_steps == 2
    first = steps.loc[0, "finished_at_s"] * 1e9
    last = steps.loc[2, "finished_at_s"] * 1e9
    for slices in threads.values():
        assert all(first - 1 <= began and ended <= last + 1 for began, ended, _ in slices)


def test_of_an_asynchronous_run_no_slice_has_the_facts_of_another_response(tmp_path):
    run = modelled_run(tmp_path / "run", "system=flash", "placement.engine=rest", "placement.trainer=4-7")
    trace, _ = trace_of(run, tmp_path / "trace.json", steps=(1, 2))
    threads, _ = check(trace)
    steps = read_frame(run, "steps").set_index("step")
    first, last = steps.loc[0, "finished_at_s"] * 1e9, steps.loc[2, "finished_at_s"] * 1e9
    responses = read_frame(run, "responses")
    lengths = defaultdict(set)
    for row in responses.itertuples():
        lengths[f"{row.prompt} #{row.sample}"].add(row.length_tokens)
    slices = [each for of_thread in threads.values() for each in of_thread]
    assert all(first - 1 <= began and ended <= last + 1 for began, ended, _ in slices)
    told = [event for _, _, event in slices if event["cat"] == "request" and "length_tokens" in event["args"]]
    assert told
    assert all(event["args"]["length_tokens"] in lengths[event["name"]] for event in told)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    words = ("system=flash", "system.interrupt=keep", "run.num_steps=6", *SPLIT_POOLS)
    return modelled_run(tmp_path_factory.mktemp("kept") / "run", *words)


def test_some_steps_of_an_asynchronous_run_have_the_requests_that_all_of_them_have_there(kept, tmp_path):
    num_slices = {}
    for steps in (None, *((step, step) for step in range(6))):
        threads, _ = check(trace_of(kept, tmp_path / "trace.json", steps)[0])
        events = [event for slices in threads.values() for _, _, event in slices if event["cat"] == "request"]
        num_slices[steps] = len(events)
    assert num_slices[None] == sum(number for steps, number in num_slices.items() if steps is not None)
    assert (read_frame(kept, "steps")["staleness_max"] == 0).any(), "a step that does not know how late others train"


def test_counters_agree_with_the_slices_where_requests_go_on_over_new_weights(kept, tmp_path):
    trace, _ = trace_of(kept, tmp_path / "trace.json")
    threads, _ = check(trace)
    last = max(event["ts"] for event in trace["traceEvents"] if event["ph"] == "C")
    processes = {event["pid"] for event in trace["traceEvents"] if event["name"] == "requests running"}
    assert processes
    for process, at in itertools.product(processes, np.linspace(0, last, 50)[1:-1]):
        counted = 0
        for name in ("requests running", "requests waiting"):
            points = [each for each in trace["traceEvents"] if each["name"] == name and each["pid"] == process]
            before = [each for each in points if each["ts"] <= at]
            counted += before[-1]["args"]["requests"] if before else 0
        drawn = sum(
            began <= at * NS < ended and event["cat"] == "request"
            for (pid, _), slices in threads.items()
            if pid == process
            for began, ended, event in slices
        )
        assert abs(counted - drawn) <= 1  # counters are thinned


def test_an_arrow_leads_to_the_next_turn_and_none_from_one_step_to_the_next(tmp_path):
    words = [word for word in (*RUN, *SPLIT_POOLS) if "=all" not in word]
    config = compose([*words, "system=flash", "system.interrupt=keep", f"run.dir={tmp_path / 'run'}"])
    pipeline.run(config)
    stretches = pd.concat(stretches_of(part) for part in open_run(tmp_path / "run").parts())
    turned = set(stretches.loc[stretches["end"] == "turn", "request"])
    assert (stretches.loc[stretches["request"].isin(turned), "end"] == GOES_ON).any()
    trace, summary = trace_of(tmp_path / "run", tmp_path / "trace.json")
    _, flows = check(trace)
    assert {(event["name"], event["cat"]) for ends in flows.values() for event in ends.values()} == {("turn", "turn")}
    assert summary.num_migrations == 0


def spans_ns(began_s, ended_s):
    return sorted(zip((began_s * 1e9).round().astype(int), (ended_s * 1e9).round().astype(int), strict=True))


def drawn(threads, category):
    return sorted((began, ended) for of in threads.values() for began, ended, event in of if event["cat"] == category)


def test_turns_moves_and_waits_are_whole_where_other_steps_are_read(tmp_path):
    words = [word for word in (*RUN, *SPLIT_POOLS) if "=all" not in word and "num_steps" not in word]
    words += ["system=flash", f"run.num_steps={STEPS_AT_A_TIME + 3}"]
    pipeline.run(compose([*words, f"run.dir={tmp_path / 'run'}"]))
    threads, flows = check(trace_of(tmp_path / "run", tmp_path / "trace.json")[0])
    intervals = read_frame(tmp_path / "run", "intervals")
    moves = intervals[intervals["activity"].isin(MOVES)]
    assert Counter(ends["s"]["name"] for ends in flows.values()) == Counter(moves["activity"])
    waits = intervals[intervals["role"] == "environment"]
    assert (waits["step"] == STEPS_AT_A_TIME).any()
    assert drawn(threads, "environment") == spans_ns(waits["started_at_s"], waits["ended_at_s"])
    events = [event for of in threads.values() for *_, event in of]
    requests, waiting = ({each["name"] for each in events if each["cat"] == cat} for cat in ("request", "environment"))
    assert waiting <= {f"{activity} {request}" for activity in waits["activity"].unique() for request in requests}


def test_rewards_are_whole_where_other_steps_are_read(tmp_path):
    words = ("system=flash", f"run.num_steps={STEPS_AT_A_TIME + 3}", *SPLIT_POOLS)
    run = modelled_run(tmp_path / "run", *words)
    threads, _ = check(trace_of(run, tmp_path / "trace.json")[0])
    scored = read_frame(run, "responses").query("reward_time_s > 0")
    assert drawn(threads, "score") == spans_ns(scored["scored_at_s"] - scored["reward_time_s"], scored["scored_at_s"])


def test_rollout_workers_arrive_and_leave_and_their_engines_stand_below_the_others(tmp_path):
    run = modelled_run(tmp_path / "run", *WORDS)
    trace, _ = trace_of(run, tmp_path / "trace.json")
    told = [event["name"] for event in trace["traceEvents"] if event["ph"] == "i" and event["name"].startswith("e0_")]
    assert told == ["e0_0-r0 arrives", "e0_1-r0 arrives", "e0_0-r0 leaves", "e0_0-r1 arrives"]
    assert engines_in_viewer(trace) == [
        *("engine-0", "engine-1", "engine-2", "engine-3"),
        *("e0_0-r0.0", "e0_0-r1.0", "e0_1-r0.0"),
    ]


def engines_in_viewer(trace):
    names, ranks = {}, {}
    for event in trace["traceEvents"]:
        if event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"].partition(",")[0].partition(" ")[0]
        if event["name"] == "process_sort_index":
            assert event["pid"] not in ranks
            ranks[event["pid"]] = event["args"]["sort_index"]
    assert names.keys() == ranks.keys()
    assert len(set(ranks.values())) == len(ranks)
    in_order = [names[process] for process in sorted(ranks, key=ranks.get)]
    return [name for name in in_order if name.startswith(("engine-", "e0_"))]


def test_lost_engines_their_successors_and_the_next_attempt_are_instants(broken, tmp_path):
    trace, _ = trace_of(broken, tmp_path / "trace.json")
    check(trace)
    told = Counter(event["name"].split(" ", 1)[1] for event in trace["traceEvents"] if event["ph"] == "i")
    steps = read_frame(broken, "steps")
    assert told["is lost"] >= steps["num_engines_lost"].sum() > 0
    assert told["joins"] > 0
    assert any(name.endswith("goes on here") for name in told)
    lost = (read_frame(broken, "intervals")["activity"] == "lost").sum()
    assert sum(event["ph"] == "s" for event in trace["traceEvents"]) == lost > 0


ONLY_LOGGED = (
    "engines that joined, were lost, retired or lent, rollout workers that arrived or left, changes of parallelism "
    "and starts of the run"
)


def assert_only_logged_events_are_missing(trace, whole):
    """All slices, flows and counters are there; of the instants only those that intervals tell."""
    for phase in "XsfC":
        assert kinds(trace, phase) == kinds(whole, phase)
    assert kinds(whole, "i") > kinds(trace, "i")
    assert kinds(trace, "i").keys() == {"new weights are published"}


def kinds(trace, phase):
    return Counter(event["name"] for event in trace["traceEvents"] if event["ph"] == phase)


def test_a_copy_without_its_event_logs_still_gives_a_trace_that_says_what_is_missing(streamed, tmp_path):
    shutil.copytree(streamed, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "events")
    whole, _ = trace_of(streamed, tmp_path / "whole.json")
    trace, _ = trace_of(tmp_path / "copy", tmp_path / "trace.json")
    check(trace)
    assert trace["otherData"]["notes"] == [f"There is no event log: {ONLY_LOGGED} are not shown."]
    assert_only_logged_events_are_missing(trace, whole)


def test_a_broken_event_log_is_left_out_with_its_line(streamed, tmp_path):
    shutil.copytree(streamed, tmp_path / "copy")
    log = tmp_path / "copy" / "events" / "attempt-000.jsonl"
    lines = log.read_text().splitlines()
    lines[1] = lines[1][:-5]
    log.write_text("\n".join(lines) + "\n")
    whole, _ = trace_of(streamed, tmp_path / "whole.json")
    trace, _ = trace_of(tmp_path / "copy", tmp_path / "trace.json")
    (note,) = trace["otherData"]["notes"]
    assert note.startswith(f"The event logs are left out, so {ONLY_LOGGED} are not shown: {log}, line 2 is broken")
    assert_only_logged_events_are_missing(trace, whole)
