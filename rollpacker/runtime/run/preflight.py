"""Validates a run on this machine before anything starts: model, prompts, run directory, earlier attempts.

Nothing is created, and this process loads neither torch nor ray, so `rollpacker check` answers at once and a mistake
never costs a start. All mistakes found are reported together.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from rollpacker.config.effects import keys_without_effect, off_policy_updates
from rollpacker.config.mistakes import raise_mistakes
from rollpacker.config.schema import MOST_RESPONSES, RunConfig
from rollpacker.config.sections.judge import JudgeSection
from rollpacker.core.errors import ConfigError, ModelError, UserError
from rollpacker.core.ids import Domain
from rollpacker.core.settings import SchedulerSettings
from rollpacker.data.chat_templates import check_chat
from rollpacker.data.domains import refuse_unknown_domains
from rollpacker.data.held_out import check_apart, load_held_out, notes_of_suffixes
from rollpacker.data.json_files import decoder_of, read_object
from rollpacker.data.model_files import check_model_files
from rollpacker.data.order import other_prompts
from rollpacker.data.shapes import caps_scores, check_shape
from rollpacker.data.weight_files import read_tensors, weight_files
from rollpacker.engines.vllm.installed import check_drafter, check_vllm, check_vllm_installed
from rollpacker.engines.vllm.servable import refuse_experts
from rollpacker.environments.prompts import prompts_to_train
from rollpacker.environments.trial import try_environment
from rollpacker.paths import special_kind
from rollpacker.protocols.backend import ModelFacts, ModelledCluster, RunFacts
from rollpacker.protocols.rollout import Prompt
from rollpacker.rewards.factory import check_references
from rollpacker.rewards.judge.reading import check_rubrics
from rollpacker.rewards.sandbox.sandbox_check import check_sandbox
from rollpacker.rewards.trial import check_functions, try_checks
from rollpacker.runtime.job.allocation import current_allocation, surrounding_images
from rollpacker.runtime.placing.actors import ClusterSize
from rollpacker.runtime.placing.model_fit import ModelFit, validate_fit
from rollpacker.runtime.placing.planning import cluster_size, placed_actors
from rollpacker.runtime.placing.topology import trainer_parts
from rollpacker.runtime.rollout.scheduling import enough_prompts, prompt_source, supplied_settings
from rollpacker.runtime.run.callbacks import check_callbacks
from rollpacker.runtime.run.folder_checks import check_run_dir
from rollpacker.runtime.run.prompt_look import may_resume
from rollpacker.runtime.run.run_folder import find_resumable
from rollpacker.runtime.run.trackers import check_trackers
from rollpacker.trainers.megatron.installed import check_megatron
from rollpacker.trainers.trainable import check_trainable
from rollpacker.trainers.trial import try_own_functions

Found = TypeVar("Found")

MAX_POSITIONS_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""How Hugging Face configurations name the longest sequence of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRun:
    """A legal run and what it will work with."""

    model: ModelFacts
    num_prompts_by_domain: Mapping[Domain, int]
    """In the order of the file; before prompts that are too long are dropped."""
    num_held_out: Mapping[str, int]
    """Prompts of each held-out set."""
    settings: SchedulerSettings
    cluster: ClusterSize | ModelledCluster
    fit: ModelFit | None
    """None where the model's sizes are not known, and in a modelled run."""
    finished_steps: int
    """Of an earlier attempt that this one continues; 0 starts from the beginning."""
    notes: tuple[str, ...]
    """Settings that may be mistakes."""


