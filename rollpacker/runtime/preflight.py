"""Judges a run by what is on this machine, before anything starts: model, prompts, run directory, earlier attempts.

Nothing is created, and neither torch nor ray is loaded, so that `rollpacker check` answers at once and a mistake never
costs a start. All mistakes found are reported together.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rollpacker.config.fingerprint import config_fingerprint
from rollpacker.config.keys import nearest
from rollpacker.config.mistakes import raise_mistakes
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import CheckpointError, ConfigError, DataError, ModelError, UserError
from rollpacker.core.ids import Domain
from rollpacker.core.quotas import apportion
from rollpacker.core.settings import SchedulerSettings
from rollpacker.data.chat_templates import check_chat
from rollpacker.data.model_files import check_model_files
from rollpacker.data.prompts import load_prompts
from rollpacker.engines.vllm.installed import check_vllm, check_vllm_installed
from rollpacker.protocols.backend import ModelFacts, ModelledCluster, Prospect
from rollpacker.rewards.factory import check_references
from rollpacker.rewards.judge.reading import check_rubrics
from rollpacker.rewards.sandbox.installed import check_sandbox
from rollpacker.runtime.allocation import current_allocation
from rollpacker.runtime.checkpoints import RUN_FILE, SCHEMA_VERSION, CheckpointStore
from rollpacker.runtime.fleets import costs_of, degrees_of
from rollpacker.runtime.model_fit import ModelFit, judge_fit
from rollpacker.runtime.planning import ClusterSize, cluster_size
from rollpacker.runtime.scheduling import scheduler_settings
from rollpacker.runtime.trackers import check_trackers
from rollpacker.trainers.megatron.installed import check_megatron

Found = TypeVar("Found")

MAX_POSITIONS_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""How Hugging Face configurations name the longest sequence of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A legal run and what it will work with."""

    model: ModelFacts
    num_prompts_by_domain: Mapping[Domain, int]
    """In the order of the file; before prompts that are too long are dropped."""
    settings: SchedulerSettings
    cluster: ClusterSize | ModelledCluster
    fit: ModelFit | None
    """None where the model's sizes are not known, and in a modelled run."""
    finished_steps: int
    """Of an earlier attempt that this one continues; 0 starts from the beginning."""


