from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from tests.cli.inputs import tree_of, write_checkpoint

RUN = ["model.path=model", "data.path=prompts.jsonl"]

BAD_KEYS_AND_VALUES: dict[str, tuple[list[str], list[str]]] = {
    "misspelt key": ([*RUN, "run.sed=1"], ["`run.sed` is not a key", "`run.seed`"]),
    "key without its section": ([*RUN, "num_steps=5"], ["`num_steps` is not a key", "`run.num_steps`"]),
    "unknown key": ([*RUN, "colour=blue"], ["`colour` is not a key", "rollpacker train --help"]),
    "unknown key, added": ([*RUN, "+run.sed=1"], ["`run.sed` is not a key", "`run.seed`"]),
    "unknown key in a mapping": ([*RUN, "model={pth: x}"], ["`model.pth` is not a key", "`model.path`"]),
    "misspelt group": ([*RUN, "sytem=verl"], ["`sytem` is not a key", "`system`"]),
    "unknown key in a section": (
        [*RUN, "system.foo=1"],
        ["`system.foo` is not a key of the configuration.\n`rollpacker train --help system` lists its keys."],
    ),
    "no key": ([*RUN, "=3"], ["`=3` names no key", "Write a key before the `=`"]),
    "a key of a launcher that is not chosen": (
        [*RUN, "hydra.launcher.dry_run=true"],
        ["`hydra.launcher.dry_run` belongs to hydra/launcher=slurm", "Add hydra/launcher=slurm"],
    ),
    "unknown option of a group": ([*RUN, "system=rolpacker"], ["`rolpacker`", "tail,", "system=rollpacker"]),
    "misspelt group without its option": ([*RUN, "clusters"], ["`clusters` has no value", "Write cluster=VALUE"]),
    "a word in place of a mapping": ([*RUN, "reward.parts={a: x}"], ["reward.parts.a=x is not legal.\n", "weight: "]),
    "a word like no name": ([*RUN, "comment"], ["`comment` has no value", "Write key=value.\n"]),
    "misspelt key without its value": ([*RUN, "num_stpes"], ["`num_stpes` has no value", "Write run.num_steps=VALUE"]),
    "misspelt option without its group": ([*RUN, "rolpacker"], ["`rolpacker` has no value", "system=rollpacker"]),
    "option without its group": ([*RUN, "verl"], ["`verl` has no value", "system=verl"]),
    "override that cannot be read": ([*RUN, "run.dir=[a"], ["`run.dir=[a` cannot be read", "Write 'run.dir=\"[a\"'"]),
    "a home that the shell did not expand": ([*RUN, "run.dir=~/x"], ["`run.dir=~/x`", "Write run.dir=$HOME/x"]),
    "value with special characters": ([*RUN, "run.dir=a;b"], ["quoted", "Write 'run.dir=\"a;b\"'"]),
    "value with quotes": ([*RUN, 'run.dir=";'], ['Write \'run.dir="\\";"\'']),
    "two dots in a name": ([*RUN, "run..seed=1"], ["`run..seed`", "is not the name of a key", "Write run.seed=1"]),
    "a word in braces": ([*RUN, "{run.dir=x}"], ["`{run.dir`", "is not the name of a key", "Write run.dir=x\n"]),
    "group without an option": ([*RUN, "system=null"], ["`null` is not an option of the group `system`", "verl"]),
    "group that is a number": ([*RUN, "hardware=8"], ["`8` is not an option of the group `hardware`", "h800"]),
    "a key of a group that nobody chose": (
        [*RUN, "cluster.setup=[ls]"],
        ["without an option of the group `cluster`", "Add cluster=h800"],
    ),
    "group with several options": (
        [*RUN, "backend=[1,sim]"],
        ["`1` is not an option of the group `backend`"],
    ),
    "a word of nothing": ([*RUN, ""], ["An argument of `rollpacker", "is empty"]),
    "group that is deleted": ([*RUN, "~model"], ["`~model` deletes a group", "model=huggingface"]),
    "section that is a value": ([*RUN, "run=abc"], ["`run` is a section", "run.dir, run.seed"]),
    "value below its bound": ([*RUN, "rollout.num_prompts=0"], ["rollout.num_prompts=0", "an integer, at least 1.\n"]),
    "value of another type": ([*RUN, "rollout.num_prompts=x"], ["rollout.num_prompts=x", "an integer, at least 1.\n"]),
    "value above the bound of its type": ([*RUN, "rollout.num_prompts=2000000000"], ["at most 1,000,000,000.\n"]),
    "value above its bound": ([*RUN, "rollout.temperature=11"], ["rollout.temperature=11", "at most 10"]),
    "value that is no number": ([*RUN, "run.seed=one"], ["run.seed=one", "an integer, at least 0"]),
    "not a number": ([*RUN, "trainer.learning_rate=nan"], ["trainer.learning_rate=nan", "at least 1e-09"]),
    "infinity": ([*RUN, "trainer.learning_rate=inf"], ["trainer.learning_rate=inf", "at least 1e-09"]),
    "a path that is empty": (["model.path=m", "data.path="], ["data.path= is not legal", "is a path"]),
    "a profile that is not there": ([*RUN, "engine.profile=/no/such.parquet"], ["/no/such.parquet is no file"]),
    "a template that is a device": (
        [*RUN, "data.chat_template=/dev/zero"],
        ["data.chat_template=/dev/zero cannot be read: it is a dev"],
    ),
    "a folder of the system": ([*RUN, "run.dir=/proc/x"], ["run.dir=/proc/x is in /proc"]),
    "more engines than cores": ([*RUN, "engine.num_engines=10000"], ["10,001 processes", "This machine has"]),
    "a key twice": ([*RUN, "run.seed=1", "run.seed=2"], ["`run.seed` is given twice"]),
    "unknown choice": ([*RUN, "trainer.lr_schedule=cosin"], ["one of constant, linear, cosine", "lr_schedule=cosine"]),
    "eta of prompts below 1": ([*RUN, "system.eta_prompts=0.9"], ["system.eta_prompts=0.9", "at least 1"]),
    "eta of responses below 1": ([*RUN, "system.eta_responses=0"], ["system.eta_responses=0", "at least 1"]),
    "batch that does not divide": (
        [*RUN, "rollout.num_prompts=32", "trainer.num_minibatches=5"],
        ["rollout.num_prompts=32", "trainer.num_minibatches=5", "1, 2, 4, 8, 16, 32"],
    ),
    "a stream of groups into several minibatches": (
        [*RUN, "system=rollpacker", "trainer.num_minibatches=2"],
        ["system.stream=true with trainer.num_minibatches=2", "before the last one is there", "system.stream=false"],
    ),
    "ranks that cannot share the parameters": (
        [*RUN, "trainer=fsdp", "trainer.data_parallel=4", "trainer.shard_ranks=3"],
        ["trainer.shard_ranks=3 does not divide trainer.data_parallel=4", "1, 2, 4"],
    ),
    "a length to split above and nobody to split among": (
        [*RUN, "trainer=megatron", "trainer.context_parallel_above=4096"],
        ["trainer.context_parallel_above=4096 with trainer.context_parallel=1", "Set trainer.context_parallel"],
    ),
    "gradients that are shared out and stay": (
        [*RUN, "trainer=fsdp", "trainer.data_parallel=2", "trainer.shard_ranks=1", "trainer.shard_gradients=true"],
        ["trainer.shard_gradients=true with trainer.shard_ranks=1", "no copy could work alone"],
    ),
    "a misspelt loss": (
        [*RUN, "trainer.loss=gsop"],
        ["trainer.loss=gsop is not legal", "ppo, ppo_behaviour", "FILE.py:NAME", "Did you mean trainer.loss=gspo?"],
    ),
    "a misspelt advantage": (
        [*RUN, "trainer.advantage=group_sdt"],
        ["trainer.advantage=group_sdt is not legal", "Did you mean trainer.advantage=group_std?"],
    ),
    "a loss of nobody": ([*RUN, "trainer.loss=mine.py:loss"], ["cannot be used: there is no file mine.py"]),
    "a bound below no ratio": ([*RUN, "trainer.clip_ratio_low=1.5"], ["trainer.clip_ratio_low=1.5", "at most 1"]),
    "a dual clip that clips what agrees": ([*RUN, "trainer.dual_clip=1"], ["trainer.dual_clip=1", "above 1"]),
    "a dual clip of no ratio": (
        [*RUN, "trainer.loss=tis", "trainer.dual_clip=3"],
        ["trainer.dual_clip=3 with trainer.loss=tis", "trainer.loss=ppo"],
    ),
    "stale tokens without a correction": (
        [*RUN, "system=verl", "system.reward=async", "system.max_staleness=2", "trainer.loss=ppo"],
        ["trainer.loss=ppo with trainer.mismatch=none and system.max_staleness=2", "trainer.mismatch=token_truncate"],
    ),
    "stale tokens for REINFORCE": (
        [*RUN, "system=verl", "system.reward=async", "system.max_staleness=1", "trainer.loss=reinforce"],
        ["trainer.loss=reinforce with trainer.mismatch=none", "ppo_behaviour, tis, cispo, topr, gspo"],
    ),
    "a correction of what is correct": (
        [*RUN, "trainer.loss=cispo", "trainer.mismatch=token_mask"],
        ["trainer.mismatch=token_mask with trainer.loss=cispo", "once more", "Leave out trainer.mismatch"],
    ),
    "an advantage of the batch that streams": (
        [*RUN, "system=rlhfuse", "trainer.advantage=batch_std"],
        ["system.stream=true with trainer.advantage=batch_std", "trainer.advantage=group_mean"],
    ),
    "an advantage of turns that there are not": (
        [*RUN, "trainer.advantage=gigpo"],
        ["trainer.advantage=gigpo without an environment", "environment=gym", "trainer.advantage=group_std"],
    ),
    "a divergence with a bias as a reward": (
        [*RUN, "trainer.kl_coefficient=0.1", "trainer.kl_in=reward", "trainer.kl_estimator=k3"],
        ["trainer.kl_in=reward with trainer.kl_estimator=k3", "k1"],
    ),
    "a form of a penalty that is not there": (
        [*RUN, "trainer.kl_in=reward"],
        ["trainer.kl_in=reward", "trainer.kl_coefficient=0", "Set trainer.kl_coefficient"],
    ),
    "a stream of groups into a mean over the batch": (
        [*RUN, "system=rlhfuse", "trainer.loss_normalisation=token_mean"],
        ["trainer.loss_normalisation=token_mean", "the group itself", "trainer.loss_normalisation=token_bound"],
    ),
    "a modelled check of a domain in a real run": (
        [*RUN, "reward.kinds.code=sandbox"],
        ["reward.kinds.code=sandbox with reward.name=math", "set reward.domains.code; a modelled run"],
    ),
    "a real check of a domain in a modelled run": (
        ["backend=sim", "reward.domains.code=sandbox"],
        ["reward.domains.code=sandbox with reward.name=modelled", "set reward.kinds.code."],
    ),
    "a judge of torch on two GPUs": (
        [*RUN, "reward=judge", "reward.judge.model.path=model", "reward.judge.tensor_parallel=2"],
        ["reward.judge.tensor_parallel=2 with reward.judge.engine=torch", "reward.judge.engine=vllm"],
    ),
    "a slot for layers that never stream": (
        [*RUN, "reward=judge", "reward.judge.model.path=model", "reward.judge.num_slots=1"],
        ["reward.judge.num_slots=1, and no layer of the judge streams", "reward.judge.engine=streamed"],
    ),
    "a slot of a modelled judge that keeps all its layers": (
        ["backend=sim", "reward.judge.engine=streamed", "reward.judge.num_slots=1"],
        ["reward.judge.num_slots=1, and no layer of the judge streams", "set reward.judge.resident_share."],
    ),
    "a way to score that is none": ([*RUN, "system.reward=asynch"], ["one of batch, async, scheduled", "reward=async"]),
    "no model": (["data.path=prompts.jsonl"], ["`model.path` is not set", "Add model.path="]),
    "no prompts": (["model.path=model"], ["`data.path` is not set", "Add data.path="]),
    "a real run without prompts": (
        ["model.path=model", "data.path=null"],
        ["data.path=null with backend.name=ray", "JSON lines, Parquet, CSV"],
    ),
    "a domain beside environments": (
        [*RUN, "environment=gym", "environment.env=games.py:Game", "reward.domains.code=sandbox"],
        ["reward=environment with reward.domains={code: sandbox}", "Leave out reward.domains"],
    ),
    "a role that is none": ([*RUN, "placement.enginee=0-3"], ["`placement.enginee` is not a key", "placement.engine"]),
    "a map beyond the node": (
        [*RUN, "placement.engine=0-7", "placement.trainer=0", "backend.num_gpus=4", "engine.num_engines=8"],
        ["placement.engine=0-7 names GPU 7", "4 GPUs", "backend.num_gpus"],
    ),
    "two engines on one GPU": (
        [*RUN, "placement.engine='0-1,1'", "placement.trainer=0"],
        ["names GPU 1 twice", "placement.engine=0-7"],
    ),
    "more engines than their map has GPUs": (
        [*RUN, "placement.engine=0-1", "placement.trainer=0", "backend.num_gpus=4", "engine.num_engines=4"],
        ["placement.engine=0-1 holds 2 engines", "Set engine.num_engines=2"],
    ),
    "several values in one run": ([*RUN, "system=verl,rollpacker"], ["several values", "rollpacker train -m"]),
    "interpolation of nothing": ([*RUN, "run.dir=${systm.name}"], ["run.dir", "systm.name"]),
    "unknown domain": ([*RUN, "data.domain_weights.mth=1"], ["`mth`", "data.domain_weights.math"]),
    "unknown domain of a reward": ([*RUN, "reward.domains.mth=walk"], ["`mth`", "reward.domains.math"]),
    "a reward that is not there yet": (
        [*RUN, "reward.domains.code=sandbox", "reward.sandbox.packages=nowhere"],
        ["reward.sandbox.packages=nowhere is no folder", "pip install --target"],
    ),
    "no file in the list": (["model.path=model", "data.path=[]"], ["data.path=[] names no file"]),
    "a file with another key": (
        ["model.path=model", "data.path=[{pth: prompts.jsonl}]"],
        ["data.path[0] has the keys pth", "{path: PATH}"],
    ),
    "a template that is not there": (
        [*RUN, "data.chat_template=chat.jinja", "data.plain_as_chat=true"],
        ["data.chat_template=chat.jinja cannot be read"],
    ),
    "plain prompts for a model without a template": ([*RUN, "data.plain_as_chat=true"], ["no chat template", "'p0'"]),
    "fewer prompts than a batch": ([*RUN, "rollout.num_prompts=41"], ["40 prompts", "rollout.num_prompts=40"]),
    "more tokens than positions": (
        [*RUN, "rollout.max_response_tokens=2000"],
        ["add up to 3024", "2048 positions", "data.max_prompt_tokens=48"],
    ),
    "more CPUs than the backend offers": ([*RUN, "backend.num_cpus=1"], ["reserve 3.5 CPUs", "backend.num_cpus"]),
    "GPUs that are not there": (
        [*RUN, "backend.num_gpus=0", "engine.resources.num_gpus=1"],
        ["2 GPUs", "offers", "0 GPUs"],
    ),
}


