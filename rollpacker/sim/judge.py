"""An LLM judge on modelled GPUs: it reads prompt and response and says one token.

A verdict's token comes out of the pass that prefills the last token of what is read, so judging costs prefill alone, by
`EngineCosts`. Each replica takes what waits, first come first served, up to a pass's worth of tokens, and gives all
verdicts of a batch at its end; one answer longer than a pass takes several passes.

    placement   GPUs                                 what it costs              what it costs the engines
    dedicated   `judge.num_gpus` beside the actor's  nothing else               nothing
    shared      the actor's, beside its engines      works on `judge.gpu_share` that share, always, and the memory of
                (CUDA MPS, paper section 4.3)        of the processors          resident layers
    turns       the actor's, once the rollout ended  loading before each batch  nothing: they are idle
                (as veRL does)

Layers that are not resident stream from host memory, into `num_slots` buffers (paper, section 4.3). With two, the next
layer arrives while one computes; with one, each waits for its own. So a pass takes

    two slots    max(compute, copies)        copies = (1 - resident_share) layer bytes / (PCIe rate * link_efficiency)
    one slot     compute + copies

A simplification: MPS is modelled as a fixed split of the processors (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE), whether the
judge has work or not, and memory bandwidth as large enough for both: a prefill reads the weights once for thousands of
tokens, about 3 % of the memory bandwidth.

Invariants: a replica works on one batch at a time; each answer is in one batch; no answer waits for an idle replica.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.config.mistakes import raise_mistakes
from rollpacker.core.errors import ConfigError, InvariantViolated
from rollpacker.data.degrees import engine_degree_mistakes
from rollpacker.data.shapes import transformer_of
from rollpacker.sim.costs import GIGA, EngineCosts
from rollpacker.sim.decoder import PREFILL_TOKENS_PER_PASS

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.config.sections.modelled import HardwareSection


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCosts:
    """How long a judge's replica takes."""

    engine: EngineCosts
    """Of one replica, by the judge's shape and its share of the GPUs."""
    resident_share: float
    """Of the layers, those that stay in GPU memory."""
    num_slots: int
    """Layers in GPU memory while others stream."""
    is_loaded_per_batch: bool
    """True when the weights must be loaded before idle replicas can work."""
    start_s: float
    """Load time beyond the transfer of their bytes."""

    def batch_s(self, lengths_tokens: Sequence[int]) -> float:
        """Judge texts of these lengths, read one after the other in passes of bounded size."""
        costs, num_tokens = self.engine, sum(lengths_tokens)
        full, rest = divmod(num_tokens, PREFILL_TOKENS_PER_PASS)
        passes = [PREFILL_TOKENS_PER_PASS] * full + ([rest] if rest else [])
        attention_s = sum(costs.prefill_attention_s(0, length) for length in lengths_tokens)
        copies_s = self._layer_bytes_per_gpu * (1 - self.resident_share) / pcie_rate(costs.hardware)
        computes_s = [costs.forward_s(size) + attention_s * size / num_tokens for size in passes]
        if self.num_slots == 1:
            return sum(computes_s) + copies_s * len(passes)
        return sum(max(compute_s, copies_s) for compute_s in computes_s)

    @property
    def load_s(self) -> float:
        """Load the layers that do not stream; every GPU has a PCIe link of its own."""
        if not self.is_loaded_per_batch:
            return 0.0
        streamed = self._layer_bytes_per_gpu * (1 - self.resident_share)
        return self.start_s + (self._bytes_per_gpu - streamed) / pcie_rate(self.engine.hardware)

    @property
    def memory_bytes_per_gpu(self) -> float:
        """What the judge takes of each GPU's memory; its activations are not counted."""
        num_layers = self.engine.model.shape.num_layers
        share = self.resident_share
        if share < 1:
            share = min(1.0, share + self.num_slots / num_layers)
        return self._bytes_per_gpu - self._layer_bytes_per_gpu * (1 - share)

    @property
    def _bytes_per_gpu(self) -> float:
        return self.engine.model.num_weight_bytes / self.engine.tensor_parallel

    @property
    def _layer_bytes_per_gpu(self) -> float:
        model = self.engine.model
        return model.num_layer_parameters * model.bytes_per_number / self.engine.tensor_parallel


