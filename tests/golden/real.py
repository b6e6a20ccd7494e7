"""The real run that is recorded: the torch engine and the torch trainer in this process, plain rounds.

Which responses are trained is then the same in whatever order they finish. The model has not learnt to answer yet, so
the rewards come from a script.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.core.ids import EngineId, RequestId
from rollpacker.data.fitting import fit_prompts
from rollpacker.data.prompts import load_prompts
from rollpacker.data.tokenization import PromptTokenizer
from rollpacker.demo import task
from rollpacker.demo.warm_start import make_model
from rollpacker.engines.factory import make_engine
from rollpacker.protocols.backend import BackendContext, Fleet, Workers
from rollpacker.trainers.factory import make_trainer
from tests.golden.records import record_of
from tests.runtime.scripted import ScriptedReward

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from rollpacker.config.schema import RunConfig
    from tests.golden.records import Record

NUM_PROMPTS = 24

NUM_ITERATIONS = 30
"""Enough for a model that ends some of its answers, and too few for processors to differ in."""

RECORDED = {
    "steps": (
        *("round", "round_kind", "num_prompts", "num_responses", "num_truncated", "tokens_generated", "tokens_trained"),
        *("reward_mean", "policy_version", "loss", "grad_norm", "learning_rate", "entropy"),
    ),
    "domains": ("domain", "num_responses", "solve_rate", "response_length_p50_tokens", "response_length_max_tokens"),
    "responses": (
        *("epoch", "prompt", "sample", "policy_version", "num_prompt_tokens", "length_tokens", "finish_reason"),
        *("reward", "accepted"),
    ),
}
"""The columns that neither time nor the processor decides, but for the last digits of numbers."""

TOLERANCE = 1e-3
"""Relative, for what the last digits of a gradient make of an optimizer's first steps."""


def _score(request: RequestId) -> float:
    return float(zlib.crc32(f"{request.prompt.key}#{request.sample}".encode()) % 3)


class BackendHere:
    """Brings engine and trainer in this process; implements `rollpacker.protocols.backend.Backend`."""

    is_modelled = False

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    @asynccontextmanager
    async def open(self, _: BackendContext) -> AsyncIterator[Workers]:
        config = self._config
        tokenizer = PromptTokenizer(config.model.directory, config.data)
        engine = make_engine(EngineId("engine-0"), config)
        trainer = make_trainer(config)
        yield Workers(
            prompts=fit_prompts(load_prompts(config.data.files), tokenizer, config.data).prompts,
            fleets={1: Fleet(engines={EngineId("engine-0"): engine})},
            trainer=trainer,
            reward=ScriptedReward(_score),
        )
        await engine.close()
        await trainer.close()


def train(folder: Path) -> Record:
    """Run it below a folder; `updates` holds of each tensor the size of all updates, plain and weighted by place."""
    torch.set_num_threads(1)
    make_model(folder / "model", num_iterations=NUM_ITERATIONS)
    (folder / "prompts.jsonl").write_text(task.prompt_file(NUM_PROMPTS, random.Random(2)))
    run_dir = folder / "real"
    config = compose(
        [
            *(f"run.dir={run_dir}", f"model.path={folder}/model", f"data.path={folder}/prompts.jsonl"),
            *("system=verl", "reward=walk", "engine.num_engines=1", "data.max_prompt_tokens=16"),
            *("rollout.num_prompts=8", "rollout.num_responses=4", "rollout.max_response_tokens=32"),
            *("trainer.learning_rate=1e-3", "trainer.num_minibatches=2", "trainer.loss_normalisation=sequence"),
            *("run.num_epochs=1", "run.progress=none"),
        ]
    )
    asyncio.run(pipeline.train(config, BackendHere(config)))
    last = max((run_dir / "checkpoints").glob("step-*"))
    before = load_file(folder / "model" / "model.safetensors")
    after = load_file(last / "trainer" / "model" / "model.safetensors")
    return record_of(run_dir) | {"updates": {name: _sizes(after[name] - before[name]) for name in sorted(before)}}


def _sizes(update: torch.Tensor) -> list[float]:
    numbers = update.double().flatten()
    places = torch.arange(1, len(numbers) + 1)
    return [numbers.norm().item(), (numbers * places).norm().item()]


def to_record(record: Record) -> Record:
    """Leave out what is not the same on any machine."""
    tables = {table: {column: record[table][column] for column in columns} for table, columns in RECORDED.items()}
    return tables | {"updates": record["updates"]}
