"""A world: a small run and what goes wrong in it, as plain data drawn from a seed.

Invariant: a world alone decides what happens in it. Its data ends, so that each of its runs does; every prompt is then
to be trained, or with dynamic sampling dropped, exactly once per epoch. Only where dynamic sampling streams the data
may go on, and the run ends after some steps, or when it finds too few prompts whose rewards differ.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.backend import BackendSection, DeadlineSection
from rollpacker.config.sections.data import DataSection
from rollpacker.config.sections.engine import EngineSection
from rollpacker.config.sections.evaluation import EvaluationSection, HeldOutFile
from rollpacker.config.sections.model import PolicySection, ShapeSection
from rollpacker.config.sections.modelled import HardwareSection, WorkloadSection
from rollpacker.config.sections.placement import PlacementSection
from rollpacker.config.sections.reward import RewardSection
from rollpacker.config.sections.rollout import RolloutSection
from rollpacker.config.sections.run import RunSection
from rollpacker.config.sections.system import SystemSection
from rollpacker.config.sections.weight_sync import WeightSyncSection
from tests.fuzz.faults import Fault, FaultKind

if TYPE_CHECKING:
    from pathlib import Path

Batching = Literal["plain", "tail"]
Reward = Literal["batch", "async", "scheduled"]

BATCHINGS: tuple[Batching, ...] = ("tail", "tail", "plain")
REWARDS: tuple[Reward, ...] = ("batch", "async", "async", "scheduled")
"""As often as they are drawn."""

DOMAINS = ("math", "code", "judge")
DEADLINE_S = 200.0
"""Of every wait; longer than any fault-free one, whose longest is a program's 30 s in a queue of few."""

FAULT_KINDS = (*FaultKind, *[FaultKind.ENGINE_CRASH] * 3, FaultKind.NODE_LOSS)
"""As often as they are drawn: what takes engines away meets everything else."""

FIRST_AHEAD = 100
"""Odd seeds above it are asynchronous runs; those below stay what they were when bugs were found in them."""

SHARE_ESCALATING = 0.3
"""Of the even seeds above it."""

GPUS_PER_NODE = 8

MOST_STEPS = 64
"""More than any world needs whose data ends; a run that gets there did not end with its data."""

