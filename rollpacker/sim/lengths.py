"""Where response lengths come from: a log-normal distribution, quantile tables, a user's lengths, or a recorded run.

Invariant: a length is a function of the request and of the uniform numbers that come with it; `Lengths` has no state
and no randomness of its own. What it knows of single prompts it gives to those prompts; else it knows the distribution
of a domain.

A recorded run is exact where the same request ended by itself: the same step, prompt, epoch and sample had this length.
Where it was scored, it has its reward again. A response that was aborted after n tokens was longer than n: it gets a
length above n from its domain's distribution.
"""

from __future__ import annotations

import bisect
import csv
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

from rollpacker.core.errors import DataError
from rollpacker.core.ids import Domain, RequestId
from rollpacker.paths import reason_of, special_kind

if TYPE_CHECKING:
    import pandas as pd

ANY_DOMAIN = Domain("any")
"""What a file without domains is of; it serves every domain."""

_TAIL_FROM = 0.95
"""Beyond a length limit a distribution goes on as a Pareto tail through this quantile and the limit's own."""

MOST_TOKENS = 100_000_000
"""Of a response; ten times what any model reads, so that a longer one is a mistake in the file."""

_NUM_NEIGHBOURS = 10
_LIMIT_RATIO = 2
"""The largest length of a sample is a limit if it occurs so many times as often as each of its neighbours, the next
smaller ones. Of samples of exponential lengths (means of 5 to 1,000 tokens) at most 0.5 % look so by chance."""

_SCORES_PER_SIGMA = 20
"""Points at which a normal distribution is known; between them straight lines are off by less than 0.1 %."""

_COLUMNS = "length_tokens and, where known, prompt and domain; or domain, p and tokens for quantiles"


@dataclass(frozen=True, slots=True)
class Uniforms:
    """Two numbers in (0, 1)."""

    of_sample: float
    """This sample's own."""
    correlated: float
    """This sample's, correlated with those of its prompt's other samples."""


