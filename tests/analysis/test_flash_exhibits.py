"""What the exhibits of asynchronous training make of runs: numbers that can be worked out by hand."""

import pytest

from rollpacker.analysis.exhibits import (
    flash_agents,
    flash_fig01b,
    flash_fig07,
    flash_fig08,
    flash_fig09,
    flash_fig10,
    flash_fig11,
    flash_interrupt,
    flash_losses,
    flash_sizes,
    flash_table1,
    flash_tail,
    flash_theory,
)
from rollpacker.analysis.exhibits.flash_sizes import SPLITS
from rollpacker.analysis.numbers import Source, Standing
from rollpacker.analysis.runs import Runs, read_runs
from rollpacker.config.compose import compose
from rollpacker.sim.split import theory_of
from tests.analysis.written_runs import forget_steps, numbers_of, ours, write_run, write_scores


def flash(study, workload="base", **rollout):
    """What the configuration of such a run says."""
    return {"run": {"setup": "flash", "study": study}, "workload": {"name": workload}, "rollout": rollout}


def test_the_least_ratio_is_the_first_within_five_per_cent_of_the_best_and_its_error_is_against_the_papers(tmp_path):
    sizes = {"num_prompts": 128, "num_responses": 8, "max_response_tokens": 32768}
    for ratio, step_s in zip(flash_table1.RATIOS, (20.0, 12.0, 10.4, 10.1, 10.0), strict=True):
        config = flash(f"flash-table1-{ratio}-32768", **sizes)
        write_run(
            tmp_path / str(ratio),
            "roll-flash",
            [99.0] * 4 + [step_s] * 26,
            model="Qwen3-4B",
            config=config,
            modelled=True,
        )
    numbers = numbers_of(flash_table1.EXHIBIT, tmp_path)
    for panel, name in (("model", "4B"), ("length", "32k"), ("batch", "128")):
        assert ours(numbers, f"least ratio by {panel}") == {("ours", name): 2.0}
    assert ours(numbers, "throughput by model")["4B", 0.0] == pytest.approx(50.0)
    standings = {claim.text: claim.standing for claim in numbers.claims}
    assert standings["least ratio with full throughput, model 4B"] is Standing.REPRODUCED
    assert standings["least ratio with full throughput, batch 32"] is Standing.UNKNOWN


def test_a_greater_ratio_than_the_papers_is_not_its_direction(tmp_path):
    config = {"num_prompts": 256, "num_responses": 8, "max_response_tokens": 32768}
    for ratio, step_s in zip(flash_table1.RATIOS, (20.0, 18.0, 16.0, 10.0, 10.0), strict=True):
        times = {"model": "Qwen3-4B", "config": flash(f"flash-table1-{ratio}-32768", **config), "modelled": True}
        write_run(tmp_path / str(ratio), "roll-flash", [99.0] * 4 + [step_s] * 26, **times)
    claims = {claim.text: claim for claim in numbers_of(flash_table1.EXHIBIT, tmp_path).claims}
    claim = claims["least ratio with full throughput, batch 256"]
    assert (claim.paper, claim.ours.y, claim.standing) == (2.0, 3.0, Standing.NOT)


def whole(study, *words):
    """A configuration that the schema accepts, and its record."""
    config = compose(["setup=flash", "run.dir=r", *words])
    record = {name: section for name, section in config.model_dump(mode="json").items() if section is not None}
    return config, record | {"run": record["run"] | {"study": study}}


LONGEST = {"response_length_max_tokens": 20_000}


def bounds_of(config):
    """Theory with the longest responses of these runs."""
    return theory_of(config, 20_000)


