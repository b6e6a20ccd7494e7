"""Rows of the LLM judge: layers that stream while others compute, and its share of a GPU under CUDA MPS."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import numpy as np

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.judge import JudgeSection
from rollpacker.config.sections.model import ModelSection
from rollpacker.data.shapes import transformer_of
from rollpacker.gpu_check.inputs import Bench, config_of, engine_section, make_requests
from rollpacker.gpu_check.outcomes import NotPossible, require
from rollpacker.gpu_check.workers import Worker, engine_on
from rollpacker.runtime.job.allocation import VISIBLE_GPUS
from rollpacker.runtime.placing.host import MPS_SHARE, has_mps_daemon

MPS_CONTROL = "nvidia-cuda-mps-control"

CANDIDATES = (5, 6)

HIDDEN_RATIO = 0.9
"""Of the time with one slot, where every copy is waited for: what two slots may take at most. Where a copy takes as
long as its layer, they take half."""

JUDGE_SHARE = 0.2
"""`reward.judge.gpu_share` by default."""


async def make_judge_objects(section: JudgeSection) -> Mapping[str, Any]:
    """`judge`, as an actor of a run has it, and `timed`."""
    import torch

    from rollpacker.engines.factory import open_judge

    torch.set_num_threads(section.num_threads)
    judge = open_judge(section)
    return {"judge": judge, "timed": _Timed(judge, section)}


def judge_on(section: JudgeSection, **environment: str) -> aclosing[Worker]:
    """A judge on the first GPU."""
    return aclosing(Worker("judge", [0], make_judge_objects, section, **environment))


class _Timed:
    def __init__(self, judge: Any, section: JudgeSection) -> None:
        self._judge = judge
        num_words = transformer_of(section.model).shape.vocab_size
        numbers = np.random.default_rng(0)
        self._prompts = [numbers.integers(1, num_words, 512).astype(np.int32) for _ in range(32)]

    async def read(self, num_prompts: int, num_repeats: int) -> tuple[float, list[tuple[float, ...]]]:
        """Read prompts; returns the fastest time of several, and the log-probabilities."""
        prompts = self._prompts[:num_prompts]
        answers = await self._judge.next_token_logprobs(prompts, CANDIDATES)
        fastest = math.inf
        for _ in range(num_repeats):
            began = time.perf_counter()
            answers = await self._judge.next_token_logprobs(prompts, CANDIDATES)
            fastest = min(fastest, time.perf_counter() - began)
        return fastest, list(answers)

    async def read_for(self, seconds: float) -> float:
        """Read prompts again and again; returns how many per second."""
        began, num_read = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < seconds:
            await self._judge.next_token_logprobs(self._prompts[:8], CANDIDATES)
            num_read += 8
        return num_read / elapsed


def _section(bench: Bench, **others: Any) -> JudgeSection:
    return JudgeSection(model=ModelSection(path=bench.large(), dtype="bfloat16"), memory_share=0.6, **others)


async def overlap(bench: Bench) -> Mapping[str, float]:
    """Let a judge stream all its layers: the plain judge's numbers, in less time than copies and compute in turn."""
    sections = {
        "plain": _section(bench),
        "one_slot": _section(bench, engine="streamed", resident_share=0.0, num_slots=1),
        "two_slots": _section(bench, engine="streamed", resident_share=0.0, num_slots=2),
    }
    seconds: dict[str, float] = {}
    answers: dict[str, list[tuple[float, ...]]] = {}
    for name, section in sections.items():
        async with judge_on(section) as judge:
            seconds[name], answers[name] = await judge.call("timed.read", *((32, 5) if bench.has_gpus else (4, 1)))
    require(answers["two_slots"] == answers["plain"], "the streamed judge's log-probabilities are not the plain one's")
    require(answers["one_slot"] == answers["plain"], "with one slot the log-probabilities are not the plain judge's")
    ratio = seconds["two_slots"] / seconds["one_slot"]
    if bench.has_gpus:
        require(ratio <= HIDDEN_RATIO, f"two slots take {ratio:.2f} of the time with one: copies are not hidden")
    return {
        "two_slots_of_one": ratio,
        "two_slots_of_plain": seconds["two_slots"] / seconds["plain"],
        "judged_tokens_per_s": 32 * 512 / seconds["two_slots"] if bench.has_gpus else 4 * 512 / seconds["two_slots"],
    }


async def mps(bench: Bench) -> Mapping[str, float]:
    """Let a judge with its share work beside an engine under an MPS daemon of this row: the share holds."""
    environment = _start_daemon()
    try:
        require(has_mps_daemon(os.environ | environment), "a run would not see the MPS daemon that listens")
        limited = {**environment, MPS_SHARE: f"{100 * JUDGE_SHARE:g}"}
        section = _section(bench)
        async with judge_on(section, **environment) as whole:
            judge_alone = await whole.call("timed.read_for", 3.0)
        config = config_of(bench.large(), bench.folder, engine=engine_section("torch"))
        async with judge_on(section, **limited) as judge:
            judge_limited = await judge.call("timed.read_for", 3.0)
            async with engine_on(config, [0], **environment) as engine:
                speed_beside = await speed_beside_judge(engine, judge, config)
    finally:
        _stop_daemon(environment)
    limited_to = judge_limited / judge_alone
    require(
        limited_to < 1 - JUDGE_SHARE,
        f"with {JUDGE_SHARE:.0%} of the GPU's processors the judge is {limited_to:.2f} times as fast as with all",
    )
    return {
        "judge_speed_with_its_share": limited_to,
        "engine_speed_beside_it": speed_beside,
    }


async def speed_beside_judge(engine: Worker, judge: Worker, config: RunConfig) -> float:
    """Return how fast an engine generates while a judge reads, as a share of its speed alone."""
    await engine.call("loader.load")
    await _tokens_per_s(engine, config, 1)  # kernels are chosen and compiled
    alone = await _tokens_per_s(engine, config, 2)
    reading = asyncio.create_task(judge.call("timed.read_for", 20.0))
    beside = await _tokens_per_s(engine, config, 3)
    await reading
    return beside / alone


async def _tokens_per_s(engine: Worker, config: RunConfig, seed: int) -> float:
    requests = make_requests(config, [256] * 64, seed=seed)
    began = time.perf_counter()
    responses = await engine.call("loader.respond", requests)
    num_tokens: int = sum(response.num_tokens for response in responses)
    return num_tokens / (time.perf_counter() - began)


def _start_daemon() -> dict[str, str]:
    """Start one that only who has the returned environment finds; raises `NotPossible` with its own words."""
    folder = tempfile.mkdtemp(prefix="mps-")  # a path that fits into a socket's address
    environment = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    started = _control(["-d"], environment, "")
    if started.returncode or not has_mps_daemon(os.environ | environment):
        raise NotPossible(f"an MPS daemon does not start: {(started.stdout + started.stderr).strip() or 'no word'}")
    return environment


def _stop_daemon(environment: Mapping[str, str]) -> None:
    _control([], environment, "quit -t 5\n")
    shutil.rmtree(environment["CUDA_MPS_PIPE_DIRECTORY"], ignore_errors=True)


def _control(words: list[str], environment: Mapping[str, str], orders: str) -> subprocess.CompletedProcess[str]:
    # a daemon that sees some GPUs numbers them anew, and its clients' own numbers would name others
    inherited = {name: value for name, value in os.environ.items() if name != VISIBLE_GPUS}
    return subprocess.run(  # noqa: S603  # CUDA's own program
        [MPS_CONTROL, *words],
        env={**inherited, **environment},
        input=orders,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
