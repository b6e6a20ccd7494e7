"""The response lengths of a plan: their source, and a sample as the modelled runs draw it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollpacker.core.ids import PromptId, RequestId
from rollpacker.protocols.rollout import GenerationRequest
from rollpacker.sim.lengths import ANY_DOMAIN, log_normal_lengths, read_length_rows, read_packaged
from rollpacker.sim.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

    from rollpacker.config.schema import RunConfig
    from rollpacker.config.sections.modelled import WorkloadSection

NUM_DRAWN = 6000
"""Per domain: a quantile of 99 % then has a standard error of 0.13 percentage points."""

NUM_QUANTILES = 200
"""Of the distribution that is written."""

FIRST_UNUSED_SAMPLE = 1 << 30
"""From here on no recorded run has samples, so all draws are new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFacts:
    """The source of the lengths, and its limits."""

    source: str
    num_samples: int | None
    """Responses in the file; None of a distribution."""
    longest: float
    """In the source."""
    limit: int
    """`rollout.max_response_tokens`."""
    has_groups: bool
    """True when the source knows several lengths of one prompt."""
    drawn: dict[str, list[int]]
    """By domain: lengths as a run draws them, cut at the limit."""
    share_at_limit: float | None
    """Of all that were drawn; None where they are lengths of turns, and the limit is that of all turns together."""
    is_extrapolated: bool
    """True when lengths beyond the source's longest were drawn."""
    notes: tuple[str, ...]
    """What the source does not tell, in sentences."""

    def quantiles(self) -> pd.DataFrame:
        """The table `lengths.parquet`: by domain, the length that a share p of the responses has at most."""
        import pandas as pd

        p = np.linspace(0, 1, NUM_QUANTILES + 1)
        tables = [
            pd.DataFrame({"domain": domain, "p": p, "length_tokens": np.quantile(drawn, p, method="nearest")})
            for domain, drawn in self.drawn.items()
        ]
        return pd.concat(tables, ignore_index=True).assign(limit_tokens=self.limit, modelled=True)


def length_facts(config: RunConfig) -> LengthFacts:
    """Read the source and draw from it, as a run of seed 0 does.

    Raises:
        UserError: The lengths cannot be read, or do not serve the configuration.
    """
    assert config.workload is not None
    limit = config.rollout.max_response_tokens
    workload = Workload(config)
    drawn = _draw(workload, limit)
    everything = [length for of_domain in drawn.values() for length in of_domain]
    share_at_limit = None
    if config.workload.environment is None:
        share_at_limit = sum(length >= limit for length in everything) / len(everything)
    source, num_samples, longest, has_groups = _source(config.workload)
    return LengthFacts(
        source=source,
        num_samples=num_samples,
        longest=longest,
        limit=limit,
        has_groups=has_groups,
        drawn=drawn,
        share_at_limit=share_at_limit,
        is_extrapolated=max(everything) > longest,
        notes=workload.notes(),
    )


def _draw(workload: Workload, limit: int) -> dict[str, list[int]]:
    chance = random.Random(0)
    drawn: dict[str, list[int]] = {}
    keys: dict[str, list[str]] = {}
    for key, prompt in workload.prompts.items():
        keys.setdefault(prompt.prompt.domain, []).append(key)
    for domain, of_domain in keys.items():
        drawn[domain] = [
            workload.length_of(
                GenerationRequest(
                    request=RequestId(0, PromptId(0, key), FIRST_UNUSED_SAMPLE + number),
                    prompt_token_ids=workload.prompts[key].token_ids,
                    seed=chance.getrandbits(63),
                    max_response_tokens=limit,
                    temperature=1.0,
                )
            ).num_tokens
            for number, key in enumerate(chance.choices(of_domain, k=NUM_DRAWN))
        ]
    return drawn


def _source(section: WorkloadSection) -> tuple[str, int | None, float, bool]:
    """What it is; how many lengths, where they are single ones; the largest; and whether some are of one prompt."""
    path, median, sigma = section.lengths, section.median_tokens, section.sigma
    if median is not None:
        longest = log_normal_lengths(ANY_DOMAIN, median, sigma).distribution(ANY_DOMAIN).value(1.0) if sigma else median
        return f"log-normal, median {median:g} tokens, sigma {sigma:g}, not measured", None, longest, False
    if path is None:
        longest = max(float(row["tokens"]) for row in read_packaged("response_lengths.csv"))
        return "the paper's quantiles (Fig 2a)", None, longest, False
    frame = read_length_rows(path)
    if "length_tokens" not in frame.columns:
        return f"{path}, quantiles", None, float(frame["tokens"].max()), False
    names = frame.columns.intersection(["prompt", "domain"])
    has_groups = "prompt" in names and bool(frame.duplicated(names).any())
    return str(path), len(frame), float(frame["length_tokens"].max()), has_groups
