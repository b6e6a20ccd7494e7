from __future__ import annotations

import json
import operator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException

from rollpacker.config.compose import compose, translated_errors
from rollpacker.config.keys import legal_keys, nearest, section_docs, section_names
from rollpacker.config.record import to_yaml
from rollpacker.config.roots import TRAIN, conf_dir
from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.core.errors import ConfigError
from rollpacker.runtime.placing.automatic import Chooser
from rollpacker.runtime.placing.gpus import Gpus

INPUTS = ["model.path=model", "data.path=prompts.jsonl"]


def test_later_words_win_over_experiments_and_experiments_over_groups() -> None:
    demo = compose([*INPUTS, "experiment=demo"])
    assert demo.reward.name == "walk"
    assert compose([*INPUTS, "experiment=demo", "reward=math"]).reward.name == "math"
    assert compose([*INPUTS, "experiment=demo", "rollout.num_prompts=7"]).rollout.num_prompts == 7


def test_every_key_of_the_schema_can_be_set_without_a_plus() -> None:
    required = {"run.dir": "x", "model.path": "m", "data.path": "p", "system.name": "mine", "system.batching": "plain"}
    keys = [key for key in legal_keys(RunConfig).values() if not key.absent_section]
    values = {key.name: required.get(key.name, key.default) for key in keys}
    words = [f"{name}={json.dumps(value)}" for name, value in values.items()]
    config = compose([*words, "data.domain_weights={math: 2}"])
    assert config.system.name == "mine"
    assert config.data.domain_weights == {"math": 2}


def test_a_plus_before_a_key_changes_nothing() -> None:
    words = [*INPUTS, "run.dir=x"]
    assert compose([*words, "+run.seed=3", "++rollout.num_prompts=7"]) == compose(
        [*words, "run.seed=3", "rollout.num_prompts=7"]
    )


def test_domains_are_named_by_the_user() -> None:
    config = compose([*INPUTS, "data.domain_weights.math=2", "data.domain_weights.code=0.5"])
    assert config.data.domain_weights == {"math": 2, "code": 0.5}
    assert compose([*INPUTS, "data.domain_weights={qa: 1}"]).data.domain_weights == {"qa": 1}


def test_a_key_within_an_entry_of_a_mapping_can_be_set_alone() -> None:
    parts = "reward.parts={accuracy: {name: math}, format: {function: my.py:fmt, weight: 0.2}}"
    config = compose([*INPUTS, parts, "reward.parts.format.weight=0.5"])
    assert {name: part.weight for name, part in config.reward.parts.items()} == {"accuracy": 1.0, "format": 0.5}
    assert config.reward.names == ("math", "function")


def test_a_value_may_refer_to_another_key() -> None:
    config = compose([*INPUTS, "run.dir=runs/${system.name}-${run.seed}", "run.seed=3"])
    assert config.run.dir == Path("runs/rollpacker-3")


def test_a_run_without_a_directory_gets_a_dated_one_that_names_its_system() -> None:
    assert compose([*INPUTS, "system=verl"]).run.dir.match("runs/20??-??-??_??-??-??-verl")


def test_all_mistakes_of_the_schema_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        compose(["rollout.num_prompts=0", "trainer.learning_rate=-1", "run.seed=x", "engine.name=sglang"])
    message = str(caught.value)
    assert message.startswith("6 mistakes")
    for part in (
        "model.path",
        "data.path",
        "rollout.num_prompts=0",
        "trainer.learning_rate=-1",
        "run.seed=x",
        "sglang",
    ):
        assert part in message


@pytest.mark.parametrize("key", ["weight_sync.bucket_mb", "rollout.num_prompts", "data.domain_weights.math"])
def test_the_mark_of_a_missing_value_is_no_value(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}=\?\?\? is no value"):
        compose([*INPUTS, f"{key}=???"])


def test_all_unknown_names_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        compose([*INPUTS, "sytem=verl", "run.sed=1", "reward=mth", "verl"])
    message = str(caught.value)
    assert message.startswith("4 mistakes")
    for part in ("`sytem`", "`run.sed`", "`mth`", "`verl`"):
        assert part in message