@pytest.mark.parametrize("case", BAD_KEYS_AND_VALUES)
def test_a_bad_key_or_value_ends_with_exit_code_2_a_remedy_and_nothing_created(
    case: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides, expected = BAD_KEYS_AND_VALUES[case]
    before = tree_of(workdir)
    assert main(["train", *overrides]) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    for part in expected:
        assert part in message
    assert tree_of(workdir) == before


def _no_tokenizer(workdir: Path) -> None:
    (workdir / "model" / "tokenizer.json").unlink()


def _no_weights(workdir: Path) -> None:
    (workdir / "model" / "model.safetensors").unlink()


def _weights_that_are_text(workdir: Path) -> None:
    (workdir / "model" / "model.safetensors").write_text("these are not weights")


def _weights_that_are_cut(workdir: Path) -> None:
    os.truncate(workdir / "model" / "model.safetensors", 4000)


def _fewer_layers_than_weights(workdir: Path) -> None:
    config = workdir / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 1}))


def _empty_tokenizer(workdir: Path) -> None:
    (workdir / "model" / "tokenizer.json").write_text("")


def _no_model(workdir: Path) -> None:
    (workdir / "model").rename(workdir / "modell")


def _no_prompt_file(workdir: Path) -> None:
    (workdir / "prompts.jsonl").rename(workdir / "prompt.jsonl")


