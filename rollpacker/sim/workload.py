"""What a modelled run works on: its prompts, how each response will end, and how it will be scored.

Invariant: everything is a function of the configuration and of the request, so a run repeats byte by byte, however its
timing falls and wherever it is resumed. Where environments answer turns (`sim.environment`), a length is a turn's.

A response's length comes from the seed that a real sampler would have (`GenerationRequest.seed`: run seed, step, epoch,
prompt, sample), so a prompt that is generated again in a later round draws again, as it would in reality. What stays
the same is its prompt's own nature: a Gaussian copula mixes a number of the prompt with one of the sample,

    z = sqrt(rho) * z_prompt + sqrt(1 - rho) * z_sample,     length = quantile(Phi(z))

so a prompt of long responses is long in every round, epoch and system. rho is a guess, not yet measured. The
run times of a prompt's programs are drawn in the same way, and so is whether a response is right. Lengths and the share
of right responses may drift from step to step.

A right program ends: its run time is drawn from the part of the paper's distribution (Fig 7a) that is below the limit
of 30 s. What reached the limit there is taken for endless, and for wrong. A response that was cut has no program to
run.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

from rollpacker.config.entry_names import key_below
from rollpacker.core.errors import ConfigError, DataError
from rollpacker.core.ids import ENVIRONMENT, Domain, RequestId, VersionSpan, is_held_out
from rollpacker.data.held_out import load_held_out
from rollpacker.data.training_prompts import load_training_prompts
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Prompt, TokenizedPrompt
from rollpacker.sim.engine import ResponseLength, blank_tokens
from rollpacker.sim.lengths import (
    ANY_DOMAIN,
    Lengths,
    Quantiles,
    Uniforms,
    log_normal_lengths,
    paper_lengths,
    read_lengths,
    read_packaged,
)
from rollpacker.sim.reward import ModelledScore

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.config.sections.modelled import WorkloadSection
    from rollpacker.protocols.reward import ResponseToScore
    from rollpacker.protocols.rollout import GenerationRequest
    from rollpacker.sim.profile import ProgramCosts

RewardKind = Literal["rule", "sandbox", "judge"]

REWARD_KINDS: Mapping[Domain, RewardKind] = {Domain("code"): "sandbox", Domain("judge"): "judge"}
"""How domains that `reward.kinds` does not name are scored; the others by a rule."""

PAPER_LIMIT_S = 30.0
"""At which the sandbox of Fig 7a stopped programs."""

TAIL_FROM = 0.9
"""The quantile of a domain's lengths above which `workload.tail_scale` scales them."""

_STANDARD = NormalDist()
_TWO_TO_63 = float(1 << 63)


