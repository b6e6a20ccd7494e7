"""Bugs that are put into machines and driver on purpose, to see that random worlds find them.

A bug is a replacement in the text of one function, which must be there exactly once. The function is compiled anew in
its own module and stands in the old one's place while the bug is in.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

from rollpacker.fuzz.session import Violation, run_world
from rollpacker.fuzz.world import draw_world


@dataclass(frozen=True, slots=True)
class Bug:
    """One line that is wrong."""

    name: str
    where: str
    """`module:function` or `module:Class.method`, below `rollpacker`."""
    right: str
    wrong: str


BUGS = (
    Bug(
        "forget to defer",
        "core.tail_batching:TailBatching._give_place",
        "self._long_queue += losers",
        "pass",
    ),
    Bug(
        "last in, first out in the long queue",
        "core.tail_batching:TailBatching._give_place",
        "self._long_queue += losers",
        "self._long_queue[:0] = losers[::-1]",
    ),
    Bug(
        "forget to abort",
        "core.tail_batching:TailBatching._give_place",
        "[StopRequests(requests=tuple(stopped))] if stopped else []",
        "[]",
    ),
    Bug(
        "shut a domain one place early",
        "core.tail_batching:TailBatching._give_place",
        "if not ledger.places[group.domain]:",
        "if ledger.places[group.domain] <= 1:",
    ),
    Bug(
        "wait for one sample more than a group has",
        "core.tail_batching:TailBatching._count_reward",
        "group.num_scored < ledger.num_responses",
        "group.num_scored < min(len(group.samples), ledger.num_responses + 1)",
    ),
    Bug(
        "begin a long round one prompt late",
        "core.tail_batching:TailBatching._prepare_round",
        "len(self._long_queue) >= num_prompts",
        "len(self._long_queue) > num_prompts",
    ),
    Bug(
        "end the run with prompts in the queue",
        "core.tail_batching:TailBatching._prepare_round",
        "self._begin_long_round() if self._long_queue else (EndRun(),)",
        "(EndRun(),)",
    ),
    Bug(
        "speculate in a long round",
        "core.tail_batching:TailBatching._begin_long_round",
        "num_launched=self._settings.num_responses,",
        "num_launched=scale_up(self._settings.num_responses, self._settings.eta_responses),",
    ),
    Bug(
        "a checkpoint without the long queue",
        "core.tail_batching:TailBatching.snapshot",
        "[drawn.to_plain() for drawn in self._long_queue]",
        "[]",
    ),
    Bug(
        "a restored supply asks domains that have ended",
        "core.supply:PromptSupply.restore",
        'supply._ended = {Domain(domain) for domain in snapshot["ended"]}',
        "pass",
    ),
    Bug(
        "ignore the round of a finish",
        "core.round:RoundLedger.launched_group",
        "if request.round < self.round or not self.is_open:",
        "if not self.is_open:",
    ),
    Bug(
        "a duplicated finish is scored twice",
        "core.round:RoundLedger.finish",
        "group.outcome is not Outcome.RACING or group.samples[request.sample] != RUNNING",
        "group.outcome is not Outcome.RACING",
    ),
    Bug(
        "forget what a lost engine ran",
        "core.routing:Router.lose",
        "return self.launch(self._remove(engine))",
        "self._remove(engine); return []",
    ),
    Bug(
        "launch twice what a lost engine ran",
        "core.routing:Router.lose",
        "return self.launch(self._remove(engine))",
        "orphans = self._remove(engine); return self.launch(orphans) + self.launch(orphans)",
    ),
    Bug(
        "launch on lent engines",
        "core.routing:Router.lend",
        "self._lent.update(engines)",
        "pass",
    ),
    Bug(
        "keep lent engines for ever",
        "core.routing:Router.take_back",
        "self._lent.clear()",
        "pass",
    ),
    Bug(
        "believe an engine that lost the request",
        "core.scheduler:Scheduler._finish",
        """if self._router.has_moved(event.request, event.engine):
        return ()""",
        "pass",
    ),
    Bug(
        "the driver keeps the loss of an engine for itself",
        "runtime.driver:Driver._lose",
        "self._take(EngineLost(engine=engine_id))",
        "pass",
    ),
    Bug(
        "the driver waits for what a lost engine ran",
        "runtime.driver:Driver._lose",
        "for request, holder in self._in_flight.items() if request not in lost",
        "for request, holder in self._in_flight.items()",
    ),
    Bug(
        "what waits for an engine is forgotten when one joins",
        "core.routing:Router.join",
        "if holder is None]",
        "if False]",
    ),
    Bug(
        "a replacement joins with the weights that it happens to hold",
        "runtime.replacements:Replacements._bring",
        "None if self._are_weights_due else await self._serve(name, engine)",
        "0",
    ),
    Bug(
        "a replacement has the lost engine's name",
        "runtime.restarts:Restarts._refill",
        "name = successor_of(seat.name, seat.num_begun)",
        "name = seat.name",
    ),
    Bug(
        "a run without engines does not wait for the one that is to come",
        "runtime.driver:Driver._require_engine",
        "is_hope_left = bool(self._replacements.under_way)",
        "is_hope_left = False",
    ),
    Bug(
        "new weights before the last response is back",
        "runtime.driver:Driver.quiesce",
        "while self._in_flight:",
        "while False:",
    ),
    Bug(
        "a damaged transfer of weights goes unnoticed",
        "transfer.confirmations:_is_right",
        "claimed == expected.checksum",
        "True",
    ),
    Bug(
        "the driver drops facts that come together",
        "runtime.driver:Driver._digest",
        "for fact in facts:",
        "for fact in facts[:1]:",
    ),
    Bug(
        "the driver forgets the first of several aborts",
        "runtime.driver:Driver._send_to_engine",
        "order = partial(engine.abort, requests)",
        "order = partial(engine.abort, requests[1:] or requests)",
    ),
    Bug(
        "the driver takes an eviction for an abort",
        "runtime.driver:Driver._report_response",
        "is_evicted = request in self._being_evicted",
        "is_evicted = False",
    ),
    Bug(
        "all samples of a prompt share a seed",
        "runtime.driver:sample_seed",
        "/{prompt.key}/{sample}",
        "/{prompt.key}",
    ),
    Bug(
        "a response is trained with another one's reward",
        "runtime.round_record:RoundRecord.group",
        "map(self.trained_reward, records)",
        "map(self.trained_reward, reversed(records))",
    ),
    Bug(
        "a duplicated verdict is counted twice",
        "runtime.round_record:RoundRecord.scored",
        "if record.verdict is not None:",
        "if False:",
    ),
    Bug(
        "a group that streamed is trained again",
        "runtime.learning:Learner.accumulate",
        "if group.prompt not in self._accumulated",
        "if True",
    ),
    Bug(
        "a resumed run starts with the first policy",
        "runtime.training_run:TrainingRun.load",
        "load = self._trainer.load(checkpoint.trainer_folder)",
        "return",
    ),
    Bug(
        "a checkpoint says one step less than it holds",
        "runtime.training_run:TrainingRun._save",
        "step=num_finished_steps,",
        "step=max(0, num_finished_steps - 1),",
    ),
    Bug(
        "a resumed run draws from the first prompt",
        "data.order:PromptOrder.restore",
        "self._cursors[domain].jump(epoch, position)",
        "pass",
    ),
    Bug(
        "steps that are made again stay in the tables",
        "metrics.tables:MetricsWriter.truncate_after",
        "before = self._manifest.parts",
        "return",
    ),
)


@contextmanager
def with_bug(bug: Bug) -> Iterator[None]:
    """Have the bug in the package while the block runs."""
    module_name, _, path = bug.where.partition(":")
    module = importlib.import_module(f"rollpacker.{module_name}")
    *owners, name = path.split(".")
    owner = module
    for each in owners:
        owner = getattr(owner, each)
    healthy = inspect.getattr_static(owner, name)
    function = inspect.unwrap(getattr(healthy, "__func__", healthy))
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(bug.right) == 1, f"{bug.name}: the text is {source.count(bug.right)} times in {bug.where}"
    code = compile(
        source.replace(bug.right, bug.wrong),
        f"{bug.where} with the bug: {bug.name}",
        "exec",
        flags=__future__.annotations.compiler_flag,
    )
    found: dict[str, FunctionType] = {}
    exec(code, module.__dict__, found)  # noqa: S102
    setattr(owner, name, found[name])
    try:
        yield
    finally:
        setattr(owner, name, healthy)


def first_failure(seeds: range, scratch: Path) -> tuple[int, Violation] | None:
    """Run worlds until one does not hold."""
    for seed in seeds:
        folder = scratch / str(seed)
        folder.mkdir()
        violation = run_world(draw_world(seed), folder).violation
        if violation is not None:
            return seed, violation
    return None
