"""Groups stream to the trainer while the rollout runs: each once, the update last."""

import asyncio
from types import SimpleNamespace

import pytest

from rollpacker.core.errors import ForeignVersion
from rollpacker.core.ids import PromptId
from rollpacker.runtime.rollout.interval_log import IntervalLog
from rollpacker.runtime.rollout.learning import Learner
from rollpacker.runtime.waiting.clock import RunClock
from rollpacker.runtime.waiting.watchdog import Watchdog

PROMPTS = [PromptId(0, str(number)) for number in range(6)]


class ScriptedTrainer:
    """Notes what it is asked; an accumulation takes some turns of the event loop."""

    def __init__(self):
        self.calls = []
        self.error = None
        self.is_accumulating = asyncio.Event()

    async def begin_step(self, shape):
        self.calls.append(("begin", shape.step, shape.num_groups, shape.num_responses))

    async def wake(self, gpus=None):
        self.calls.append(("wake", gpus))

    async def accumulate(self, groups, gpus=None):
        self.calls.append(("accumulate", [group.prompt for group in groups], gpus))
        self.is_accumulating.set()
        for _ in range(3):
            await asyncio.sleep(0)
        if self.error:
            raise self.error

    async def sleep(self):
        self.calls.append(("sleep",))

    async def give_up_step(self):
        self.calls.append(("give up",))

    async def complete_batch(self, num_responses):
        self.calls.append(("complete", num_responses))

    async def finish_step(self):
        self.calls.append(("finish",))
        return "updated"


class Batch:
    """A round whose groups are accepted when a test says so."""

    def __init__(self):
        self.begin = SimpleNamespace(step=7, num_prompts_needed=len(PROMPTS), num_responses_needed=2)
        self.policy_version = self.oldest_policy_version = 7
        self.accepted = {}
        self.order = None

    def group(self, prompt):
        return SimpleNamespace(prompt=prompt, responses=[SimpleNamespace(num_tokens=10)] * 2)

    def groups(self):
        return [self.group(prompt) for prompt in self.order]


@pytest.fixture
async def learning(tmp_path):
    trainer = ScriptedTrainer()
    within = Watchdog(tmp_path / "stall.txt", 60).within
    trainer.told = []
    interval_log = IntervalLog(RunClock())
    return trainer, Learner(
        trainer, 100, within, deadline_s=5, interval_log=interval_log, on_failure=trainer.told.append
    )


async def learn(learner, batch):
    await learner.accumulate(batch)
    return await learner.update()


async def turns(number=20):
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_batch_that_does_not_stream_is_trained_at_once(learning):
    trainer, learner = learning
    batch = Batch()
    batch.order = tuple(PROMPTS)
    assert await learn(learner, batch) == "updated"
    assert trainer.calls == [("begin", 7, 6, 12), ("accumulate", PROMPTS, None), ("complete", 12), ("finish",)]
    assert learner.num_tokens_streamed == 0


async def test_accepted_groups_stream_to_the_lent_gpus_and_the_rest_goes_to_all(learning):
    trainer, learner = learning
    batch = Batch()
    batch.accepted[PROMPTS[4]] = (0, 1)
    learner.stream(batch, frozenset({0, 1}), 2)
    await turns()
    batch.accepted |= dict.fromkeys(PROMPTS[:3], (0, 1))
    learner.group_accepted()
    await turns()
    batch.order = tuple(PROMPTS)
    assert await learn(learner, batch) == "updated"
    kinds = [call[0] for call in trainer.calls]
    assert kinds == ["wake", "begin", *4 * ["accumulate"], "complete", "finish"]
    *streamed, rest = [call[1:] for call in trainer.calls if call[0] == "accumulate"]
    assert [gpus for _, gpus in streamed] == [frozenset({0, 1})] * 3
    assert [prompts for prompts, _ in streamed] == [[PROMPTS[4]], PROMPTS[:2], PROMPTS[2:3]]
    assert rest == ([PROMPTS[3], PROMPTS[5]], None)
    assert learner.num_tokens_streamed == 4 * 20
    trainer.calls.clear()
    assert await learn(learner, batch) == "updated"  # the next step begins anew
    assert trainer.calls[1] == ("accumulate", PROMPTS, None)


async def test_a_batch_that_streamed_and_turns_out_smaller_than_planned_is_updated_with_its_size(learning):
    trainer, learner = learning
    batch = Batch()
    batch.accepted |= dict.fromkeys(PROMPTS[:2], (0, 1))
    learner.stream(batch, None, None)
    await turns()
    batch.order = tuple(PROMPTS[:4])
    assert await learn(learner, batch) == "updated"
    assert trainer.calls == [
        ("begin", 7, 6, 12),
        ("accumulate", PROMPTS[:2], None),
        ("accumulate", PROMPTS[2:4], None),
        ("complete", 8),
        ("finish",),
    ]


