"""Which runs an exhibit takes: one per seed, of its model, and what it says of the others."""

import shutil

import pytest

from rollpacker.analysis import command
from rollpacker.analysis.exhibits import EXHIBITS, fig06, fig11, fig12, fig13, length_bias, limits, sensitivity, table3
from rollpacker.analysis.numbers import Source
from rollpacker.analysis.runs import Runs, find_runs, read_runs
from rollpacker.config.words import in_hydra
from tests.analysis.written_runs import numbers_of, runs_below, write_run


def test_of_two_runs_of_a_seed_the_one_that_got_farthest_is_drawn_and_the_other_is_named(tmp_path):
    write_run(tmp_path / "a", "verl", [4.0] * 3, num_steps=9)
    write_run(tmp_path / "b", "verl", [4.0] * 5, num_steps=5)
    write_run(tmp_path / "c", "verl", [4.0] * 7, num_steps=9)
    write_run(tmp_path / "d", "verl", [4.0] * 5, seed=1)
    runs = Runs(runs=read_runs(list(find_runs(tmp_path)))[0])
    assert [run.folder.name for run in runs.of(system="verl")] == ["b", "d"]
    assert sorted(runs.left_out) == [
        f"{tmp_path}/{name} is left out: {tmp_path}/b has its seed, 0" for name in ("a", "c")
    ]
    assert not runs.missing


def test_a_run_that_is_left_out_for_another_is_printed_once_and_leaves_no_exhibit_incomplete(tmp_path, capsys):
    for name in ("a", "b"):
        write_run(tmp_path / name, "verl", [4.0], model="Qwen2.5-14B", task="code", modelled=True)
    exhibits = [EXHIBITS["fig07a"], EXHIBITS["table1"]]
    question = command._parse("all", {**command._defaults(), "runs": str(tmp_path)})
    numbers = command._gather(exhibits, question, {})
    assert not numbers["fig07a"].missing
    assert capsys.readouterr().err.count("b is left out") == 1


@pytest.mark.parametrize(
    ("key", "usual", "other"),
    [
        ("rollout.num_prompts", 128, 64),
        ("rollout.max_response_tokens", 8192, 4096),
        ("trainer.learning_rate", 1e-06, 2e-06),
        ("data.path", "a.jsonl", "b.jsonl"),
    ],
)
@pytest.mark.parametrize("odd", ["tail-1", "verl-0"])
def test_a_run_whose_settings_are_not_those_of_most_is_no_seed_and_no_pair_and_the_figure_says_why(
    key, usual, other, odd, tmp_path
):
    section, _, name = key.partition(".")
    for system in ("verl", "tail"):
        for seed in (0, 1):
            folder = f"{system}-{seed}"
            config = {section: {name: other if folder == odd else usual}, "system": {"name": system}}
            write_run(tmp_path / folder, system, [4.0 + seed], seed=seed, config=config)
    numbers = numbers_of(EXHIBITS["table2"], tmp_path)
    [point] = [each for each in numbers.points if each.x == "+ tail" and each.source is Source.MEASURED]
    assert point.num_seeds == 1
    first = next(folder for folder in ("tail-0", "tail-1") if folder != odd)
    values = f"{in_hydra(other)}, {in_hydra(usual)}"
    said = f"{tmp_path}/{odd} is left out: it differs from {tmp_path}/{first} in {key} ({values})"
    assert [sentence for sentence in numbers.missing if "differs" in sentence] == [said]


def test_seeds_of_a_system_differ_in_no_setting_of_it_and_systems_in_where_they_run(tmp_path):
    for folder, system, seed, degree, eta in (("a", "verl", 0, 1, 1), ("b", "tail", 0, 2, 1), ("c", "tail", 1, 2, 1.5)):
        config = {"engine": {"tensor_parallel": degree}, "system": {"eta_prompts": eta}}
        write_run(tmp_path / folder, system, [4.0], seed=seed, config=config)
    runs = Runs(runs=read_runs(list(find_runs(tmp_path)))[0])
    found = [run.folder.name for system in ("verl", "tail") for run in runs.of(system=system)]
    assert found == ["a", "b"]
    [said] = [sentence for sentence in runs.missing if "differs" in sentence]
    assert said == f"{tmp_path}/c is left out: it differs from {tmp_path}/b in system.eta_prompts (1.5, 1)"