_SHAPE = ShapeSection(
    num_layers=2,
    hidden_size=64,
    num_heads=8,
    num_kv_heads=8,
    head_dim=8,
    intermediate_size=128,
    vocab_size=1000,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that decides what happens."""

    seed: int
    """Of the run: prompt order, lengths, verdicts."""
    batching: Batching
    reward: Reward
    planner: bool
    stream: bool
    num_prompts: int
    num_responses: int
    eta_prompts: float
    eta_responses: float
    num_keys: tuple[int, ...]
    """Prompts of each domain."""
    weights: tuple[int, ...]
    """Share of each domain in a batch."""
    num_epochs: int | None
    """None: the data never ends."""
    num_engines: int
    tensor_parallel: int
    """GPUs of an engine, unless the planner changes it."""
    max_num_seqs: int
    kv_tokens: int
    """Room of an engine of one GPU."""
    max_response_tokens: int
    checkpoint_every_steps: int
    faults: tuple[Fault, ...]
    max_restarts: int = 0
    """Of an engine; worlds that were saved before there were any have none."""
    restart_s: float = 0.0
    """How long a restart takes. Rounds take from a millisecond to some seconds: engines join in the middle of one,
    between two, and too late."""
    dynamic_sampling: bool = False
    max_active_requests: int | None = None
    solve_rate: float = 0.5
    solve_rate_rho: float = 0.0
    switch: Literal["sleep", "restart"] = "sleep"
    """Where engines of the other degree are; worlds that were saved before there was a choice have them asleep."""
    num_steps: int = MOST_STEPS
    max_launch_factor: float = 1000.0
    """Of dynamic sampling; a world's data ends before so many are launched."""
    held_out: tuple[int, ...] = ()
    """Prompts of each held-out set; their responses are as many as their place from 1 on. Worlds that were saved before
    there were evaluations have none."""
    evaluate_every_steps: int = 1
    evaluate: Literal["alone", "fill"] = "alone"
    grace_s: float = 30.0
    length_history: bool = False
    first_epoch: Literal["race", "exact"] = "race"
    draft_acceptance: float | None = None
    """None: no speculative decoding."""
    max_staleness: int = 0
    lookahead: float = 0.0
    staleness_order: Literal["ready", "fifo"] = "ready"
    escalates: bool = False
    """Larger engines finish rounds, at costs that always speak for them while few responses are left."""
    has_pools: bool = False
    """Trainer and engines have GPUs of their own; otherwise they take turns."""

    def to_plain(self) -> dict[str, Any]:
        """Turn into JSON data."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        """Undo `to_plain`."""
        values = {field.name: plain[field.name] for field in fields(cls) if field.name in plain}
        faults = tuple(Fault(**{**fault, "kind": FaultKind(fault["kind"])}) for fault in values["faults"])
        return cls(
            **{
                **values,
                "num_keys": tuple(values["num_keys"]),
                "weights": tuple(values["weights"]),
                "held_out": tuple(values.get("held_out", ())),
                "faults": faults,
            }
        )


def draw_world(seed: int) -> World:
    """Draw everything from one generator."""
    rng = random.Random(seed)
    num_domains = rng.randint(1, 3)
    weights = tuple(rng.randint(1, 2) for _ in range(num_domains))
    has_planner = rng.choice((True, False, False, False))
    num_prompts = sum(weights) + rng.randint(0, 0 if has_planner else 2)
    most_keys = num_prompts * (4 if has_planner else 2)  # a planner changes its mind after five rounds of a kind
    max_response_tokens = rng.choice((64, 1024, 4096))
    spare_tokens = rng.choice((0, max_response_tokens // 2, 8 * max_response_tokens))
    factors = (1.0, 1.125, 1.25, 1.5, 2.0)
    world = World(
        seed=seed,
        batching=rng.choice(BATCHINGS),
        reward=rng.choice(REWARDS),
        planner=has_planner,
        stream=rng.choice((True, False, False)),
        num_prompts=num_prompts,
        num_responses=rng.choice((2, 2, 3)),
        eta_prompts=rng.choice(factors),
        eta_responses=rng.choice(factors),
        num_keys=tuple(rng.randint(1, most_keys) for _ in range(num_domains)),
        weights=weights,
        num_epochs=rng.choice((1, 1, 1, 2)),
        num_engines=rng.choice((2, 4) if has_planner else (1, 2, 2, 3, 4, 4)),
        tensor_parallel=rng.choice((1, 2)) if has_planner else 1,
        max_num_seqs=rng.choice((2, 4, 64)),
        kv_tokens=max_response_tokens + 32 + spare_tokens,
        max_response_tokens=max_response_tokens,
        checkpoint_every_steps=rng.randint(0, 3),
        faults=tuple(_draw_fault(rng) for _ in range(rng.choice((0, 1, 2, 3, 5, 8)))),
        max_restarts=rng.choice((0, 1, 3, 3)),
        restart_s=rng.choice((0.0, 0.01, 0.1, 1.0, 30.0)),
        switch="restart" if seed % 2 else "sleep",
    )
    world = _with_dynamic_sampling(world, rng) if rng.choice((True, False, False)) else world
    rng = random.Random(f"evaluation of {seed}")  # what was drawn before there were evaluations stays as it is
    world = with_evaluations(world, rng) if rng.random() < 0.4 else world
    rng = random.Random(f"length history of {seed}")  # likewise
    world = with_history(world, rng) if rng.random() < 0.3 else world
    rng = random.Random(f"drafts of {seed}")
    world = replace(world, draft_acceptance=rng.choice((None, None, 0.0, 0.6, 0.9)))
    if seed <= FIRST_AHEAD:
        return world
    if seed % 2:
        return with_lead(world, random.Random(f"lead of {seed}"))
    rng = random.Random(f"tail of {seed}")
    return with_escalation(world, rng) if rng.random() < SHARE_ESCALATING else world


def with_escalation(world: World, rng: random.Random) -> World:
    """Let larger engines finish rounds; what goes not together with it gives way."""
    return replace(
        world,
        escalates=True,
        planner=True,
        num_engines=rng.choice((2, 4, 4)),
        tensor_parallel=rng.choice((1, 2)),
        batching=world.batching if world.length_history else rng.choice(("plain", "plain", world.batching)),
        switch="sleep",
        dynamic_sampling=False,
        max_active_requests=None,
        num_steps=MOST_STEPS,
        num_epochs=world.num_epochs or 1,
        evaluate="alone",
        draft_acceptance=None,  # draft lengths in the midst of a round have tests of their own
        num_keys=tuple(number + world.num_prompts for number in world.num_keys),
    )


def with_lead(world: World, rng: random.Random) -> World:
    """Admit prompts ahead of the trainer; what goes not together with it gives way, and the data is enough for steps
    in which it is full."""
    bound = rng.choice((1, 1, 2, 3))
    return replace(
        world,
        max_staleness=bound,
        lookahead=rng.choice((0, rng.randint(1, 4 * bound), 4 * bound)) / 4,
        staleness_order=rng.choice(("ready", "ready", "fifo")),
        has_pools=rng.choice((True, False)) and world.num_engines * world.tensor_parallel < GPUS_PER_NODE,
        batching="plain",
        planner=False,
        stream=False,
        reward="async" if world.reward == "batch" else world.reward,
        max_active_requests=None,
        length_history=False,
        evaluate="alone",
        num_keys=tuple(number + world.num_prompts * bound for number in world.num_keys),
        faults=(*world.faults, *(_draw_fault_of_suspension(rng) for _ in range(rng.choice((0, 1, 2))))),
    )


def _draw_fault_of_suspension(rng: random.Random) -> Fault:
    fault = _draw_fault(rng)
    kind = rng.choice(
        (
            FaultKind.ENGINE_CRASH,
            FaultKind.NODE_LOSS,
            FaultKind.SLOW_ENGINE,
            FaultKind.HUNG_ENGINE,
            FaultKind.LATE_FINISH,
            FaultKind.DRIVER_KILL,
        )
    )
    return replace(fault, kind=kind, at_event=None, at_suspension=rng.randint(0, 4), amount=_draw_amount(rng, kind))


def with_history(world: World, rng: random.Random) -> World:
    """Remember lengths, over as many epochs as it takes to have a use; not with dynamic sampling."""
    if world.dynamic_sampling or world.batching == "plain":
        return world
    return replace(world, length_history=True, first_epoch=rng.choice(("race", "exact")), num_epochs=rng.choice((2, 3)))


def with_evaluations(world: World, rng: random.Random) -> World:
    """Hold prompts out; rounds are filled where something else than time decides what a batch is made of."""
    return replace(
        world,
        held_out=tuple(rng.randint(1, 5) for _ in range(rng.randint(1, 3))),
        evaluate_every_steps=rng.choice((1, 1, 2, 3)),
        evaluate=rng.choice(("fill", "fill", "alone")) if can_fill(world) else "alone",
        grace_s=rng.choice((0.0, 0.01, 1.0, 30.0)),
    )


def can_fill(world: World) -> bool:
    """Whether the world has rounds whose batch takes everything that they launch."""
    only_races = world.batching == "tail" and world.eta_prompts == 1 < world.eta_responses
    return not (world.dynamic_sampling or only_races)


def _with_dynamic_sampling(world: World, rng: random.Random) -> World:
    """Drop prompts; what goes not together with it gives way."""
    num_samples = math.ceil(world.num_responses * world.eta_responses)
    world = replace(
        world,
        dynamic_sampling=True,
        max_active_requests=rng.choice((None, None, num_samples, 3 * num_samples)),
        solve_rate=rng.choice((0.5, 0.5, 0.8, 0.0)),
        solve_rate_rho=rng.choice((0.0, 0.6)),
        reward="async" if world.reward == "batch" and world.batching == "tail" else world.reward,
    )
    if not world.stream:
        return world
    endless = replace(
        world,
        num_epochs=None,
        num_steps=rng.randint(2, 6),
        max_launch_factor=rng.choice((4.0, 20.0, 20.0)),
        solve_rate=world.solve_rate or 0.5,
    )
    return rng.choice((endless, world))


def _draw_fault(rng: random.Random) -> Fault:
    kind = rng.choice(FAULT_KINDS)
    is_timed = rng.choice((True, False))
    return Fault(
        kind=kind,
        at_event=None if is_timed else int(rng.random() ** 2 * 200),
        at_s=round(rng.random() ** 2 * 60, 3) if is_timed else 0.0,
        target=rng.randint(0, 7),
        amount=_draw_amount(rng, kind),
    )


def _draw_amount(rng: random.Random, kind: FaultKind) -> float:
    match kind:
        case FaultKind.SLOW_ENGINE:
            return float(rng.choice((1, 4, 1000)))
        case FaultKind.NODE_LOSS:
            return float(rng.randint(1, 4))
        case FaultKind.LATE_FINISH | FaultKind.DUPLICATE_FINISH | FaultKind.HUNG_REWARD | FaultKind.DUPLICATE_VERDICT:
            return round(rng.choice((0.0, 1.0, 20.0, 2000.0)) * rng.random(), 3)
        case FaultKind.CLOCK_JUMP:
            return float(rng.choice((1, 50, 1000)))
        case FaultKind.PREEMPTION_NOTICE:
            return round(100 * rng.random() ** 2, 3)
        case _:
            return rng.random()


def write_prompts(world: World, path: Path) -> None:
    """Write the world's prompts as a user's file."""
    lines = [
        json.dumps({"id": f"{domain}-{number}", "domain": domain, "prompt": "?", "ground_truth": ""})
        for domain, num_keys in zip(DOMAINS, world.num_keys, strict=False)
        for number in range(num_keys)
    ]
    path.write_text("\n".join(lines) + "\n")
    for file, num_keys in zip(_held_out_files(world, path), world.held_out, strict=True):
        held_out = [
            json.dumps({"id": f"new-{number}", "domain": DOMAINS[0], "prompt": file.stem, "ground_truth": ""})
            for number in range(num_keys)
        ]
        file.write_text("\n".join(held_out) + "\n")


def _held_out_files(world: World, prompts: Path) -> list[Path]:
    return [prompts.with_name(f"held-out-{number}.jsonl") for number in range(1, len(world.held_out) + 1)]


def config_of(world: World, run_dir: Path, prompts: Path) -> RunConfig:
    """The configuration of the world's run; `prompts` is what `write_prompts` wrote."""
    weight_bytes, kv_bytes = 200_000, 2 * 2 * 8 * 8 * 2 * _SHAPE.num_layers // 2
    memory_bytes = (5 if world.escalates else 4) * weight_bytes + world.kv_tokens * kv_bytes
    return RunConfig(
        run=RunSection(
            dir=run_dir,
            seed=world.seed,
            num_steps=world.num_steps,
            num_epochs=world.num_epochs,
            resume="auto",
            checkpoint_every_steps=world.checkpoint_every_steps,
            progress="none",
        ),
        model=PolicySection(path=None, dtype="bfloat16", shape=_SHAPE),
        data=DataSection(
            path=prompts,
            max_prompt_tokens=16,
            domain_weights=dict(zip(DOMAINS, map(float, world.weights), strict=False)),
        ),
        rollout=RolloutSection(
            num_prompts=world.num_prompts,
            num_responses=world.num_responses,
            max_response_tokens=world.max_response_tokens,
        ),
        system=SystemSection(
            name=world.batching,
            batching=world.batching,
            eta_prompts=world.eta_prompts,
            eta_responses=world.eta_responses,
            reward=world.reward,
            planner=world.planner,
            escalate_tail=world.escalates,
            speculative_decoding=world.draft_acceptance is not None,
            stream=world.stream,
            dynamic_sampling=world.dynamic_sampling,
            max_active_requests=world.max_active_requests,
            max_launch_factor=world.max_launch_factor,
            length_history=world.length_history,
            history_share=0.25,
            first_epoch=world.first_epoch,
            max_staleness=world.max_staleness,
            lookahead=world.lookahead,
            staleness_order=world.staleness_order,
        ),
        engine=EngineSection(
            num_engines=world.num_engines,
            tensor_parallel=world.tensor_parallel,
            max_num_seqs=world.max_num_seqs,
            switch=world.switch,
            max_restarts=world.max_restarts,
            restart_pause_s=world.restart_s / 10,
        ),
        reward=RewardSection(name="modelled", num_workers=8, timeout_s=30, kinds={"judge": "rule"}),
        backend=BackendSection(
            name="sim",
            deadlines=DeadlineSection(
                rollout_stall_s=DEADLINE_S,
                engine_call_s=DEADLINE_S / 2,
                train_s=DEADLINE_S,
                weight_sync_s=DEADLINE_S,
                checkpoint_s=DEADLINE_S,
            ),
        ),
        placement=_pools_of(world) if world.has_pools else PlacementSection(),
        weight_sync=WeightSyncSection(timeout_s=DEADLINE_S / 4),
        evaluation=_evaluation_of(world, prompts),
        hardware=HardwareSection(
            name="small",
            memory_gb=memory_bytes / 1e9,
            memory_share=1,
            memory_gb_per_s=1,
            tflops=0.1,
            nvlink_gb_per_s=1,
            network_gb_per_s=1,
            engine_restart_s=world.restart_s,
        ),
        workload=WorkloadSection(
            name="fuzz",
            draft_acceptance=world.draft_acceptance or 0.0,
            prompt_tokens=16,
            solve_rate=world.solve_rate,
            solve_rate_rho=world.solve_rate_rho,
        ),
    )


def _pools_of(world: World) -> PlacementSection:
    """GPUs of their own for engines and trainer, which has one."""
    num_gpus = world.num_engines * world.tensor_parallel
    return PlacementSection(engine=f"0-{num_gpus - 1}" if num_gpus > 1 else "0", trainer=str(num_gpus))


def _evaluation_of(world: World, prompts: Path) -> EvaluationSection:
    if not world.held_out:
        return EvaluationSection()
    return EvaluationSection(
        path=tuple(
            HeldOutFile(path=file, num_samples=number)
            for number, file in enumerate(_held_out_files(world, prompts), start=1)
        ),
        every_steps=world.evaluate_every_steps,
        at_start=world.seed % 3 > 0,
        at_end=world.seed % 5 > 0,
        when=world.evaluate if can_fill(world) else "alone",
        grace_s=world.grace_s,
        pass_at=(1,),
    )