def _empty_prompt_file(workdir: Path) -> None:
    (workdir / "prompts.jsonl").write_text("")


def _broken_line(workdir: Path) -> None:
    lines = (workdir / "prompts.jsonl").read_text().splitlines()
    lines[6] = lines[6][:-1]
    (workdir / "prompts.jsonl").write_text("\n".join(lines))


def _duplicate_id(workdir: Path) -> None:
    lines = (workdir / "prompts.jsonl").read_text().splitlines()
    (workdir / "prompts.jsonl").write_text("\n".join([*lines, lines[3]]))


def _missing_field(workdir: Path) -> None:
    lines = (workdir / "prompts.jsonl").read_text().splitlines()
    prompt = json.loads(lines[8])
    del prompt["ground_truth"]
    (workdir / "prompts.jsonl").write_text("\n".join([*lines[:8], json.dumps(prompt), *lines[9:]]))


def _code_without_a_sandbox(workdir: Path) -> None:
    line = {"id": "c", "domain": "code", "prompt": "Write f.", "test_cases": ["assert f()"]}
    with (workdir / "prompts.jsonl").open("a") as file:
        file.write(json.dumps(line))


def _run_dir_is_a_file(workdir: Path) -> None:
    (workdir / "run").write_text("")


def _finished_run(workdir: Path, **changes: object) -> None:
    write_checkpoint(workdir / "run", RUN, 10, **changes)