class RealRunFacts:
    """The facts of a run by the files and the resources of this machine; implements `RunFacts`."""

    is_here = True
    """Whether the run will be on this machine, or in the job that this process is in."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.has_tried_functions = False
        """Whether those of the rewards were called on prompts, also where that found a mistake."""
        self._has_trial_failed = False
        """A function, a server or an environment was tried and has a mistake: further prompts would tell it again."""
        self._notes_on_answers: list[str] = []

    def model(self) -> ModelFacts:
        return _model_facts(self._config)

    def num_prompts_by_domain(self) -> Mapping[Domain, int]:
        if not self._config.trains:
            return dict(Counter(prompt.domain for prompts in self._held_out.values() for prompt in prompts))
        self._check(self._prompts)
        return dict(Counter(prompt.domain for prompt in self._prompts))

    def num_held_out(self) -> Mapping[str, int]:
        for prompts in self._held_out.values():
            self._check(prompts)
        environment = self._config.environment
        is_gym = environment is not None and environment.name == "gym"  # its tasks differ in seeds, often not in words
        has_prompts = bool(self._config.data.files or self._config.takes_prompts_of_environment)
        if self._held_out and has_prompts and not is_gym:
            check_apart(self._prompts, self._held_out)
        return {name: len(prompts) for name, prompts in self._held_out.items()}

    @cached_property
    def _held_out(self) -> Mapping[str, tuple[Prompt, ...]]:
        return load_held_out(self._config.evaluation)

    @cached_property
    def _prompts(self) -> tuple[Prompt, ...]:
        return prompts_to_train(self._config)[0]

    def _check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that the rewards or the chat template have no use for."""
        check_references(self._config.reward, prompts)
        check_rubrics(self._config.reward, prompts, can_ask=_runs_in_this_environment(self._config))
        check_chat(self._config.data, self._config.model.directory, prompts)
        if not _runs_in_this_environment(self._config) or self._has_trial_failed:
            return
        self.has_tried_functions = True
        try:
            self._notes_on_answers += try_checks(self._config.reward, prompts, can_reach=self.is_here)
            if self._config.environment and prompts:
                self._notes_on_answers += try_environment(self._config, prompts[0])
        except UserError:
            self._has_trial_failed = True
            raise

    def check_order(self, order: Mapping[str, object]) -> None:
        config = self._config
        if config.trains and _runs_in_this_environment(config) and not may_resume(config, self._prompts, order):
            raise other_prompts()

    def cluster(self) -> ClusterSize:
        return cluster_size(self._config, current_allocation(os.environ))

    def notes(self) -> tuple[str, ...]:
        cluster = self._config.cluster
        suffixes = notes_of_suffixes(self._config.evaluation, self._config.data)
        notes = (*suffixes, *dict.fromkeys(self._notes_on_answers))
        if cluster is None or not self.is_here or current_allocation(os.environ) is not None:
            return notes
        return (
            f"cluster={cluster.name}: the run starts on this machine all the same; -m hydra/launcher=slurm submits it.",
            *notes,
        )


RunFactsOf = Callable[[RunConfig], RunFacts[ClusterSize | ModelledCluster]]
"""Chooses the source of a run's facts."""