class RealProspect:
    """What the files and the resources of this machine say of a run; implements `Prospect`."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def model(self) -> ModelFacts:
        return _model_facts(self._config)

    def num_prompts_by_domain(self) -> Mapping[Domain, int]:
        prompts = load_prompts(self._config.data.files)
        check_references(self._config.reward, prompts)
        check_rubrics(self._config.reward, prompts)
        check_chat(self._config.data, self._config.model.directory, prompts)
        return dict(Counter(prompt.domain for prompt in prompts))

    def cluster(self) -> ClusterSize:
        return cluster_size(self._config, current_allocation(os.environ))


ProspectOf = Callable[[RunConfig], Prospect[ClusterSize | ModelledCluster]]
"""Chooses who foresees a run."""


def judge(config: RunConfig, prospect_of: ProspectOf = RealProspect) -> Outlook:
    """Judge a run; raises a `UserError` that lists every mistake found."""
    prospect = prospect_of(config)
    mistakes: list[UserError] = []

    def look(check: Callable[[], Found]) -> Found | None:
        try:
            return check()
        except UserError as mistake:
            mistakes.append(mistake)
            return None

    model = look(prospect.model)
    num_prompts_by_domain = look(lambda: _enough_prompts(config, prospect.num_prompts_by_domain()))
    settings = None
    if num_prompts_by_domain is not None:
        settings = look(lambda: _settings(config, num_prompts_by_domain))
    cluster = look(prospect.cluster)
    fit = (
        look(lambda: judge_fit(config, cluster if isinstance(cluster, ClusterSize) else None))
        if config.backend.name == "ray"
        else None
    )
    finished_steps = look(lambda: _finished_steps(config))
    look(lambda: _check_engine(config))
    look(lambda: _check_trainer(config))
    look(lambda: _check_reward(config))
    look(lambda: _check_judge(config))
    look(lambda: _check_run_dir(config.run.dir))
    look(lambda: check_trackers(config.tracker))
    raise_mistakes(mistakes)
    assert model is not None
    assert num_prompts_by_domain is not None
    assert settings is not None
    assert cluster is not None
    assert finished_steps is not None
    return Outlook(
        model=model,
        num_prompts_by_domain=num_prompts_by_domain,
        settings=settings,
        cluster=cluster,
        fit=fit,
        finished_steps=finished_steps,
    )


def judge_all(configs: Sequence[RunConfig], prospect_of: ProspectOf = RealProspect) -> tuple[Outlook, ...]:
    """Judge every point of a multirun; a mistake that several points share is said once."""
    outlooks: list[Outlook] = []
    mistakes: dict[str, UserError] = {}
    for config in configs:
        try:
            outlooks.append(judge(config, prospect_of))
        except UserError as mistake:
            mistakes.setdefault(str(mistake), mistake)
    raise_mistakes(list(mistakes.values()))
    return tuple(outlooks)


def check_creatable(key: str, path: Path) -> None:
    """Look at the nearest thing that exists: it must be a folder that lets this process create what is missing."""
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if existing != path and not existing.is_dir():
        raise ConfigError(
            f"{key}={path} cannot be created: {existing} is a file.",
            "Above it are only folders.",
            f"Choose another {key}.",
        )
    needed = os.W_OK | os.X_OK if existing.is_dir() else os.W_OK
    if not os.access(existing, needed, effective_ids=True):
        raise ConfigError(
            f"{key}={path} cannot be written: {existing} does not let you.",
            "The nearest part of the path that exists must be writable.",
            f"Choose another {key}, or change the permissions.",
        )


def _model_facts(config: RunConfig) -> ModelFacts:
    path = config.model.directory
    check_model_files(path)
    description = json.loads((path / "config.json").read_text(encoding="utf-8"))
    text_model = description.get("text_config", description)
    max_positions = next((text_model[key] for key in MAX_POSITIONS_KEYS if isinstance(text_model.get(key), int)), None)
    needed = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    if max_positions is not None and needed > max_positions:
        remaining = max_positions - config.rollout.max_response_tokens
        raise ConfigError(
            f"data.max_prompt_tokens={config.data.max_prompt_tokens} and rollout.max_response_tokens="
            f"{config.rollout.max_response_tokens} add up to {needed} tokens.",
            f"The model in {path} has {max_positions} positions.",
            f"Set data.max_prompt_tokens={remaining} or lower; longer prompts are dropped."
            if remaining > 0
            else f"Set rollout.max_response_tokens below {max_positions}.",
        )
    shards = sorted(path.glob("*.safetensors"))
    weights = shards or sorted(path.glob("pytorch_model*.bin"))
    return ModelFacts(
        architecture=str(next(iter(description.get("architectures") or ()), description["model_type"])),
        num_parameters=sum(_count_parameters(shard) for shard in shards) if shards else None,
        num_weight_bytes=sum(file.stat().st_size for file in weights),
        max_positions=max_positions,
    )


def _count_parameters(shard: Path) -> int:
    """Sum the shapes in a safetensors header: 8 bytes of length, little-endian, then JSON."""
    try:
        with shard.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header: dict[str, Any] = json.loads(stream.read(min(length, shard.stat().st_size)))
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{shard} is not a safetensors file: {error}.",
            "It begins with a JSON header that gives every tensor's shape.",
            "Download or save the model again.",
        ) from error


def check_supply(config: RunConfig, num_prompts_by_domain: Mapping[Domain, int]) -> SchedulerSettings:
    """Judge whether the prompts fill every batch, in all and of each domain; gives what the scheduler will be told.

    Raises:
        DataError: There are too few.
        ConfigError: Of a domain too few; or the configuration names domains that there are not.
    """
    return _settings(config, _enough_prompts(config, num_prompts_by_domain))


def _enough_prompts(config: RunConfig, counts: Mapping[Domain, int]) -> Mapping[Domain, int]:
    total = sum(counts.values())
    if total < config.rollout.num_prompts:
        raise DataError(
            f"{_source(config)} has {_count(total, 'prompt')}, fewer than rollout.num_prompts="
            f"{config.rollout.num_prompts}.",
            "A prompt is in a batch once, so the data fills at least one batch.",
            f"Add prompts, or set rollout.num_prompts={total} or lower.",
        )
    return counts


def _settings(config: RunConfig, num_prompts_by_domain: Mapping[Domain, int]) -> SchedulerSettings:
    weights, domains = config.data.domain_weights, list(num_prompts_by_domain)
    for key, name in [
        *(("data.domain_weights", name) for name in weights),
        *(("reward.domains", name) for name in config.reward.domains),
    ]:
        if name not in domains:
            close = nearest(name, domains)
            raise ConfigError(
                f"{key} names `{name}`, which no prompt in {_source(config)} has as its domain.",
                f"Its domains are {', '.join(domains)}.",
                f"Write {key}.{close[0]}." if close else f"Leave out {key}.{name}.",
            )
    if weights and (unweighted := [domain for domain in domains if domain not in weights]):
        raise ConfigError(
            f"data.domain_weights has no weight for {', '.join(unweighted)}, so these prompts would never be trained.",
            f"Every domain in {_source(config)} has a weight, or none has.",
            f"Add data.domain_weights.{unweighted[0]}=..., or remove its prompts from the file.",
        )
    is_real = config.backend.name == "ray"
    degrees = degrees_of(config) if is_real else (config.engine.tensor_parallel,)
    settings = scheduler_settings(config, num_prompts_by_domain, degrees, costs=costs_of(config) if is_real else ())
    for domain, quota in apportion(settings.num_prompts, dict(settings.domain_weights)).items():
        if num_prompts_by_domain[domain] < quota:
            raise ConfigError(
                f"Domain `{domain}` has {_count(num_prompts_by_domain[domain], 'prompt')}, but fills {quota} places of "
                "every batch.",
                "A prompt is in a batch once.",
                f"Add prompts of the domain, or lower data.domain_weights.{domain} or rollout.num_prompts.",
            )
    return settings


def _check_engine(config: RunConfig) -> None:
    if _runs_in_this_environment(config) and config.engine.name == "vllm":
        check_vllm(config.engine.vllm)


def _check_trainer(config: RunConfig) -> None:
    if _runs_in_this_environment(config) and config.trainer.name == "megatron":
        check_megatron()


def _check_reward(config: RunConfig) -> None:
    if _runs_in_this_environment(config) and config.backend.name == "ray" and "sandbox" in config.reward.names:
        check_sandbox(config.reward.sandbox)


def _check_judge(config: RunConfig) -> None:
    judge = config.reward.judge
    if config.backend.name == "sim" or not config.reward.has_judge:
        return
    if judge.engine == "vllm" and _runs_in_this_environment(config):
        check_vllm_installed("reward.judge.engine=vllm", "reward.judge.engine=torch")
    max_positions = _max_positions(judge.model.directory)
    if max_positions is not None and judge.max_prompt_tokens >= max_positions:
        raise ConfigError(
            f"reward.judge.max_prompt_tokens={judge.max_prompt_tokens}, and the verdict is one token more.",
            f"The judge's model in {judge.model.path} has {max_positions} positions.",
            f"Set reward.judge.max_prompt_tokens={max_positions - 1} or lower; longer responses lose their middle.",
        )


def _max_positions(path: Path) -> int | None:
    """The longest sequence of a model; None where its configuration does not say, or says nothing at all."""
    try:
        description = json.loads((path / "config.json").read_text(encoding="utf-8"))
        text_model = description.get("text_config", description)
        return next((text_model[key] for key in MAX_POSITIONS_KEYS if isinstance(text_model.get(key), int)), None)
    except (OSError, ValueError, AttributeError):
        return None  # whoever looks at the model's files says what is wrong with them


def _runs_in_this_environment(config: RunConfig) -> bool:
    """Say whether actors see the libraries that this process sees; an image has its own."""
    has_image = config.cluster is not None and config.cluster.container.image is not None
    return config.backend.name == "ray" and not has_image


def _check_run_dir(run_dir: Path) -> None:
    if run_dir.is_file():
        raise ConfigError(f"run.dir={run_dir} is a file.", "A run writes into a folder.", "Choose another run.dir.")
    check_creatable("run.dir", run_dir)


def _finished_steps(config: RunConfig) -> int:
    run_dir = config.run.dir
    identity_file = run_dir / RUN_FILE
    if not identity_file.exists():
        return 0
    identity = _read_object(identity_file)
    _check_same_run(config, identity, identity_file)
    steps = CheckpointStore(run_dir, keep=config.run.keep_checkpoints).steps()
    if config.run.resume == "never":
        done = f"with a checkpoint after step {steps[-1]}" if steps else "without a checkpoint yet"
        raise ConfigError(
            f"run.dir={run_dir} already holds this run, {done}.",
            "A new run starts in a folder of its own.",
            "Continue it with run.resume=auto, or choose another run.dir.",
        )
    if not steps:
        return 0
    meta_file = run_dir / "checkpoints" / f"step-{steps[-1]:06d}" / "meta.json"
    _check_same_run(config, _read_object(meta_file), meta_file)
    return steps[-1]


def _check_same_run(config: RunConfig, recorded: Mapping[str, Any], file: Path) -> None:
    """Compare what `run.json` or a checkpoint's `meta.json` records with this configuration."""
    version = recorded.get("schema_version")
    if version != SCHEMA_VERSION:
        raise CheckpointError(
            f"{file} has schema version {version}.",
            f"This version of rollpacker reads schema version {SCHEMA_VERSION}.",
            "Resume with the version that wrote it, or choose another run.dir.",
        )
    if recorded.get("fingerprint") != config_fingerprint(config):
        raise CheckpointError(
            f"run.dir={config.run.dir} holds another run: its configuration differs from this one in something that "
            "changes the result.",
            "Only what changes the speed or the place of a run may differ when it is resumed (and run.num_steps under "
            "a constant learning rate).",
            "Give it the same model, data, system, rollout and trainer keys as before, or choose another run.dir.",
        )


def _read_object(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read: {error}.", "It is JSON.", "Remove the run's folder, or choose another run.dir."
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{file} is not a JSON object.", "It is written by a run.", "Choose another run.dir, or remove the file."
        )
    return content


def _source(config: RunConfig) -> str:
    """Where the prompts come from, in words."""
    return ", ".join(str(file.path) for file in config.data.path) if config.data.path else "the workload"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