class Workload:
    """The prompts of a run, and length and score of each response."""

    def __init__(self, config: RunConfig) -> None:
        """Read what the configuration names.

        Raises:
            DataError: A file cannot be read.
            ConfigError: The lengths do not serve the prompts' domains, or have a drift or a tail of their own beside a
                given one.
        """
        assert config.workload is not None
        self._section = config.workload
        self.draft_acceptance = self._section.draft_acceptance
        self._kinds = dict(REWARD_KINDS)
        self._kinds.update({Domain(name): kind for name, kind in config.reward.kinds.items()})
        self._template_tokens = config.reward.judge.template_tokens
        assert config.hardware is not None
        self._rule_time_s = config.hardware.rule_time_s
        self._seed = config.run.seed
        self._max_response_tokens = config.rollout.max_response_tokens
        path = self._section.lengths
        if self._section.median_tokens is not None:
            domain = Domain(self._section.domain or ANY_DOMAIN)
            self._lengths = log_normal_lengths(domain, self._section.median_tokens, self._section.sigma)
        else:
            self._lengths = paper_lengths() if path is None else read_lengths(path)
        self._drift = Drift(self._section, self._lengths)
        self._tail = Tail(self._section, self._lengths)
        self._has_turns = self._section.environment is not None
        if self._has_turns and self._lengths.is_recording:
            raise ConfigError(
                f"workload.environment with workload.lengths={path}, a recorded run.",
                "Its lengths are those of whole responses, and with environments they are those of turns.",
                "Leave out one of the two, or give workload.lengths a table of the lengths of turns.",
            )
        self._run_times = _run_times()
        self._longest_p = self._run_times.share_below(PAPER_LIMIT_S)
        self._sandbox_start_s = 0.0
        self.prompts: Mapping[str, TokenizedPrompt] = self._make_prompts(config)
        self.num_long_prompts = self._fit_long_prompts(config)
        self.held_out = {
            name: {
                prompt.key: _blank_prompt(prompt.key, prompt.domain, self._section.prompt_tokens) for prompt in prompts
            }
            for name, prompts in load_held_out(config.evaluation).items()
        }
        for prompts in self.held_out.values():
            self._check_domains(prompts)
        self._prompt_shifts: dict[str, tuple[float, float]] = {}
        self._check_names(config)
        self._check_kinds(config)

    @property
    def num_prompts_by_domain(self) -> dict[Domain, int]:
        return dict(Counter(prompt.prompt.domain for prompt in self.prompts.values()))

    def notes(self) -> tuple[str, ...]:
        """What the lengths do not tell about this run."""
        limit = self._max_response_tokens
        notes = []
        if cut := [length for length in self._lengths.cut if length < limit]:
            notes.append(
                f"{len(cut):,} recorded responses ended at a limit of {max(cut):,.0f} tokens, and with "
                f"rollout.max_response_tokens={limit:,} they end there, too."
            )
        if num_aborted := len(self._lengths.at_least):
            notes.append(
                f"{num_aborted:,} of {num_aborted + len(self._lengths.exact):,} recorded responses were aborted before "
                "their end. Races abort long ones, so the tail of these lengths is too short: record with system=verl."
            )
        return tuple(f"workload.lengths={self._section.lengths}: {note}" for note in notes)

    def length_of(self, request: GenerationRequest) -> ResponseLength:
        """How long a response will be at the end of its turn, and whether the limit cuts it."""
        name = request.request
        domain = self._prompt_of(name).prompt.domain
        turn, num_before = turn_of(request.begun.spans if request.begun else ())
        uniform = (request.seed + 0.5) / _TWO_TO_63 if turn == 0 else two_uniforms(request.seed, f"turn/{turn}")[0]
        length = self._lengths.length(name, domain, self._uniforms(name.prompt.key, uniform))
        length = num_before + self._tail.scale(domain, length) * self._drift.factor(name.round)
        if length >= request.max_response_tokens:
            return ResponseLength(request.max_response_tokens, is_truncated=True)
        return ResponseLength(max(num_before + 1, round(length)), is_truncated=False)

    @property
    def needs_judge(self) -> bool:
        """True when some responses are read by an LLM judge."""
        if self._has_turns or self._section.reward_time_s is not None:
            return False
        return any(self._kind(domain) == "judge" for domain in self.num_prompts_by_domain)

    @property
    def has_programs(self) -> bool:
        """True when some responses are run in a sandbox whose times are not given."""
        if self._has_turns or self._section.reward_time_s is not None:
            return False
        return any(self._kind(domain) == "sandbox" for domain in self.num_prompts_by_domain)

    def take_program_times(self, programs: ProgramCosts) -> None:
        """Let programs take what was measured, and no more what the paper says of its own (Fig 7a)."""
        self._run_times, self._longest_p = programs.run_times, 1.0
        self._sandbox_start_s = programs.start_s

    def score_of(self, response: ResponseToScore) -> ModelledScore:
        """Whether a response is right, and what work it is to tell."""
        name, domain = response.request, response.prompt.domain
        luck, run_time_p = self._luck(name)
        solve_rate = self._solve_rate(domain, name.round)
        is_right = luck < solve_rate and not response.is_truncated
        reason = "truncated" if response.is_truncated else "correct" if is_right else "wrong_answer"
        reward = float(is_right)
        if recorded := self._lengths.verdict(name):
            reward, reason = recorded
        match self._kind(domain):
            case "judge" if self._section.reward_time_s is None:
                num_prompt_tokens = len(self._prompt_of(name).token_ids)
                num_tokens = num_prompt_tokens + len(response.token_ids) + self._template_tokens
                return ModelledScore(reward=reward, reason=reason, judge_tokens=num_tokens)
            case "sandbox" if not response.is_truncated:
                has_hung = not is_right and luck - solve_rate < self._section.endless_share
                is_endless = reason == "timeout" if recorded else has_hung
                time_s = math.inf if is_endless else self._run_time_s(name.prompt.key, run_time_p)
                return ModelledScore(
                    reward=reward,
                    reason=reason,
                    time_s=self._or_fixed(time_s),
                    has_program=True,
                    start_s=self._sandbox_start_s,
                )
            case _:
                return ModelledScore(reward=reward, reason=reason, time_s=self._or_fixed(self._rule_time_s))

    def solves(self, name: RequestId) -> bool:
        """Whether a trajectory that comes to its end has solved its task."""
        return self._luck(name)[0] < self._solve_rate(self._prompt_of(name).prompt.domain, name.round)

    def _luck(self, name: RequestId) -> tuple[float, float]:
        """Two uniform numbers: below the share of right responses it is right; and how long its program runs."""
        luck, run_time_p = two_uniforms(self._seed, f"judgement/{written(name)}")
        return self._correlated_luck(name.prompt.key, luck), run_time_p

    def _prompt_of(self, name: RequestId) -> TokenizedPrompt:
        if is_held_out(name):
            set_name, _, key = name.prompt.key.partition("/")
            return self.held_out[set_name][key]
        return self.prompts[name.prompt.key]

    def _kind(self, domain: Domain) -> RewardKind:
        return self._kinds.get(domain, "rule")

    def _or_fixed(self, time_s: float) -> float:
        return time_s if self._section.reward_time_s is None else self._section.reward_time_s

    def _correlated_luck(self, key: str, luck: float) -> float:
        """Below the share of right responses it is right; uniform over all prompts, whatever the correlation is."""
        rho = self._section.solve_rate_rho
        if not rho:
            return luck
        return _correlated(rho, _STANDARD.inv_cdf(two_uniforms(self._seed, f"difficulty/{key}")[0]), luck)

    def _solve_rate(self, domain: Domain, step: int) -> float:
        at_first = self._section.solve_rate_by_domain.get(domain, self._section.solve_rate)
        return min(max(at_first + step * self._section.solve_rate_drift_per_step, 0.0), 1.0)

    def _run_time_s(self, key: str, of_sample: float) -> float:
        """Of a program that ends."""
        p = _correlated(self._section.run_time_rho, self._shifts_of_prompt(key)[1], of_sample)
        return self._run_times.value(p * self._longest_p)

    def _uniforms(self, key: str, of_sample: float) -> Uniforms:
        shift = self._shifts_of_prompt(key)[0]
        return Uniforms(of_sample=of_sample, correlated=_correlated(self._section.rho, shift, of_sample))

    def _shifts_of_prompt(self, key: str) -> tuple[float, float]:
        """Two standard normal numbers: the nature of its responses' lengths, and of its programs' run times."""
        shifts = self._prompt_shifts.get(key)
        if shifts is None:
            of_length, of_run_time = two_uniforms(self._seed, f"prompt/{key}")
            shifts = self._prompt_shifts[key] = _STANDARD.inv_cdf(of_length), _STANDARD.inv_cdf(of_run_time)
        return shifts

    # Prompts

    def _make_prompts(self, config: RunConfig) -> dict[str, TokenizedPrompt]:
        """Those of data.path; else those that the lengths name; else as many of each domain as the workload says."""
        if config.data.path is not None:
            known = {prompt.key: (prompt.domain, None) for prompt in load_training_prompts(config.data)[0]}
            named = {key: self._lengths.prompts.get(key, facts) for key, facts in known.items()}
            named = {key: (known[key][0], num_tokens) for key, (_, num_tokens) in named.items()}
        elif self._lengths.prompts:
            named = dict(self._lengths.prompts)
        else:
            named = {
                f"{domain}-{number:06d}": (domain, None)
                for domain in self._lengths.domains
                for number in range(self._section.num_prompts)
                if self._section.domain in {None, domain}
            }
        only = self._section.domain
        prompts = {
            key: _blank_prompt(key, domain, num_tokens or self._section.prompt_tokens)
            for key, (domain, num_tokens) in named.items()
            if only is None or domain == only
        }
        self._check_domains(prompts)
        return prompts

    def _fit_long_prompts(self, config: RunConfig) -> int:
        """Leave out or shorten, as a real run does, what is longer than data.max_prompt_tokens; gives how many."""
        limit, prompts = config.data.max_prompt_tokens, self.prompts
        fitting = {key: prompt for key, prompt in prompts.items() if len(prompt.token_ids) <= limit}
        num_long = len(prompts) - len(fitting)
        match config.data.long_prompts:
            case "drop":
                self.prompts = fitting
            case "truncate_left" | "truncate_right":
                self.prompts = {
                    key: prompt if key in fitting else replace(prompt, token_ids=blank_tokens(limit))
                    for key, prompt in prompts.items()
                }
            case "error" if num_long:
                raise DataError(
                    f"{num_long} of the workload's {len(prompts)} prompts have more than data.max_prompt_tokens="
                    f"{limit} tokens.",
                    "Allowed with data.long_prompts=error: none.",
                    "Raise data.max_prompt_tokens, or choose another data.long_prompts.",
                )
        if not self.prompts:
            shortest = min(len(prompt.token_ids) for prompt in prompts.values())
            raise DataError(
                f"None of the workload's {len(prompts)} prompts has at most data.max_prompt_tokens={limit} tokens.",
                f"The shortest has {shortest}; longer prompts are dropped.",
                "Raise data.max_prompt_tokens, or lower workload.prompt_tokens.",
            )
        return num_long

    def _check_names(self, config: RunConfig) -> None:
        """Refuse values for domains that there are not."""
        domains = dict.fromkeys([*self.num_prompts_by_domain, *self._lengths.domains])
        for key, names in (
            ("workload.solve_rate_by_domain", self._section.solve_rate_by_domain),
            ("reward.kinds", config.reward.kinds),
        ):
            for name in names:
                if name not in domains:
                    raise ConfigError(
                        f"{key} names `{name}`, which is no domain of the workload.",
                        f"Its domains are {', '.join(domains)}.",
                        f"Leave out {key}.{name}, or correct its name.",
                    )

    def _check_kinds(self, config: RunConfig) -> None:
        """Refuse a sandbox or judge of the configuration that the modelled run would not have."""
        if self._has_turns or self._section.reward_time_s is not None:
            return
        for domain in self.num_prompts_by_domain:
            checks = {each.check.kind for each in config.reward.scoring_of(domain)} & {"sandbox", "judge"}
            if checks and (kind := self._kind(domain)) not in checks:
                check = min(checks)
                raise ConfigError(
                    f"Domain `{domain}` is scored by the check `{check}`, but in a modelled run as kind `{kind}`.",
                    "reward.kinds says how a modelled run scores a domain; reward=modelled goes with it.",
                    f"Write reward=modelled {key_below('reward.kinds', domain)}={check}.",
                )

    def _check_domains(self, prompts: Mapping[str, TokenizedPrompt]) -> None:
        served = self._lengths.domains
        source = self._section.lengths or "the paper's table"
        if not prompts:
            raise ConfigError(
                f"workload.domain={self._section.domain} has no prompt.",
                f"The domains of {source} are {', '.join(served)}.",
                f"Set workload.domain={served[0]}, or null for all.",
            )
        for domain in dict.fromkeys(prompt.prompt.domain for prompt in prompts.values()):
            if domain not in served and ANY_DOMAIN not in served:
                raise ConfigError(
                    f"There are prompts of domain `{domain}`, of which {source} has no lengths.",
                    f"It has {', '.join(served)}.",
                    "Name the domains alike, or give workload.lengths a file without the column domain.",
                )