class Quantiles:
    """One distribution, by interpolation; above a limit that many values share it goes on as a Pareto tail."""

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        """Take (p, value) pairs with rising p; values that stay equal at the end are a limit that cut them."""
        pairs = sorted(points)
        self._probabilities = [p for p, _ in pairs]
        self._values = [value for _, value in pairs]
        self._limit_p = 1.0
        self._tail_index = 0.0
        if len(pairs) > 1 and self._values[-1] == self._values[-2]:
            limit = self._values[-1]
            self._limit_p = self._probabilities[self._values.index(limit)]
            below = self._interpolate(_TAIL_FROM)
            if self._limit_p > _TAIL_FROM and limit > below > 0:
                self._tail_index = math.log(limit / below) / math.log((1 - _TAIL_FROM) / (1 - self._limit_p))

    def value(self, p: float) -> float:
        if p <= self._limit_p:
            return self._interpolate(p)
        return self._values[-1] * math.pow((1 - self._limit_p) / (1 - p), self._tail_index)

    def share_below(self, value: float) -> float:
        """The p of a value."""
        index = bisect.bisect_right(self._values, value)
        if index == 0:
            return self._probabilities[0]
        if index == len(self._values):
            return self._limit_p if value > self._values[-1] else self._probabilities[-1]
        p0, p1 = self._probabilities[index - 1 : index + 1]
        x0, x1 = self._values[index - 1 : index + 1]
        return p0 + (p1 - p0) * (value - x0) / (x1 - x0)

    def _interpolate(self, p: float) -> float:
        index = bisect.bisect_left(self._probabilities, p)
        if index == 0:
            return self._values[0]
        if index == len(self._values):
            return self._values[-1]
        p0, p1 = self._probabilities[index - 1 : index + 1]
        x0, x1 = self._values[index - 1 : index + 1]
        return x0 + (x1 - x0) * (p - p0) / (p1 - p0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """What is known of the lengths of responses: of a domain's, of some prompts', of single ones of a recorded run."""

    by_domain: Mapping[Domain, Quantiles]
    prompts: Mapping[str, tuple[Domain, int | None]] = field(default_factory=dict)
    """The prompts that it knows by name, with the length of each where it knows that."""
    by_prompt: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Lengths of responses that ended by themselves, ascending; by `domain-prompt` where domains share the name."""
    exact: Mapping[tuple[int, int, str, int], float] = field(default_factory=dict)
    """By step, epoch, prompt and sample, for the responses of a recorded run that ended by themselves."""
    at_least: Mapping[tuple[int, int, str, int], float] = field(default_factory=dict)
    """The same of aborted ones: tokens generated until then."""
    verdicts: Mapping[tuple[int, int, str, int], tuple[float, str]] = field(default_factory=dict)
    """The same: reward and reason of those that were scored."""
    cut: Sequence[float] = ()
    """Lengths of the responses of a recorded run that its limit ended."""

    @property
    def is_recording(self) -> bool:
        """True when the lengths of single requests of a run are known."""
        return bool(self.exact or self.at_least)

    @property
    def domains(self) -> tuple[Domain, ...]:
        return tuple(self.by_domain)

    def verdict(self, request: RequestId) -> tuple[float, str] | None:
        """Reward and reason of a response, where a recorded run has them."""
        return self.verdicts.get((request.round, request.prompt.epoch, request.prompt.key, request.sample))

    def length(self, request: RequestId, domain: Domain, uniforms: Uniforms) -> float:
        """A length in tokens before any limit."""
        key = (request.round, request.prompt.epoch, request.prompt.key, request.sample)
        if key in self.exact:
            return self.exact[key]
        if key in self.at_least:
            return self._longer_than(self.at_least[key], domain, uniforms.of_sample)
        prompt = request.prompt.key
        lengths = self.by_prompt.get(f"{domain}-{prompt}") or self.by_prompt.get(prompt)
        if lengths:
            return lengths[int(uniforms.of_sample * len(lengths))]
        return self.distribution(domain).value(uniforms.correlated)

    def distribution(self, domain: Domain) -> Quantiles:
        """Of a domain's lengths, whatever the prompt."""
        return self.by_domain.get(domain) or self.by_domain[ANY_DOMAIN]

    def _longer_than(self, num_tokens: float, domain: Domain, uniform: float) -> float:
        distribution = self.distribution(domain)
        below = distribution.share_below(num_tokens)
        return max(distribution.value(below + (1 - below) * uniform), num_tokens + 1)


def paper_lengths() -> Lengths:
    """What the paper measured (Fig 2a)."""
    rows = read_packaged("response_lengths.csv")
    return _of_quantiles((row["domain"], float(row["p"]), float(row["tokens"])) for row in rows)


def log_normal_lengths(domain: Domain, median_tokens: float, sigma: float) -> Lengths:
    """One domain whose logarithms of lengths are normal, to 4.5 standard deviations: 3 responses in a million."""
    normal, scores = NormalDist(), [step / _SCORES_PER_SIGMA for step in range(-90, 91)]
    points = [(normal.cdf(score), median_tokens * math.exp(sigma * score)) for score in scores]
    return Lengths(by_domain={domain: Quantiles(points)})


def read_packaged(name: str) -> list[dict[str, str]]:
    """The rows of a table that comes with the package."""
    file = Path(__file__).with_name("tables") / name
    lines = (line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return list(csv.DictReader(lines))


def read_lengths(path: Path) -> Lengths:
    """Read a recorded run's directory, or a user's file.

    Raises:
        DataError: It is neither, or a value in it is no length.
    """
    frame = read_length_rows(path)
    if path.is_dir():
        return _recorded(frame)
    if {"p", "tokens"} <= set(frame.columns):
        checked = _checked(path, frame, ("p", "tokens"))
        _refuse_falling(path, checked)
        return _of_quantiles(zip(checked["domain"], checked["p"], checked["tokens"], strict=True))
    if "length_tokens" in frame.columns:
        return _samples(_checked(path, frame, ("length_tokens",)))
    raise DataError(
        f"workload.lengths={path} has the columns {', '.join(map(str, frame.columns))}.",
        f"A file of lengths has {_COLUMNS}.",
        "Rename its columns.",
    )


def read_length_rows(path: Path) -> pd.DataFrame:
    """The rows of a user's file, or the responses of a recorded run; raises `DataError`."""
    import pandas as pd

    if path.is_dir():
        from rollpacker.metrics.tables import read_frame

        return read_frame(path, "responses")

    readers = {
        ".csv": lambda: _read_csv(path),
        ".parquet": lambda: pd.read_parquet(path),
        ".jsonl": lambda: pd.read_json(path, lines=True, dtype={"prompt": str, "domain": str}),
    }
    if path.suffix not in readers or special_kind(path):
        raise DataError(
            f"workload.lengths={path} is neither a folder nor a file of a known kind.",
            "A run.dir, or a file that ends in .csv, .parquet or .jsonl.",
            "Check the path.",
        )
    try:
        frame: pd.DataFrame = readers[path.suffix]()
    except (OSError, ValueError) as error:
        raise DataError(
            f"workload.lengths={path} cannot be read: {reason_of(error)}.",
            f"It has the columns {_COLUMNS}.",
            "Check the file.",
        ) from error
    if frame.empty:
        raise DataError(f"workload.lengths={path} has no rows.", f"It has the columns {_COLUMNS}.", "Check the file.")
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    """Read the table below the comments at the top of a file; further down, a `#` is part of a name."""
    import pandas as pd

    with path.open(encoding="utf-8-sig") as lines:
        above = itertools.takewhile(lambda line: not line.strip() or line.startswith("#"), lines)
        num_above = sum(1 for _ in above)
    return pd.read_csv(path, skiprows=num_above, skipinitialspace=True, dtype={"prompt": str, "domain": str})


def _checked(path: Path, frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Give the rows with these columns as numbers, prompts as strings and a domain; refuse what is none."""
    import pandas as pd

    frame = frame.reset_index(drop=True)
    for column in columns:
        least, most = (0, 1) if column == "p" else (1, MOST_TOKENS)
        numbers = pd.to_numeric(frame[column], errors="coerce")
        is_wrong = ~numbers.astype(float).between(least, most)
        allowed = f"It is a number from {least} to {most:,}."
        _refuse(path, frame[column], is_wrong, allowed, "Correct the row, or delete it.")
        frame[column] = numbers
    for column in frame.columns.intersection(["prompt", "domain"]):
        names = frame[column].astype(str)
        is_empty = frame[column].isna() | (names == "")
        _refuse(path, frame[column], is_empty, "Every row has one, or none has.", "Fill it in, or delete the column.")
        frame[column] = names
    if "domain" not in frame.columns:
        frame["domain"] = ANY_DOMAIN
    return frame


def _refuse_falling(path: Path, frame: pd.DataFrame) -> None:
    """Refuse a quantile that is less than one of a smaller p."""
    rising = frame.sort_values(["p", "tokens"])
    is_less = (rising.groupby("domain")["tokens"].diff() < 0).sort_index()
    allowed = "Within a domain tokens do not fall as p rises, the share of the responses that have at most so many."
    remedy = "Correct the row; where p is the share of longer responses, write 1 - p for it."
    _refuse(path, frame["tokens"], is_less, allowed, remedy)


def _refuse(path: Path, values: pd.Series, is_wrong: pd.Series, allowed: str, remedy: str) -> None:
    """Raise `DataError` for the first wrong value of a column."""
    if is_wrong.any():
        row = int(is_wrong.to_numpy().argmax())
        fault = f"workload.lengths={path}, row {row + 1}: {values.name} is `{values.iloc[row]}`."
        raise DataError(fault, allowed, remedy)


def _of_quantiles(rows: Iterable[tuple[str, float, float]]) -> Lengths:
    """Take rows of domain, p and tokens."""
    pairs: dict[Domain, list[tuple[float, float]]] = {}
    for domain, p, tokens in rows:
        pairs.setdefault(Domain(domain), []).append((float(p), float(tokens)))
    return Lengths(by_domain={domain: Quantiles(points) for domain, points in pairs.items()})


def _samples(frame: pd.DataFrame) -> Lengths:
    domains, lengths = frame["domain"].tolist(), frame["length_tokens"].astype(float).tolist()
    by_domain = _pooled(zip(domains, lengths, strict=True))
    if "prompt" not in frame.columns:
        return Lengths(by_domain=by_domain)
    keys = _prompt_keys(frame)
    by_prompt: dict[str, list[float]] = {}
    for key, length in zip(keys, lengths, strict=True):
        by_prompt.setdefault(key, []).append(length)
    if len(by_prompt) == len(keys):
        by_prompt = {}  # one response to each, as an evaluation writes, tells nothing of the others
    return Lengths(
        by_domain=by_domain,
        prompts={key: (domain, None) for key, domain in zip(keys, domains, strict=True)},
        by_prompt={key: sorted(of_prompt) for key, of_prompt in by_prompt.items()},
    )


def _prompt_keys(frame: pd.DataFrame) -> list[str]:
    """The prompt of each row; after its domain where domains share the name, as when each numbers its own from 0.

    Where that would be the name of another prompt, all are after their domains.
    """
    prompts, of_domains = frame["prompt"], frame["domain"] + "-" + frame["prompt"]
    named = frame[["prompt", "domain"]].drop_duplicates()
    is_shared = prompts.isin(named.loc[named["prompt"].duplicated(), "prompt"])
    is_taken = of_domains[is_shared].isin(prompts).any()
    return (of_domains if is_taken else prompts.mask(is_shared, of_domains)).tolist()


def _recorded(frame: pd.DataFrame) -> Lengths:
    exact: dict[tuple[int, int, str, int], float] = {}
    at_least: dict[tuple[int, int, str, int], float] = {}
    verdicts: dict[tuple[int, int, str, int], tuple[float, str]] = {}
    by_prompt: dict[str, list[float]] = {}
    prompts: dict[str, tuple[Domain, int | None]] = {}
    ended: list[tuple[Domain, float]] = []
    for row in frame.to_dict("records"):
        key, domain, length = str(row["prompt"]), Domain(row["domain"]), float(row["length_tokens"])
        prompts.setdefault(key, (domain, int(row["num_prompt_tokens"])))
        name = (int(row["round"]), int(row["epoch"]), key, int(row["sample"]))
        if row["finish_reason"] == "aborted":
            at_least[name] = length
        else:
            exact[name] = length
            ended.append((domain, length))
            by_prompt.setdefault(key, []).append(length)
        if isinstance(row["reward_reason"], str):  # null where it was not scored
            verdicts[name] = (float(row["reward"]), str(row["reward_reason"]))
    return Lengths(
        by_domain=_pooled(ended),
        prompts=prompts,
        by_prompt={key: sorted(lengths) for key, lengths in by_prompt.items()},
        exact=exact,
        at_least=at_least,
        verdicts=verdicts,
        cut=[float(length) for length in frame.loc[frame["finish_reason"] == "length", "length_tokens"]],
    )


def _pooled(lengths: Iterable[tuple[Domain, float]]) -> dict[Domain, Quantiles]:
    """The distribution of each domain's lengths."""
    by_domain: dict[Domain, list[float]] = {}
    for domain, length in lengths:
        by_domain.setdefault(domain, []).append(length)
    return {domain: Quantiles(_steps(values)) for domain, values in by_domain.items()}


def _steps(values: Sequence[float]) -> list[tuple[float, float]]:
    """Quantiles of a sample: the k-th of n values stands at (k - 1/2) / n; of equal values the first and the last.

    Of the largest ones the first only, unless a limit cut them.
    """
    points: list[tuple[float, float]] = []
    num_before = 0
    counts = sorted(Counter(values).items())
    largest, num_largest = counts[-1]
    most_below = max((count for _, count in counts[-1 - _NUM_NEIGHBOURS : -1]), default=1)
    is_cut = num_largest >= _LIMIT_RATIO * most_below
    for value, count in counts:
        ranks = (0, count - 1) if count > 1 and (is_cut or value < largest) else (0,)
        points += [((num_before + rank + 0.5) / len(values), value) for rank in ranks]
        num_before += count
    return points
