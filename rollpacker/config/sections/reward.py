"""The reward: how responses are scored."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rollpacker.config.entry_names import key_below
from rollpacker.config.sections.base import (
    MODELLED_RUN,
    NOT_IN_FINGERPRINT,
    REAL_RUN,
    Count,
    Kind,
    OnlyWith,
    Positive,
    PositiveSeconds,
    Section,
)
from rollpacker.config.sections.judge import JudgeSection
from rollpacker.config.sections.resources import ActorResources
from rollpacker.config.sections.reward_checks import (
    Check,
    RewardPart,
    Scoring,
    WeightedCheck,
    domain_check,
    function_check,
    url_check,
)
from rollpacker.config.sections.sandbox import SandboxSection

_WITH_RULES = OnlyWith(
    *("reward.names", "math", "walk", "function", "url", "modelled"),
    words="a reward that is no sandbox, judge or environment",
)
_WITH_PROGRAMS = OnlyWith(
    *("reward.names", "sandbox", "modelled"), words="sandbox among reward, reward.parts and reward.domains"
)


class RewardSection(Section):
    """How responses are scored."""

    name: Literal["math", "walk", "sandbox", "judge", "modelled", "environment"] = "math"
    """Which check; `modelled` is for modelled runs, which take their rewards from the workload. `environment` is the
    sum of what the environment gave for the turns of a response (`environment=gym`, `verifiers`), or an agent loop's
    reward_score (`environment=loop`)."""
    function: str | None = None
    """Your own check, in the place of `name`: my_reward.py:score, or package.module:score. It takes any of the
    parameters prompt, response, ground_truth, row (the line's other fields) and is_truncated, by name, and returns a
    number, a number and a reason, or a dict of `score`, perhaps a `reason`, and other numbers, which are logged as
    parts. ground_truth is empty where a line has none; if no line has one, the parameter needs a default. It may be
    async. It runs in processes that are killed after `timeout_s`; a response for which it raises scores 0 with a
    reason. A call may take 4 GiB of address space beyond that of the module's import and of its `prepare_scoring()`,
    which have two minutes together: load there what is larger. What it prints as it scores is in reward.log below
    run.dir/logs, the first 64 KiB of each process."""
    url: str | None = None
    """A server that scores, in the place of `name`. It gets POST requests with JSON lists of up to 64 texts, {query:
    prompts with responses, prompts: [...], labels: ground truths}, and answers {rewards: [...]}, as OpenRLHF's remote
    reward models do. A run sends prompts with the chat template applied; its trial before the start, and `rollpacker
    score`, which knows no model, the contents of their messages, one per line. After 400, 413 or 422 it gets each half
    of the texts by itself, and a text that it refuses alone scores 0. One that refuses otherwise, with 401 or 404 say,
    ends the run, as one that is away."""
    parts: Annotated[
        dict[str, RewardPart], Kind("a mapping of each part to {name|function|url: CHECK, weight: NUMBER}")
    ] = Field(default_factory=dict)
    """Several checks in the place of `name`, such as {accuracy: {name: math}, format: {function: my.py:fmt, weight:
    0.2}}. The reward is the weighted sum. Each part is logged without its weight; one of weight 0 is only logged. The
    reason is that of the first part that failed, or else of the first that gives one of its own."""
    domains: Annotated[
        dict[str, str],
        Kind("a mapping of each domain to math, walk, sandbox, judge, FILE.py:NAME, MODULE:NAME or a URL"),
    ] = Field(default_factory=dict)
    """The check of domains that the others do not score, such as {code: sandbox, poems: my.py:rhymes}. A name of other
    signs than letters is in quotes of its own: 'reward.domains."openai/gsm8k"=math'."""
    overlong_buffer_tokens: Count | None = Field(None, ge=1)
    """Over-long reward shaping (DAPO): the reward of a response falls linearly over so many tokens below
    the length limit, down to `overlong_penalty` less at the limit. null: not at all. What dynamic sampling goes by is
    the reward before it."""
    overlong_penalty: Annotated[Positive, OnlyWith("reward.overlong_buffer_tokens")] = 1.0
    """Taken off the reward of a response that reaches the limit; with `overlong_buffer_tokens`. DAPO's 1, for rewards
    of -1 and 1, is 0.5 for those of 0 and 1, which the checks here give."""
    max_open: Annotated[Count, REAL_RUN] = Field(1024, ge=1)
    """Responses that the process of a real reward holds; further ones wait in the driver. Keep it above `num_workers`
    and `sandbox.num_workers`. For LLM judges: judge.max_open."""
    num_workers: Annotated[Count, _WITH_RULES, NOT_IN_FINGERPRINT] = Field(1, ge=1)
    """Responses that are checked at the same time, or requests to the `url`; programs: sandbox.num_workers."""
    timeout_s: Annotated[PositiveSeconds, _WITH_RULES] = 2.0
    """A response whose check takes longer scores 0 with reason `timeout`. A request to the `url` may take as long for
    each of its texts, 64 times at most; if it takes longer, all of them score 0."""
    resources: Annotated[ActorResources, NOT_IN_FINGERPRINT] = ActorResources(num_cpus=0.5)
    kinds: dict[str, Literal["rule", "sandbox", "judge"]] = Field(default_factory=dict)
    """How a domain's responses are scored in a modelled run. Default: `code` in the sandbox, `judge` by the LLM judge,
    all others by a rule."""
    num_cores: Annotated[Count | None, MODELLED_RUN] = Field(None, ge=1)
    """Cores that the `num_workers` programs of a modelled run share; null: those that the hardware's nodes have for
    it, and no more programs at a time than cores."""
    num_rule_workers: Annotated[Count | None, MODELLED_RUN] = Field(None, ge=1)
    """Answers that rules check at the same time in a modelled run, on cores of their own; null: among the
    `num_workers`. veRL checks one after the other."""
    judge: JudgeSection = JudgeSection()
    sandbox: Annotated[SandboxSection, _WITH_PROGRAMS] = SandboxSection()

    def scoring_of(self, domain: str | None = None) -> Scoring:
        """How a domain's responses are scored; without one, those of most domains."""
        if domain in self.domains:
            return (WeightedCheck(check=domain_check(key_below("reward.domains", domain), self.domains[domain])),)
        if self.parts:
            return tuple(
                WeightedCheck(part=name, check=part.check(f"reward.parts.{name}"), weight=part.weight)
                for name, part in self.parts.items()
            )
        if self.function is not None:
            return (WeightedCheck(check=function_check("reward.function", self.function)),)
        if self.url is not None:
            return (WeightedCheck(check=url_check("reward.url", self.url)),)
        return (WeightedCheck(check=Check(kind=self.name)),)

    def name_of(self, domain: str | None = None) -> str:
        """What scores a domain, or most domains, in words."""
        return " + ".join(each.part or str(each.check) for each in self.scoring_of(domain))

    def is_judged(self, domain: str) -> bool:
        """Whether the LLM judge reads a domain's responses."""
        return [each.check.kind for each in self.scoring_of(domain)] == ["judge"]

    @property
    def scorings(self) -> tuple[Scoring, ...]:
        """Every way in which some domain is scored, that of most domains first."""
        return tuple(dict.fromkeys(map(self.scoring_of, [None, *self.domains])))

    @property
    def names(self) -> tuple[str, ...]:
        """Every kind of check, that of most domains first."""
        return tuple(dict.fromkeys(each.check.kind for scoring in self.scorings for each in scoring))

    @property
    def has_judge(self) -> bool:
        """Whether some responses are read by a real LLM judge."""
        return "judge" in self.names

    @property
    def has_rules(self) -> bool:
        """Whether some responses are checked by anything else."""
        return not set(self.names) <= {"judge", "environment"}

    @model_validator(mode="after")
    def _one_reward(self) -> Self:
        named = [f"name={self.name}"] if self.name != "math" else []
        given = named + [key for key in ("function", "url", "parts") if getattr(self, key)]
        if len(given) > 1:
            raise ValueError(
                f"reward.{given[0]} and reward.{given[1]} are both set.\n"
                "A response has one reward: reward.parts adds several up, reward.domains chooses by domain.\n"
                f"Leave out reward.{given[1]}" + (", or choose reward=math, which it replaces." if named else ".")
            )
        if unfit := [name for name in self.parts if not re.fullmatch(r"[\w.-]+", name)]:
            raise ValueError(
                f"reward.parts has a part named {unfit[0]!r}.\n"
                "A name is letters, digits, _, . and -: it becomes the name of a curve.\n"
                "Rename it."
            )
        if self.parts and not any(part.weight for part in self.parts.values()):
            raise ValueError(
                "Every part of reward.parts has weight 0.\n"
                "The reward is the weighted sum of its parts; it would always be 0.\n"
                "Give one of them another weight."
            )
        for domain in (None, *self.domains):
            self.scoring_of(domain)  # raises for a check that is none
        return self

    @model_validator(mode="after")
    def _domains_are_of_real_rewards_and_kinds_of_modelled_ones(self) -> Self:
        is_modelled = self.name == "modelled"
        given, instead = ("domains", "kinds") if is_modelled else ("kinds", "domains")
        for domain, check in getattr(self, given).items():
            raise ValueError(
                f"{key_below(f'reward.{given}', domain)}={check} with reward.name={self.name}.\n"
                "reward.domains says how a real reward scores a domain, reward.kinds how a modelled run does.\n"
                f"Leave it out, or set {key_below(f'reward.{instead}', domain)}"
                + ("." if is_modelled else "; a modelled run takes reward=modelled.")
            )
        return self

    @model_validator(mode="after")
    def _judge_is_real_or_modelled(self) -> Self:
        if self.name == "modelled":
            return self
        if not self.has_judge:
            if set_keys := self.judge.changed(tuple(JudgeSection.model_fields)):
                raise ValueError(
                    f"reward.judge.{set_keys[0]} is set, and no response is read by a judge.\n"
                    f"reward.name={self.name} and reward.domains choose the checks.\n"
                    f"Choose reward=judge or reward.domains.DOMAIN=judge, or leave out reward.judge.{set_keys[0]}."
                )
            return self
        if modelled := self.judge.changed(("placement", "num_gpus")):
            raise ValueError(
                f"reward.judge.{modelled[0]} is set, and the judge is a real one.\n"
                "It says which GPUs a judge has in a modelled run.\n"
                "Name its GPUs by placement.judge or reward.judge.resources; a real judge stays loaded."
            )
        if self.judge.model.path is None:
            raise ValueError(
                "reward.judge.model.path is not set, and some responses are read by a judge.\n"
                "A judge is a model: a directory in Hugging Face format, or a name of the Hub that is in the cache.\n"
                "Add reward.judge.model.path=DIR; a modelled run takes reward=modelled and reward.kinds.DOMAIN=judge."
            )
        return self

    @model_validator(mode="after")
    def _judge_can_do_what_it_is_asked(self) -> Self:
        judge, is_modelled = self.judge, self.name == "modelled"
        streams = judge.resident_share is not None if is_modelled else judge.engine == "streamed"
        if judge.changed(("num_slots",)) and not streams:
            raise ValueError(
                f"reward.judge.num_slots={judge.num_slots}, and no layer of the judge streams.\n"
                "They do in a judge with reward.judge.engine=streamed, and in a modelled one with a resident_share.\n"
                f"Leave it out, or set reward.judge.{'resident_share' if is_modelled else 'engine=streamed'}."
            )
        if is_modelled:
            return self
        if judge.engine != "vllm" and (only := judge.changed(("kv_cache_mb", "enforce_eager"))):
            raise ValueError(
                f"reward.judge.{only[0]} is set with reward.judge.engine={judge.engine}.\n"
                "It is an argument of vLLM.\nLeave it out, or set reward.judge.engine=vllm."
            )
        if judge.tensor_parallel > 1 and judge.engine != "vllm":
            raise ValueError(
                f"reward.judge.tensor_parallel={judge.tensor_parallel} with reward.judge.engine={judge.engine}.\n"
                "A real judge has several GPUs only with reward.judge.engine=vllm; a modelled judge may have several.\n"
                "Set reward.judge.tensor_parallel=1 or reward.judge.engine=vllm; a modelled run takes reward=modelled."
            )
        if judge.resident_share is not None and judge.engine != "streamed":
            raise ValueError(
                f"reward.judge.resident_share={judge.resident_share:g} with reward.judge.engine={judge.engine}.\n"
                "Only a streamed judge keeps fewer than all of its layers on the device.\n"
                "Leave it out, or set reward.judge.engine=streamed."
            )
        return self