def write_sizes(folder):
    """Runs on 32 GPUs, of which the divided ones are fastest at split 5-7; gives what the plain and that one are of."""
    words = ("placement.engine=all", "placement.trainer=all")
    plain, turns = whole("flash-fig01b-4-turns", "system=verl", *words)
    for system, step_s, tokens, age in (
        ("verl", 30.0, 100, 0.0),
        ("rollpacker", 20.0, 75, 0.0),
        ("flash", 15.0, 100, 1.1),
    ):
        values = {"tokens_trained": tokens, "num_responses": 10, "staleness_mean": age, **LONGEST}
        write_run(folder / system, system, [step_s] * 15, config=turns, modelled=True, **values)
    divided = {}
    for step_s, split in zip((40.0, 20.0, 10.0), SPLITS, strict=True):
        divided[split], config = whole(f"flash-fig01b-4-{split}", "system=roll-flash", f"placement.trainer='{split}'")
        values = {"tokens_trained": 100, "num_responses": 10, "staleness_mean": 1.9, **LONGEST}
        write_run(folder / split, "roll-flash", [step_s] * 15, config=config, modelled=True, **values)
    return plain, divided["5-7"]


def test_divided_runs_are_compared_at_their_best_split_and_beside_the_ratio_of_the_bounds(tmp_path):
    theory = bounds_of(write_sizes(tmp_path)[0])
    numbers = numbers_of(flash_fig01b.EXHIBIT, tmp_path)
    assert ours(numbers, "Think: speedup over synchronous") == pytest.approx(
        {
            ("flash, in turns", 32.0): 2.0,
            ("roll-flash, best split", 32.0): 3.0,
            ("ratio of the bounds, staleness 2", 32.0): theory.synchronous_s / theory.asynchronous_s(2),
        }
    )
    forget_steps(tmp_path / "verl", {1, 5, 14})
    assert (
        ours(numbers_of(flash_fig01b.EXHIBIT, tmp_path), "Think: speedup over synchronous")["flash, in turns", 32.0]
        == 2
    )
    assert numbers.claims[0].standing is Standing.UNKNOWN  # it is of 128 GPUs
    assert numbers.claims[1].standing is Standing.UNKNOWN  # other lengths or numbers of GPUs may gain more


def test_the_most_that_divided_gpus_gain_is_of_every_size_each_at_the_best_of_all_splits(tmp_path):
    sizes = [(num_nodes, lengths) for num_nodes in flash_sizes.NUM_GPUS.values() for lengths in flash_sizes.WORKLOADS]
    runs = []
    for (num_nodes, lengths), gain in zip(sizes, (2.0, 2.0, 4.0, 2.0, 2.0, 2.0), strict=True):
        for part, step_s in (("turns", 60.0), *((split, 60.0 / gain) for split in SPLITS)):
            assert flash_fig01b.EXHIBIT.numbers(Runs(runs=runs)).claims[1].standing is Standing.UNKNOWN
            folder, system = tmp_path / f"{num_nodes}-{lengths}-{part}", "verl" if part == "turns" else "roll-flash"
            config = flash(f"flash-fig01b-{num_nodes}-{part}", lengths, num_prompts=128, num_responses=8)
            write_run(folder, system, [step_s] * 15, config=config, modelled=True)
            runs += read_runs([folder])[0]
    assert flash_fig01b.EXHIBIT.numbers(Runs(runs=runs)).claims[1].ours.y == pytest.approx(4.0)


def test_a_steps_time_stands_over_its_bound_and_the_best_split_beside_both_formulas(tmp_path):
    plain, divided = map(bounds_of, write_sizes(tmp_path))
    numbers = numbers_of(flash_theory.EXHIBIT, tmp_path)
    over = ours(numbers, "Think: step over its bound")
    assert over["verl", 32.0] == pytest.approx(30 / plain.synchronous_s)
    assert over["roll-flash, best split", 32.0] == pytest.approx(10 / divided.split_s(3 / 8, 2))
    shares = ours(numbers, "Think: GPUs that train (%)")
    assert shares["roll-flash, best split", 32.0] == 37.5
    assert shares["ROLL-Flash's formula", 32.0] == pytest.approx(100 * divided.trainer_share(2))
    assert shares["tighter bound", 32.0] > shares["ROLL-Flash's formula", 32.0]


def test_a_run_whose_configuration_is_of_another_version_has_no_bound_and_breaks_nothing(tmp_path):
    config = flash("flash-fig01b-4-turns", "think", num_prompts=128, num_responses=8)
    write_run(tmp_path / "old", "verl", [30.0] * 15, config=config)
    assert not ours(numbers_of(flash_theory.EXHIBIT, tmp_path), "Think: step over its bound")
    rates = ours(numbers_of(flash_fig01b.EXHIBIT, tmp_path), "Think: samples/s")
    assert rates == {("verl", 32.0): pytest.approx(1024 / 30)}


