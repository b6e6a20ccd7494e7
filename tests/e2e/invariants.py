"""What holds of every run that was trained to the end of its epoch, whatever was killed meanwhile."""

import itertools
import json
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import load_file

from rollpacker.core.commands import DropPrompt
from rollpacker.core.events import PromptsDrawn, StepStarted
from rollpacker.core.ids import PromptId
from rollpacker.metrics.event_log import LogRecord, attempt_paths, read_event_log
from rollpacker.runtime.rollout.replay import replay
from tests.e2e.launched import batches, rows, trained_prompts


def assert_each_step_once(run_dir: Path) -> None:
    steps = [row["step"] for row in rows(run_dir, "steps")]
    assert sorted(steps) == list(range(len(steps)))
    assert {row["step"] for row in rows(run_dir, "responses")} == set(steps)


def assert_each_prompt_was_trained_once(run_dir: Path, num_prompts: int) -> None:
    trained = trained_prompts(run_dir)
    assert len(trained) == num_prompts
    assert len(set(trained)) == num_prompts


def assert_on_policy(run_dir: Path) -> None:
    """Every row is of the policy that its step began with, and the trainer found the engines' probabilities its own."""
    assert all(row["policy_version"] == row["step"] for row in rows(run_dir, "responses"))
    assert all(row["policy_version"] == row["step"] for row in rows(run_dir, "steps"))
    assert all(row["logprob_mismatch_max"] < 1e-4 for row in rows(run_dir, "steps"))


def assert_within_bound(run_dir: Path, max_staleness: int) -> None:
    """No trained token is older, none was thrown away, and the trainer found the newest ones' probabilities its own."""
    responses = rows(run_dir, "responses")
    assert all(row["accepted"] for row in responses)
    assert all(row["round"] <= row["first_policy_version"] <= row["policy_version"] <= row["step"] for row in responses)
    assert all(row["step"] - row["first_policy_version"] <= max_staleness for row in responses)
    steps = rows(run_dir, "steps")
    assert all(step["staleness_max"] <= max_staleness and step["tokens_wasted"] == 0 for step in steps)
    mismatches = [step["logprob_mismatch_max"] for step in steps]
    assert any(mismatch is not None for mismatch in mismatches)
    assert all(mismatch is None or mismatch < 1e-4 for mismatch in mismatches)


def assert_all_holds(run_dir: Path, num_prompts: int, max_staleness: int = 0) -> None:
    """The above, every table can be read, and the event log of each attempt gives the same commands again."""
    assert_each_step_once(run_dir)
    assert_each_prompt_was_trained_once(run_dir, num_prompts)
    if max_staleness:
        assert_within_bound(run_dir, max_staleness)
    else:
        assert_on_policy(run_dir)
    for table in sorted(path.name for path in (run_dir / "metrics").iterdir() if path.is_dir()):
        assert rows(run_dir, table), f"{table} is empty"
    replay(run_dir)


def assert_dropped_prompts_have_no_signal_and_no_other_is_missing(run_dir: Path, keys: set[str]) -> None:
    """Of a run with dynamic sampling whose data has not ended; its last checkpoint is of the last step."""
    rewards: dict[tuple, set[float]] = {}
    for row in rows(run_dir, "responses"):
        if row["accepted"]:
            rewards.setdefault((row["step"], row["epoch"], row["prompt"]), set()).add(row["reward"])
    assert all(len(each) > 1 for each in rewards.values()), "a group without signal was trained"
    dropped = assert_no_prompt_is_missing(run_dir, keys)
    assert dropped
    assert len(dropped) == sum(row["num_prompts_dropped"] for row in rows(run_dir, "steps"))


def assert_no_prompt_is_missing(run_dir: Path, keys: set[str]) -> list[PromptId]:
    """Each that was drawn is trained, or dropped, or waits: once. Gives the dropped ones.

    Of a run under tail batching whose data has not ended; its last checkpoint is of the last step.
    """
    records = list(itertools.chain.from_iterable(_records_of_steps(run_dir).values()))
    drawn = Counter(
        prompt for record in records if isinstance(record.event, PromptsDrawn) for prompt in record.event.prompts
    )
    dropped = [command.prompt for record in records for command in record.commands if isinstance(command, DropPrompt)]
    last = max((run_dir / "checkpoints").glob("step-*"))
    batching = json.loads((last / "scheduler.json").read_text())["batching"]
    waiting = [PromptId(*prompt) for prompt, _ in batching["long_queue"]]
    waiting += [PromptId(*prompt) for prompts in batching["supply"]["drawn"].values() for prompt in prompts]
    trained = [PromptId(*each) for each in trained_prompts(run_dir)]
    assert Counter(trained + dropped + waiting) == drawn
    by_epoch: dict[int, set[str]] = {}
    for prompt in drawn:
        by_epoch.setdefault(prompt.epoch, set()).add(prompt.key)
    assert all(by_epoch[epoch] == keys for epoch in range(max(by_epoch)))
    return dropped


def assert_ended_as(run_dir: Path, unbroken: Path) -> None:
    """The run trained the batches of an unbroken one, and ended in its weights to the last bit."""
    assert batches(run_dir) == batches(unbroken)
    expected, actual = _final_weights(unbroken), _final_weights(run_dir)
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def _final_weights(run_dir: Path) -> dict[str, torch.Tensor]:
    last = max((run_dir / "checkpoints").glob("step-*"))
    return load_file(last / "trainer" / "model" / "model.safetensors")


def _records_of_steps(run_dir: Path) -> dict[int, list[LogRecord]]:
    """What counts of the event logs: of each step its last attempt."""
    steps: dict[int, list[LogRecord]] = {}
    for path in attempt_paths(run_dir):
        is_first = True
        for record in read_event_log(path).records:
            if isinstance(record.event, StepStarted):
                if is_first:
                    steps = {step: each for step, each in steps.items() if step < record.event.step}
                is_first = False
                current = steps[record.event.step] = []
            if not is_first:  # before it, engines join
                current.append(record)
    return steps