@pytest.mark.parametrize(
    "override", ["hydra.foo=1", "hydra/launcher=nowhere", "run.dir=${now}", "run.dir=${oc.env:NO_SUCH}"]
)
def test_what_hydra_refuses_is_a_config_error_too(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose([*INPUTS, override])
    assert caught.value.problem


def test_experiments_of_the_user_are_judged_like_our_own(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nrun:\n  seed: 7\n")
    (tmp_path / "experiment" / "wrong.yaml").write_text("# @package _global_\nrun:\n  sed: 7\n")
    searchpath = f"hydra.searchpath=[file://{tmp_path}]"
    assert compose([*INPUTS, searchpath, "experiment=mine"]).run.seed == 7
    with pytest.raises(ConfigError, match=r"`run\.sed` is not a key"):
        compose([*INPUTS, searchpath, "experiment=wrong"])
    with pytest.raises(ConfigError, match="`nobodys` is not an option of the group `experiment`"):
        compose([*INPUTS, searchpath, "experiment=nobodys"])


@pytest.mark.parametrize(
    "word",
    ["hydra.output_subdir=x", "hydra.job.chdir=true", "hydra.run.dir=x", "hydra.verbose=true", "hydra.mode=MULTIRUN"],
)
def test_a_key_of_hydra_that_has_no_effect_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="has no effect") as caught:
        compose([*INPUTS, word])
    assert "hydra.searchpath" in caught.value.allowed


def test_composing_creates_nothing_and_leaves_a_surrounding_hydra_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        surrounding = GlobalHydra.instance().hydra
        compose(INPUTS)
        with pytest.raises(ConfigError):
            compose(["run.sed=1"])
        assert GlobalHydra.instance().hydra is surrounding
    assert HydraConfig.instance().cfg is None
    assert not list(tmp_path.iterdir())


def test_the_resolved_configuration_reads_back_as_itself() -> None:
    config = compose([*INPUTS, "data.domain_weights.math=2", "trainer.learning_rate=1e-7"])
    assert RunConfig.model_validate(yaml.safe_load(to_yaml(config))) == config


def test_a_section_that_may_be_absent_is_there_when_a_key_of_it_is_set_be_it_to_its_default() -> None:
    assert compose(INPUTS).elastic.job is None
    chosen = compose([*INPUTS, "elastic=slurm"]).elastic
    assert chosen.job is not None
    assert chosen.job.time_limit_min == 240
    assert compose([*INPUTS, "elastic.max_workers=1", "elastic.job.time_limit_min=240"]).elastic.job == chosen.job
    assert compose([*INPUTS, "elastic=slurm", "elastic.job=null"]).elastic.job is None


def test_a_value_may_refer_to_a_default_of_a_section_that_may_be_absent() -> None:
    config = compose([*INPUTS, "cluster=slurm", "run.dir=runs/${cluster.signal_lead_s}"])
    assert config.cluster is not None
    assert config.run.dir == Path(f"runs/{config.cluster.signal_lead_s}")


def test_what_is_deleted_is_absent_or_has_its_default() -> None:
    modelled = ["backend=sim", "model=qwen2.5-7b", "workload=agents"]
    for word in ("~elastic.job", "~backend.deadlines"):
        assert compose([*modelled, word, "run.dir=x"]) == compose([*modelled, "run.dir=x"])
    assert compose([*modelled, "~reward.judge"]).reward.judge.model.shape is None
    assert compose([*modelled, "~workload.environment"]).modelled_environment is None
    chooser = Chooser(Gpus(per_node=4, num_bytes=80e9, has_vllm=True))
    deadlines = compose([*INPUTS, "~backend.deadlines"], chooser.complete).backend.deadlines
    assert deadlines.start_s > compose(INPUTS).backend.deadlines.start_s
    with pytest.raises(ConfigError, match=r"without model\.shape"):
        compose([*modelled, "~model.shape"])


@pytest.mark.parametrize("key", ["requeue", "gpus_per_node", "scratch", "partition", "sbatch", "container.options"])
def test_a_deleted_key_of_a_section_that_may_be_absent_has_its_default(key: str) -> None:
    default = operator.attrgetter(key)(ClusterSection(name="h800"))
    config = compose([*INPUTS, "cluster=h800", f"~cluster.{key}"])
    assert operator.attrgetter(key)(config.cluster) == default
    job = compose([*INPUTS, "elastic=slurm", "~elastic.job.time_limit_min"]).elastic.job
    assert job == compose([*INPUTS, "elastic=slurm"]).elastic.job


@pytest.mark.parametrize("word", ["elastic.job.time_limit_min=null", "elastic.job={time_limit_min: null}"])
def test_null_is_no_way_to_lose_a_section_by_one_of_its_keys(word: str) -> None:
    with pytest.raises(ConfigError, match=r"elastic\.job\.time_limit_min=null is not legal"):
        compose([*INPUTS, "elastic=slurm", word])


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("data.template_arguments.x=1.5", "data.template_arguments.x=1.5 is not legal."),
        ("data.path=''", "data.path= is not legal."),
        ("data.keep_solve_rate=[0.5]", "data.keep_solve_rate=[0.5] is not legal."),
        ("trainer.adam_betas=[]", "trainer.adam_betas=[] is not legal."),
        ("data.path=[{path: ''}]", "data.path.0.path= is not legal: input should be a path."),
        (
            "data.domain_weights={a: b}",
            "data.domain_weights.a=b is not legal: input should be a valid number, unable to parse string as a number.",
        ),
    ],
)
def test_a_wrong_value_is_one_mistake_in_the_place_where_it_was_given(word: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose([*INPUTS, word])
    assert error.value.problem == problem


@pytest.mark.parametrize("name", ["1", "1.5", "true"])
def test_a_name_in_a_mapping_that_is_no_text_is_told_from_a_value(name: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose([*INPUTS, f"data.domain_weights={{{name}: 2}}"])
    problem, remedy = error.value.problem, error.value.remedy
    assert problem == f"`{name}`, a name in data.domain_weights, is not legal: input should be a valid string."
    assert remedy == "Write data.domain_weights.NAME=... on the command line, or the name in quotes in a YAML file."
    assert compose([*INPUTS, "data.domain_weights.1=2"]).data.domain_weights == {"1": 2}


def test_a_name_in_a_mapping_that_is_no_number_is_not_to_be_quoted() -> None:
    with pytest.raises(ConfigError) as error:
        compose(["backend=sim", "model=qwen2.5-7b", "run.dir=x", "workload.drift_by_step={a: 2}"])
    assert error.value.problem.startswith(
        "`a`, a name in workload.drift_by_step, is not legal: input should be a valid "
    )
    assert error.value.remedy == ""


def test_threads_compose_one_after_the_other() -> None:
    with ThreadPoolExecutor(4) as threads:
        configs = threads.map(lambda seed: compose([*INPUTS, f"run.seed={seed}"]), range(12))
        assert [config.run.seed for config in configs] == list(range(12))


@pytest.mark.parametrize("raised", [HydraException("x"), MissingConfigException("x"), ValueError("x")], ids=repr)
def test_an_interruption_is_none_of_the_users_mistakes(raised: Exception) -> None:
    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise raised  # as Hydra does where it cleans up

    with pytest.raises(KeyboardInterrupt), translated_errors(TRAIN):
        interrupted()


def test_every_key_and_section_says_what_it_is() -> None:
    assert not [key.name for key in legal_keys(RunConfig).values() if not key.doc]
    assert all(section_docs(RunConfig).values())
    assert {name for name in section_names(RunConfig) if "." not in name} == set(section_docs(RunConfig))


@pytest.mark.parametrize(
    ("key", "legal"),
    [
        ("system.eta_prompts", "a number, at least 1 and at most 8"),
        ("run.num_epochs", "an integer, at least 1 and at most 1,000,000,000, or null"),
        ("run.resume", "one of never, auto, or null"),
        ("data.shuffle", "true or false"),
        ("data.domain_weights", "a mapping of each name to a number above 0"),
        ("trainer.clip_ratio_low", "a number, at least 0 and at most 1, or null"),
        ("backend.deadlines.train_s", "a number, at least 0.001 and at most 1,000,000"),
        ("run.dir", "a path"),
        ("environment.python", "a path, or null"),
        ("run.setup", "a text of letters, digits, _, ., = and -"),
        ("data.prompt_suffix", "a text, not empty, or null"),
    ],
)
def test_a_key_says_in_words_what_it_takes(key: str, legal: str) -> None:
    assert legal_keys(RunConfig)[key].legal == legal


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("run.sed", "run.seed"),
        ("modle.path", "model.path"),
        ("seed", "run.seed"),
        ("rollout.num_step", "run.num_steps"),
        ("trainer.lr_shedule", "trainer.lr_schedule"),
        ("engine.resources.cpus", "engine.resources.num_cpus"),
    ],
)
def test_the_nearest_name_is_found_across_sections(name: str, closest: str) -> None:
    assert nearest(name, legal_keys(RunConfig)) == (closest,)


def test_nothing_is_near_a_name_like_no_other() -> None:
    assert nearest("zzz", legal_keys(RunConfig)) == ()


@pytest.mark.parametrize("value", ["m7b", "3", "true"])
@pytest.mark.parametrize("section", ["reward.judge", "reward.judge.model"])
def test_a_word_in_the_place_of_a_section_is_refused_by_its_key(section: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{section}={value}"):
        compose(["model.path=m", "data.path=d", "run.dir=r", "reward=judge", f"{section}={value}"])


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("data.columns", "data.columns={promt: question}"),
        ("data.path[1].columns", "data.path=[a.jsonl,{path: b.jsonl, columns: {promt: question}}]"),
        ("evaluation.path[0].columns", "evaluation.path=[{path: c.jsonl, columns: {promt: question}}]"),
    ],
)
def test_a_column_of_no_field_is_refused_by_the_key_that_maps_it(key: str, word: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose(["model.path=m", "data.path=d.jsonl", word])
    assert raised.value.problem == f"{key} maps `promt`, which is no field of a prompt."
    assert raised.value.remedy == "Did you mean `prompt`?"
