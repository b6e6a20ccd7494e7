"""Plain batching: every round runs P0 prompts with R0 responses each and waits for all of them.

The synchronous baseline: a race with a place for everyone. With `overlap_rewards` each response is scored as it
finishes; without, the whole batch is scored after the last one. The last batch of finite data may be smaller: when a
domain ends, the others fill its places.

Invariant: nothing is speculated, so nothing is ever stopped. Source: RollPacker, section 2, the veRL baseline.
"""

from __future__ import annotations

from rollpacker.core.batching_machine import Decision
from rollpacker.core.commands import EndRun, RoundKind
from rollpacker.core.race import Race


class PlainBatching(Race):
    """Packs prompts into plain rounds."""

    def _prepare_round(self) -> tuple[Decision, ...]:
        draws = self._supply.ask_any(self._settings.num_prompts - self._supply.num_drawn().total())
        if draws:
            return draws
        prompts = self._supply.take()
        return self._begin(RoundKind.PLAIN, prompts) if prompts else (EndRun(),)

    def next_kind(self) -> RoundKind:
        return RoundKind.PLAIN