async def test_a_trainer_with_gpus_of_its_own_takes_all_that_is_there_at_once_and_is_not_woken(learning):
    trainer, learner = learning
    batch = Batch()
    learner.stream(batch, None, None)
    await turns()
    batch.accepted |= dict.fromkeys(PROMPTS[1:5], (0, 1))
    learner.group_accepted()
    await turns()
    batch.order = tuple(PROMPTS)
    assert await learn(learner, batch) == "updated"
    assert trainer.calls[1:3] == [("accumulate", PROMPTS[1:5], None), ("accumulate", [PROMPTS[0], PROMPTS[5]], None)]
    assert [call[0] for call in trainer.calls] == ["begin", "accumulate", "accumulate", "complete", "finish"]
    assert learner.num_tokens_streamed == 4 * 20


async def test_a_stream_that_is_to_end_finishes_its_call_and_begins_no_other(learning):
    trainer, learner = learning
    batch = Batch()
    batch.accepted |= dict.fromkeys(PROMPTS[:4], (0, 1))
    learner.stream(batch, frozenset({0}), 1)
    await trainer.is_accumulating.wait()
    await learner.end_streaming()
    await turns()
    assert [call[0] for call in trainer.calls] == ["wake", "begin", "accumulate"]
    batch.order = tuple(PROMPTS)
    await learn(learner, batch)
    assert trainer.calls[3] == ("accumulate", PROMPTS[1:], None)


async def test_what_the_trainer_refuses_while_it_streams_ends_the_step(learning):
    trainer, learner = learning
    trainer.error = ForeignVersion("tokens of another version")
    batch = Batch()
    batch.accepted[PROMPTS[0]] = (0, 1)
    learner.stream(batch, frozenset({0}), 1)
    await turns()
    assert trainer.told == [trainer.error]  # at once, while the rollout still runs
    batch.order = tuple(PROMPTS)
    with pytest.raises(ForeignVersion):
        await learn(learner, batch)


async def test_gpus_that_come_when_the_round_is_over_or_none_at_all_start_no_stream(learning):
    trainer, learner = learning
    batch = Batch()
    learner.stream(batch, frozenset(), 1)
    batch.order = tuple(PROMPTS)
    learner.stream(batch, frozenset({0}), 1)
    await turns()
    assert trainer.calls == []


async def test_a_stream_that_nobody_finishes_ends_with_the_run(learning):
    _, learner = learning
    learner.stream(Batch(), frozenset({0}), 1)
    await turns()
    await learner.close()
    assert len(asyncio.all_tasks()) == 1


async def test_a_trainer_that_gives_lent_gpus_back_sleeps_after_its_call_and_goes_on_in_the_same_step(learning):
    trainer, learner = learning
    batch = Batch()
    batch.accepted |= dict.fromkeys(PROMPTS[:2], (0, 1))
    learner.stream(batch, frozenset({0, 1}), None)
    await trainer.is_accumulating.wait()
    await learner.give_back()
    batch.accepted |= dict.fromkeys(PROMPTS[2:4], (0, 1))
    learner.group_accepted()
    await turns()
    assert [call[0] for call in trainer.calls] == ["wake", "begin", "accumulate", "sleep"]
    learner.stream(batch, frozenset({0, 1}), None)
    await turns()
    batch.order = tuple(PROMPTS)
    await learn(learner, batch)
    assert [call[0] for call in trainer.calls].count("begin") == 1
    assert [call[1] for call in trainer.calls if call[0] == "accumulate"] == [PROMPTS[:2], PROMPTS[2:4], PROMPTS[4:]]


@pytest.mark.parametrize(("gpus", "is_idle"), [(frozenset({0}), True), (None, False)])
async def test_a_stream_that_waits_on_lent_gpus_is_idle_and_one_on_its_own_is_not(learning, gpus, is_idle):
    _, learner = learning
    batch = Batch()
    learner.stream(batch, gpus, None)
    await turns()
    batch.accepted[PROMPTS[0]] = (0, 1)
    learner.group_accepted()
    await turns()
    assert (learner.idle_s > 0) is is_idle
    await learner.close()


async def test_a_step_that_the_run_leaves_is_given_up_by_the_trainer_too_while_it_streams(learning):
    trainer, learner = learning
    batch = Batch()
    batch.accepted |= dict.fromkeys(PROMPTS[:2], (0, 1))
    learner.stream(batch, None, None)
    await trainer.is_accumulating.wait()
    await learner.give_up()
    assert [call[0] for call in trainer.calls] == ["begin", "accumulate", "give up"]