def two_uniforms(seed: int, name: str) -> tuple[float, float]:
    """Two numbers in (0, 1) that a seed gives a name."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    first, second = (int.from_bytes(half, "little") >> 1 for half in (digest[:8], digest[8:]))
    return (first + 0.5) / _TWO_TO_63, (second + 0.5) / _TWO_TO_63


def written(name: RequestId) -> str:
    """What draws of a request are made of: held-out samples are the same in every step, so they are paired."""
    when = "held out" if is_held_out(name) else f"{name.round}/{name.prompt.epoch}"
    return f"{when}/{name.prompt.key}/{name.sample}"


def turn_of(begun: Sequence[VersionSpan]) -> tuple[int, int]:
    """Which turn a policy writes after what was begun, from 0, and the number of tokens before it."""
    turn = num_before = num_tokens = 0
    for span in begun:
        num_tokens += span.num_tokens
        if span.policy_version == ENVIRONMENT:
            turn, num_before = turn + 1, num_tokens
    return turn, num_before


def _blank_prompt(key: str, domain: Domain, num_tokens: int) -> TokenizedPrompt:
    prompt = Prompt(key=key, domain=domain, messages=(), text="", reference=AnswerReference(text=""))
    return TokenizedPrompt(prompt=prompt, token_ids=blank_tokens(num_tokens))


class Drift:
    """The factor by which lengths have grown."""

    def __init__(self, section: WorkloadSection, lengths: Lengths) -> None:
        self._per_step = 1 + section.drift_per_step
        self._steps = sorted(section.drift_by_step)
        self._factors = [section.drift_by_step[step] for step in self._steps]
        if lengths.is_recording and (section.drift_per_step or self._steps):
            raise ConfigError(
                f"workload.drift_per_step={section.drift_per_step:g} and workload.drift_by_step="
                f"{section.drift_by_step} with the lengths of a recorded run.",
                "A recorded run has its own drift.",
                "Leave both out, or take lengths from a table or a file.",
            )

    def factor(self, step: int) -> float:
        """Infinite where no number is as large: the limit cuts the response."""
        try:
            growth = math.pow(self._per_step, step)
        except OverflowError:
            growth = math.inf
        return growth * self._interpolate(step)

    def _interpolate(self, step: int) -> float:
        if not self._steps:
            return 1.0
        index = bisect.bisect_right(self._steps, step)
        if index in {0, len(self._steps)}:
            return self._factors[max(index - 1, 0)]
        (begin, end), (low, high) = (pair[index - 1 : index + 1] for pair in (self._steps, self._factors))
        return low + (high - low) * (step - begin) / (end - begin)


class Tail:
    """What lengths have above the `TAIL_FROM` quantile of their domain."""

    def __init__(self, section: WorkloadSection, lengths: Lengths) -> None:
        self._scale = section.tail_scale
        self._lengths = lengths
        if lengths.is_recording and self._scale != 1:
            raise ConfigError(
                f"workload.tail_scale={self._scale:g} with the lengths of a recorded run.",
                "A recorded run has its own tail.",
                "Leave it out, or take lengths from a table or a file.",
            )

    def scale(self, domain: Domain, length: float) -> float:
        """Give the length that a response has with this tail."""
        if self._scale == 1:
            return length
        begin = self._lengths.distribution(domain).value(TAIL_FROM)
        return length if length <= begin else begin + self._scale * (length - begin)


def _correlated(rho: float, z_prompt: float, of_sample: float) -> float:
    """Mix a prompt's normal number with a sample's uniform one; gives a uniform number."""
    z = math.sqrt(rho) * z_prompt + math.sqrt(1 - rho) * _STANDARD.inv_cdf(of_sample)
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _run_times() -> Quantiles:
    """Of sandboxed programs in seconds, up to the limit and beyond it."""
    return Quantiles((float(row["p"]), float(row["seconds"])) for row in read_packaged("reward_times.csv"))
