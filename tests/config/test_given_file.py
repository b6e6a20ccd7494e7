from pathlib import Path

import pytest
import yaml

from rollpacker.config.compose import compose
from rollpacker.config.fingerprint import config_fingerprint
from rollpacker.config.multirun import compose_sweep
from rollpacker.config.record import to_record, to_yaml
from rollpacker.core.errors import UserError
from rollpacker.runtime.placing.automatic import Chooser
from rollpacker.runtime.placing.gpus import Gpus

INPUTS = ("model.path=m", "data.path=p.jsonl")
FIRST = (
    *INPUTS,
    "run.dir=runs/x",
    "system=verl",
    "rollout.num_prompts=64",
    "trainer.learning_rate=0.001",
    "data.columns={prompt:question}",
    r"data.prompt_suffix='\\\${not a key}'",
    "reward.domains={math:math}",
)


def write_record(tmp_path, *words):
    config = compose(words)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    return config


@pytest.mark.parametrize(
    "words",
    [FIRST, ("backend=sim", "workload=math", "model=qwen2.5-7b", "system=planner", "run.dir=runs/x")],
    ids=["ray", "sim"],
)
def test_the_record_of_a_run_gives_the_same_run(tmp_path, words):
    config = write_record(tmp_path, *words)
    assert compose([f"config={tmp_path}/config.yaml"]) == config
    assert compose([f"config={tmp_path}"]) == config


def test_relative_paths_of_a_record_lead_where_they_led_and_those_of_words_begin_here(tmp_path, monkeypatch):
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):  # the same names in both: nothing would say that others are read
        (folder / "m").mkdir(parents=True)
        (folder / "venv" / "bin").mkdir(parents=True)
        for name in ("p.jsonl", "q.jsonl", "e.jsonl", "my.py", "venv/bin/python"):
            (folder / name).write_text("")
    monkeypatch.chdir(there)
    words = [
        *("model.path=m", "data.path=[p.jsonl,{path: q.jsonl, domain: my.py}]", "run.dir=runs/x"),
        *("reward.domains={code: 'my.py:score', math: math}", "run.callbacks=['gone.py:Told']"),
        *("environment=loop", "environment.loop=my.py:Loop", "environment.python=venv/bin/python"),
        "evaluation.path=[{path: e.jsonl, name: m}, hf://openai/gsm8k]",
    ]
    config = compose(words)
    (tmp_path / "config.yaml").write_text(to_record(config))
    assert compose([f"config={tmp_path}"]) == config
    monkeypatch.chdir(here)
    again = compose([f"config={tmp_path}", "evaluation.path=e.jsonl"])
    assert again.model.path == there / "m"
    assert [(file.path, file.domain) for file in again.data.files] == [
        (there / "p.jsonl", None),
        (there / "q.jsonl", "my.py"),
    ]
    assert again.reward.domains == {"code": f"{there}/my.py:score", "math": "math"}
    assert again.run.callbacks == ("gone.py:Told",)
    assert again.environment.python == f"{there}/venv/bin/python"
    assert str(again.run.dir) == "runs/x"
    assert [str(file.path) for file in again.evaluation.files] == ["e.jsonl"]
    assert str(compose([f"config={tmp_path}"]).evaluation.files[0].path) == f"{there}/e.jsonl"


def test_a_record_that_is_taken_in_another_folder_is_of_the_same_run(tmp_path, monkeypatch):
    (tmp_path / "there" / "m").mkdir(parents=True)
    (tmp_path / "there" / "p.jsonl").write_text("")
    monkeypatch.chdir(tmp_path / "there")
    config = compose([*INPUTS, "run.dir=runs/x"])
    fingerprint = config_fingerprint(config)
    Path("config.yaml").write_text(to_record(config))
    monkeypatch.chdir(tmp_path)
    assert config_fingerprint(compose(["config=there"])) == fingerprint


def test_words_override_the_file_also_with_a_value_that_is_the_default(tmp_path):
    config = write_record(tmp_path, *FIRST)
    again = compose([f"config={tmp_path}", "rollout.num_prompts=32", "run.dir=runs/y"])
    assert again.rollout.num_prompts == 32
    expected = config.model_dump() | {"rollout": again.rollout.model_dump(), "run": again.run.model_dump()}
    assert again.model_dump() == expected


def test_a_chosen_option_of_engine_or_trainer_keeps_the_other_settings_of_its_section(tmp_path):
    write_record(tmp_path, *FIRST, "engine.max_num_seqs=7")
    again = compose([f"config={tmp_path}", "engine=vllm", "trainer=fsdp"])
    assert (again.engine.name, again.engine.max_num_seqs) == ("vllm", 7)
    assert (again.trainer.name, again.trainer.learning_rate) == ("fsdp", 0.001)


SIM = ("backend=sim", "workload=think", "hardware=h800", "model=qwen3-30b-a3b", "run.dir=runs/x")


