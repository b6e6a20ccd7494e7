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
    dynamic_sampling,
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
from tests.core.plans import run_plans
from tests.core.world import Scenario, World, scenarios

IN_IMPORT_ORDER = (
    supply,
    round,
    tail_batching,
    plain_batching,
    dynamic_sampling,
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
    needs_stream: bool = False
    """Whether it shows only where engines are lent."""
    needs_drops: bool = False
    """Whether it shows only with dynamic sampling."""


FAULTS = (
    Fault(
        name="train what has no variance",
        module=dynamic_sampling,
        right="self._accept(group) if group.has_variance else self._drop(group)",
        wrong="self._accept(group)",
    ),
    Fault(
        name="drop what has variance",
        module=dynamic_sampling,
        right="self._accept(group) if group.has_variance else self._drop(group)",
        wrong="self._drop(group)",
    ),
    Fault(
        name="queue what is dropped",
        module=dynamic_sampling,
        right="stopped = self._ledger.drop(group)",
        wrong="stopped = self._ledger.drop(group); self._long_queue.append(DrawnPrompt(group.prompt, group.domain))",
    ),
    Fault(
        name="no prompt in the place of a dropped one",
        module=dynamic_sampling,
        right="return *decisions, *self._go_on()\n\n    def _accept",
        wrong="return *decisions, *([self._end_round()] if ledger.is_complete else [])\n\n    def _accept",
    ),
    Fault(
        name="forget the limit on active requests",
        module=dynamic_sampling,
        right="return min(num_left, (self._max_active_requests",
        wrong="return max(num_left, (self._max_active_requests",
    ),
    Fault(
        name="launch without end",
        module=dynamic_sampling,
        right="num_left = max(0, self._max_launched - len(ledger.groups))",
        wrong="num_left = 1 + max(0, self._max_launched - len(ledger.groups))",
    ),
    Fault(
        name="close places while there is data",
        module=dynamic_sampling,
        right="if not (weights or self._queued() or self._supply.num_drawn()):",
        wrong="if not (self._queued() or self._supply.num_drawn()):",
    ),
    Fault(
        name="forget to defer",
        module=tail_batching,
        right="self._long_queue += losers",
        wrong="pass",
    ),
    Fault(
        name="last in, first out",
        module=tail_batching,
        right="self._long_queue += losers",
        wrong="self._long_queue[:0] = losers[::-1]",
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
        right="if request.round < self.round or not self.is_open:",
        wrong="if not self.is_open:",
    ),
    Fault(
        name="one race for all domains",
        module=round,
        right="[racing for racing in self.racing_groups() if racing.domain == domain]",
        wrong="list(self.racing_groups())",
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
        name="forget what waits when an engine joins",
        module=routing,
        right="for request, holder in self._in_flight.items() if holder is None]",
        wrong="for request, holder in self._in_flight.items() if False]",
    ),
    Fault(
        name="forget what finds no engine",
        module=routing,
        right="""        self._in_flight.update(dict.fromkeys(requests))
        return []""",
        wrong="        return []",
    ),
    Fault(
        name="believe an engine that lost the request",
        module=scheduler,
        right="""has_moved(event.request, event.engine):
            return ()""",
        wrong="""has_moved(event.request, event.engine):
            pass""",
    ),
    Fault(
        name="score what lost the race",
        module=tail_batching,
        right="for request in ledger.finished_requests()]",
        wrong="for request in ledger._requests(ord('f'), tuple(Outcome))]",
    ),
    Fault(
        name="end the round before the rewards are in",
        module=round,
        right="return not self.num_placed and self.is_full",
        wrong="return self.is_full",
    ),
    Fault(
        name="launch on a lent engine",
        module=routing,
        right="for engine, held in self._held.items() if engine not in self._lent",
        wrong="for engine, held in self._held.items()",
    ),
    Fault(
        name="keep lent engines for ever",
        module=routing,
        right="self._lent.clear()",
        wrong="pass",
    ),
    Fault(
        name="believe a second eviction",
        module=routing,
        right="if self.has_moved(request, engine) or request not in",
        wrong="if request not in",
        needs_stream=True,
    ),
    Fault(
        name="a stale load",
        module=routing,
        right="while load != len(held):",
        wrong="while False:",
    ),
    Fault(
        name="forget to evict",
        module=scheduler,
        right=", *self._router.lend(engines)",
        wrong=", *self._router.lend(engines)[1:]",
    ),
    Fault(
        name="start a step on engines of two degrees",
        module=scheduler,
        right="if self._router.is_changing:",
        wrong="if False:",
    ),
    Fault(
        name="learn from programs that failed",
        module=reward_budget,
        right="if run.is_passed:",
        wrong="if True:",
    ),
    Fault(
        name="the last run instead of the longest",
        module=reward_budget,
        right="max(run.time_s, anchors[run.case] or 0.0)",
        wrong="run.time_s",
    ),
    Fault(
        name="one epoch's anchors are not the next one's",
        module=reward_budget,
        right="self._anchors.setdefault(event.request.prompt.key, [])",
        wrong="self._anchors.setdefault(str(event.request.prompt), [])",
    ),
    Fault(
        name="a snapshot without anchors",
        module=reward_budget,
        right='for key, anchors in snapshot["anchors"].items()}',
        wrong="for key, anchors in ()}",
    ),
    Fault(
        name="one controller for all kinds of rounds",
        module=parallelism,
        right="self._learn(self._controllers[self._kind], event)",
        wrong="self._learn(self._controllers[RoundKind.SHORT], event)",
    ),
    Fault(
        name="a verdict right after a change",
        module=parallelism,
        right="self.degree, self.came_from, self.reference, self.num_calm = degree, came_from, None, 0",
        wrong="self.degree, self.came_from, self.num_calm = degree, came_from, 0",
    ),
    Fault(
        name="a change to a degree that was slower",
        module=parallelism,
        right="return gain_s >= 0 and",
        wrong="return True or",
    ),
    Fault(
        name="a change that takes longer than it saves",
        module=parallelism,
        right=">= self._cost_s(here, there)",
        wrong=">= 0",
    ),
    Fault(
        name="the way back costs nothing",
        module=parallelism,
        right="way_there + self._switch_s.get(here, way_there) if",
        wrong="way_there if",
    ),
    Fault(
        name="a long row of rounds is hoped for",
        module=parallelism,
        right="return min(controller.num_rounds / max(controller.num_rows, 1), self._settings.num_rounds_remembered)",
        wrong="return self._settings.num_rounds_remembered",
    ),
    Fault(
        name="a slower degree is kept",
        module=parallelism,
        right="here is not None and there is not None and here < there",
        wrong="False",
    ),
    Fault(
        name="a rate is remembered for ever",
        module=parallelism,
        right="del controller.rounds[: -self._settings.num_rounds_remembered - 1]",
        wrong="pass",
    ),
    Fault(
        name="the last round instead of the mean",
        module=parallelism,
        right="for at, num_tokens, time_s in self.rounds if at == degree]",
        wrong="for at, num_tokens, time_s in self.rounds if at == degree][-1:]",
    ),
    Fault(
        name="a change is judged by its first round alone",
        module=parallelism,
        right="before = controller.came_from\n",
        wrong="before, controller.came_from = controller.came_from, None\n",
    ),
    Fault(
        name="plan for the kind that was",
        module=parallelism,
        right="controller = self._controllers[next_kind]",
        wrong="controller = self._controllers[self._kind]",
    ),
    Fault(
        name="no guess",
        module=parallelism,
        right="if controller.num_rounds == 1 and self._settings.costs and event.lengths_tokens:",
        wrong="if False:",
    ),
    Fault(
        name="stream to GPUs that engines use",
        module=stream_scaling,
        right="return () if self._settings.replicas else (",
        wrong="return (",
    ),
    Fault(
        name="lend twice in a round",
        module=stream_scaling,
        right="self._has_lent = True",
        wrong="pass",
    ),
    Fault(
        name="split a replica",
        module=stream_scaling,
        right="is_whole = is_whole and gpu in replica_of and gpu in users",
        wrong="is_whole = is_whole and gpu in users",
    ),
    Fault(
        name="lend more than half",
        module=stream_scaling,
        right="<= len(fleet) // 2:",
        wrong="<= len(fleet) - 1:",
    ),
    Fault(
        name="move the fullest engines",
        module=stream_scaling,
        right="key=lambda block: Fraction(sum",
        wrong="key=lambda block: -Fraction(sum",
    ),
    Fault(
        name="expect no more than there is",
        module=stream_scaling,
        right="num_shorter = bisect_right(lengths, num_generated)",
        wrong="num_shorter = 0",
    ),
    Fault(
        name="count the lent engines' memory",
        module=stream_scaling,
        right="for engine in fleet if engine not in lent]",
        wrong="for engine in fleet]",
    ),
    Fault(
        name="count what has finished since",
        module=stream_scaling,
        right=" if holders.get(request.request) == engine]",
        wrong="]",
    ),
    Fault(
        name="a snapshot without lengths",
        module=stream_scaling,
        right='machine._recent_lengths.extend(snapshot["recent_lengths"])',
        wrong="pass",
    ),
    Fault(
        name="measure once only",
        module=stream_scaling,
        right="self._is_measuring = False\n        progress_of",
        wrong="progress_of",
    ),
    Fault(
        name="forget the launches in the place of a dropped prompt's",
        module=stream_scaling,
        right="self._num_launched += self._num_samples",
        wrong="pass",
        needs_drops=True,
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


MOST_WORLDS = 400
"""That a fault may take to show; most take a few, and the first one that shows it ends the search."""


def run_worlds(
    scheduler_class: type[Scheduler],
    *,
    num_worlds: int = MOST_WORLDS,
    is_dynamic: bool = False,
    has_stream: bool = False,
) -> None:
    """Run the same fixed sample of worlds around any scheduler."""

    @settings(
        max_examples=num_worlds,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(scenarios(batching="tail", is_dynamic=is_dynamic, has_stream=has_stream))
    def every_world_is_in_order(scenario: Scenario) -> None:
        World(scenario, scheduler_class).run()

    every_world_is_in_order()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_properties_catch_this_fault(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = scheduler_with(fault)
    monkeypatch.setattr(faulty, "check", lambda _: None)
    with pytest.raises((AssertionError, InternalError)):
        run_what_shows(fault, faulty)


def run_what_shows(fault: Fault, faulty: type[Scheduler]) -> None:
    """Run the worlds, or the plans, in which a fault can show."""
    if fault.module is parallelism:
        run_plans(faulty)
    else:
        has_stream = fault.needs_stream or fault.module is stream_scaling
        is_dynamic = fault.needs_drops or fault.module is dynamic_sampling
        run_worlds(faulty, is_dynamic=is_dynamic, has_stream=has_stream)


def test_without_a_fault_the_same_worlds_pass() -> None:
    right = "class Scheduler:"
    faultless = scheduler_with(Fault(name="none", module=scheduler, right=right, wrong=right))
    run_worlds(faultless, num_worlds=60)
    run_plans(faultless)