def pcie_rate(hardware: HardwareSection) -> float:
    """Bytes per second from host memory into one GPU."""
    return hardware.pcie_gb_per_s * GIGA * hardware.link_efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgePlan:
    """A judge and where it works."""

    costs: JudgeCosts
    num_replicas: int
    num_own_gpus: int
    """GPUs beside the actor's; 0 when it works on those."""


def plan_judge(config: RunConfig) -> JudgePlan:
    """Plan the judge of a modelled run.

    Raises:
        ModelError: The judge's sizes cannot be read.
        ConfigError: It does not fit on its GPUs, it cannot be divided so, or its placement does not suit the system.
    """
    assert config.hardware is not None
    judge, hardware = config.reward.judge, config.hardware
    placement = placement_of(config)
    is_shared = placement == "shared"
    num_gpus = judge.num_gpus
    if placement != "dedicated":
        num_gpus = config.engine.num_engines * config.engine.tensor_parallel
    _check(config, num_gpus)
    model = transformer_of(judge.model)
    raise_mistakes(list(engine_degree_mistakes(judge.tensor_parallel, model.shape, "reward.judge.tensor_parallel")))
    costs = JudgeCosts(
        engine=EngineCosts(
            model=model,
            hardware=_with_processors(hardware, judge.gpu_share) if is_shared else hardware,
            tensor_parallel=judge.tensor_parallel,
        ),
        resident_share=1.0 if judge.resident_share is None else judge.resident_share,
        num_slots=judge.num_slots,
        is_loaded_per_batch=placement == "turns",
        start_s=judge.start_s,
    )
    available = hardware.memory_gb * GIGA * hardware.memory_share
    if costs.memory_bytes_per_gpu > available:
        raise ConfigError(
            f"The judge takes {costs.memory_bytes_per_gpu / GIGA:.0f} GB of a GPU.",
            f"A GPU offers {available / GIGA:.0f} GB: hardware.memory_share of hardware.memory_gb.",
            "Raise reward.judge.tensor_parallel, or lower reward.judge.resident_share.",
        )
    return JudgePlan(
        costs=costs,
        num_replicas=num_gpus // judge.tensor_parallel,
        num_own_gpus=num_gpus if placement == "dedicated" else 0,
    )


def placement_of(config: RunConfig) -> str:
    """Where the judge works: as configured, or as the system's reward scheduling implies.

    Measured engines had their GPUs to themselves, so beside a profile `auto` shares none.
    """
    placement = config.reward.judge.placement
    if placement != "auto":
        return placement
    assert config.hardware is not None
    return "shared" if config.system.reward == "scheduled" and config.hardware.profile is None else "dedicated"


def hardware_beside(config: RunConfig, plan: JudgePlan, hardware: HardwareSection) -> HardwareSection:
    """What the engines have of the GPUs, when a judge shares them all the time."""
    judge = config.reward.judge
    if placement_of(config) != "shared":
        return hardware
    left = _with_processors(hardware, 1 - judge.gpu_share)
    taken = plan.costs.memory_bytes_per_gpu / (hardware.memory_gb * GIGA)
    return left.model_copy(update={"memory_share": max(0.0, hardware.memory_share - taken)})


def _with_processors(hardware: HardwareSection, share: float) -> HardwareSection:
    return hardware.model_copy(update={"matmul_efficiency": hardware.matmul_efficiency * share})


