"""What the scheduler is told once, before the run begins.

Every count and factor is exact: factors, shares and weights are fractions, because 1.1 * 50 in floating point launches
one prompt too many. The settings head every event log, so that a log alone is enough to replay a run.

The machines beside the batching are optional: a part that is None leaves its machine out. Defaults are the paper's.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from rollpacker.core.bounds import require
from rollpacker.core.elastic_settings import ElasticSettings
from rollpacker.core.ids import Domain
from rollpacker.core.quotas import apportion, scale_up
from rollpacker.core.round_time_model import DegreeCosts
from rollpacker.core.tail_escalation_settings import TailEscalationSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardBudgetSettings:
    """How long a test case may run, from how long it took correct programs (paper, section 4.3)."""

    factor: Fraction = Fraction(3, 2)
    """lambda: a limit is this many times the longest run that passed; at least 1."""
    min_limit_s: float = 2.0
    """T_min: no limit is below it."""
    max_limit_s: float = 30.0
    """T_max: no limit is above it, and it is the limit of a case that no program has passed."""

    def __post_init__(self) -> None:
        require(self.factor >= 1, f"factor={self.factor} is below 1: the slowest correct program would be stopped")
        are_in_order = 0 < self.min_limit_s <= self.max_limit_s < math.inf
        require(are_in_order, f"not 0 < min_limit_s={self.min_limit_s:g} <= max_limit_s={self.max_limit_s:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelismSettings:
    """When rounds move to engines of another tensor-parallel degree (paper, section 4.2)."""

    degrees: tuple[int, ...]
    """Allowed degrees, ascending, each twice the one before."""
    initial: int
    """The degree of the first round of every kind."""
    max_growth: Fraction = Fraction(21, 20)
    """More preemptions than this many times the reference double the degree; at least 1."""
    patience: int = 4
    """So many rounds of a kind in a row without a preemption halve its degree."""
    num_rounds_remembered: int = 16
    """So many rounds of a kind are remembered beside its last one, and over so many at most a change has to gain its
    time back. Not in the paper; 16 long rounds are 80 steps of 4 + 1, in which lengths drift."""
    costs: tuple[DegreeCosts, ...] = ()
    """Of each degree, where a profile or a model has them: for the guess after a kind's first round."""
    prompt_tokens: int = 0
    """Mean length of the prompts, for the same."""
    escalation: TailEscalationSettings | None = None
    """None: the engines of a round stay to its end."""

    def __post_init__(self) -> None:
        degrees = self.degrees
        require(bool(degrees) and degrees[0] >= 1, f"degrees={degrees} has none, or one below 1")
        are_doubled = all(larger == 2 * degree for degree, larger in itertools.pairwise(degrees))
        require(are_doubled, f"degrees={degrees}: each is twice the one before")
        require(self.initial in degrees, f"initial={self.initial} is not among degrees={degrees}")
        require(self.max_growth >= 1, f"max_growth={self.max_growth} is below 1")
        of_costs = tuple(sorted(costs.degree for costs in self.costs))
        require(of_costs in {(), degrees}, f"costs of the degrees {of_costs}: each of {degrees} has some, or none has")
        can_weigh = bool(self.costs) and len(degrees) > 1
        require(self.escalation is None or can_weigh, "escalation needs the costs of two degrees or more")
        for name in ("patience", "num_rounds_remembered"):
            require(getattr(self, name) >= 1, f"{name}={getattr(self, name)} is below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeDecodingSettings:
    """How draft lengths are tried. The numbers are this project's."""

    max_sequences: int
    """Of an engine's largest batch."""
    lengths: tuple[int, ...] = (0, 1, 2, 3, 4, 6, 8)
    """Draft tokens per sequence and pass that may be used, ascending from 0, plain decoding, at least two."""
    trial_every: int = 8
    """One pass in so many tries another length, until that failed; twice as many after each trial that failed."""
    rarest_trial_every: int = 64
    """So many at most."""
    num_trial_passes: int = 64
    """So many at the other length decide, over all engines and as many rounds as it takes."""
    min_gain: Fraction = Fraction(51, 50)
    """A change gains so many times the tokens per second at least; above 1, so that chance alone changes little."""

    def __post_init__(self) -> None:
        lengths = self.lengths
        require(self.max_sequences >= 1, f"max_sequences={self.max_sequences} is below 1")
        is_ladder = len(lengths) > 1 and lengths[0] == 0 and all(a < b for a, b in itertools.pairwise(lengths))
        require(is_ladder, f"lengths={lengths}: ascending from 0, and at least two")
        often, rarely = self.trial_every, self.rarest_trial_every
        require(1 < often <= rarely, f"not 1 < trial_every={often} <= rarest_trial_every={rarely}")
        require(self.num_trial_passes >= 1, f"num_trial_passes={self.num_trial_passes} is below 1")
        require(self.min_gain >= 1, f"min_gain={self.min_gain} is below 1")

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The largest batch of each range: powers of two, up to one that no batch exceeds."""
        return tuple(2**exponent for exponent in range((self.max_sequences - 1).bit_length() + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """When accepted groups stream to the trainer before their round is over (paper, section 4.4)."""

    replicas: tuple[tuple[int, ...], ...]
    """The GPUs of each training replica, counted over all nodes; a GPU is in at most one replica. Empty: the trainer
    shares none with engines, so no engine needs to be lent, and nothing below matters."""
    max_response_tokens: int
    """Where every response is cut off: what is expected of one that is longer than all seen lately."""
    first_share: Fraction = Fraction(1, 5)
    """Of the round's requests must be finished before the first test."""
    last_share: Fraction = Fraction(1, 2)
    """No test after more than this is finished."""
    every_share: Fraction = Fraction(1, 20)
    """From one test to the next."""
    must_fit: bool = True
    """False: the test of memory always passes, so that engines are lent at `first_share`."""
    num_recent_lengths: int = 8192
    """Finished responses that expectations are made of. 8,192 are more than four short rounds and a long one of
    128 x 8, so that the long ones are among them."""

    def __post_init__(self) -> None:
        gpus = [gpu for replica in self.replicas for gpu in replica]
        are_disjoint = all(self.replicas) and min(gpus, default=0) >= 0 and len(gpus) == len(set(gpus))
        require(are_disjoint, f"replicas={self.replicas}: each has at least one GPU, and no two share one")
        for name in ("max_response_tokens", "num_recent_lengths"):
            require(getattr(self, name) >= 1, f"{name}={getattr(self, name)} is below 1")
        are_in_order = 0 < self.first_share <= self.last_share <= 1
        require(are_in_order, f"not 0 < first_share={self.first_share} <= last_share={self.last_share} <= 1")
        require(0 < self.every_share <= 1, f"not 0 < every_share={self.every_share} <= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSamplingSettings:
    """How a round goes on until its batch has only prompts with rewards that differ (DAPO, section 3.2)."""

    max_active_requests: int | None = None
    """At most so many requests are in flight at a time, over all engines; None: as many as the round wants."""
    max_launch_factor: Fraction = Fraction(10)
    """A round launches at most so many times the prompts that its batch needs, then the run gives up. As verl's DAPO
    recipe: `max_num_gen_batches=10`."""

    def __post_init__(self) -> None:
        limit = self.max_active_requests
        require(limit is None or limit >= 1, f"max_active_requests={limit} is below 1")
        require(self.max_launch_factor >= 1, f"max_launch_factor={self.max_launch_factor} is below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthHistorySettings:
    """How many prompts are taken for long by their history, and what a round does before there is one."""

    share: Fraction = Fraction(1, 5)
    """Of the prompts drawn for a short round, those with the longest responses so far join the long queue at once."""
    first_eta_prompts: Fraction
    """`eta_prompts` of a round whose prompts are not all known; 1 races none."""
    first_eta_responses: Fraction
    """`eta_responses` of such a round."""

    def __post_init__(self) -> None:
        require(0 < self.share < 1, f"not 0 < share={self.share} < 1")
        for name in ("first_eta_prompts", "first_eta_responses"):
            require(getattr(self, name) >= 1, f"{name}={getattr(self, name)} is below 1")

    @property
    def races_at_first(self) -> bool:
        """Whether a round whose prompts are not all known launches more than it needs."""
        return self.first_eta_prompts > 1 or self.first_eta_responses > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncSettings:
    """How far generation may run ahead of the trainer (`rollpacker.core.async_batching`)."""

    max_staleness: int
    """The bound: no trained token is more policy versions old."""
    lookahead: Fraction
    """The lead: so many batches of prompts are admitted ahead of the trainer; at most the bound."""
    num_steps: int
    """Of the run: no more prompts are admitted than these train."""
    order: Literal["ready", "fifo"] = "ready"
    """Groups are accepted as they complete, or in the order of their admission."""
    interrupt: Literal["recompute", "keep"] = "recompute"
    """What is in flight when the policy is updated leaves its engine with its tokens; or stays there, in the cache."""

    def __post_init__(self) -> None:
        require(0 <= self.lookahead <= self.max_staleness, f"not 0 <= {self.lookahead=} <= {self.max_staleness=}")
        require(self.num_steps >= 1, f"num_steps={self.num_steps} is below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSet:
    """A set of prompts that are evaluated and never trained."""

    name: str
    """Without a slash."""
    keys: tuple[str, ...]
    """Of its prompts, in launch order."""
    num_samples: int
    """Responses per prompt."""

    def __post_init__(self) -> None:
        require(bool(self.name) and "/" not in self.name, f"name={self.name!r} of a held-out set")
        require(0 < len(self.keys) == len(set(self.keys)), f"the keys of {self.name}: at least one, and each once")
        require(self.num_samples >= 1, f"num_samples={self.num_samples} of {self.name} is below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class FillSettings:
    """How evaluations run beside training rounds."""

    num_slots: int
    """Requests that an engine decodes at a time."""
    max_tokens: int
    """The longest that any request may become, prompt and response: what it takes of an engine's KV cache at most."""
    grace_s: float
    """So long an evaluation may go on once its engines are wanted for something else."""

    def __post_init__(self) -> None:
        require(self.num_slots >= 1 and self.max_tokens >= 1, f"{self}: counts are at least 1")
        require(0 <= self.grace_s < math.inf, f"grace_s={self.grace_s:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """What is evaluated, and when."""

    sets: tuple[HeldOutSet, ...]
    """In launch order."""
    every_steps: int
    """After each so many steps; 0 is never."""
    at_start: bool
    """Before the first step."""
    at_end: bool
    """After the last step."""
    fill: FillSettings | None = None
    """None: each is a round of its own; else those between the first step and the last one fill training rounds."""

    def __post_init__(self) -> None:
        names = [held_out.name for held_out in self.sets]
        require(0 < len(names) == len(set(names)), f"held-out sets {names}: at least one, and each name once")
        require(self.every_steps >= 0, f"every_steps={self.every_steps} is below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartSettings:
    """How often a lost engine, or judge, is replaced."""

    max_restarts: int
    """Of one slot; 0 where none can be replaced."""
    first_pause_s: float
    """Before the first restart; it doubles with each one."""

    def __post_init__(self) -> None:
        are_possible = self.max_restarts >= 0 and 0 <= self.first_pause_s < math.inf
        require(are_possible, f"max_restarts={self.max_restarts}, first_pause_s={self.first_pause_s:g}")


NO_RESTARTS = RestartSettings(max_restarts=0, first_pause_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSettings:
    """How long environments may take, and how often they may fail."""

    max_turns: int
    """That a policy writes in a trajectory."""
    max_open: int
    """Trajectories that have an environment at a time."""
    max_restarts: int
    """Of a trajectory whose environment fails; then it is given up."""
    opening_timeout_s: float
    """For a reset to begin, while nothing is heard of any other: those that run environments are then stuck."""
    reset_timeout_s: float
    turn_timeout_s: float
    episode_timeout_s: float
    """For all answers of a trajectory together."""
    starts_per_minute: float | None = None
    """Resets that begin, at most, evenly spread; None is no bound."""

    def __post_init__(self) -> None:
        counts = f"max_turns={self.max_turns}, max_open={self.max_open}, max_restarts={self.max_restarts}"
        require(min(self.max_turns, self.max_open) >= 1 and self.max_restarts >= 0, f"{counts}: too few")
        limits = (self.opening_timeout_s, self.reset_timeout_s, self.turn_timeout_s, self.episode_timeout_s)
        require(all(0 < limit < math.inf for limit in limits), f"time limits of {limits} s")
        has_starts = self.starts_per_minute is None or 0 < self.starts_per_minute < math.inf
        require(has_starts, f"starts_per_minute={self.starts_per_minute}")

    @property
    def start_interval_s(self) -> float:
        """From one reset's beginning to the next one's, at least."""
        return 0.0 if self.starts_per_minute is None else 60.0 / self.starts_per_minute


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """The scheduling policy of a run."""

    batching: Literal["plain", "tail"]
    """`plain` waits for every response of every batch; `tail` races and defers (paper, section 3)."""
    num_prompts: int
    """P0: prompts in a training batch."""
    num_responses: int
    """R0: responses per prompt, the GRPO group."""
    eta_prompts: Fraction
    """Prompts launched per prompt needed in a short round, at least 1; `plain` ignores it."""
    eta_responses: Fraction
    """Responses launched per response needed in a short round, at least 1; `plain` ignores it."""
    overlap_rewards: bool
    """Score each response as it finishes; False scores a batch when all its responses are there."""
    domain_weights: tuple[tuple[Domain, Fraction], ...]
    """Each domain with its share of every batch, in the order that breaks ties; they need not add up to 1."""
    dynamic_sampling: DynamicSamplingSettings | None = None
    """None: every prompt whose group is complete is trained, whatever its rewards are."""
    length_history: LengthHistorySettings | None = None
    """None: only a race says which prompts are long. Only with `tail`, and not with dynamic sampling."""
    asynchronous: AsyncSettings | None = None
    """None: every token of a step is of the policy that it began with."""
    reward_budget: RewardBudgetSettings | None = None
    """None: rewards keep their own time limits."""
    parallelism: ParallelismSettings | None = None
    """None: every round runs on the engines that are there."""
    speculative_decoding: SpeculativeDecodingSettings | None = None
    """None: every pass decodes one token of each sequence."""
    stream: StreamSettings | None = None
    """None: the trainer gets a batch when its round is over."""
    evaluation: EvaluationSettings | None = None
    """None: nothing is held out."""
    elastic: ElasticSettings | None = None
    """None: no worker ever comes."""
    environment: EnvironmentSettings | None = None
    """None: a response is one turn."""
    restarts: RestartSettings = NO_RESTARTS
    routing: Literal["sample", "prompt"] = "sample"
    """Each sample of a prompt goes to the engine with the fewest requests, or all of them to one engine."""

    def __post_init__(self) -> None:
        for name in ("num_prompts", "num_responses", "eta_prompts", "eta_responses"):
            require(getattr(self, name) >= 1, f"{name}={getattr(self, name)} is below 1")
        weights = dict(self.domain_weights)
        are_shares = 0 < len(weights) == len(self.domain_weights) and min(weights.values()) > 0
        require(are_shares, f"domain_weights={self.domain_weights}: each domain has one weight above 0")
        have_places = all(apportion(self.num_prompts, weights).values())
        require(have_places, f"a domain of {self.domain_weights} has no place in a batch of {self.num_prompts}")
        if self.length_history is not None:
            require(self.batching == "tail", "without tail batching there is no long round to defer a prompt to")
            draws_early = self.dynamic_sampling is None
            require(draws_early, "dynamic sampling draws in the middle of a round, so that routing would depend on it")
        if self.asynchronous is not None:
            require(self.batching == "plain", "tail batching aborts what asynchronous training waits for")
            require(self.overlap_rewards, "without overlap_rewards a batch is scored when all its responses are there")
            require(self.parallelism is None, "engines change between rounds, when nothing is under way")
            require(not (self.stream and self.stream.replicas), "an engine that is lent generates nothing")
            require(not self._fills, "an evaluation that fills a round is of one policy version")
        if self.dynamic_sampling is not None:
            require(not self._fills, "which prompts dynamic sampling launches depends on which rewards come first")
            self._check_dynamic_sampling(self.dynamic_sampling)
        if self.parallelism is not None and self.parallelism.escalation is not None:
            self._check_escalation()
        if self.environment is not None:
            require(not self._fills, "an evaluation that fills a round has no places for environments")

    @property
    def _fills(self) -> bool:
        """Whether evaluations run beside training rounds."""
        return self.evaluation is not None and self.evaluation.fill is not None

    def _check_escalation(self) -> None:
        require(self.dynamic_sampling is None, "with dynamic sampling nobody knows what is left of a round")
        require(self.elastic is None, "what leaves the engines that escalation changes would go to those of workers")
        require(self.environment is None, "how long a trajectory of several turns goes on is not known to escalation")
        require(not self._fills, "an evaluation that fills a round uses the engines that escalation changes")

    def _check_dynamic_sampling(self, sampling: DynamicSamplingSettings) -> None:
        is_tail, limit = self.batching == "tail", sampling.max_active_requests
        require(limit is None or self.asynchronous is None, "in an asynchronous run the lead says what is in flight")
        require(self.overlap_rewards or not is_tail, "a race of responses is over before its rewards are known")
        num_samples = scale_up(self.num_responses, self.eta_responses) if is_tail else self.num_responses
        require(limit is None or limit >= num_samples, f"max_active_requests={limit} is below {num_samples}")
        factor, eta = sampling.max_launch_factor, self.eta_prompts
        require(factor >= eta or not is_tail, f"max_launch_factor={factor} is below eta_prompts={eta}")