def test_when_which_has_speed_age_and_length_of_each_system_and_names_the_fastest(tmp_path):
    write_sizes(tmp_path)
    numbers = numbers_of(flash_tail.EXHIBIT, tmp_path)
    situation = "Think, 32 GPUs"
    assert ours(numbers, flash_tail.SPEEDUP)[situation, "RollPacker"] == pytest.approx(1.5)
    assert ours(numbers, flash_tail.LENGTH)[situation, "RollPacker"] == pytest.approx(0.75)
    assert ours(numbers, flash_tail.AGE)[situation, "roll-flash\ndivided"] == pytest.approx(1.9)
    figure = flash_tail.draw(numbers)
    bold = [text.get_text() for text in figure.axes[0].texts if text.get_fontweight() == "bold"]
    assert bold == ["3.00x"]


def test_a_race_of_redundant_prompts_is_timed_with_and_without_what_it_defers(tmp_path):
    rows = {"batch": [13.0] * 10, "queue": [9.0] * 10, "race": [5.0, 5.0, 5.0, 5.0, 21.0] * 2, "ahead": [5.0] * 10}
    for system, step_times in rows.items():
        kinds = ["long" if step % 5 == 4 and system == "race" else "short" for step in range(10)]
        config = flash("flash-fig07")
        write_run(tmp_path / system, system, step_times, config=config, modelled=True, round_kind=kinds)
    numbers = numbers_of(flash_fig07.EXHIBIT, tmp_path)
    found = {x: y for (_, x), y in ours(numbers, flash_fig07.TIME).items()}
    names = (flash_fig07.BATCH, flash_fig07.QUEUE, flash_fig07.RACED, flash_fig07.WHOLE, flash_fig07.AHEAD)
    assert [found[name] for name in names] == pytest.approx([12, 8, 4, 7.2, 4])
    assert {claim.text: claim.ours.y for claim in numbers.claims} == {
        "dynamic sampling, whole batches over +16 raced, short rounds: generation": pytest.approx(3.0),
        "dynamic sampling, whole batches over +16 ahead: generation": pytest.approx(3.0),
    }


def test_spreading_a_prompts_responses_is_compared_by_their_number(tmp_path):
    for routing, step_s in (("sample", 9.0), ("prompt", 13.0)):
        config = flash(f"flash-fig08-{routing}", num_prompts=64, num_responses=16)
        write_run(tmp_path / routing, "verl", [step_s] * 4, config=config, modelled=True)
    numbers = numbers_of(flash_fig08.EXHIBIT, tmp_path)
    assert ours(numbers, flash_fig08.SPEEDUP) == {("Base", 16.0): 1.5}
    assert ours(numbers, "Base: rollout (s)")["kept together", 16.0] == 12.0
    claim = numbers.claims[0]
    assert claim.text == "Base, 64 prompts x 16: responses together over spread: rollout"
    assert (claim.ours.y, claim.standing) == (1.5, Standing.DIRECTION)
    [of_paper] = [point for point in numbers.points if point.source is Source.PAPER]  # of neither workload
    assert (of_paper.x, of_paper.y) == (16.0, claim.paper)


def test_what_interrupting_costs_is_shown_in_tokens_in_the_engines_time_and_beside_keeping(tmp_path):
    values = {"tokens_trained": 1_000_000, "tokens_recomputed": 500_000, "num_requests_continued": 100}
    for interrupt, step_s, own in (("recompute", 10.5, values), ("keep", 10.0, {})):
        _, config = whole(f"flash-interrupt-{interrupt}-32768-1", "system=flash", f"system.interrupt={interrupt}")
        write_run(tmp_path / interrupt, "flash", [step_s] * 4, config=config, modelled=True, **own)
    numbers = numbers_of(flash_interrupt.EXHIBIT, tmp_path)
    series = ("at most 32,768 tokens", 1.0)
    assert ours(numbers, flash_interrupt.TOKENS) == {series: 0.5}
    assert ours(numbers, flash_interrupt.LOST) == {series: pytest.approx(5.0)}
    [share] = ours(numbers, flash_interrupt.ENGINES).values()
    prefill_s = 4 * 500_000 * 2 * 8.2e9 / (989e12 * 0.6)  # without attention
    assert 1 < share / (100 * prefill_s / (24 * 42)) < 1.5


