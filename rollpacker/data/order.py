"""In which order the prompts of each domain are drawn, epoch after epoch.

Invariant: each epoch of a domain draws each of its prompts exactly once. The order of an epoch is a function of
(seed, domain, epoch) and of the keys in the file's order, and of nothing else: neither the Python version nor the
hash seed nor the draws of other domains change it. So a position is enough to resume, and a snapshot is tiny.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rollpacker.core.errors import CheckpointError, ImpossibleEvent
from rollpacker.core.events import PromptsDrawn
from rollpacker.core.ids import Domain, PromptId

if TYPE_CHECKING:
    from rollpacker.protocols.rollout import Prompt


class PromptOrder:
    """Draws prompts, domain by domain."""

    def __init__(
        self,
        keys_by_domain: Mapping[Domain, Sequence[str]],
        seed: int,
        shuffle: bool,
        num_epochs: int | None,
        contents: Mapping[Domain, int] = MappingProxyType({}),
    ) -> None:
        """Start before the first prompt of epoch 0.

        Args:
            keys_by_domain: Every domain's keys in the file's order, at least one; a key is unique over all domains.
            seed: Of the run.
            shuffle: A new order in every epoch, instead of the file's.
            num_epochs: How often each prompt is drawn; None never ends.
            contents: Checksums of the domains' prompts, for `edited_since`.
        """
        self._keys_by_domain = {domain: tuple(keys) for domain, keys in keys_by_domain.items()}
        self._num_epochs = num_epochs
        self._contents = dict(contents)
        self._cursors = {
            domain: _Cursor(keys=keys, domain=domain, seed=seed, shuffle=shuffle)
            for domain, keys in self._keys_by_domain.items()
        }
        self._fingerprint = _fingerprint(self._keys_by_domain)

    def draw(self, domain: Domain, num_prompts: int) -> PromptsDrawn:
        """Take the next prompts of a domain: fewer than asked for only when its last epoch ends."""
        cursor = self._cursors.get(domain)
        if cursor is None or num_prompts < 0:
            raise ImpossibleEvent(
                f"{num_prompts} prompts of domain {domain!r} were ordered",
                f"Domains of the data: {', '.join(self._cursors)}; a count of at least 0",
                "Please report this with the event log",
            )
        prompts: list[PromptId] = []
        while len(prompts) < num_prompts and not self._is_over(cursor):
            prompts += cursor.take(num_prompts - len(prompts))
        return PromptsDrawn(domain=domain, prompts=tuple(prompts), is_exhausted=self._is_over(cursor))

    def snapshot(self) -> dict[str, object]:
        """Give the position as plain JSON data; its size does not depend on the number of prompts."""
        return {
            "fingerprint": self._fingerprint,
            "contents": self._contents,
            "positions": {domain: [cursor.epoch, cursor.position] for domain, cursor in self._cursors.items()},
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot of the same seed and shuffling.

        Raises:
            CheckpointError: The snapshot is of other prompts; nothing has changed then.
        """
        if not is_of(snapshot, self._keys_by_domain):
            raise other_prompts()
        for domain, (epoch, position) in snapshot["positions"].items():
            self._cursors[domain].jump(epoch, position)

    def edited_since(self, snapshot: Mapping[str, Any]) -> list[Domain]:
        """Name the domains whose prompts say something else than those of a snapshot, under the same ids."""
        return [domain for domain, now in self._contents.items() if snapshot["contents"][domain] != now]

    def _is_over(self, cursor: _Cursor) -> bool:
        return self._num_epochs is not None and cursor.epoch >= self._num_epochs


def keys_of(prompts: Iterable[Prompt]) -> dict[Domain, list[str]]:
    """Give every domain's keys, in the order of the prompts."""
    keys: dict[Domain, list[str]] = {}
    for prompt in prompts:
        keys.setdefault(prompt.domain, []).append(prompt.key)
    return keys


def is_of(snapshot: Mapping[str, object], keys_by_domain: Mapping[Domain, Sequence[str]]) -> bool:
    """Tell whether a snapshot is of these prompts, in this order."""
    return snapshot.get("fingerprint") == _fingerprint(keys_by_domain)


def other_prompts() -> CheckpointError:
    """Make the error of a run that is resumed with other prompts."""
    return CheckpointError(
        "The prompts in data.path, or their order, are not those of the checkpoint.",
        "A run goes on with the prompts that it began with; else some would be trained twice.",
        "Restore the earlier file, or start a new run in another run.dir.",
    )


class _Cursor:
    """A position in one domain's endless sequence of epochs; it always points at a prompt."""

    def __init__(self, *, keys: tuple[str, ...], domain: Domain, seed: int, shuffle: bool) -> None:
        self._keys = keys
        self._domain = domain
        self._seed = seed
        self._shuffle = shuffle
        self.jump(0, 0)

    def jump(self, epoch: int, position: int) -> None:
        self.epoch = epoch
        self.position = position
        self._order = self._keys
        if self._shuffle:
            self._order = _permute(self._keys, _epoch_seed(self._seed, self._domain, epoch))

    def take(self, num_prompts: int) -> list[PromptId]:
        """Take up to `num_prompts`, not beyond the end of the epoch."""
        keys = self._order[self.position : self.position + num_prompts]
        taken = [PromptId(self.epoch, key) for key in keys]
        self.position += len(taken)
        if self.position == len(self._keys):
            self.jump(self.epoch + 1, 0)
        return taken


def _epoch_seed(seed: int, domain: Domain, epoch: int) -> int:
    digest = hashlib.sha256(f"{seed}\n{epoch}\n{domain}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def _permute(keys: tuple[str, ...], seed: int) -> tuple[str, ...]:
    """Fisher-Yates from `random.random()` alone: Python promises that its sequence never changes, but not shuffle's."""
    draw = random.Random(seed).random
    order = list(keys)
    for last in range(len(order) - 1, 0, -1):
        other = int(draw() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return tuple(order)


def _fingerprint(keys_by_domain: Mapping[Domain, Sequence[str]]) -> str:
    """Depends on every domain's keys and their order, not on the order of the domains."""
    digest = hashlib.sha256()
    for domain in sorted(keys_by_domain):
        for text in (domain, *keys_by_domain[domain]):
            raw = text.encode()
            digest.update(len(raw).to_bytes(4, "big") + raw)
        digest.update(b"\xff\xff\xff\xff")
    return digest.hexdigest()[:16]