@pytest.mark.parametrize(
    ("key", "other"),
    [("trainer.loss", "cispo"), ("trainer.data_parallel", 4), ("trainer.max_tokens_per_microbatch", 9)],
)
def test_a_system_has_its_own_loss_and_layout(key, other, tmp_path):
    section, _, name = key.partition(".")
    write_run(tmp_path / "base", "verl", [4.0])
    write_run(tmp_path / "own", "one-step-off", [2.0], config={section: {name: other}})
    runs = Runs(runs=read_runs(list(find_runs(tmp_path)))[0])
    assert [len(runs.of(system=system)) for system in ("verl", "one-step-off")] == [1, 1]


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("reward.parts.math.weight", 0.5),
        ("reward.domains.code", "sandbox"),
        ("reward.kinds.own", "own.py"),
        ("reward.judge.threshold", 0.9),
        ("reward.sandbox.max_case_s", 6.0),
        ("engine.name", "vllm"),
        ("engine.max_num_seqs", 8),
        ("trainer.name", "megatron"),
        ("trainer.weight_decay", 0.1),
        ("trainer.adam_betas", [0.9, 0.95]),
        ("trainer.max_grad_norm", 0.5),
    ],
)
def test_systems_whose_rewards_engine_or_optimizer_differ_are_no_pair(key, other, tmp_path):
    write_run(tmp_path / "base", "verl", [4.0])
    write_run(tmp_path / "odd", "tail", [2.0], config=_nested(key, other))
    runs = Runs(runs=read_runs(list(find_runs(tmp_path)))[0])
    assert [len(runs.of(system=system)) for system in ("verl", "tail")] == [1, 0]
    assert key in next(sentence for sentence in runs.missing if "differs" in sentence)


