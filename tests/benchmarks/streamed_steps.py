"""How far streamed steps are from unstreamed ones: fifty random batches with each trainer, on the CPU in float32.

    python -m tests.benchmarks.streamed_steps [torch] [fsdp] [copies] [megatron]

The batches are those of the tests: one to five groups of one to five responses, some of which moved to another engine.
Each is trained in one call and as a stream, from the same state. `copies` are FSDP2 ranks that hold the whole model;
they and Megatron-core's two replicas are lent one by one. Without words all four are measured. Prints, per trainer, the
largest difference of any weight after an update, the largest change that an update made, and the largest relative
difference of loss, gradient norm and entropy.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.trainers import fsdp_scenarios
from tests.trainers.conftest import Bench
from tests.trainers.megatron import scenarios as megatron_scenarios
from tests.trainers.ranks import Ranks
from tests.trainers.streaming import NUM_BATCHES, compare, random_rewards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rollpacker.protocols.rollout import RolloutGroup
    from tests.trainers.streaming import Difference

SECTIONS: dict[str, dict[str, Any]] = {
    "fsdp": {"kl_coefficient": 0.1},
    "copies": {"shard_ranks": 1, "kl_coefficient": 0.1},
    "megatron": {"data_parallel": 2, "kl_coefficient": 0.1},
}


def make_model(folder: Path) -> Path:
    """Random weights of a shape that all trainers know."""
    config = Qwen2Config(
        vocab_size=24,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def in_this_process(bench: Bench, batches: list[list[RolloutGroup]]) -> list[Difference]:
    trainer = bench.trainer()
    policy: Any = trainer._policy

    def state() -> Iterator[Tensor]:
        for parameter in policy._parameters.values():
            yield parameter
            yield from policy._optimizer.state[parameter].values()

    return asyncio.run(compare(trainer, state(), batches, can_lend=False))


def main() -> None:
    trainers = ["torch", *SECTIONS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainers", metavar="TRAINER", nargs="*", help=", ".join(trainers))
    names = parser.parse_args().trainers or trainers
    if unknown := [name for name in names if name not in trainers]:
        parser.error(f"There is no trainer {unknown[0]!r}; trainers are {', '.join(trainers)}.")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Bench(model_path=make_model(folder / "model"))
        batches = [bench.groups(random_rewards(seed), seed=seed) for seed in range(NUM_BATCHES)]
        ranks = Ranks(2)
        print(f"{'trainer':10}{'weights':>10}{'update':>10}{'metrics':>10}{'calls':>8}{'alone':>8}")
        for trainer in names:
            if trainer == "torch":
                differences = in_this_process(bench, batches)
            else:
                scenarios: Any = megatron_scenarios if trainer == "megatron" else fsdp_scenarios
                work = scenarios.Work(model_path=bench.model_path, section=SECTIONS[trainer], batches=batches)
                differences = ranks.run(scenarios.streamed_steps, work)[0]  # the first rank has the weights
            print(
                f"{trainer:10}{max(each.weights for each in differences):10.1e}"
                f"{max(each.update for each in differences):10.1e}{max(each.metrics for each in differences):10.1e}"
                f"{sum(each.num_calls for each in differences):8}{sum(each.num_alone for each in differences):8}",
                flush=True,
            )
        ranks.close()


if __name__ == "__main__":
    main()