def test_an_interrupted_run_of_another_version_has_no_share_of_the_engines_time_and_breaks_nothing(tmp_path):
    values = {"tokens_trained": 1_000_000, "tokens_recomputed": 500_000, "num_requests_continued": 100}
    config = flash("flash-interrupt-recompute-32768-1")
    write_run(tmp_path / "old", "flash", [10.0] * 4, config=config, modelled=True, **values)
    numbers = numbers_of(flash_interrupt.EXHIBIT, tmp_path)
    assert list(ours(numbers, flash_interrupt.TOKENS).values()) == [0.5]
    assert not ours(numbers, flash_interrupt.ENGINES)


def test_a_run_that_was_faster_than_one_that_keeps_is_drawn_below_zero(tmp_path):
    values = {"tokens_trained": 1, "tokens_recomputed": 0, "num_requests_continued": 0}
    for interrupt, step_s in (("recompute", 9.5), ("keep", 10.0)):
        _, config = whole(f"flash-interrupt-{interrupt}-32768-1", "system=flash", f"system.interrupt={interrupt}")
        write_run(tmp_path / interrupt, "flash", [step_s] * 4, config=config, modelled=True, **values)
    panels = flash_interrupt.EXHIBIT.draw(numbers_of(flash_interrupt.EXHIBIT, tmp_path)).axes
    lowest = {axes.get_title(loc="left") or axes.get_title(): axes.get_ylim()[0] for axes in panels}
    assert lowest[flash_interrupt.LOST] < -5
    assert lowest[flash_interrupt.TOKENS] == 0


def test_losses_are_held_against_synchronous_training_at_the_last_evaluation(tmp_path):
    def write(study, system, last):
        config = {"run": {"setup": "walks", "study": study}, "trainer": {"loss": system, "mismatch": f"of {system}"}}
        folder = write_run(tmp_path / study / system, system, [1.0] * 4, config=config)
        write_scores(folder, {0: 0.1, 2: 0.4, 4: last})

    write("flash-losses-0", "verl", 0.8)
    write("flash-losses-8", "tis", 0.76)
    write("flash-losses-8", "uncorrected", 0.4)
    numbers = numbers_of(flash_losses.EXHIBIT, tmp_path)
    standings = {claim.text.partition(":")[0]: claim.standing for claim in numbers.claims}
    assert standings["tis at staleness 8"] is Standing.REPRODUCED
    assert standings["uncorrected at staleness 8"] is Standing.NOT
    assert standings["tis at staleness 2"] is Standing.UNKNOWN
    assert ours(numbers, "held-out score, staleness 8")["ours", "synchronous"] == 0.8


def test_the_pace_of_trajectories_is_compared_by_how_much_their_environments_vary(tmp_path):
    for pace, step_s in (("batch", 801.0), ("own", 401.0)):
        write_run(tmp_path / pace, "verl", [step_s] * 4, config=flash(f"flash-fig09-{pace}-10"), modelled=True)
    numbers = numbers_of(flash_fig09.EXHIBIT, tmp_path)
    assert ours(numbers, flash_fig09.SPEEDUP) == {("each by itself", 10.0): 2.0}
    assert ours(numbers, flash_fig09.TIME)["batches of turns", 10.0] == 800.0
    [claim] = numbers.claims
    assert claim.paper == pytest.approx(892 / 362)
    assert claim.standing is Standing.DIRECTION