def _another_run(workdir: Path) -> None:
    _finished_run(workdir, fingerprint="0123456789abcdef")


def _another_version(workdir: Path) -> None:
    _finished_run(workdir, schema_version=0)


BAD_FILES = {
    _no_model: ["model directory", "does not exist", "modell"],
    _no_tokenizer: ["has no tokenizer", "save_pretrained"],
    _no_weights: ["has no weights"],
    _weights_that_are_text: ["model.safetensors is not a safetensors file"],
    _weights_that_are_cut: ["model.safetensors is cut off"],
    _fewer_layers_than_weights: ["in no part of the model", "model.layers.1", "num_hidden_layers"],
    _empty_tokenizer: ["tokenizer.json cannot be read"],
    _no_prompt_file: ["prompts.jsonl does not exist", "prompt.jsonl"],
    _empty_prompt_file: ["prompts.jsonl is empty"],
    _broken_line: ["prompts.jsonl, line 7"],
    _duplicate_id: ["prompts.jsonl, line 41", "line 4 already"],
    _missing_field: ["prompts.jsonl, line 9", "ground_truth"],
    _code_without_a_sandbox: ["prompts.jsonl, line 41", "'c' has test cases", "Set reward.domains.code=sandbox"],
    _run_dir_is_a_file: ["run.dir=run is a file"],
    _finished_run: ["already holds this run", "after step 10", "run.resume=auto"],
    _another_run: ["holds another run", "choose another run.dir"],
    _another_version: ["schema version 0", "schema version 2"],
}


