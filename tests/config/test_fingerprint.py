from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.config.fingerprint import config_fingerprint, defining_values, differences
from rollpacker.config.keys import legal_keys
from rollpacker.config.schema import RunConfig

RUN = ["model.path=/m", "data.path=/p.jsonl", "run.dir=x"]


def _fingerprint(*overrides: str) -> str:
    return config_fingerprint(compose([*RUN, *overrides]))


@pytest.fixture(scope="module")
def plain() -> str:
    return _fingerprint()


PLACE_OR_SPEED = (
    "run.dir=y",
    "run.resume=auto",
    "run.num_steps=7",
    "run.checkpoint_every_steps=1",
    "run.progress=none",
    "tracker.wandb=true",
    "backend.num_cpus=64",
    "backend.deadlines.train_s=5",
    "engine.num_engines=4",
    "engine.max_num_seqs=8",
    "trainer.num_threads=4",
    "trainer.resources.num_gpus=1",
    "trainer.max_tokens_per_microbatch=100",
    "reward.num_workers=4",
)


def test_what_changes_only_the_place_or_the_speed_leaves_the_fingerprint(plain: str) -> None:
    config = compose([*RUN, *PLACE_OR_SPEED])
    assert differences(config, compose(RUN).model_dump(mode="json")) == []
    assert config_fingerprint(config) == plain


@pytest.mark.parametrize(
    "override",
    [
        "run.seed=1",
        "run.num_epochs=1",
        "model.path=/n",
        "model.dtype=bfloat16",
        "data.path=/q.jsonl",
        "data.domain=math",
        "data.columns.prompt=question",
        "data.prompt_suffix=Hm.",
        "data.domain_weights.math=1",
        "reward.function=my.py:score",
        "reward.parts={a: {name: math}}",
        "data.shuffle=false",
        "rollout.temperature=0.9",
        "system=verl",
        "system.eta_responses=1.5",
        "trainer.learning_rate=1e-5",
        "trainer.lr_schedule=linear",
        "trainer.mismatch=token_mask",
        "reward=walk",
        "reward.timeout_s=9",
    ],
)
def test_what_changes_the_result_changes_the_fingerprint(override: str, plain: str) -> None:
    assert _fingerprint(override) != plain


def test_the_number_of_steps_counts_where_a_schedule_spans_them() -> None:
    assert _fingerprint("trainer.lr_schedule=cosine", "run.num_steps=7") != _fingerprint("trainer.lr_schedule=cosine")


def test_the_same_inputs_named_from_elsewhere_are_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    absolute = _fingerprint(f"model.path={tmp_path}/m", f"data.path={tmp_path}/p")
    assert _fingerprint("model.path=m", "data.path=p") == absolute


def test_the_defining_values_are_keys_of_the_schema() -> None:
    keys = legal_keys(RunConfig)
    config = compose([*RUN, "trainer.lr_schedule=linear", "data.domain_weights.math=1"])
    values = set(defining_values(config))
    assert "data.domain_weights.math" in values
    assert values <= set(keys) | {key.absent_section for key in keys.values()} | {"data.domain_weights.math"}


MODELLED = ("backend=sim", "hardware=h100", "workload=math", "model=qwen2.5-7b")  # no fit, which would be in it


@pytest.mark.parametrize(
    ("fingerprint", "overrides"),
    [
        ("eb384352e27a769c", ()),
        ("bf78c1760b2726f2", ("trainer.lr_schedule=cosine", "run.num_steps=7")),
        ("17a92424db7a937c", ("reward=judge", "reward.judge.model.path=/j")),
        ("338a049ee279897e", MODELLED),
    ],
)
def test_a_fingerprint_changes_only_on_purpose(fingerprint: str, overrides: tuple[str, ...]) -> None:
    """A new key that defines no result is marked in the schema; with one that does, no run of before is resumed."""
    assert _fingerprint(*overrides) == fingerprint


def test_a_correction_that_the_engine_needs_is_the_same_named_or_not() -> None:
    assert _fingerprint("engine=vllm") == _fingerprint("engine=vllm", "trainer.mismatch=token_truncate")
    assert _fingerprint("engine=vllm") != _fingerprint("engine=vllm", "trainer.mismatch_high=3")
    assert _fingerprint("trainer.mismatch_high=3") == _fingerprint() == _fingerprint("trainer.mismatch=none")


@pytest.mark.parametrize(
    ("words", "key", "here", "there"),
    [
        (["run.seed=7"], "run.seed", "7", "0"),
        (["data.domain_weights.math=1"], "data.domain_weights.math", "1.0", "not set"),
        (["model.path=n"], "model.path", "/n", "/m"),
        ([f"data.path=/{'x' * 100}/p.jsonl"], "data.path", f"...{'x' * 52}/p.jsonl", "/p.jsonl"),
        (
            ["data.path=[/p.jsonl,/q.csv]", "data.domain=math", "data.columns={prompt: Frage}"],
            "data.path",
            ", ".join(f'/{name} (domain math, columns {{"prompt": "Frage"}})' for name in ("p.jsonl", "q.csv")),
            "/p.jsonl",
        ),
    ],
)
def test_a_difference_is_told_by_its_key_and_both_values(
    words: list[str], key: str, here: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    recorded = compose(RUN).model_dump(mode="json")
    (found,) = differences(compose([*RUN, *words]), recorded) or ()
    assert (found.key, found.here, found.there) == (key, here, there)


def test_a_key_that_is_null_in_one_and_missing_in_the_other_is_no_difference() -> None:
    one, own = "math: {name: math, weight: 1}", "own: {function: 'f.py:g', weight: 1}"
    recorded = compose([*RUN, f"reward.parts={{{one}, {own}}}"]).model_dump(mode="json")
    found = differences(compose([*RUN, f"reward.parts={{{one}}}"]), recorded) or ()
    assert {each.key for each in found} == {"reward.parts.own.function", "reward.parts.own.weight"}


def test_what_changes_only_the_place_is_no_difference_and_an_illegible_record_is_none() -> None:
    recorded = compose(RUN).model_dump(mode="json")
    assert differences(compose([*RUN, "run.dir=y", "engine.num_engines=4", "run.num_steps=7"]), recorded) == []
    assert differences(compose(RUN), None) is None
    assert differences(compose(RUN), recorded | {"unknown": 1}) is None
