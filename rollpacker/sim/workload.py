"""What a modelled run works on: its prompts, how each response will end, and what its judgement will be.

Invariant: everything is a function of the configuration and of the request, so a run repeats byte by byte, however its
timing falls and wherever it is resumed.

A response's length comes from the seed that a real sampler would have (`GenerationRequest.seed`: run seed, step, epoch,
prompt, sample), so a prompt that is generated again in a later round draws again, as it would in reality. What stays
the same is its prompt's own nature: a Gaussian copula mixes a number of the prompt with one of the sample,

    z = sqrt(rho) * z_prompt + sqrt(1 - rho) * z_sample,     length = quantile(Phi(z))

so a prompt of long responses is long in every round, epoch and system. rho is a guess until somebody measures it.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError
from rollpacker.core.ids import Domain
from rollpacker.data.prompts import load_prompts
from rollpacker.protocols.rollout import Prompt, TokenizedPrompt
from rollpacker.sim.engine import ResponseLength, blank_tokens
from rollpacker.sim.lengths import (
    ANY_DOMAIN,
    LengthSource,
    Quantiles,
    Uniforms,
    paper_lengths,
    read_lengths,
    read_packaged,
)
from rollpacker.sim.reward import Judgement

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.reward import ResponseToScore
    from rollpacker.protocols.rollout import GenerationRequest

QUICK_REWARD_S = 0.01
"""Comparing an answer with its ground truth, or reading a verdict that a judge gave; the paper gives no figure."""

_STANDARD = NormalDist()
_TWO_TO_63 = float(1 << 63)


class Workload:
    """The prompts of a run and the fate of each response."""

    def __init__(self, config: RunConfig) -> None:
        """Read what the configuration names.

        Raises:
            DataError: A file cannot be read.
            ConfigError: The lengths do not serve the prompts' domains.
        """
        assert config.workload is not None
        self._section = config.workload
        self._seed = config.run.seed
        self._max_response_tokens = config.rollout.max_response_tokens
        path = self._section.lengths
        self._lengths: LengthSource = paper_lengths() if path is None else read_lengths(path)
        self._reward_times = _reward_times()
        self.prompts: Mapping[str, TokenizedPrompt] = self._make_prompts(config)
        self._prompt_shift: dict[str, float] = {}

    @property
    def num_prompts_by_domain(self) -> dict[Domain, int]:
        return dict(Counter(prompt.prompt.domain for prompt in self.prompts.values()))

    def length_of(self, request: GenerationRequest) -> ResponseLength:
        """How long a response will be, and whether the limit cuts it."""
        name = request.request
        domain = self.prompts[name.prompt.key].prompt.domain
        length = self._lengths.length(name, domain, self._uniforms(name.prompt.key, request.seed))
        if length >= request.max_response_tokens:
            return ResponseLength(request.max_response_tokens, is_truncated=True)
        return ResponseLength(max(1, round(length)), is_truncated=False)

    def judgement_of(self, response: ResponseToScore) -> Judgement:
        """Whether a response is right, and how long it takes to tell."""
        name = response.request
        is_solved, time_p = self._two_uniforms(
            f"judgement/{name.round}/{name.prompt.epoch}/{name.prompt.key}/{name.sample}"
        )
        time_s = self._reward_time_s(response.prompt.domain, time_p)
        if response.is_truncated:
            return Judgement(reward=0.0, reason="truncated", time_s=time_s)
        if is_solved < self._section.solve_rate:
            return Judgement(reward=1.0, reason="correct", time_s=time_s)
        return Judgement(reward=0.0, reason="wrong_answer", time_s=time_s)

    def _reward_time_s(self, domain: Domain, p: float) -> float:
        if self._section.reward_time_s is not None:
            return self._section.reward_time_s
        return self._reward_times[domain].value(p) if domain in self._reward_times else QUICK_REWARD_S

    def _uniforms(self, key: str, seed: int) -> Uniforms:
        of_sample = (seed + 0.5) / _TWO_TO_63
        rho = self._section.rho
        z = math.sqrt(rho) * self._shift_of_prompt(key) + math.sqrt(1 - rho) * _STANDARD.inv_cdf(of_sample)
        return Uniforms(of_sample=of_sample, correlated=0.5 * math.erfc(-z / math.sqrt(2)))

    def _shift_of_prompt(self, key: str) -> float:
        shift = self._prompt_shift.get(key)
        if shift is None:
            shift = self._prompt_shift[key] = _STANDARD.inv_cdf(self._two_uniforms(f"prompt/{key}")[0])
        return shift

    def _two_uniforms(self, name: str) -> tuple[float, float]:
        digest = hashlib.blake2b(f"{self._seed}/{name}".encode(), digest_size=16).digest()
        first, second = (int.from_bytes(half, "little") >> 1 for half in (digest[:8], digest[8:]))
        return (first + 0.5) / _TWO_TO_63, (second + 0.5) / _TWO_TO_63

    # Prompts

    def _make_prompts(self, config: RunConfig) -> dict[str, TokenizedPrompt]:
        """Those of data.path; else those that the lengths name; else as many of each domain as the workload says."""
        if config.data.path is not None:
            known = {prompt.key: (prompt.domain, None) for prompt in load_prompts(config.data.path)}
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


def _blank_prompt(key: str, domain: Domain, num_tokens: int) -> TokenizedPrompt:
    prompt = Prompt(key=key, domain=domain, messages=(), text="", ground_truth="")
    return TokenizedPrompt(prompt=prompt, token_ids=blank_tokens(num_tokens))


def _reward_times() -> dict[Domain, Quantiles]:
    points: dict[Domain, list[tuple[float, float]]] = {}
    for row in read_packaged("reward_times.csv"):
        points.setdefault(Domain(row["domain"]), []).append((float(row["p"]), float(row["seconds"])))
    return {domain: Quantiles(pairs) for domain, pairs in points.items()}
