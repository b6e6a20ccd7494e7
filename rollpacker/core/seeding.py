"""How long the trainer's own GPUs roll out in a round before all of their engines are lent to the trainer.

    resting ──BeginRound──> rolling out ──the window is over, and a worker serves──> lent ──EndRound──> resting
                                 ^                                                    │
                                 └──EnginesReturned── returning <──too few serve, for a while

In the window T all engines generate; then what runs on the local ones goes on at the workers, and groups stream to a
trainer that has all of its GPUs. With W engine-seconds of rollout in a step, counted in the speed of a local engine, t
seconds of training, n_l local engines and workers as fast as n of them, nobody waits if

    T = max(0, (W - n t) / (n_l + n)),

which is the first guess for a number of workers. Each step in which that number stayed corrects it by the difference of
two waits, the trainer's and the workers', over `gain`; it is remembered for each kind of round and number of workers,
and taken as soon as the number changes. Steps differ, and a longer window by a second spares the trainer the wait for
n_l / n seconds of the workers': so much its wait counts. Without a worker nothing is lent here.

All engines are counted in local ones of the configured degree. Those of another are counted as many as their GPUs would
be, so that what was learned on one degree holds on the others.

If no worker serves while the engines are lent, nothing is generated at all; if some are lost, the rest may take longer
than the training that lending has spared. So engines are taken back from the trainer, what it has learned kept, and
stay until the round ends, when for `reclaim_after_s` nobody serves, or so few that

    R / n > R / (n_l + n) + t + reclaim_after_s,

with R engine-seconds of W still to come if workers alone, the most that served while engines were lent, had generated
since the round began. What local engines generated in the window is not subtracted: R is too large by T n_l.

A round ends whatever becomes of its workers. One that loses all of them takes no longer than one that never had any,
and `silence_s` until they are lost, `reclaim_after_s`, two switches of an engine, and a reload: the policy, and what an
engine takes from it to its first token, which the round has paid once before. What workers have reported is a gain.

Invariant: engines are lent and taken back at most once in a round.
Source: RLBoost (arXiv 2510.19225), algorithm 1; the formula and taking back are this project's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

from rollpacker.core.commands import BeginRound, ReclaimEngines, RoundKind, SetTimer
from rollpacker.core.elastic_settings import SeedingSettings
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import EnginesReturned, StepMeasured, TimerFired
from rollpacker.core.ids import EngineId

WEIGHT: Final = 0.3
"""Of the last step in a mean, as in `core.demand`."""


class Seeding:
    """Says when the engines on the trainer's GPUs are lent, and when they are taken back."""

    def __init__(self, settings: SeedingSettings) -> None:
        self._settings = settings
        self._windows: dict[tuple[RoundKind, int], float] = {}
        """T by the kind of the round and the number of workers, in seconds; without a memory that number is 0."""
        self._needs: dict[RoundKind, tuple[float, float]] = {}
        """W and t of rounds of a kind."""
        self.round = -1
        """The open round, or the last one."""
        self._step = -1
        """It is for this one."""
        self._kind = RoundKind.PLAIN
        self._is_open = False
        self._began_at_s: float | None = None
        """None until the round's first moment is known."""
        self._num_workers = 0
        """That serve or are about to."""
        self._is_steady = True
        """Their number stayed since the round began."""
        self._is_over = False
        """The window is."""
        self._lent: tuple[EngineId, ...] = ()
        """Engines that are lent now."""
        self._has_lent = False
        """In this round."""
        self._num_lent_to = 0
        """The most workers that have served since engines were lent last."""
        self._is_waiting = False
        """They are taken back, unless a worker serves before the timer fires."""
        self._is_returning = False
        self._is_measured = True

    # The round

    def begin_round(self, command: BeginRound) -> None:
        """Let a window begin."""
        self.round, self._step, self._kind = command.round, command.step, command.kind
        self._is_open, self._began_at_s, self._is_steady, self._is_measured = True, None, True, False
        self._lent, self._is_over, self._has_lent, self._is_waiting, self._is_returning = (), False, False, False, False

    def end_round(self) -> None:
        """Rest: the next step gives the engines back."""
        self._is_open, self._lent, self._is_waiting, self._is_returning = False, (), False, False

    @property
    def leads(self) -> bool:
        """Whether it is here that is decided what is lent in this round."""
        return self._has_lent or (self._num_workers > 0 and self._is_known)

    @property
    def are_lent(self) -> bool:
        """Whether engines are lent that would be taken back."""
        return bool(self._lent)

    @property
    def _is_known(self) -> bool:
        return self._settings.fixed_s is not None or self._kind in self._needs

    # The window

    def count(self, num_workers: int, speed: float, num_local: float, now: float) -> tuple[SetTimer, ...]:
        """Take down how many workers serve or are about to, and move the window's end if that is news.

        Args:
            num_workers: Of them.
            speed: Of one of them, in local engines.
            num_local: Engines on the trainer's GPUs, if all had the configured degree.
            now: Seconds since the run began.
        """
        has_begun = self._is_open and self._began_at_s is None
        if not has_begun and num_workers == self._num_workers:
            return ()
        if has_begun:
            self._began_at_s = now
        else:
            self._is_steady = False
        self._num_workers = num_workers
        if not (self._is_open and self.leads) or self._has_lent or self._began_at_s is None:
            return ()
        at_s = max(now, self._began_at_s + self.window_s(num_workers, speed, num_local))
        self._is_over = self._is_over and at_s <= now
        return (SetTimer(timer=self._timer("seeding"), at_s=at_s),)

    def window_s(self, num_workers: int, speed: float, num_local: float) -> float:
        """T of a round of the last kind with so many workers."""
        if self._settings.fixed_s is not None:
            return self._settings.fixed_s
        remembered = self._windows.get(self._key(num_workers))
        if remembered is not None:
            return remembered
        rollout_s, train_s = self._needs[self._kind]
        num = num_workers * speed
        return max(0.0, (rollout_s - num * train_s) / (num_local + num)) if num_local + num else 0.0

    def _key(self, num_workers: int) -> tuple[RoundKind, int]:
        return self._kind, num_workers if self._settings.remembers else 0

    def lend(self, engines: Sequence[EngineId], num_serving: int) -> tuple[EngineId, ...]:
        """Name the engines to lend now: all of them, if the window is over and a worker serves."""
        if not (self._is_open and self._is_over and num_serving and engines) or self._has_lent:
            return ()
        self._has_lent, self._lent, self._num_lent_to = True, tuple(engines), num_serving
        return self._lent

    # Taking back

    def watch(
        self, num_serving: int, num_workers: int, speed: float, num_local: float, now: float
    ) -> tuple[SetTimer, ...]:
        """Wait for a while when too few workers are left.

        Args:
            num_serving: Workers that serve now.
            num_workers: As in `count`, like what follows.
            speed: Of one.
            num_local: Engines on the trainer's GPUs, if all had the configured degree.
            now: Seconds since the run began.
        """
        self._num_lent_to = max(self._num_lent_to, num_serving)
        is_enough = num_serving > 0 and not self._gains(num_workers * speed, speed, num_local, now)
        if self._is_returning or not self._lent or is_enough:
            self._is_waiting = False
            return ()
        if self._is_waiting:
            return ()
        self._is_waiting = True
        return (SetTimer(timer=self._timer("reclaim"), at_s=now + self._settings.reclaim_after_s),)

    def _gains(self, left: float, speed: float, num_local: float, now: float) -> bool:
        """Whether local engines beside those that are left would save more than the training that waits for them."""
        if self._num_lent_to * speed <= left or self._began_at_s is None or self._kind not in self._needs:
            return False
        rollout_s, train_s = self._needs[self._kind]
        to_come_s = rollout_s - (now - self._began_at_s) * self._num_lent_to * speed
        return to_come_s / left - to_come_s / (num_local + left) > train_s + self._settings.reclaim_after_s

    def fire(self, event: TimerFired) -> tuple[ReclaimEngines, ...]:
        """End the window, or take the lent engines back; nothing if the round has gone on, or for other timers."""
        if not self._is_open:
            return ()
        if event.timer == self._timer("seeding"):
            self._is_over = True
        if event.timer == self._timer("reclaim") and self._is_waiting:
            self._is_returning, self._is_waiting = True, False
            return (ReclaimEngines(round=self.round, engines=self._lent),)
        return ()

    def take_back(self, event: EnginesReturned) -> bool:
        """Note that lent engines are back; False if that comes late.

        Raises:
            ImpossibleEvent: It was not ordered; nothing was changed.
        """
        if event.round > self.round or (event.round == self.round and not self._has_lent):
            raise ImpossibleEvent(f"{event.engines} were returned in round {event.round}, which was not ordered.")
        if not self._is_returning or event.round != self.round:
            return False
        self._lent, self._is_returning = (), False
        return True

    def _timer(self, purpose: str) -> str:
        return f"{purpose} of round {self.round}"

    # Learning

    def measure(self, event: StepMeasured, rollout_s: float, speed: float, num_local: float) -> None:
        """Learn from the step of the last round; one that was measured before changes nothing.

        Args:
            event: The measurement.
            rollout_s: Engine-seconds of its rollout, in the speed of a local engine.
            speed: Of a worker, in local engines.
            num_local: Engines on the trainer's GPUs, if all had the configured degree.
        """
        if event.step != self._step or self._is_measured:
            return
        self._is_measured = True
        if self._settings.fixed_s is None and self._is_known and self._is_steady and self._num_workers:
            used_s = self.window_s(self._num_workers, speed, num_local)
            wait_s = event.trainer_idle_s * num_local / (self._num_workers * speed) - event.fleet_idle_s
            self._windows[self._key(self._num_workers)] = max(0.0, used_s + wait_s / float(self._settings.gain))
        before = self._needs.get(self._kind, (rollout_s, event.train_s))
        self._needs[self._kind] = (
            before[0] + WEIGHT * (rollout_s - before[0]),
            before[1] + WEIGHT * (event.train_s - before[1]),
        )

    # Self-check and snapshot

    def check(self) -> None:
        """Re-derive the machine's invariants.

        Raises:
            InvariantViolated: The state contradicts itself.
        """
        if (self._lent and not (self._is_open and self._has_lent)) or (self._is_returning and not self._lent):
            raise InvariantViolated(f"Engines are lent, or come back, that were not: {self.snapshot()}")
        if min(self._windows.values(), default=0.0) < 0:
            raise InvariantViolated(f"A window is shorter than none: {self._windows}")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {
            "windows": [[kind.value, num_workers, window_s] for (kind, num_workers), window_s in self._windows.items()],
            "needs": [[kind.value, *needs] for kind, needs in self._needs.items()],
            "kind": self._kind.value,
            "lent": list(self._lent),
            "round": self.round,
            **{name: getattr(self, f"_{name}") for name in _PLAIN},
        }

    @classmethod
    def restore(cls, settings: SeedingSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot."""
        machine = cls(settings)
        machine._windows = {(RoundKind(kind), number): window_s for kind, number, window_s in snapshot["windows"]}
        machine._needs = {RoundKind(kind): (rollout_s, train_s) for kind, rollout_s, train_s in snapshot["needs"]}
        machine._kind = RoundKind(snapshot["kind"])
        machine._lent = tuple(map(EngineId, snapshot["lent"]))
        machine.round = snapshot["round"]
        for name in _PLAIN:
            setattr(machine, f"_{name}", snapshot[name])
        return machine


_PLAIN = (
    "step",
    "is_open",
    "began_at_s",
    "num_workers",
    "is_steady",
    "is_over",
    "has_lent",
    "num_lent_to",
    "is_waiting",
    "is_returning",
    "is_measured",
)
"""Parts of the state that JSON has as they are."""