def validate(config: RunConfig, run_facts_of: RunFactsOf = RealRunFacts) -> ResolvedRun:
    """Validate a run; raises a `UserError` that lists every mistake found."""
    run_facts = run_facts_of(config)
    mistakes: list[UserError] = []

    def look(check: Callable[[], Found]) -> Found | None:
        try:
            return check()
        except UserError as mistake:
            mistakes.append(mistake)
            return None

    model = look(run_facts.model)
    look(lambda: check_shape(config.model))
    num_prompts_by_domain = look(lambda: enough_prompts(config, run_facts.num_prompts_by_domain()))
    num_held_out = look(lambda: _few_enough(config, run_facts.num_held_out()))
    settings = None
    if num_prompts_by_domain is not None:
        settings = look(lambda: supplied_settings(config, num_prompts_by_domain))
        look(lambda: _check_rewarded_domains(config, list(num_prompts_by_domain)))
    cluster = look(run_facts.cluster)
    fit = None
    if config.backend.name == "ray" and model is not None:
        look(lambda: check_trainable(config))
        fit = look(lambda: validate_fit(config, cluster if isinstance(cluster, ClusterSize) else None))
    checkpoints = look(lambda: find_resumable(config))
    newest = checkpoints.newest if checkpoints else None
    if newest is not None and num_prompts_by_domain is not None and model is not None:
        look(lambda: run_facts.check_order(newest.order))
    if config.system.interrupt == "keep" and cluster is not None:
        look(lambda: _check_kept_requests(config, cluster))
    look(lambda: _check_engine(config))
    look(lambda: _check_trainer(config))
    are_tried = isinstance(run_facts, RealRunFacts) and run_facts.has_tried_functions
    look(lambda: _check_reward(config, are_functions_tried=are_tried))
    look(lambda: _check_judge(config))
    look(lambda: _check_input_files(config))
    look(lambda: check_run_dir(config))
    look(lambda: check_trackers(config.tracker))
    look(lambda: _check_callbacks(config))
    loss_reads = None
    if _runs_in_this_environment(config):
        loss_reads = look(lambda: _try_own_functions(config))
    raise_mistakes(mistakes)
    assert model is not None
    assert num_prompts_by_domain is not None
    assert num_held_out is not None
    assert settings is not None
    assert cluster is not None
    assert checkpoints is not None
    return ResolvedRun(
        model=model,
        num_prompts_by_domain=num_prompts_by_domain,
        num_held_out=num_held_out,
        settings=settings,
        cluster=cluster,
        fit=fit,
        finished_steps=newest.meta.step if newest else 0,
        notes=(
            *run_facts.notes(),
            *_notes_on_epochs(config, sum(num_prompts_by_domain.values())),
            *keys_without_effect(config),
            *_notes_on_own_loss(config, loss_reads),
        ),
    )


def _notes_on_epochs(config: RunConfig, num_prompts: int) -> tuple[str, ...]:
    """A note where a run ends before its epochs do; empty otherwise."""
    num_steps = math.ceil(num_prompts * (config.run.num_epochs or 0) / config.rollout.num_prompts)
    if num_steps <= config.run.num_steps or not config.trains:
        return ()
    would_take = f"run.num_epochs={config.run.num_epochs} would take about {num_steps:,} steps"
    return (f"{would_take}: the run ends before, at run.num_steps={config.run.num_steps:,}.",)


def _try_own_functions(config: RunConfig) -> tuple[str, ...] | None:
    """Dynamic sampling drops groups of equal rewards, before over-long shaping: that may make rewards equal again."""
    drops_equal_groups = config.system.dynamic_sampling and config.reward.overlong_buffer_tokens is None
    return try_own_functions(config.objective, config.system.max_staleness, has_equal_groups=not drops_equal_groups)


def _check_rewarded_domains(config: RunConfig, trained: Sequence[Domain]) -> None:
    """Refuse a reward of a domain that neither training nor a held-out set has; an evaluation may have few of them."""
    if not config.trains or config.reward.domains.keys() <= set(trained):
        return
    held_out = chain.from_iterable(load_held_out(config.evaluation).values())
    source = " or ".join([prompt_source(config), *(file.written for file in config.evaluation.files)])
    domains = dict.fromkeys([*trained, *(prompt.domain for prompt in held_out)])
    refuse_unknown_domains("reward.domains", config.reward.domains, domains.keys(), source)


def _few_enough(config: RunConfig, num_prompts: Mapping[str, int]) -> Mapping[str, int]:
    """Give the sizes of the held-out sets back if the driver can hold their responses; raises `ConfigError`."""
    num_responses = sum(num_prompts[rule.name] * (rule.num_samples or 1) for rule in config.evaluation.rules)
    if num_responses > MOST_RESPONSES:
        raise ConfigError(
            f"An evaluation has {num_responses:,} responses: every prompt of evaluation.path, each num_samples times.",
            f"At most {MOST_RESPONSES:,}: the driver holds all of them until the last one has its reward.",
            "Lower evaluation.num_samples, or name smaller files.",
        )
    return num_prompts


