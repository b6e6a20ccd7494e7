"""The properties are worth something: each of these faults, put into the source on purpose, is caught by them.

A fault is a replacement in the text of one core module; the text must be there exactly once. The faulty module and all
that stand on it are compiled afresh, and the same worlds and the same judge that pass the healthy scheduler are run.
The faulty scheduler's own `check` is switched off, so that each fault is caught from outside.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from dataclasses import dataclass
from types import ModuleType
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from rollpacker.core import (
    parallelism,
    plain_batching,
    reward_budget,
    round,  # noqa: A004 - the module
    routing,
    scheduler,
    stream_scaling,
    supply,
    tail_batching,
)
from rollpacker.core.errors import InternalError
from rollpacker.core.scheduler import Scheduler
from tests.core.world import Scenario, World, scenarios

IN_IMPORT_ORDER = (
    supply,
    round,
    tail_batching,
    plain_batching,
    routing,
    reward_budget,
    parallelism,
    stream_scaling,
    scheduler,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    name: str
    module: ModuleType
    right: str
    wrong: str


FAULTS = (
    Fault(
        name="forget to defer",
        module=tail_batching,
        right="self._long_queue.append(DrawnPrompt(loser.prompt, loser.domain))",
        wrong="pass",
    ),
    Fault(
        name="last in, first out",
        module=tail_batching,
        right="self._long_queue.append(DrawnPrompt(loser.prompt, loser.domain))",
        wrong="self._long_queue.insert(0, DrawnPrompt(loser.prompt, loser.domain))",
    ),
    Fault(
        name="speculate in a long round",
        module=tail_batching,
        right="num_launched=self._settings.num_responses,",
        wrong="num_launched=scale_up(self._settings.num_responses, self._settings.eta_responses),",
    ),
    Fault(
        name="long round one prompt early",
        module=tail_batching,
        right="if len(self._long_queue) >= num_prompts:",
        wrong="if len(self._long_queue) >= num_prompts - 1:",
    ),
    Fault(
        name="forget aborts",
        module=tail_batching,
        right="return [StopRequests(requests=tuple(stopped))] if stopped else []",
        wrong="return []",
    ),
    Fault(
        name="constant round id",
        module=round,
        right="""            RequestId(self.round, group.prompt, sample)
            for group""",
        wrong="""            RequestId(0, group.prompt, sample)
            for group""",
    ),
    Fault(
        name="keep every sample",
        module=tail_batching,
        right="group.num_scored < ledger.num_responses",
        wrong="group.num_scored < len(group.samples)",
    ),
    Fault(
        name="ignore the round of a finish",
        module=round,
        right="if request.round < self.round or not self.groups:",
        wrong="if not self.groups:",
    ),
    Fault(
        name="one race for all domains",
        module=tail_batching,
        right="[racing for racing in ledger.racing_groups() if racing.domain == group.domain]",
        wrong="list(ledger.racing_groups())",
    ),
    Fault(
        name="end the run with prompts in the queue",
        module=tail_batching,
        right="return self._begin_long_round() if self._long_queue else (EndRun(),)",
        wrong="return (EndRun(),)",
    ),
    Fault(
        name="a snapshot without the queue",
        module=tail_batching,
        right='[DrawnPrompt.from_plain(plain) for plain in snapshot["long_queue"]]',
        wrong="[]",
    ),
    Fault(
        name="accept a foreign policy version",
        module=round,
        right="if event.policy_version != self.policy_version:",
        wrong="if False:",
    ),
    Fault(
        name="forget what a lost engine ran",
        module=routing,
        right="return self.launch(self._remove(engine))",
        wrong="self._remove(engine); return []",
    ),
    Fault(
        name="believe an engine that lost the request",
        module=scheduler,
        right="""has_moved(event.request, event.engine):
            return ()""",
        wrong="""has_moved(event.request, event.engine):
            pass""",
    ),
)


def scheduler_with(fault: Fault) -> type[Scheduler]:
    """Compile the core anew with the fault in it; the package itself stays as it is."""
    fresh: dict[str, ModuleType] = {}
    with mock.patch.dict(sys.modules):
        for module in IN_IMPORT_ORDER:
            source = inspect.getsource(module)
            if module is fault.module:
                assert source.count(fault.right) == 1, (
                    f"{fault.name}: the text is there {source.count(fault.right)} times"
                )
                source = source.replace(fault.right, fault.wrong)
            assert module.__spec__ is not None
            copy = importlib.util.module_from_spec(module.__spec__)
            sys.modules[module.__name__] = fresh[module.__name__] = copy
            exec(compile(source, f"{module.__name__} with fault: {fault.name}", "exec"), copy.__dict__)  # noqa: S102
    faulty: type[Scheduler] = fresh[scheduler.__name__].Scheduler
    return faulty


def run_worlds(scheduler_class: type[Scheduler]) -> None:
    """Run the same fixed sample of worlds around any scheduler."""

    @settings(
        max_examples=60,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(scenarios(batching="tail"))
    def every_world_is_in_order(scenario: Scenario) -> None:
        World(scenario, scheduler_class).run()

    every_world_is_in_order()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_properties_catch_this_fault(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = scheduler_with(fault)
    monkeypatch.setattr(faulty, "check", lambda _: None)
    with pytest.raises((AssertionError, InternalError)):
        run_worlds(faulty)


def test_without_a_fault_the_same_worlds_pass() -> None:
    right = "class Scheduler:"
    run_worlds(scheduler_with(Fault(name="none", module=scheduler, right=right, wrong=right)))