def _nested(key, value):
    """The sections of a configuration that has this key."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("engine.vllm.memory_share", 0.5),
        ("engine.vllm.kv_cache_mb", 512),
        ("engine.num_threads", 4),
        ("engine.profile", "profile.json"),
        ("trainer.num_threads", 4),
        ("reward.judge.memory_share", 0.2),
    ],
)
def test_a_system_divides_gpus_and_cpus_in_its_own_way_and_its_seeds_in_one(key, other, tmp_path):
    write_run(tmp_path / "a", "verl", [4.0])
    write_run(tmp_path / "b", "tail", [2.0], config=_nested(key, other))
    write_run(tmp_path / "c", "tail", [2.0], seed=1)
    runs = runs_below(tmp_path)
    assert [run.folder.name for system in ("verl", "tail") for run in runs.of(system=system)] == ["a", "b"]
    assert f"{tmp_path}/c is left out: it differs from {tmp_path}/b in {key}" in "".join(runs.missing)


@pytest.mark.parametrize("when", ["alone", "fill"])
@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("engine.max_restarts", 0),
        ("engine.restart_pause_s", 9.0),
        ("reward.judge.max_restarts", 0),
        ("evaluation.at_end", False),
        ("evaluation.num_texts", 0),
        ("evaluation.pass_at", [1]),
    ],
)
def test_runs_may_differ_in_restarts_and_in_what_is_kept_of_evaluations(key, other, when, tmp_path):
    config = {"evaluation": {"when": when}}
    section, keys = next(iter(_nested(key, other).items()))
    write_run(tmp_path / "a", "verl", [4.0], config=config)
    write_run(tmp_path / "b", "verl", [4.0], seed=1, config=config | {section: config.get(section, {}) | keys})
    runs = runs_below(tmp_path)
    assert len(runs.of(system="verl")) == 2
    assert runs.missing == []


@pytest.mark.parametrize(("key", "other"), [("evaluation.when", "alone"), ("evaluation.num_samples", 8)])
def test_evaluations_that_fill_rounds_are_part_of_the_task(key, other, tmp_path):
    config = {"when": "fill", "num_samples": 1}
    write_run(tmp_path / "a", "verl", [4.0], config={"evaluation": config})
    write_run(tmp_path / "b", "tail", [4.0], config={"evaluation": config | {key.partition(".")[2]: other}})
    runs = runs_below(tmp_path)
    assert [len(runs.of(system=system)) for system in ("verl", "tail")] == [1, 0]


def test_seeds_may_have_other_partitions_time_limits_and_deadlines(tmp_path):
    for seed, limit in enumerate((60, 1440)):
        config = {"cluster": {"time_limit_min": limit}, "backend": {"deadlines": {"start_s": 60.0 * limit}}}
        write_run(tmp_path / str(seed), "verl", [4.0], seed=seed, config=config)
    runs = Runs(runs=read_runs(list(find_runs(tmp_path)))[0])
    assert len(runs.of(system="verl")) == 2
    assert runs.missing == []


@pytest.mark.parametrize(
    ("exhibit", "model", "study", "systems"),
    [
        (fig06.EXHIBIT, "Qwen3-8B", "fig06", ["tail-reward"]),
        (fig11.EXHIBIT, "Qwen2.5-7B", "", ["eta-1-1"]),
        (fig12.EXHIBIT, "Qwen3-8B", "fig06", ["tail-reward", "tail-reward-planner"]),
        (fig13.EXHIBIT, "Qwen2.5-7B", "fig13-adpt_timeout", ["tail-reward"]),
        (length_bias.EXHIBIT, "Qwen2.5-7B", "", ["eta-1-1"]),
        (limits.EXHIBIT, "Qwen2.5-7B", "cap-512", ["verl", "tail"]),
        (sensitivity.CORRELATION, "Qwen2.5-7B", "lengths-0.3-1.0", ["verl", "tail"]),
        (table3.EXHIBIT, "Qwen2.5-7B", "stream-at-0.2", ["rollpacker"]),
    ],
)
def test_a_run_of_another_model_is_no_second_seed(exhibit, model, study, systems, tmp_path):
    responses = [{"prompt": "p", "domain": "math", "accepted": True, "length_tokens": 9, "round_kind": "short"}]
    values = {"responses": responses, "tensor_parallel": 1, "num_preemptions": 1, "config": {"run": {"study": study}}}
    for system in systems:
        write_run(tmp_path / system, system, [4.0] * 6, model=model, **values)
        write_run(tmp_path / f"other-{system}", system, [4.0] * 6, model="Qwen2.5-32B", seed=1, **values)
    own = [point for point in numbers_of(exhibit, tmp_path).points if point.source is not Source.PAPER]
    assert {point.num_seeds for point in own} == {1}


@pytest.mark.parametrize(
    ("models", "drawn"), [(("mine",), "mine"), (("Qwen2.5-14B", "Qwen2.5-7B"), "Qwen2.5-7B"), ((), "Qwen2.5-7B")]
)
def test_at_another_size_an_exhibit_of_one_model_takes_the_papers_or_the_one_that_there_is(models, drawn, tmp_path):
    for name in models:
        write_run(tmp_path / name, "eta-1-1", [4.0], model=name, config={"run": {"setup": "8gpus"}})
    runs = read_runs(list(find_runs(tmp_path)))[0]
    assert Runs(runs=runs, setup="8gpus").model("Qwen2.5-7B") == drawn
    assert Runs(runs=runs).model("Qwen2.5-7B") == "Qwen2.5-7B"


def test_at_another_size_what_speculation_pays_is_drawn_of_a_model_of_ones_own(tmp_path):
    write_run(tmp_path / "run", "eta-1-1", [4.0], model="mine", config={"run": {"setup": "tiny"}})
    numbers = fig11.EXHIBIT.numbers(Runs(runs=read_runs(list(find_runs(tmp_path)))[0], setup="tiny"))
    assert {point.panel: point.y for point in numbers.points} == {fig11.ROLLOUT: 3.0, fig11.WASTE: 0.0}


def mixed(folder):
    """A measured run of tail batching beside modelled ones of all that Table 2 needs, and one table of theirs alone."""
    write_run(folder / "real", "tail", [1.0, 1.0])
    for system in ("verl", "tail", "rollpacker"):
        write_run(folder / "modelled" / system, system, [4.0, 4.0], modelled=True)
    code = {"model": "Qwen2.5-14B", "task": "code", "responses": [{"reward_time_s": 3.0}]}
    write_run(folder / "modelled" / "code", "verl", [4.0], modelled=True, **code)
    return folder


def gathered(folder, *names, **settings):
    """What a command computes of exhibits."""
    question = command._parse("all", {**command._defaults(), "runs": str(folder), **settings})
    return command._gather([EXHIBITS[name] for name in names], question, {})


def test_no_number_compares_a_measured_run_with_a_modelled_one(tmp_path, capsys):
    mixed(tmp_path)
    numbers = gathered(tmp_path, "table2", "fig09", "fig07a")
    sources = {
        name: {point.source for point in own.points if point.source is not Source.PAPER}
        for name, own in numbers.items()
    }
    assert sources["table2"] == {Source.MODELLED}  # the measured run has nothing to be compared with
    assert sources["fig07a"] == {Source.MODELLED}
    ours = {point.x: point.y for point in numbers["table2"].points if point.source is Source.MODELLED}
    assert ours["+ tail"] == 1.0
    told = f"Of the runs below {tmp_path} 1 were measured and 4 modelled. No exhibit mixes them: "
    shown = "it shows the measured, or where these give it no number the modelled."
    assert capsys.readouterr().err.count(f"{told}{shown}") == 1
    write_run(tmp_path / "plain", "verl", [3.0, 3.0])
    ours = [point for point in gathered(tmp_path, "table2")["table2"].points if point.source is Source.MEASURED]
    assert {point.x: point.y for point in ours} == {"veRL": 1.0, "+ tail": 3.0}
    with pytest.raises(AssertionError):
        Runs(runs=read_runs(list(find_runs(tmp_path)))[0])


def test_what_is_modelled_beside_measured_runs_is_drawn_from_the_modelled_ones_and_says_so(tmp_path, capsys):
    write_run(mixed(tmp_path) / "plain", "verl", [3.0, 3.0])
    ours = [
        point
        for point in gathered(tmp_path, "table2", backend="sim")["table2"].points
        if point.source is not Source.PAPER
    ]
    assert {(point.x, point.y, point.source) for point in ours} == {
        (x, 1.0, Source.MODELLED) for x in ("veRL", "+ tail", "+ stream")
    }
    shown = "it shows the modelled, or where these give it no number the measured; without backend=sim the measured"
    assert shown in capsys.readouterr().err


def test_what_is_said_of_a_kind_that_gives_no_number_is_kept(tmp_path, capsys):
    mixed(tmp_path)
    shutil.copytree(tmp_path / "real", tmp_path / "twin")
    fields = {"model": "Qwen2.5-14B", "task": "code"}
    broken = write_run(tmp_path / "broken", "verl", [4.0], responses=[{"reward_time_s": 3.0}], **fields)
    for part in (broken / "metrics" / "responses").iterdir():
        part.write_text("")
    numbers = gathered(tmp_path, "table2", "fig07a")
    assert {point.source for own in numbers.values() for point in own.points} == {Source.PAPER, Source.MODELLED}
    notes = capsys.readouterr().err
    assert f"{tmp_path / 'twin'} is left out: {tmp_path / 'real'} has its seed, 0" in notes
    assert notes.count(f"the responses of {broken} are left out: ") == 1


def test_a_table_of_a_run_that_cannot_be_read_is_missing_where_it_is_needed_and_only_there(tmp_path):
    write_run(tmp_path / "run", "verl", [4.0], model="Qwen2.5-14B", task="code", responses=[{"length_tokens": 9}])
    [part] = (tmp_path / "run" / "metrics" / "responses").iterdir()
    part.write_bytes(b"")
    numbers = gathered(tmp_path, "fig07a", "table1", "fig02a")
    said = f"the responses of {tmp_path}/run are left out: {part} is not readable: "
    needed = {name for name, own in numbers.items() if any(each.startswith(said) for each in own.missing)}
    assert needed == {"fig07a", "fig02a"}


def test_a_run_without_evaluations_lacks_nothing(tmp_path):
    write_run(tmp_path, "verl", [4.0])
    [run] = read_runs([tmp_path])[0]
    assert run.evaluations.empty
    assert not run.unread


@pytest.mark.parametrize("record", ["", "5", "- 1", "run:\n", "run: {seed: 0", "run: 5"])
def test_a_run_that_has_lost_its_configuration_is_named(record, tmp_path):
    write_run(tmp_path, "verl", [4.0])
    (tmp_path / "config.yaml").write_text(record)
    [run], said = read_runs([tmp_path])
    assert said == [f"{run.folder} has no config.yaml that can be read: its model, seed and setup are not known"]


@pytest.mark.parametrize(
    "record", ["model: {name: m}\nrun:\n", "run: {seed: abc, num_steps: null}", "model: {path: 5}\nrun: {seed: .inf}"]
)
def test_what_a_configuration_lacks_or_has_as_no_number_is_as_if_it_had_none(record, tmp_path):
    write_run(tmp_path, "verl", [4.0])
    (tmp_path / "config.yaml").write_text(record)
    [run], said = read_runs([tmp_path])
    assert (run.seed, run.is_finished, said) == (0, True, [])
    assert run.model in {"m", "", "5"}