@pytest.mark.parametrize(
    ("first", "word"),
    [
        ((*INPUTS, "system=rollpacker"), "system=verl"),
        ((*INPUTS, "system=dapo-rollpacker"), "system=verl"),
        ((*INPUTS, "system=rollpacker"), "system=flash"),
        ((*INPUTS, "elastic=slurm"), "elastic=none"),
        ((*INPUTS, "placement=separate", "backend.num_gpus=8", "engine.num_engines=4"), "placement=auto"),
        (SIM, "hardware=h100"),
        (SIM, "workload=math"),
        (SIM, "model=qwen2.5-7b"),
        ((*INPUTS, "cluster=mini"), "cluster=slurm"),
    ],
    ids=str,
)
def test_an_option_that_describes_a_whole_section_leaves_nothing_of_the_files(tmp_path, first, word):
    write_record(tmp_path, *first)
    section = word.partition("=")[0]
    plain = compose([*(each for each in first if not each.startswith(f"{section}=")), word])
    assert getattr(compose([f"config={tmp_path}", word]), section) == getattr(plain, section)


JUDGED = ("reward=judge", "reward.judge.model.path=j")


def of_ones_own(tmp_path, content, *words):
    (tmp_path / "own.yaml").write_text(content)
    return compose([f"config={tmp_path}/own.yaml", *INPUTS, *words])


@pytest.mark.parametrize(
    ("content", "words", "same"),
    [
        (
            "cluster: {partition: gpu, cpus_per_node: 32, has_shared_files: true}",
            ["cluster=h800"],
            ["cluster=h800", "cluster.partition=gpu", "cluster.has_shared_files=true"],
        ),
        ("system: {eta_prompts: 1.5}", ["system=tail"], ["system=tail", "system.eta_prompts=1.5"]),
        (
            "placement: {judge: 3}",
            ["placement=separate", "backend.num_gpus=8", "engine.num_engines=4", *JUDGED],
            ["placement=separate", "placement.judge=3", "backend.num_gpus=8", "engine.num_engines=4", *JUDGED],
        ),
        ("model: {download: auto}", ["model=qwen2.5-7b"], ["model=qwen2.5-7b", "model.download=auto"]),
        ("system: {eta_prompts: 1.5}", [], ["system.eta_prompts=1.5"]),
        ("system: {batching: plain, reward: batch}", [], ["system.batching=plain", "system.reward=batch"]),
        ("system:", [], []),
        ("elastic: {least_stay_s: 7}", [], ["elastic.least_stay_s=7"]),
    ],
    ids=str,
)
def test_settings_without_the_name_of_an_option_hold_for_the_chosen_or_the_default_one(tmp_path, content, words, same):
    assert of_ones_own(tmp_path, content, *words, "run.dir=x") == compose([*INPUTS, *same, "run.dir=x"])


@pytest.mark.parametrize(("option", "max_workers"), [("none", 0), ("sim", 4)])
def test_an_option_sets_its_own_settings_whatever_a_file_without_its_name_says(tmp_path, option, max_workers):
    elastic = of_ones_own(tmp_path, "elastic: {max_workers: 6, least_stay_s: 7}", f"elastic={option}").elastic
    assert (elastic.max_workers, elastic.least_stay_s) == (max_workers, 7)


def test_settings_of_a_group_without_a_default_option_ask_for_one(tmp_path):
    with pytest.raises(UserError, match="Add cluster=h800"):
        of_ones_own(tmp_path, "cluster: {partition: gpu}")


def test_an_empty_section_is_there_with_its_defaults(tmp_path):
    config = of_ones_own(tmp_path, "elastic: {name: slurm, max_workers: 4, job: {}}", "cluster=h800")
    assert config.elastic == compose([*INPUTS, "cluster=h800", "elastic=slurm"]).elastic
    with pytest.raises(UserError, match=r"`model.shape.num_layers` is not set"):
        of_ones_own(tmp_path, "model: {shape: {}}")


def test_a_word_that_names_no_file_is_refused(tmp_path, monkeypatch):
    write_record(tmp_path, *FIRST)
    monkeypatch.chdir(tmp_path)  # an unset variable would take what lies here
    with pytest.raises(UserError, match="`config=` names no file"):
        compose(["config=", *INPUTS])


def test_of_two_files_none_is_left_out_unsaid(tmp_path):
    write_record(tmp_path, *FIRST)
    with pytest.raises(UserError, match=r"Several files: config=.*, config=other.yaml"):
        compose([f"config={tmp_path}", "config=other.yaml", *INPUTS])