def test_redundant_environments_are_timed_with_and_without_the_rounds_that_train_what_was_deferred(tmp_path):
    write_run(tmp_path / "needed", "tail", [251.0] * 9, config=flash("flash-fig10-1-1"), modelled=True)
    kinds = ["short"] * 8 + ["long"]
    times = [51.0] * 8 + [251.0]
    redundant = flash("flash-fig10-1.125-1.125")
    write_run(tmp_path / "more", "tail", times, config=redundant, modelled=True, round_kind=kinds)
    numbers = numbers_of(flash_fig10.EXHIBIT, tmp_path)
    racing = {x: y for (_, x), y in ours(numbers, flash_fig10.RACED).items()}
    assert racing == {"32 x 8": 250.0, "36 x 9": 50.0}
    mean_s = (8 * 50 + 250) / 9
    assert ours(numbers, flash_fig10.ALL)["ours", "36 x 9"] == pytest.approx(mean_s)
    assert [claim.ours.y for claim in numbers.claims] == pytest.approx([5.0, 250 / mean_s])
    assert numbers.claims[0].standing is Standing.REPRODUCED


def test_what_agents_gain_most_stands_beside_the_papers_most(tmp_path):
    for agents, ahead_s in (("agents-alfworld", 27.0), ("agents-swe", 24.0)):
        for system, step_s in (("verl", 60.0), ("tail", 40.0), ("flash", 30.0), ("roll-flash", ahead_s)):
            assert numbers_of(flash_fig11.EXHIBIT, tmp_path).claims[0].standing is Standing.UNKNOWN
            config = flash("flash-fig11", agents)
            write_run(tmp_path / agents / system, system, [step_s] * 15, config=config, modelled=True)
    numbers = numbers_of(flash_fig11.EXHIBIT, tmp_path)
    found = [ours(numbers, "software engineering")["ours", name] for name in flash_fig11.SYSTEMS.values()]
    assert found == [1.5, 2.0, 2.5]
    assert ours(numbers, flash_fig11.MOST) == {("ours", "agents"): 2.5}
    [claim] = numbers.claims
    assert (claim.paper, claim.ours.y, claim.standing) == (2.72, 2.5, Standing.REPRODUCED)


def test_without_runs_of_agents_there_is_nothing_to_compare(tmp_path):
    numbers = numbers_of(flash_fig11.EXHIBIT, tmp_path)
    assert numbers.points == []
    assert numbers.claims[0].standing is Standing.UNKNOWN


def test_systems_are_compared_by_the_tail_of_environments(tmp_path):
    for system, step_s, wasted in (("verl", 60.0, 0), ("tail", 20.0, 25), ("flash", 30.0, 0)):
        values = {"tokens_generated": 100, "tokens_wasted": wasted, "staleness_mean": 1.0}
        config = flash("flash-agents", "agents-stalls")
        write_run(tmp_path / system, system, [step_s] * 15, config=config, modelled=True, **values)
    numbers = numbers_of(flash_agents.EXHIBIT, tmp_path)
    situation = "10 ± 1 s,\n1 % stall 210 s"
    speedups = {x: y for (series, x), y in ours(numbers, flash_agents.SPEEDUP).items() if series == situation}
    assert speedups == {"tail batching": 3.0, "flash\nin turns": 2.0}
    assert ours(numbers, flash_agents.WASTE)[situation, "tail batching"] == 25.0
    texts = [text.get_text() for text in flash_agents.draw(numbers).axes[0].texts]
    assert "25 % wasted, age 1.0" in texts


def test_a_situation_without_a_baseline_has_no_row_and_without_any_the_table_is_empty(tmp_path):
    for system, workload in (("tail", "agents-stalls"), ("verl", "agents-steady"), ("tail", "agents-steady")):
        config = flash("flash-agents", workload)
        num_steps = 12 if system == "verl" else 15  # too few to be compared, at first
        write_run(tmp_path / workload / system, system, [20.0] * num_steps, config=config, modelled=True)
    axes = flash_agents.draw(numbers_of(flash_agents.EXHIBIT, tmp_path)).axes[0]
    assert (axes.axison, list(axes.texts)) == (False, [])
    config = flash("flash-agents", "agents-steady")
    write_run(tmp_path / "agents-steady" / "whole", "verl", [60.0] * 15, config=config, modelled=True)
    axes = flash_agents.draw(numbers_of(flash_agents.EXHIBIT, tmp_path)).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["10 ± 1 s"]
    assert [text.get_text() for text in axes.texts] == ["3.00x", "0 % wasted, age 0.0"]