@pytest.mark.parametrize("spoil", BAD_FILES, ids=lambda spoil: spoil.__name__.strip("_"))
def test_a_bad_file_ends_with_exit_code_2_its_name_and_nothing_created(
    spoil: object, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(spoil)
    spoil(workdir)
    before = tree_of(workdir)
    for command in ("check", "train"):
        assert main([command, *RUN, "run.dir=run"]) == 2
        message = capsys.readouterr().err
        assert "Traceback" not in message
        for part in BAD_FILES[spoil]:
            assert part in message
        assert tree_of(workdir) == before


@pytest.mark.parametrize("spoil", [_another_run, _another_version])
def test_a_checkpoint_of_another_run_or_version_is_not_resumed(
    spoil: object, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(spoil)
    spoil(workdir)
    assert main(["check", *RUN, "run.dir=run", "run.resume=auto"]) == 2
    assert "choose another run.dir" in capsys.readouterr().err


def test_a_run_directory_below_a_file_is_refused(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *RUN, "run.dir=prompts.jsonl/run"]) == 2
    assert "prompts.jsonl is a file" in capsys.readouterr().err


def test_check_refuses_what_train_refuses(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for overrides in ([*RUN, "run.sed=1"], [*RUN, "rollout.num_prompts=41"], ["-m", *RUN, "rollout.num_prompts=8,41"]):
        messages = []
        for command in ("train", "check"):
            assert main([command, *overrides]) == 2
            messages.append(capsys.readouterr().err)
        assert messages[0] == messages[1]


def test_mistakes_in_keys_values_and_files_are_listed_together(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "model.path=nowhere", "data.path=nothing.jsonl", "backend.num_cpus=1"]) == 2
    message = capsys.readouterr().err
    assert "3 mistakes" in message
    assert all(part in message for part in ("nowhere", "nothing.jsonl", "reserve 3.5 CPUs"))


BAD_WORDS: dict[str, tuple[list[str], list[str]]] = {
    "misspelt command": (["trian"], ["`trian` is not a command", "Write rollpacker train"]),
    "unknown command": (["frobnicate"], ["The commands are train, init, check"]),
    "misspelt option": (["train", "--mutlirun"], ["`--mutlirun`", "Write --multirun"]),
    "a key written as an option": (["train", "--num-steps=5"], ["`--num-steps=5`", "write run.num_steps=5"]),
    "unknown option": (["check", "--xyz"], ["`--xyz` is not an option", "--help"]),
    "an option of another command": (["score", "-m"], ["`-m` is not an option"]),
    "replay of nothing": (["replay"], ["was given no run"]),
    "replay of two": (["replay", "a", "b"], ["was given a b"]),
    "replay of no run": (["replay", "model"], ["model is not a run: it has no metrics/manifest.json"]),
    "replay of nothing that is there": (["replay", "nowhere"], ["nowhere does not exist"]),
    "replay of a file": (["replay", "prompts.jsonl"], ["prompts.jsonl is a file"]),
    "score without its files": (["score", "reward=math"], ["`responses`", "`out`", "`data.path`"]),
    "score with a launcher": (
        ["score", "hydra/launcher=slurm", "reward=math", "data.path=prompts.jsonl", "responses=a.jsonl", "out=s.jsonl"],
        ["`hydra/launcher` has no effect", "have one: hydra.searchpath.\n", "Leave it out"],
    ),
    "score with a key of train": (
        ["score", "data.path=prompts.jsonl", "run.seed=1"],
        ["`run.seed` is not a key", "score --help"],
    ),
}


@pytest.mark.parametrize("case", BAD_WORDS)
def test_a_bad_word_ends_with_exit_code_2_and_the_nearest_legal_one(
    case: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv, expected = BAD_WORDS[case]
    before = tree_of(workdir)
    assert main(argv) == 2
    message = capsys.readouterr().err
    for part in expected:
        assert part in message
    assert tree_of(workdir) == before


def test_one_bad_point_refuses_the_whole_multirun_before_its_first_point(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree_of(workdir)
    assert main(["train", "-m", *RUN, "rollout.num_prompts=8,16,64"]) == 2
    assert "fewer than rollout.num_prompts=64" in capsys.readouterr().err
    assert main(["train", "-m", *RUN, "system=verl,rollpacker", "run.dir=run"]) == 2
    assert "both write into run.dir=run" in capsys.readouterr().err
    assert tree_of(workdir) == before


@pytest.mark.parametrize(
    "argv",
    [["train", *RUN, "run.sed=1"], ["train", "model.path=nowhere", RUN[1]], ["train", "-m", *RUN, "run.seed=0,x"]],
)
def test_the_program_itself_exits_2_with_one_block_on_stderr(argv: list[str], workdir: Path) -> None:
    before = tree_of(workdir)
    done = subprocess.run(
        [sys.executable, "-m", "rollpacker.cli", *argv], capture_output=True, text=True, check=False, env=_environment()
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error:\n")
    assert len(done.stderr.splitlines()) <= 4
    assert tree_of(workdir) == before


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
