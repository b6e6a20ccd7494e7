"""Every key of the configuration, its unit, its bounds and its default.

A configuration is a frozen tree; unknown keys are errors. Defaults live here and only here: the files in `conf/`
set what differs. Sections follow the Hydra groups. A validator's message has one line per part: the problem, what is
allowed, what to do.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import model_validator

from rollpacker.config.modelled_gpus import modelled_gpus, with_engines_that_fill
from rollpacker.config.sections.backend import BackendSection
from rollpacker.config.sections.base import MODELLED_RUN, NOT_IN_FINGERPRINT, REAL_RUN, NotInFingerprint, Section, exact
from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.config.sections.data import DataSection
from rollpacker.config.sections.degrees import check_degrees, check_escalation
from rollpacker.config.sections.elastic import ElasticSection
from rollpacker.config.sections.elastic_job import check_lives_of_workers
from rollpacker.config.sections.engine import EngineSection
from rollpacker.config.sections.environment import EnvironmentSection, check_environment
from rollpacker.config.sections.evaluation import EvaluationSection
from rollpacker.config.sections.losses import check_stale_tokens, resolved
from rollpacker.config.sections.model import PolicySection
from rollpacker.config.sections.modelled import HardwareSection, WorkloadSection
from rollpacker.config.sections.modelled_environment import ModelledEnvironmentSection
from rollpacker.config.sections.placement import PlacementSection
from rollpacker.config.sections.reward import RewardSection
from rollpacker.config.sections.rollout import RolloutSection
from rollpacker.config.sections.run import RunSection, TrackerSection
from rollpacker.config.sections.system import SystemSection
from rollpacker.config.sections.trainer import TrainerSection
from rollpacker.config.sections.weight_sync import WeightSyncSection
from rollpacker.core.quotas import scale_up

MOST_RESPONSES = 1_000_000
"""Of a step: ten times those of the largest batches in print, and a few GB in the driver."""
VLLM_HOTTEST = 2.0
"""Highest temperature that vLLM 0.32 takes."""


class RunConfig(Section):
    """The whole configuration of one run."""

    run: RunSection
    model: Annotated[PolicySection, NotInFingerprint("name")]
    data: DataSection
    rollout: RolloutSection = RolloutSection()
    system: SystemSection
    engine: EngineSection = EngineSection()
    trainer: TrainerSection = TrainerSection()
    reward: RewardSection = RewardSection()
    placement: Annotated[PlacementSection, NOT_IN_FINGERPRINT] = PlacementSection()
    weight_sync: Annotated[WeightSyncSection, REAL_RUN, NOT_IN_FINGERPRINT] = WeightSyncSection()
    elastic: Annotated[ElasticSection, NOT_IN_FINGERPRINT] = ElasticSection()
    evaluation: Annotated[EvaluationSection, NOT_IN_FINGERPRINT] = EvaluationSection()
    backend: BackendSection = BackendSection()
    hardware: Annotated[HardwareSection | None, MODELLED_RUN] = None
    """Only of a modelled run."""
    workload: Annotated[WorkloadSection | None, MODELLED_RUN] = None
    """Only of a modelled run."""
    environment: EnvironmentSection | None = None
    """Only where a response has several turns."""
    cluster: Annotated[ClusterSection | None, NOT_IN_FINGERPRINT] = None
    """Only of a run that is submitted to Slurm."""
    tracker: Annotated[TrackerSection, NOT_IN_FINGERPRINT] = TrackerSection()

    @property
    def trains(self) -> bool:
        """False in a run that evaluates its model once, without a trainer."""
        return self.run.num_steps > 0

    @property
    def takes_prompts_of_environment(self) -> bool:
        """Whether the prompts to train on are those that the environment has."""
        return self.data.path is None and self.environment is not None and self.environment.has_prompts

    @property
    def num_environment_nodes(self) -> int:
        """Nodes of the run's Slurm job on which environments run and nothing else."""
        return self.cluster.environment_nodes.num_nodes if self.cluster and self.environment else 0

    @property
    def longest_response_tokens(self) -> int:
        """Of any response that an engine is asked for, trained or held out."""
        held_out = (rule.max_response_tokens or 0 for rule in self.evaluation.rules)
        return max(self.rollout.max_response_tokens, *held_out, 0)

    @property
    def modelled_environment(self) -> ModelledEnvironmentSection | None:
        """What answers the turns of a modelled run; None where a response is one turn, and of a real run."""
        return self.workload.environment if self.backend.name == "sim" and self.workload else None

    @property
    def objective(self) -> TrainerSection:
        """The trainer with what the nulls of its loss stand for, which depends on engines and staleness."""
        return resolved(self.trainer, engine_name=self.engine.name, max_staleness=self.system.max_staleness)

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        check_stale_tokens(self.objective, self.system.max_staleness)
        check_lives_of_workers(self)
        check_environment(self)
        return self

    @model_validator(mode="after")
    def _responses_of_a_step_can_be_held(self) -> Self:
        rollout, system = self.rollout, self.system
        num_launched = rollout.num_prompts * rollout.num_responses
        factors = ""
        if system.batching == "tail":
            of_prompts, of_responses = system.largest_factors
            num_launched = int(num_launched * of_prompts * of_responses)
            factors = f", times {of_prompts:g} and {of_responses:g}"
        if num_launched > MOST_RESPONSES:
            raise ValueError(
                f"rollout.num_prompts={rollout.num_prompts} x rollout.num_responses={rollout.num_responses}{factors}: "
                f"{num_launched:,} responses per step.\n"
                f"At most {MOST_RESPONSES:,}: the driver holds all of them until the step is recorded, each about 1 kB "
                "and 8 bytes per token.\n"
                "Lower one of the two."
            )
        return self

    @model_validator(mode="after")
    def _batch_divides(self) -> Self:
        num_prompts, num_minibatches = self.rollout.num_prompts, self.trainer.num_minibatches
        if num_prompts % num_minibatches:
            divisors = ", ".join(str(count) for count in range(1, num_prompts + 1) if num_prompts % count == 0)
            raise ValueError(
                f"rollout.num_prompts={num_prompts} is not divisible by trainer.num_minibatches={num_minibatches}.\n"
                f"All minibatches of a step are equally large; {num_prompts} is divisible by {divisors}.\n"
                "Change one of the two."
            )
        return self

    @model_validator(mode="after")
    def _copies_of_the_parameters_are_whole(self) -> Self:
        trainer = self.trainer
        shard_ranks, num_ranks = trainer.shard_ranks, trainer.data_parallel or 1
        if shard_ranks is None or trainer.name != "fsdp":
            return self
        if num_ranks % shard_ranks:
            divisors = ", ".join(str(count) for count in range(1, num_ranks + 1) if num_ranks % count == 0)
            raise ValueError(
                f"trainer.shard_ranks={shard_ranks} does not divide trainer.data_parallel={num_ranks}.\n"
                f"Every copy of the parameters has as many ranks; {num_ranks} is divisible by {divisors}.\n"
                "Change one of the two."
            )
        if trainer.shard_gradients and shard_ranks < num_ranks:
            raise ValueError(
                f"trainer.shard_gradients=true with trainer.shard_ranks={shard_ranks} of trainer.data_parallel="
                f"{num_ranks}.\n"
                "Sharded gradients are summed over all ranks in every pass, so no copy could work alone.\n"
                "Leave out one of the two."
            )
        return self

    @model_validator(mode="after")
    def _streamed_step_equals_the_unstreamed_one(self) -> Self:
        for key, other in self.trainer.needs_whole_batch.items() if self.system.stream else ():
            raise ValueError(
                f"system.stream=true with trainer.{key}={getattr(self.trainer, key)}.\n"
                "A group that streams is trained before the last one is there, so its loss may depend on nothing "
                "but the group itself and what is known beforehand.\n"
                f"Set system.stream=false, or trainer.{key}={other}."
            )
        return self

    @model_validator(mode="after")
    def _dynamic_sampling_launches_whole_rounds(self) -> Self:
        system, num_samples = self.system, self.rollout.num_responses
        if not system.dynamic_sampling:
            return self
        if system.batching == "tail":
            num_samples = scale_up(num_samples, exact(system.eta_responses))
            if system.reward == "batch":
                raise ValueError(
                    "system.dynamic_sampling=true with system.batching=tail and system.reward=batch.\n"
                    "A race of responses is over before the first reward says which prompts count.\n"
                    "Choose system.reward=async or scheduled, or system.batching=plain."
                )
            if system.max_launch_factor < system.eta_prompts:
                raise ValueError(
                    f"system.max_launch_factor={system.max_launch_factor:g} with system.eta_prompts="
                    f"{system.eta_prompts:g}.\n"
                    "A short round launches eta_prompts times what it needs before anything is dropped.\n"
                    "Raise system.max_launch_factor."
                )
        if system.max_active_requests is not None and system.max_active_requests < num_samples:
            raise ValueError(
                f"system.max_active_requests={system.max_active_requests}.\n"
                f"It is at least {num_samples}: all responses of a prompt are launched at once.\n"
                "Raise system.max_active_requests."
            )
        return self

    @model_validator(mode="after")
    def _overlong_shaping_fits(self) -> Self:
        buffer, limit = self.reward.overlong_buffer_tokens, self.rollout.max_response_tokens
        if buffer is not None and buffer > limit:
            raise ValueError(
                f"reward.overlong_buffer_tokens={buffer} with rollout.max_response_tokens={limit}.\n"
                "The punished lengths are the last ones below the limit.\n"
                f"Set reward.overlong_buffer_tokens to {limit} or less; DAPO takes a fifth of the limit."
            )
        return self

    @model_validator(mode="after")
    def _trains_or_evaluates(self) -> Self:
        if not (self.trains or (self.evaluation.path is not None and self.evaluation.at_end)):
            raise ValueError(
                "run.num_steps=0, and nothing is evaluated.\n"
                "A run without steps evaluates its model on the held-out sets of evaluation.path.\n"
                "Name held-out files in evaluation.path, with evaluation.at_end=true. A run that trains takes steps."
            )
        return self

    @model_validator(mode="after")
    def _best_is_of_a_held_out_set(self) -> Self:
        names = [rule.name for rule in self.evaluation.rules]
        if self.run.keep_best and not names:
            raise ValueError(
                "run.keep_best=true without evaluation.path.\n"
                "The best checkpoint is the one with the best held-out score.\n"
                "Name held-out files in evaluation.path, or leave run.keep_best out."
            )
        if self.run.keep_best and self.run.best_by not in {None, *names}:
            raise ValueError(
                f"run.best_by={self.run.best_by} is no held-out set.\n"
                f"The sets of evaluation.path are {', '.join(names)}.\nName one of them, or leave it out."
            )
        return self

    @model_validator(mode="after")
    def _evaluations_can_fill_rounds(self) -> Self:
        system = self.system
        if self.evaluation.when != "fill":
            return self
        for key, value, reason in (
            (
                "system.dynamic_sampling",
                "true" if system.dynamic_sampling else "",
                "What a batch takes depends on which rewards come first, which an evaluation beside it would change.",
            ),
            (
                "system.eta_responses",
                f"{system.eta_responses:g}"
                if system.batching == "tail" and system.eta_prompts == 1 < system.eta_responses
                else "",
                "Every round races responses, and without eta_prompts above 1 no long round ever comes.",
            ),
            (
                "system.max_staleness",
                f"{system.max_staleness}" if system.max_staleness else "",
                "Its policy would change while it runs: asynchronous training has no round that one policy fills.",
            ),
            (
                "run.keep_best",
                "true" if self.run.keep_best else "",
                "When the score of a policy is known, the trainer has moved on from it.",
            ),
        ):
            if value:
                raise ValueError(
                    f"evaluation.when=fill with {key}={value}.\n{reason}\nSet evaluation.when=alone, or change {key}."
                )
        return self

    @model_validator(mode="after")
    def _real_run_has_what_it_needs(self) -> Self:
        if self.backend.name == "sim":
            return self
        for key, value, needed in (
            ("model.path", self.model.path, "It is a directory in Hugging Face format, or a name on the Hub."),
            ("data.path", self.data.path, "It is JSON lines, Parquet, CSV, `datasets` folders or hf://ORG/NAME."),
        ):
            if value is None and (key != "data.path" or (self.trains and not self.takes_prompts_of_environment)):
                raise ValueError(f"{key}=null with backend.name=ray.\n{needed}\nSet {key}, or choose backend=sim.")
        if self.reward.name == "modelled":
            raise ValueError(
                "reward.name=modelled with backend.name=ray.\n"
                "Real responses are scored by a check of their text, by a judge or by an environment.\n"
                "Choose a real reward, such as reward=math, or backend=sim."
            )
        return self

    @model_validator(mode="after")
    def _real_workers_can_do_what_they_are_asked(self) -> Self:
        if self.backend.name == "sim":
            return self
        engine, trainer = self.engine, self.trainer
        if engine.tensor_parallel > 1 and engine.name != "vllm":
            raise ValueError(
                f"engine.tensor_parallel={engine.tensor_parallel} with engine.name={engine.name}.\n"
                f"An engine of {engine.name} works on one device; one of vllm may share the model among several.\n"
                "Set engine.tensor_parallel=1, or choose engine=vllm or backend=sim."
            )
        temperatures = {"rollout.temperature": self.rollout.temperature} | {
            f"evaluation.temperature of {rule.name}": rule.temperature or 0.0 for rule in self.evaluation.rules
        }
        for key, temperature in temperatures.items():
            if engine.name == "vllm" and temperature > VLLM_HOTTEST:
                raise ValueError(
                    f"{key}={temperature:g} with engine.name=vllm.\n"
                    f"vLLM samples at {VLLM_HOTTEST:g} or below.\nLower it, or choose engine=torch."
                )
        for key, degree, able in (
            ("trainer.tensor_parallel", trainer.tensor_parallel, ("megatron",)),
            ("trainer.pipeline_parallel", trainer.pipeline_parallel, ("megatron",)),
            ("trainer.context_parallel", trainer.context_parallel, ("megatron",)),
            ("trainer.data_parallel", trainer.data_parallel or 1, ("fsdp", "megatron")),
        ):
            if degree > 1 and trainer.name not in able:
                raise ValueError(
                    f"{key}={degree} with trainer.name={trainer.name}.\n"
                    f"Only {' and '.join(able)} can do it; torch trains on one device, fsdp on replicas that share the "
                    "model's state.\n"
                    f"Set {key}=1, or choose {' or '.join(f'trainer={name}' for name in able)} or backend=sim."
                )
        return self

    @model_validator(mode="after")
    def _engines_have_degrees_to_choose_among(self) -> Self:
        check_degrees(self)
        check_escalation(self)
        return self

    @model_validator(mode="after")
    def _everyone_has_the_gpus_that_it_uses(self) -> Self:
        if self.backend.name == "sim":
            return self
        is_placed, engine, trainer = self.placement.maps is not None, self.engine, self.trainer
        given = engine.resources.num_gpus
        if (is_placed or engine.tensor_parallel > 1) and given not in {0, engine.tensor_parallel}:
            raise ValueError(
                f"engine.resources.num_gpus={given:g} with engine.tensor_parallel={engine.tensor_parallel}"
                + (f" and placement.engine={self.placement.engine}.\n" if is_placed else ".\n")
                + "An engine has as many GPUs as its degree says, or none and works on cores.\n"
                + (
                    "Leave out engine.resources.num_gpus: the placement says which GPUs."
                    if is_placed
                    else f"Set engine.resources.num_gpus={engine.tensor_parallel}."
                )
            )
        judge = self.reward.judge
        given = judge.resources.num_gpus
        if self.reward.has_judge and (is_placed or judge.tensor_parallel > 1):
            legal = {0, judge.tensor_parallel} if not is_placed or self.placement.judge is not None else {0}
            if given not in legal:
                raise ValueError(
                    f"reward.judge.resources.num_gpus={given:g} with reward.judge.tensor_parallel="
                    f"{judge.tensor_parallel}"
                    + (f" and placement.judge={self.placement.judge or 'null'}.\n" if is_placed else ".\n")
                    + "A judge has as many GPUs as its degree says, or none and works on cores.\n"
                    + (
                        "Leave it out, and name the judge's GPUs by placement.judge."
                        if is_placed
                        else f"Set reward.judge.resources.num_gpus={judge.tensor_parallel}."
                    )
                )
        if self.placement.judge is not None and not self.reward.has_judge:
            raise ValueError(
                f"placement.judge={self.placement.judge}, and no response is read by a judge.\n"
                f"reward.name={self.reward.name} and reward.domains choose the checks.\n"
                "Leave it out, or choose reward=judge or reward.domains.DOMAIN=judge."
            )
        given = trainer.resources.num_gpus
        if (is_placed or trainer.name != "torch") and given not in {0, 1}:
            raise ValueError(
                f"trainer.resources.num_gpus={given:g} with "
                + (f"placement.trainer={self.placement.trainer}.\n" if is_placed else f"trainer.name={trainer.name}.\n")
                + "Resources are those of each rank, and a rank has one GPU, or none and works on cores.\n"
                + (
                    "Leave out trainer.resources.num_gpus: the placement says which GPUs."
                    if is_placed
                    else "Set trainer.resources.num_gpus=1; trainer.data_parallel and the other degrees add ranks."
                )
            )
        return self

    @model_validator(mode="after")
    def _modelled_run_has_what_it_needs(self) -> Self:
        if self.backend.name != "sim":
            return self
        for group, section in (("hardware", self.hardware), ("workload", self.workload)):
            if section is None:
                raise ValueError(
                    f"backend.name=sim without {group}.\nA modelled run takes it from the group `{group}`.\n"
                    f"Choose an option of `{group}`; `rollpacker train --help` lists them."
                )
        if self.model.path is None and self.model.shape is None:
            raise ValueError(
                "backend.name=sim without model.shape and model.path.\n"
                "A modelled run needs a model's shape, published or read from a model directory.\n"
                "Choose model=qwen2.5-7b or another option with a shape, or set model.path."
            )
        return self

    @model_validator(mode="after")
    def _gpus_suit_the_run(self) -> Self:
        if self.backend.name == "sim":
            modelled_gpus(self)
        return self

    @model_validator(mode="before")
    @classmethod
    def _engines_of_a_modelled_run_fill_its_nodes(cls, tree: object) -> object:
        return with_engines_that_fill(tree)