def _check(config: RunConfig, num_gpus: int) -> None:
    judge = config.reward.judge
    if judge.model.path is None and judge.model.shape is None:
        judged = [name for name, kind in config.reward.kinds.items() if kind == "judge"] or ["judge"]
        raise ConfigError(
            f"An LLM judges responses of domain {' and '.join(f'`{name}`' for name in judged)}, and reward.judge.model "
            "has neither a path nor a shape.",
            "A modelled judge needs its model's shape.",
            "Choose reward=modelled, which has Qwen2.5-7B, or set reward.judge.model.path; or choose a workload "
            "without such prompts, such as workload=math.",
        )
    if num_gpus % judge.tensor_parallel:
        raise ConfigError(
            f"reward.judge.tensor_parallel={judge.tensor_parallel} on {num_gpus} GPUs.",
            "A judge's GPUs are whole replicas.",
            "Choose a degree that divides their number.",
        )
    assert config.hardware is not None
    if config.hardware.gpus_per_node % judge.tensor_parallel:
        raise ConfigError(
            f"reward.judge.tensor_parallel={judge.tensor_parallel} with "
            f"hardware.gpus_per_node={config.hardware.gpus_per_node}.",
            "The GPUs of a replica lie in one node, and replicas fill nodes.",
            "Choose a degree that divides the GPUs of a node.",
        )
    if judge.placement == "shared" and config.hardware.profile is not None:
        raise ConfigError(
            f"reward.judge.placement=shared with hardware.profile={config.hardware.profile}.",
            "A profile was measured on whole GPUs; what is left of an engine beside a judge is known to formulas only.",
            "Choose reward.judge.placement=dedicated or turns, or leave out hardware.profile.",
        )
    if judge.placement == "turns" and config.system.reward != "batch":
        raise ConfigError(
            f"reward.judge.placement=turns with system.reward={config.system.reward}.",
            "A judge that takes turns with the engines works when the rollout has ended.",
            "Choose reward.judge.placement=shared or dedicated, or system=verl.",
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Answer:
    """One text to judge."""

    num_tokens: int
    """Prompt, response and the judge's own template."""
    time_s: float = 0.0
    """How long its batch took."""


class Judge:
    """The replicas of a judge. The caller calls `advance` at `next_at_s`, and may not be late."""

    def __init__(self, costs: JudgeCosts, *, num_replicas: int) -> None:
        self._costs = costs
        self._num_replicas = num_replicas
        self._waiting: deque[Answer] = deque()
        self._idle = list(range(num_replicas))
        """Heap, so that the lowest goes first."""
        self._working: list[tuple[float, int, int, list[Answer]]] = []
        """Heap of (end, number of the batch, replica, batch)."""
        self._numbers = itertools.count()
        self._loaded_at_s = 0.0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def next_at_s(self) -> float | None:
        """When the next batch ends."""
        return self._working[0][0] if self._working else None

    def add(self, answers: Iterable[Answer], now: float) -> None:
        """Judge texts, as soon as there is a replica."""
        if not self._working:  # the engines may have had the GPUs since
            self._loaded_at_s = now + self._costs.load_s
        self._waiting.extend(answers)
        self._start(now)

    def advance(self, now: float) -> list[Answer]:
        """Give the texts that have been judged by now, and begin further batches."""
        judged: list[Answer] = []
        while self._working and self._working[0][0] <= now:
            _, _, replica, batch = heapq.heappop(self._working)
            heapq.heappush(self._idle, replica)
            judged += batch
        self._start(now)
        return judged

    def forget(self, now: float) -> None:  # noqa: ARG002  (a sandbox's signature)
        """Give up the batches under way, and drop what waits."""
        self._waiting.clear()
        self._working.clear()
        self._idle = list(range(self._num_replicas))

    def check(self, now: float) -> None:
        """Re-derive the invariants from scratch.

        Raises:
            InvariantViolated: One does not hold.
        """
        working = [replica for _, _, replica, _ in self._working]
        if sorted([*working, *self._idle]) != list(range(self._num_replicas)):
            raise InvariantViolated(f"Replicas {working} work on batches and {self._idle} are idle.")
        if self._waiting and self._idle:
            raise InvariantViolated(f"{self.num_waiting} answers wait while replicas {self._idle} are idle.")
        for _, _, _, batch in self._working:
            num_tokens = sum(answer.num_tokens for answer in batch)
            if len(batch) > 1 and num_tokens > PREFILL_TOKENS_PER_PASS:
                raise InvariantViolated(f"A batch of {len(batch)} answers has {num_tokens} tokens.")
        if any(end_s < now for end_s, *_ in self._working):
            raise InvariantViolated(f"A batch that ended before {now} s was not given.")

    def _start(self, now: float) -> None:
        while self._waiting and self._idle:
            replica, batch = heapq.heappop(self._idle), self._next_batch()
            begins_at_s = max(now, self._loaded_at_s)
            time_s = self._costs.batch_s([answer.num_tokens for answer in batch])
            for answer in batch:
                answer.time_s = time_s
            heapq.heappush(self._working, (begins_at_s + time_s, next(self._numbers), replica, batch))

    def _next_batch(self) -> list[Answer]:
        batch = [self._waiting.popleft()]
        num_tokens = batch[0].num_tokens
        while self._waiting and num_tokens + self._waiting[0].num_tokens <= PREFILL_TOKENS_PER_PASS:
            batch.append(self._waiting.popleft())
            num_tokens += batch[-1].num_tokens
        return batch