def test_a_system_that_an_experiment_chooses_leaves_nothing_of_the_files(tmp_path):
    write_record(tmp_path, *INPUTS, "system=rollpacker")
    assert compose([f"config={tmp_path}", "experiment=dapo"]).system == compose([*INPUTS, "experiment=dapo"]).system


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["experiment=dapo"], "system.name", "dapo"),
        (["backend=sim", "model=qwen2.5-7b"], "reward.name", "modelled"),
        (["experiment=gsm8k"], "reward.name", "math"),
        (["environment=gym", "environment.env=games.py:Game"], "reward.name", "environment"),
    ],
    ids=str,
)
def test_an_option_beside_a_file_brings_the_options_that_it_chooses(tmp_path, words, key, value):
    write_record(tmp_path, *INPUTS, "run.dir=runs/x", "system=tail", "reward=sandbox")
    config = compose([f"config={tmp_path}", *words])
    section, name = key.split(".")
    assert getattr(getattr(config, section), name) == value


def test_beside_a_file_engine_and_trainer_are_chosen_for_the_gpus_unless_it_names_them(tmp_path):
    chooser = Chooser(Gpus(per_node=4, num_bytes=80e9, has_vllm=True))
    (tmp_path / "own.yaml").write_text("engine: {max_num_seqs: 64}\ntrainer: {name: fsdp, learning_rate: 1e-5}\n")
    config = compose([f"config={tmp_path}/own.yaml", *INPUTS], chooser.complete)
    assert (config.engine.name, config.engine.max_num_seqs, config.trainer.name) == ("vllm", 64, "fsdp")
    (tmp_path / "own.yaml").write_text("engine: {name: torch}\n")
    assert compose([f"config={tmp_path}/own.yaml", *INPUTS], chooser.complete).engine.name == "torch"


def test_a_file_of_ones_own_needs_only_what_differs(tmp_path):
    (tmp_path / "own.yaml").write_text("rollout: {num_prompts: 8}\nrun: {dir: runs/own}\n")
    config = compose([f"config={tmp_path}/own.yaml", *INPUTS])
    assert config == compose([*INPUTS, "rollout.num_prompts=8", "run.dir=runs/own"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("run: {dir: x}\nswarm: {size: 3}\nrollout: {num_prompt: 4}", ["`swarm`", "`rollout.num_prompt`", "not a key"]),
        ("rollout: 7", ["`rollout: 7`", "`rollout` is a section", "num_prompts", "Write rollout: {KEY: VALUE}"]),
        ("engine: vllm", ["`engine` is a section", "give the word engine=vllm"]),
        ("tracker: {wandb_tags: !!set {a}}", ["tracker.wandb_tags of no plain type: {'a'}"]),
        ("tracker: {wandb_group: !!timestamp 2026-11-29}", ["tracker.wandb_group of no plain type"]),
        ("data: {domain_weights: {null: 1}}", ["data.domain_weights of no plain type: None"]),
        ("run.num_steps: 5", ["c.yaml has `run.num_steps: 5`", "Write run: {num_steps: 5}"]),
        ("engine: {vllm.memory_share: 0.5}", ["`vllm.memory_share: 0.5`", "Write engine: {vllm: {memory_share: 0.5}}"]),
        ("run: {seed: 1}\nrollout: {}\nrun: {num_steps: 2}", ["cannot be read: `run` is written twice", "line 3"]),
        ("run: {seed: 1, 'seed': 2}", ["cannot be read: `seed` is written twice"]),
        ("run: &a {b: *a}", ["cannot be read"]),
        ("rollout: {num_prompts: many}", ["rollout.num_prompts=many"]),
        ("run: [", ["cannot be read", "YAML"]),
        ("- a", ["holds no sections"]),
        ("", ["holds no sections"]),
    ],
    ids=str,
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, content, words):
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(UserError) as caught:
        compose([f"config={tmp_path}/c.yaml", *INPUTS])
    for word in words:
        assert word in str(caught.value)


def test_a_date_of_a_file_is_a_text_as_in_files_of_hydra(tmp_path):
    (tmp_path / "own.yaml").write_text("tracker: {wandb_group: 2026-11-29}\n")
    assert compose([f"config={tmp_path}/own.yaml", *INPUTS]).tracker.wandb_group == "2026-11-29"


def test_a_key_beside_a_merged_mapping_overrides_that_of_the_mapping(tmp_path):
    content = "run: {<<: {seed: 1, num_steps: 2}, seed: 3, dir: x}"
    assert of_ones_own(tmp_path, content) == compose([*INPUTS, "run.seed=3", "run.num_steps=2", "run.dir=x"])


def test_a_missing_file_and_a_multirun_of_a_file_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"x.yaml does not exist"):
        compose([f"config={tmp_path}/x.yaml"])
    with pytest.raises(UserError, match="A file gives one run"):
        compose_sweep([f"config={tmp_path}", "run.seed=0,1"])


def test_an_older_record_without_new_keys_takes_their_defaults(tmp_path):
    config = write_record(tmp_path, *FIRST)
    tree = yaml.safe_load(Path(tmp_path, "config.yaml").read_text())
    del tree["data"]["answer_after"], tree["model"]["download"]
    Path(tmp_path, "config.yaml").write_text(yaml.safe_dump(tree))
    assert compose([f"config={tmp_path}"]) == config
