"""The modelled runs that are recorded: one for each way in which rounds are packed, streamed and planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker import pipeline
from rollpacker.config.compose import compose
from tests.golden.records import record_of, record_of_events

if TYPE_CHECKING:
    from pathlib import Path

    from tests.golden.records import Record

_SMALL = (
    *("backend=sim", "model=qwen2.5-7b", "run.progress=none", "run.num_steps=6", "run.checkpoint_every_steps=0"),
    *("rollout.num_prompts=8", "rollout.num_responses=3", "rollout.max_response_tokens=2048"),
    *("engine.num_engines=4", "trainer.tensor_parallel=1"),
)
_MIXED = ("workload=mix", "data.domain_weights={math:2,code:1,judge:1}")
_TIGHT = ("workload=math", "hardware.memory_gb=17.5", "data.max_prompt_tokens=512", "workload.drift_per_step=0.2")
"""Memory for some 6,000 tokens beside the weights, and responses that grow: engines preempt."""
_ENDING = ("run.num_epochs=1", "workload.num_prompts=45")

RUNS: dict[str, tuple[str, ...]] = {
    "plain": ("system=verl", *_MIXED, *_ENDING),
    "plain-overlapped": ("system=reward",),
    "tail": ("system=tail", *_MIXED, *_ENDING, "run.num_steps=20", "workload.num_prompts=24"),
    "tail-overlapped": ("system=tail-reward", *_MIXED),
    "tail-planned": ("system=tail-reward-planner", *_TIGHT, "rollout.max_response_tokens=4096"),
    "dynamic": ("system=dapo", "system.max_active_requests=12", "engine.max_num_seqs=4"),
    "dynamic-tail": ("system=dapo-rollpacker", *_MIXED),
    "streamed": ("system=rlhfuse",),
    "planned": ("system=planner", *_TIGHT, "rollout.num_prompts=16", "rollout.max_response_tokens=4096"),
    "rollpacker": ("system=rollpacker", *_MIXED),
}
"""By name: what is added to the words of a small run."""


def train(name: str, folder: Path) -> Record:
    """Run one of them below a folder."""
    run_dir = folder / name
    words = {word.partition("=")[0]: word for word in (*_SMALL, f"run.dir={run_dir}", *RUNS[name])}  # later words win
    pipeline.run(compose(list(words.values())))
    return record_of(run_dir) | record_of_events(run_dir)