def _model_facts(config: RunConfig) -> ModelFacts:
    path = config.model.directory
    check_model_files(path, can_ask=_runs_in_this_environment(config))
    description = read_object(path / "config.json")
    _check_drafts(config, description)
    if config.engine.name == "vllm" and not config.trains:  # the trainers refuse experts by themselves
        refuse_experts(path)
    max_positions = _max_positions(path)
    longest = config.longest_response_tokens
    key = "rollout" if longest == config.rollout.max_response_tokens else "evaluation"
    needed = config.data.max_prompt_tokens + longest
    if max_positions is not None and needed > max_positions:
        raise ConfigError(
            f"data.max_prompt_tokens={config.data.max_prompt_tokens} and {key}.max_response_tokens={longest} add up to "
            f"{needed} tokens.",
            f"The model in {path} has {max_positions} positions.",
            _lengths_that_fit(config, max_positions),
        )
    tensors = read_tensors(path)
    return ModelFacts(
        architecture=str(next(iter(description.get("architectures") or ()), description["model_type"])),
        num_parameters=None if tensors is None else sum(math.prod(tensor.shape) for tensor in tensors.values()),
        num_weight_bytes=sum(file.stat().st_size for file in weight_files(path)),
        max_positions=max_positions,
    )


def _lengths_that_fit(config: RunConfig, max_positions: int) -> str:
    """Say which lengths fit: shorter prompts, or both shorter where a response alone fills the model's positions."""
    remaining = max_positions - config.longest_response_tokens
    if remaining > 0:
        return f"Set data.max_prompt_tokens={remaining} or lower; longer prompts are dropped."
    prompt = min(config.data.max_prompt_tokens, max_positions // 2)
    held_out = max((rule.max_response_tokens or 0 for rule in config.evaluation.rules), default=0)
    given = {
        "data.max_prompt_tokens": (config.data.max_prompt_tokens, prompt),
        "rollout.max_response_tokens": (config.rollout.max_response_tokens, max_positions - prompt),
        "evaluation.max_response_tokens": (held_out, max_positions - prompt),
    }
    fitting = [f"{key}={fits}" for key, (value, fits) in given.items() if value > fits]
    return f"Set {' and '.join(fitting)}, or lower."


def _check_drafts(config: RunConfig, description: Mapping[str, Any]) -> None:
    """Refuse a model that the torch engine says it cannot verify drafts of, as far as its file tells."""
    if config.engine.name != "torch" or not config.system.speculative_decoding:
        return
    kinds = set(decoder_of(description).get("layer_types") or ()) - {"full_attention"}
    if kinds or caps_scores(description):
        what = f"are {min(kinds)}" if kinds else "cap attention scores (attn_logit_softcapping)"
        raise ConfigError(
            f"system.speculative_decoding=true, and layers of the model in {config.model.path} {what}.",
            "The torch engine verifies draft tokens of models whose layers are all full_attention, without a cap.",
            "Set system.speculative_decoding=false, or use engine=vllm.",
        )


def _check_kept_requests(config: RunConfig, cluster: ClusterSize | ModelledCluster) -> None:
    """Refuse to keep requests on engines that sleep in each step, and on those that load weights when they can."""
    if config.elastic.is_on:
        raise ConfigError(
            "system.interrupt=keep with elastic rollout workers.",
            "A worker loads new weights when it is ready for them, and its requests go on elsewhere meanwhile.",
            "Set system.interrupt=recompute, or elastic=none.",
        )
    if isinstance(cluster, ModelledCluster):
        are_in_turns = cluster.num_trainer_gpus is None
    else:
        are_in_turns = bool(trainer_parts(config, placed_actors(config, cluster), cluster.num_gpus))
    if are_in_turns:
        raise ConfigError(
            "system.interrupt=keep where engines and trainer take turns on GPUs.",
            "An engine that sleeps while the trainer learns loses its KV cache: there is nothing to keep.",
            "Give each GPUs of its own (placement.engine, placement.trainer), or set system.interrupt=recompute.",
        )


def _check_engine(config: RunConfig) -> None:
    if _runs_in_this_environment(config) and config.engine.name == "vllm":
        check_vllm(config.engine.vllm)
        if config.system.speculative_decoding:
            check_drafter(config.engine.vllm)


def _check_trainer(config: RunConfig) -> None:
    if config.trains and _runs_in_this_environment(config) and config.trainer.name == "megatron":
        check_megatron()


def _check_reward(config: RunConfig, *, are_functions_tried: bool) -> None:
    """Check the sandbox, and functions that were not tried on prompts, since these have mistakes."""
    if not _runs_in_this_environment(config):
        return
    if not are_functions_tried:
        check_functions(config.reward)
    if "sandbox" in config.reward.names:
        check_sandbox(config.reward.sandbox)


def _check_judge(config: RunConfig) -> None:
    judge = config.reward.judge
    if config.backend.name == "sim" or not config.reward.has_judge:
        return
    if judge.engine == "vllm" and _runs_in_this_environment(config):
        check_vllm_installed("reward.judge.engine=vllm", "reward.judge.engine=torch")
    check_judged_length(judge)


def check_judged_length(judge: JudgeSection) -> None:
    """Refuse a judge that would read more than its model can; raises `ConfigError`."""
    max_positions = _max_positions(judge.model.directory)
    if max_positions is not None and judge.max_prompt_tokens >= max_positions:
        raise ConfigError(
            f"reward.judge.max_prompt_tokens={judge.max_prompt_tokens}, and the verdict is one token more.",
            f"The judge's model in {judge.model.path} has {max_positions} positions.",
            f"Set reward.judge.max_prompt_tokens={max_positions - 1} or lower; what is longer loses its middle.",
        )


def _notes_on_own_loss(config: RunConfig, reads: Sequence[str] | None) -> Iterator[str]:
    """Where nothing corrects for what sampled the tokens: vLLM, or an older policy; `reads` is None without such."""
    if reads is None or "behaviour" in reads or not config.trains:
        return
    if config.engine.name == "vllm" and config.trainer.mismatch is None:
        yield (
            f"trainer.loss={config.trainer.loss} does not read `behaviour`, the log-probabilities of vLLM, which "
            "differ a little from the trainer's: nothing corrects the gap. trainer.mismatch=token_truncate would."
        )
    if "proximal" not in reads and config.trainer.num_minibatches > 1:
        yield off_policy_updates(config)


def _check_callbacks(config: RunConfig) -> None:
    if _has_libraries_of(config):
        check_callbacks(config.run.callbacks, config.run.dir)


def _max_positions(path: Path) -> int | None:
    """The longest sequence of a model; None where its configuration does not say, or says nothing at all."""
    try:
        description = read_object(path / "config.json")
    except ModelError:
        return None  # the check of the model's files reports it
    sizes = decoder_of(description)
    return next((sizes[key] for key in MAX_POSITIONS_KEYS if isinstance(sizes.get(key), int)), None)


def _runs_in_this_environment(config: RunConfig) -> bool:
    """True when there are actors, and they use the libraries of this process."""
    return config.backend.name == "ray" and _has_libraries_of(config)


def _has_libraries_of(config: RunConfig) -> bool:
    """True when the run uses the libraries of this process: an image has its own, and the ranks of a job run in it."""
    has_image = config.cluster is not None and config.cluster.container.image is not None
    return not has_image or (current_allocation(os.environ) is not None and bool(surrounding_images(os.environ)))


def _check_input_files(config: RunConfig) -> None:
    """Refuse a profile that is no file. Templates are read anyway, and so is the profile of a modelled cluster."""
    files = {
        "engine.profile": config.engine.profile,
        "hardware.profile": config.hardware.profile if config.hardware and config.backend.name != "sim" else None,
    }
    mistakes = [
        ConfigError(
            f"{key}={path} {f'is {kind}' if (kind := special_kind(path)) else 'is no file'}.",
            "It names a file that is read before the run starts.",
            f"Correct {key}, or leave it out.",
        )
        for key, path in files.items()
        if path is not None and (special_kind(path) or not path.is_file())
    ]
    raise_mistakes(mistakes)
