"""What draft tokens gain: replayed from a run's recorded responses, or decoded by the torch engine.

    python -m tests.benchmarks.drafts RUN [--lengths 2 4 8] [--steps FIRST LAST]
    OMP_NUM_THREADS=1 python -m tests.benchmarks.drafts --model DIR --prompts FILE [--batches 1 2 4 8 16 32 64]

A replay feeds the texts of the samples table through the engine's own drafter, group by group in the order of their
steps: a pass accepts as many draft tokens as the response really goes on with, so these are the passes that an engine
would have taken. Drafts come from the response itself and its prompt (own), also from its siblings, which decode beside
it (siblings), from the prompt's responses of earlier steps (earlier), or from all of them (both).

Decoding runs every batch of siblings, groups of 8, for two epochs with different seeds and measures the second one.
`gain` is tokens per second over those of plain decoding; rounds alternate, and each side's best one counts.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rollpacker.config.record import read_record
from rollpacker.core.commands import DraftRule
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.data.tokenization import load_tokenizer
from rollpacker.engines.end_tokens import end_tokens
from rollpacker.engines.torch.decoder import Decoder
from rollpacker.engines.torch.history import History
from rollpacker.engines.torch.model_files import load_model
from rollpacker.metrics.samples import read_samples
from rollpacker.protocols.rollout import GenerationRequest

if TYPE_CHECKING:
    from rollpacker.protocols.rollout import TokenIds

GROUP = 8
MAX_TOKENS = 256


@dataclass
class Tally:
    """Passes that responses take, one sequence in each."""

    num_tokens: int = 0
    num_passes: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    def line(self, name: str, length: int) -> str:
        accepted = self.num_accepted / self.num_drafted if self.num_drafted else 0.0
        return (
            f"{name:>10} {length:>6} {self.num_tokens / self.num_passes:>15.2f} "
            f"{self.num_drafted / self.num_passes:>17.2f} {accepted:>9.0%}"
        )


def replay(history: History, prompt: TokenIds, responses: list[TokenIds], length: int, tally: Tally) -> None:
    """Decode the responses of one prompt side by side; the history keeps nothing of them but what is overwritten."""
    texts = np.zeros((len(responses), max(map(len, responses))), dtype=np.int32)
    for slot, response in enumerate(responses):
        texts[slot, : len(response)] = response
        history.begin(slot, prompt)
    lengths = np.array([len(response) for response in responses])
    known = np.ones(len(responses), dtype=np.int64)  # the prompt's own pass gives the first token
    while (rows := np.flatnonzero(known < lengths)).size:
        drafts, nums = history.draft(rows, texts, known[rows], length)
        for row, draft, num in zip(rows, drafts, nums, strict=True):
            allowed = min(int(num), int(lengths[row] - known[row]) - 1)
            true = texts[row, known[row] : known[row] + allowed]
            agrees = draft[:allowed] == true
            num_accepted = int(allowed if agrees.all() else agrees.argmin())
            tally.num_drafted += allowed
            tally.num_accepted += num_accepted
            tally.num_tokens += num_accepted + 1
            tally.num_passes += 1
            known[row] += num_accepted + 1


def replay_run(options: argparse.Namespace) -> None:
    samples = read_samples(options.run, options.steps and tuple(options.steps))
    samples = samples[samples["kind"] == "training"]
    record = read_record(options.run) or {}
    tokenizer = load_tokenizer(options.model or Path(record["model"]["path"]))
    groups: list[tuple[str, TokenIds, list[TokenIds]]] = []
    for (_, key), rows in samples.groupby(["step", "prompt"], sort=False):
        prompt = np.array(tokenizer.encode(rows["prompt_text"].iloc[0], add_special_tokens=False), dtype=np.int32)
        texts = [
            np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.int32) for text in rows["response_text"]
        ]
        if texts := [text for text in texts if len(text) > 1]:
            groups.append((str(key), prompt, texts))
    num_again = len(groups) - len({key for key, *_ in groups})
    longest = max(len(prompt) + max(map(len, texts)) for _, prompt, texts in groups)
    most = max(len(texts) for *_, texts in groups)
    num_tokens = sum(len(text) for *_, texts in groups for text in texts)
    print(f"{len(groups)} groups, {num_again} of a prompt that came before; {num_tokens:,} tokens")
    print(f"{'drafts of':>10} {'length':>6} {'tokens per pass':>15} {'drafted per pass':>17} {'accepted':>9}")
    for length in options.lengths:
        for name in ("own", "siblings", "earlier", "both"):
            tally = Tally()
            history = History(most, longest, num_tokens + 2 * longest)
            for _, prompt, texts in groups:
                if name in {"own", "siblings"}:
                    history = History(most, longest, longest)
                for beside in [texts] if name in {"siblings", "both"} else [[text] for text in texts]:
                    replay(history, prompt, beside, length, tally)
                for slot, text in enumerate(texts):
                    history.begin(slot, prompt)
                    history.end(slot, text)
            print(tally.line(name, length), flush=True)


def second_epoch(model: Any, prompts: list[TokenIds], ends: tuple[int, ...], length: int) -> tuple[float, float]:
    """Decode two epochs; tokens per second of the second one, and tokens per pass and sequence."""
    num = len(prompts)
    history = History(num, MAX_TOKENS, 2**16) if length else None
    decoder = Decoder(
        model,
        max_num_seqs=num,
        max_tokens_per_seq=MAX_TOKENS,
        eos_token_ids=ends,
        clock=time.monotonic,
        history=history,
    )
    decoder.draft_lengths.use((DraftRule(num, length, 0, 0),))
    for epoch in range(2):
        for index, prompt in enumerate(prompts):
            decoder.add(
                GenerationRequest(
                    request=RequestId(epoch, PromptId(epoch, str(index // GROUP)), index % GROUP),
                    prompt_token_ids=prompt,
                    seed=1000 * epoch + index,
                    max_response_tokens=96,
                    temperature=1.0,
                )
            )
        began, tokens, slots = time.process_time(), decoder.num_generated_tokens, decoder.busy_slot_steps
        while not decoder.is_idle:
            decoder.step()
    tokens, slots = decoder.num_generated_tokens - tokens, decoder.busy_slot_steps - slots
    return tokens / (time.process_time() - began), (tokens - num) / slots


def measure_engine(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    model, ends = load_model(options.model, "float32"), end_tokens(options.model)
    tokenizer = load_tokenizer(options.model)
    texts = [json.loads(line)["prompt"] for line in options.prompts.read_text(encoding="utf-8").splitlines()]
    prompts = [np.array(tokenizer.encode(text), dtype=np.int32) for text in texts]
    print(f"{'batch':>5} {'length':>6} {'tokens per pass':>15} {'tokens/s':>9} {'plain':>9} {'gain':>5}")
    for batch in options.batches:
        # every batch size decodes as many different groups, so that a single one does not decide
        sets = [
            [prompts[(first + index // GROUP) % len(prompts)] for index in range(batch)]
            for first in range(0, 64, max(1, batch // GROUP))
        ][: max(1, 64 // batch)]
        best: dict[int, tuple[float, float]] = {}
        for _ in range(options.rounds):
            for length in (0, *options.lengths):
                figures = np.array([second_epoch(model, each, ends, length) for each in sets])
                speed = 1 / (1 / figures[:, 0]).mean()
                if speed > best.get(length, (0.0, 0.0))[0]:
                    best[length] = (speed, figures[:, 1].mean())
        for length in options.lengths:
            (speed, gained), (plain, _) = best[length], best[0]
            print(
                f"{batch:>5} {length:>6} {gained:>15.2f} {speed:>9,.0f} {plain:>9,.0f} {speed / plain:>5.2f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--model", type=Path, help="a replay takes the run's")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--lengths", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--steps", nargs=2, type=int, metavar=("FIRST", "LAST"))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.run is not None:
        replay_run(options)
    elif options.model is not None and options.prompts is not None:
        measure_engine(options)
    else:
        parser.error("Give a run, or --model and --prompts.")


if __name__ == "__main__":
    main()
